"""`turnstream export` on an embedded log, to files, and where there is no log."""

import asyncio
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from streams.cli.export import parquet as export_parquet
from streams.cli.export.parquet import ParquetFile
from streams.cli.progress import Progress
from streams.cli.snapshot import read_snapshot, snapshot_of
from streams.log.interface import Entry, Outgoing
from streams.log.opening import open_log
from streams.settings import Settings
from tests.cli.command import ended, lines, turn, turnstream
from tests.cli.export_claims import CLAIMS, Claim, late
from tests.cli.places import Json, Place, interrupted, name_in_environment, on_a_terminal, running
from tests.cli.replay_claims import forked
from tests.harness import linearized

METADATA = {"big": 12345678901234567890123, "name": "ü"}
EXAMPLE = Path(__file__).parents[2] / "examples" / "session.jsonl"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    settings = Settings(log=str(tmp_path / "log.db"))
    name_in_environment(settings, monkeypatch)
    return Place(settings, tmp_path)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_on_an_embedded_log(claim: Claim, place: Place) -> None:
    claim(place)


def test_the_dump_of_one_partition_holds_its_purges(place: Place) -> None:
    place.feed(turn("s"), ended("s"), {"type": "purge", "floor": 2})
    ran = turnstream("export", "events")
    assert [record["type"] for record in ran.records] == ["turn", "session_ended", "purge"]
    assert [record["position"] for record in ran.records] == [0, 1, 2]


def test_the_dump_of_the_shipped_session_gives_its_samples(place: Place) -> None:
    assert turnstream("replay", EXAMPLE).code == 0
    dumped = turnstream("export", "events").out.encode()
    assert turnstream("linearize", given=dumped) == turnstream("linearize", EXAMPLE)


