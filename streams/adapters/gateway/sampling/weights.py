"""Weight updates as every gateway hears of them: who has to wait, and which version is declared.

    control API of any gateway ──► turnstream.control ──► every gateway
    pause, resume(version)         the last are kept       calls of the run wait, or go on

A pause that nobody ends holds a call for a bounded time, counted from whatever came later, the
call or the pause; then the call is refused and may be tried again.

Invariant: nothing counts before the log has it, so that a gateway that starts later, or again,
knows the same; runs do not touch each other; every wait is bounded.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.control import DEFAULT_RUN, Paused, Resumed
from streams.adapters.engines.interface import EngineError
from streams.adapters.gateway.following import Follower
from streams.adapters.gateway.sampling.engine_labels import EngineLabels, Sighting
from streams.adapters.gateway.sampling.run_weights import RunWeights
from streams.errors import LogAway, LogError
from streams.log.interface import Entry, Log, Outgoing
from streams.log.keys import control_key
from streams.settings import Settings

_CATCH_UP_S = 5.0
"""For what the log has by now: a stream is not to stand still for a log that is away."""


class StillPaused(EngineError):
    """The run was paused for longer than a call may wait."""


class Weights:
    """Every run's state, as far as the control topic was read."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Nothing is read yet."""
        self._settings = settings
        self._log = log
        start = settings.gateway_weight_version
        self._first = RunWeights(version=start, start_version=start)
        self._labels: dict[tuple[str, str | None], EngineLabels] = {}
        """By run and replica: an update of a run is seen by its own sessions."""
        self._runs: dict[str, RunWeights] = {}
        self._heard_s: dict[str, float] = {}
        """When a pause was heard of."""
        self._read: dict[int, int] = {}
        """What comes next, by partition."""
        self._news = asyncio.Event()
        """Set, and replaced, whenever something was read."""
        self._follower = Follower(log, settings.control_topic, self._meet, look_back=None)
        self._known = False
        self._asking: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None
        """The question to the log that is under way, and the one after it."""
        self.engine_tells = False
        """Whether the engine has ever said a version by itself."""

    def follow(self) -> None:
        """Read what was declared before, then everything as it comes."""
        self._follower.start()

    async def close(self) -> None:
        """Let go of the log."""
        await self._follower.close()
        asked = {task for task in (self._asking, self._next) if task is not None}
        for task in asked:
            task.cancel()
        if asked:
            await asyncio.wait(asked)

    def of(self, run_id: str | None) -> RunWeights:
        """A run, as far as it is known."""
        return self._runs.get(run_id or DEFAULT_RUN, self._first)

    def see_label(self, run_id: str | None, label: str, at: Sighting) -> None:
        """A replica reported this label to a session of the run."""
        self._labels_of(run_id, at.replica).add(label, at.update, paused=at.paused)

    def version_of(self, run_id: str | None, label: str | None, at: Sighting) -> int | None:
        """The declared version of tokens that came so, if their engine was seen to have it."""
        labels = self._labels_of(run_id, at.replica)
        update = labels.update_of(label, at.update, paused=at.paused)
        return None if update is None else self.of(run_id).version_of(update)

    def _labels_of(self, run_id: str | None, replica: str | None) -> EngineLabels:
        return self._labels.setdefault((run_id or DEFAULT_RUN, replica), EngineLabels())

    def has_versions(self, run_id: str | None) -> bool:
        """Whether any version of the run's weights was declared, or the engine reports them."""
        return self.engine_tells or self.of(run_id).version is not None

    @property
    def paused(self) -> int:
        """How many runs wait."""
        return sum(run.paused for run in self._runs.values())

    async def known(self) -> None:
        """Wait until what was declared before this gateway started is read.

        Raises:
            LogAway: not in time.
        """
        if not self._known:
            await self._follower.looked_back(self._settings.request_timeout_s)
            self._known = True

    async def opened(self, run_id: str | None, since_s: float) -> None:
        """Wait while the run is paused; `since_s` is when the call began.

        Raises:
            StillPaused: for longer than a call may wait.
        """
        most_s = self._settings.gateway_pause_wait_s
        while self.of(run_id).paused:
            heard_s = self._heard_s.get(run_id or DEFAULT_RUN, since_s)
            left_s = max(since_s, heard_s) + most_s - time.monotonic()
            if left_s <= 0:
                raise StillPaused(
                    f"run {run_id or DEFAULT_RUN} is paused for a weight update, for more than "
                    f"{most_s:g} s: try again"
                )
            await self._changed(left_s, lambda: not self.of(run_id).paused)

    async def caught_up(self) -> bool:
        """Read what the log has by now; False: it does not answer in time.

        Many calls ask at once. Those that come while the log is asked share the next question.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._asked_after(self._asking))
        return await asyncio.shield(self._next)

    async def _asked_after(self, before: "asyncio.Task[bool] | None") -> bool:
        if before is not None:
            await asyncio.wait({before})
        self._asking, self._next = self._next, None
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                await self._catch_up()
                return True
        return False

    async def tell(self, record: Paused | Resumed) -> None:
        """Write a record; returns when it is durable and counts here.

        Raises:
            LogError: it may be there or not.
        """
        position = await self._log.publish(
            Outgoing(
                topic=self._settings.control_topic,
                key=control_key(record),
                value=codec.to_msgpack(record),
            )
        )
        await self._until_read({position.partition: position.offset + 1})

    async def up_to_date(self) -> None:
        """As `caught_up`, for whoever decides something by it.

        Raises:
            LogError: the log does not answer.
        """
        await self.known()
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await self._catch_up()
        except TimeoutError:
            raise LogAway(f"{self._settings.control_topic} was not read in time") from None

    async def _catch_up(self) -> None:
        topic = self._settings.control_topic
        ends = await self._log.end_positions(topic)
        if all(self._read.get(p, 0) >= end for p, end in ends.items()):
            return
        # What retention took cannot be met.
        starts = await self._log.start_positions(topic)
        await self._until_read({p: end for p, end in ends.items() if end > starts.get(p, 0)})

    async def _until_read(self, ends: dict[int, int]) -> None:
        def is_read() -> bool:
            return all(self._read.get(p, 0) >= end for p, end in ends.items())

        seconds = self._settings.request_timeout_s
        if not is_read() and not await self._changed(seconds, is_read):
            raise LogAway(f"{self._settings.control_topic} was not read in {seconds:g} s")

    async def _changed(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Wait until it holds; whether it does."""
        until_s = time.monotonic() + seconds
        while not holds():
            news, left_s = self._news, until_s - time.monotonic()
            if left_s <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await news.wait()
        return True

    def _meet(self, entry: Entry) -> None:
        at = entry.position
        if at.offset < self._read.get(at.partition, 0):
            return  # met before; a pause that is over must not begin again
        self._read[at.partition] = at.offset + 1
        with contextlib.suppress(BadRecord):  # nobody's, then
            record = codec.from_msgpack(entry.value or b"")
            if isinstance(record, Paused | Resumed):
                self._take(record, entry.timestamp_ms)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _take(self, record: Paused | Resumed, at_ms: int) -> None:
        before = self.of(record.run_id)
        now = self._runs[record.run_id] = before.after(record, at_ms)
        if now.paused and not before.paused:
            self._heard_s[record.run_id] = time.monotonic()
