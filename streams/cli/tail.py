"""`turnstream tail`: what the trainer will read, as it comes.

Invariant: records go to stdout and nothing else does; how fast they come and how far behind the
reader is stands on stderr, and only if that is a terminal.
"""

import asyncio
import contextlib
import select
import sys
from collections.abc import Coroutine
from typing import Any

import click
import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.record import Record
from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.cli.on_the_log import log_option, run_on_the_log, stop_event
from streams.cli.progress import Rate, StatusLine
from streams.cli.replay.topic import name_option, named_topic
from streams.errors import LogError
from streams.log.interface import Entry, Log, Reader
from streams.log.opening import log_name, open_log
from streams.settings import Settings

WAIT_S = 0.5
_BATCH_MAX = 1000
_LOOK_S = 1.0
"""Between two looks at the end of the log."""


@click.command()
@log_option
@name_option("Follow what `replay --name NAME` wrote instead.")
@click.option("--json", "as_json", is_flag=True, help="Whole records, one JSON line each.")
@click.option("--from-beginning", is_flag=True, help="Everything still there, not only the new.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N.")
def tail(
    log: str | None, name: str | None, as_json: bool, from_beginning: bool, most: int | None
) -> None:
    """Follow the samples topic: samples, later rewards, outcomes of sessions.

    Runs until Ctrl-C. On a terminal the last line says how many records came, how fast, and how
    many are still behind them in the log. Settings come from TURNSTREAM_* variables.
    """

    async def work(settings: Settings) -> int:
        stop = stop_event()
        tailing = Tailing(settings, named_topic(settings, name), as_json=as_json, most=most)
        await _unless_stopped(tailing.run(from_beginning=from_beginning), stop)
        return 0

    run_on_the_log(work, log)


class Tailing:
    """One run of the command."""

    def __init__(self, settings: Settings, topic: str, *, as_json: bool, most: int | None) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self._topic = topic
        self._as_json = as_json
        self._most = most
        self._rate = Rate()
        self._status = StatusLine()
        self._ends: dict[int, int] = {}

    async def run(self, *, from_beginning: bool) -> None:
        """Follow until enough was shown, or for ever."""
        async with open_log(self._settings) as log:
            positions = log.start_positions if from_beginning else log.end_positions
            reader = await log.read(self._topic, await positions(self._topic))
            looking = asyncio.ensure_future(self._look(log))
            try:
                await self._follow(reader)
            finally:
                self._status.clear()
                looking.cancel()
                await reader.close()

    async def _follow(self, reader: Reader) -> None:
        away = False
        while (left := self._left()) > 0:
            batch = await reader.next_batch(WAIT_S, left)
            self._status.clear()
            for entry in batch:
                _echo(_json(entry) if self._as_json else readable(entry))
            sys.stdout.flush()
            if not batch and _reader_has_gone():
                raise BrokenPipeError
            self._rate.add(len(batch))
            if away != (reader.silent_s > self._settings.away_after_s):
                away = not away
                said = "no answer; still trying" if away else "answers again"
                click.echo(f"turnstream: {log_name(self._settings)}: {said}", err=True)
            self._status.show(f"records {self._rate.count:,}, {self._rate}{self._behind(reader)}")

    def _left(self) -> int:
        """How many records may be shown next."""
        if self._most is None:
            return _BATCH_MAX
        return min(_BATCH_MAX, self._most - self._rate.count)

    def _behind(self, reader: Reader) -> str:
        if not self._ends:
            return ""
        positions = reader.positions
        behind = sum(max(0, end - positions.get(p, end)) for p, end in self._ends.items())
        return f", {behind:,} behind"

    async def _look(self, log: Log) -> None:
        """Where the log ends, now and then; only a status line needs to know."""
        while self._status.terminal:
            # A log that is away is told of by the reader.
            with contextlib.suppress(LogError):
                self._ends = await log.end_positions(self._topic)
            await asyncio.sleep(_LOOK_S)


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """The work, given up as soon as somebody asks for it."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
    else:
        working.result()


def _reader_has_gone() -> bool:
    """Whether nobody reads stdout any more; a write would tell, but there may be none for long."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0))


def readable(entry: Entry) -> str:
    """One line for a person."""
    record = _record(entry)
    match record:
        case Sample():
            text = (
                f"sample   {record.session_id}  {record.index + 1}/{record.count}  "
                f"{record.tokens.size} tokens, {record.trained} trained  "
                f"reward {_number(record.reward)}  {record.sample_id[:8]}"
            )
        case SampleRevised():
            text = (
                f"revised  {record.session_id}  reward {_number(record.reward)}  "
                f"{record.sample_id[:8]}"
            )
        case SessionClosed():
            why = f", withheld: {record.withheld}" if record.withheld else ""
            text = (
                f"closed   {record.session_id}  {record.end_status}  {record.turns} turns, "
                f"trained {record.trained} of {record.generated}  "
                f"reward {_number(record.reward)}  {len(record.sample_ids)} samples{why}"
            )
        case Record():
            text = f"{record.__struct_config__.tag}  not of this topic"
        case BadRecord():
            text = f"unreadable  {entry.position}  {record}"
    return text


def _json(entry: Entry) -> str:
    record = _record(entry)
    if isinstance(record, BadRecord):
        named = {"unreadable": str(entry.position), "code": record.code, "detail": record.detail}
        return msgspec.json.encode(named).decode()
    return codec.to_json(record).decode()


def _record(entry: Entry) -> Record | BadRecord:
    try:
        return codec.from_msgpack(entry.value or b"")
    except BadRecord as error:
        return error


def _number(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"


def _echo(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
