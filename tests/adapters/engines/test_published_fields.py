"""What is sent to SGLang and vLLM, and read of them, is what their published code defines."""

import ast
from typing import Any

import msgspec
import pytest

from streams.adapters.engines import sglang, vllm
from streams.adapters.engines.interface import Tokens
from streams.adapters.engines.wire import Wire
from tests.adapters.engines.published import Wheel, class_of, fields_of, strings_of
from tests.adapters.engines.standins.kinds import asks
from tests.adapters.engines.standins.model import SmallModel
from tests.adapters.engines.standins.sglang import StandInSglang
from tests.adapters.engines.standins.vllm import StandInVllm

TOKENS = "vllm/entrypoints/scale_out/token_in_token_out"
LAST = Tokens(ids=(7,), logprobs=(-0.5,), weight_version=3, finish="length")
SGLANG, VLLM = Wheel("sglang"), Wheel("vllm")


def everything_sent(wire: Wire) -> dict[str, Any]:
    """A request with every field that is ever sent."""
    sampling: dict[str, Any] = {"stop": ("END",), "stop_ids": (2,), "json_schema": "{}"}
    return wire.body(asks(routed_experts=True, echo=True, **sampling))


def read(of: type[msgspec.Struct]) -> set[str]:
    return set(of.__struct_fields__)


def test_sglang_knows_every_field_that_is_sent() -> None:
    sent = everything_sent(sglang.SglangWire())
    requests = SGLANG.module("sglang/srt/managers/io_struct.py")
    assert sent.keys() <= fields_of(requests, "GenerateReqInput")
    # Here a field that is not known is refused.
    contract = SGLANG.module("sglang/api/v1/api_types.py")
    assert sent["sampling_params"].keys() <= fields_of(contract, "SamplingParams")
    params = SGLANG.module("sglang/srt/sampling/sampling_params.py")
    assert sent["sampling_params"].keys() <= fields_of(params, "SamplingParams")
    assert sglang.SglangWire().abort_body("r").keys() <= fields_of(requests, "AbortReq")


def test_sglang_defines_every_field_that_is_read() -> None:
    contract = SGLANG.module("sglang/api/v1/api_types.py")
    assert read(sglang.Event) - {"error"} <= fields_of(contract, "GenerateResponse")
    assert "error" in fields_of(contract, "GenerateStreamError")
    assert read(sglang.Failure) <= fields_of(contract, "ErrorBody")
    assert read(sglang.Span) == fields_of(contract, "WeightVersionSpan")
    assert read(sglang.MetaInfo) - {"routed_experts"} <= fields_of(contract, "GenerateMetaInfo")
    # Not in the contract, but written:
    assert "routed_experts" in strings_of(SGLANG.text("sglang/srt/managers/tokenizer_manager.py"))
    entry = ["logprob", "token_id", "text"]
    assert [field.target.id for field in _annotated(contract, "LogprobEntry")] == entry


def test_sglang_ends_answers_with_the_words_that_are_known() -> None:
    batch = SGLANG.module("sglang/srt/managers/schedule_batch.py")
    names = ("FINISH_MATCHED_TOKEN", "FINISH_MATCHED_STR", "FINISH_LENGTH", "FINISH_ABORT")
    written = {name: _written(class_of(batch, name)) for name in names}
    assert {written[name]["type"] for name in names} == set(sglang._FINISHES)
    assert read(sglang.FinishReason) <= {key for each in written.values() for key in each}


def test_sglang_has_the_paths_and_refuses_a_twin_with_the_words_that_are_looked_for() -> None:
    wire = sglang.SglangWire()
    server = strings_of(SGLANG.text("sglang/srt/entrypoints/http_server.py"))
    assert {wire.generate_path, wire.abort_path, *wire.signs} <= server
    assert {field for field in wire.signs.values() if field} <= server
    manager = strings_of(SGLANG.text("sglang/srt/managers/tokenizer_manager.py"))
    assert any(wire.is_twin(text) for text in manager)


def test_vllm_knows_every_field_that_is_sent() -> None:
    sent = everything_sent(vllm.VllmWire())
    protocol = VLLM.module(f"{TOKENS}/protocol.py")
    assert sent.keys() <= fields_of(protocol, "GenerateRequest")
    params = VLLM.module("vllm/sampling_params.py")
    assert sent["sampling_params"].keys() <= fields_of(params, "SamplingParams")
    outputs = sent["sampling_params"]["structured_outputs"]
    assert outputs.keys() <= fields_of(params, "StructuredOutputsParams")
    abort = vllm.VllmWire().abort_body("r")
    assert abort.keys() <= strings_of(VLLM.text(f"{TOKENS}/api_router.py"))
    headers = vllm.VllmWire().headers(asks())
    assert headers.keys() <= strings_of(VLLM.text("vllm/entrypoints/generate/base/serving.py"))


