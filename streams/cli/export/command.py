"""`turnstream export`: samples, sessions or events of a log, written to a file.

Invariant: an export ends where the log ended when it began, and holds whole sessions only.
"""

import datetime
import sys
from pathlib import Path
from typing import BinaryIO

import click

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Purge
from schemas.record import Record
from streams.cli.export.choice import Choice, Wanted
from streams.cli.export.files import JsonLines, Writer, destination, keep_off_the_log
from streams.cli.export.parquet import ParquetFile
from streams.cli.export.records import FileRecords, LogRecords, Records
from streams.cli.on_the_log import chosen_settings, found_settings, log_option, run_on_the_log
from streams.cli.progress import Progress
from streams.cli.replay.source import Arrived, LogSource
from streams.cli.replay.topic import name_option, named_topic, require_topic
from streams.log.opening import open_log
from streams.settings import Settings


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Milliseconds since 1970; a time without a zone is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("give a time as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


@click.command()
@click.argument("kind", type=click.Choice(["samples", "sessions", "events"]))
@click.argument("file", type=click.File("rb"), required=False)
@log_option
@name_option("The samples or sessions that `replay --name NAME` wrote.")
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write here instead of to stdout. The file appears when it is complete.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="Parquet needs pyarrow: pip install turnstream[export]. Default: as PATH ends, else "
    "JSON lines.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "eval"]),
    help="Only these sessions; one that names no split counts as train.",
)
@click.option("--run", "run_id", metavar="RUN", help="Only sessions of this run.")
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=_moment,
    help="Only sessions whose outcome the log took since then, as ISO 8601 (UTC unless it says "
    "otherwise).",
)
def export(
    kind: str,
    file: BinaryIO | None,
    log: str | None,
    name: str | None,
    path: Path | None,
    form: str | None,
    split: str | None,
    run_id: str | None,
    since_ms: int | None,
) -> None:
    """Write samples, sessions or events of the log, up to the end it has now.

    `samples`: those that their session's outcome lists, each once, with the last reward it was
    given. `sessions`: one outcome each, with its ledger and its last reward. `events`: a dump of
    the turns, which `linearize`, `inspect` and `replay` read; a line names the position of its
    event, and the partition if the log has several.

    FILE (- for standard input) is read instead of the log: events, which give what `linearize`
    gives, or records as `linearize`, `replay --stdout` and `tail --json` print them.

    What cannot be read is named on stderr, the rest is still written, and the exit code is 1.
    Settings come from TURNSTREAM_* variables.
    """
    if form is None:
        form = "parquet" if path is not None and path.suffix == ".parquet" else "jsonl"
    if form == "parquet" and path is None:
        raise click.UsageError("Parquet goes to a file: name it with --to")
    if file is not None and (since_ms is not None or name is not None or log is not None):
        raise click.UsageError("--log, --name and --since are about a log; a FILE has no times")
    if kind == "events":
        if any(given is not None for given in (file, name, split, run_id, since_ms)):
            options = "FILE, --name, --split, --run and --since do not go with it"
            raise click.UsageError(f"events are a dump of all turns of the log: {options}")
        if form == "parquet":
            raise click.UsageError("events are a dump for other commands: JSON lines only")
        run_on_the_log(lambda settings: _events(settings, path), log)
        return
    wanted = Wanted(split, since_ms, run_id)
    exporting = Exporting(path, wanted, sessions=kind == "sessions", parquet=form == "parquet")

    async def work(settings: Settings) -> int:
        keep_off_the_log(path, settings)
        if file is not None:
            return await exporting.run(FileRecords(file, settings))
        async with open_log(settings) as opened:
            topic = named_topic(settings, name)
            if name is not None:
                await require_topic(opened, settings, topic)
            return await exporting.run(LogRecords(opened, settings, topic))

    run_on_the_log(work, log, found_settings if file is None else chosen_settings)


class Exporting:
    """Samples or sessions, on their way to where they go."""

    def __init__(self, path: Path | None, wanted: Wanted, *, sessions: bool, parquet: bool) -> None:
        """Nothing is written yet."""
        self._path = path
        self._wanted = wanted
        self._sessions = sessions
        self._parquet = parquet
        self._written = 0
        self._closed = 0

    async def run(self, records: Records) -> int:
        """Write what is wanted; the exit code."""
        with destination(self._path) as stream:
            writer = self._writer(stream)
            choice = Choice(
                self._wanted, await records.revisions(), with_samples=not self._sessions
            )

            async def take(record: Record, logged_ms: int | None) -> None:
                found = choice.take(record, logged_ms)
                if found is not None:
                    outcome, samples = found
                    writer.write(outcome, samples)
                    self._closed += 1
                    self._written += len(samples)

            await records.each(take)
            writer.close()
        for text in choice.finish():
            click.echo(text, err=True)
        what = f"{self._closed} sessions"
        _told(what if self._sessions else f"{self._written} samples of {what}", self._path)
        return 1 if records.unreadable else 0

    def _writer(self, stream: BinaryIO) -> Writer:
        if self._parquet:
            return ParquetFile(stream, sessions=self._sessions)
        return JsonLines(stream, sessions=self._sessions)


async def _events(settings: Settings, path: Path | None) -> int:
    keep_off_the_log(path, settings)
    written = unreadable = 0
    async with open_log(settings) as log:
        # A purge speaks of one partition's positions; whoever reads a dump of several has one
        # row of events a session.
        alone = len(await log.end_positions(settings.turns_topic)) == 1
        with destination(path) as stream:

            async def take(arrived: Arrived, progress: Progress) -> None:
                nonlocal written, unreadable
                event = arrived.event
                if isinstance(event, BadRecord):
                    unreadable += 1
                    progress.say(f"{arrived.place}: {event}")
                elif alone or not isinstance(event, Purge):
                    line = codec.to_json(event).removesuffix(b"}")
                    place = b',"position":%d' % arrived.position
                    place += b"" if alone else b',"partition":%d' % arrived.partition
                    stream.write(line + place + b"}\n")
                    written += 1

            await LogSource(log, settings).each("export", take)
    _told(f"{written} events", path)
    return 1 if unreadable else 0


def _told(what: str, path: Path | None) -> None:
    """On stdout only if nothing else goes there."""
    where = "" if path is None else f" to {path}"
    click.echo(f"wrote {what}{where}", file=sys.stderr if path is None else sys.stdout)
