"""A training loop's side of the log.

    with subscribe(log, batch_rollouts=64, run_id="r") as batches:
        for batch in batches:                    blocks until a batch is full
            loss(batch).backward(); optimizer.step()
            batches.commit(step, version)        the step counts from here on
            save(batches.state_dict(), ...)      with the weights

Invariant: a batch that was not committed is handed out again by whoever goes on from the last
state; one that was committed in that state is not.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from schemas.finite import builtin_of
from schemas.record import NOT_GIVEN
from schemas.trained import Trained
from streams.errors import TooLarge
from streams.trainer.asking import Asked, Version
from streams.trainer.batches import Batch
from streams.trainer.book import Book
from streams.trainer.feed import Feed
from streams.trainer.filling import Filler, has_blobs
from streams.trainer.state import RUNS_MAX, State, from_dict, remember, to_dict
from streams.trainer.status import Line, Status
from streams.trainer.waiting import WaitNotice, announce

NO_RUN = "default"
"""The run of a trainer that names none, in its `trained` records."""
Statistics = Mapping[str, Mapping[str, Any]]
"""By sample id, numbers by name; or `{"value": number, "token": index}` for one of its tokens."""

_SLICE_S = 0.25

logger = logging.getLogger("turnstream.trainer")


class Core:
    """What the synchronous and the asynchronous subscription share."""

    def __init__(self, asked: Asked, version: Version, *, progress: bool | None) -> None:
        """Nothing is opened before the first batch is asked for."""
        self._asked = asked
        self._version = version
        self._saved_version = version if isinstance(version, int) else None
        self._step: int | None = None
        self._book = Book(asked.rules, asked.judgement, asked.size)
        self._state: State | None = None
        self._feed: Feed | None = None
        self._closed = False
        self._staleness: tuple[int, int] | None = None
        self._waited: dict[str, float] = {}
        self._line = Line(progress)
        self._progress = progress
        self._notice = WaitNotice()
        self._filler = Filler(asked.settings)
        self._said: set[str] = set()
        """Kinds of remarks that were logged."""
        self._unfilled: Batch | None = None
        """Taken, and not handed out: whoever waited for its blobs was stopped."""

    @property
    def run_epoch(self) -> int:
        """Of this life of the run: raised by a restore. Gateways are told it with the weights."""
        if self._feed is None:
            self._begin()
        assert self._feed is not None, "begun"
        return self._feed.run_epoch

    @property
    def current_version(self) -> int | None:
        """Of the optimizer's weights, as staleness is judged now."""
        return self._version() if callable(self._version) else self._version

    @property
    def status(self) -> Status:
        """How things are."""
        feed, book = self._feed, self._book
        with feed.changed if feed is not None else contextlib.nullcontext():
            waited = dict(self._waited)
            if feed is not None and feed.paused_s:
                waited["trainer"] = feed.paused_s
            return Status(
                lag=feed.lag if feed is not None else 0,
                staleness=self._staleness,
                buffered_bytes=book.buffered_bytes,
                open_groups=book.open_groups,
                ready_groups=book.ready_groups,
                filled=book.filled,
                wanted=book.size.wanted,
                unit=book.size.unit,
                dropped=book.all_dropped(),
                revisions=dict(book.revisions),
                repeatable=book.repeatable,
                waited_s=waited,
            )

    def abandon(self, group_id: str) -> bool:
        """Give up a group that was not handed out; whether there was one."""
        with self._changing():
            return self._book.abandon(group_id)

    def state_dict(self) -> dict[str, Any]:
        """For the trainer's checkpoint, taken after `commit`: what was committed is done."""
        feed, asked = self._feed, self._asked
        if feed is None:
            state = self._state or self._new_state({}, b"", b"", asked.run_epoch)
            return to_dict(state)
        with feed.changed:
            positions = self._book.positions(feed.positions)
            delivered, dropped = self._book.ended()
            return to_dict(self._new_state(positions, delivered, dropped, feed.run_epoch))

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; before the first batch is asked for.

        Raises:
            ValueError: the state is not of this run and topic.
        """
        if self._feed is not None:
            raise RuntimeError("load_state_dict comes before the first batch")
        state, asked = from_dict(values), self._asked
        if (state.topic, state.run_id) != (asked.topic, asked.run_id):
            detail = (
                f"the state is of run {state.run_id} on {state.topic}, the subscription of run "
                f"{asked.run_id} on {asked.topic}"
            )
            raise ValueError(detail)
        self._state = state
        self._step = state.step
        self._book.next_number = state.next_batch
        if state.version is not None:
            self._saved_version = state.version
            if not callable(self._version):
                self._version = state.version
        self._book.versioned |= dict.fromkeys(state.versioned)
        remember(self._book.closed, state.dropped, delivered=False)
        remember(self._book.closed, state.delivered, delivered=True)

    def _new_state(
        self, positions: dict[int, int], delivered: bytes, dropped: bytes, epoch: int
    ) -> State:
        handed = self._book.handed
        return State(
            topic=self._asked.topic,
            run_id=self._asked.run_id,
            run_epoch=epoch,
            version=self._saved_version,
            step=self._step,
            next_batch=min(handed, default=self._book.next_number),
            fences=self._book.rules.fences,
            positions=positions,
            delivered=delivered,
            dropped=dropped,
            versioned=tuple(self._book.versioned)[-RUNS_MAX:],
        )

    def _begin(self) -> None:
        if self._closed:
            raise RuntimeError("the subscription is closed")
        if self._feed is None:
            feed = Feed(self._asked, self._book, self._state)
            self._feed = feed
            try:
                if self._closed:
                    raise RuntimeError("the subscription was closed while it began")
                feed.start()
            except BaseException:
                self._closed = True
                raise

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        if self._feed is None:
            yield
        else:
            with self._feed.changed:
                yield

    def _attempt(self) -> Batch | None:
        """A batch if there is one now; called under the lock.

        Raises:
            StopIteration: there will be none.
        """
        feed = self._feed
        assert feed is not None, "begun"
        if self._unfilled is not None:
            return self._unfilled
        version = self.current_version
        batch = self._book.next_batch(version)
        self._say_remarks()
        if batch is None and feed.error is not None:
            raise feed.error
        if batch is None and self._closed:
            raise StopIteration  # by somebody else, while we waited
        if batch is None and feed.at_end:
            batch = self._book.next_batch(version, rest=True)
            if batch is None:
                raise StopIteration
        if batch is not None:
            stale = batch.staleness
            self._staleness = (min(stale), max(stale)) if stale else None
            self._unfilled = batch
            self._notice.over()
            feed.make_room()
        return batch

    def _say_remarks(self) -> None:
        """Log each kind of remark once."""
        for kind in self._book.remarks.keys() - self._said:
            self._said.add(kind)
            self._line.clear()
            logger.warning("%s", self._book.remarks[kind])

    async def _filled(self, batch: Batch) -> Batch:
        """In the feed's thread: what is handed out, whole."""
        whole, lost = await self._filler.filled(batch) if has_blobs(batch) else (batch, 0)
        if lost:
            with self._changing():
                self._book.dropped["channel"] += lost
        if self._asked.packed:
            _ = whole.packed  # made here, and kept by the batch
        return whole

    def _unready(self, batch: Batch) -> bool:
        return self._asked.packed or has_blobs(batch)

    def _note_wait(self, begun_s: float) -> None:
        feed, book = self._feed, self._book
        reason = "log" if feed and feed.lag else "groups" if book.open_groups else "samples"
        self._waited[reason] = self._waited.get(reason, 0.0) + time.monotonic() - begun_s
        if self._line.due():
            self._line.show(self.status)
        if self._progress is False:
            return
        with self._changing():
            notice = self._notice.waiting(self._book, feed.lag if feed else 0)
        if notice is not None:
            self._line.clear()
            announce(notice)

    def _trained(
        self,
        step: int,
        version: int,
        statistics: Statistics | None,
        batches: Sequence[Batch] | None,
    ) -> tuple[Trained, set[int]]:
        """The record of a step, and the batches it covers."""
        with self._changing():
            known = dict(self._book.handed)
        numbers = list(known) if batches is None else [batch.number for batch in batches]
        if unknown := [number for number in numbers if number not in known]:
            raise ValueError(f"batch {unknown[0]} was committed already, or is not of this loop")
        ids = [name for number in numbers for name in known[number].sample_ids]
        if statistics and (foreign := set(statistics) - set(ids)):
            raise ValueError(f"statistics of {min(foreign)}, which is in no batch of this step")
        record = Trained(
            run_id=self._asked.run_id or NO_RUN,
            step=step,
            weight_version=version,
            sample_ids=ids,
            run_epoch=self.run_epoch,
            places=[place for number in numbers for place in known[number].places],
            statistics=NOT_GIVEN if not statistics else _as_json(statistics),
        )
        return record, set(numbers)

    def _committed(self, step: int, version: int, numbers: set[int], ours: bool) -> None:
        with self._changing():
            self._book.committed(numbers)
            if not ours:
                self._book.dropped["commit_refused"] += 1
            self._step, self._saved_version = step, version
            if not callable(self._version):
                self._version = version


