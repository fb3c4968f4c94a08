"""Whose logprobs an engine gives is found out by asking, in bounds, and never assumed for good."""

import asyncio
from collections.abc import Sequence

import pytest

from streams.adapters.engines.distribution import Drawn, draw
from streams.adapters.engines.interface import EngineError, KeyRefused, Learns, Sampling
from tests.adapters.engines.standins.kinds import EACH, KINDS, Kind, Stand, tried
from tests.adapters.engines.standins.model import Told
from tests.kafka.broker import free_port

SGLANG = KINDS["sglang"]
VERDICTS = {
    "of what was sampled from": ({1: -0.2}, {1: -0.9}, "processed"),
    "the same at both": ({1: -0.5}, {1: -0.505}, "raw"),
    "the token that tells most counts": ({1: -0.5, 2: -3.0}, {1: -0.5, 2: -1.0}, "processed"),
    "no token at both": ({1: -0.5}, {2: -0.5}, None),
    "one token has it all": ({1: -0.0001}, {1: -0.01}, None),
}


@pytest.mark.parametrize(("cool", "warm", "whose"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_rests_on_a_token_drawn_at_both(
    cool: dict[int, float], warm: dict[int, float], whose: str | None
) -> None:
    assert Drawn(cool, warm).whose == whose


def test_one_token_at_a_time_is_drawn_at_two_temperatures() -> None:
    asked: list[Sampling] = []

    async def ask(sampling: Sampling) -> tuple[Sequence[int], Sequence[float]]:
        asked.append(sampling)
        return [5], [-sampling.temperature]

    drawn = asyncio.run(draw(ask))
    assert (drawn.cool, drawn.warm) == ({5: -0.5}, {5: -2.0})
    assert {sampling.max_new_tokens for sampling in asked} == {1}
    assert len(asked) == 16


TOLD: dict[Told, str] = {"processed": "processed", "tempered": "processed", "raw": "raw"}


@EACH
@pytest.mark.parametrize("told", TOLD)
def test_an_engine_is_asked_once(kind: Kind, told: Told) -> None:
    async def story(at: Stand) -> None:
        at.model.told = told
        engine = at.engine
        assert isinstance(engine, Learns)
        assert (engine.learned, engine.logprobs) == (False, "processed")
        await asyncio.gather(engine.learn(), engine.learn())
        assert (engine.learned, engine.logprobs) == (True, TOLD[told])
        asked = len(at.server.bodies)
        await engine.learn()
        assert (asked, len(at.server.bodies)) == (16, 16)

    tried(kind, story)


@EACH
def test_one_raw_replica_is_enough(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.models[1].told = "raw"
        await at.engine.learn()
        assert at.engine.logprobs == "raw"

    tried(kind, story, replicas=2)


@EACH
def test_an_engine_that_fails_may_be_asked_later(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.told = "raw"
        at.server.faults.refuses = 503
        with pytest.raises(EngineError, match="503"):
            await at.engine.learn()
        assert (at.engine.learned, at.engine.logprobs) == (False, "processed")
        at.server.faults.refuses = None
        at.engine._learning._ask_at_s.clear()  # as if its rest were over
        await at.engine.learn()
        assert at.engine.logprobs == "raw"

    tried(kind, story)


@EACH
def test_a_replica_that_is_away_does_not_keep_the_others_from_being_known(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.told = "raw"
        engine = kind.engine([*at.urls, f"http://127.0.0.1:{free_port()}"])
        try:
            await engine.learn()
            assert (engine.learned, engine.logprobs) == (False, "raw")
        finally:
            await engine.close()

    tried(kind, story)


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    async def work() -> None:
        engine = SGLANG.engine([f"http://127.0.0.1:{free_port()}"])
        try:
            with pytest.raises(EngineError, match=r"SGLang at http://127\.0\.0\.1"):
                await engine.learn()
        finally:
            await engine.close()

    asyncio.run(work())


@EACH
def test_a_refused_key_is_told(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.servers[1].api_key = "k"
        with pytest.raises(KeyRefused, match="TURNSTREAM_ENGINE_API_KEY"):
            await at.engine.learn()

    tried(kind, story, replicas=2)
