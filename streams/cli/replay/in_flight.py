"""Entries sent and not yet durable, so many and so large at most.

Invariant: they are waited for in the order they were sent.
"""

from collections import deque
from collections.abc import Callable

from streams.log.interface import Log, Outgoing, Position, Sending

ENTRIES_MAX = 1000
BYTES_MAX = 64 << 20

Settled = Callable[[Outgoing, Sending, Position], None]


class InFlight:
    """Sends to one log."""

    def __init__(self, log: Log, settled: Settled) -> None:
        """Nothing is on its way; `settled` is called for each entry once it is durable."""
        self._log = log
        self._settled = settled
        self._sent: deque[tuple[Outgoing, Sending]] = deque()
        self._bytes = 0

    async def send(self, outgoing: Outgoing) -> Sending:
        """Hand an entry over; waits while too much is on its way.

        Raises:
            TooLarge: over the limit; nothing was sent.
        """
        sending = await self._log.send(outgoing)
        self._sent.append((outgoing, sending))
        self._bytes += len(outgoing.value or b"")
        while len(self._sent) > ENTRIES_MAX or self._bytes > BYTES_MAX:
            await self._wait()
        return sending

    async def finish(self) -> None:
        """Wait until everything is durable."""
        while self._sent:
            await self._wait()

    async def _wait(self) -> None:
        outgoing, sending = self._sent[0]
        position = await sending
        self._sent.popleft()
        self._bytes -= len(outgoing.value or b"")
        self._settled(outgoing, sending, position)
