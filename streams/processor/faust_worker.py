"""One worker process: Faust's events and signals around a `Worker`.

    turns ──► agent ──► continuity check ──► worker ──► rows (changelog), samples, dead letters
                             │ gap: seek back
    every second: commit what is durable, look for stuck partitions, sweep;
    more often just after an assignment, so that a takeover is seen, and saved, as soon as it works

Invariants: an event is processed only if it is the one that had to come next, and only when its
partition's state is loaded; an offset is committed only when all that follows from it is
durable; anything unexpected ends the process, and a fresh one goes on from the last commit.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from typing import Any, NoReturn

from aiohttp import web
from faust.types import TP

from streams.errors import WrongTopic
from streams.log.interface import Log
from streams.log.withheld import Withheld
from streams.processor import faust_hooks
from streams.processor.arrivals import Incoming
from streams.processor.faust_app import build_app, build_table, turns_topic
from streams.processor.health import Progress, serve
from streams.processor.offsets import Arrival, Offsets
from streams.processor.outlet import Outlet
from streams.processor.recovery import first_offset, recover
from streams.processor.rules import rules_from
from streams.processor.sweeper import Sweeper
from streams.processor.worker import Worker
from streams.settings import Settings

EXIT_FAILED = 70
"""Something unexpected: nothing was committed past it."""
EXIT_NO_TOPICS = 76
"""The consumer does not see our topics: it would be assigned nothing, for ever."""
_IN_ONE_GO = 32
"""Events taken without a turn of the event loop between them."""
_SEEK_AGAIN_S = 0.5
_SEEKS_MAX = 2
"""For one missing event, before the log is asked whether it has it at all."""
_LOOK_S = 0.1
_SETTLING_S = 2.0
"""After an assignment, with a commit at every look: a second rebalance often follows the first."""
_GOODBYE_S = 10.0
"""To leave the group and close connections, once nothing is left to commit."""


def die(why: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the process now; state that may be wrong must not be used once more."""
    sys.stderr.write(f"turnstream processor: {why}\n")
    sys.stderr.flush()
    os._exit(code)


