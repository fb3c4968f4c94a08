"""Sinks beside `turnstream up`, by settings alone: what a real SDK's session leaves in each."""

from pathlib import Path

from streams.adapters.client import Turnstream
from tests.cli.command import turnstream
from tests.cli.test_up import agent, client
from tests.cli.up_process import Up, until, up
from tests.sinks.scenes import dumped
from tests.sinks.trackio_place import listed, shown, variables

ROLES = ["user", "assistant", "tool", "assistant"]


def session_by_sdk(running: Up) -> str:
    with Turnstream(running.url, running.control_key).session() as session:
        with client(session.base_url, session.key) as sdk:
            agent(sdk)
        session.reward(1)
    running.closed(session.session_id)
    return session.session_id


def test_both_sinks_have_the_session_when_up_has_ended(tmp_path: Path) -> None:
    wanted = {"TURNSTREAM_SINKS": "jsonl, trackio", "TURNSTREAM_SINK_TRACKIO_TRACES": "4"}
    with up(tmp_path, **variables(tmp_path / "tio"), **wanted) as running:
        name = session_by_sdk(running)
        (sample,) = running.samples(name)
        assert running.running.stop() == 0
    lines = {line["session_id"]: line for line in dumped(running.data / "traces")}
    # The session to try it with was not used: it ended, and left a trace as well.
    assert lines.keys() == {name, running.session_id}
    assert [message["role"] for message in lines[name]["messages"]] == ROLES
    (trace,) = (one for one in listed(tmp_path / "tio") if one["metadata"]["session_id"] == name)
    assert [message["role"] for message in trace["messages"]] == ROLES
    (told,) = lines[name]["samples"]
    assert told["prompt_len"] == trace["metadata"]["prompt_len"] == sample.prompt_len
    assert told["sample_id"] == sample.sample_id


def test_without_trackio_it_says_so_and_everything_else_works(tmp_path: Path) -> None:
    wanted = {"TURNSTREAM_SINKS": "trackio,jsonl", "TURNSTREAM_SINK_JSONL_FILE_S": "0.1"}
    with up(tmp_path, **wanted) as running:
        name = session_by_sdk(running)
        traces = running.data / "traces"

        def said() -> str:
            return running.running.said

        until(lambda: name in [line["session_id"] for line in dumped(traces)], said)
        until(lambda: "sink trackio has ended with 1; everything" in said(), said)
        assert "trackio is not installed: `pip install 'turnstream[trackio]'`" in said()
        assert sinks_of(traces)
        running.running.process.kill()  # it takes its sinks along
        until(lambda: not sinks_of(traces), said)
    assert shown(tmp_path / "tio") == []


def sinks_of(folder: Path) -> list[int]:
    """Processes that hold the folder's lock open."""
    lock = str(folder / ".lock")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue  # it has just ended
        if lock in opened:
            found.append(int(process.name))
    return found


def test_a_sink_that_nobody_knows_is_refused_at_the_start() -> None:
    ran = turnstream("up", TURNSTREAM_SINKS="jsonl,tensorboard")
    assert ran.code == 1
    assert ran.err == (
        "turnstream: TURNSTREAM_SINKS=jsonl,tensorboard: give some of jsonl, trackio\n"
    )
