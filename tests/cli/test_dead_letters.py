"""`turnstream dead-letters` on an embedded log, and what can be wrong with it or the question."""

import asyncio
import dataclasses
import time
import typing
from pathlib import Path

import pytest

from schemas import codec
from schemas.dead_letters import Code, DeadLetter
from schemas.record import Octets
from streams.cli.dead_letters.letters import ADVICE, payload_line, read_position
from streams.log.interface import Outgoing, Position
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.cli.command import ended, turn, turnstream
from tests.cli.letter_claims import CLAIMS, Claim, delta, listed
from tests.cli.stores import Embedded


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    folder = tmp_path_factory.mktemp("log")
    return Embedded(Settings(log=str(folder / "log.db")), folder)


@pytest.fixture
def store(tmp_path: Path) -> Embedded:
    return Embedded(Settings(log=str(tmp_path / "log.db")), tmp_path)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_on_an_embedded_log(claim: Claim, shared: Embedded) -> None:
    claim(shared)


def write(store: Embedded, *values: bytes) -> None:
    """Put entries into the dead-letters topic, as a processor or somebody else would."""

    async def publish() -> None:
        async with SqliteLog(Path(store.settings.log), store.settings) as log:
            for value in values:
                topic = store.settings.dead_letters_topic
                await log.publish(Outgoing(topic=topic, key=b"k", value=value))

    asyncio.run(publish())


def letter(offset: int, **fields: typing.Any) -> bytes:
    whole: dict[str, typing.Any] = {"code": "oversize", "detail": "d", "turn_id": "t1"}
    whole |= {"topic": "turnstream.turns", "session_id": "s"} | fields
    return codec.to_msgpack(DeadLetter(partition=0, offset=offset, **whole))


def test_every_code_has_one_sentence_of_advice() -> None:
    assert set(ADVICE) == set(typing.get_args(Code))
    for text in ADVICE.values():
        assert text.endswith(".")
        assert text.count(". ") == 0


def test_an_empty_log_has_no_letters(store: Embedded) -> None:
    store.feed()
    ran = store.run("dead-letters", "list")
    assert (ran.code, ran.out, ran.err) == (0, f"no dead letters on {store.settings.log}\n", "")


def test_a_log_that_is_not_there_is_named_and_not_made(store: Embedded) -> None:
    for command in (["list"], ["show", "turnstream.turns/0/1"], ["replay", "--code", "too_old"]):
        ran = store.run("dead-letters", *command)
        assert (ran.code, ran.out) == (1, "")
        (line,) = ran.err.splitlines()
        assert f"there is no log at {store.settings.log}" in line
    assert not Path(store.settings.log).exists()


def test_a_broker_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    ran = turnstream("dead-letters", "list")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert "no answer from 127.0.0.1:19999 in 0.5 s" in line


def test_a_letter_that_was_written_twice_is_told_once(store: Embedded) -> None:
    write(store, letter(3), letter(3), letter(3, code="core_failure"))
    assert [row[1] for row in listed(store, "s")] == ["oversize", "core_failure"]
    shown = store.run("dead-letters", "show", "turnstream.turns/0/3").out
    assert shown.count("position  turnstream.turns/0/3\n") == 2


def test_what_is_no_letter_is_counted_and_left_out(store: Embedded) -> None:
    write(store, b"junk", codec.to_msgpack(codec.from_json(b'{"type":"purge","floor":1}')))
    write(store, letter(3))
    ran = store.run("dead-letters", "list")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 2
    assert ran.err == (
        "turnstream: turnstream.dead-letters: 2 entries are no dead letters, left out\n"
    )


def test_a_letter_without_its_bytes_cannot_be_replayed(store: Embedded) -> None:
    write(store, letter(3))
    shown = store.run("dead-letters", "show", "turnstream.turns/0/3").out
    assert "bytes     too large to be kept\n" in shown
    assert shown.endswith("payload: not kept\n")
    ran = store.run("dead-letters", "replay", "turnstream.turns/0/3")
    assert ran.code == 1
    assert "held back: its bytes were too large to be kept; publish it again" in ran.out


def test_a_letter_that_names_no_session_cannot_be_replayed(store: Embedded) -> None:
    write(store, letter(3, session_id=None, payload=Octets(b"junk")))
    ran = store.run("dead-letters", "replay", "--code", "oversize")
    assert ran.code == 1
    assert "held back: it names no session" in ran.out


