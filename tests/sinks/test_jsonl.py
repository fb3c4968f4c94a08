"""The exact sink on an embedded log, through the command as a user runs it."""

import json
import signal
import statistics
import time
from pathlib import Path

import msgspec
import pytest

from streams.log.interface import Position
from streams.settings import Settings
from streams.sinks.jsonl import line_of
from tests.cli.command import turnstream
from tests.cli.stores import SECONDS_MAX, Embedded
from tests.harness import Json
from tests.sinks.jsonl_place import names, sink, started, until, until_said
from tests.sinks.scenes import (
    ROLES,
    branched_session,
    dumped,
    files,
    made,
    put,
    strictly,
    summary,
    tool_session,
    trace_named,
)
from tests.trainer.publishing import send


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(log=str(tmp_path / "log.db"), trace_share=1.0)


def rejection(session_id: str) -> Json:
    return {
        "type": "session_ended",
        "session_id": session_id,
        "end_status": "completed",
        "accepted": False,
        "reward_pending": False,
    }


def test_every_session_is_one_line_with_the_numbers_of_its_samples(
    settings: Settings, tmp_path: Path
) -> None:
    store = Embedded(settings, tmp_path)
    store.feed(
        *tool_session("a", group_id="g", rollout_index=0),
        *tool_session("b", group_id="g", rollout_index=1, reward=None)[:-1],
        rejection("b"),
        *tool_session("c", group_id="g", rollout_index=2, split="eval", metadata={"x": "\n兆"}),
    )
    assert sink(settings, tmp_path / "out").code == 0
    a, b, c = dumped(tmp_path / "out")
    assert [line["rollout_index"] for line in (a, b, c)] == [0, 1, 2]
    assert (b["accepted"], b["withheld"]) == (False, "rejected")
    assert [message["role"] for message in a["messages"]] == ROLES
    assert c["metadata"] == {"x": "\n兆"}

    _, (sample,) = made(*tool_session("a"))
    (told,) = a["samples"]
    assert told["prompt_len"] == sample.prompt_len == 3
    assert told["response_len"] == sample.tokens.size - sample.prompt_len == 7
    (path,) = files(tmp_path / "out")
    assert path.read_bytes().count(b"\n") == len(path.read_text("utf-8").splitlines()) == 3