def test_a_file_appears_whole(place: Place) -> None:
    place.process(*forked("s1"))
    path = place.folder / "samples.jsonl"
    path.write_text("the export before\n")
    ran = turnstream("export", "samples", "--to", path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"wrote 1 samples of 1 sessions to {path}\n"
    assert path.read_text() == turnstream("export", "samples").out
    assert [p.name for p in place.folder.glob(".*")] == []


def test_an_export_that_fails_leaves_the_one_before(place: Place) -> None:
    path = place.folder / "samples.jsonl"
    path.write_text("the export before\n")
    ran = turnstream("export", "samples", "--to", path)
    assert ran.code == 1
    assert f"there is no log at {place.settings.log}" in ran.err
    assert path.read_text() == "the export before\n"
    assert [p.name for p in place.folder.glob(".*")] == []


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_an_export_does_not_overwrite_its_log(place: Place, ending: str) -> None:
    place.process(*forked("s1"))
    log = Path(place.settings.log)
    before = log.read_bytes()
    for kind in ("samples", "events"):
        ran = turnstream("export", kind, "--to", f"{log}{ending}")
        assert (ran.code, ran.out) == (2, "")
        assert f"--to {log}{ending} is the log itself" in ran.err
    assert log.read_bytes() == before
    link = place.folder / "link.jsonl"
    link.hardlink_to(log)
    assert turnstream("export", "samples", "--to", link).code == 2


@contextlib.contextmanager
def begun(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """An export to `samples.jsonl` that waits for more events."""
    path = place.folder / "samples.jsonl"
    with running("export", "samples", "-", "--to", path, stdin=subprocess.PIPE) as export:
        assert export.stdin is not None
        export.stdin.write(lines(turn(), ended()))
        export.stdin.flush()
        until_s = time.monotonic() + 30
        while not any(place.folder.glob(".*.part")):
            assert time.monotonic() < until_s, "it does not begin"
            time.sleep(0.02)
        yield export


def test_a_killed_export_leaves_the_one_before(place: Place) -> None:
    path = place.folder / "samples.jsonl"
    path.write_text("the export before\n")
    with begun(place) as export:
        assert interrupted(export, signal.SIGKILL).code == -signal.SIGKILL
    assert path.read_text() == "the export before\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_part_of_a_file(place: Place, number: int) -> None:
    with begun(place) as export:
        ran = interrupted(export, number)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.split() == ["Aborted!"]
    assert [p.name for p in place.folder.iterdir()] == []


def test_an_export_ends_where_the_log_ended_when_it_began(place: Place) -> None:
    settings = place.settings
    topic = settings.turns_topic
    place.publish(*(Outgoing(topic=topic, key=b"k", value=b"%d" % n) for n in range(2500)))
    seen: list[bytes | None] = []

    async def read() -> None:
        async with open_log(settings) as log:
            snapshot = await snapshot_of(log, topic)

            async def take(entries: Sequence[Entry]) -> None:
                seen.extend(entry.value for entry in entries)
                for _ in entries:
                    await log.send(Outgoing(topic=topic, key=b"k", value=b"more"))

            with Progress("test", "entries", snapshot.entries) as progress:
                await read_snapshot(log, snapshot, settings, progress, take)

    asyncio.run(read())
    assert seen == [b"%d" % n for n in range(2500)]
    assert sum(place.ends(topic).values()) == 5000


def rich_events() -> list[Json]:
    """Sessions that fill every column."""
    channel = {"dtype": "uint8", "shape": [2, 2], "data": "01020304"}
    opened = {
        "type": "session_opened",
        "session_id": "s1",
        "run_id": "run",
        "run_epoch": 1,
        "group_id": "g",
        "group_size": 2,
        "rollout_index": 0,
        "attempt": 1,
        "step": 3,
        "metadata": METADATA,
    }
    first = turn(
        "s1",
        "t1",
        weight_versions=[[7, 1], [8, 1]],
        channels={"extra": channel},
        sampling={"temperature": 0.5},
        reward=0.125,
    )
    end = ended("s1", reward={"score": 0.5, "why": "good"}, final_message={"role": "assistant"})
    failed = ended("s3", end_status="error", reason={"stage": "engine", "retryable": True})
    return [
        *(opened, first, end),
        *(turn("s2", logprobs=None), ended("s2"), late("s2", 0.25)),
        *(turn("s3"), failed),
        *forked("s4"),
    ]


def spelled(record: Json) -> Json:
    """A sample's JSON form as its Parquet row has it."""
    mask = [False] * len(record["tokens"])
    for start, end in record["loss_mask"]:
        mask[start:end] = [True] * (end - start)
    runs = record.get("logprobs_missing")
    versions = record.get("weight_versions")
    return {
        **{name: record.get(name) for name in ("session_id", "run_id", "run_epoch", "group_id")},
        **{name: record.get(name) for name in ("group_size", "rollout_index", "attempt", "step")},
        **{name: record[name] for name in ("sample_id", "index", "count", "tokens", "prompt_len")},
        **{name: record[name] for name in ("logprobs", "reward", "session_reward", "revision")},
        **{name: record.get(name, 0) for name in ("generated", "trained", "tool_turns")},
        "loss_mask": mask,
        "logprobs_missing": runs and [{"start": start, "end": end} for start, end in runs],
        "weight_versions": versions
        and [{"version": v, "start": start, "end": end} for v, start, end in versions],
        "weight_version_min": versions and min(v for v, _, _ in versions),
        "weight_version_max": versions and max(v for v, _, _ in versions),
        "policy": record["policy"],
        "end_status": record["end_status"],
        "truncated": record.get("truncated", False),
    }


def rows(path: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = (
        importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    )
    return table


def test_parquet_holds_what_the_json_lines_hold(place: Place) -> None:
    place.process(*rich_events())
    path = place.folder / "samples.parquet"
    ran = turnstream("export", "samples", "--to", path)
    assert (ran.code, ran.err) == (0, "")
    records = turnstream("export", "samples").records
    found = rows(path)
    assert len(records) == 3
    assert [
        {k: row[k] for k in spelled(record)} for row, record in zip(found, records, strict=True)
    ] == [spelled(record) for record in records]
    first = next(row for row in found if row["session_id"] == "s1")
    assert first["metadata"] == json.dumps(METADATA), "as it was spelled"
    assert json.loads(first["reward_payload"]) == {"score": 0.5, "why": "good"}
    assert json.loads(first["turn_rewards"]) == {"t1": 0.125}
    (span,) = first["turns"]
    assert json.loads(span["sampling"]) == {"temperature": 0.5}
    (channel,) = first["channels"]
    assert (channel["name"], channel["shape"]) == ("extra", [4, 2])
    assert channel["data"] == bytes([0, 0, 0, 0, 1, 2, 3, 4])
    assert next(row for row in found if row["session_id"] == "s2")["metadata"] is None


def test_sessions_as_parquet_hold_their_ledger(place: Place) -> None:
    place.process(*rich_events())
    path = place.folder / "sessions.parquet"
    assert turnstream("export", "sessions", "--to", path).code == 0
    records = turnstream("export", "sessions").records
    found = rows(path)
    for row, record in zip(found, records, strict=True):
        for name in ("session_id", "end_status", "policy", "turns", "generated", "trained"):
            assert row[name] == record[name]
        assert row["sample_ids"] == record["sample_ids"]
        assert row["reward"] == record.get("reward")
        assert [dict(turned["untrained"]) for turned in row["ledger"]] == [
            turned.get("untrained", {}) for turned in record["ledger"]
        ]
    failed = next(row for row in found if row["session_id"] == "s3")
    assert json.loads(failed["reason"]) == {"stage": "engine", "retryable": True}
    assert failed["withheld"] == "status"


def test_an_empty_parquet_file_has_its_columns(place: Place) -> None:
    assert place.ends(place.settings.samples_topic)
    path = place.folder / "samples.parquet"
    assert turnstream("export", "samples", "--to", path).code == 0
    schema = importlib.import_module("pyarrow.parquet").read_schema(path)
    assert {"sample_id", "tokens", "loss_mask", "logprobs", "metadata"} <= set(schema.names)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parquet, "ROWS_MAX", 2)
    given = linearized([event for n in range(5) for event in (turn(f"s{n}"), ended(f"s{n}"))])
    path = tmp_path / "few.parquet"
    with path.open("wb") as stream:
        file = ParquetFile(stream, sessions=False)
        for outcome, sample in zip(given.closed, given.samples, strict=True):
            records = [codec.from_json(json.dumps(r).encode()) for r in (outcome, sample)]
            file.write(records[0], [records[1]])  # type: ignore[arg-type, list-item]
        file.close()
    metadata = importlib.import_module("pyarrow.parquet").read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2, 2, 1]


def test_without_pyarrow_it_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.process(turn("s"), ended("s"))
    (place.folder / "pyarrow.py").write_text("raise ImportError('there is none')\n")
    monkeypatch.setenv("PYTHONPATH", str(place.folder))
    ran = turnstream("export", "samples", "--to", place.folder / "x.parquet")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert "pip install turnstream[export]" in line
    assert not (place.folder / "x.parquet").exists()
    assert turnstream("export", "samples").code == 0


def test_a_terminal_shows_a_bar(place: Place) -> None:
    place.process(*forked("s1"))
    code, out, shown = on_a_terminal("export", "samples")
    assert (code, out.count(b"\n")) == (0, 1)
    for label in ("later rewards", "export"):
        assert re.search(rf"{label}  \[#+\] +100% +2 of 2 records, [\d.,]+/s", shown)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument"),
        (["traces"], "'traces' is not one of 'samples', 'sessions', 'events'"),
        (["samples", "--format", "parquet"], "Parquet goes to a file: name it with --to"),
        (["samples", "missing.jsonl"], "No such file or directory"),
        (["samples", EXAMPLE, "--since", "2026-01-01"], "a FILE has no times"),
        (["samples", "--since", "yesterday"], "give a time as 2026-01-31"),
        (["samples", "--split", "test"], "'test' is not one of 'train', 'eval'"),
        (["events", EXAMPLE], "events are a dump of all turns of the log"),
        (["events", "--split", "train"], "events are a dump of all turns of the log"),
        (["events", "--run", "r"], "events are a dump of all turns of the log"),
        (["events", "--to", "x.parquet"], "JSON lines only"),
        (["samples", "--to", "."], "is a directory"),
        (["samples", EXAMPLE, "--to", os.devnull], "no regular file"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str | Path], told: str) -> None:
    ran = turnstream("export", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ran = turnstream("export", "samples", EXAMPLE, "--to", tmp_path / "no" / "x.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"Error: {tmp_path}/no/x.jsonl: No such file or directory\n"


def test_help_names_every_option() -> None:
    ran = turnstream("export", "--help")
    assert ran.code == 0
    for option in ("--log", "--name", "--to", "--format", "--split", "--run", "--since"):
        assert option in ran.out


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), b"{", {"type": "trace"}, ended()))
    ran = turnstream("export", "samples", file)
    assert ran.code == 1
    first, second, _ = ran.err.splitlines()
    assert first.startswith("line 2: undecodable")
    assert second.startswith("line 3: ")
    assert len(ran.records) == 1


def test_a_broker_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    for kind in ("samples", "sessions", "events"):
        ran = turnstream("export", kind)
        assert (ran.code, ran.out) == (1, "")
        (line,) = ran.err.splitlines()
        assert "no answer from 127.0.0.1:19999 in 0.5 s" in line
