"""`turnstream inspect` on an embedded log, and what can be wrong with the log or its name."""

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.core.state import ClosedSession, Rules
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.processor.lookup import look_up
from streams.settings import Settings
from tests.cli.command import COMMAND, ended, lines, turn, turnstream
from tests.cli.inspect_claims import CLAIMS, Claim
from tests.cli.stores import Embedded, example


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


def remove_old(settings: Settings, *, samples_too: bool, needed: int) -> None:
    """Let three hours pass for retention; `needed`: the oldest event the processor still needs."""

    async def trim() -> None:
        hours = 1 if samples_too else 24
        short = dataclasses.replace(
            settings, retention_turns_hours=1, retention_samples_hours=hours
        )
        async with SqliteLog(Path(settings.log), short) as log:
            later_ms = int(time.time() * 1000) + 3 * 3_600_000
            assert await log.trim(later_ms, {settings.turns_topic: needed})

    asyncio.run(trim())


def test_events_that_retention_took_are_named_and_what_was_sent_is_shown(store: Embedded) -> None:
    late = {"type": "reward", "session_id": "gone", "reward_id": "r", "reward": 0.5}
    store.feed(*example("gone"), late)
    # The late reward is a row of the table, so its event stays.
    remove_old(store.settings, samples_too=False, needed=7)
    ran = store.run("inspect", "gone")
    assert (ran.code, ran.err) == (0, "")
    told = "events are missing: retention has removed what stood before turnstream.turns/0/7\n"
    assert told in ran.out
    assert "turns and tree cannot be drawn; this is what was sent\n" in ran.out
    assert "sample 1 of 1  " in ran.out
    assert "total  trained 33 of 54  reward 1" in ran.out
    assert "late rewards\n  at 7  session 0.5\n    sample 1 of 1: reward 0.5" in ran.out
    token = store.run("inspect", "gone", "--token", "3")
    assert (token.code, token.out) == (1, "")
    assert "its events are no longer in the log" in token.err


def test_a_session_of_which_nothing_is_left_but_its_marker_says_so(store: Embedded) -> None:
    store.feed(*example("gone"))
    remove_old(store.settings, samples_too=True, needed=99)
    ran = store.run("inspect", "gone")
    assert ran.code == 1
    assert ran.out.startswith("session gone  closed\n")
    assert "its outcome is no longer among the samples either\n" in ran.out


def test_a_session_the_table_has_forgotten_is_found_by_searching(store: Embedded) -> None:
    forgetful = Embedded(
        dataclasses.replace(
            store.settings, marker_retention_s=0.001, processor_sweep_interval_s=0.01
        ),
        store.folder,
    )
    forgetful.feed(*example("purged"))
    until_s = time.monotonic() + 30
    while (unknown := store.run("inspect", "purged")).code == 0:
        assert time.monotonic() < until_s, "the marker stays"
        forgetful.feed(turn("other"))
    assert "session purged is not known" in unknown.err
    ran = store.run("inspect", "purged", "--search")
    assert ran.code == 0
    assert ran.out.rstrip().endswith(store.drawn_from_file(*example("purged")))


def test_of_a_forgotten_session_without_events_the_samples_are_searched(store: Embedded) -> None:
    forgetful = Embedded(
        dataclasses.replace(
            store.settings, marker_retention_s=0.001, processor_sweep_interval_s=0.01
        ),
        store.folder,
    )
    forgetful.feed(*example("purged"))
    until_s = time.monotonic() + 30
    while store.run("inspect", "purged").code == 0:
        assert time.monotonic() < until_s, "the marker stays"
        forgetful.feed(turn("other"))
    remove_old(store.settings, samples_too=False, needed=99)
    ran = store.run("inspect", "purged", "--search")
    assert ran.code == 0
    assert ran.out.startswith("session purged  completed  policy seed\n")
    assert "total  trained 33 of 54  reward 1" in ran.out


def test_what_the_processor_has_not_read_is_counted_and_can_be_searched(store: Embedded) -> None:
    store.feed(turn("read"))
    store.publish(turn("unread"), turn("read", "t2"))
    assert "the processor has 2 events of turnstream.turns/0 still to read" in (
        store.run("inspect", "read").out
    )
    unknown = store.run("inspect", "unread")
    assert unknown.code == 1
    assert "; the processor has 2 events still to read; " in unknown.err
    found = store.run("inspect", "unread", "--search")
    assert found.code == 0
    assert found.out.startswith("session unread  open  policy seed\n")


