"""The version of each token of an engine that reports labels, while what is declared comes late.

    trainer ──► log ──0.1 s later, or when it is asked──► the gateway's weights ──► a generation

Each story is an engine's: tokens, failures, and what the trainer does before the next of them.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest

from schemas.control import Paused, Resumed
from streams.adapters.engines.interface import EngineError, Generation, Sampling, Tokens
from streams.adapters.gateway.sampling.generating import Generating
from streams.adapters.gateway.sampling.limits import FairGate
from streams.adapters.gateway.sampling.passage import Passage
from streams.adapters.gateway.sampling.sampled import Sampled
from streams.adapters.gateway.sampling.weights import Weights
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.adapters.gateway.faulty_log import Faulty
from tests.adapters.gateway.test_gateway_paths_generating import PROMPT, Stopping
from tests.adapters.gateway.world import SECONDS_MAX, until

RUN = "r"
END = 9
"""The token that ends an answer; 8 completes a stop string."""
Step = Tokens | EngineError | Callable[[], Awaitable[object]]
AWAY = EngineError("it is being started")


def some(
    *ids: int, of: str | None = "base", finish: Literal["stop", "abort"] | None = None
) -> Tokens:
    return Tokens(ids=ids, logprobs=(-0.5,) * len(ids), weight_label=of, finish=finish)


def answer(of: str | None) -> list[Step]:
    return [some(END, of=of, finish="stop")]


class Telling(Stopping):
    """Plays a list of steps a call."""

    def __init__(self, *parts: Sequence[Step]) -> None:
        super().__init__()
        self._parts = list(parts)

    async def generate(self, generation: Generation) -> AsyncIterator[Tokens]:
        self.asked.append(generation.input_ids.tolist())
        for step in self._parts.pop(0):
            if isinstance(step, EngineError):
                raise step
            if isinstance(step, Tokens):
                yield step
            else:
                await step()


class Setting:
    """A trainer and a gateway, each with a connection of its own to the log."""

    def __init__(self, trainer: Weights, gateway: Weights, log: Faulty) -> None:
        self._trainer = trainer
        self.gateway = gateway
        self.log = log

    async def caught_up(self) -> bool:
        """There is nothing to read."""
        return True

    async def pause(self) -> None:
        await self._trainer.tell(Paused(run_id=RUN))

    def resume(
        self, version: int, *, flushed: bool = False, epoch: int = 0
    ) -> Callable[[], Awaitable[None]]:
        record = Resumed(run_id=RUN, version=version, cache_flushed=flushed, run_epoch=epoch)
        return lambda: self._trainer.tell(record)

    async def sampled(self, *parts: Sequence[Step]) -> tuple[Sampled, Telling]:
        engine, sampled = Telling(*parts), Sampled()
        passage = Passage(FairGate(1), self.gateway, "s", RUN)
        made = Generating(engine, "s", sampled, lambda _: 8 in sampled.ids, passage)
        await made.run(PROMPT, Sampling(max_new_tokens=20, stop_ids=(END,), stop=("x",)))
        passage.leave()
        assert len(sampled.ids) == len(sampled.logprobs)
        assert not engine._parts
        return sampled, engine


Story = Callable[[Setting], Awaitable[None]]


def played(story: Story) -> Callable[[Path], None]:
    """A test that is a story with a log of its own."""

    async def whole(folder: Path) -> None:
        settings = Settings(log=str(folder / "log.db"), gateway_weight_version=0)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(SECONDS_MAX))
            logs, known = [], []
            for _ in range(2):
                path = Path(settings.log)
                logs.append(Faulty(await stack.enter_async_context(SqliteLog(path, settings))))
                known.append(Weights(settings, logs[-1]))
                stack.push_async_callback(known[-1].close)
                known[-1].follow()
                await known[-1].known()
            await story(Setting(known[0], known[1], logs[1]))

    def test(tmp_path: Path) -> None:
        asyncio.run(whole(tmp_path))

    test.__name__ = story.__name__
    return test


@played
async def test_tokens_of_a_generation_that_was_held_back_are_of_the_new_weights(
    at: Setting,
) -> None:
    await at.sampled(answer("base"))
    sampled, _ = await at.sampled(
        [at.pause, at.resume(1), some(1, of="b"), some(2, END, of="b", finish="stop")]
    )
    assert sampled.weight_versions == [(1, 3)]


@played
async def test_what_is_gone_on_with_is_of_the_new_weights(at: Setting) -> None:
    sampled, engine = await at.sampled(
        [some(1, 2), some(finish="abort")],
        [at.pause, at.resume(4, flushed=True), some(3, of="b"), *answer("b")],
    )
    assert sampled.weight_versions == [(0, 2), (4, 2)]
    assert sampled.continued_at == [(2, True)]
    assert engine.asked == [[1, 2, 3], [1, 2, 3, 1, 2]]


@played
async def test_weights_that_change_in_place_are_those_of_what_comes_after_the_silence(
    at: Setting,
) -> None:
    sampled, _ = await at.sampled(
        [
            *(some(1), some(2), at.pause, lambda: asyncio.sleep(0.15), at.resume(1)),
            *(some(3, of="b"), lambda: asyncio.sleep(0.15), at.resume(2), some(4, of="c")),
            *answer("c"),
        ]
    )
    assert sampled.weight_versions == [(0, 2), (1, 1), (2, 2)]
    assert sampled.continued_at is None


@played
async def test_what_comes_in_a_pause_is_asked_for_however_soon_it_ends(at: Setting) -> None:
    async def paused() -> None:
        await at.pause()
        await at.gateway.up_to_date()

    sampled, _ = await at.sampled([some(1), paused, some(2), at.resume(1), *answer("b")])
    assert sampled.weight_versions == [(0, 2), (1, 1)]


@played
async def test_an_engine_that_fails_in_an_update_that_is_already_over_is_gone_on_with(
    at: Setting,
) -> None:
    sampled, _ = await at.sampled(
        [some(1), at.pause, at.resume(1), AWAY], [some(2, END, of="b", finish="stop")]
    )
    assert sampled.weight_versions == [(0, 1), (1, 2)]
    assert sampled.continued_at == [(1, False)]
    with pytest.raises(EngineError, match="being started"):
        await at.sampled([some(1), AWAY])


@played
async def test_two_updates_between_two_tokens_are_one_join_that_emptied_the_cache(
    at: Setting,
) -> None:
    sampled, _ = await at.sampled(
        [some(1), at.pause, at.resume(1, flushed=True), some(finish="abort")],
        [at.pause, at.resume(2), some(2, END, of="b", finish="stop")],
    )
    # The engine was not seen between the two, so it may have missed the second.
    assert sampled.weight_versions == [(0, 1), (-1, 2)]
    assert sampled.continued_at == [(1, True)]


@played
async def test_where_the_log_does_not_answer_the_version_is_not_known(at: Setting) -> None:
    async def goes_away() -> None:
        at.log.away = "lost"

    sampled, _ = await at.sampled([at.resume(1), goes_away, some(1, END, finish="stop")])
    assert sampled.ids == [1, END]
    assert sampled.weight_versions == [(-1, 2)]


@played
async def test_an_update_while_the_log_is_asked_is_none_of_the_token_before_it(
    at: Setting,
) -> None:
    ends = at.log.end_positions

    async def slow(topic: str) -> dict[int, int]:
        at.log.end_positions = ends  # type: ignore[method-assign]
        await at.pause()
        await asyncio.sleep(0.2)
        await at.resume(1)()
        return await ends(topic)

    at.log.end_positions = slow  # type: ignore[method-assign]
    sampled, _ = await at.sampled(
        [some(1), some(finish="abort")], [some(2, END, of="b", finish="stop")]
    )
    assert sampled.weight_versions == [(0, 1), (1, 2)]


ENDS: dict[str, list[Step]] = {
    "a stop token": [some(1, END), some(finish="abort")],
    "a stop token with the abort": [some(1, END, finish="abort")],
    "a stop string": [some(1, 8), some(finish="abort")],
}


@pytest.mark.parametrize("steps", ENDS.values(), ids=ENDS)
def test_an_answer_that_is_stopped_behind_its_end_is_over(
    tmp_path: Path, steps: list[Step]
) -> None:
    async def story(at: Setting) -> None:
        sampled, engine = await at.sampled(steps)
        assert (sampled.finish, sampled.stop_reason) == ("stop", None)
        assert len(engine.asked) == 1
        assert sampled.continued_at is None

    played(story)(tmp_path)


@played
async def test_an_engine_that_fails_behind_the_end_in_a_pause_has_answered(at: Setting) -> None:
    sampled, engine = await at.sampled([some(1, END), at.pause, AWAY])
    assert (sampled.ids, sampled.finish) == ([1, END], "stop")
    assert len(engine.asked) == 1


@played
async def test_who_gives_up_in_a_pause_keeps_what_was_sampled_before_it(at: Setting) -> None:
    engine, sampled = Telling([some(1, 2), at.pause, some(finish="abort")]), Sampled()
    gate = FairGate(1)
    passage = Passage(gate, at.gateway, "s", RUN)
    made = Generating(engine, "s", sampled, lambda _: False, passage)
    running = asyncio.create_task(made.run(PROMPT, Sampling()))

    async def waits() -> bool:  # and holds no place meanwhile
        return bool(made.continued) and not gate.running

    await until(waits)
    passage.give_up()
    made.stop()
    await running
    passage.leave()
    assert (sampled.ids, sampled.finish) == ([1, 2], "abort")
    assert (sampled.weight_versions, sampled.continued_at) == ([(0, 2)], None)
    assert (gate.running, gate.waiting, len(engine.asked)) == (0, 0, 1)


@played
async def test_a_run_that_went_back_has_the_lower_version_of_its_new_epoch(at: Setting) -> None:
    await at.sampled(answer("base"))
    await at.resume(7)()
    sampled, _ = await at.sampled(
        [some(1, of="a"), at.pause, at.resume(5), at.resume(3, epoch=1), some(finish="abort")],
        [some(2, END, of="b", finish="stop")],
    )
    assert sampled.weight_versions == [(7, 1), (3, 2)]


@played
async def test_an_engine_that_was_restarted_with_its_first_weights_has_not_the_declared_ones(
    at: Setting,
) -> None:
    for label in ("default", "base"):
        await at.sampled(answer(label))
    await at.resume(7)()
    for reported in ("default", "base", None):
        sampled, _ = await at.sampled(answer(reported))
        assert sampled.weight_versions == [(-1, 1)], reported


@played
async def test_a_turn_keeps_the_versions_that_are_known_beside_those_that_are_not(
    at: Setting,
) -> None:
    reported = Tokens(ids=(2, END), logprobs=(-0.5,) * 2, weight_version=8, finish="stop")
    sampled, _ = await at.sampled([at.resume(7), some(1, of="default"), reported])
    assert sampled.weight_versions == [(-1, 1), (8, 2)]


@played
async def test_a_label_that_stays_is_not_of_the_next_update(at: Setting) -> None:
    await at.sampled(answer("base"))
    versions = []
    for version, label in ((1, "step"), (2, "step"), (3, "next"), (4, "step")):
        await at.resume(version)()
        sampled, _ = await at.sampled(answer(label))
        versions += [found for found, _ in sampled.weight_versions or ()]
    assert versions == [1, -1, 3, -1]


@played
async def test_labels_that_come_at_the_end_are_those_of_the_tokens_before(at: Setting) -> None:
    def at_end(*labels: str, count: int) -> Tokens:
        runs = tuple((None, count) for _ in labels)
        last = some(END, of=labels[-1], finish="stop")
        return dataclasses.replace(last, weight_runs=runs, run_labels=labels)

    sampled, _ = await at.sampled(
        [
            *(some(1, 2, of=None), at.pause, lambda: asyncio.sleep(0.15), at.resume(1)),
            *(some(3, of=None), at_end("base", "b", count=2)),
        ]
    )
    assert sampled.weight_versions == [(0, 2), (1, 2)]


@played
async def test_a_run_without_any_version_has_none(at: Setting) -> None:
    bare = Weights(Settings(log="unused"), at.log)
    at.gateway = bare
    bare.caught_up = at.caught_up  # type: ignore[method-assign]
    for label in (*("default", "base"), None):
        sampled, _ = await at.sampled(answer(label))
        assert sampled.weight_versions is None


@played
async def test_many_that_ask_at_once_share_a_question(at: Setting) -> None:
    asked = 0
    ends = at.log.end_positions

    async def counted(topic: str) -> dict[int, int]:
        nonlocal asked
        asked += 1
        return await ends(topic)

    at.log.end_positions = counted  # type: ignore[method-assign]
    await at.resume(5)()
    assert await asyncio.gather(*(at.gateway.caught_up() for _ in range(50))) == [True] * 50
    assert at.gateway.of(RUN).version == 5
    assert asked < 5
