"""Both sinks on a real broker, beside two real workers of which one dies, and dying themselves."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas import codec
from schemas.samples import Sample
from schemas.traces import Trace
from streams.log.kafka import KafkaLog
from streams.settings import PREFIX, Settings
from tests.harness import Json
from tests.kafka.entries import delete_all, everything
from tests.kafka.test_processor import publish, worker
from tests.sinks.scenes import dumped, files, made, put, summary, tool_session, trace_named
from tests.sinks.trackio_place import shown, variables

COMMAND = Path(sys.executable).parent / "turnstream"
SECONDS_MAX = 120.0
SESSIONS = 48
CAP = 5


@contextmanager
def sink(
    settings: Settings, *words: str | Path, **others: str
) -> Iterator[subprocess.Popen[bytes]]:
    """One sink's process; ended by its id, whatever happens."""
    given = {
        f"{PREFIX}{field.name.upper()}": str(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    running = subprocess.Popen(
        [COMMAND, "sink", *words], env={**os.environ, **given, **others}, stderr=subprocess.PIPE
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=SECONDS_MAX)


def ended(process: "subprocess.Popen[bytes]") -> str:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said.decode()
    return said.decode()


def flat(sessions: list[list[Json]]) -> list[dict[str, object]]:
    return [event for one in sessions for event in one]


def values(settings: Settings, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        async with KafkaLog(settings) as log:
            return [entry.value or b"" for entry in await everything(log, topic)]

    return asyncio.run(read())


def until_traced(settings: Settings, count: int) -> None:
    """So many sessions have left a trace."""
    end_s = time.monotonic() + SECONDS_MAX
    while (
        len(found := {name_of(value) for value in values(settings, settings.traces_topic)}) < count
    ):
        assert time.monotonic() < end_s, f"{len(found)} of {count}"
        time.sleep(0.5)


def name_of(value: bytes) -> str:
    trace = codec.from_msgpack(value)
    assert isinstance(trace, Trace)
    return trace.session_id


def samples_of(settings: Settings) -> dict[str, bytes]:
    """Their bytes by their ids; one sent twice is the same."""
    found = {value: codec.from_msgpack(value) for value in values(settings, settings.samples_topic)}
    return {one.sample_id: value for value, one in found.items() if isinstance(one, Sample)}


def test_every_session_is_once_in_the_files_and_the_samples_are_what_they_are_without_sinks(
    settings: Settings, tmp_path: Path
) -> None:
    settings = dataclasses.replace(settings, trace_share=1.0, metrics_port=0)
    sessions = [
        tool_session(f"s{number}", run_id="r1", step=number % 2) for number in range(SESSIONS)
    ]
    out, tio, said = tmp_path / "out", tmp_path / "tio", tmp_path / "said"
    jsonl = ("jsonl", "--to", out)
    soon = {f"{PREFIX}SINK_JSONL_FILE_S": "0.2"}
    shows = variables(tio, **{f"{PREFIX}SINK_TRACKIO_HOLD_S": "3600"})
    with (
        worker(settings, said) as first,
        worker(settings, said),
        sink(settings, "trackio", "--traces", str(CAP), **shows) as trackio,
    ):
        with sink(settings, *jsonl, **soon) as dying:
            asyncio.run(publish(settings, flat(sessions[: SESSIONS // 2])))
            until_traced(settings, SESSIONS // 2)
            first.kill()  # the group is given out anew
            end_s = time.monotonic() + SECONDS_MAX
            while not (out.exists() and files(out)):
                assert time.monotonic() < end_s
                time.sleep(0.1)
            dying.kill()
        asyncio.run(publish(settings, flat(sessions[SESSIONS // 2 :])))
        with sink(settings, *jsonl) as living:
            until_traced(settings, SESSIONS)
            ended(living)
        assert f"written {2 * CAP}" in ended(trackio)

    lines = dumped(out)
    assert sorted(line["session_id"] for line in lines) == sorted(f"s{n}" for n in range(SESSIONS))
    assert summary(out)["sessions"] == SESSIONS
    _, alone = made(*flat(sessions))
    assert samples_of(settings) == {sample.sample_id: codec.to_msgpack(sample) for sample in alone}
    steps = {sample.session_id: sample.step for sample in alone}
    assert {line["session_id"]: line["step"] for line in lines} == steps
    names = [name for _, name, _ in shown(tio)]
    assert len(names) == len(set(names)) == 2 * CAP
    assert Counter(steps[name] for name in names) == {0: CAP, 1: CAP}


def test_what_retention_took_of_any_partition_is_said_and_counted(
    settings: Settings, tmp_path: Path
) -> None:
    settings, out = dataclasses.replace(settings, metrics_port=0), tmp_path / "out"

    def dump() -> str:
        with sink(settings, "jsonl", "--to", out, "--once") as running:
            _, said = running.communicate(timeout=SECONDS_MAX)
            assert running.returncode == 0, said.decode()
            return said.decode()

    put(settings, [trace_named("first")])  # of three partitions the folder knows nothing
    assert "retention" not in dump()
    put(settings, [trace_named(f"gone{number}") for number in range(20)])
    asyncio.run(delete_all(settings, settings.traces_topic))
    put(settings, [trace_named("second")])
    assert dump().count("retention took it before it was read") == settings.partitions
    assert summary(out)["taken_by_retention"] == 20

    with sink(settings, "jsonl", "--to", out) as running:
        assert running.stderr is not None
        assert b"health" in running.stderr.readline()
        running.send_signal(signal.SIGSTOP)
        put(settings, [trace_named(f"late{number}") for number in range(20)])
        asyncio.run(delete_all(settings, settings.traces_topic))
        put(settings, [trace_named("third")])
        running.send_signal(signal.SIGCONT)
        assert "retention took it before it was read" in ended(running)
    # What a broker had sent off before is there; the rest is counted, and all adds up.
    names = [line["session_id"] for line in dumped(out) if not line["session_id"].startswith("la")]
    assert names == ["first", "second", "third"]
    assert summary(out)["sessions"] + summary(out)["taken_by_retention"] == 43
