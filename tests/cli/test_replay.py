"""`turnstream replay` on an embedded log, from files and pipes, and where there is no log."""

import asyncio
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from schemas import codec
from schemas.events import Event
from streams.cli.progress import Progress
from streams.cli.replay.copying import Copying
from streams.cli.replay.source import Arrived
from streams.log.opening import open_log
from streams.settings import Settings
from tests.cli.command import ended, lines, turn, turnstream
from tests.cli.places import (
    Json,
    Place,
    by_session,
    interrupted,
    linearized_file,
    name_in_environment,
    on_a_terminal,
    running,
)
from tests.cli.replay_claims import CLAIMS, Claim, forked, numbers

EXAMPLE = Path(__file__).parents[2] / "examples" / "session.jsonl"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    settings = Settings(log=str(tmp_path / "log.db"))
    name_in_environment(settings, monkeypatch)
    return Place(settings, tmp_path)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_on_an_embedded_log(claim: Claim, place: Place) -> None:
    claim(place)


def test_one_file_is_copied_into_another(place: Place) -> None:
    events = forked("s1")
    place.feed(*events)
    target = place.folder / "copy.db"
    ran = turnstream("replay", "--from", place.settings.log, "--log", target)
    assert (ran.code, ran.err) == (0, "")
    copy = Place(Settings(log=str(target)), place.folder)
    assert copy.decoded("turnstream.turns") == place.decoded("turnstream.turns")


def test_a_log_under_another_of_its_names_is_still_itself(place: Place) -> None:
    place.feed(turn("s"))
    (place.folder / "link.db").symlink_to(place.settings.log)
    ran = turnstream("replay", "--from", place.folder / "link.db")
    assert ran.code == 2
    assert "is the very topic that would be written to" in ran.err


def test_the_topic_that_is_read_is_no_place_for_samples(place: Place) -> None:
    read = "turnstream.samples"
    ran = turnstream("replay", "--from-prefix", read, "--profile", "slime", "--name", "turns")
    assert ran.code == 2
    assert "--name turns: turnstream.samples.turns is the topic that is read" in ran.err


def test_the_shipped_session_under_another_policy_needs_no_log(tmp_path: Path) -> None:
    ran = turnstream("replay", EXAMPLE, "--profile", "lossless")
    assert ran.code == 0
    assert numbers(ran) == {
        "sessions": ["1", "1", "0"],
        "samples": ["1", "2", "+1"],
        "tokens forwarded": ["124", "222", "+98"],
        "sampled tokens": ["54", "54", "0"],
        "trained": ["33", "51", "+18"],
        "untrained: auxiliary": ["3", "3", "0"],
        "untrained: realigned": ["18", "0", "-18"],
        "reward on samples": ["1", "2", "+1"],
        "events refused": ["0", "0", "0"],
    }
    assert "1 session differs" in ran.out


