"""The file of the embedded log: what stands in it, how it is opened, its errors in our words.

    topics      number, name, start, timestamp_ms     one row a topic
    entries     place = number << 40 | position       a topic's entries side by side, in order
    commits     group, topic, position                what a group reads next
    table_rows  key, value                            the processor's table

A topic ends behind its last entry, or at `start` if retention took them all: appending touches
no row but the entry's own, and start and end are found by one descent of the tree.

Invariant: a file that is no log of this version stays as it is. A connection's file is the one
that stands at the path: acknowledging into a file that was removed would lose what follows, and
a write-ahead log left beside a file that took its place would be written into that one.
"""

import errno
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from streams.errors import LogAway, LogError, LogFull, WrongLog

APPLICATION_ID = 0x5475726E
SCHEMA_VERSION = 1
PAGE_BYTES = 16_384
"""The fastest to write for entries of 1 to 200 KB; of a mix of sizes a sixth stays unused."""
TOPIC_BITS = 40
WAL_KEPT_BYTES = 64 << 20
"""A log file in front of the database that grew beyond this is cut when it is next reset."""
CACHE_KIB = 16_384

_SCHEMA = (
    "CREATE TABLE topics (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " start INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL)",
    "CREATE TABLE entries (place INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL,"
    " key BLOB, value BLOB)",
    'CREATE TABLE commits ("group" TEXT NOT NULL, topic TEXT NOT NULL, position INTEGER NOT NULL,'
    ' PRIMARY KEY ("group", topic)) WITHOUT ROWID',
    # With a rowid: values are larger than a page, and a tree of keys alone stays small.
    "CREATE TABLE table_rows (key BLOB NOT NULL UNIQUE, value BLOB NOT NULL)",
)
_TAIL = f"""
    SELECT t.number, t.start, t.timestamp_ms, e.place, e.timestamp_ms
    FROM topics t LEFT JOIN entries e ON e.place = (
        SELECT max(place) FROM entries
        WHERE place >= t.number << {TOPIC_BITS} AND place < (t.number + 1) << {TOPIC_BITS})
    WHERE t.name = ?"""
_BESIDE = (_WAL, _SHM) = ("-wal", "-shm")
_WRITE_LOCK_BYTE = 120
"""Where SQLite locks its shared-memory file while it writes."""
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_FORBIDDEN = "cannot be opened or written: file and folder have to be writable for this user"
_TOLD: dict[int, tuple[type[LogError], str]] = {
    sqlite3.SQLITE_FULL: (LogFull, "has no room left on its disk; make room and try again"),
    sqlite3.SQLITE_READONLY: (LogError, _FORBIDDEN),
    sqlite3.SQLITE_CANTOPEN: (LogError, _FORBIDDEN),
    sqlite3.SQLITE_PERM: (LogError, _FORBIDDEN),
    sqlite3.SQLITE_IOERR: (
        LogError,
        "cannot be read or written: the disk is broken, or a quota or a file size limit is reached",
    ),
    sqlite3.SQLITE_CORRUPT: (
        WrongLog,
        "is damaged; go on from a copy, or save what is readable with `sqlite3 FILE .recover`",
    ),
    sqlite3.SQLITE_NOTADB: (WrongLog, "is no SQLite file; name another file for the log"),
}
_RETRY_S = 0.005
_NO_PLACE = {errno.ENOENT, errno.ENOTDIR}
"""Folders that are missing: waiting does not make them."""

Identity = tuple[int, int]

# Closing a file drops the locks that this process holds on it through other descriptors, so
# nothing may open a file that is being made.
_opening = threading.Lock()


class Tail(NamedTuple):
    """Where a topic starts and ends."""

    number: int
    start: int
    end: int
    timestamp_ms: int
    """Of the newest entry, also of one that is gone."""

    def place(self, position: int) -> int:
        """The row of an entry."""
        return self.number << TOPIC_BITS | position


