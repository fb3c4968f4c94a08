"""`turnstream tail` on an embedded log, on a terminal, and where there is no log."""

import re
import socket
from pathlib import Path

import pytest

from streams.settings import Settings
from tests.cli.command import ended, turn, turnstream
from tests.cli.places import Place, interrupted, name_in_environment, on_a_terminal, running
from tests.cli.tail_claims import CLAIMS, Claim, first_line


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    settings = Settings(log=str(tmp_path / "log.db"))
    name_in_environment(settings, monkeypatch)
    return Place(settings, tmp_path)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.__name__ for claim in CLAIMS])
def test_on_an_embedded_log(claim: Claim, place: Place) -> None:
    claim(place)


def test_the_log_may_be_named_on_the_command_line(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.process(turn("s1"), ended("s1"))
    monkeypatch.delenv("TURNSTREAM_LOG")
    named = ("tail", "--log", place.settings.log, "--from-beginning", "--max", "1")
    assert turnstream(*named).out.startswith("sample   s1")


def test_a_terminal_shows_how_many_and_how_fast(place: Place) -> None:
    place.process(turn("s1"), ended("s1"))
    code, out, shown = on_a_terminal("tail", "--from-beginning", until="records 2")
    assert code == 0
    assert out.count(b"\n") == 2
    assert re.search(r"\r\x1b\[Krecords 2, [\d.]+/s", shown)
    assert shown.endswith("\r\x1b[K"), "the line is taken away at the end"
    assert "Traceback" not in shown


def test_a_status_line_tells_what_is_still_behind(place: Place) -> None:
    place.process(turn("s1"), ended("s1"))
    code, _, shown = on_a_terminal("tail", "--from-beginning", until="0 behind")
    assert code == 0
    assert re.search(r"records 2, [\d.]+/s, 0 behind", shown)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--max", "0"], "'--max'"),
        (["--name", "a/b"], "1 to 40 letters, digits, dashes or underscores"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_wrong_options_are_usage_errors(options: list[str], told: str) -> None:
    ran = turnstream("tail", *options)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_help_names_every_option() -> None:
    ran = turnstream("tail", "--help")
    assert ran.code == 0
    for option in ("--log", "--name", "--json", "--from-beginning", "--max"):
        assert option in ran.out


def test_a_log_that_is_not_there_is_named_and_not_made(place: Place) -> None:
    ran = turnstream("tail")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert f"there is no log at {place.settings.log}" in line
    assert not Path(place.settings.log).exists()


def test_a_file_that_is_no_log_is_named(place: Place) -> None:
    Path(place.settings.log).write_text("no log\n" * 1000)
    ran = turnstream("tail")
    assert (ran.code, ran.out) == (1, "")
    assert f"{place.settings.log} is no SQLite file" in ran.err


def test_a_log_that_is_removed_ends_it_with_one_line(place: Place) -> None:
    place.process(turn("s1"), ended("s1"))
    with running("tail") as tail:
        first_line(tail, place)
        Path(place.settings.log).unlink()
        _, err = tail.communicate(timeout=30)
    assert tail.returncode == 1
    (line,) = err.decode().splitlines()
    assert line.startswith("turnstream: read turnstream.samples: ")


def test_it_ends_when_its_reader_has_gone_though_nothing_comes(place: Place) -> None:
    place.process(turn("s1"), ended("s1"))
    with running("tail") as tail:
        first_line(tail, place)
        assert tail.stdout is not None
        tail.stdout.close()
        assert tail.wait(30) == 1
        assert tail.stderr is not None
        assert tail.stderr.read() == b""
        tail.stdout = None  # there is nothing to collect from it


def test_an_empty_file_stays_empty(place: Place) -> None:
    Path(place.settings.log).touch()
    ran = turnstream("tail", "--from-beginning", "--max", "1")
    assert (ran.code, ran.out) == (1, "")
    assert f"{place.settings.log} holds no log yet" in ran.err
    assert Path(place.settings.log).stat().st_size == 0


def test_a_broker_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    ran = turnstream("tail")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert "no answer from 127.0.0.1:19999 in 0.5 s" in line


def test_control_c_ends_it_before_the_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        port = silent.getsockname()[1]
        monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", f"127.0.0.1:{port}")
        with running("tail") as tail:
            asking, _ = silent.accept()
            ran = interrupted(tail)
            asking.close()
    assert (ran.code, ran.out, ran.err) == (0, "", "")
