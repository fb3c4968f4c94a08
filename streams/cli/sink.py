"""`turnstream sink`: traces of closed sessions to where people look at them.

Invariant: whatever ends it is one line on stderr, and nothing that was in the log is lost by it.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from streams.cli.on_the_log import log_option, run_on_the_log, stop_event
from streams.core.drawing import visible
from streams.log.opening import open_log
from streams.operations.watching import Watch
from streams.processor.health import Progress, serve
from streams.settings import KAFKA, Settings
from streams.sinks.consuming import Consuming
from streams.sinks.interface import Sink
from streams.sinks.jsonl import JsonlSink
from streams.sinks.trackio import TrackioSink, require_trackio

FOLDER = "traces"
Make = Callable[[Settings, Callable[[str], None]], Sink]


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        log_option,
        click.option("--once", is_flag=True, help="Write what is there now, then exit."),
        click.option(
            "--until-stdin-ends",
            is_flag=True,
            hidden=True,  # so `up` ends it, also by dying
        ),
    ):
        command = option(command)
    return command


@click.group()
def sink() -> None:
    """Write the traces of closed sessions somewhere.

    Each sink reads the log by itself, from where it was when it last ended, and changes nothing
    there. On a file every session leaves a trace, on Kafka one in 100 (TURNSTREAM_TRACE_SHARE),
    and every failure and eval session. SIGTERM writes what is left and exits 0.
    """


@sink.command()
@_common
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Else what TURNSTREAM_SINK_JSONL_FOLDER says.",
)
def jsonl(log: str | None, once: bool, until_stdin_ends: bool, folder: Path | None) -> None:
    """Every trace once, as JSON lines in whole files, and one summary of them."""

    def make(settings: Settings, _: Callable[[str], None]) -> Sink:
        return JsonlSink(
            folder or jsonl_folder(settings),
            settings.sink_jsonl_file_bytes,
            settings.sink_jsonl_file_s,
        )

    _run("jsonl", make, log, once=once, until_stdin_ends=until_stdin_ends)


@sink.command()
@_common
@click.option("--project", metavar="NAME", help="Else what TURNSTREAM_SINK_TRACKIO_PROJECT says.")
@click.option(
    "--traces",
    metavar="N",
    type=int,
    help="Of a step and split at most; else what TURNSTREAM_SINK_TRACKIO_TRACES says.",
)
def trackio(
    log: str | None, once: bool, until_stdin_ends: bool, project: str | None, traces: int | None
) -> None:
    """Some sessions of each step on trackio's page, the same ones in whatever order they come.

    Then `trackio show` shows them. It is best effort: what trackio does not take is counted.
    """

    def make(settings: Settings, say: Callable[[str], None]) -> Sink:
        require_trackio()
        most = settings.sink_trackio_traces if traces is None else traces
        if most <= 0:
            say("none are wanted: give --traces, or set TURNSTREAM_SINK_TRACKIO_TRACES")
        folder = settings.sink_trackio_folder
        return TrackioSink(
            project or settings.sink_trackio_project,
            None if folder is None else Path(folder),
            most,
            settings.sink_trackio_hold_s,
            say,
        )

    _run("trackio", make, log, once=once, until_stdin_ends=until_stdin_ends)


def jsonl_folder(settings: Settings) -> Path:
    """What the settings say, else beside an embedded log, else right here."""
    if settings.sink_jsonl_folder is not None:
        return Path(settings.sink_jsonl_folder)
    return Path(FOLDER) if settings.log == KAFKA else Path(settings.log).parent / FOLDER


def _run(name: str, make: Make, log: str | None, *, once: bool, until_stdin_ends: bool) -> None:
    def say(text: str) -> None:
        click.echo(f"turnstream sink {name}: {visible(text, most=None)}", err=True)

    async def work(settings: Settings) -> int:
        stop = stop_event()
        if until_stdin_ends:
            _set_at_end_of_stdin(stop)
        async with open_log(settings) as opened:
            consuming = Consuming(settings, opened, make(settings, say), name, say)
            health = (
                None
                if once
                else await serve(
                    settings,
                    consuming.counts,
                    lambda: look(consuming, settings.away_after_s),
                    f"turnstream sink {name}",
                )
            )
            if settings.traced_share < 1:
                say(
                    f"{settings.traced_share:.4g} of the sessions leave a trace, and failures and "
                    "eval sessions; with TURNSTREAM_TRACE_SHARE=1 for the processors all do"
                )
            try:
                with Watch(f"turnstream sink {name}", settings) as watch:
                    if not once:
                        watch.ready(lambda: _pulse(consuming))
                    await consuming.run(stop, once=once)
            except OSError as error:
                say(f"{error}; what is not written is still in the log: start it again")
                return 1
            finally:
                if health is not None:
                    await health.cleanup()
        say(", ".join(f"{what} {n:,}" for what, n in sorted((+consuming.counts).items())) or "none")
        return 0

    run_on_the_log(work, log)


def _pulse(consuming: Consuming) -> int | None:
    """Sessions that are only held are waited for, and no stall."""
    return consuming.counts.total() - consuming.lag if consuming.lag else None


def look(consuming: Consuming, away_after_s: float) -> Progress:
    """Whether a sink moves."""
    away = consuming.silent_s > away_after_s
    silence = f"no answer from the log for {consuming.silent_s:.0f} s: what it has is unknown"
    return Progress(
        partitions=consuming.partitions,
        lag=None if away else consuming.lag,
        sessions_open=0,
        in_flight=consuming.held,
        ready=consuming.partitions > 0,
        trouble=consuming.trouble or (silence if away else None),
    )


def _set_at_end_of_stdin(stop: asyncio.Event) -> None:
    def readable() -> None:
        if not os.read(stdin, 1):
            loop.remove_reader(stdin)
            stop.set()

    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    loop.add_reader(stdin, readable)
