"""A log that let traces go before the sink had read them."""

import asyncio
import signal
import time
from pathlib import Path

from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.cli.stores import SECONDS_MAX
from tests.sinks.jsonl_place import names, sink, started, until, until_said
from tests.sinks.scenes import put, summary, trace_named
from tests.trainer.publishing import in_file


def let_retention_take(settings: Settings, up_to: int) -> None:
    """All traces before this one, however young."""
    late_ms = int(1000 * (time.time() + 3600 * (settings.retention_traces_hours + 1)))

    async def take() -> None:
        async with SqliteLog(Path(settings.log), settings) as log:
            assert await log.trim(late_ms, {settings.traces_topic: up_to})

    asyncio.run(take())


def test_what_retention_took_before_it_was_read_is_said_and_counted(
    tmp_path: Path,
) -> None:
    settings, out, aside = in_file(tmp_path), tmp_path / "out", tmp_path / "aside"
    put(settings, [trace_named(name) for name in "ab"])
    assert sink(settings, out).code == 0
    put(settings, [trace_named(name) for name in "cde"])
    let_retention_take(settings, 4)
    ran = sink(settings, out)
    assert ran.code == 0
    assert "traces/0/3: retention took it before it was read, and 1 before it" in ran.err
    assert ran.err.splitlines()[-1].endswith("taken_by_retention 2, written 1")
    assert (names(out), summary(out)["taken_by_retention"]) == (["a", "b", "e"], 2)

    # Overtaken while it waits for a place that cannot be written to.
    put(settings, [trace_named("f")])
    process = started(settings, out, TURNSTREAM_SINK_JSONL_FILE_S="0.05")
    try:
        # A file comes before the summary that counts it: renamed between the two, f would be tried
        # again and not g.
        until(lambda: summary(out)["positions"] == {"0": 6}, "not written")
        out.rename(aside)
        out.write_text("a file where the folder was", "utf-8")
        put(settings, [trace_named("g")])
        until_said(process, b"still trying")
        put(settings, [trace_named(name) for name in "hij"])
        let_retention_take(settings, 9)
        out.unlink()
        aside.rename(out)
        until(lambda: names(out) == [*"abefgj"], "not written")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait(SECONDS_MAX)
    assert process.returncode == 0
    assert b"traces/0/8: retention took it before it was read, and 1 before it" in rest
    assert summary(out)["taken_by_retention"] == 4

    # A folder that begins later says what it can never have.
    assert "and 8 before it" in sink(settings, tmp_path / "late").err
    assert names(tmp_path / "late") == ["j"]
    assert summary(tmp_path / "late")["taken_by_retention"] == 9
