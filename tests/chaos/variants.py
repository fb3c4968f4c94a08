"""Workers built wrong on purpose: the harness has to say so, and has to say what.

    variant                          what is done to it            what has to show
    no continuity check              join, leave, under load       events skipped: lost, wrong
    marker before the sample acks    killed right at the marker    samples lost for good
    stock Faust commit               killed while sessions close   closes forgotten: lost
    expiry without last_offset       a zombie wakes                living sessions ended: wrong
    rewards dropped while closing    nothing                       revisions lost
    other policy before the marker   killed, redeployed            two sets of samples, unless a
                                                                   consumer heeds `sample_ids`

`make chaos-variants` runs them all. What shows depends on when things happen, so each is tried
a few times before the harness itself is called broken.

Invariant: the same steps with the worker as it is leave no difference (`right=True`).
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from schemas import codec
from schemas.samples import Sample, SessionClosed
from streams.log.client_logs import silence_client_logs
from streams.settings import PREFIX
from tests.chaos import broken
from tests.chaos.arena import Arena, short_settings
from tests.chaos.comparison import Verdict
from tests.chaos.faults import JOIN, KILL, LEAVE, Faults
from tests.chaos.leash import ended_by_sigterm
from tests.chaos.oracle import Expected, Oracle
from tests.kafka.broker import Broker

WORKERS = 2
TRIES = 6
DRAIN_SECONDS_MAX = 40.0
NEVER_S = 3000.0
Act = Callable[[Arena, Random], Awaitable[None]]


@dataclass(frozen=True)
class Variant:
    """One way to be wrong, and how it has to show."""

    name: str
    act: Act
    symptom: Callable[[Verdict], list[str]]
    """What has to be there; empty: the variant went unnoticed."""
    settings: dict[str, Any] = field(default_factory=dict)


async def _joined_and_left(arena: Arena, dice: Random) -> None:
    arena.crew.pace(0.004)
    arena.start_load(rate=400, backlog_max=1500)
    faults = Faults(arena, dice, WORKERS)
    for kind in (JOIN, LEAVE, JOIN, LEAVE, JOIN, LEAVE):
        await faults.wait_for_backlog(20)
        await faults.inject(kind)


async def _killed_at_markers(arena: Arena, dice: Random) -> None:
    arena.start_load(rate=200, backlog_max=1000)
    for _ in range(2):
        await asyncio.gather(*(worker.recovered(20) for worker in arena.crew.able))
        for worker in arena.crew.able:
            worker.doom()
        await asyncio.gather(*(worker.ended(20) for worker in arena.crew.able))
        arena.crew.supervise(WORKERS)


async def _killed_while_closing(arena: Arena, dice: Random) -> None:
    arena.start_load(rate=200, backlog_max=1000)
    faults = Faults(arena, dice, WORKERS)
    for _ in range(2):
        await asyncio.gather(*(worker.recovered(20) for worker in arena.crew.able))
        await asyncio.sleep(4)
        await faults.inject(KILL)


async def _zombie_wakes(arena: Arena, dice: Random) -> None:
    await arena.drained(WORKERS, DRAIN_SECONDS_MAX)
    arena.start_load(rate=15, backlog_max=1000)
    await asyncio.sleep(5)
    zombie = dice.choice(arena.crew.able)
    zombie.stop()
    try:
        await asyncio.sleep(arena.settings.idle_limit_s + 4)
    finally:
        zombie.go_on()
    await asyncio.sleep(3)


async def _nothing(arena: Arena, dice: Random) -> None:
    await asyncio.gather(*(worker.recovered(20) for worker in arena.crew.able))


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            broken.NO_CONTINUITY,
            _joined_and_left,
            lambda verdict: verdict.lost and verdict.wrong,
        ),
        Variant(
            broken.MARKER_FIRST,
            _killed_at_markers,
            lambda verdict: [lost for lost in verdict.lost if lost.startswith("sample")],
        ),
        Variant(
            broken.STOCK_COMMIT,
            _killed_while_closing,
            lambda verdict: [lost for lost in verdict.lost if lost.startswith("outcome")],
        ),
        Variant(
            broken.UNGUARDED_EXPIRY,
            _zombie_wakes,
            lambda verdict: [wrong for wrong in verdict.wrong if wrong.startswith("outcome")],
            {"idle_limit_s": 8.0, "reward_grace_s": 8.0},
        ),
        Variant(
            broken.REWARDS_DROPPED,
            _nothing,
            lambda verdict: [lost for lost in verdict.lost if lost.startswith("revision")],
        ),
    )
}


async def tried(
    variant: Variant, broker: Broker, folder: Path, seed: int, *, right: bool = False
) -> Verdict:
    """What the harness says of a variant, or of the right worker under the same steps."""
    limits = {"idle_limit_s": NEVER_S, "reward_grace_s": NEVER_S, "processor_buffer_events": 4096}
    settings = short_settings([broker], **{**limits, **variant.settings})
    async with Arena(folder, [broker], settings, seed, side_by_side=40) as arena:
        arena.crew.environ["CHAOS_VARIANT"] = "" if right else variant.name
        await arena.load.publish(800)
        arena.crew.supervise(WORKERS)
        await variant.act(arena, Random(seed))
        await _settled(arena)
        return await arena.judged()


async def _settled(arena: Arena) -> None:
    """Finish what was begun. A variant that crashes proves nothing about what it leaves out."""
    await arena.hold_load()
    arena.crew.pace(0.0)
    await arena.load.finish()
    await arena.drained(WORKERS, DRAIN_SECONDS_MAX)
    arena.crew.kill_all()
    assert arena.crew.unexpected == [], arena.crew.unexpected


# --- a policy that changes between samples and marker --------------------------------------------


@dataclass(frozen=True)
class Redeployed:
    """What two consumers make of a redeploy in the wrong moment."""

    sessions: int
    torn_if_heeded: list[str]
    """Sessions whose released samples are of neither policy, if `sample_ids` are heeded."""
    torn_if_ignored: list[str]


async def redeployed(broker: Broker, folder: Path, seed: int) -> Redeployed:
    """Workers die at markers; their successors have another default policy."""
    limits = {"idle_limit_s": NEVER_S, "reward_grace_s": NEVER_S}
    settings = short_settings([broker], **limits)
    other = short_settings(
        [broker], topic_prefix=settings.topic_prefix, profile="lossless", **limits
    )
    async with Arena(folder, [broker], settings, seed, side_by_side=40) as arena:
        await arena.load.publish(800)
        arena.crew.supervise(WORKERS)
        await asyncio.gather(*(worker.recovered(20) for worker in arena.crew.able))
        for worker in arena.crew.able:
            worker.doom()
        await asyncio.gather(*(worker.ended(20) for worker in arena.crew.able))
        arena.crew.environ[f"{PREFIX}PROFILE"] = "lossless"
        arena.crew.supervise(WORKERS)
        await _settled(arena)
        await arena.judged()
        second = Oracle(other)
        try:
            await arena.feed(second)
        finally:
            await second.close()
        either = [_by_session(arena.oracle.expected), _by_session(second.expected)]
        records = arena.found.records
        return Redeployed(
            sessions=len(arena.oracle.expected.outcomes),
            torn_if_heeded=_torn(released(records, heed=True), either),
            torn_if_ignored=_torn(released(records, heed=False), either),
        )


def released(records: Iterable[Sample | SessionClosed], *, heed: bool) -> dict[str, set[str]]:
    """The samples a consumer lets through, by session: the first outcome decides, or nothing."""
    seen: dict[str, set[str]] = {}
    listed: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, SessionClosed):
            listed.setdefault(record.session_id, set(record.sample_ids))
        else:
            seen.setdefault(record.session_id, set()).add(record.sample_id)
    return {
        session_id: seen.get(session_id, set()) & ids if heed else seen.get(session_id, set())
        for session_id, ids in listed.items()
    }


def _by_session(expected: Expected) -> dict[str, set[str]]:
    values = [value for told in expected.outcomes.values() for _, value in told]
    records = [codec.from_msgpack(value) for value in values]
    return {r.session_id: set(r.sample_ids) for r in records if isinstance(r, SessionClosed)}


def _torn(got: dict[str, set[str]], either: list[dict[str, set[str]]]) -> list[str]:
    return [s for s, samples in got.items() if samples not in [wanted.get(s) for wanted in either]]


# --- from the command line -----------------------------------------------------------------------


async def symptoms(variant: Variant, broker: Broker, folder: Path) -> list[str]:
    """What shows of a variant, after a few tries at most."""
    for seed in range(1, TRIES + 1):
        verdict = await tried(variant, broker, folder / f"try{seed}", seed)
        if found := variant.symptom(verdict):
            return found
    return []


async def _run_all(folder: Path) -> int:
    unnoticed = 0
    with Broker(folder / "broker") as broker:
        for name, variant in VARIANTS.items():
            found = await symptoms(variant, broker, folder / name)
            unnoticed += not found
            shown = f"{len(found)}, e.g. {found[0]}" if found else "NOTHING: the harness is blind"
            sys.stdout.write(f"{name}: {shown}\n")
            sys.stdout.flush()
        two = await redeployed(broker, folder / "redeployed", 1)
        sys.stdout.write(
            f"policy-changed-before-the-marker: of {two.sessions} sessions "
            f"{len(two.torn_if_ignored)} are torn if sample_ids are ignored, "
            f"{len(two.torn_if_heeded)} if they are heeded\n"
        )
        return unnoticed + (not two.torn_if_ignored) + len(two.torn_if_heeded)


def main() -> None:
    silence_client_logs()
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="turnstream-chaos-") as folder:
        sys.exit(asyncio.run(_run_all(Path(folder))) and 1)


if __name__ == "__main__":
    main()
