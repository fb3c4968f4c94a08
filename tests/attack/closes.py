"""Attacks on a processor by what has to be written, or built, when a session closes."""

import asyncio
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streams.settings import KAFKA
from tests.attack.large_sessions import (
    ended,
    forks,
    innocent,
    many_joins,
    many_rewards,
    many_turns,
    ordinary,
)
from tests.attack.one_processor import FILE, MEGABYTE, Given, one_processor
from tests.attack.scenario import Bound, scenario, scenarios_in
from tests.kafka.broker import Broker

INNOCENTS = 20
QUICK = 16
"""The quick attacks are this much smaller, and so is what the log takes."""


def _small(share: int) -> dict[str, Any]:
    size = 8 * 1024 * 1024 // share
    return {"message_bytes_max": size, "producer_batch_bytes": size // 8}


def _closed_once(given: Given, names: list[str]) -> int:
    return sum(len(given.outcomes[name]) == 1 for name in names)


def _records_over_the_limit(folder: Path, store: str, share: int) -> Iterator[Bound]:
    hostile = {
        "joins": many_joins("joins", 1_300_000 // share),
        "rewards": many_rewards("rewards", 45_000 // share),
        "control": many_turns("control", 9_000 // share, "\x01"),
        "emoji": many_turns("emoji", 15_000 // share, "🙂"),
        "ordinary": ordinary("ordinary", 20_000 // share),
    }
    innocents = [f"innocent-{number}" for number in range(INNOCENTS)]
    with one_processor(folder, store, **_small(share)) as processor:

        async def attack() -> Given:
            for number, events in enumerate(hostile.values()):
                await processor.publish(events)
                for name in innocents[number::5]:
                    await processor.publish(innocent(name))
            assert await processor.done(), (folder / "processor.log").read_text()[-2_000:]
            return await processor.given()

        before_mb = processor.memory_mb()
        given = asyncio.run(attack())
        yield Bound("workers that ended", float(not processor.alive()), at_most=0)
        yield Bound("memory at its peak", processor.memory_mb("VmHWM") - before_mb, 900, unit="MB")
    yield Bound("innocent sessions closed", _closed_once(given, innocents), None, INNOCENTS)
    yield Bound("hostile sessions closed", _closed_once(given, list(hostile)), None, 5)
    failed = [o for os in given.outcomes.values() for o in os if o.withheld is not None]
    yield Bound("sessions closed without their samples", len(failed), 0)
    (outcome,) = given.outcomes["ordinary"]
    yield Bound("ordinary turns in the ledger", len(outcome.ledger), None, 20_000 // share)
    yield Bound("ordinary tokens untrained", outcome.generated - outcome.trained, 0)
    refused = {name: len(given.letters[name]) for name in hostile}
    yield Bound("refused turns and rewards", sum(refused.values()), None, 3)


def repeated_prefix(
    folder: Path, store: str, branches: int, broker: Broker | None = None
) -> Iterator[Bound]:
    """One turn of 130,000 tokens, and branches that go on from it: each sample repeats it."""
    tokens = 130_000
    with one_processor(folder, store, broker) as processor:

        async def attack() -> tuple[float, Given]:
            await processor.publish(forks("forks", tokens, branches, end=False))
            await processor.done()
            before_mb = processor.memory_mb()
            await processor.publish([ended("forks")])
            assert await processor.done(), (folder / "processor.log").read_text()[-2_000:]
            return before_mb, await processor.given()

        before_mb, given = asyncio.run(attack())
        grown_mb = processor.memory_mb("VmHWM") - before_mb
    (outcome,) = given.outcomes["forks"]
    sample_mb = 8 * tokens / MEGABYTE
    total_mb = sample_mb * len(outcome.sample_ids)
    yield Bound("samples", len(outcome.sample_ids), None, branches * 0.9)
    # Beside two samples at a time: what is in flight, and a transaction of the file.
    yield Bound("memory growth of the close", grown_mb, 100 + 6 * sample_mb, unit="MB")
    yield Bound("samples that were sent", total_mb, None, 3 * grown_mb, unit="MB")


def _fork_amplification(folder: Path, store: str) -> Iterator[Bound]:
    closes, branches, tokens = 100, 25, 20_000
    names = [f"innocent-{number}" for number in range(1_000)]
    with one_processor(folder, store) as processor:

        async def attack() -> tuple[float, Given]:
            for number in range(closes):
                await processor.publish(forks(f"fork-{number}", tokens, branches, end=False))
            await processor.done()
            before_mb = processor.memory_mb()
            await asyncio.gather(
                processor.publish(ended(f"fork-{number}") for number in range(closes)),
                processor.publish(event for name in names for event in innocent(name)),
            )
            assert await processor.done(), (folder / "processor.log").read_text()[-2_000:]
            return before_mb, await processor.given()

        before_mb, given = asyncio.run(attack())
        grown_mb = processor.memory_mb("VmHWM") - before_mb
    waits = sorted(given.waits_s[name] for name in names)
    sent = sum(len(o.sample_ids) for os in given.outcomes.values() for o in os)
    sent_mb = sent * 8 * tokens / MEGABYTE
    yield Bound("innocent sessions closed", _closed_once(given, names), None, len(names))
    yield Bound("samples sent", sent_mb, None, closes * branches * tokens * 6 / MEGABYTE, unit="MB")
    yield Bound("memory growth", grown_mb, 400, unit="MB")
    yield Bound("an innocent session's wait, median", statistics.median(waits), 60, unit="s")
    yield Bound("an innocent session's wait, longest", waits[-1], 300, unit="s")


@scenario(quick=True)
def small_records_over_the_limit_in_a_file(folder: Path) -> Iterator[Bound]:
    """Joins, rewards, long ids, many turns: each would be a record over the limit; 1/16 of all."""
    return _records_over_the_limit(folder, FILE, QUICK)


@scenario(quick=False)
def records_over_the_limit_in_a_file(folder: Path) -> Iterator[Bound]:
    """Joins, rewards, long ids, 20,000 turns: each would be a record over the limit."""
    return _records_over_the_limit(folder, FILE, 1)


@scenario(quick=False)
def records_over_the_limit_on_kafka(folder: Path) -> Iterator[Bound]:
    """Joins, rewards, long ids, 20,000 turns: each would be a record over the limit."""
    return _records_over_the_limit(folder, KAFKA, 1)


@scenario(quick=True)
def a_long_turn_repeated_in_a_file(folder: Path) -> Iterator[Bound]:
    """400 turns that go on from one turn of 130,000 tokens."""
    return repeated_prefix(folder, FILE, 400)


@scenario(quick=False)
def a_long_turn_repeated_often_in_a_file(folder: Path) -> Iterator[Bound]:
    """1,000 turns that go on from one turn of 130,000 tokens."""
    return repeated_prefix(folder, FILE, 1_000)


@scenario(quick=False)
def a_long_turn_repeated_often_on_kafka(folder: Path) -> Iterator[Bound]:
    """1,000 turns that go on from one turn of 130,000 tokens."""
    return repeated_prefix(folder, KAFKA, 1_000)


@scenario(quick=False)
def forks_beside_innocents_in_a_file(folder: Path) -> Iterator[Bound]:
    """100 closes that each repeat 20,000 tokens 25 times, beside 1,000 innocent sessions."""
    return _fork_amplification(folder, FILE)


@scenario(quick=False)
def forks_beside_innocents_on_kafka(folder: Path) -> Iterator[Bound]:
    """100 closes that each repeat 20,000 tokens 25 times, beside 1,000 innocent sessions."""
    return _fork_amplification(folder, KAFKA)


SCENARIOS = scenarios_in(vars())
