"""Tensors: their types, whose memory they are, and the loss that is written above `padded`."""

import importlib
from typing import Any

import msgspec
import numpy as np
import pytest

from streams.trainer.converters import areal, padded, verl, verl_queue
from streams.trainer.converters.replay import Replay
from streams.trainer.converters.tensors import Tensor, tensor
from tests.trainer.converters.given import WORKED, Given, forked, row
from tests.trainer.converters.test_replay import told_everywhere

torch: Any = importlib.import_module("torch")

PADDED = {
    "input_ids": torch.int64,
    "attention_mask": torch.int64,
    "position_ids": torch.int64,
    "loss_mask": torch.bool,
    "logprobs": torch.float32,
    "weights": torch.float32,
    "advantages": torch.float32,
}


def test_a_padded_batch_has_the_types_that_torch_computes_with() -> None:
    made = padded.padded(forked())
    assert {name: each.dtype for name, each in made.items()} == PADDED
    assert {tuple(each.shape) for each in made.values()} == {(3, 8)}


def test_a_packed_batch_has_its_seams_as_int32() -> None:
    made = padded.packed(forked())
    assert made["cu_seqlens"].dtype == torch.int32
    assert made["cu_seqlens"].tolist() == [0, 8, 16, 24]
    assert made["input_ids"].shape == (1, 24)


def test_an_array_that_may_be_written_is_not_copied() -> None:
    array = np.zeros(3, np.float32)
    tensor(array)[1] = 5.0
    assert array.tolist() == [0, 5, 0]


def test_a_samples_own_memory_is_never_handed_out() -> None:
    logprobs = WORKED.logprobs.copy()
    logprobs.flags.writeable = False
    given = row(logprobs=logprobs)
    areal.trajectory(given)["logprobs"].fill_(9.0)
    (record,) = verl_queue.records([given], global_steps=0)
    record.fields["rollout_log_probs"].fill_(9.0)
    assert logprobs.tolist() == WORKED.logprobs.tolist()


def test_verl_gets_tensors_and_beside_them_objects() -> None:
    sample = told_everywhere()
    tensors, others = verl.data_proto(
        [Given(sample)], verl.Shape(prompt=4, response=6), replay=Replay()
    )
    assert tensors["responses"].tolist() == [[13, 14, 15, 16, 17, 0]]
    assert tensors["routed_experts"].shape == (1, 10, 1, 2)
    assert tensors["routed_experts"].dtype == torch.int16
    assert others["uid"].tolist() == ["task_7"]
    assert len({len(each) for each in (*tensors.values(), *others.values())}) == 1


def loss_of(made: dict[str, Tensor], table: Tensor) -> Tensor:
    """As `padded` tells to; a model that looks at one token alone is the same in any layout."""
    ids, logits = made["input_ids"], table[made["input_ids"]]
    new = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    ratio = (new - made["logprobs"][:, 1:]).exp()
    return -((made["weights"] * made["advantages"])[:, 1:] * ratio).sum()


def by_hand(rows: list[Given], table: Tensor) -> float:
    """Each rollout's advantage times the mean ratio over its trained tokens, and their sum."""
    ratios: dict[str, list[float]] = {}
    advantages: dict[str, float] = {}
    scores = table.double().log_softmax(-1)
    for each in rows:
        sample = each.sample
        for start, end in sample.loss_mask:
            for place in range(start, end):
                new = scores[sample.tokens[place - 1], sample.tokens[place]].item()
                ratio = np.exp(new - float(sample.logprobs[place]))
                ratios.setdefault(sample.session_id, []).append(ratio)
        assert each.advantage is not None
        advantages[sample.session_id] = each.advantage
    return -sum(advantages[name] * float(np.mean(ratios[name])) for name in ratios)


def uneven() -> list[Given]:
    """A rollout that trains two tokens of one sample and four of the other, beside another one."""
    first, second, other = forked()
    short = msgspec.structs.replace(first.sample, loss_mask=[(3, 5)], trained=2)
    backwards = msgspec.structs.replace(other.sample, tokens=other.sample.tokens[::-1].copy())
    return [
        Given(short, 0.75, 2 / 6, 1 / 6),
        Given(second.sample, 0.75, 4 / 6, 1 / 6),
        Given(backwards, -0.25, 1.0, 1 / 4),
    ]


def test_padded_and_packed_give_the_loss_that_is_averaged_per_rollout() -> None:
    table = torch.randn(20, 20, generator=torch.Generator().manual_seed(1))
    rows = uneven()
    expected = by_hand(rows, table)
    assert abs(expected) > 0.01
    assert loss_of(padded.padded(rows, multiple=16), table).item() == pytest.approx(
        expected, rel=1e-5
    )
    assert loss_of(padded.packed(rows), table).item() == pytest.approx(expected, rel=1e-5)


def test_a_pad_id_changes_no_loss() -> None:
    table = torch.randn(20, 20, generator=torch.Generator().manual_seed(2))
    losses = [loss_of(padded.padded(uneven(), pad_id=pad, multiple=16), table) for pad in (0, 19)]
    assert torch.equal(losses[0], losses[1])
