"""`python -m tests.chaos.oversized [TURNS]`: sessions of a size that workers must outlive.

    a session of 20,000 turns closes    workers killed while it grows, and again as it ends
    a record that cannot be sent        the broker takes less than the settings say: one session
                                        closes with totals only, no worker ends

Everything but the session whose record cannot be sent must be what the pure core gives.

Exit codes: 0 all is as it has to be; 1 something is not.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.events import Event
from schemas.samples import SessionClosed
from streams.log.client_logs import silence_client_logs
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.keys import event_key, sample_key
from streams.processor.rows import MarkerKey, write_key
from streams.settings import Settings
from tests.attack.large_sessions import ended, innocent, ordinary, turn
from tests.chaos.arena import Arena, short_settings
from tests.chaos.comparison import Found, Verdict, compare, found
from tests.chaos.leash import ended_by_sigterm
from tests.chaos.oracle import Expected
from tests.kafka.broker import Broker
from tests.kafka.topic_limit import limit_topic

TURNS = 20_000
WORKERS = 2
LONG, UNSENDABLE = "ordinary", "unsendable"
BROKER_BYTES = 100_000
_UNSENDABLE_TOKENS = 50_000
"""Of random ids, which no compression makes smaller."""
_IN_FLIGHT = 500
_TRIES = 20
_DRAIN_SECONDS_MAX = 600.0


async def outlived(broker: Broker, folder: Path, turns: int) -> tuple[Verdict, list[str]]:
    """How it differs from the pure core, and what else is wrong."""
    settings = short_settings([broker], partitions=4, idle_limit_s=600.0)
    async with Arena(folder, [broker], settings, seed=1) as arena, KafkaLog(settings) as log:
        arena.crew.supervise(WORKERS)
        *growing, last = ordinary(LONG, turns)
        for share in range(4):
            part = growing[share * len(growing) // 4 : (share + 1) * len(growing) // 4]
            await publish(log, settings, part)
            await publish(log, settings, innocent(f"grown-{share}"))
            if share in (1, 3):
                arena.crew.able[0].kill()
                arena.crew.supervise(WORKERS)
        await arena.drained(WORKERS, _DRAIN_SECONDS_MAX)
        await publish(log, settings, [last])
        arena.crew.kill_all()
        await arena.drained(WORKERS, _DRAIN_SECONDS_MAX)

        await limit_topic(settings, settings.samples_topic, BROKER_BYTES)
        for number in range(20):
            await publish(log, settings, innocent(f"before-{number}"))
        # The first may come before the broker knows its new limit: they are as the core says.
        for number in range(_TRIES):
            name = f"{UNSENDABLE}-{number}"
            await publish(log, settings, unsendable(name))
            await publish(log, settings, innocent(f"after-{number}"))
            await arena.drained(WORKERS, _DRAIN_SECONDS_MAX)
            if _closed_with_totals(await found(log, settings), name):
                break
        await arena.feed(arena.oracle)
        problems = [f"exit code {code}" for code in await arena.crew.terminate_all() if code != 0]
        problems += [f"ended by itself: {line}" for line in arena.crew.unexpected]
        out = await found(log, settings)
        problems += [] if _closed_with_totals(out, name) else ["nothing closed with totals only"]
        problems += _long_unlike(out, turns)
        _forget(name, arena.oracle.expected, out)
        return compare(arena.oracle.expected, out), problems


async def publish(log: KafkaLog, settings: Settings, events: Iterable[Event]) -> None:
    sent: list[Any] = []
    for event in events:
        key = event_key(getattr(event, "session_id", ""))
        value = codec.to_msgpack(event)
        sent.append(await log.send(Outgoing(topic=settings.turns_topic, key=key, value=value)))
        if len(sent) > _IN_FLIGHT:
            await sent[-_IN_FLIGHT]
    for one in sent[-_IN_FLIGHT:]:
        await one


def unsendable(name: str) -> Iterable[Event]:
    """Its sample is within our limits, and over the broker's."""
    ids = np.random.default_rng(1).integers(0, 2**31, _UNSENDABLE_TOKENS, np.int64)
    yield turn(name, 0, "t0", 10, prompt_ids=ids.astype(np.int32))
    yield ended(name)


def _closed_with_totals(out: Found, name: str) -> bool:
    outcomes = [codec.from_msgpack(value) for _, value in out.outcomes.get(name, [])]
    return bool(outcomes) and all(
        isinstance(outcome, SessionClosed)
        and outcome.withheld == "core_failure"
        and (outcome.ledger, outcome.sample_ids, outcome.ledger_omitted) == ([], [], 1)
        for outcome in outcomes
    )


def _long_unlike(out: Found, turns: int) -> list[str]:
    for _, value in out.outcomes.get(LONG, []):
        outcome = codec.from_msgpack(value)
        assert isinstance(outcome, SessionClosed)
        if (len(outcome.ledger), len(outcome.sample_ids)) != (turns, 4):
            return [f"{len(outcome.ledger)} turns in {len(outcome.sample_ids)} samples"]
        return []
    return ["the long session has no outcome"]


def _forget(name: str, expected: Expected, out: Found) -> None:
    """Take the session that the pure core closes with its sample out of the comparison."""
    key, marker = sample_key(name, None), write_key(MarkerKey(name))
    for samples in (expected.samples, out.samples):
        for sample_id in [k for k, copies in samples.items() if next(iter(copies))[0] == key]:
            del samples[sample_id]
    for outcomes in (expected.outcomes, expected.traces, out.outcomes, out.traces):
        outcomes.pop(name, None)
    for tables in (expected.tables, out.tables):
        for table in tables.values():
            table.pop(marker, None)
    for letter in list(out.letters):
        record = codec.from_msgpack(letter[1])
        if isinstance(record, DeadLetter) and record.session_id == name:
            del out.letters[letter]


def main() -> int:
    """Exit code 1 if something is not as it has to be."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    silence_client_logs()
    with (
        ended_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="turnstream-chaos-") as folder,
        Broker(Path(folder) / "broker") as broker,
    ):
        verdict, problems = asyncio.run(outlived(broker, Path(folder) / "workers", turns))
    lines = [*verdict.lines(), *(f"WRONG: {problem}" for problem in problems)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if verdict.differences or problems else 0


if __name__ == "__main__":
    sys.exit(main())
