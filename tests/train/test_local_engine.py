"""The local engine on a tiny model: what every engine has to do, and what only this one does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.adapters.engines.interface import Engine, EngineError, Generation, Sampling
from streams.adapters.engines.local import WAITING_MAX, LocalEngine
from streams.adapters.engines.local_worker import CHUNK
from streams.cli.doctor.engine_checks import ADVICE, check
from streams.errors import BadSetting
from tests.adapters.engines.calls import Came, heard
from tests.train.models import TINY_WINDOW, TINY_WORDS, tiny_model
from tests.train.rescoring import Rescorer

PATIENCE_S = 60.0
PROMPT = (5, 17, 3, 60, 9, 42)

Story = Callable[[LocalEngine], Awaitable[None]]


def asks(prompt: tuple[int, ...] = PROMPT, key: str = "s1", **sampling: Any) -> Generation:
    return Generation(
        request_id=key,
        routing_key=key,
        input_ids=np.asarray(prompt, np.int32),
        sampling=Sampling(**{"max_new_tokens": 24, "seed": 1, **sampling}),
    )


def endless(key: str = "s1") -> Generation:
    """A call that is answered until the window is full."""
    return asks(key=key, max_new_tokens=TINY_WINDOW)


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(path, **options)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield engine
    finally:
        await engine.close()


def told(path: Path, story: Story, **options: Any) -> None:
    async def whole() -> None:
        async with opened(path, **options) as engine:
            await story(engine)

    asyncio.run(whole())


def answers(path: Path, *calls: Generation, **options: Any) -> list[Came]:
    """What came of the calls, all at once."""
    came: list[Came] = []

    async def story(engine: LocalEngine) -> None:
        came.extend(await asyncio.gather(*(heard(engine, call) for call in calls)))

    told(path, story, **options)
    return came


def test_it_is_an_engine(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        any_engine: Engine = engine
        await any_engine.require_ready()
        assert any_engine.logprobs == "processed"
        assert not any_engine.forces_calls
        assert str(tiny) in any_engine.name

    told(tiny, story)


def test_tokens_come_one_at_a_time_with_logprob_and_version(tiny: Path) -> None:
    (came,) = answers(tiny, asks(), version=7)
    assert came.error is None
    assert came.finish in {"stop", "length"}
    assert set(came.sizes) == {1}
    assert len(came.logprobs) == len(came.ids) > 1
    assert {chunk.weight_version for chunk in came.chunks} == {7}


def test_doctor_finds_nothing_to_change(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        rows = {row.name: row for row in await check(engine, PROMPT, ADVICE["vllm"])}
        assert {name: row.state for name, row in rows.items()} == {
            "engine": "ok",
            "ids": "ok",
            "logprobs": "ok",
            "logprobs of": "ok",
            "cut tails": "ok",
            "stop token": "ok",
            "abort": "ok",
            "weight version": "ok",
            "routed experts": "note",
        }, rows

    told(tiny, story)


def test_a_seed_gives_the_same_answer_alone_or_among_others(tiny: Path) -> None:
    (alone,) = answers(tiny, asks(seed=3))
    others = [asks(PROMPT[: 1 + n % 6], key=f"o{n}", seed=n) for n in range(20)]
    among = answers(tiny, *others[:10], asks(seed=3), *others[10:])[10]
    assert (among.ids, among.logprobs) == (alone.ids, alone.logprobs)
    (other,) = answers(tiny, asks(seed=4))
    assert other.ids != alone.ids


def test_calls_without_a_seed_draw_from_the_engines(tiny: Path) -> None:
    calls = [asks(key=f"s{n}", seed=None) for n in range(3)]
    first, second = (answers(tiny, *calls, seed=11) for _ in range(2))
    assert [came.ids for came in first] == [came.ids for came in second]
    assert len({came.ids for came in first}) == 3
    assert [came.ids for came in answers(tiny, *calls, seed=12)] != [came.ids for came in first]


def test_an_answer_ends_behind_a_stop_token_or_at_its_length(tiny: Path) -> None:
    (free,) = answers(tiny, asks(max_new_tokens=8))
    assert (len(free.ids), free.finish, free.stop_reason) == (8, "length", None)
    stop = free.ids[3]
    (stopped,) = answers(tiny, asks(stop_ids=(stop,)))
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert (stopped.finish, stopped.stop_reason) == ("stop", str(stop))
    (nothing,) = answers(tiny, asks(max_new_tokens=0))
    assert (nothing.ids, nothing.finish) == ((), "length")


def test_the_models_own_end_ends_an_answer(tiny: Path, tmp_path: Path) -> None:
    (free,) = answers(tiny, asks())
    end = free.ids[10]
    (ended,) = answers(tiny_model(tmp_path, seed=1, end=end), asks())
    assert ended.ids == free.ids[: free.ids.index(end) + 1]
    assert (ended.finish, ended.stop_reason) == ("stop", str(end))


def test_an_answer_ends_where_the_window_does(tiny: Path) -> None:
    prompt = (7,) * (TINY_WINDOW - 5)
    (came,) = answers(tiny, asks(prompt, seed=2))
    assert (len(came.ids), came.finish) == (5, "length")


def test_a_long_prompt_is_read_in_parts_that_make_one(tiny: Path) -> None:
    prompt = tuple(int(n) for n in np.random.default_rng(0).integers(0, TINY_WORDS, 2 * CHUNK + 77))
    (came,) = answers(tiny, asks(prompt, temperature=0.7))
    assert_scored(Rescorer(tiny), came, prompt, 0.7)


def assert_scored(
    rescorer: Rescorer, came: Came, prompt: tuple[int, ...], temperature: float
) -> None:
    """The logprobs are those of one pass with the model's own weights."""
    scored = rescorer.logprobs(rescorer.own, [*prompt, *came.ids], temperature)
    assert came.logprobs == pytest.approx(scored[len(prompt) :], abs=1e-4)