def test_text_of_a_letter_does_not_steer_a_terminal(store: Embedded) -> None:
    write(store, letter(3, session_id="\x1b[2J", detail="\x1b]0;boo\x07", payload=Octets(b"junk")))
    for command in (["list"], ["show", "turnstream.turns/0/3"], ["replay", "--code", "oversize"]):
        out = store.run("dead-letters", *command).out
        assert out.replace("\n", "").isprintable()
    assert "\\u{1b}[2J" in out


def test_a_long_name_does_not_push_the_columns_away(store: Embedded) -> None:
    write(store, letter(3, session_id="s" * 200, turn_id="t" * 200))
    write(store, letter(4, topic="\x1b[2J"))
    out = store.run("dead-letters", "list").out
    assert max(len(line) for line in out.splitlines()) < 200
    assert out.replace("\n", "").isprintable()
    assert "\\u{1b}[2J/0/4" in out


def test_a_session_that_is_forgotten_is_not_begun_anew_by_accident(store: Embedded) -> None:
    forgetful = Embedded(
        dataclasses.replace(
            store.settings, marker_retention_s=0.001, processor_sweep_interval_s=0.01
        ),
        store.folder,
    )
    forgetful.feed(turn("s"), ended("s"), turn("s", "t2"))
    until_s = time.monotonic() + 30
    while store.run("inspect", "s").code == 0:
        assert time.monotonic() < until_s, "the marker stays"
        forgetful.feed(turn("other"))
    ran = store.run("dead-letters", "replay", "--session", "s")
    assert ran.code == 1
    assert "it is late: its session has closed and is forgotten: it would begin anew" in ran.out
    forced = store.run("dead-letters", "replay", "--session", "s", "--late")
    assert forced.code == 0
    assert "with a second outcome" in forced.out


def test_a_reader_behind_the_log_is_pointed_out(store: Embedded) -> None:
    store.feed(delta("s", "t2", "t1", 4))
    store.publish(turn("s"))
    ran = store.run("dead-letters", "replay", "--session", "s")
    assert ran.code == 1
    assert ran.err == (
        "turnstream: the processor has 1 events of these partitions still to read; "
        "try again when it has caught up\n"
    )


def test_an_event_that_grew_over_the_limit_is_held_back(
    store: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = delta("s", "t2", "t1", 4)
    grown["response_message"] = {"role": "assistant", "content": "x" * 20_000}
    store.feed(grown, turn("s"))
    monkeypatch.setenv("TURNSTREAM_MESSAGE_BYTES_MAX", "10000")  # the session itself fits
    monkeypatch.setenv("TURNSTREAM_PRODUCER_BATCH_BYTES", "10000")
    ran = store.run("dead-letters", "replay", "--session", "s")
    assert ran.code == 1
    assert "held back: oversize: session s, turn t2: " in ran.out
    assert ran.out.endswith("replayed 0, left out 0, held back 1\n")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["show", "somewhere"], "somewhere: give topic/partition/offset"),
        (["show", "t/0/-1"], "t/0/-1: give topic/partition/offset"),
        (["replay"], "name positions, or --session or --code"),
        (["replay", "t/0/1", "--session", "s"], "name positions, or --session or --code"),
        (["list", "--code", "nonsense"], "'nonsense' is not one of"),
    ],
)
def test_a_wrong_question_is_a_usage_error(command: list[str], told: str) -> None:
    ran = turnstream("dead-letters", *command)
    assert ran.code == 2
    assert told in ran.err


@pytest.mark.parametrize("command", ["list", "show", "replay"])
def test_help_is_there_without_a_log(command: str) -> None:
    ran = turnstream("dead-letters", command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--log LOG" in ran.out


def test_a_position_reads_back() -> None:
    place = Position("turnstream.turns", 3, 120)
    assert read_position(str(place)) == place


def test_a_payload_is_read_as_far_as_it_can_be() -> None:
    strange = b"\x83\xa1a\xc4\x02\x01\x02\x01\x92\xc0\xc3\xaaoutput_ids\xc4\x04\x07\0\0\0"
    assert payload_line(strange) == '{"a": "0102", "1": [null, true], "output_ids": [7]}'
    for unreadable in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81"):
        assert payload_line(unreadable) is None
