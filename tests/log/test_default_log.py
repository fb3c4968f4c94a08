"""Which log is meant where none is named: in this order, and never Kafka unasked."""

from pathlib import Path

import pytest

from streams.adapters.environments import Recorder
from streams.errors import BadSetting
from streams.log.default_log import find_log
from streams.trainer import subscribe
from tests.cli.command import ended, lines, turn, turnstream


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TURNSTREAM_LOG", "TURNSTREAM_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_an_empty_folder_is_refused_with_both_ways() -> None:
    for opened in (find_log, Recorder, lambda: subscribe(batch_groups=1)):
        with pytest.raises(BadSetting, match=r"turnstream up.*TURNSTREAM_LOG.*host:port of Kafka"):
            opened()


def test_a_file_of_up_is_found_after_every_variable(empty_folder: Path) -> None:
    (empty_folder / "turnstream-data").mkdir()
    (empty_folder / "turnstream-data/turnstream.db").touch()
    assert find_log({}).log == "turnstream-data/turnstream.db"
    assert Recorder().settings.log == "turnstream-data/turnstream.db"
    (empty_folder / "turnstream.db").touch()
    assert find_log({}).log == "turnstream.db"
    assert find_log({"TURNSTREAM_BOOTSTRAP_SERVERS": "b:1"}).log == "kafka"
    both = {"TURNSTREAM_LOG": "own.db", "TURNSTREAM_BOOTSTRAP_SERVERS": "b:1"}
    assert find_log(both).log == "own.db"


@pytest.mark.parametrize("words", [("tail",), ("inspect", "s"), ("sink", "jsonl", "--once")])
def test_a_command_without_a_log_ends_at_once_with_one_line(words: tuple[str, ...]) -> None:
    ran = turnstream(*words)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: no log is named")
    assert ran.err.count("\n") == 1


def test_rules_for_a_file_need_no_log(empty_folder: Path) -> None:
    (empty_folder / "events.jsonl").write_text("")
    for words in (("replay", "--profile", "slime"), ("export", "samples")):
        assert turnstream(*words, "events.jsonl").code == 0


def test_the_doctor_takes_the_log_of_up_and_never_asks_kafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for port in ("GATEWAY", "METRICS"):
        monkeypatch.setenv(f"TURNSTREAM_{port}_PORT", "0")
    bare = turnstream("doctor")
    assert bare.code == 0
    assert "note  log" in bare.out
    assert "TURNSTREAM_LOG" in bare.out
    assert "127.0.0.1:9092" not in bare.out
    events = lines(turn(), ended())
    assert turnstream("replay", "-", "--log", "turnstream.db", given=events).code == 0
    found = turnstream("doctor")
    assert "turnstream.db is a log of this version" in found.out
