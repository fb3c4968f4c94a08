"""The commands on a real broker, as a user runs them."""

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.events import SessionExpired, Turn
from streams.log.interface import Outgoing
from streams.log.kafka import KafkaLog
from streams.log.keys import sample_key
from streams.settings import Settings
from tests.cli.command import COMMAND, Ran, ended, turn, turnstream
from tests.harness import linearized
from tests.kafka.entries import everything


@pytest.fixture(autouse=True)
def environment(bare_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables a user would set."""
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", bare_settings.bootstrap_servers)
    monkeypatch.setenv("TURNSTREAM_TOPIC_PREFIX", bare_settings.topic_prefix)
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", "4")


def replayed(tmp_path: Path, *lines: dict[str, Any] | str) -> Ran:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return turnstream("replay", file)


def turns_of(settings: Settings) -> list[Any]:
    """Everything in the turns topic, decoded, with its offset."""

    async def read() -> list[Any]:
        async with KafkaLog(settings) as log:
            entries = await everything(log, settings.turns_topic)
        return [(e.position, e.key, codec.from_msgpack(e.value or b"")) for e in entries]

    return asyncio.run(read())


async def publish_samples(settings: Settings, *sessions: str) -> list[dict[str, Any]]:
    """What a processor writes for sessions of one turn; returned in their JSON form."""
    events = [record for s in sessions for record in (turn(s), ended(s, reward=0.5))]
    result = linearized(events)
    records = [
        record
        for s in sessions
        for record in (*result.samples, *result.closed)
        if record["session_id"] == s
    ]
    async with KafkaLog(settings) as log:
        for record in records:
            value = codec.to_msgpack(codec.from_json(json.dumps(record).encode()))
            key = sample_key(record["session_id"], None)
            await log.publish(Outgoing(topic=settings.samples_topic, key=key, value=value))
    return records


def test_topics_are_created_once_and_then_found_right(bare_settings: Settings) -> None:
    missing = turnstream("topics", "--check")
    assert missing.code == 1
    assert missing.err.count("missing; create it with `turnstream topics`") == 7

    created = turnstream("topics")
    assert (created.code, created.err) == (0, "")
    rows = [line.split() for line in created.out.splitlines()]
    assert [row[0] for row in rows if row[-1] == "created"] == [
        bare_settings.turns_topic,
        bare_settings.samples_topic,
        bare_settings.traces_topic,
        bare_settings.dead_letters_topic,
        bare_settings.trained_topic,
        bare_settings.control_topic,
        bare_settings.changelog_topic,
    ]
    # 50 turns a second of 20,480 bytes for a week, one copy.
    assert " ".join(rows[1][:-1]) == f"{bare_settings.turns_topic} 4 1 1 7 days 619 GB"
    assert "1 broker; disk is an estimate at 50 turns/s of 20480 bytes" in created.out

    again = turnstream("topics")
    assert (again.code, again.err) == (0, "")
    assert "created" not in again.out
    assert turnstream("topics", "--check").code == 0


def test_a_partition_count_is_never_changed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", "8")
    refused = turnstream("topics")
    assert refused.code == 1
    assert f"wrong: {settings.turns_topic}: 4 partitions, wanted 8; a count is" in refused.err
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", "4")
    assert turnstream("topics", "--check").code == 0


def test_a_retention_that_could_cut_a_session_creates_nothing(
    bare_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_RETENTION_TURNS_HOURS", "24")
    refused = turnstream("topics")
    assert refused.code == 1
    assert "TURNSTREAM_RETENTION_TURNS_HOURS=24 is shorter than hard limit" in refused.err
    monkeypatch.delenv("TURNSTREAM_RETENTION_TURNS_HOURS")
    assert turnstream("topics", "--check").err.count("missing") == 7


def test_a_file_of_events_is_published_in_order_under_its_sessions(
    settings: Settings, tmp_path: Path
) -> None:
    events = [turn(f"s{n % 3}", f"t{n}") for n in range(30)]
    ran = replayed(tmp_path, *events)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"published 30 events of 3 sessions to {settings.turns_topic}, refused 0\n"
    found = turns_of(settings)
    for session in ("s0", "s1", "s2"):
        mine = [event.turn_id for _, key, event in found if key == session.encode()]
        assert mine == [e["turn_id"] for e in events if e["session_id"] == session]


def test_a_bad_line_is_named_and_the_rest_is_published(settings: Settings, tmp_path: Path) -> None:
    bad = turn("s", "t2", logprobs=[0.5])
    ran = replayed(tmp_path, turn("s", "t1"), bad, "no json", turn("s", "t3"))
    assert ran.code == 1
    assert ran.out.startswith("published 2 events of 1 sessions")
    assert ran.out.endswith("refused 2\n")
    first, second = ran.err.splitlines()
    assert first == ("line 2: length_mismatch: session s, turn t2: 1 logprobs for 2 output_ids")
    assert second.startswith("line 3: undecodable: ")
    assert [event.turn_id for _, _, event in turns_of(settings)] == ["t1", "t3"]


def test_an_event_over_the_limit_is_refused_with_its_size(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_MESSAGE_BYTES_MAX", "1000")
    monkeypatch.setenv("TURNSTREAM_PRODUCER_BATCH_BYTES", "1000")
    ran = replayed(tmp_path, turn("s", "t1", raw_prompt="x" * 2000), turn("s", "t2"))
    assert ran.code == 1
    assert ran.err.startswith("line 1: oversize: session s, turn t1: 2")
    assert ran.err.endswith(" bytes, the limit is 1000\n")
    assert [event.turn_id for _, _, event in turns_of(settings)] == ["t2"]


def test_what_names_a_position_is_rewritten_to_the_new_log(
    settings: Settings, tmp_path: Path
) -> None:
    async def occupy() -> None:
        async with KafkaLog(settings) as log:
            for partition in range(4):
                place = Outgoing(
                    topic=settings.turns_topic, key=b"x", value=b"", partition=partition
                )
                await log.publish(place)

    asyncio.run(occupy())
    expired = {"type": "session_expired", "session_id": "s", "cause": "idle"}
    ran = replayed(
        tmp_path,
        turn("s", "t1", prev=3, position=700),
        expired | {"last_offset": 500, "position": 701},
        {"type": "purge", "floor": 9, "position": 702},
        turn("s", "t2", prev=700, position=703),
        expired | {"last_offset": 703, "position": 704},
    )
    assert ran.code == 0
    assert ran.out.endswith("refused 0, left out 1 purge\n")

    async def read() -> list[Any]:
        async with KafkaLog(settings) as log:
            entries = await everything(log, settings.turns_topic)
        return [(e.position.offset, codec.from_msgpack(e.value)) for e in entries if e.value]

    found = asyncio.run(read())
    assert [event.prev for _, event in found if isinstance(event, Turn)] == [None, None]
    newest = next(offset for offset, event in found if getattr(event, "turn_id", None) == "t2")
    expiries = [event.last_offset for _, event in found if isinstance(event, SessionExpired)]
    assert expiries == [-1, newest]
    assert newest == 3


def test_large_channels_of_a_file_go_to_the_blobs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_BLOB_URL", str(tmp_path / "blobs"))
    channel = {"dtype": "uint8", "shape": [2, 40_000], "data": "07" * 80_000}
    assert replayed(tmp_path, turn("s", "t1", channels={"big": channel})).code == 0
    ((_, _, event),) = turns_of(settings)
    kept = event.channels["big"]
    assert kept.data is None
    assert (tmp_path / "blobs" / kept.blob[:2] / kept.blob).read_bytes() == b"\7" * 80_000


def test_tail_shows_what_the_trainer_will_read(settings: Settings) -> None:
    records = asyncio.run(publish_samples(settings, "s1"))
    ran = turnstream("tail", "--from-beginning", "--max", "2")
    assert (ran.code, ran.err) == (0, "")
    sample_id = records[0]["sample_id"][:8]
    assert ran.out == (
        f"sample   s1  1/1  4 tokens, 2 trained  reward 0.5  {sample_id}\n"
        "closed   s1  completed  1 turns, trained 2 of 2  reward 0.5  1 samples\n"
    )
    whole = turnstream("tail", "--from-beginning", "--max", "2", "--json")
    assert whole.records == records


def test_tail_shows_an_unreadable_record_and_goes_on(settings: Settings) -> None:
    async def spoil() -> None:
        async with KafkaLog(settings) as log:
            key = sample_key("s1", None)
            bad = Outgoing(topic=settings.samples_topic, key=key, value=b"\xc1")
            await log.publish(bad)

    asyncio.run(spoil())
    asyncio.run(publish_samples(settings, "s1"))
    ran = turnstream("tail", "--from-beginning", "--max", "2")
    first, second = ran.out.splitlines()
    assert first.startswith(f"unreadable  {settings.samples_topic}/")
    assert second.startswith("sample   s1")


def test_tail_follows_only_what_is_new_until_it_is_stopped(settings: Settings) -> None:
    asyncio.run(publish_samples(settings, "old"))
    tail = subprocess.Popen([COMMAND, "tail"], stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        assert tail.stdout is not None
        line = b""
        deadline_s = time.monotonic() + 30
        while not line:
            # It starts at the end that it finds, so the first ones may come too early for it.
            assert time.monotonic() < deadline_s
            asyncio.run(publish_samples(settings, "new"))
            os.set_blocking(tail.stdout.fileno(), False)
            line = tail.stdout.readline() or b""
        assert b" new " in line
        tail.send_signal(signal.SIGTERM)
        assert tail.wait(10) == 0
        os.set_blocking(tail.stdout.fileno(), True)
        assert b" old " not in tail.stdout.read()
    finally:
        tail.kill()
        tail.wait(10)
        if tail.stdout is not None:
            tail.stdout.close()


def test_a_broker_that_is_away_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    monkeypatch.setenv("TURNSTREAM_PUBLISH_TIMEOUT_S", "0.5")
    for ran in (turnstream("topics"), replayed(tmp_path, turn())):
        assert ran.code == 1
        (line,) = ran.err.splitlines()
        assert line.startswith("turnstream: ")
        assert "no answer from 127.0.0.1:19999 in 0.5 s" in line


def test_a_wrong_setting_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_PARTITIONS", "some")
    ran = turnstream("topics")
    assert (ran.code, ran.err) == (
        1,
        "turnstream: TURNSTREAM_PARTITIONS=some: give a whole number\n",
    )
