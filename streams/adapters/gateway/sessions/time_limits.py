"""When a session's own time is up: a timer for each open session that has a limit.

    opened here or read back ──► its timer runs ──► up: ended as timeout, turns kept
                                              └──► ended before: no timer

A gateway that starts again learns of a session by its next call; until then nobody's time is up,
and one that never calls again is left to the limits that hold for all sessions.

Invariant: a session that is over has no timer; no session's time touches another's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from streams.adapters.gateway.sessions.session import Session
from streams.adapters.time_limit import WALL_MS

Ends = Callable[[str, int], Awaitable[None]]
"""Ends a session whose limit, in milliseconds, is over."""


class TimeLimits:
    """The timers of one gateway."""

    def __init__(self) -> None:
        """None runs."""
        self.end: Ends | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def watch(self, session: Session) -> None:
        """Let its time run, if it has a limit."""
        limit_ms = session.budget(WALL_MS)
        if limit_ms is None or session.session_id in self._timers:
            return
        left_s = (session.opened_ms + limit_ms) / 1000 - time.time()
        self._timers[session.session_id] = asyncio.get_running_loop().call_later(
            max(0.0, left_s), self._up, session.session_id, limit_ms
        )

    def forget(self, session_id: str) -> None:
        """It is over."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    async def close(self) -> None:
        """End nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
        for ending in self._ending:
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _up(self, session_id: str, limit_ms: int) -> None:
        if self.end is not None:
            ending = asyncio.ensure_future(self.end(session_id, limit_ms))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