def test_samples_that_the_processor_made_by_other_rules_are_named(store: Embedded) -> None:
    other = Embedded(dataclasses.replace(store.settings, profile="lossless"), store.folder)
    other.feed(*example("lossless"))
    ran = store.run("inspect", "lossless")
    assert "these samples are not those that were sent; 2 sent to the trainer: " in ran.out
    assert "name them with --profile, or set TURNSTREAM_PROFILE\n" in ran.out
    told = store.run("inspect", "lossless", "--profile", "lossless").out
    assert "sent to the trainer" not in told


def test_an_event_without_a_key_belongs_to_the_session_it_names(store: Embedded) -> None:
    async def publish() -> None:
        async with SqliteLog(Path(store.settings.log), store.settings) as log:
            for event in (turn("bare"), ended("bare")):
                keyed = store.outgoing(event)
                await log.publish(
                    Outgoing(topic=keyed.topic, key=None, value=keyed.value, partition=0)
                )

    asyncio.run(publish())
    store.feed()
    assert "total  trained 2 of 2  reward 1" in store.run("inspect", "bare").out


class ClosedMeanwhile(SqliteLog):
    """A log on which the session closes after its rows were read."""

    def __init__(self, store: Embedded) -> None:
        super().__init__(Path(store.settings.log), store.settings)
        self._store = store

    async def table_entries(self) -> AsyncIterator[tuple[bytes, bytes]]:
        read = [row async for row in super().table_entries()]
        await self._store.feeding((ended("s"),), process=True)
        for row in read:
            yield row


def test_a_session_that_closes_while_it_is_looked_up_is_closed(store: Embedded) -> None:
    store.feed(turn("s"))

    async def look() -> None:
        async with ClosedMeanwhile(store) as log:
            known = await look_up(log, store.settings, Rules(), ["s"])
        assert isinstance(known["s"].state.live("s"), ClosedSession)
        assert known["s"].state.rows == {}

    asyncio.run(look())


def test_an_empty_log_knows_no_session(store: Embedded) -> None:
    store.feed()
    ran = store.run("inspect", "s")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("turnstream: session s is not known: ")


def test_a_log_that_is_not_there_is_named_and_not_made(store: Embedded) -> None:
    ran = store.run("inspect", "s")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert f"there is no log at {store.settings.log}" in line
    assert not Path(store.settings.log).exists()


def test_a_broker_that_is_away_is_one_line_that_names_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:19999")
    monkeypatch.setenv("TURNSTREAM_REQUEST_TIMEOUT_S", "0.5")
    ran = turnstream("inspect", "missing.jsonl")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("turnstream: session missing.jsonl (no file has that name): ")
    assert "no answer from 127.0.0.1:19999 in 0.5 s" in line


def test_a_missing_file_that_no_session_could_be_is_a_usage_error(tmp_path: Path) -> None:
    ran = turnstream("inspect", tmp_path / "missing.jsonl")
    assert ran.code == 2
    assert "missing.jsonl, and no session can have that id" in ran.err


def test_a_log_in_the_place_of_a_file_is_pointed_out(store: Embedded) -> None:
    store.feed(turn("s"))
    ran = turnstream("inspect", store.settings.log)
    assert ran.code == 2
    assert f"turnstream inspect SESSION --log {store.settings.log}" in ran.err


def test_session_is_an_option_for_files_only(store: Embedded) -> None:
    store.feed(turn("s"))
    ran = store.run("inspect", "s", "--session", "s")
    assert ran.code == 2
    assert "--session s is for a file of events, and --log is given" in ran.err


def test_with_a_log_a_file_of_the_same_name_does_not_count(
    store: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.feed(turn("s"))
    (store.folder / "s").write_bytes(lines(turn("in-the-file")))
    monkeypatch.chdir(store.folder)
    assert turnstream("inspect", "s").out.startswith("session in-the-file")
    assert store.run("inspect", "s").out.startswith("session s  open")


def test_a_late_reward_of_a_file_is_told_too(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    late = {"type": "reward", "session_id": "s", "reward_id": "r", "reward": 0.5}
    file.write_bytes(lines(turn(), ended(), late))
    ran = turnstream("inspect", file)
    assert ran.code == 0
    assert ran.out.endswith(
        "session s, late reward\nat 3  session 0.5\n  sample 1 of 1: reward 0.5\n\n"
    )


def test_control_c_ends_a_look_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It is asked and never answers, so the command waits for as long as it may.
        silent.settimeout(30)
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        running = subprocess.Popen(
            [COMMAND, "inspect", "s"],
            env={**os.environ, "TURNSTREAM_BOOTSTRAP_SERVERS": servers},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            asking, _ = silent.accept()
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=30)
            asking.close()
        finally:
            running.kill()
            running.wait(10)
    assert running.returncode == 1
    assert out == b""
    assert err.decode().split() == ["Aborted!"]
