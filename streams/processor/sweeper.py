"""When a worker sweeps: only where it has done all that the log held at the last look.

The broker itself is asked how far the log reaches. While it does not answer, nobody could have
published, so that time is nobody's silence: what was known is forgotten and counted anew.

Invariant: an expiry is asked for only if the broker answered, twice, with nothing undone.
"""

import time
from collections.abc import Callable, Iterable

from schemas import codec
from streams.errors import LogError
from streams.log.interface import Log, Outgoing
from streams.log.keys import event_key
from streams.processor.outlet import Outlet
from streams.processor.partition_state import PartitionState
from streams.processor.sweep import due_purge, expired_sessions
from streams.settings import Settings

_ASK_AGAIN_S = 60.0
"""Before an expiry is published once more for the same silence."""


class Sweeper:
    """Asks for the end of silent sessions, and for old markers to go."""

    def __init__(self, settings: Settings, log: Log, outlet: Outlet) -> None:
        """Nothing was looked at yet."""
        self._settings = settings
        self._log = log
        self._outlet = outlet
        self._caught_up_s: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """Where the log reached at the last look."""
        self._asked_s: dict[tuple[str, int], float] = {}

    def forget(self) -> None:
        """Partitions were given up, or the broker did not answer."""
        self._caught_up_s.clear()
        self._ends.clear()

    async def sweep(
        self,
        partitions: Iterable[int],
        state_of: Callable[[int], PartitionState],
        next_of: Callable[[int], int | None],
    ) -> None:
        """Look once; `next_of` is how far a partition is worked on, if anything of it came."""
        try:
            ends = await self._log.end_positions(self._settings.turns_topic)
        except LogError:
            self.forget()
            return
        now_s = time.monotonic()
        self._asked_s = {k: s for k, s in self._asked_s.items() if now_s - s < _ASK_AGAIN_S}
        for partition in sorted(partitions):
            before, self._ends[partition] = self._ends.get(partition), ends[partition]
            done = next_of(partition)
            # A busy log has always more: what stood there at the last look has to be done.
            if before is None or (before and (done is None or done < before)):
                self._caught_up_s.pop(partition, None)
                continue
            since_s = self._caught_up_s.setdefault(partition, now_s)
            await self._ask(partition, state_of(partition), now_s - since_s, now_s)

    async def _ask(
        self, partition: int, state: PartitionState, caught_up_for_s: float, now_s: float
    ) -> None:
        topic, now_ms = self._settings.turns_topic, time.time() * 1000
        caught_up_ms = now_ms - caught_up_for_s * 1000
        for expired in expired_sessions(state, now_ms, caught_up_ms, self._settings):
            asked = (expired.session_id, expired.last_offset or 0)
            if asked not in self._asked_s:
                self._asked_s[asked] = now_s
                key, value = event_key(expired.session_id), codec.to_msgpack(expired)
                # Where its rows are, also if another partitioner put them there.
                await self._outlet.send(
                    Outgoing(topic=topic, key=key, value=value, partition=partition)
                )
        purge = due_purge(state, now_ms, self._settings)
        if purge is not None and ("", partition) not in self._asked_s:
            self._asked_s["", partition] = now_s
            value = codec.to_msgpack(purge)
            await self._outlet.send(
                Outgoing(topic=topic, key=None, value=value, partition=partition)
            )
