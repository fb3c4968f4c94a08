"""Every session that left a trace, once, as a line of a file; and one summary of them all.

    FOLDER/traces-00000001.jsonl    one object a line: the trace, with the place it was read from
    FOLDER/traces-00000002.jsonl    a file appears whole and never changes
    FOLDER/summary.json             counts and statistics of all files, and where to read on

Lines gather in memory until a file is due by size or age: until then the log is their safe place.
A file is written aside, synced and renamed; then the summary, the same way. Who dies between the
two leaves a file that the summary does not count: at the next start it is read and counted.

Invariant: what the files hold and where the summary, with such a last file, says to read on always
agree, so a crash neither loses nor repeats a line.
"""

import fcntl
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.traces import Trace
from streams.errors import BadSetting
from streams.log.interface import Position
from streams.sinks.interface import Passed
from streams.sinks.statistics import Together, split_of

SUMMARY = "summary.json"
LOCK = ".lock"
_ASIDE = ".aside"
_NAME = re.compile(r"traces-(\d{8,})\.jsonl")
_KNOWN_MAX = 100_000
"""Sessions remembered, so that one the processor told of twice is written once."""
_KNOWN_BYTES_MAX = 256 << 20
"""Of files that are read for them at a start."""
_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""What some readers take for the end of a line; inside JSON they stand in texts only."""


class Summary(msgspec.Struct):
    """All that the files hold, and how far that is in the log."""

    topic: str = ""
    files: int = 0
    sessions: int = 0
    bytes: int = 0
    repeated: int = 0
    """Told of more than once by the log; written once."""
    unreadable: int = 0
    taken_by_retention: int = 0
    """Gone from the log before they were read."""
    unexplained: int = 0
    """Passed over by a process that died before it could say why; so all positions add up."""
    splits: dict[str, Together] = msgspec.field(default_factory=dict)
    positions: dict[int, int] = msgspec.field(default_factory=dict)
    """Of the topic, by partition: what is read next."""

    def add(self, trace: Trace, size: int) -> None:
        """One more line."""
        self.sessions += 1
        self.bytes += size
        self.splits.setdefault(split_of(trace), Together()).add(trace)


class _Place(msgspec.Struct):
    """What a line says of itself."""

    session_id: str
    partition: int
    position: int


class JsonlSink:
    """The exact sink; one process a folder."""

    def __init__(self, folder: Path, file_bytes_max: int, file_s: float) -> None:
        """Nothing is touched yet."""
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self._bytes_max = file_bytes_max
        self._file_s = file_s
        self._summary = Summary()
        self._stale = False
        """The summary's file does not say what the files hold."""
        self._lines: list[bytes] = []
        self._size = 0
        self._since_s = 0.0
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lock: IO[bytes] | None = None

    @property
    def held(self) -> int:
        """Lines that are in no file yet."""
        return len(self._lines)

    def opened(self, topic: str) -> dict[int, int]:
        """Where the files end, once they and the summary agree."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.folder)
            for aside in self.folder.glob(f".*{_ASIDE}"):
                aside.unlink()
            self._summary = self._read_summary(topic)
            self._adopt()
            self._remember()
            self._write_summary()
        except OSError as error:
            raise BadSetting(f"{self.folder}: {error}") from error
        return dict(self._summary.positions)

    def take(self, trace: Trace, position: Position) -> None:
        """A line, unless its session has one."""
        self._reach(position)
        if trace.session_id in self._known:
            self._summary.repeated += 1
            self.counts["repeated"] += 1
            return
        line = line_of(trace, position)
        self._lines.append(line)
        self._size += len(line)
        self._summary.add(trace, len(line))
        self._know(trace.session_id)
        self.counts["written"] += 1

    def passed(self, position: Position, why: Passed, count: int = 1) -> None:
        """Counted; the dump goes on behind it."""
        self._reach(position)
        setattr(self._summary, why, getattr(self._summary, why) + count)

    def due(self) -> bool:
        """A file is full, or old enough."""
        old = self._stale and time.monotonic() - self._since_s >= self._file_s
        return old or self._size >= self._bytes_max

    def settle(self, *, everything: bool = False) -> None:
        """Write a file, then the summary; each is done once, however often it is tried."""
        if not (everything or self.due()):
            return
        if self._lines:
            name = f"traces-{self._summary.files + 1:08}.jsonl"
            _write_whole(self.folder / name, b"".join(self._lines))
            self._summary.files += 1
            self._lines, self._size = [], 0
        if self._stale:
            self._write_summary()

    def settled(self, read: Mapping[int, int]) -> dict[int, int]:
        """What the files hold; the group's own position only tells others."""
        return {} if self._stale else {at: self._summary.positions.get(at, 0) for at in read}

    def close(self) -> None:
        """Let somebody else have the folder."""
        if self._lock is not None:
            self._lock.close()

    def _reach(self, position: Position) -> None:
        if not self._stale:
            self._since_s = time.monotonic()
        self._stale = True
        self._summary.positions[position.partition] = position.offset + 1

    def _write_summary(self) -> None:
        _write_whole(self.folder / SUMMARY, msgspec.json.format(msgspec.json.encode(self._summary)))
        self._stale = False

    def _read_summary(self, topic: str) -> Summary:
        path = self.folder / SUMMARY
        if not path.exists():
            if next(self._files(), None) is not None:
                raise BadSetting(f"{self.folder}: files, but no {SUMMARY}: name an empty folder")
            return Summary(topic=topic)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Summary)
        except msgspec.MsgspecError as error:
            raise BadSetting(f"{path}: not written by this sink: {error}") from None
        if found.topic != topic:
            raise BadSetting(f"{self.folder} holds {found.topic}, not {topic}: name another folder")
        return found

    def _files(self) -> Iterator[tuple[int, Path]]:
        for path in sorted(self.folder.iterdir()):
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), path

    def _adopt(self) -> None:
        """Count the file that was finished and not yet counted."""
        for number, path in self._files():
            if number <= self._summary.files:
                continue
            for line in path.read_bytes().splitlines(keepends=True):
                trace, place = _read_line(path, line)
                self._summary.add(trace, len(line))
                read = self._summary.positions.get(place.partition, 0)
                self._summary.unexplained += place.position - read
                self._summary.positions[place.partition] = place.position + 1
            self._summary.files = number

    def _remember(self) -> None:
        """The newest sessions."""
        room, sessions = _KNOWN_BYTES_MAX, 0
        newest: list[list[str]] = []
        for _, path in reversed(list(self._files())):
            room -= path.stat().st_size
            if sessions >= _KNOWN_MAX or (newest and room < 0):
                break
            with path.open("rb") as file:
                newest.append([msgspec.json.decode(line, type=_Place).session_id for line in file])
            sessions += len(newest[-1])
        for names in reversed(newest):
            for name in names:
                self._know(name)

    def _know(self, session_id: str) -> None:
        self._known[session_id] = None
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)


def line_of(trace: Trace, position: Position) -> bytes:
    """The trace as one line of UTF-8, whatever its texts hold, with its place in the log."""
    text = codec.to_json(trace)
    for found, escaped in _BREAKS:
        text = text.replace(found, escaped)
    return text[:-1] + b',"partition":%d,"position":%d}\n' % (position.partition, position.offset)


def _read_line(path: Path, line: bytes) -> tuple[Trace, _Place]:
    try:
        trace = codec.from_json(line)
        assert isinstance(trace, Trace), "a file of traces"
        return trace, msgspec.json.decode(line, type=_Place)
    except (BadRecord, msgspec.MsgspecError, AssertionError) as error:
        raise BadSetting(f"{path}: not written by this sink: {error}") from None


def _write_whole(path: Path, text: bytes) -> None:
    """All of it or nothing is there under that name, also after a power cut."""
    aside = path.with_name(f".{path.name}{_ASIDE}")
    with aside.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked(folder: Path) -> IO[bytes]:
    lock = (folder / LOCK).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise BadSetting(f"{folder}: another sink writes there; end it, or name another") from None
    return lock
