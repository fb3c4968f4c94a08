"""How many requests, and how many bytes of bodies, are under way: of each session and of all.

    begin ──► take(bytes), as they arrive ──► hold until the turn is recorded ──► released

A body's text stays in memory until its turn is recorded, so its bytes count for as long.

Invariant: whatever one session sends, it holds at most `gateway_session_calls_max` requests and
`gateway_session_body_bytes_max` bytes; what was taken is given back once its last holder is done.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from streams.adapters.dialects.calls import CallRefused
from streams.settings import Settings


@dataclass(slots=True, eq=False)
class SessionUse:
    """What one session has under way."""

    calls: int = 0
    bytes: int = 0
    in_thread: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread works on a body, so that a session has one such body at a time."""


class RequestLimits:
    """Counts what is under way and refuses what is too much."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is under way."""
        self._settings = settings
        self._sessions: dict[str, SessionUse] = {}
        self.bytes = 0
        """Of all bodies."""

    def begin(self, session_id: str | None) -> "RequestUse":
        """One more request of a session; without one (the control API) only the total is bounded.

        Raises:
            CallRefused: the session has as many as it may have.
        """
        if session_id is None:
            return RequestUse(self, None, SessionUse())
        use = self._sessions.setdefault(session_id, SessionUse())
        most = self._settings.gateway_session_calls_max
        if use.calls >= most:
            detail = f"this session has {most} calls under way, as many as it may: wait for one"
            raise CallRefused(429, detail, kind="rate_limit_error", code="too_many_calls")
        use.calls += 1
        return RequestUse(self, session_id, use)

    def take(self, use: SessionUse, count: int, *, bounded: bool) -> None:
        """Count bytes before they are kept.

        Raises:
            CallRefused: they would be too many.
        """
        most = self._settings.gateway_session_body_bytes_max
        if bounded and use.bytes + count > most:
            detail = f"the calls of this session that are under way hold {most} bytes: wait for one"
            raise CallRefused(429, detail, kind="rate_limit_error", code="too_many_bytes")
        if self.bytes + count > self._settings.gateway_total_body_bytes_max:
            raise CallRefused(
                503, "the gateway holds too many requests: try again", kind="unavailable"
            )
        use.bytes += count
        self.bytes += count

    def give_back(self, session_id: str | None, use: SessionUse, count: int) -> None:
        """A request is over, with all its bytes."""
        self.bytes -= count
        use.bytes -= count
        use.calls -= 1
        if session_id is not None and use.calls == 0:
            del self._sessions[session_id]


class RequestUse:
    """What one request has taken, until everyone who holds it is done."""

    def __init__(self, limits: RequestLimits, session_id: str | None, use: SessionUse) -> None:
        """Held by whoever began it."""
        self._limits = limits
        self._session_id = session_id
        self._use = use
        self._bytes = 0
        self._holders = 1

    @property
    def in_thread(self) -> asyncio.Lock:
        """Held while a thread works on a body of the session."""
        return self._use.in_thread

    def take(self, count: int) -> None:
        """Count bytes before they are kept; negative: they were let go.

        Raises:
            CallRefused: they would be too many.
        """
        self._limits.take(self._use, count, bounded=self._session_id is not None)
        self._bytes += count

    def hold_until_done(self, task: "asyncio.Task[Any]") -> None:
        """Hold it for a task, too, also if nobody waits for that any more."""

        def done(task: "asyncio.Task[Any]") -> None:
            if not task.cancelled():
                task.exception()  # whoever waited has it
            self.release()

        self._holders += 1
        task.add_done_callback(done)

    def release(self) -> None:
        """One holder is done."""
        self._holders -= 1
        if self._holders == 0:
            self._limits.give_back(self._session_id, self._use, self._bytes)
