"""`make bench-embedded`: the embedded log beside bare SQLite, and replay, in one run.

- Durable publishes of 4 KB events, by 1 and by 64 callers at a time, beside a bare loop that
  inserts the same bytes with the same journal and fsync, one or 64 in a transaction.
- `turnstream replay` over a log of 10,000 sessions: events read, worked on under two policies and
  compared, on one core.
- What each profile makes of one realistic session, from the replay's own table: samples, tokens
  a trainer has to forward, sampled tokens that train, and tokens to forward when what samples
  begin with stands once (`linearize --packed`), beside the least there can be.
"""

import argparse
import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processor_load import turn_values
from benchmarks.published import events_of
from benchmarks.workloads import Call, Sizes, appending, compacted
from schemas import codec
from schemas.packed import Packed
from streams.core.policy import PROFILES
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.sqlite import SqliteLog
from streams.settings import Settings

EVENT_BYTES = 4_000
EVENTS = {1: 1_000, 64: 20_000}
"""Callers at a time, and how many events."""
AIM_AT_64 = 2_000
AIM_REPLAY = 5_000
TURNS = 5
SMALL = Sizes(first_prompt=200, output=50, tool=50)
COMMAND = "from streams.cli.main import main; main()"
DRIFTS = {"no drift": None, "drift 1 turn in 4": 4, "drift every turn": 1}
SETTINGS = Settings()


async def publishes_per_s(path: Path, callers: int, values: list[tuple[bytes, bytes]]) -> float:
    """Publishes a second, each acknowledged before its caller goes on."""
    left = iter(values)

    async def caller(log: SqliteLog) -> None:
        for key, value in left:
            await log.publish(Outgoing(topic=SETTINGS.turns_topic, key=key, value=value))

    async with SqliteLog(path, SETTINGS) as log:
        await log.publish(Outgoing(topic=SETTINGS.turns_topic, key=b"warm", value=b""))
        began_s = time.monotonic()
        await asyncio.gather(*(caller(log) for _ in range(callers)))
        return len(values) / (time.monotonic() - began_s)


def inserts_per_s(path: Path, in_one: int, values: list[tuple[bytes, bytes]]) -> float:
    """The limit: the same bytes by the plainest loop that is as durable."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE entries (place INTEGER PRIMARY KEY, key BLOB, value BLOB)")
    began_s = time.monotonic()
    for start in range(0, len(values), in_one):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO entries (key, value) VALUES (?, ?)", values[start : start + in_one]
        )
        connection.execute("COMMIT")
    seconds = time.monotonic() - began_s
    connection.close()
    return len(values) / seconds


async def write_sessions(path: Path, sessions: int) -> int:
    """A log of small sessions; how many turns it holds."""
    calls = appending(TURNS, 1, SMALL)
    async with SqliteLog(path, SETTINGS) as log:
        for number in range(sessions):
            session_id = f"s{number}"
            for event in events_of(calls, session_id):
                value, key = codec.to_msgpack(event), event_key(session_id)
                sent = await log.send(Outgoing(topic=SETTINGS.turns_topic, key=key, value=value))
        await sent
    return sessions * TURNS


def replayed(words: list[str]) -> tuple[str, float]:
    """What `turnstream replay` prints, and the CPU seconds it takes."""
    began = os.times()
    command = [sys.executable, "-c", COMMAND, "replay", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    ended = os.times()
    spent = ended.children_user + ended.children_system
    return done.stdout, spent - began.children_user - began.children_system


def cell(table: str, row: str) -> int:
    """The number of a row under the policy that was asked for."""
    found = re.search(rf"^{row}\s+[\d,.]+\s+([\d,.]+)", table, re.MULTILINE)
    assert found is not None, table
    return int(found[1].replace(",", ""))


def profile_cells(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Samples, tokens forwarded, trained tokens and tokens packed, by profile and drift."""
    cells: dict[str, dict[str, list[int]]] = {profile: {} for profile in PROFILES}
    for drift, every in DRIFTS.items():
        path = folder / "session.jsonl"
        events = events_of(compacted(7, every), "one")
        path.write_bytes(b"".join(codec.to_json(event) + b"\n" for event in events))
        for profile in PROFILES:
            table, _ = replayed([str(path), "--profile", profile])
            rows = ("samples", "tokens forwarded", "trained")
            cells[profile][drift] = [cell(table, row) for row in rows]
            cells[profile][drift].append(packed_tokens(path, profile))
    return cells


def packed_tokens(path: Path, profile: str) -> int:
    """Tokens forwarded when what samples share stands once."""
    command = [sys.executable, "-c", COMMAND, "linearize", "--packed", "--profile", profile]
    done = subprocess.run([*command, str(path)], capture_output=True, check=True, timeout=900)
    records = [codec.from_json(line) for line in done.stdout.splitlines()]
    (tree,) = [record for record in records if isinstance(record, Packed)]
    return tree.tokens


def trie_bound(calls: list[Call]) -> int:
    """Distinct prefixes of everything that was prompted and sampled."""
    trie: dict[int, Any] = {}
    size = 0
    for call in calls:
        node = trie
        for token in (*call.prompt_T.tolist(), *call.output_T.tolist()):
            size += token not in node
            node = node.setdefault(token, {})
    return size


def main() -> None:
    """Print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="of the replay")
    sessions = parser.parse_args().sessions
    report: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("durable publishes of 4 KB     log /s   bare SQLite /s   ratio   aim")
        for callers, events in EVENTS.items():
            values = turn_values(events, EVENT_BYTES)
            bare = inserts_per_s(folder / f"bare-{callers}.db", callers, values)
            ours = asyncio.run(publishes_per_s(folder / f"log-{callers}.db", callers, values))
            aim = f"{AIM_AT_64:,}/s" if callers > 1 else "-"
            ratio = f"{ours / bare:>8.2f}   {aim}"
            print(f"{callers:>3} at a time {ours:>22,.0f} {bare:>16,.0f} {ratio}")
            report[f"publishes_{callers}"] = {"log": ours, "bare": bare}
        path = folder / "sessions.db"
        turns = asyncio.run(write_sessions(path, sessions))
        table, spent_s = replayed(["--log", str(path), "--profile", "lossless"])
        assert cell(table, "sessions") == sessions, table
        speed = turns / spent_s
        told = f"{speed:,.0f} turns per CPU second   aim {AIM_REPLAY:,}"
        print(f"\nreplay of {sessions:,} sessions, {turns:,} turns: {told}")
        cells = profile_cells(folder)
    print("\nsamples · tokens forwarded · sampled tokens that train (of 8,000) · tokens packed")
    print(f"{'':<10}" + "".join(f"{drift:>34}" for drift in DRIFTS))
    for profile, row in cells.items():
        shown = [" · ".join(f"{n:,}" for n in row[drift]) for drift in DRIFTS]
        print(f"{profile:<10}" + "".join(f"{text:>34}" for text in shown))
    bounds = {drift: trie_bound(compacted(7, every)) for drift, every in DRIFTS.items()}
    print(f"{'trie bound':<10}" + "".join(f"{bound:>34,}" for bound in bounds.values()))
    report |= {"replay_turns_per_cpu_s": speed, "profiles": cells, "trie_bound": bounds}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
