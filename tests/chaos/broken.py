"""What a worker must not do, as patches of the one that does right.

Each takes away one thing the processor does for a reason; `variants` says what has to go wrong.

Invariant: nothing is patched unless a variant was asked for by name.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from schemas.events import Reward, SessionExpired
from streams.core import session as core
from streams.core.effects import Effects
from streams.core.state import OpenSession, Rules
from streams.log.interface import Log, Outgoing
from streams.processor import faust_worker
from streams.processor.arrivals import Arrived, Incoming, read_event
from streams.processor.faust_app import turns_topic
from streams.processor.faust_worker import Processor
from streams.processor.offsets import Arrival, Entry, Offsets
from streams.processor.outlet import Acknowledged, Outlet
from streams.processor.partition_state import PartitionState
from streams.processor.worker import Worker
from streams.settings import Settings

NO_CONTINUITY = "no-continuity-check"
MARKER_FIRST = "marker-before-sample-acks"
STOCK_COMMIT = "stock-faust-commit"
UNGUARDED_EXPIRY = "expiry-without-last-offset"
REWARDS_DROPPED = "rewards-dropped-while-closing"

_HASTE_S = 0.5
_SLOW_CLOSE_S = 3.0


def workers(variant: str) -> tuple[type[Worker], ...]:
    """What a variant puts over the worker."""
    return {REWARDS_DROPPED: (DropsRewards,), STOCK_COMMIT: (ClosesSlowly,)}.get(variant, ())


def processor(variant: str, right: type[Processor]) -> Callable[[Settings, Log], Processor]:
    """The processor of a variant; the right one if there is none."""
    if variant == NO_CONTINUITY:
        Offsets.arrive = _take_what_comes  # type: ignore[method-assign]
    elif variant == UNGUARDED_EXPIRY:
        core._STEPS[SessionExpired] = _expire_anyway
    elif variant == STOCK_COMMIT:
        setattr(faust_worker, "turns_topic", _acknowledged_topic)  # noqa: B010  # not ours to name
        return type("StockCommit", (_StockCommit, right), {})
    elif variant and variant not in {MARKER_FIRST, REWARDS_DROPPED}:
        raise SystemExit(f"no variant {variant}")
    return right


class HastyOutlet(Outlet):
    """Calls a sample sent before it is: the marker can be durable when the samples are not."""

    _later: ClassVar[list[asyncio.Task[None]]] = []

    async def send(self, record: Outgoing) -> Acknowledged:
        if record.topic != self._settings.samples_topic:
            return await super().send(record)

        async def send_later() -> None:
            await asyncio.sleep(_HASTE_S)
            await super(HastyOutlet, self).send(record)

        self._later.append(asyncio.create_task(send_later()))
        done: Acknowledged = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class DropsRewards(Worker):
    """Takes a closing session for a closed one."""

    async def handle(self, incoming: Incoming, entry: Entry) -> None:
        event = read_event(incoming.key, incoming.value)
        if isinstance(event, Reward) and (incoming.partition, event.session_id) in self._closing:
            entry.release()
            return
        await super().handle(incoming, entry)


class ClosesSlowly(Worker):
    """Closes as a busy broker makes it close, so that Faust commits meanwhile."""

    async def _close(self, arrived: Arrived, effects: Effects, state: PartitionState) -> None:
        await asyncio.sleep(_SLOW_CLOSE_S)
        await super()._close(arrived, effects, state)


class _StockCommit(Processor):
    """Lets Faust decide what is done: an event that the agent has seen."""

    async def commit(self) -> None:
        return

    async def _consume(self, stream: Any) -> None:
        async for event in stream.events():
            await self._arrive(event.message)


def _acknowledged_topic(app: Any, settings: Settings) -> Any:
    return turns_topic(app, settings).derive(acks=True)


def _take_what_comes(self: Offsets, offset: int) -> Arrival:
    if offset < self.next:
        return Arrival.AGAIN
    self.next = offset + 1
    return Arrival.NEXT


def _expire_anyway(
    session: OpenSession, event: SessionExpired, position: int, rules: Rules
) -> Effects:
    return core._closed(session, position, rules)
