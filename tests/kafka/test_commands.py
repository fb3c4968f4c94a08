"""The commands on a real broker, as a user runs them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.cli import export_claims, replay_claims, tail_claims
from tests.cli.command import Ran, turn, turnstream
from tests.cli.places import Place
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
    assert " ".join(rows[1][:-1]) == f"{bare_settings.turns_topic} 4 1 1 7 days 697 GB"
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


CLAIMS = [*tail_claims.CLAIMS, *replay_claims.CLAIMS, *export_claims.CLAIMS]


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_tail_replay_and_export_on_kafka(
    claim: tail_claims.Claim, settings: Settings, tmp_path: Path
) -> None:
    place = Place(settings, tmp_path)
    assert asyncio.run(create_topics(place.other())).problems == []
    claim(place)


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
