"""Where episodes are recorded, and what holds when that fails.

    NULL        nowhere: the default. No log, no thread, nothing is looked at
    Recorder    on the log of the settings
      strict    what cannot be recorded is an error of the step it belongs to: fail closed
      lenient   it is only counted, and the environment never waits for the log

Invariant: with `NULL` a wrapped environment runs its own code alone.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from schemas import codec
from schemas.events import Event
from schemas.round_trip import check_round_trip
from streams.adapters.environments.problems import NotRecorded
from streams.adapters.environments.publisher import (
    QUEUE_EVENTS_MAX,
    Handed,
    OpenLog,
    Publisher,
    create_log,
)
from streams.errors import TurnstreamError
from streams.log.default_log import find_log
from streams.log.interface import Outgoing
from streams.log.keys import event_key
from streams.log.sizes import check_size
from streams.settings import Settings

PATIENCE_S = 30.0
ENDING_S = 300.0
"""An end is tried for longer: without it the session waits until it expires."""
CLOSE_S = 10.0
"""For what is left at the end, also of the process."""


class Recorder:
    """Publishes what wrapped environments do; shared by any number of them, in any thread."""

    records = True

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        lenient: bool = False,
        patience_s: float = PATIENCE_S,
        queue_max: int = QUEUE_EVENTS_MAX,
        log: OpenLog = create_log,
    ) -> None:
        """Nothing is opened before something is recorded.

        Args:
            settings: Where the log is; unset: what the TURNSTREAM_* variables say, else the log
                of a `turnstream up` in this folder.
            lenient: Whether what cannot be recorded is only counted.
            patience_s: How long an event is tried, and a step waits for it.
            queue_max: Events that may wait for the log.
            log: Opens it.
        """
        check_round_trip()
        self.settings = settings or find_log()
        self.lenient = lenient
        self.patience_s = patience_s
        self._made_with = (self.settings, lenient, patience_s, queue_max, log)
        self._publisher = Publisher(self.settings, queue_max=queue_max, log=log)
        self._lock = threading.Lock()
        self._active: dict[str, Any] = {}
        self.strange: Counter[str] = Counter()
        """Values that had no form of their own and became text, by type."""
        atexit.register(_close_at_exit, weakref.ref(self))

    @classmethod
    def _made(cls, *words: Any) -> "Recorder":
        settings, lenient, patience_s, queue_max, log = words
        return cls(settings, lenient=lenient, patience_s=patience_s, queue_max=queue_max, log=log)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the same settings, a thread and a source of its own."""
        return Recorder._made, self._made_with

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Whoever copies an environment goes on recording in the same place."""
        return self

    @property
    def source(self) -> str:
        """Names this start of this process."""
        if self._publisher.after_fork():
            self._active = {}
            self._lock = threading.Lock()
        return self._publisher.source

    @property
    def counts(self) -> Counter[str]:
        """stored, lost, refused, retries, unrecorded_steps, unrecorded_turns."""
        return self._publisher.counts

    def count(self, name: str, number: int = 1) -> None:
        """Count something that a person may have to know."""
        with self._lock:
            self._publisher.counts[name] += number

    def hand(self, event: Event, *, ending: bool = False) -> Handed:
        """Hand an event to the log; never waits.

        Raises:
            BadRecord: a reader would refuse it.
            TooLarge: it does not fit.
        """
        value = codec.to_msgpack(event)
        codec.from_msgpack(value)  # every check of a reader's
        session_id = getattr(event, "session_id", None) or ""
        outgoing = Outgoing(
            topic=self.settings.turns_topic,
            key=event_key(session_id),
            value=value,
            session_id=session_id,
            turn_id=getattr(event, "turn_id", None),
        )
        check_size(outgoing, self.settings)
        patience_s = max(self.patience_s, ENDING_S) if ending else self.patience_s
        return self._publisher.put(outgoing, patience_s, always=ending)

    def settle(self, handed: Sequence[Handed]) -> None:
        """Wait until the events are durable; a lenient recorder does not.

        Raises:
            NotRecorded: they are not, in time.
        """
        if self.lenient or not handed:
            return
        _, late = concurrent.futures.wait(handed, timeout=self.patience_s)
        self._check(handed, bool(late))

    async def settle_async(self, handed: Sequence[Handed]) -> None:
        """`settle`, for code that awaits."""
        if self.lenient or not handed:
            return
        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Handed) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(told.set)

        for one in handed:
            one.add_done_callback(tell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience_s):
                while not all(one.done() for one in handed):
                    await told.wait()
                    told.clear()
        self._check(handed, not all(one.done() for one in handed))

    def _check(self, handed: Sequence[Handed], late: bool) -> None:
        for one in handed:
            if one.done() and (error := one.exception()) is not None:
                raise error if isinstance(error, TurnstreamError) else NotRecorded(str(error))
        if late:
            said = f"the log has not said in {self.patience_s:g} s that it is durable; it may be"
            raise NotRecorded(f"{said}: {self._publisher.trouble}")

    def began(self, session_id: str, episode: Any) -> None:
        """An episode is under way."""
        with self._lock:
            self._active[session_id] = episode

    def over(self, session_id: str) -> None:
        """It is not any more."""
        with self._lock:
            self._active.pop(session_id, None)

    def call_later(self, seconds: float, call: Any) -> None:
        """Call back in the publisher's thread."""
        self._publisher.call_later(seconds, call)

    def close(self, wait_s: float = CLOSE_S) -> int:
        """End what is under way as `closed`, store what is left, bounded; how many events were not.

        A process that ends does the same by itself.
        """
        _ = self.source  # in a forked process nothing of the parent's is ours
        with self._lock:
            left = list(self._active.values())
        for episode in left:
            episode.end("closed", stage="recorder", message="the recorder was closed")
        return self._publisher.close(wait_s)

    def __enter__(self) -> Self:
        """The recorder, closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


class Null:
    """Records nothing, at no cost."""

    records = False


NULL = Null()


def _close_at_exit(recorder: "weakref.ref[Recorder]") -> None:
    known = recorder()
    if known is not None:
        known.close()
