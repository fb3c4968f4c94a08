"""The sink of best effort with the real trackio, through the command as a user runs it."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.traces import Trace
from streams.settings import Settings
from tests.cli.command import COMMAND, Ran, turnstream
from tests.sinks import trackio_place
from tests.sinks.scenes import ROLES, branched_session, made, put, tool_session, trace_named
from tests.sinks.trackio_place import SECONDS_MAX, listed, rows, shown, variables
from tests.trainer.publishing import in_file

CAP = 8
STEPS = (3, 4)


def sink(settings: Settings, folder: Path, *options: str, **others: str) -> Ran:
    command = ("sink", "trackio", "--log", settings.log, "--once", *options)
    return turnstream(*command, given=b"", **variables(folder, **others))


def rejected(session_id: str, **opened: Any) -> Trace:
    *turns, ended = tool_session(session_id, reward=None, **opened)
    ended |= {"end_status": "rejected"}
    (trace,), _ = made(*turns, ended)
    return trace


def a_step(step: int) -> list[Trace]:
    """50 to train with, some of them rejected, 3 branches of another, and some to evaluate."""
    common: dict[str, Any] = {"run_id": "r1", "group_id": "g", "step": step}
    train = [trace_named(f"t{step}-{n}", rollout_index=n, **common) for n in range(50)]
    (several,), _ = made(*branched_session(f"b{step}", 3, **common))
    evals = [trace_named(f"e{step}-{n}", split="eval", **common) for n in range(5)]
    return [*train, several, *evals, rejected(f"x{step}", rollout_index=50, **common)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path, Path, Ran]:
    """Two steps on a log, the log as it was before, trackio's folder, and what the sink said."""
    folder = tmp_path_factory.mktemp("trackio")
    settings = in_file(folder)
    put(settings, [trace for step in STEPS for trace in a_step(step)])
    before = folder / "before.db"
    shutil.copy(settings.log, before)
    return settings, before, folder / "tio", sink(settings, folder / "tio", "--traces", str(CAP))


Scene = tuple[Settings, Path, Path, Ran]


def test_trackios_own_command_lists_as_many_traces_as_the_cap_allows(scene: Scene) -> None:
    _, _, folder, ran = scene
    assert ran.code == 0, ran.err
    traces = listed(folder)
    found = [(trace["key"], trace["step"]) for trace in traces]
    wanted = {("train/traces", step): CAP for step in STEPS} | {
        ("eval/traces", s): 5 for s in STEPS
    }
    assert {place: found.count(place) for place in set(found)} == wanted
    assert {trace["run"] for trace in traces} == {"r1"}
    assert {trace["metadata"]["split"] for trace in traces if trace["key"] == "eval/traces"} == {
        "eval"
    }
    assert not [trace for trace in traces if trace["metadata"]["session_id"].startswith("x")]
    # 100 and 2 branched sessions of which 16 are there, and 2 rejected.
    assert "rejected 2" in ran.err
    assert f"written {2 * CAP + 10}" in ran.err


def test_a_trace_is_a_conversation_with_tools_and_the_numbers_of_its_sample(scene: Scene) -> None:
    _, _, folder, _ = scene
    trace = next(one for one in listed(folder) if one["metadata"]["session_id"].startswith("t"))
    assert [message["role"] for message in trace["messages"]] == ROLES
    assert trace["messages"][2]["tool_calls"][0]["function"]["name"] == "bash"
    assert trace["messages"][3]["tool_call_id"] == "c1"
    metadata = trace["metadata"]
    _, (sample,) = made(*tool_session("s"))
    assert metadata["prompt_len"] == sample.prompt_len
    assert metadata["response_len"] == sample.tokens.size - sample.prompt_len
    assert metadata["rollout_index"] == int(metadata["session_id"].split("-")[1])
    assert (metadata["status"], metadata["duration_ms"]) == ("completed", 1_500)
    kinds = "SELECT DISTINCT json_type(metadata, '$.reward'), json_type(metadata, '$.session_id')"
    assert rows(folder, f"{kinds} FROM traces") == [("real", "text")]


