"""Routed experts: from the token that was sampled to the position that was read, or not at all."""

from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.events import Channel
from schemas.record import Octets
from schemas.samples import Sample
from streams.errors import CannotConvert
from streams.trainer.converters import prime_rl, skyrl, slime, verl, verl_queue
from streams.trainer.converters.replay import Replay, by_position
from tests.trainer.converters.given import WORKED, Given, turn

ZERO = [[0, 0]]
PARTLY = Replay(context="zero")


def channel(rows: Any, dtype: str = "int16") -> dict[str, Channel]:
    array = np.array(rows, dtype)
    data = Octets(array.tobytes())
    made = Channel(dtype=dtype, shape=list(array.shape), data=data)  # type: ignore[arg-type]
    return {"routed_experts": made}


def told(**changes: Any) -> Sample:
    """The worked sample; token t was sampled by experts `[t, t + 1]` of the only layer."""
    rows = [[[t, t + 1]] if t in {3, 4, 6, 7} else ZERO for t in range(8)]
    return msgspec.structs.replace(WORKED, channels=channel(rows), **changes)


def told_everywhere() -> Sample:
    """Every token but the first is a turn's."""
    rows = [ZERO, *([[t, t + 1]] for t in range(1, 8))]
    return msgspec.structs.replace(WORKED, channels=channel(rows), turns=[turn("t", 1, 8)])


READ = [ZERO, ZERO, [[3, 4]], [[4, 5]], ZERO, [[6, 7]], [[7, 8]]]
"""Position 2 was read by the pass that sampled token 3."""


def test_a_row_moves_to_the_position_that_its_pass_read() -> None:
    assert by_position(told(), PARTLY).tolist() == READ


def test_a_sample_that_is_told_of_everywhere_needs_no_leave() -> None:
    experts = by_position(told_everywhere(), Replay())
    assert experts.tolist() == [[[t, t + 1]] for t in range(1, 8)]


def test_slime_gets_a_row_less_than_tokens() -> None:
    (fields,) = slime.samples([Given(told())], replay=PARTLY)
    experts = fields["rollout_routed_experts"]
    assert (experts.tolist(), experts.dtype) == (READ, np.int32)


def test_verls_queue_gets_a_row_a_token() -> None:
    experts = verl_queue.columns(Given(told()), replay=PARTLY)["routed_experts"]
    assert (experts.tolist(), experts.dtype) == ([*READ, ZERO], np.int16)


def test_verls_batch_is_padded_as_its_tokens_are() -> None:
    experts = verl.experts([Given(told())], verl.Shape(prompt=4, response=6), PARTLY)
    assert experts.tolist() == [[ZERO, *READ, ZERO, ZERO]]


def test_prime_rl_gets_bytes_and_a_shape() -> None:
    (fields,) = prime_rl.samples([Given(told())], env_name="any", replay=PARTLY)
    experts = fields["routed_experts"]
    assert experts["shape"] == [8, 1, 2]
    read = np.frombuffer(experts["data"], experts["dtype"]).reshape(experts["shape"])
    assert read.tolist() == [*READ, ZERO]


def test_skyrl_gets_lists() -> None:
    output = skyrl.generator_output([Given(told())], replay=PARTLY)
    assert output["rollout_expert_indices"] == [READ]


def test_a_row_without_layers_is_cut_into_as_many_as_are_said() -> None:
    flat = [[t, t + 1, t + 2, t + 3] for t in range(8)]
    sample = msgspec.structs.replace(told_everywhere(), channels=channel(flat, "int32"))
    experts = by_position(sample, Replay(layers=2))
    assert experts.tolist() == [[[t, t + 1], [t + 2, t + 3]] for t in range(1, 8)]


FLAT = channel([[1, 2, 3, 4]] * 8)
REFUSED = {
    "zeros would send the context to expert 0": (told(), Replay(), "untold at 3 positions"),
    "no channel": (WORKED, PARTLY, "it has no channel 'routed_experts'"),
    "a turn lost its channel": (told(channels_missing=1), PARTLY, "or not of every turn"),
    "a turn never had it": (
        told(turns=[turn("t1", 3, 5), turn("t2", 5, 8)]),
        PARTLY,
        "a turn of it has no channel",
    ),
    "the data is elsewhere": (
        msgspec.structs.replace(
            WORKED,
            channels={"routed_experts": Channel(dtype="int16", shape=[8, 1, 2], blob="there")},
        ),
        PARTLY,
        "it has no channel",
    ),
    "another number of rows": (
        msgspec.structs.replace(WORKED, channels=channel([[[1, 2]]] * 4)),
        PARTLY,
        "has 4 rows for 8",
    ),
    "layers are not said": (
        msgspec.structs.replace(WORKED, channels=FLAT),
        PARTLY,
        "say how many layers there are",
    ),
    "layers do not divide it": (
        msgspec.structs.replace(WORKED, channels=FLAT),
        Replay(layers=3),
        "not of 3 layers",
    ),
    "the engine counted other layers": (told(), Replay(layers=2), "not of 2 layers"),
}


@pytest.mark.parametrize(("sample", "replay", "why"), REFUSED.values(), ids=REFUSED)
def test_experts_are_refused_if(sample: Sample, replay: Replay, why: str) -> None:
    with pytest.raises(CannotConvert, match=why):
        by_position(sample, replay)