class Processor:
    """One worker process: Faust around a `Worker`."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Build the app; nothing is connected yet."""
        self.settings = settings
        self.log = log
        self.counts: Counter[str] = Counter()
        self.outlet = Outlet(settings, log, self.counts, die)
        self.worker = Worker(settings, rules_from(settings), self.outlet, self.counts, die)
        self.sweeper = Sweeper(settings, log, self.outlet)
        self.offsets: dict[int, Offsets] = {}
        self.last_event_s: dict[int, float] = {}
        self.seek_s: dict[int, float] = {}
        self.assigned_s = time.monotonic()
        self.generation = -1
        self.metadata_missing_s: float | None = None
        self.loaded: set[int] = set()
        """Partitions whose state is complete; events of others are dropped and read again."""
        self.swept_s = 0.0
        self.health: web.AppRunner | None = None
        faust_hooks.install(settings.fetch_wait_ms, settings.record_bytes_max)
        self.app = build_app(settings)
        self.app.tables.add(build_table(self.app, settings, self))
        topic = turns_topic(self.app, settings)
        self.app.agent(topic, name="turns", concurrency=1)(self._consume)
        self.app.task(self._every_second)
        self.app.task(self._answer_health)
        self.app.on_partitions_revoked.connect(self._revoked, weak=False)
        leave_after_s = 2 * settings.processor_drain_timeout_s + _GOODBYE_S
        faust_hooks.before_consumer_stops(self.app, self._finish, leave_after_s, EXIT_FAILED)

    def keep_only(self, partitions: set[int]) -> None:
        """Forget partitions that are another worker's now."""
        self.loaded &= partitions
        for partition in [p for p in self.worker.states if p not in partitions]:
            self.worker.drop(partition)

    async def recovered(self, partitions: set[int]) -> None:
        """Faust waits here before events flow; it would swallow an error, so none may escape."""
        self.loaded.clear()
        generation = self.app.consumer_generation_id
        began = time.monotonic()
        try:
            read = await recover(partitions, self.worker, self.outlet, self.log, self.settings)
            if generation != self.app.consumer_generation_id:
                self.keep_only(set())
                return
            for partition in partitions:
                await self.worker.clear_spent(partition)
        except asyncio.CancelledError:
            raise
        except WrongTopic as error:
            die(f"recovery: {error}", EXIT_NO_TOPICS)
        except BaseException as error:
            die(f"recovery: {error!r}")
        self.loaded = set(partitions)
        self.assigned_s = time.monotonic()  # settling begins when events can flow
        took_ms = int((time.monotonic() - began) * 1000)
        self.counts["recoveries"] += 1
        self.counts["rows_recovered"] += read.rows
        self.counts["foreign_rows"] += read.foreign
        self.counts["recovery_ms"] += took_ms
        sys.stderr.write(
            f"turnstream processor: recovered {read.rows} rows of partitions {sorted(partitions)} "
            f"in {took_ms} ms\n"
        )

    async def _consume(self, stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                await self._arrive(event.message)
                for message in faust_hooks.buffered(self.app, stream, _IN_ONE_GO):
                    await self._arrive(message)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            die(f"agent: {error!r}")

    async def _arrive(self, message: Any) -> None:
        partition, offset = message.partition, message.offset
        offsets = self.offsets.get(partition)
        if partition not in self.loaded:
            return
        if offsets is None or offsets.generation != message.generation_id:
            if message.generation_id != self.app.consumer_generation_id:
                return
            start = await faust_hooks.committed_offset(
                self.app, self.settings.turns_topic, partition
            )
            # The partition may have gone to another worker while the broker was asked.
            current = message.generation_id == self.app.consumer_generation_id
            if partition not in self.loaded or not current:
                return
            offsets = self.offsets[partition] = Offsets(message.generation_id, start)
        value = message.value
        if isinstance(value, Withheld) and value.first is not None:
            offsets.pass_over(value.first, offset)
        arrival = offsets.arrive(offset)
        if arrival is not Arrival.NEXT:
            self.counts[f"arrived_{arrival.name.lower()}"] += 1
            if arrival is Arrival.GAP:
                await self._mend_gap(partition, offsets)
            return
        # Only what moves counts: events behind a gap come for ever on a busy log.
        self.last_event_s[partition] = time.monotonic()
        incoming = Incoming(partition, offset, int(message.timestamp * 1000), message.key, value)
        await self.worker.handle(incoming, offsets.begin(offset))

    async def _mend_gap(self, partition: int, offsets: Offsets) -> None:
        """Fetch what was skipped; what the log itself does not have any more is passed over."""
        if time.monotonic() - self.seek_s.get(partition, 0.0) < _SEEK_AGAIN_S:
            return  # what was fetched before the last seek is still arriving
        if offsets.seeks < _SEEKS_MAX:
            offsets.seeks += 1
            await self._seek_back(partition, offsets)
            return
        missing = offsets.next
        there = await first_offset(self.log, self.settings.turns_topic, partition, missing)
        offsets.seeks = 0
        if there is not None and there > missing and offsets.next == missing:
            self.counts["offsets_missing"] += there - missing
            sys.stderr.write(
                f"turnstream processor: {self.settings.turns_topic}/{partition} has nothing from "
                f"{missing} to {there - 1}: retention took it, or a producer is transactional\n"
            )
            offsets.skip_to(there)

    async def _seek_back(self, partition: int, offsets: Offsets) -> None:
        self.counts["seeks"] += 1
        self.seek_s[partition] = time.monotonic()
        place = TP(self.settings.turns_topic, partition)
        try:
            # In the consumer's own thread; a plain seek from here breaks its fetcher.
            await self.app.consumer.seek_wait({place: offsets.next})
        except Exception as error:  # a rebalance meanwhile took the place away: it is asked again
            self.counts["seeks_failed"] += 1
            sys.stderr.write(f"turnstream processor: seek to {place}: {error!r}\n")

    async def _every_second(self) -> None:
        try:
            await self._look_after()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            die(f"once a second: {error!r}")

    async def _look_after(self) -> None:
        interval_s = self.settings.processor_commit_interval_s
        looked_s = 0.0
        while True:
            await asyncio.sleep(min(_LOOK_S, interval_s))
            if self.app.rebalancing or self.app.should_stop:
                continue
            if self.generation != self.app.consumer_generation_id:
                self.generation = self.app.consumer_generation_id
                self.assigned_s = time.monotonic()
            now_s = time.monotonic()
            settling = now_s - self.assigned_s < _SETTLING_S
            if not settling and now_s - looked_s < interval_s:
                continue
            looked_s = now_s
            self._check_metadata()
            await self.commit()
            await self._unstick()
            # What the sweep asks the broker would hold up the takeover's commits.
            if not settling and now_s - self.swept_s > self.settings.processor_sweep_interval_s:
                self.swept_s = now_s
                await self.sweeper.sweep(self.loaded, self.worker.state, self._next)

    async def commit(self) -> None:
        """Commit every position that moved, for the current generation only."""
        positions = {
            partition: offsets.position
            for partition, offsets in self.offsets.items()
            if offsets.position != offsets.committed
            and offsets.generation == self.app.consumer_generation_id
        }
        if positions and await faust_hooks.commit(self.app, self.settings.turns_topic, positions):
            for partition, position in positions.items():
                if partition in self.offsets:
                    self.offsets[partition].committed = position

    async def _unstick(self) -> None:
        """Read a place again if the log has events there and none arrives."""
        now, stuck_s = time.monotonic(), self.settings.processor_stuck_after_s
        for tp in list(self.app.consumer.assignment()):
            if tp.topic != self.settings.turns_topic or self.app.rebalancing:
                continue
            end = self.app.consumer.highwater(tp)
            quiet_s = now - max(
                self.last_event_s.get(tp.partition, 0.0),
                self.seek_s.get(tp.partition, 0.0),
                self.assigned_s,
            )
            offsets = self.offsets.get(tp.partition)
            if offsets is not None and offsets.generation != self.app.consumer_generation_id:
                continue
            if not end or quiet_s < stuck_s:
                continue
            if offsets is None:
                generation = self.app.consumer_generation_id
                start = await faust_hooks.committed_offset(self.app, tp.topic, tp.partition)
                if tp.partition not in self.loaded or generation != self.app.consumer_generation_id:
                    return
                offsets = self.offsets[tp.partition] = Offsets(generation, start)
            if end > offsets.next:
                self.counts["unstuck"] += 1
                await self._mend_gap(tp.partition, offsets)

    def _next(self, partition: int) -> int | None:
        offsets = self.offsets.get(partition)
        return offsets.next if offsets is not None else None

    async def _answer_health(self) -> None:
        try:
            self.health = await serve(self.settings, self.counts, self.look)
        except OSError as error:
            place = f"{self.settings.metrics_host}:{self.settings.metrics_port}"
            die(f"health and metrics cannot be served on {place}: {error}")

    def look(self) -> Progress:
        """Whether the worker moves, for whoever may replace it."""
        silent_s = faust_hooks.silent_s()
        away = silent_s > self.settings.away_after_s
        lag, trouble = 0, None if self.loaded else "no partitions are assigned"
        now, patience_s = time.monotonic(), 3 * self.settings.processor_stuck_after_s
        assigned = self.app.consumer.assignment() if self.loaded else ()
        for partition in self.loaded:
            place = TP(self.settings.turns_topic, partition)
            if place not in assigned:
                continue  # it is being given up at this moment
            offsets = self.offsets.get(partition)
            end = self.app.consumer.highwater(place) or 0
            behind = max(0, end - (offsets.position if offsets is not None else end))
            lag += behind
            seen_s = max(self.last_event_s.get(partition, 0.0), self.assigned_s)
            if behind and now - seen_s > patience_s:
                trouble = f"partition {partition} is {behind} events behind and does not move"
        if away:
            # The consumer keeps what it last knew, so every count of the log is of that time.
            trouble = f"no answer from the broker for {silent_s:.0f} s: what it has is unknown"
        states = self.worker.states.values()
        return Progress(
            partitions=len(self.loaded),
            lag=None if away else lag,
            sessions_open=sum(
                sum(session_id not in state.markers for session_id in state.rows)
                for state in states
            ),
            in_flight=self._pending(),
            ready=bool(self.loaded),
            trouble=trouble,
        )

    def _check_metadata(self) -> None:
        settings = self.settings
        topics = (settings.turns_topic, settings.changelog_topic)
        seen = [faust_hooks.partitions_known(self.app, topic) for topic in topics]
        if seen == [settings.partitions] * len(topics):
            self.metadata_missing_s = None
        elif self.metadata_missing_s is None:
            self.metadata_missing_s = time.monotonic()
        elif time.monotonic() - self.metadata_missing_s > settings.processor_idle_exit_s:
            detail = f"the broker shows {seen} partitions of {topics}, not {settings.partitions}"
            die(detail, EXIT_NO_TOPICS)

    async def _revoked(self, *_: Any, **__: Any) -> None:
        await self._finish()
        self.loaded.clear()
        self.offsets.clear()
        self.sweeper.forget()

    def _pending(self) -> int:
        return sum(offsets.pending for offsets in self.offsets.values())

    async def _finish(self) -> None:
        """Let what is in flight become durable, for a while, and commit it."""
        until = time.monotonic() + self.settings.processor_drain_timeout_s
        while self._pending() and time.monotonic() < until:  # noqa: ASYNC110  # many futures end it
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(self.commit(), self.settings.processor_drain_timeout_s)
        except Exception as error:  # what is not committed is only done once more
            self.counts["commits_failed"] += 1
            sys.stderr.write(f"turnstream processor: commit at the end: {error!r}\n")
