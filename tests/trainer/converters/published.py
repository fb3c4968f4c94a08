"""The frameworks' own types, made from the source of their published wheels.

A framework brings gigabytes; the types that it reads are some lines of it. Those lines are run
here as they were published, checked by their digest, with what they need of the rest given to
them. Nothing is installed.

`published.sha256` names versions, files and digests; for other versions it is made anew with
`python -m tests.trainer.converters.published trl==X verl==Y ...`, naming every one.
slime, miles and prime-rl publish no wheel.
"""

import __future__

import ast
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import pydantic

from tests.adapters.engines.published import Wheel, renewed

PINS = Path(__file__).with_suffix(".sha256")


def wheel(name: str) -> Wheel:
    return Wheel(name, PINS)


def run(name: str, path: str, only: set[str] | None = None, **given: Any) -> ModuleType:
    """A file of a wheel, or only some definitions of it; `given` stands for what it imports."""
    parsed = wheel(name).module(path)
    body = [
        node
        for node in parsed.body
        if (_name(node) in only if only else not _is_inner_import(node))
    ]
    assert only is None or {_name(node) for node in body} == only
    # As if it began with it, which some do: annotations then need no names.
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Module(body, type_ignores=[]), f"{name}/{path}", "exec", flags, True)
    made = ModuleType(f"published_{name}_{Path(path).stem}")
    made.__dict__.update(given)
    # Dataclasses and pydantic look there for the names in annotations.
    sys.modules[made.__name__] = made
    exec(code, made.__dict__)
    return made


def _name(node: ast.stmt) -> str | None:
    return getattr(node, "name", None)


def _is_inner_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def trl_sample() -> Any:
    """`RolloutSample`."""
    path = "trl/experimental/async_grpo/async_rollout_worker.py"
    return run("trl", path, {"RolloutSample"}, dataclass=dataclass).RolloutSample


def skyrl() -> SimpleNamespace:
    """`GeneratorOutput`, `TrajectoryID`, and the validation that a trainer begins with."""
    types = run(
        "skyrl",
        "skyrl/train/generators/base.py",
        {"GeneratorOutput", "TrajectoryID"},
        dataclass=dataclass,
        TypedDict=dict,
    )
    checks = run(
        "skyrl",
        "skyrl/train/utils/trainer_utils.py",
        {"validate_generator_output", "_validate_step_wise_fields"},
        np=np,
    )
    return SimpleNamespace(
        TrajectoryID=types.TrajectoryID,
        fields=set(types.GeneratorOutput.__annotations__),
        validate=checks.validate_generator_output,
    )


def atropos_data() -> Any:
    """`ScoredData`, with the validation of the server that takes it."""
    return run(
        "atroposlib",
        "atroposlib/api/server.py",
        {"ScoredData"},
        BaseModel=pydantic.BaseModel,
        field_validator=pydantic.field_validator,
        **{name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional")},
    ).ScoredData


def tinker() -> SimpleNamespace:
    """`Datum` and `ModelInput`."""
    text = run(
        "tinker", "tinker/types/encoded_text_chunk.py", StrictBase=pydantic.BaseModel
    ).EncodedTextChunk
    model_input = run(
        "tinker",
        "tinker/types/_pydantic_types/model_input.py",
        StrictBase=pydantic.BaseModel,
        EncodedTextChunk=text,
        ModelInputChunk=text,
    ).ModelInput
    data = run("tinker", "tinker/types/tensor_data.py", TensorDtype=Literal["int64", "float32"])
    datum = run(
        "tinker",
        "tinker/types/datum.py",
        TensorData=data.TensorData,
        LossFnInputs=dict,
        ModelInput=model_input,
    ).Datum
    return SimpleNamespace(Datum=datum, ModelInput=model_input)


if __name__ == "__main__":
    PINS.write_text(renewed(*sys.argv[1:], of=PINS))
