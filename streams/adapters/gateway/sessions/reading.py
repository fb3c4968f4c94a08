"""Sessions read from the log, by one pass over a partition for all that wait for it.

    partition   o  .  a  .  .  o  b  .  a  b  .  .  |      asked for: a from 2, b from 6
                      ^ begins         one pass     ^ the end when it began

A session's key says where the session begins, so all of it lies from there to the end, between
the events of others. There are two ways to it:

    forward    read the partition from there: costs what everybody wrote since
    back       follow `prev` from the newest turn: a question to the log for each turn

Measured on one broker, with turns of 20 kB: 78 us an entry forward, 5.4 ms a turn back, so a step
back costs what 70 entries forward do. Back wins only where more than 70 turns of others stand
between two of a session, and only if that session comes back alone; a gateway that takes over
from another brings all of that one's sessions back at once, and one pass serves those of a
partition together. Back is also not whole: turns that ran side by side name the same `prev`, so
some of them stand on no way back. So it is forward, shared, and bounded: whoever would need more
bytes than the limit is refused.

Invariant: a session gets its events in order, all that the log held when it asked, or an error;
what one asks for never fails another; nothing is read without a limit of bytes and of silence.
"""

import asyncio
import dataclasses

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.sessions.events import take
from streams.adapters.gateway.sessions.session import Session
from streams.errors import LogAway, NoSuchPosition
from streams.log.interface import Entry, Log, Reader
from streams.log.keys import event_key
from streams.settings import Settings

TOO_LARGE = "this session is too large to be read back from the log: end it, open a new one"
_READ_WAIT_S = 1.0
_ENTRIES_MAX = 200
"""Taken at once: other calls go on between two batches."""


@dataclasses.dataclass(slots=True, eq=False)
class _Asked:
    """One that waits to be read."""

    session: Session
    start: int
    done: "asyncio.Future[None]"
    size_bytes: int = 0
    """Read since its start, whoever's it is."""

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Passes:
    """Every reading of sessions at a gateway."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self._log = log
        self._waiting: dict[int, list[_Asked]] = {}
        self._passing: dict[int, asyncio.Task[None]] = {}
        self.passes = 0
        self.entries = 0
        """Read so far, other sessions' included."""

    async def read_on(self, session: Session) -> None:
        """Take over what the log has of a session, from its place to the end as it is now.

        Raises:
            CallRefused: it would take more bytes than the limit.
            NoSuchPosition: the log does not reach back to its place.
            LogError: it cannot be read now.
        """
        assert session.place is not None, "only a session whose place is known is read"
        partition, start = session.place
        asked = _Asked(session, start, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(partition, []).append(asked)
        if partition not in self._passing:
            self._passing[partition] = asyncio.create_task(self._work(partition))
        await asked.done

    async def close(self) -> None:
        """Stop reading; whoever still waits hears that the log is away."""
        tasks = list(self._passing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for asked in (asked for group in self._waiting.values() for asked in group):
            asked.fail(_going_down())  # its task was stopped before it began

    async def _work(self, partition: int) -> None:
        """Passes over a partition, one after the other, while somebody waits."""
        group: list[_Asked] = []
        try:
            while group := self._waiting.pop(partition, []):
                try:
                    await self._pass(partition, group)
                except Exception as error:
                    for asked in group:
                        asked.fail(error)
        finally:
            del self._passing[partition]
            for asked in (*group, *self._waiting.pop(partition, [])):
                asked.fail(_going_down())

    async def _pass(self, partition: int, group: list[_Asked]) -> None:
        topic = self._settings.turns_topic
        first = (await self._log.start_positions(topic)).get(partition, 0)
        end = (await self._log.end_positions(topic)).get(partition, 0)
        for asked in group:
            if asked.start < first:
                detail = f"session {asked.session.session_id} at {topic}/{partition}/{asked.start}"
                asked.fail(NoSuchPosition(f"{detail}: the log begins at {first}"))
        group = [asked for asked in group if not asked.done.done()]
        behind = [asked for asked in group if asked.start < end]
        if behind:
            start = min(asked.start for asked in behind)
            reader = await self._log.read(topic, {partition: start})
            try:
                await self._take_over(reader, partition, end, behind)
            finally:
                await reader.close()
        for asked in group:
            if not asked.done.done():
                asked.session.place = (partition, max(end, asked.start))
                asked.done.set_result(None)

    async def _take_over(
        self, reader: Reader, partition: int, end: int, group: list[_Asked]
    ) -> None:
        self.passes += 1
        wanted: dict[bytes, list[_Asked]] = {}
        for asked in group:
            wanted.setdefault(event_key(asked.session.session_id), []).append(asked)
        while reader.positions[partition] < end:
            if all(asked.done.done() for asked in group):
                return  # refused, or nobody waits any more
            batch = await reader.next_batch(_READ_WAIT_S, _ENTRIES_MAX)
            if not batch and reader.silent_s > self._settings.request_timeout_s:
                raise LogAway(f"read {self._settings.turns_topic}: silent for too long")
            self.entries += len(batch)
            for entry in batch:
                for asked in wanted.get(entry.key or b"", ()):
                    if asked.start <= entry.position.offset < end and not asked.done.done():
                        take(asked.session, entry)
            self._bound(group, batch)
            await asyncio.sleep(0)

    def _bound(self, group: list[_Asked], batch: list[Entry]) -> None:
        if not batch:
            return
        size_bytes, last = sum(len(e.value or b"") for e in batch), batch[-1].position.offset
        for asked in group:
            if asked.start <= last:
                asked.size_bytes += size_bytes
                if asked.size_bytes > self._settings.gateway_read_back_bytes_max:
                    error = CallRefused(410, TOO_LARGE, kind="session_gone", code="session_gone")
                    asked.fail(error)


def _going_down() -> LogAway:
    return LogAway("the gateway is going down")