@pytest.mark.parametrize("options", [["--profile", "slime"], ["--fork-threshold", "3"]])
def test_a_file_gives_what_linearize_gives(tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / "events.jsonl"
    late = {"type": "reward", "session_id": "a", "reward_id": "r", "reward": 0.25}
    file.write_bytes(lines(*forked("a"), turn("b"), late, turn("c"), ended("c")))
    for at_end in (["--open", "close"], ["--open", "skip"]):
        ran = turnstream("replay", file, *options, *at_end, "--stdout")
        assert ran.code == 0
        assert ran.records == linearized_file(file, *options, *at_end)
    assert turnstream("replay", file, *options, "--stdout").records == (
        linearized_file(file, *options)
    )


def test_a_bad_line_is_named_under_another_policy_too(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(turn(), b"{", ended()))
    ran = turnstream("replay", file, "--profile", "lossless")
    assert ran.code == 1
    assert ran.err.startswith("line 2: undecodable: ")
    assert numbers(ran)["events refused"] == ["1", "1", "0"]
    assert numbers(ran)["trained"] == ["2", "2", "0"]


def test_only_the_ten_sessions_that_differ_most_are_told(place: Place) -> None:
    place.feed(*(event for n in range(12) for event in forked(f"s{n:02}")))
    ran = turnstream("replay", "--profile", "lossless")
    head, *rows = ran.out.split("\n\n")[1].splitlines()
    assert head.startswith("12 sessions differ; the 10 that differ most  samples")
    assert [row.split()[0] for row in rows] == [f"s{n:02}" for n in range(10)]


def test_an_event_over_the_limit_is_refused_with_its_size(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_MESSAGE_BYTES_MAX", "1000")
    monkeypatch.setenv("TURNSTREAM_PRODUCER_BATCH_BYTES", "1000")
    ran = turnstream("replay", place.file(turn("s", "t1", raw_prompt="x" * 2000), turn("s", "t2")))
    assert ran.code == 1
    assert ran.err.startswith("line 1: oversize: session s, turn t1: 2")
    assert ran.err.endswith(" bytes, the limit is 1000\n")
    assert [e["turn_id"] for e in place.decoded("turnstream.turns")] == ["t2"]


def test_a_pipe_is_published_as_it_comes(place: Place) -> None:
    assert place.ends("turnstream.turns")
    with running("replay", "-", stdin=subprocess.PIPE) as replay:
        assert replay.stdin is not None
        replay.stdin.write(lines(turn("s", "t1")))
        replay.stdin.flush()
        asyncio.run(until_there(place, 1))
        assert replay.poll() is None, "it waits for more"
        out, err = replay.communicate(lines(turn("s", "t2")), timeout=60)
    assert (replay.returncode, err) == (0, b"")
    assert out.startswith(b"published 2 events of 1 session to ")
    assert len(by_session(place.decoded("turnstream.turns"))["s"]) == 2


def test_only_what_is_durable_counts_as_published(place: Place) -> None:
    async def sent() -> list[str]:
        async with open_log(place.settings, create=True) as log:
            copying = Copying(place.settings, log)
            arrived = Arrived(event_of(turn("s")), 0, 0, None, 1, b"")
            with Progress("replay", "events", 1) as progress:
                await copying.take(arrived, progress)
            before = copying.summary()
            await copying.finish()
            return [before, copying.summary()]

    before, after = asyncio.run(sent())
    assert before.startswith("published 0 events of 0 sessions to ")
    assert after.startswith("published 1 event of 1 session to ")


def event_of(event: Json) -> Event:
    record = codec.from_json(json.dumps(event).encode())
    assert isinstance(record, Event)
    return record


def test_a_bad_line_steers_no_terminal(place: Place) -> None:
    bad = turn("s\x1b]0;boo\x07", "t2", logprobs=[0.5])
    ran = turnstream("replay", place.file(bad))
    assert ran.code == 1
    assert "\\u{1b}]0;boo" in ran.err
    assert ran.err.replace("\n", "").isprintable()


def test_a_log_with_two_names_is_still_itself(place: Place) -> None:
    place.feed(turn("s"))
    (place.folder / "second.db").hardlink_to(place.settings.log)
    ran = turnstream("replay", "--from", place.folder / "second.db")
    assert ran.code == 2
    assert "is the very topic that would be written to" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_control_c_ends_the_wait_for_a_silent_pipe(place: Place, number: int) -> None:
    assert place.ends("turnstream.turns")
    with running("replay", "-", stdin=subprocess.PIPE) as replay:
        assert replay.stdin is not None
        replay.stdin.write(lines(turn("s", "t1")))
        replay.stdin.flush()
        asyncio.run(until_there(place, 1))
        ran = interrupted(replay, number)
    assert ran.code == 1
    assert ran.out.startswith("published ")
    assert ran.err.split() == ["Aborted!"]


async def until_there(place: Place, count: int) -> None:
    """Wait until so many events are durable."""
    async with asyncio.timeout(30):
        while True:
            ends = await asyncio.to_thread(place.ends, "turnstream.turns")
            if sum(ends.values()) >= count:
                return
            await asyncio.sleep(0.05)


def test_a_terminal_shows_a_bar_and_nothing_else_does(place: Place) -> None:
    place.feed(*forked("s1"))
    code, out, shown = on_a_terminal("replay", "--profile", "lossless", "--stdout")
    assert code == 0
    assert out.count(b"\n") == 3
    assert re.search(r"replay  \[#{24}\] +100% +3 of 3 events, [\d.,]+/s", shown)
    file = place.file(turn("s2"), b"{")
    code, out, shown = on_a_terminal("replay", file)
    assert (code, out.count(b"\n")) == (1, 1)
    assert re.search(r"replay  \[#{24}\] +100% +2 events, [\d.,]+/s", shown)
    assert re.search(r"\r\x1b\[Kline 2: undecodable", shown)
    assert "#" not in turnstream("replay", file).err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give FILE, or the log to read with --from"),
        ([EXAMPLE, "--from", "kafka"], "give FILE or --from, not both"),
        ([EXAMPLE, "--stdout"], "--stdout, --name and --open go with another policy"),
        ([EXAMPLE, "--name", "x"], "--stdout, --name and --open go with another policy"),
        ([EXAMPLE, "--open", "skip"], "--stdout, --name and --open go with another policy"),
        (
            [EXAMPLE, "--profile", "seed", "--stdout", "--name", "x"],
            "give --stdout or --name, not both",
        ),
        ([EXAMPLE, "--profile", "none"], "no profile 'none'"),
        ([EXAMPLE, "--profile", "seed", "--name", "a b"], "1 to 40 letters, digits, dashes"),
        ([EXAMPLE, "--default-reward", "nan"], "give a finite number"),
        (["missing.jsonl"], "No such file or directory"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str | Path], told: str) -> None:
    ran = turnstream("replay", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_help_names_every_option() -> None:
    ran = turnstream("replay", "--help")
    assert ran.code == 0
    options = "--from --from-prefix --log --profile --fork-threshold --default-reward --name"
    for option in [*options.split(), "--stdout", "--open"]:
        assert option in ran.out


def test_a_log_that_is_not_there_is_named_and_not_made(place: Place) -> None:
    missing = place.folder / "missing.db"
    for arguments in (["--from", str(missing)], ["--profile", "slime", "--log", str(missing)]):
        ran = turnstream("replay", *arguments)
        assert ran.code == 1
        (line,) = ran.err.splitlines()
        assert f"there is no log at {missing}" in line
        assert not missing.exists()


def test_a_wrong_prefix_is_one_line(place: Place) -> None:
    ran = turnstream("replay", "--from-prefix", "a b")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: TURNSTREAM_TOPIC_PREFIX=a b: letters, digits")


def test_a_broker_that_is_away_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_LOG", "kafka")
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    monkeypatch.setenv("TURNSTREAM_PUBLISH_TIMEOUT_S", "0.5")
    for arguments in (
        [EXAMPLE],
        ["--from", "kafka", "--log", place.settings.log],
        ["--profile", "slime"],
        [EXAMPLE, "--profile", "slime", "--name", "x"],
    ):
        ran = turnstream("replay", *arguments)
        assert ran.code == 1
        (line,) = ran.err.splitlines()
        assert line.startswith("turnstream: ")
        assert "no answer from 127.0.0.1:19999 in 0.5 s" in line


def test_a_reader_that_goes_away_is_no_traceback(place: Place) -> None:
    place.feed(*(event for n in range(2000) for event in forked(f"s{n}")))
    with running("replay", "--profile", "lossless", "--stdout") as replay:
        assert replay.stdout is not None
        assert os.read(replay.stdout.fileno(), 10)
        replay.stdout.close()
        assert replay.stderr is not None
        assert b"Traceback" not in replay.stderr.read()
        assert replay.wait(60) == 1
        replay.stdout = None
