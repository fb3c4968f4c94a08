"""Judges sessions that have ended and wait for their reward: a consumer of the turns like others.

    turns ──► a session ends, its reward pending ──► judgers ──► `reward`, final ──► turns

The reward's id is made of the consumer's name, so a session that is judged twice, after a crash
or by two processes, is rewarded once. Its origin is `judged`, so it replaces no reward that
somebody gave, whenever that came. What a judger rejects gets a reward that is none: the session
closes with an outcome and no sample. What a judger fails at is said and left waiting: put right
and started again within the grace for rewards, the consumer judges it then. So is a session that
cannot be made a case of, or whose reward no reader would take.

Nobody is asked before a partition is read up to where it ended at the start: on an old log most
sessions that once waited were closed long ago. A session that closes while it is judged is judged
no further. When one closes is the core's to say: it is fed every event, here as in the processor.

Invariant: the group's position is never behind a session that is still to be judged.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.events import Event, Purge, Reward
from schemas.record import json_text
from streams.adapters.judgers.cases import case_of
from streams.adapters.judgers.judging import Case, Judging, Verdict, failure
from streams.core.limits import DEFAULT_LIMITS
from streams.core.session import apply, count
from streams.core.state import ClosedSession, OpenSession, Rules
from streams.errors import LogAway, TooLarge
from streams.log.homes import refuse_elsewhere, require_partitions
from streams.log.interface import Entry, Log, Outgoing
from streams.log.keys import event_key
from streams.settings import KAFKA, Settings

CONCURRENCY = 16
ATTEMPTS = 3
"""At a session whose judger says that trying again may help."""
_WAIT_S = 0.5
_COMMIT_S = 2.0
_RETRY_S = (0.5, 8.0)
_PAYLOAD_BYTES_MAX = DEFAULT_LIMITS.metadata_bytes
_DONE_HELD = 100_000
"""Sessions that were judged and may still be spoken of."""

Say = Callable[[str, Verdict], None]


@dataclass(slots=True)
class _Open:
    state: OpenSession
    partition: int
    heard_ms: int


@dataclass(slots=True)
class _Waiting:
    """A session that has ended without its reward, or whose judgement failed."""

    state: OpenSession
    """Its tree is empty: what is judged stands in the case."""
    partition: int
    task: "asyncio.Task[None] | None" = None
    """None before it is judged."""
    published: bool = False
    """The verdict is on its way; too late to cancel."""


@dataclass
class JudgingConsumer:
    """One process that judges; a second one of the same name adds nothing but its work."""

    settings: Settings
    log: Log
    judging: Judging
    name: str = "judge"
    say: Say = lambda _session_id, _verdict: None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self._group = f"{self.settings.topic_prefix}-judge-{self.name}"
        self._topic = self.settings.turns_topic
        self._rules = Rules()
        self._open: dict[str, _Open] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._unjudged: defaultdict[int, dict[str, Case | Verdict]] = defaultdict(dict)
        """By partition and session: what is judged once the partition is read up to its end, or
        why it cannot be."""
        self._done: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._newest_ms: Counter[int] = Counter()

    def pulse(self) -> int | None:
        """A number that moves with what is judged; None: nothing is."""
        return self.counts.total() if self._tasks else None

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> None:
        """Judge until told to stop; `once`: until what stands in the log now is judged.

        Raises:
            LogError: what trying again would not mend.
        """
        await require_partitions(self.log, self.settings)
        starts = await self.log.start_positions(self._topic)
        committed = await self.log.committed(self._group, self._topic)
        positions = {at: max(start, committed.get(at, start)) for at, start in starts.items()}
        ends = await self.log.end_positions(self._topic)
        reader = await self.log.read(self._topic, positions)
        try:
            committed_s = time.monotonic()
            while not stop.is_set():
                batch = await reader.next_batch(_WAIT_S)
                for entry in batch:
                    self._take(entry)
                caught_up = [at for at, end in ends.items() if reader.positions.get(at, 0) >= end]
                for partition in caught_up:
                    self._start_judging(partition)
                self._raise_failures()
                if time.monotonic() - committed_s > _COMMIT_S:
                    await self._commit(reader.positions)
                    committed_s = time.monotonic()
                if once and len(caught_up) == len(ends):
                    await asyncio.gather(*self._tasks)
                    break
            await self._commit(reader.positions)
        finally:
            for task in self._tasks:
                task.cancel()
            await reader.close()

    def _take(self, entry: Entry) -> None:
        partition, offset = entry.position.partition, entry.position.offset
        self._newest_ms[partition] = max(self._newest_ms[partition], entry.timestamp_ms)
        try:
            event = codec.from_msgpack(entry.value or b"")
        except BadRecord as error:
            self._count_refused(error, offset)
            return  # the processor makes a dead letter of it
        if not isinstance(event, Event) or isinstance(event, Purge):
            return
        if self.settings.log == KAFKA and isinstance(
            refuse_elsewhere(event, partition, self.settings), BadRecord
        ):
            return  # likewise, and it is none of the session's
        session_id = event.session_id
        if session_id in self._done:
            return
        state, _ = apply(self._known(session_id), event, offset, self._rules)
        self._open.pop(session_id, None)
        if isinstance(state, ClosedSession):
            self._over(session_id)  # by us or without us
        elif state is None or session_id in self._waiting:
            return
        elif state.ended is not None:
            self._unjudged[partition][session_id] = _case_or_failure(state)
            state.tree.clear()
            self._waiting[session_id] = _Waiting(state, partition)
        else:
            self._open[session_id] = _Open(state, partition, entry.timestamp_ms)

    def _known(self, session_id: str) -> OpenSession | None:
        held = self._waiting.get(session_id) or self._open.get(session_id)
        return held.state if held is not None else None

    def _count_refused(self, error: BadRecord, offset: int) -> None:
        """As the processor does: an expiry that was asked for before it is void."""
        state = self._known(error.session_id or "")
        if state is not None and offset > state.newest:
            count(state, error.code, offset)

    def _start_judging(self, partition: int) -> None:
        for session_id, case in self._unjudged.pop(partition, {}).items():
            if isinstance(case, Verdict):
                self._fail(session_id, case)
                continue
            task = asyncio.ensure_future(self._judge(case))
            self._waiting[session_id].task = task
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    async def _judge(self, case: Case) -> None:
        session_id = case.session_id
        wait_s, most_s = _RETRY_S
        async with self._slots:
            for attempt in range(1, ATTEMPTS + 1):
                verdict = await self.judging.judge(case)
                if verdict.error is None or not verdict.error.retryable or attempt == ATTEMPTS:
                    break
                self.counts["retries"] += 1
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, most_s)
        if verdict.error is not None:
            self._fail(session_id, verdict)
            return
        self.say(session_id, verdict)
        self._waiting[session_id].published = True
        try:
            await self._publish(session_id, verdict)
        except BadRecord as error:
            self._waiting[session_id].published = False
            self._fail(session_id, failure("bad_answer", type(error).__name__, str(error)))
            return
        self.counts["judged" if verdict.accepted else "rejected"] += 1
        self._over(session_id)

    def _fail(self, session_id: str, verdict: Verdict) -> None:
        self.counts["failed"] += 1
        self.say(session_id, verdict)

    def _over(self, session_id: str) -> None:
        waiting = self._waiting.pop(session_id, None)
        if waiting is not None:
            self._unjudged[waiting.partition].pop(session_id, None)
            if waiting.task is not None and not waiting.published and waiting.task.cancel():
                self.counts["cancelled"] += 1
        self._done[session_id] = None
        while len(self._done) > _DONE_HELD:
            self._done.popitem(last=False)

    async def _publish(self, session_id: str, verdict: Verdict) -> None:
        reward = self._reward(session_id, verdict, verdict.reward)
        if reward.reward is not None and len(bytes(json_text(reward.reward))) > _PAYLOAD_BYTES_MAX:
            reward = self._score_alone(session_id, verdict)
        value = codec.to_msgpack(reward)
        codec.from_msgpack(value)  # every check of a reader's
        wait_s, most_s = _RETRY_S
        while True:
            try:
                await self.log.publish(
                    Outgoing(
                        topic=self._topic,
                        key=event_key(session_id),
                        value=value,
                        session_id=session_id,
                    )
                )
            except TooLarge:
                if not isinstance(reward.reward, dict):
                    raise
                reward = self._score_alone(session_id, verdict)
                value = codec.to_msgpack(reward)
            except LogAway:
                # Told twice it is the same reward, so trying again cannot hurt.
                self.counts["repeated"] += 1
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, most_s)
            else:
                return

    def _reward(
        self, session_id: str, verdict: Verdict, reward: float | dict[str, Any] | None
    ) -> Reward:
        return Reward(
            session_id=session_id,
            reward_id=f"judge:{self.name}",
            origin="judged",
            reward=reward,
            reward_invalid=reward is None,
            judged_ms=verdict.judged_ms,
        )

    def _score_alone(self, session_id: str, verdict: Verdict) -> Reward:
        """What is said beside the score is more than a session may hold; the score counts."""
        assert verdict.reward is not None, "only a payload can be too large"
        self.counts["payloads_too_large"] += 1
        sys.stderr.write(
            f"turnstream judge: session {session_id}: the reward's payload is too large and is "
            "left out; its score is published\n"
        )
        return self._reward(session_id, verdict, verdict.reward["score"])

    def _finished(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)

    def _raise_failures(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            if not task.cancelled():
                task.result()

    async def _commit(self, positions: dict[int, int]) -> None:
        """Everything before the first session that is still open or to be judged is done."""
        hard_ms = int(self.settings.hard_limit_s * 1000)
        for session_id, held in list(self._open.items()):
            if self._newest_ms[held.partition] - held.heard_ms > hard_ms:
                del self._open[session_id]  # the processor lets go of it as well
        needed = dict(positions)
        unfinished: list[_Open | _Waiting] = [*self._open.values(), *self._waiting.values()]
        for one in unfinished:
            needed[one.partition] = min(needed[one.partition], one.state.first)
        with contextlib.suppress(LogAway):  # the next one says the same
            await self.log.commit(self._group, self._topic, needed)


def _case_or_failure(session: OpenSession) -> Case | Verdict:
    """What to judge; a session that breaks this must not end the judging of all others."""
    try:
        return case_of(session)
    except Exception as error:
        return failure("unreadable", type(error).__name__, f"the session cannot be read: {error}")


def told(session_id: str, verdict: Verdict) -> str:
    """A verdict as one line for a person."""
    error: Any = verdict.error
    if error is not None:
        again = "; trying again may help" if error.retryable else ""
        return f"failed    {session_id}  {error.category}: {error.message}{again}"
    if not verdict.accepted or verdict.reward is None:
        return f"rejected  {session_id}"
    return f"judged    {session_id}  {verdict.reward['score']:g}"
