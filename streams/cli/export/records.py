"""What an export is made of: the records of a samples topic, or those that a file of events gives.

They are gone through twice, since a later reward may stand anywhere behind its sample: first for
the revisions, then for the rest. A log is read twice up to the same end; of a file the records
are put aside in a temporary one.

Invariant: both times the same records in the same order.
"""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, BinaryIO, Protocol

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.record import Record
from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.cli.progress import Progress
from streams.cli.replay.source import Arrived, FileSource
from streams.cli.snapshot import Snapshot, read_snapshot, snapshot_of
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from streams.core.state import Rules
from streams.log.interface import Entry, Log
from streams.settings import Settings

Take = Callable[[Record, int | None], Awaitable[None]]
"""A record, and when the log took it; None: a file does not say."""

_SIZE_BYTES = 4
_REVISED = b"sample_revised"


class Revisions:
    """The last word on every sample and session whose reward came later."""

    def __init__(self) -> None:
        """None so far."""
        self.of_samples: dict[str, SampleRevised] = {}
        self.of_sessions: dict[str, SampleRevised] = {}

    def add(self, revised: SampleRevised) -> None:
        """The larger revision counts, in whatever order they come."""
        pairs = ((self.of_samples, revised.sample_id), (self.of_sessions, revised.session_id))
        for newest, name in pairs:
            known = newest.get(name)
            if known is None or known.revision < revised.revision:
                newest[name] = revised


class Records(Protocol):
    """Where records come from."""

    unreadable: int
    """What had to be left out; it was named on stderr."""

    async def revisions(self) -> Revisions:
        """The first time through."""
        ...

    async def each(self, take: Take) -> None:
        """The second time."""
        ...


class LogRecords:
    """A topic of a log, up to the end it has when it is first read."""

    def __init__(self, log: Log, settings: Settings, topic: str) -> None:
        """Nothing is read yet."""
        self._log = log
        self._settings = settings
        self._topic = topic
        self._snapshot: Snapshot | None = None
        self.unreadable = 0

    async def revisions(self) -> Revisions:
        """Only what can be a revision is decoded."""
        found = Revisions()

        async def take(entries: Sequence[Entry], _: Progress) -> None:
            for entry in entries:
                if _REVISED in (entry.value or b""):
                    record = _record(entry)
                    if isinstance(record, SampleRevised):
                        found.add(record)

        await self._read("later rewards", take)
        return found

    async def each(self, take: Take) -> None:
        """Every record."""

        async def take_all(entries: Sequence[Entry], progress: Progress) -> None:
            for entry in entries:
                record = _record(entry)
                if isinstance(record, BadRecord):
                    self.unreadable += 1
                    progress.say(f"{entry.position}: {record}")
                else:
                    await take(record, entry.timestamp_ms)

        await self._read("export", take_all)

    async def _read(
        self, label: str, take: Callable[[Sequence[Entry], Progress], Awaitable[None]]
    ) -> None:
        if self._snapshot is None:
            self._snapshot = await snapshot_of(self._log, self._topic)
        with Progress(label, "records", self._snapshot.entries) as progress:
            await read_snapshot(
                self._log,
                self._snapshot,
                self._settings,
                progress,
                lambda entries: take(entries, progress),
            )


class FileRecords:
    """What the events of a file give, and such records as stand in it themselves."""

    def __init__(self, file: BinaryIO, settings: Settings) -> None:
        """Nothing is read yet."""
        self._source = FileSource(file)
        self._partition = Partition(rules=Rules(default_policy=PROFILES[settings.profile]))
        self._aside: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `each` closes it
        self._revisions = Revisions()
        self.unreadable = 0

    async def revisions(self) -> Revisions:
        """Everything is done here, and put aside."""
        await self._source.each("read", self._take)
        for effects in self._partition.finish():
            self._put_aside(effects.records())
        return self._revisions

    async def each(self, take: Take) -> None:
        """From the file put aside."""
        self._aside.seek(0)
        with self._aside:
            while size := self._aside.read(_SIZE_BYTES):
                await take(codec.from_msgpack(self._aside.read(int.from_bytes(size))), None)

    async def _take(self, arrived: Arrived, progress: Progress) -> None:
        event = arrived.event
        if not isinstance(event, BadRecord):
            effects = self._partition.feed(event, arrived.position)
        elif (record := _record_line(arrived.raw, event)) is not None:
            self._put_aside([record])
            return
        else:
            effects = self._partition.refuse(event, arrived.position)
        for error in effects.refusals:
            self.unreadable += 1
            progress.say(f"{arrived.place}: {error}")
        self._put_aside(effects.records())

    def _put_aside(self, records: Sequence[Record]) -> None:
        for record in records:
            value = codec.to_msgpack(record)
            self._aside.write(len(value).to_bytes(_SIZE_BYTES) + value)
            if isinstance(record, SampleRevised):
                self._revisions.add(record)


def _record_line(text: bytes, refused: BadRecord) -> Record | None:
    """A line that is no event, but a record as `linearize` and `tail --json` print them."""
    if refused.code != "unknown_type":
        return None
    try:
        record = codec.from_json(text.strip())
    except BadRecord:
        return None
    return record if isinstance(record, Sample | SampleRevised | SessionClosed) else None


def _record(entry: Entry) -> Record | BadRecord:
    try:
        record = codec.from_msgpack(entry.value or b"")
    except BadRecord as error:
        return error
    if isinstance(record, Sample | SampleRevised | SessionClosed):
        return record
    return BadRecord("unknown_type", f"`{record.__struct_config__.tag}` is not of this topic")