def test_the_summary_has_exact_numbers_of_each_split(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(settings, [])
    assert sink(settings, out).code == 0
    assert (summary(out)["sessions"], summary(out)["splits"]) == (0, {})

    put(settings, [trace_named("a", reward=0.25)])
    assert sink(settings, out).code == 0
    reward = summary(out)["splits"]["train"]["reward"]
    assert [reward[name] for name in ("count", "mean", "std", "min", "max")] == [
        1,
        0.25,
        0,
        0.25,
        0.25,
    ]

    five, _ = made(*branched_session("b", 5))
    put(settings, [*five, trace_named("c", reward=0.75), trace_named("d", split="eval")])
    assert sink(settings, out).code == 0
    found = summary(out)
    assert (found["sessions"], found["files"]) == (4, 2)
    train = found["splits"]["train"]
    assert train["sessions"] == 3
    assert train["end_status"] == {"completed": 3}
    assert train["tool_turns"]["mean"] == pytest.approx(2 / 3)
    assert (train["tool_turns"]["min"], train["tool_turns"]["max"]) == (0, 1)
    assert train["turns"]["max"] == 5
    assert train["reward"]["std"] == pytest.approx(statistics.pstdev([0.25, 1.0, 0.75]))
    # The same session, the same numbers, whichever split it is of.
    assert found["splits"]["eval"]["turns"]["mean"] == 2


def test_a_reward_that_is_no_number_is_none_and_flagged(settings: Settings, tmp_path: Path) -> None:
    store = Embedded(settings, tmp_path)
    events = tool_session("a")
    store.feed(*events[:-1], {**events[-1], "reward": {"score": 0.5, "terms": [1, 2.5]}})
    other = tool_session("b")
    text = json.dumps(other[-1] | {"reward": float("nan")}).encode()
    store.feed(*other[:-1])
    (tmp_path / "nan.jsonl").write_bytes(text + b"\n")
    assert turnstream("replay", tmp_path / "nan.jsonl", "--log", settings.log).code == 0
    store.feed()
    assert sink(settings, tmp_path / "out").code == 0
    a, b = dumped(tmp_path / "out")
    assert (a["reward"], a["reward_payload"]["terms"]) == (0.5, [1, 2.5])
    assert "reward" not in b
    assert b["reward_invalid"] is True
    reward = summary(tmp_path / "out")["splits"]["train"]["reward"]
    assert (reward["count"], reward["mean"], reward["std"]) == (1, 0.5, 0)


def test_a_session_told_of_twice_is_one_line(settings: Settings, tmp_path: Path) -> None:
    out, a, b = tmp_path / "out", trace_named("a"), trace_named("b")
    put(settings, [a, b, a])
    assert sink(settings, out).code == 0
    put(settings, [b])  # a worker that was woken late
    assert sink(settings, out).code == 0
    assert names(out) == ["a", "b"]
    assert (summary(out)["sessions"], summary(out)["repeated"]) == (2, 2)


def test_files_end_by_size_and_a_session_is_in_one_of_them(
    settings: Settings, tmp_path: Path
) -> None:
    put(settings, [trace_named(f"s{number}") for number in range(450)])
    ran = sink(settings, tmp_path / "out", TURNSTREAM_SINK_JSONL_FILE_BYTES="100000")
    assert ran.code == 0
    assert ran.err.endswith("written 450\n")
    assert names(tmp_path / "out") == [f"s{number}" for number in range(450)]
    assert len(files(tmp_path / "out")) == summary(tmp_path / "out")["files"] > 1


def test_on_a_file_every_session_leaves_a_trace_and_a_smaller_share_is_said(
    tmp_path: Path,
) -> None:
    settings, sessions = Settings(log=str(tmp_path / "log.db")), [f"s{n}" for n in range(30)]
    store = Embedded(settings, tmp_path)
    store.feed(*(event for name in sessions for event in tool_session(name)))
    whole = sink(settings, tmp_path / "out")
    assert names(tmp_path / "out") == sessions
    assert "leave a trace" not in whole.err
    some = sink(settings, tmp_path / "out", TURNSTREAM_TRACE_SHARE="0.01")
    assert "0.01 of the sessions leave a trace" in some.err
    assert "TURNSTREAM_TRACE_SHARE=1" in some.err


def test_what_is_the_sessions_stands_once_however_many_samples_it_gives(
    settings: Settings, tmp_path: Path
) -> None:
    store, sizes = Embedded(settings, tmp_path), list[int]()
    for name, artefact in (("small", ""), ("large", "x" * 900_000)):
        store.feed(*branched_session(name, 5, metadata={"artefact": artefact}))
        assert sink(settings, tmp_path / "out").code == 0
        sizes.append(summary(tmp_path / "out")["bytes"])
    grown = sizes[1] - 2 * sizes[0]
    assert 900_000 <= grown < 901_000


def test_whatever_the_texts_hold_a_session_is_one_line() -> None:
    odd = '[{"role": "user",\n "content": "兆\u2028\u2029\x85\\n"}]'
    trace = msgspec.structs.replace(
        trace_named("a"), messages=msgspec.Raw(odd.encode()), parents=[-1], turns=[]
    )
    text = line_of(trace, Position("traces", 3, 17)).decode("utf-8")
    (line,) = text.splitlines()
    found = strictly(line)
    assert found["messages"][0]["content"] == "兆\u2028\u2029\x85\n"
    assert (found["partition"], found["position"]) == (3, 17)
    assert "兆" in line


# --- crashes and disks ---------------------------------------------------------------------------


def test_a_kill_while_files_are_written_leaves_whole_files_and_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    expected = list[str]()
    for life in range(6):
        new = [f"s{life}-{number}" for number in range(300)]
        put(settings, [trace_named(name) for name in new])
        expected += new
        before = len(files(out)) if out.exists() else 0
        process = started(
            settings,
            out,
            TURNSTREAM_SINK_JSONL_FILE_BYTES="20000",
            TURNSTREAM_SINK_JSONL_FILE_S="0.01",
        )
        until(lambda seen=before: out.exists() and len(files(out)) > seen, "no file")
        time.sleep(0.01 * life)
        process.kill()
        process.communicate()
        dumped(out)  # every line parses: whole files only
    assert sink(settings, out).code == 0
    assert names(out) == expected
    found = summary(out)
    assert found["sessions"] == found["splits"]["train"]["sessions"] == len(expected)
    assert found["bytes"] == sum(path.stat().st_size for path in files(out))


def test_a_reader_sees_a_file_whole_or_not_at_all(settings: Settings, tmp_path: Path) -> None:
    out, large = tmp_path / "out", {"artefact": "x" * 900_000}
    put(settings, [trace_named(f"s{number}", metadata=large) for number in range(40)])
    process = started(settings, out, TURNSTREAM_SINK_JSONL_FILE_BYTES="30000000")
    seen: set[tuple[str, int]] = set()
    end_s = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end_s:
        found = {(path.name, path.stat().st_size) for path in files(out)}
        if found and not seen:
            end_s = time.monotonic() + 1.0  # and a second more
        seen |= found
        time.sleep(0.0005)
    process.kill()
    process.communicate()
    assert seen
    assert seen == {(path.name, path.stat().st_size) for path in files(out)}


def test_a_file_that_the_summary_did_not_count_yet_is_counted_at_the_next_start(
    settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    put(settings, [trace_named("a")])
    assert sink(settings, out).code == 0
    before = (out / "summary.json").read_bytes()
    put(settings, [trace_named("b"), trace_named("c")])
    assert sink(settings, out).code == 0
    after = summary(out)
    (out / "summary.json").write_bytes(before)  # as if killed between the two
    assert sink(settings, out).code == 0
    assert names(out) == ["a", "b", "c"]
    assert summary(out) == after


def test_a_place_that_cannot_be_written_to_costs_no_session(
    settings: Settings, tmp_path: Path
) -> None:
    out, aside = tmp_path / "out", tmp_path / "aside"
    put(settings, [trace_named("a")])
    process = started(settings, out, TURNSTREAM_SINK_JSONL_FILE_S="0.05")
    until(lambda: out.exists() and files(out), "no file")
    out.rename(aside)
    out.write_text("a file where the folder was", "utf-8")
    put(settings, [trace_named("b"), trace_named("c")])
    until_said(process, b"still trying")
    out.unlink()
    aside.rename(out)
    until(lambda: names(out) == ["a", "b", "c"], "not written")
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    assert b"can be written to again" in rest


def test_sigterm_writes_what_came_last(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(settings, [trace_named("a")])
    process = started(settings, out)
    until((out / "summary.json").exists, "not started")
    put(settings, [trace_named("b")])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    assert names(out) == ["a", "b"]


# --- refusals ------------------------------------------------------------------------------------


def test_one_folder_has_one_writer_and_one_topic(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(settings, [trace_named("a")])
    process = started(settings, out)
    until((out / "summary.json").exists, "not started")
    second = sink(settings, out)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    assert second.code == 1
    assert "another sink writes there" in second.err
    other = sink(settings, out, TURNSTREAM_TOPIC_PREFIX="other")
    assert other.code == 1
    assert "holds turnstream.traces, not other.traces" in other.err


def test_a_folder_behind_which_the_log_was_replaced_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    put(settings, [trace_named("a"), trace_named("b")])
    assert sink(settings, out).code == 0
    before = (out / "summary.json").read_bytes()
    other = Settings(log=str(tmp_path / "other.db"))
    put(other, [trace_named("c")])
    ran = sink(other, out)
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert (out / "summary.json").read_bytes() == before


def test_what_is_no_trace_is_counted_and_passed(settings: Settings, tmp_path: Path) -> None:
    put(settings, [trace_named("a")])
    _, samples = made(*tool_session("x"))
    send(settings, settings.traces_topic, b"x", samples)
    put(settings, [trace_named("b")])
    ran = sink(settings, tmp_path / "out")
    assert ran.code == 0
    assert "is no trace, and left out: a sample" in ran.err
    assert names(tmp_path / "out") == ["a", "b"]
    assert summary(tmp_path / "out")["unreadable"] == 1


def test_strict_reading_would_see_what_is_no_number() -> None:
    with pytest.raises(AssertionError, match="NaN"):
        strictly(b'{"reward": NaN}')