REFUSED = {
    "nothing": (asks(()), "the prompt is empty"),
    "an id too high": (asks((1, TINY_WORDS)), "the tokenizer is not the model's own"),
    "an id too low": (asks((1, -1)), "the tokenizer is not the model's own"),
    "a prompt too long": (asks((1,) * TINY_WINDOW), "does not fit into its window"),
    "a schema": (asks(json_schema="{}"), "JSON schema"),
}


@pytest.mark.parametrize(("call", "says"), REFUSED.values(), ids=REFUSED)
def test_a_call_that_is_not_for_this_model_is_refused_for_good(
    tiny: Path, call: Generation, says: str
) -> None:
    (came,) = answers(tiny, call)
    assert says in str(came.error)
    assert came.error is not None
    assert not came.error.retryable


def test_an_abort_ends_an_answer_and_keeps_what_was_sampled(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        came = Came()
        async for tokens in engine.generate(endless()):
            came.chunks.append(tokens)
            if len(came.chunks) == 3:
                await engine.abort("s1")
        assert came.finish == "abort"
        assert 3 <= len(came.ids) < TINY_WINDOW - len(PROMPT)
        await engine.abort("s1")
        await engine.abort("never asked")

    told(tiny, story)


def test_one_that_waits_is_begun_when_another_is_closed(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        first = engine.generate(endless())
        await anext(first)
        waiting = asyncio.create_task(heard(engine, asks(key="s2")))
        await asyncio.sleep(0)
        assert not waiting.done()
        await first.aclose()
        assert (await waiting).finish in {"stop", "length"}

    told(tiny, story, running_max=1)


def test_one_that_waits_can_be_aborted(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        first = engine.generate(endless())
        await anext(first)
        waiting = asyncio.create_task(heard(engine, asks(key="s2")))
        await asyncio.sleep(0)
        await engine.abort("s2")
        came = await waiting
        assert (came.ids, came.finish) == ((), "abort")
        await first.aclose()

    told(tiny, story, running_max=1)


def test_too_many_are_refused_for_now(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        first = engine.generate(endless())
        await anext(first)
        calls = (asks(key=f"w{n}", max_new_tokens=1) for n in range(WAITING_MAX + 1))
        waiting = [asyncio.create_task(heard(engine, call)) for call in calls]
        refused = await waiting[-1]
        assert refused.error is not None
        assert refused.error.retryable
        await first.aclose()
        assert {(await one).finish for one in waiting[:-1]} <= {"stop", "length"}

    told(tiny, story, running_max=1)


def test_the_loop_is_free_while_the_model_computes(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        answer = asyncio.create_task(heard(engine, asks((7,) * (TINY_WINDOW - 1))))
        turns = 0
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        assert answer.result().sizes == [1]
        assert turns > 10

    told(tiny, story)


def test_closing_ends_what_is_under_way_and_refuses_more(tiny: Path) -> None:
    async def story(engine: LocalEngine) -> None:
        under_way = engine.generate(endless())
        await anext(under_way)
        running = [asyncio.create_task(heard(engine, endless(key=f"w{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        await engine.close()
        assert [tokens.finish async for tokens in under_way][-1] == "abort"
        assert {(await one).finish for one in running} == {"abort"}
        with pytest.raises(EngineError, match="its thread has ended"):
            await engine.require_ready()
        assert (await heard(engine, asks())).error is not None
        with pytest.raises(EngineError, match="closed"):
            await engine.replace_weights({}, 1)

    told(tiny, story, running_max=1)


def test_a_model_that_fails_costs_that_answer_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(engine: LocalEngine) -> None:
        sound = engine._model.read

        def read(ids: Any, cache: Any) -> Any:
            if 66 in ids:
                raise RuntimeError("out of memory")
            return sound(ids, cache)

        monkeypatch.setattr(engine._model, "read", read)
        broken, whole = await asyncio.gather(
            heard(engine, asks((1, 66))), heard(engine, asks(key="s2", max_new_tokens=1))
        )
        assert "out of memory" in str(broken.error)
        assert whole.error is None

    told(tiny, story)


BAD = {
    "a folder without a model": lambda folder: folder,
    "a file that is no GGUF": lambda folder: _written(folder / "a.gguf", "hello"),
    "a configuration alone": lambda folder: _written(folder / "config.json", "{}").parent,
}


def _written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("made", BAD.values(), ids=BAD)
def test_what_is_no_model_is_said_in_a_line(made: Callable[[Path], Path], tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(BadSetting, match="no causal language model can be loaded") as error:
        LocalEngine(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_with_weights_missing_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, seed=1)
    config = folder / "config.json"
    more_layers = config.read_text("utf-8").replace(
        '"num_hidden_layers": 2', '"num_hidden_layers": 3'
    )
    config.write_text(more_layers, "utf-8")
    with pytest.raises(BadSetting, match=r"weights missing: model\.layers\.2"):
        LocalEngine(folder)
