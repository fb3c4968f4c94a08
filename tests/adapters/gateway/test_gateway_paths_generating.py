"""An engine that stops a generation again and again: paused for, gone on with, given up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import numpy as np
import pytest

from streams.adapters.engines.interface import EngineError, Generation, Sampling, Tokens
from streams.adapters.gateway.sampling.engine_labels import Sighting
from streams.adapters.gateway.sampling.generating import PAUSES_S, Generating
from streams.adapters.gateway.sampling.run_weights import RunWeights
from streams.adapters.gateway.sampling.sampled import Sampled
from tests.adapters.gateway.world import SECONDS_MAX

PROMPT = np.asarray([1, 2, 3], np.int32)
STOPPED = Tokens(finish="abort")


class NoUpdates:
    """A run whose weights nobody speaks of."""

    now = RunWeights()
    engine_tells = True
    has_versions = False

    def hear_version(self) -> None:
        """It does not matter here."""

    def see_label(self, label: str, at: Sighting) -> None:
        """It does not matter here."""

    def version_of(self, label: str | None, at: Sighting) -> int | None:
        """None is declared."""
        return None

    async def passed(self) -> bool:
        return True

    async def caught_up(self) -> bool:
        """There is nothing to read."""
        return True


def more(*ids: int, finish: Literal["stop", "abort"] = "abort") -> Tokens:
    return Tokens(ids=ids, logprobs=(-0.5,) * len(ids), finish=finish)


class Stopping:
    """Gives one answer a call, in their order."""

    name = "stopping"
    logprobs: Literal["processed", "raw"] = "processed"

    def __init__(self, *answers: Tokens) -> None:
        self._answers = list(answers)
        self.asked: list[list[int]] = []
        self.room: list[int] = []
        """For new tokens, call by call."""
        self.called = asyncio.Event()

    async def generate(self, generation: Generation) -> AsyncIterator[Tokens]:
        self.asked.append(generation.input_ids.tolist())
        self.room.append(generation.sampling.max_new_tokens)
        self.called.set()
        yield self._answers.pop(0)

    async def abort(self, request_id: str) -> None:
        """Nothing is under way: each answer is whole when it is asked for."""

    @property
    def forces_calls(self) -> bool:
        return False

    async def require_ready(self) -> None:
        """It always is."""

    async def close(self) -> None:
        """Nothing is held."""


def generating(
    engine: Stopping, pauses_s: Sequence[float] = PAUSES_S
) -> tuple[Generating, Sampled, list[int]]:
    sampled, fed = Sampled(), list[int]()

    def feed(ids: Sequence[int]) -> bool:
        fed.extend(ids)
        return False

    made = Generating(engine, "s", sampled, feed, NoUpdates())
    made.pauses_s = pauses_s
    return made, sampled, fed


def run(made: Generating) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await made.run(PROMPT, Sampling(max_new_tokens=10))

    asyncio.run(bounded())


def test_stops_before_the_first_token_cost_nothing_but_time() -> None:
    engine = Stopping(STOPPED, STOPPED, STOPPED, more(4, 5, finish="stop"))
    made, sampled, fed = generating(engine)
    run(made)
    assert (sampled.ids, fed, sampled.finish) == ([4, 5], [4, 5], "stop")
    assert engine.asked == [[1, 2, 3]] * 4
    assert made.continued == 3


def test_what_was_sampled_before_a_fruitless_stop_is_gone_on_from() -> None:
    engine = Stopping(more(4), STOPPED, more(5, 6), STOPPED, more(7, finish="stop"))
    made, sampled, _ = generating(engine)
    run(made)
    assert sampled.ids == [4, 5, 6, 7]
    assert engine.asked[-1] == [1, 2, 3, 4, 5, 6]
    assert engine.room == [10, 9, 9, 7, 7]


def test_an_engine_that_only_stops_is_given_up_and_may_be_asked_later() -> None:
    engine = Stopping(more(4), STOPPED, STOPPED, STOPPED, STOPPED)
    made, sampled, _ = generating(engine, (0.0, 0.0))
    with pytest.raises(EngineError, match="again and again") as caught:
        run(made)
    assert caught.value.retryable
    assert sampled.ids == [4]
    assert len(engine.asked) == 4


def test_a_token_gives_the_engine_all_its_pauses_back() -> None:
    engine = Stopping(STOPPED, STOPPED, more(4), STOPPED, STOPPED, more(5, finish="stop"))
    made, sampled, _ = generating(engine, (0.0, 0.0))
    run(made)
    assert sampled.ids == [4, 5]


def test_an_engine_is_not_asked_again_before_the_pause_and_a_stop_ends_the_pause() -> None:
    async def story() -> None:
        engine = Stopping(STOPPED, more(4, finish="stop"))
        made, sampled, _ = generating(engine, (10 * SECONDS_MAX,))
        running = asyncio.create_task(made.run(PROMPT, Sampling()))
        async with asyncio.timeout(SECONDS_MAX):
            await engine.called.wait()
            await asyncio.sleep(0.1)
            assert len(engine.asked) == 1
            made.stop()
            await running
        assert (sampled.ids, sampled.finish) == ([], "abort")
        assert len(engine.asked) == 1

    asyncio.run(story())
