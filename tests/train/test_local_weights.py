"""New weights in the middle of an answer: it goes on, and each token is scored by its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streams.adapters.engines.interface import EngineError
from streams.adapters.engines.local import LocalEngine
from streams.errors import BadSetting
from tests.adapters.engines.calls import Came, heard
from tests.train.models import tiny_model
from tests.train.rescoring import Rescorer, Weights
from tests.train.test_local_engine import PROMPT, asks, endless, told

TOKENS = 60


def runs(came: Came) -> list[tuple[int | None, int]]:
    """Versions, and how many tokens each sampled."""
    found: list[tuple[int | None, int]] = []
    for chunk in came.chunks:
        if found and found[-1][0] == chunk.weight_version:
            found[-1] = (chunk.weight_version, found[-1][1] + len(chunk.ids))
        elif chunk.ids:
            found.append((chunk.weight_version, len(chunk.ids)))
    return found


def assert_scored_by_its_own(
    rescorer: Rescorer, came: Came, weights: dict[int, Weights], temperature: float
) -> None:
    for version, theirs in weights.items():
        scored = rescorer.logprobs(theirs, [*PROMPT, *came.ids], temperature)[len(PROMPT) :]
        for chunk, logprob, expected in zip(came.chunks, came.logprobs, scored, strict=False):
            if chunk.weight_version == version:
                assert logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_each_token_is_scored_by_the_weights_it_is_said_to_be_of(
    tiny: Path, temperature: float
) -> None:
    rescorer = Rescorer(tiny)
    versions = {3: rescorer.own, 4: rescorer.disturbed(1, 0.3), 5: rescorer.disturbed(2, 0.3)}

    async def story(engine: LocalEngine) -> None:
        came = Came()
        call = asks(temperature=temperature, max_new_tokens=TOKENS)
        async for tokens in engine.generate(call):
            came.chunks.append(tokens)
            if len(came.chunks) in {10, 20}:
                version = 3 + len(came.chunks) // 10
                await engine.replace_weights(versions[version], version, f"step {version}")
        assert [version for version, _ in runs(came)] == [3, 4, 5]
        assert came.chunks[-1].weight_label == "step 5"
        assert_scored_by_its_own(rescorer, came, versions, temperature)

    told(tiny, story, version=3)


def test_an_update_reaches_all_that_is_under_way_and_stops_none(tiny: Path) -> None:
    other = Rescorer(tiny).disturbed(1, 0.3)

    async def story(engine: LocalEngine) -> None:
        first = engine.generate(asks(key="first", max_new_tokens=100))
        early = Came([await anext(first)])
        calls = [asks(key=f"s{n}", seed=n, max_new_tokens=100) for n in range(8)]
        running = [asyncio.create_task(heard(engine, call)) for call in calls]
        await asyncio.sleep(0)
        await engine.replace_weights(other, 1)
        early.chunks += [tokens async for tokens in first]
        came = [early, *[await one for one in running]]
        assert {(len(one.ids), one.finish) for one in came} == {(100, "length")}
        versions = [[version for version, _ in runs(one)] for one in came]
        assert versions[0] == [0, 1]
        assert all(each in ([0, 1], [1]) for each in versions)
        assert versions[-1] == [1], "it waited while the weights were replaced"

    told(tiny, story, running_max=4)


def test_weights_of_a_folder_take_the_place_of_those_in_memory(tiny: Path, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, seed=2)
    rescorer = Rescorer(folder)

    async def story(engine: LocalEngine) -> None:
        await engine.replace_weights(folder, 1)
        came = await heard(engine, asks(temperature=0.7))
        assert runs(came)[0][0] == 1
        assert_scored_by_its_own(rescorer, came, {1: rescorer.own}, 0.7)
        with pytest.raises(BadSetting, match="no such folder"):
            await engine.replace_weights(tmp_path / "nowhere", 2)

    told(tiny, story)


def without(weights: Weights, name: str) -> dict[str, Any]:
    return {each: tensor for each, tensor in weights.items() if each != name}


def test_weights_that_are_anothers_change_nothing(tiny: Path, tmp_path: Path) -> None:
    rescorer = Rescorer(tiny)
    noisy = rescorer.disturbed(1, 0.3)
    larger = tiny_model(tmp_path, seed=1, hidden=64)
    norm = "model.norm.weight"
    wrong: list[tuple[Any, str]] = [
        (larger, "weights of another shape: .* more"),
        (without(noisy, norm), f"weights missing: {norm}"),
        ({**noisy, "more": noisy[norm]}, "weights unknown: more"),
        ({**noisy, norm: None}, "weights 9: "),
    ]

    async def story(engine: LocalEngine) -> None:
        for weights, says in wrong:
            with pytest.raises(EngineError, match=says):
                await engine.replace_weights(weights, 9)
        came = await heard(engine, asks(temperature=0.7))
        assert runs(came)[0][0] == 0
        assert_scored_by_its_own(rescorer, came, {0: rescorer.own}, 0.7)

    told(tiny, story)


def test_tied_weights_need_to_be_there_once(tiny: Path) -> None:
    noisy = Rescorer(tiny).disturbed(1, 0.3)
    assert "lm_head.weight" in noisy

    async def story(engine: LocalEngine) -> None:
        await engine.replace_weights(without(noisy, "lm_head.weight"), 1)
        assert (await heard(engine, asks())).chunks[0].weight_version == 1

    told(tiny, story)


def test_whoever_gives_up_waiting_for_an_update_hurts_nobody(tiny: Path) -> None:
    noisy = Rescorer(tiny).disturbed(1, 0.3)

    async def story(engine: LocalEngine) -> None:
        stream = engine.generate(endless())
        await anext(stream)
        update = asyncio.create_task(engine.replace_weights(noisy, 1))
        await asyncio.sleep(0)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        while (await anext(stream)).weight_version != 1:
            pass
        await stream.aclose()

    told(tiny, story)
