"""What a framework's own code makes of a rollout is what is made for it, tensor by tensor."""

import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pydantic

from streams.trainer.converters import areal, trl, verl, verl_queue
from streams.trainer.converters.replay import Replay
from streams.trainer.converters.tensors import Tensor
from tests.trainer.converters import published
from tests.trainer.converters.given import forked, row
from tests.trainer.converters.test_replay import told_everywhere

torch: Any = importlib.import_module("torch")

PROMPT, FIRST, TOOL, SECOND = [10, 11, 12], [13, 14], [15], [16, 17]


def agrees(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Equal values of equal type, for all that they have."""
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


def response(prompt: list[int], output: list[int], logprobs: list[float], version: int) -> Any:
    return SimpleNamespace(
        input_tokens=prompt,
        output_tokens=output,
        output_logprobs=logprobs,
        output_versions=[version] * len(output),
        input_len=len(prompt),
        output_len=len(output),
    )


def test_areal_makes_the_same_trajectory_of_the_same_two_turns() -> None:
    interaction = published.run(
        "areal",
        "areal/experimental/openai/types.py",
        {"InteractionWithTokenLogpReward"},
        torch=torch,
        dataclass=dataclass,
        field=field,
    ).InteractionWithTokenLogpReward
    first = interaction(
        model_response=response(PROMPT, FIRST, [-1.0, -2.0], 4), chat_template_type="concat"
    )
    second = interaction(
        model_response=response([*PROMPT, *FIRST, *TOOL], SECOND, [-3.0, -4.0], 5),
        reward=2.0,
        parent=first,
        chat_template_type="concat",
    )
    agrees(areal.trajectory(row()), second.to_tensor_dict())


def test_verl_makes_the_same_record_of_the_same_rollout() -> None:
    output = published.run(
        "verl",
        "verl/experimental/agent_loop/agent_loop.py",
        {"AgentLoopOutput"},
        torch=torch,
        BaseModel=pydantic.BaseModel,
        AgentLoopMetrics=dict,
        Any=Any,
        Optional=Optional,
    ).AgentLoopOutput
    sample = told_everywhere()
    # The engine tells of positions 0 to 6: all that were read.
    read = np.array([[[t, t + 1]] for t in range(1, 8)], np.int16)
    theirs = output(
        prompt_ids=PROMPT,
        response_ids=[*FIRST, *TOOL, *SECOND],
        response_mask=[1, 1, 0, 1, 1],
        response_logprobs=[-1.0, -2.0, 0.0, -3.0, -4.0],
        routed_experts=read,
        reward_score=2.0,
        metrics={},
    ).as_dict()
    (record,) = verl_queue.records([row(sample)], global_steps=0, replay=Replay())
    agrees(
        record.fields,
        {name: each for name, each in theirs.items() if isinstance(each, torch.Tensor)},
    )
    assert {"prompts", "responses", "rm_scores", "routed_experts"} <= theirs.keys()


def test_verl_counts_positions_alike() -> None:
    made = published.run(
        "verl", "verl/utils/model.py", {"compute_position_id_with_mask"}, torch=torch
    )
    tensors, _ = verl.data_proto(forked(), verl.Shape(prompt=5, response=9))
    theirs = made.compute_position_id_with_mask(tensors["attention_mask"])
    assert torch.equal(tensors["position_ids"], theirs)


def test_trl_packs_exactly_the_trained_tokens_with_their_logprobs() -> None:
    packing = published.run(
        "trl", "trl/experimental/async_grpo/packing.py", {"TreeRow"}, torch=torch
    )
    packed_row = packing.TreeRow()
    for fields in trl.samples(forked()):
        packed_row.add(fields)
    packed = packed_row.pack()
    assert packed["old_log_probs"].tolist() == [-1.0, -2.0, -3.0, -4.0] * 3
    assert packed["advantages"].tolist() == [0.5] * 8 + [-0.5] * 4
    targets = packed["shift_labels"][packed["token_index"]]
    assert targets.tolist() == [13, 14, 16, 17] * 3