def tail_of(connection: sqlite3.Connection, topic: str) -> Tail | None:
    """The topic's bounds; None if nothing was ever written to it."""
    row = connection.execute(_TAIL, (topic,)).fetchone()
    if row is None:
        return None
    number, start, old_ms, last, last_ms = row
    if last is None:
        return Tail(number, start, start, old_ms)
    return Tail(number, start, last - (number << TOPIC_BITS) + 1, last_ms)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else is at it, so that trying again may help."""
    return _code(error) in _BUSY


class LogFile:
    """The one file; connections are opened and errors told through it."""

    def __init__(self, path: Path, *, create: bool, busy_s: float) -> None:
        """Nothing is opened yet; `create`: a file that is missing is made."""
        self.path = path.absolute()
        self._create = create
        self._busy_s = busy_s
        self._identity: Identity | None = None
        self._beside: dict[str, Identity] = {}
        """The files that SQLite keeps beside ours, by what their names end in."""
        self._moving = threading.Lock()

    def open(self) -> sqlite3.Connection:
        """A connection, for one thread at a time.

        Raises:
            LogError: there is no such log, or it cannot be made or used.
        """
        with _opening:
            self._make_file()
            if self._identity is not None:
                self.check_in_place()
            try:
                connection = sqlite3.connect(
                    f"{self.path.as_uri()}?mode=rw",
                    uri=True,
                    timeout=self._busy_s,
                    isolation_level=None,
                    check_same_thread=False,
                )
            except sqlite3.Error as error:
                raise self.told(error) from error
        try:
            self._prepare(connection)
            self.check_in_place()
            self._remember_beside()
        except sqlite3.Error as error:
            connection.close()
            raise self.told(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def check_in_place(self) -> None:
        """Raise if another file, or none, stands at the path by now."""
        identity = _identity(self.path)
        if self._identity is None:
            self._identity = identity
        if identity is None or identity != self._identity:
            aside = None if identity is None else self._move_aside()
            detail = "" if aside is None else f"; what the old file still lacks is in {aside}"
            said = "was removed or replaced while it was in use; start again"
            raise WrongLog(f"{self.path} {said}{detail}")

    def told(self, error: Exception) -> LogError:
        """The error in our words."""
        code = _code(error)
        if code in _BUSY:
            return LogAway(f"{self.path} is locked by {_holder(self.path)}")
        kind, said = _TOLD.get(code, (LogError, "does not do what it should"))
        detail = getattr(error, "sqlite_errorname", type(error).__name__)
        return kind(f"{self.path} {said} ({detail}: {error!s:.200})")

    def _remember_beside(self) -> None:
        for ending in _BESIDE:
            found = _identity(Path(f"{self.path}{ending}"))
            if found is not None:
                self._beside[ending] = found

    def _move_aside(self) -> Path | None:
        """Take what is ours away from the file that stands there now; where it went."""
        with self._moving:
            beside, self._beside = self._beside, {}
            wal, shm = (Path(f"{self.path}{ending}") for ending in _BESIDE)
            aside = None
            try:
                # The write-ahead log first: with a new index it would be taken as the new file's.
                if beside.get(_WAL) is not None and _identity(wal) == beside[_WAL]:
                    names = (f"{wal}.of-the-old-file{n or ''}" for n in itertools.count())
                    aside = next(path for path in map(Path, names) if not path.exists())
                    wal.rename(aside)
                if beside.get(_SHM) is not None and _identity(shm) == beside[_SHM]:
                    shm.unlink()
            except OSError as error:
                detail = f"{wal} belongs to the old file and cannot be moved: {error.strerror}"
                raise WrongLog(f"{self.path} was replaced while it was in use; {detail}") from error
            return aside

    def _make_file(self) -> None:
        if self.path.is_dir():
            raise WrongLog(f"{self.path} is a folder; name a file for the log")
        if self.path.exists():
            return
        if not self._create:
            raise WrongLog(f"there is no log at {self.path}; it is made by the first that writes")
        if self._identity is not None:
            self.check_in_place()  # raises: a log in use is not begun anew
        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                _sync_folder(folder.parent)
            # Made here for the permissions; SQLite gives them to the files beside it too.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            _sync_folder(folder)
        except OSError as error:
            kind = WrongLog if error.errno in _NO_PLACE else LogError
            raise kind(f"{self.path} cannot be made: {error.strerror}: {folder}") from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._waited(lambda: _is_new(connection)):
            if not self._create:
                raise WrongLog(f"{self.path} holds no log yet; it is made by the first that writes")
            self._waited(lambda: _write_schema(connection))
        application, version = _numbers(connection)
        if application != APPLICATION_ID:
            raise WrongLog(f"{self.path} belongs to another application; name another file")
        if version != SCHEMA_VERSION:
            detail = f"version {version}, and this Turnstream reads version {SCHEMA_VERSION}"
            raise WrongLog(f"{self.path} is a log of {detail}")
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            detail = "its file system has no shared memory; take a local disk"
            raise WrongLog(f"{self.path} cannot be used by several processes: {detail}")
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",
            "secure_delete = OFF",
            # Checkpoints are ours; see `streams.log.sqlite_writer`.
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {WAL_KEPT_BYTES}",
            f"cache_size = -{CACHE_KIB}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    def _waited(self, step: Callable[[], bool]) -> bool:
        """The step's answer; SQLite does not wait by itself where the mode of a file changes."""
        until_s = time.monotonic() + self._busy_s
        while True:
            try:
                return step()
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > until_s:
                    raise
                time.sleep(_RETRY_S)


def _numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _is_new(connection: sqlite3.Connection) -> bool:
    """Empty, or left by a process that was killed before it wrote the schema."""
    tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    return tables is None and _numbers(connection) == (0, 0)


def _write_schema(connection: sqlite3.Connection) -> bool:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection):  # else another process was faster
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return True


def _identity(path: Path) -> Identity | None:
    """Which file stands there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _code(error: Exception) -> int:
    """The primary code; -1 for what does not come from SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def _sync_folder(folder: Path) -> None:
    """A file is durable only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    """Who writes to the file, as far as the system tells."""
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            # 7: POSIX  ADVISORY  WRITE 4711 fe:00:1234567 120 120
            fields = line.replace("-> ", "").split()
            if fields[3] != "WRITE" or int(fields[5].rpartition(":")[2]) != inode:
                continue
            if int(fields[6]) <= _WRITE_LOCK_BYTE <= int(fields[7]):
                name = Path(f"/proc/{fields[4]}/comm").read_text().strip()
                return f"process {fields[4]} ({name})"
    except (OSError, ValueError, IndexError):
        pass  # another system, or it has just ended
    return "another process"
