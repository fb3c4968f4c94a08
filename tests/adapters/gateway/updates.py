"""Weight updates in the middle of turns: a trainer, two gateways, many agents, one engine.

    trainer ──pause, resume──► gateway A ──► log ──► gateway B
    agents  ──three APIs, streamed and whole──► A and B ──► one engine, with its journal

The trainer speaks to gateway A alone. Afterwards every turn is held against what the engine says it
sampled: ids, logprobs, versions, and where one generation ended and the next went on.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.events import Turn
from schemas.samples import Sample, SessionClosed
from streams.adapters.engines.scripted import Rule, Sampled, Script, ScriptedEngine
from tests.adapters.gateway.agents import user
from tests.adapters.gateway.agents_kinds import KINDS, Talker, opened
from tests.adapters.gateway.outcomes import (
    Generated,
    Outcome,
    assert_all_trains,
    whole_prompts,
)
from tests.adapters.gateway.world import REWARD, World, until

RUN = "run-1"
TURNS_MIN = 3
UPDATES = 5
UNDER_WAY = 12
"""Generations that have sampled something when the weights change, at least."""
ENDED = 20
"""Answers that have ended since the last change, at least."""
CALL = (
    "<think>\nOne two three four five six seven eight nine ten.\n</think>\n\nLet me look at it.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la /one/two/three"}}\n</tool_call>'
)
SCRIPT = Script(otherwise=Rule(text=CALL, gap_ms=60, chunks=(1, 4)))
LABELS = Script(otherwise=SCRIPT.otherwise, weight_label="base", labels_only=True)
"""By an engine whose labels are no integers, so that versions are the declared ones."""


@dataclass
class Joined:
    """What the engine sampled for one turn, over all of its generations."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: list[tuple[int, int]] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)

    @property
    def generated(self) -> Generated:
        return self.prompt, self.ids, self.logprobs

    @property
    def words(self) -> tuple[object, ...]:
        return self.prompt, self.ids, self.logprobs, tuple(self.versions), tuple(self.joins)


def joined(entries: Iterable[Sampled]) -> list[Joined]:
    """By the engine's own journal of a session, in the order of the calls."""
    found: list[Joined] = []
    for entry in entries:
        prompt = tuple(entry.input_ids.tolist())
        if entry.rule == "rest":
            whole = next(turn for turn in found if turn.prompt + turn.ids == prompt)
        else:
            found.append(whole := Joined(prompt))
        if whole.ids and entry.ids:
            whole.joins.append(len(whole.ids))
        whole.ids += tuple(entry.ids)
        whole.logprobs += tuple(entry.logprobs)
        for version, count in entry.weight_versions:
            if whole.versions and whole.versions[-1][0] == version:
                count += whole.versions.pop()[1]  # noqa: PLW2901
            whole.versions.append((version, count))
    return found


def recorded(turn: Turn, prompt: Sequence[int]) -> tuple[object, ...]:
    """A turn of the log, in the same words."""
    logprobs = () if turn.logprobs is None else tuple(turn.logprobs.tolist())
    versions = tuple(tuple(run) for run in turn.weight_versions or ())
    joins = tuple(place for place, _ in turn.continued_at or ())
    return tuple(prompt), tuple(turn.output_ids.tolist()), logprobs, versions, joins


async def train(a: World, updates: int = UPDATES) -> None:
    """Change the weights while agents are in the middle of turns."""
    for version in range(1, updates + 1):
        before = _ended(a)

        async def sampling(before: int = before) -> bool:
            return _busy(a) >= UNDER_WAY and _ended(a) - before >= ENDED

        await until(sampling)
        await _pause(a)
        while _busy(a) < UNDER_WAY // 3:  # all was answered before the pause was durable
            await _resume(a, version - 1, flushed=False)  # nothing was changed
            await until(sampling)
            await _pause(a)
        a.engine.pause()
        a.engine.update_weights(version, f"step {version}", abort=False)
        await asyncio.sleep(0.15)
        await _resume(a, version, flushed=is_flushed(version))
        a.engine.resume()


async def _pause(a: World) -> None:
    status, told = await a.control("pause", {"run_id": RUN})
    assert (status, told["paused"]) == (200, True)


