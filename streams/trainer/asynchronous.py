"""The same subscription for loops that await: `async for batch in batches`.

Invariant: a batch is handed out in the event loop itself, so a wait that was cancelled has lost
none.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from schemas.record import NOT_GIVEN
from streams.errors import TooLarge
from streams.trainer.batches import Batch
from streams.trainer.subscription import Core, Statistics

_SLICE_S = 0.25


class AsyncSubscription(Core):
    """Iterates over batches; used from one event loop."""

    async def __aenter__(self) -> Self:
        """Closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def __aiter__(self) -> AsyncIterator[Batch]:
        """Batches, until the log is closed; or its end, with `until_end`."""
        return self

    async def __anext__(self) -> Batch:
        """Wait for the next batch."""
        await asyncio.to_thread(self._begin)
        feed = self._feed
        assert feed is not None, "begun"
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        feed.on_change = wake
        try:
            while True:
                woken.clear()
                with feed.changed:
                    try:
                        batch = self._attempt()
                    except StopIteration:
                        raise StopAsyncIteration from None
                if batch is not None:
                    whole = batch
                    if self._unready(batch):
                        whole = await feed.awaited(self._filled(batch))
                    self._unfilled = None
                    return whole
                begun_s = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SLICE_S):
                        await woken.wait()
                self._note_wait(begun_s)
        finally:
            feed.on_change = None
            self._line.clear()

    async def commit(
        self,
        step: int,
        version: int,
        statistics: Statistics | None = None,
        *,
        batches: Sequence[Batch] | None = None,
    ) -> None:
        """As `Subscription.commit`."""
        record, numbers = self._trained(step, version, statistics, batches)
        feed = self._feed
        assert feed is not None, "begun"
        try:
            ours = await feed.awaited(feed.commit(record, numbers))
        except TooLarge:
            record = msgspec.structs.replace(record, statistics=NOT_GIVEN)
            ours = await feed.awaited(feed.commit(record, numbers))
        self._committed(step, version, numbers, ours)

    async def close(self) -> None:
        """As `Subscription.close`."""
        self._closed = True
        self._line.clear()
        if self._feed is not None:
            await asyncio.to_thread(self._feed.close)
