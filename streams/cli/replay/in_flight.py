"""Entries sent and not yet durable, so many and so large at most.

The broker may have a lower limit than ours and refuse an entry long after it was sent, while
others are sent behind it. That entry alone is refused, under the place it came from.

Invariant: they are waited for in the order they were sent; each is settled or refused, once.
"""

from collections import deque
from collections.abc import Callable

from streams.errors import TooLarge
from streams.log.interface import Log, Outgoing, Position, Sending

ENTRIES_MAX = 1000
BYTES_MAX = 64 << 20

Settled = Callable[[Outgoing, Sending, Position], None]
Refused = Callable[[str, Outgoing, Sending, TooLarge], None]
"""Of what came from the place that is named."""


class InFlight:
    """Sends to one log."""

    def __init__(self, log: Log, settled: Settled, refused: Refused) -> None:
        """Nothing is on its way.

        Args:
            log: Where they go.
            settled: Called for each entry once it is durable.
            refused: Called for each that was sent and that the broker finds too large.
        """
        self._log = log
        self._settled = settled
        self._refused = refused
        self._sent: deque[tuple[str, Outgoing, Sending]] = deque()
        self._bytes = 0

    async def send(self, outgoing: Outgoing, place: str) -> Sending:
        """Hand over an entry that came from this place; waits while too much is on its way.

        Raises:
            TooLarge: this entry is over our limit; nothing was sent.
        """
        sending = await self._log.send(outgoing)
        self._sent.append((place, outgoing, sending))
        self._bytes += len(outgoing.value or b"")
        while len(self._sent) > ENTRIES_MAX or self._bytes > BYTES_MAX:
            await self._wait()
        return sending

    async def finish(self) -> None:
        """Wait until everything is durable."""
        while self._sent:
            await self._wait()

    async def _wait(self) -> None:
        place, outgoing, sending = self._sent.popleft()
        self._bytes -= len(outgoing.value or b"")
        try:
            position = await sending
        except TooLarge as error:
            self._refused(place, outgoing, sending, error)
        else:
            self._settled(outgoing, sending, position)