async def _resume(a: World, version: int, *, flushed: bool) -> None:
    body = {"run_id": RUN, "version": version, "cache_flushed": flushed}
    status, told = await a.control("resume", body)
    assert (status, told["paused"], told["version"]) == (200, False, version)


def _busy(world: World) -> int:
    """Generations that have sampled something and go on."""
    return sum(e.outcome == "running" and len(e.ids) > 1 for e in world.engine.journal)


def _ended(world: World) -> int:
    return sum(entry.finish == "stop" for entry in world.engine.journal)


def is_flushed(version: int) -> bool:
    return version % 2 == 0


async def work(world: World, talker: Talker, over: asyncio.Event) -> int:
    """Call tools until the trainer is done; how many calls were made."""
    said = await talker.ask(user(f"I am {talker.session_id}."))
    calls = 1
    while not over.is_set() or calls < TURNS_MIN:
        said = await talker.run_tools(said)
        calls += 1
    status, told = await world.control(f"sessions/{talker.session_id}/end", {"reward": REWARD})
    assert status == 200, told
    return calls


async def updated(a: World, b: World, sessions: int = 50) -> dict[str, int]:
    """The whole story; what was counted."""
    over = asyncio.Event()
    kinds = list(KINDS)
    agents: list[tuple[World, Talker]] = []
    for n in range(sessions):
        world = (a, b)[n % 2]
        kind, stream = kinds[n % 3], bool(n // 6 % 2)
        name = f"{kind}-{n}"
        talker = await opened(world, kind, stream=stream, session_id=name, run_id=RUN)
        agents.append((world, talker))
    working = [asyncio.create_task(work(world, talker, over)) for world, talker in agents]
    try:
        await train(a)
    finally:
        over.set()
        calls = await asyncio.gather(*working)
    names = [talker.session_id for _, talker in agents]
    outcomes = await closed(a, names)
    return checked(a.engine, outcomes, dict(zip(names, calls, strict=True)))


async def closed(world: World, names: Sequence[str]) -> dict[str, Outcome]:
    """What all of them became, read once."""
    records: list[object] = []

    async def all_closed() -> bool:
        records[:] = await world.records(world.settings.samples_topic)
        return sum(isinstance(record, SessionClosed) for record in records) >= len(names)

    await until(all_closed, every_s=0.5)
    events = await world.records(world.settings.turns_topic)
    found: dict[str, Outcome] = {}
    for name in names:
        turns = {e.turn_id: e for e in events if isinstance(e, Turn) and e.session_id == name}
        mine = [r for r in records if getattr(r, "session_id", None) == name]
        (end,) = [record for record in mine if isinstance(record, SessionClosed)]
        samples = [record for record in mine if isinstance(record, Sample)]
        found[name] = Outcome(turns, whole_prompts(turns), samples, end)
    return found


def checked(
    engine: ScriptedEngine, outcomes: dict[str, Outcome], calls: dict[str, int]
) -> dict[str, int]:
    """Everything is as the engine says; how much of it there was."""
    counts: Counter[str] = Counter()
    for name, outcome in outcomes.items():
        assert_all_trains(engine, outcome)
        turns = list(outcome.turns.values())
        assert len(turns) == calls[name]  # one for each call
        assert all(turn.delivered for turn in turns)
        assert Counter(recorded(turn, outcome.prompts[turn.turn_id]) for turn in turns) == Counter(
            whole.words for whole in joined(engine.journal.of(name))
        )
        for turn in turns:
            counts["turns"] += 1
            counts["continued"] += bool(turn.continued_at)
            check_joins(turn)
            versions = [version for version, _ in turn.weight_versions or ()]
            for version in versions[1:]:
                counts[f"changed to {version}"] += 1
        (sample,) = outcome.samples
        assert [version for version, *_ in sample.weight_versions or ()] == sorted(
            version for version, *_ in sample.weight_versions or ()
        )
    return dict(counts)


def check_joins(turn: Turn) -> None:
    """Whether the cache was emptied stands at each join, by the update that was made there."""
    starts, at = {}, 0
    for version, count in turn.weight_versions or ():
        starts[at] = version
        at += count
    for place, flushed in turn.continued_at or ():
        assert place in starts, "what was gone on with has other weights"
        assert flushed is is_flushed(starts[place])
    assert set(starts) - {0} == {place for place, _ in turn.continued_at or ()}
