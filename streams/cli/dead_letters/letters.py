"""The dead letters of a log: read once each, found by the place of the event they refuse.

The processor writes a letter again when it works on an event twice; under the same key stand
also several letters of one event, where several things were wrong with it.

Invariant: a letter is told once however often it was written, and nothing is removed.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import msgpack
import msgspec
import numpy as np

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.dead_letters import Code, DeadLetter
from streams.errors import LogError
from streams.log.interface import Entry, Log, Position
from streams.log.partitioner import partition_of
from streams.processor.lookup import bounds, each_entry
from streams.settings import Settings

PAYLOADS_BYTES_MAX = 1 << 30
"""Held at once; more has to be taken in parts."""

ADVICE: dict[Code, str] = {
    "undecodable": "The bytes are no record: mend whoever published them; there is nothing to "
    "replay.",
    "unknown_version": "It was written for a newer reader: upgrade the processor, then replay it.",
    "unknown_type": "This reader knows no such event: upgrade the processor and replay it, or "
    "correct the producer.",
    "invalid_field": "Correct the field (`show POSITION --payload` gives the event as a line to "
    "edit) and publish it with `turnstream replay FILE`.",
    "length_mismatch": "The adapter counted wrong: correct the event (`show POSITION --payload`), "
    "publish it with `turnstream replay FILE`, and mend the adapter.",
    "digest_mismatch": "The delta was built on other tokens than those recorded: publish the turn "
    "whole, without a base; replaying it as it is cannot help.",
    "unknown_base": "Its base turn was not there yet: replay it, with --session all that hang on "
    "it, once the base is in the session.",
    "unknown_session": "Nothing had started its session: publish `session_opened` or a turn with "
    "its whole prompt, then replay it.",
    "forked_turn_id": "Two turns came under one id and the first one counts: give this one an id "
    "of its own and publish it.",
    "late_turn": "It came after its session had ended, and cannot train: only a replay of the "
    "whole log, in the right order, brings it in.",
    "late_reward": "Its session closed without a sample that it could change: replay the log with "
    "the reward in time, or under a default reward.",
    "too_old": "It was logged too long after the turn: if that is right, raise "
    "TURNSTREAM_HARD_LIMIT_S for the processor and replay it.",
    "oversize": "It is over a limit of the session or of the log: raise the limit, or make the "
    "event smaller; then replay it, if its session is still open.",
    "wrong_partition": "Its producer spreads keys by another rule: set its partitioner to "
    "murmur2_random (librdkafka's default is consistent_random), then replay the event: it goes "
    "to the partition of its session.",
    "core_failure": "This is a defect of Turnstream: report it with this letter; after the repair "
    "a replay of the log gives the session its samples.",
}
"""What to do about a letter, one sentence a code."""

LATE = {"late_turn", "late_reward"}
"""Of what comes after the end of its session."""
_POSITION = re.compile(r"([\w.-]+)/(\d{1,9})/(\d{1,18})", re.ASCII)
_IDS = ("prompt_ids", "output_ids")
_FLOATS = ("logprobs",)
_TEXTS = ("prompt_messages", "response_message", "tools", "metadata", "final_message", "reward")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, and where the event stood that it refuses."""

    position: Position
    logged_ms: int
    """When it was refused."""
    record: DeadLetter
    payload_bytes: int | None
    """None: the event was too large to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which letters are asked for."""

    positions: Collection[Position] = ()
    """Nothing: wherever they stand."""
    code: str | None = None
    session_id: str | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is one of them."""
        record = letter.record
        return (
            (not self.positions or letter.position in self.positions)
            and self.code in (None, record.code)
            and self.session_id in (None, record.session_id)
        )


async def read_letters(
    log: Log, settings: Settings, wanted: Wanted, *, payloads: bool
) -> tuple[list[Letter], int]:
    """The letters asked for, newest last, and how many entries of the topic are no letters.

    Raises:
        LogError: with `payloads`, they are too many to be held.
    """
    topic = settings.dead_letters_topic
    ranges = await bounds(log, topic)
    if wanted.positions:
        homes = {partition_of(str(place).encode(), len(ranges)) for place in wanted.positions}
        ranges = {p: place for p, place in ranges.items() if p in homes}
    found: dict[tuple[Position, str, str | None, str], Letter] = {}
    strange = held_bytes = 0

    def take(entry: Entry) -> None:
        nonlocal strange, held_bytes
        letter = _letter(entry)
        if letter is None:
            strange += 1
            return
        record = letter.record
        key = (letter.position, record.code, record.turn_id, record.detail)
        if key in found or not wanted.takes(letter):
            return
        if payloads:
            held_bytes += letter.payload_bytes or 0
            if held_bytes > PAYLOADS_BYTES_MAX:
                detail = "take them in parts, by --session, --code or position"
                raise LogError(f"{topic}: more than {PAYLOADS_BYTES_MAX >> 20} MiB; {detail}")
        else:
            bare = msgspec.structs.replace(record, payload=None)
            letter = Letter(letter.position, letter.logged_ms, bare, letter.payload_bytes)
        found[key] = letter

    await each_entry(log, settings, topic, ranges, take)
    return sorted(found.values(), key=lambda at: (at.logged_ms, at.position)), strange


Event = tuple[str, bytes]
"""A refused event by its session and a digest of its bytes, wherever it stood."""


def event_of(record: DeadLetter) -> Event | None:
    """Which event a letter refuses; None if its bytes or its session are not known."""
    if record.payload is None or record.session_id is None:
        return None
    return record.session_id, hashlib.sha256(record.payload).digest()


async def came_back_late(log: Log, settings: Settings, sessions: Collection[str]) -> set[Event]:
    """Events of the sessions that were refused at several places, as late at one of them."""
    places: dict[Event, set[Position]] = {}
    late: set[Event] = set()

    def take(entry: Entry) -> None:
        letter = _letter(entry)
        if letter is None or letter.record.session_id not in sessions:
            return
        event = event_of(letter.record)
        if event is not None:
            places.setdefault(event, set()).add(letter.position)
            if letter.record.code in LATE:
                late.add(event)

    topic = settings.dead_letters_topic
    await each_entry(log, settings, topic, await bounds(log, topic), take)
    return {event for event in late if len(places[event]) > 1}


def read_position(text: str) -> Position | None:
    """`topic/partition/offset` as a place; None if it is none."""
    found = _POSITION.fullmatch(text)
    return None if found is None else Position(found[1], int(found[2]), int(found[3]))


def payload_line(payload: bytes) -> str | None:
    """The refused bytes as a JSON line, as far as they can be read; None if not at all."""
    try:
        return _ascii(codec.to_json(codec.from_msgpack(payload)).decode())
    except BadRecord:
        pass  # refused for that, most likely; its fields may still be readable
    try:
        fields = msgpack.unpackb(payload, strict_map_key=False)
    except Exception:  # msgpack raises many kinds; all mean that the bytes are something else
        return None
    if not isinstance(fields, dict):
        return None
    try:
        return json.dumps({str(name): _plain(str(name), fields[name]) for name in fields})
    except (ValueError, RecursionError):
        return None


def in_order(letters: Iterable[Letter]) -> list[Letter]:
    """One letter a place, as the events once stood in the log."""
    ordered = sorted(letters, key=lambda letter: letter.position)
    places = itertools.groupby(ordered, key=lambda letter: letter.position)
    return [next(same) for _, same in places]


def _letter(entry: Entry) -> Letter | None:
    try:
        record = codec.from_msgpack(entry.value or b"")
    except BadRecord:
        return None
    if not isinstance(record, DeadLetter):
        return None
    if record.topic is None or record.partition is None or record.offset is None:
        return None
    position = Position(record.topic, record.partition, record.offset)
    size = None if record.payload is None else len(record.payload)
    return Letter(position, entry.timestamp_ms, record, size)


def _plain(name: str, value: Any) -> Any:
    """A field of a record that the reader refuses, in the JSON form it would have."""
    if isinstance(value, bytes) and name in (*_IDS, *_FLOATS) and len(value) % 4 == 0:
        return np.frombuffer(value, "<i4" if name in _IDS else "<f4").tolist()
    if isinstance(value, str) and name in _TEXTS:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return _without_bytes(value)


def _without_bytes(value: Any) -> Any:
    plain: Callable[[Any], Any] = _without_bytes
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


def _ascii(text: str) -> str:
    """JSON text with everything beyond ASCII escaped: a session's text may steer a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if " " <= c <= "~" else json.dumps(c)[1:-1] for c in text)