def test_whatever_the_order_the_same_sessions_are_chosen(scene: Scene, tmp_path: Path) -> None:
    _, _, folder, _ = scene
    settings = in_file(tmp_path)
    traces = [trace for step in STEPS for trace in a_step(step)]
    random.Random(7).shuffle(traces)
    put(settings, traces)
    # Trackio is on a machine without any network here.
    run = subprocess.run(
        [
            *("unshare", "--net", COMMAND, "sink", "trackio", "--once"),
            *("--log", settings.log, "--traces", str(CAP)),
        ],
        env={"PATH": "/usr/bin:/bin", **variables(tmp_path / "tio")},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert shown(tmp_path / "tio") == shown(folder)
    assert len(shown(folder)) == 2 * CAP + 10


def test_what_was_shown_before_a_crash_is_not_shown_again(scene: Scene) -> None:
    settings, before, folder, _ = scene
    once = shown(folder)
    assert len(set(once)) == len(once)
    # The log as it was before the sink committed anything.
    again = sink(Settings(log=str(before)), folder, "--traces", str(CAP))
    assert again.code == 0
    assert shown(folder) == once
    metrics = rows(folder, "SELECT count(*) FROM metrics")
    put(settings, [rejected(f"y{n}", run_id="r1", step=5) for n in range(3)])
    assert "rejected 3" in sink(settings, folder, "--traces", str(CAP)).err
    assert rows(folder, "SELECT count(*) FROM metrics") == metrics


@pytest.mark.parametrize("most", ["0", "-3"])
def test_without_a_cap_nothing_is_shown(most: str, tmp_path: Path) -> None:
    settings = in_file(tmp_path)
    put(settings, [trace_named("a", step=1)])
    ran = sink(settings, tmp_path / "tio", TURNSTREAM_SINK_TRACKIO_TRACES=most)
    assert ran.code == 0
    assert "none are wanted: give --traces" in ran.err
    assert shown(tmp_path / "tio") == []


def test_values_that_trackio_cannot_hold_cost_nobody_anything(tmp_path: Path) -> None:
    bad = {
        "an integer of 128 bits": b'{"role":"user","content":%d}' % (2**128),
        "a number beyond floats": b'{"role":"user","content":1e999}',
        "no message": b"7",
        "no role": b'{"content":null}',
    }
    settings = in_file(tmp_path)
    traces = [trace_named("good", step=1)]
    for number, message in enumerate(bad.values()):
        plain = trace_named(f"bad{number}", step=1)
        messages = msgspec.Raw(b"[" + message + b"]")
        traces.append(msgspec.structs.replace(plain, messages=messages, parents=[-1], turns=[]))
    put(settings, traces)
    ran = sink(settings, tmp_path / "tio", "--traces", "20")
    assert ran.code == 0, ran.err
    assert len(shown(tmp_path / "tio")) == 1 + len(bad)
    assert "Infinity" not in str(rows(tmp_path / "tio", "SELECT messages FROM traces"))


# --- a process that runs on ----------------------------------------------------------------------


@contextmanager
def started(settings: Settings, folder: Path, **others: str) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [COMMAND, "sink", "trackio", "--log", settings.log, "--traces", "100"],
        env={"PATH": "/usr/bin:/bin", **variables(folder, **others)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(true: Any, process: "subprocess.Popen[str]") -> None:
    end_s = time.monotonic() + SECONDS_MAX
    while not true():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end_s
        time.sleep(0.1)


def ended(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    return said


def test_a_kill_costs_at_most_what_was_on_its_way_and_sigterm_nothing(tmp_path: Path) -> None:
    settings, folder = in_file(tmp_path), tmp_path / "tio"
    put(settings, [trace_named(f"a{n}", step=1) for n in range(4)])
    with started(settings, folder, TURNSTREAM_SINK_TRACKIO_HOLD_S="0.2") as process:
        until(lambda: len(shown(folder)) == 4, process)
    put(settings, [trace_named(f"b{n}", step=2) for n in range(4)])
    # Held for an hour: what makes it write is the signal.
    with started(settings, folder, TURNSTREAM_SINK_TRACKIO_HOLD_S="3600") as process:
        until(lambda: process.stderr is not None and "health" in process.stderr.readline(), process)
        put(settings, [trace_named("last", step=2)])
        assert "written 5" in ended(process)
    assert [name for _, name, _ in shown(folder)] == [
        *("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "last")
    ]


def test_a_trackio_that_fails_does_not_hold_the_reading_up(tmp_path: Path) -> None:
    settings, folder = in_file(tmp_path), tmp_path / "tio"
    (folder / f"{trackio_place.PROJECT}.db").mkdir(parents=True)  # no database can be there
    put(settings, [trace_named(f"a{n}", step=n) for n in range(40)])
    ran = sink(settings, folder, "--traces", "100")
    assert ran.code == 0, ran.err
    assert "written" not in ran.err.splitlines()[-1]
    # All of it was read and is behind us: a second one finds nothing.
    again = sink(settings, folder, "--traces", "100")
    assert again.err.splitlines()[-1] == "turnstream sink trackio: none"


# --- without it ----------------------------------------------------------------------------------


def test_without_trackio_the_sink_says_what_to_install(tmp_path: Path) -> None:
    settings = in_file(tmp_path)
    put(settings, [trace_named("a")])
    ran = turnstream("sink", "trackio", "--log", settings.log, "--traces", "1", "--once")
    assert ran.code == 1
    assert ran.err == (
        "turnstream: trackio is not installed: `pip install 'turnstream[trackio]'`, "
        "or leave the sink out\n"
    )


def test_a_sink_that_is_not_asked_for_imports_nothing(tmp_path: Path) -> None:
    settings = in_file(tmp_path)
    put(settings, [trace_named("a")])
    ran = turnstream(
        *("sink", "jsonl", "--once", "--log", settings.log, "--to", tmp_path / "out"),
        given=b"",
        **variables(tmp_path / "tio", PYTHONVERBOSE="1"),
    )
    assert ran.code == 0
    assert "import 'streams.sinks.jsonl'" in ran.err
    assert "import 'trackio'" not in ran.err
    assert not (tmp_path / "tio").exists()