def test_vllm_defines_every_field_that_is_read() -> None:
    protocol = VLLM.module(f"{TOKENS}/protocol.py")
    events = fields_of(protocol, "GenerateTokensStreamResponse")
    assert read(vllm.Event) - {"error"} <= events
    assert read(vllm.Choice) <= fields_of(protocol, "GenerateTokensStreamChoice")
    assert read(vllm.Logprobs) <= fields_of(protocol, "GenerateLogProbs")
    assert read(vllm.Sampled) <= fields_of(protocol, "GenerateLogProbsContent")
    assert read(vllm.Span) == fields_of(VLLM.module("vllm/outputs.py"), "WeightVersionSpan")
    errors = VLLM.module("vllm/entrypoints/serve/engine/protocol.py")
    assert "error" in fields_of(errors, "ErrorResponse")
    assert read(vllm.Failure) <= fields_of(errors, "ErrorInfo")


def test_the_server_that_stands_in_for_sglang_writes_what_is_defined() -> None:
    contract = SGLANG.module("sglang/api/v1/api_types.py")
    server = StandInSglang(SmallModel())
    server.faults.experts = (3, 2)
    _, stream = server.read(msgspec.json.encode(everything_sent(sglang.SglangWire())))
    event = stream.event(LAST)
    assert event.keys() <= fields_of(contract, "GenerateResponse")
    assert event["meta_info"].keys() - {"routed_experts"} <= fields_of(contract, "GenerateMetaInfo")
    assert "routed_experts" in event["meta_info"]
    (span,) = event["meta_info"]["weight_versions"]
    assert span.keys() == fields_of(contract, "WeightVersionSpan")


def test_the_server_that_stands_in_for_vllm_writes_what_is_defined() -> None:
    protocol = VLLM.module(f"{TOKENS}/protocol.py")
    server = StandInVllm(SmallModel())
    server.faults.experts = (3, 2)
    server.headers.append({})
    _, stream = server.read(msgspec.json.encode(everything_sent(vllm.VllmWire())))
    event = stream.event(LAST)
    assert event.keys() <= fields_of(protocol, "GenerateTokensStreamResponse")
    (choice,) = event["choices"]
    assert choice.keys() <= fields_of(protocol, "GenerateTokensStreamChoice")
    assert choice["logprobs"].keys() <= fields_of(protocol, "GenerateLogProbs")
    (entry,) = choice["logprobs"]["content"]
    assert entry.keys() <= fields_of(protocol, "GenerateLogProbsContent")


def test_vllm_ends_answers_with_the_words_that_are_known() -> None:
    engine = VLLM.module("vllm/v1/engine/__init__.py")
    (words,) = [
        ast.literal_eval(node.value)
        for node in engine.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FINISH_REASON_STRINGS"
    ]
    assert set(words) == {*vllm._FINISHES, "error"}


def test_vllm_has_the_paths_and_writes_what_is_leaned_on() -> None:
    wire = vllm.VllmWire()
    router = strings_of(VLLM.text(f"{TOKENS}/api_router.py"))
    assert {wire.generate_path, wire.abort_path} <= router
    basic = strings_of(VLLM.text("vllm/entrypoints/serve/instrumentator/basic.py"))
    health = strings_of(VLLM.text("vllm/entrypoints/serve/instrumentator/health.py"))
    assert set(wire.signs) <= basic | health
    assert {field for field in wire.signs.values() if field} <= basic
    serving = VLLM.text(f"{TOKENS}/serving.py")
    assert vllm.ID_PREFIX in strings_of(serving)
    numbers = [node for node in ast.walk(ast.parse(serving)) if isinstance(node, ast.UnaryOp)]
    assert ast.unparse(ast.Constant(vllm.NO_LOGPROB)) in map(ast.unparse, numbers)


@pytest.mark.parametrize(
    ("wheel", "path", "name"),
    [
        (SGLANG, "sglang/srt/arg_groups/fields/serving.py", "incremental_streaming_output"),
        (SGLANG, "sglang/srt/arg_groups/fields/serving.py", "weight_version"),
        (SGLANG, "sglang/srt/arg_groups/fields/exec_.py", "enable_return_routed_experts"),
        (VLLM, "vllm/entrypoints/launchers/cli_args.py", "enable_scale_out"),
        (VLLM, "vllm/config/model.py", "logprobs_mode"),
        (VLLM, "vllm/config/aux_output.py", "enable_return_routed_experts"),
    ],
)
def test_the_flags_that_the_doctor_names_exist(wheel: Wheel, path: str, name: str) -> None:
    assert any(
        isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
        for node in ast.walk(wheel.module(path))
    )


def _annotated(module: ast.Module, name: str) -> list[Any]:
    return [node for node in class_of(module, name).body if isinstance(node, ast.AnnAssign)]


def _written(of: ast.ClassDef) -> dict[str, str]:
    """The one dictionary that a class writes; values that are no text are left empty."""
    (made,) = [node for node in ast.walk(of) if isinstance(node, ast.Dict)]
    return {
        ast.literal_eval(key): str(value.value) if isinstance(value, ast.Constant) else ""
        for key, value in zip(made.keys, made.values, strict=True)
        if key is not None
    }
