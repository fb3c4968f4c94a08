"""`make bench-trainer`: finished samples into a trainer's tensors, beside two peers, in one run.

    sqlite           write ──► file           ──► subscribe     every sample on disk
    kafka            write ──► a real broker  ──► subscribe     every sample acknowledged by it
    transfer_queue   write ──► ZeroMQ         ──► tensors       in memory
    atropos          write ──► HTTP, JSON     ──► tensors       in memory

    reading    everything stands there before the reader begins
    both       writer and reader begin together

The same samples of 16,000 tokens on every side, and the same tensors at the end: batches of 64,
whose every number and some of whose whole contents are checked. Writer, store and reader are
processes of their own on the same cores. Rounds go through all sides in turn and the best round of
each counts: neighbours only slow.

Invariant: a figure counts only if the reader was given every sample once, token by token.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.peers import environment
from benchmarks.trainer_child import Worker, tree_cpu_s
from benchmarks.trainer_load import Seen, expected
from streams.log.kafka_topics import create_topics
from streams.log.opening import open_log
from streams.settings import Settings
from tests.kafka.broker import Broker

TOKENS = 16_000
SAMPLES = {"sqlite": 1024, "kafka": 1024, "transfer_queue": 1024, "atropos": 64}
"""Of a round; so many that a round takes seconds."""
PEERS = {
    "transfer_queue": "benchmarks.trainer_queue",
    "atropos": "benchmarks.trainer_atropos",
}
OURS = "benchmarks.trainer_ours"
WAYS = ("reading", "both")
AIM = 1_000
ROUND_S_MAX = 120.0
PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How one side's processes are started."""

    name: str
    module: str
    place: Callable[[], str]
    """Where the samples of the next round go: a log of its own, or the peer's one store."""
    python: Path | None = None
    store_pid: int | None = None

    def worker(self, role: str, place: str, words: Sequence[str]) -> Worker:
        """A writer or a reader."""
        return Worker(self.module, role, place, *words, python=self.python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One side, one way."""

    per_s: float
    cpu_ms: float
    """A sample, over all processes that took part."""
    reader_cpu_ms: float
    peak_mb: float
    """What the reader grew by at most."""


def run(side: Side, way: str, count: int, tokens: int, *, torch: bool = True) -> Round:
    """One round; every sample was read, or this raises."""
    place, words = side.place(), [str(count), str(tokens)]
    more = [] if torch else ["--arrays"]
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(side.worker("write", place, words))
        if way == "reading":
            writer.ready()
            writer.begin()
            wrote = writer.done(ROUND_S_MAX)
        reader = stack.enter_context(side.worker("read", place, [*words, *more]))
        if way == "both":
            writer.ready()
        reader.ready()
        stored = tree_cpu_s(side.store_pid) if side.store_pid else 0.0
        began_s = reader.begin()
        if way == "both":
            writer.begin()
        told = reader.done(ROUND_S_MAX)
        if way == "both":
            wrote = writer.done(ROUND_S_MAX)
        stored = tree_cpu_s(side.store_pid) - stored if side.store_pid else 0.0
    check(side.name, Seen(told["numbers"], told["digests"]), count, tokens)
    spent_s = told["cpu_s"] + stored + (wrote["cpu_s"] if way == "both" else 0.0)
    return Round(
        per_s=count / (told["ended_s"] - began_s),
        cpu_ms=spent_s / count * 1000,
        reader_cpu_ms=told["cpu_s"] / count * 1000,
        peak_mb=told["peak_mb"],
    )


def check(name: str, seen: Seen, count: int, tokens: int) -> None:
    """Raise if a sample is missing, came twice, or has another token, mask or logprob."""
    wanted = expected(count, tokens)
    if sorted(seen.numbers) != wanted.numbers:
        lacking = len(set(wanted.numbers) - set(seen.numbers))
        raise RuntimeError(f"{name}: {len(seen.numbers)} samples, {lacking} of {count} lacking")
    digests = {int(number): digest for number, digest in seen.digests.items()}
    wrong = [number for number, digest in wanted.digests.items() if digests.get(number) != digest]
    if wrong:
        raise RuntimeError(f"{name}: sample {wrong[0]} has other contents than were sent")


def sqlite(folder: Path) -> Side:
    """A new file every round."""

    def place() -> str:
        settings = Settings(log=str(folder / f"{uuid.uuid4().hex}.db"))
        asyncio.run(_made(settings))
        return _saved(folder, settings)

    return Side(name="sqlite", module=OURS, place=place)


async def _made(settings: Settings) -> None:
    """The file is there before anybody reads it."""
    async with open_log(settings, create=True) as log:
        await log.commit("none", settings.samples_topic, {0: 0})


def kafka(folder: Path, broker: Broker) -> Side:
    """New topics every round."""

    def place() -> str:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            topic_prefix=f"bench-{uuid.uuid4().hex[:8]}",
            partitions=PARTITIONS,
        )
        asyncio.run(create_topics(settings))
        return _saved(folder, settings)

    return Side(name="kafka", module=OURS, place=place, store_pid=broker.pid)


@contextlib.contextmanager
def peer(folder: Path, name: str, module: str) -> Iterator[Side]:
    """One store for all rounds, with the package's defaults: what was read is gone from it."""
    python = environment(name)
    with Worker(module, "store", str(folder), python=python) as store:
        address = store.ready()["address"]
        yield Side(
            name=name, module=module, place=lambda: address, python=python, store_pid=store.pid
        )


def _saved(folder: Path, settings: Settings) -> str:
    path = folder / "settings.json"
    path.write_bytes(msgspec.json.encode(settings))
    return str(path)


Found = dict[str, dict[str, Round]]


def measure(
    samples: dict[str, int],
    tokens: int,
    *,
    rounds: int = 1,
    broker: Broker | None,
    torch: bool = True,
) -> Found:
    """The best round of each, by way and side."""
    found: Found = {way: {} for way in WAYS}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [sqlite(folder)] if "sqlite" in samples else []
        sides += [kafka(folder, broker)] if broker is not None else []
        for name, module in PEERS.items():
            if name in samples:
                sides.append(stack.enter_context(peer(folder, name, module)))
        for _ in range(rounds):
            for way in WAYS:
                for side in sides:
                    one = run(side, way, samples[side.name], tokens, torch=torch)
                    before = found[way].get(side.name)
                    found[way][side.name] = one if before is None else best(before, one)
    return found


def best(one: Round, other: Round) -> Round:
    """The better of each figure; for memory that is the larger, which is what has to be there."""
    return Round(
        per_s=max(one.per_s, other.per_s),
        cpu_ms=min(one.cpu_ms, other.cpu_ms),
        reader_cpu_ms=min(one.reader_cpu_ms, other.reader_cpu_ms),
        peak_mb=max(one.peak_mb, other.peak_mb),
    )


def show(found: Found, samples: dict[str, int], tokens: int) -> None:
    """Print the tables."""
    for way, rows in found.items():
        print(f"\n{way:<16} samples/s   CPU ms a sample   of it reader   reader's memory", end="")
        peers = [name for name in PEERS if name in rows]
        print("".join(f"   x {name}" for name in peers))
        for name, row in rows.items():
            ratios = "".join(
                f"   {row.per_s / rows[one].per_s:>{len(one) + 2}.2f}" for one in peers
            )
            print(
                f"  {name:<14} {row.per_s:>9,.0f} {row.cpu_ms:>17.2f} {row.reader_cpu_ms:>14.2f}"
                f" {row.peak_mb:>13,.0f} MB{ratios}"
            )
    sizes = {name: samples[name] * tokens * 9 / 1e6 for name in found[WAYS[0]]}
    told = ", ".join(f"{name} {size:,.0f}" for name, size in sizes.items())
    print(f"\naim {AIM:,} samples/s, above both; tensors of a round in MB: {told}")


def main() -> None:
    """Print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SAMPLES, action="append", help="only this one")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    samples = {name: SAMPLES[name] for name in given.side or SAMPLES}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        broker = None
        if "kafka" in samples:
            broker = stack.enter_context(Broker(Path(folder), heap_mb=1024))
        found = measure(samples, TOKENS, rounds=given.rounds, broker=broker)
    show(found, samples, TOKENS)
    print(json.dumps(msgspec.to_builtins(found)))


if __name__ == "__main__":
    main()
