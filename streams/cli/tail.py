"""`turnstream tail`: what the trainer will read, as it comes."""

import asyncio
import sys

import click
import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.record import Record
from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.cli.on_the_log import run_on_the_log, stop_event
from streams.log.interface import Entry
from streams.log.kafka import KafkaLog
from streams.log.kafka_reader import KafkaReader
from streams.settings import Settings

WAIT_S = 0.5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Whole records, one JSON line each.")
@click.option("--from-beginning", is_flag=True, help="Everything still there, not only the new.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N.")
def tail(as_json: bool, from_beginning: bool, most: int | None) -> None:
    """Follow the samples topic: samples, later rewards, outcomes of sessions.

    Runs until Ctrl-C. Settings come from TURNSTREAM_* variables.
    """

    async def work(settings: Settings) -> int:
        async with KafkaLog(settings) as log:
            topic = settings.samples_topic
            starts = await (
                log.start_positions(topic) if from_beginning else log.end_positions(topic)
            )
            reader = await log.read(topic, starts)
            try:
                await _follow(reader, settings, as_json=as_json, most=most)
            finally:
                await reader.close()
        return 0

    run_on_the_log(work)


async def _follow(
    reader: KafkaReader, settings: Settings, *, as_json: bool, most: int | None
) -> None:
    stop, shown, away = stop_event(), 0, False
    while not stop.is_set() and (most is None or shown < most):
        left = 1000 if most is None else min(1000, most - shown)
        batch = await _unless_stopped(reader, stop, left)
        for entry in batch:
            _echo(_json(entry) if as_json else readable(entry))
        shown += len(batch)
        sys.stdout.flush()
        if away != (reader.silent_s > settings.away_after_s):
            away = not away
            said = "no answer; still trying" if away else "answers again"
            click.echo(f"turnstream: {settings.bootstrap_servers}: {said}", err=True)


async def _unless_stopped(reader: KafkaReader, stop: asyncio.Event, most: int) -> list[Entry]:
    reading = asyncio.ensure_future(reader.next_batch(WAIT_S, most))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return await reading  # at most `WAIT_S` longer


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
