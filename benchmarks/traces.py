"""`make bench-traces`: what traces cost a processor, switched off, sampled and on, in one run.

500 sessions of 20 turns are worked on by the embedded processor, over a file of its own each
time. Bytes are what stands on the topics; CPU time is this process's, the best of some rounds that
go through the three in turn.

Invariant: the bytes on the samples topic are the same in all three, or the run fails.
"""

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from benchmarks.published import events_of
from benchmarks.workloads import Sizes, appending
from schemas import codec
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.settings import KAFKA_TRACE_SHARE, Settings

SETTINGS = Settings(hard_limit_s=1e9)
"""The sessions have fixed times, so that their bytes are always the same; none is too old."""
SHARES = {"off": 0.0, "sampled": KAFKA_TRACE_SHARE, "on": 1.0}
TURNS = 20
SIZES = Sizes(first_prompt=500, output=100, tool=200)
SECONDS_MAX = 600.0


@dataclass
class Measured:
    """Of one way."""

    traces: int
    trace_bytes: int
    samples_bytes: int
    samples_digest: str
    cpu_s: float


async def publish(log: SqliteLog, settings: Settings, sessions: int) -> int:
    """The sessions on the log; how many events they are."""
    calls, events = appending(TURNS, 1, SIZES), 0
    for number in range(sessions):
        session_id = f"s{number}"
        for event in events_of(calls, session_id):
            value, key = codec.to_msgpack(event), event_key(session_id)
            sent = await log.send(Outgoing(topic=settings.turns_topic, key=key, value=value))
            events += 1
    await sent
    return events


async def values(log: SqliteLog, topic: str) -> list[bytes]:
    """Everything on a topic."""
    end = (await log.end_positions(topic)).get(0, 0)
    found: list[bytes] = []
    reader = await log.read(topic, await log.start_positions(topic))
    while len(found) < end:
        found += [entry.value or b"" for entry in await reader.next_batch(1.0)]
    await reader.close()
    return found


async def measured(path: Path, share: float, sessions: int) -> Measured:
    """One run of the processor over a fresh log."""
    settings = replace(SETTINGS, log=str(path), trace_share=share)
    async with SqliteLog(path, settings) as log:
        await publish(log, settings, sessions)
        processor, stop = EmbeddedProcessor(settings, log), asyncio.Event()
        began_s = time.process_time()
        async with asyncio.timeout(SECONDS_MAX):
            running = asyncio.create_task(processor.run(stop))
            while processor.counts["sessions_closed"] < sessions and not running.done():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            stop.set()
            await running
        cpu_s = time.process_time() - began_s
        traces = await values(log, settings.traces_topic)
        samples = await values(log, settings.samples_topic)
    digest = blake2b(b"".join(samples), digest_size=16).hexdigest()
    return Measured(
        traces=len(traces),
        trace_bytes=sum(map(len, traces)),
        samples_bytes=sum(map(len, samples)),
        samples_digest=digest,
        cpu_s=cpu_s,
    )


def main() -> None:
    """Print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    best: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(asked.rounds):
            for way, share in SHARES.items():
                path = Path(name) / f"{way}-{number}.db"
                found = asyncio.run(measured(path, share, asked.sessions))
                path.unlink()
                if way not in best or found.cpu_s < best[way].cpu_s:
                    best[way] = found
    assert len({found.samples_digest for found in best.values()}) == 1, "traces changed samples"
    assert (best["off"].traces, best["on"].traces) == (0, asked.sessions), "not as asked"
    print(f"{asked.sessions} sessions of {TURNS} turns; samples and outcomes: the same bytes")
    print(
        "traces       count   bytes on the topic   of the samples'   CPU ms a session   beside off"
    )
    for way, found in best.items():
        part = found.trace_bytes / found.samples_bytes
        each_ms, ratio = 1000 * found.cpu_s / asked.sessions, found.cpu_s / best["off"].cpu_s
        counts = f"{way:<8} {found.traces:>9,} {found.trace_bytes:>20,} {part:>16.1%}"
        print(f"{counts} {each_ms:>18.2f} {ratio:>12.2f}")
    print(json.dumps({way: vars(found) for way, found in best.items()}))


if __name__ == "__main__":
    main()
