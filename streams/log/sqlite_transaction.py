"""One write transaction: what it stores, and where that will stand.

    Pen.append ──► entries     positions are given here, inside of the write lock
    Pen.put    ──► table_rows
    Pen.commit ──► commits
    Pen.flush      all of it is written, in few statements

What many callers asked for stands in one transaction, in the order they asked. A caller may be
refused before its first change; then nothing of it is stored, and the others are.

Invariant: positions of a topic have no holes. Its timestamps do not go backwards, but for what a
clock that runs more than `AHEAD_MS_MAX` ahead has written: nobody else takes that time over.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streams.errors import PositionMoved
from streams.log.interface import Outgoing
from streams.log.sqlite_file import Tail, tail_of

AHEAD_MS_MAX = 60_000
"""Between the clocks of two writers; a time further ahead tells nothing."""

_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?)"
_COMMIT = 'INSERT OR REPLACE INTO commits ("group", topic, position) VALUES (?, ?, ?)'
_PUT = (
    "INSERT INTO table_rows (key, value) VALUES (?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What one step of a processor changes: all of it, or nothing."""

    outgoing: Sequence[Outgoing] = ()
    """Entries, of any topics; each topic's stand in this order."""
    puts: Sequence[tuple[bytes, bytes | None]] = ()
    """Rows of the table, key and value; None removes the row. The last of a key counts."""
    commits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What a group reads next, by group and topic."""
    expect_commits: Mapping[tuple[str, str], int | None] = field(default_factory=dict)
    """What these were before, None: never committed. Otherwise the whole is refused, since
    somebody else has worked for the group in the meantime."""


class Pen:
    """Writes within one transaction that somebody else begins and ends."""

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        """The transaction has begun, so no other process changes anything."""
        self.connection = connection
        self._now_ms = now_ms
        self._tails: dict[str, Tail] = {}
        self._grown: set[str] = set()
        self._entries: list[tuple[int, int, bytes | None, bytes | None]] = []
        self._rows: dict[bytes, bytes | None] = {}
        self._commits: dict[tuple[str, str], int] = {}

    @property
    def grown(self) -> frozenset[str]:
        """The topics that have new entries."""
        return frozenset(self._grown)

    def append(self, outgoing: Outgoing) -> int:
        """The entry's position in its topic, which is made if it is new."""
        number, start, end, newest_ms = self._tails.get(outgoing.topic) or self.tail(outgoing.topic)
        believed = newest_ms <= self._now_ms + AHEAD_MS_MAX
        timestamp_ms = max(self._now_ms, newest_ms) if believed else self._now_ms
        self._tails[outgoing.topic] = tail = Tail(number, start, end + 1, timestamp_ms)
        self._grown.add(outgoing.topic)
        self._entries.append((tail.place(end), timestamp_ms, outgoing.key, outgoing.value))
        return end

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a row of the table; None removes it."""
        self._rows[key] = value

    def commit(self, group: str, topic: str, position: int) -> None:
        """Set what the group reads next."""
        self._commits[group, topic] = position

    def apply(self, transaction: Transaction) -> list[int]:
        """All of the transaction; the positions of its entries.

        Raises:
            PositionMoved: a group stands elsewhere; nothing was changed.
        """
        for (group, topic), expected in transaction.expect_commits.items():
            found = self._commits.get((group, topic))
            if found is None:
                found = committed_of(self.connection, group, topic)
            if found != expected:
                stands = "has committed nothing" if found is None else f"stands at {found}"
                wanted = "nothing committed" if expected is None else f"{expected}"
                detail = f"{stands}, expected {wanted}: another process works for it"
                raise PositionMoved(f"group {group} on {topic} {detail}")
        self._rows.update(transaction.puts)
        self._commits.update(transaction.commits)
        return [self.append(outgoing) for outgoing in transaction.outgoing]

    def tail(self, topic: str) -> Tail:
        """The topic's bounds, what this transaction appends included."""
        tail = self._tails.get(topic) or tail_of(self.connection, topic)
        if tail is None:
            cursor = self.connection.execute(
                "INSERT INTO topics (name, start, timestamp_ms) VALUES (?, 0, 0)", (topic,)
            )
            assert cursor.lastrowid is not None
            tail = Tail(cursor.lastrowid, 0, 0, 0)
        self._tails[topic] = tail
        return tail

    def remove_oldest(self, topic: str, count: int, newest_ms: int) -> None:
        """Remove so many entries from the topic's start; the last of them is that old."""
        tail = self.tail(topic)
        start = tail.start + count
        self.connection.execute(
            "DELETE FROM entries WHERE place >= ? AND place < ?",
            (tail.place(tail.start), tail.place(start)),
        )
        self.connection.execute(
            "UPDATE topics SET start = ?, timestamp_ms = ? WHERE number = ?",
            (start, newest_ms, tail.number),
        )
        self._tails[topic] = tail._replace(start=start)

    def flush(self) -> None:
        """Write it all; the transaction is complete but for its end."""
        run = self.connection.executemany
        if self._entries:
            run(_INSERT, self._entries)
        if self._rows:
            gone = [(key,) for key, value in self._rows.items() if value is None]
            run("DELETE FROM table_rows WHERE key = ?", gone)
            run(_PUT, [row for row in self._rows.items() if row[1] is not None])
        if self._commits:
            run(_COMMIT, [(*whose, position) for whose, position in self._commits.items()])


def committed_of(connection: sqlite3.Connection, group: str, topic: str) -> int | None:
    """What the group reads next; None if it never committed."""
    row = connection.execute(
        'SELECT position FROM commits WHERE "group" = ? AND topic = ?', (group, topic)
    ).fetchone()
    return None if row is None else int(row[0])
