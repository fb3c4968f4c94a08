"""Closed sessions of a replay, put away in a temporary file, so that memory holds open ones only.

A late reward still finds its session here. SQLite keeps the file: it is written only when the
sessions outgrow a small cache, belongs to this process alone and is gone with it.

Invariant: what is taken out again behaves as if it had never been put away.
"""

import sqlite3
from dataclasses import dataclass

import msgpack

from schemas import codec
from schemas.events import Reward
from streams.core.after_close import read_back
from streams.core.state import ClosedSession
from streams.processor.rows import read_marker, write_marker

_CACHE_KIB = 16_384
_SCHEMA = """
    CREATE TABLE closed (
        part INTEGER NOT NULL, session TEXT NOT NULL, run INTEGER NOT NULL,
        newest INTEGER NOT NULL, state BLOB,
        samples INTEGER NOT NULL, tokens INTEGER NOT NULL, trained INTEGER NOT NULL,
        reward REAL NOT NULL,
        PRIMARY KEY (part, session, run)
    ) WITHOUT ROWID"""
_DIFFERENCES = """
    SELECT session,
        sum(samples * (run = 0)) s0, sum(samples * (run = 1)) s1,
        sum(tokens * (run = 0)) t0, sum(tokens * (run = 1)) t1,
        sum(trained * (run = 0)) n0, sum(trained * (run = 1)) n1,
        sum(reward * (run = 0)) r0, sum(reward * (run = 1)) r1
    FROM closed GROUP BY part, session
    HAVING count(*) < 2 OR s0 != s1 OR t0 != t1 OR n0 != n1 OR abs(r0 - r1) > 1e-9"""


@dataclass(frozen=True, slots=True)
class Given:
    """What a session gave the trainer."""

    samples: int = 0
    tokens: int = 0
    """Forwarded: of all samples, shared ones as often as they stand there."""
    trained: int = 0
    reward: float = 0.0
    """Over all samples, as of the last revision."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One session under both policies."""

    session_id: str
    before: Given
    after: Given


class ClosedSessions:
    """The sessions that have closed, of several partitions and two runs."""

    def __init__(self) -> None:
        """None so far."""
        # No name: a temporary file, removed by SQLite itself.
        self._file = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._file.execute(f"PRAGMA {pragma}").fetchall()
        self._file.execute(_SCHEMA)
        self._file.execute("BEGIN")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def keep(self, run: int, partition: int, state: ClosedSession, given: Given) -> None:
        """Put a session away; what was kept of it before is replaced."""
        late = [
            (position, codec.to_msgpack(reward.event(state.marker.session_id)))
            for position, reward in state.late
        ]
        kept = msgpack.packb([write_marker(state.marker), late])
        place = (partition, state.marker.session_id, run, state.newest)
        numbers = (given.samples, given.tokens, given.trained, given.reward)
        self._file.execute(
            "INSERT OR REPLACE INTO closed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, kept, *numbers),
        )

    def find(self, run: int, partition: int, session_id: str) -> tuple[ClosedSession, Given] | None:
        """A session as it was put away."""
        row = self._file.execute(
            "SELECT state, samples, tokens, trained, reward FROM closed"
            " WHERE part = ? AND session = ? AND run = ? AND state IS NOT NULL",
            (partition, session_id, run),
        ).fetchone()
        if row is None:
            return None
        marker, late = msgpack.unpackb(row[0])
        state = ClosedSession.of(read_marker(marker))
        for position, value in late:
            reward = codec.from_msgpack(value)
            assert isinstance(reward, Reward), "only rewards come late"
            read_back(state, reward, position)
        return state, Given(*row[1:])

    def purge(self, run: int, partition: int, floor: int) -> None:
        """Forget those that a purge removes; what they gave still counts."""
        self._file.execute(
            "UPDATE closed SET state = NULL WHERE run = ? AND part = ? AND newest < ?",
            (run, partition, floor),
        )

    def differing(self) -> int:
        """How many sessions gave something else, or closed in one run only."""
        (count,) = self._file.execute(f"SELECT count(*) FROM ({_DIFFERENCES})").fetchone()
        return int(count)

    def most_different(self, most: int) -> list[Difference]:
        """Those that differ most: in trained tokens, else in length, samples, reward."""
        rows = self._file.execute(
            f"{_DIFFERENCES} ORDER BY abs(n1 - n0) DESC, abs(t1 - t0) DESC, abs(s1 - s0) DESC,"
            " abs(r1 - r0) DESC, session LIMIT ?",
            (most,),
        )
        return [
            Difference(session, Given(s0, t0, n0, r0), Given(s1, t1, n1, r1))
            for session, s0, s1, t0, t1, n0, n1, r0, r1 in rows
        ]