class Subscription(Core):
    """Iterates over batches; used from one thread."""

    def __enter__(self) -> Self:
        """Closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Batches, until the log is closed; or its end, with `until_end`."""
        return self

    def __next__(self) -> Batch:
        """Wait for the next batch."""
        self._begin()
        feed = self._feed
        assert feed is not None, "begun"
        try:
            with feed.changed:
                while (batch := self._attempt()) is None:
                    begun_s = time.monotonic()
                    feed.changed.wait(_SLICE_S)
                    self._note_wait(begun_s)
            if self._unready(batch):
                batch = feed.wait(self._filled(batch))
            self._unfilled = None
            return batch
        finally:
            self._line.clear()

    def commit(
        self,
        step: int,
        version: int,
        statistics: Statistics | None = None,
        *,
        batches: Sequence[Batch] | None = None,
    ) -> None:
        """The optimizer has stepped: say so in the log, and need these batches no more.

        Args:
            step: Of the optimizer.
            version: Of the weights it has now; staleness is judged by it from here on.
            statistics: By sample id, for `turnstream inspect --step`.
            batches: Those of the step; else all that were handed out.

        Raises:
            LogAway: no answer in time; call it again.
            PositionMoved: another trainer commits for the group, on the embedded log.
        """
        record, numbers = self._trained(step, version, statistics, batches)
        feed = self._feed
        assert feed is not None, "begun"
        ours = written(record, lambda one: feed.wait(feed.commit(one, numbers)))
        self._committed(step, version, numbers, ours)

    def close(self) -> None:
        """Stop reading and let go; what was not committed is handed out again later."""
        self._closed = True
        self._line.clear()
        if self._feed is not None:
            self._feed.close()


def written(record: Trained, write: Callable[[Trained], bool]) -> bool:
    """Write it; without its statistics if they are too large for the log."""
    try:
        return write(record)
    except TooLarge:
        return write(msgspec.structs.replace(record, statistics=NOT_GIVEN))


def _as_json(statistics: Statistics) -> msgspec.Raw:
    """Numbers of any library as plain ones; what is not finite becomes null."""
    return msgspec.Raw(msgspec.json.encode(statistics, enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return builtin_of(value)
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"a statistic of type {type(value).__name__} is no number")
    return item()
