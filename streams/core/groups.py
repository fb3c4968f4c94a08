"""Outcomes and samples, in the order of the log, into groups that wait no longer.

    sample s1/0, s1/1      wait for their outcome
    closed s1              lists both: slot 0 is filled
    closed s2 (no sample)  slot 1 is filled too: a group is complete by its outcomes
    closed s3 will_retry   fills nothing: a higher attempt follows
    closed s4, attempt 1   slot 2: complete

One `Groups` serves one partition, where a group has all of its records. Time is the log's own
(`logged_ms`): read again, a group ends the same way, whenever that is.

Invariants: a group ends once; a record is either part of an open group, or counted under the
reason why it is not.
"""

import itertools
from collections import Counter

from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.core.closed_groups import ClosedGroups
from streams.core.open_group import GroupRules, OpenGroup
from streams.core.rollouts import Ending, Group, Place

__all__ = ["GroupRules", "Groups"]

OTHER_RUNS_MAX = 100
"""Names of runs kept for a message."""


class Groups:
    """The groups of one partition."""

    def __init__(self, rules: GroupRules, closed: ClosedGroups | None = None) -> None:
        """None yet; `closed`: those that ended before this reader began."""
        self.rules = rules
        self.closed = closed if closed is not None else ClosedGroups()
        self.dropped: Counter[str] = Counter()
        """Rollouts, and records without one, by reason."""
        self.other_runs: Counter[str] = Counter()
        """Closed sessions of runs that are not asked for, by run; `none` without one."""
        self.open_bytes = 0
        self.unsized: str | None = None
        """A group whose size nobody names although it is needed."""
        self._open: dict[str, OpenGroup] = {}
        self._of_session: dict[str, OpenGroup] = {}
        self._ended = 0
        self._begun_ms = 0
        """No open group began before this: not every record has to look at all of them."""

    @property
    def waiting(self) -> int:
        """Groups that are not complete."""
        return len(self._open)

    def open_summaries(self, most: int) -> list[str]:
        """The oldest open groups, each with how many of its sessions have closed."""
        oldest = itertools.islice(self._open.values(), most)
        return [
            f"{group.group_id} ({len(group.slots)} of {group.size or '?'} sessions closed)"
            for group in oldest
        ]

    @property
    def floor(self) -> int | None:
        """The oldest offset that an open group needs; None if there is none."""
        return min((group.first[1] for group in self._open.values()), default=None)

    def take(
        self,
        record: Sample | SessionClosed | SampleRevised,
        place: Place,
        logged_ms: int,
        size_bytes: int = 0,
    ) -> list[Group]:
        """The groups that end with this record, in order."""
        ended = self.expire(logged_ms)
        if isinstance(record, SampleRevised):
            self._revise(record)
            return ended
        group = self._group(record, place, logged_ms)
        if group is None:
            return ended
        group.last = place
        if isinstance(record, Sample):
            self._wait(group, record, place, size_bytes)
        else:
            ended += self._release(group, record, place)
        return ended + self._over_limits()

    def expire(self, now_ms: int) -> list[Group]:
        """Give up what has waited too long by now."""
        if self.rules.timeout_ms is None or not self._open:
            return []
        before_ms = now_ms - self.rules.timeout_ms
        if self._begun_ms >= before_ms:
            return []
        late = [group for group in self._open.values() if group.begun_ms < before_ms]
        kept = (group.begun_ms for group in self._open.values() if group.begun_ms >= before_ms)
        self._begun_ms = min(kept, default=before_ms)
        return [ended for group in late for ended in self._end(group, "timeout")]

    def abandon(self, group_id: str) -> bool:
        """Drop a group that is open; what comes of it later is late."""
        group = self._open.get(group_id)
        if group is None:
            return False
        self._drop(group, "abandoned")
        return True

    def holds(self, session_id: str) -> bool:
        """Whether a session is in a group that is open."""
        return session_id in self._of_session

    def _group(
        self, record: Sample | SessionClosed, place: Place, logged_ms: int
    ) -> OpenGroup | None:
        """Where the record belongs; None: nowhere, and counted."""
        outcome = isinstance(record, SessionClosed)
        rules = self.rules
        reason = None
        if rules.run_id is not None and record.run_id != rules.run_id:
            reason = "other_run"
        elif (record.split or "train") != rules.split:
            reason = "other_split"
        elif (record.group_id or record.session_id) in self.closed:
            reason = "late"
            self.closed.read_again(record.group_id or record.session_id, place)
        if reason is not None:
            self.dropped[reason] += outcome
            if reason == "other_run" and outcome:
                self._count_other_run(record.run_id or "none")
            return None
        name = record.group_id or record.session_id
        group = self._open.get(name)
        if group is None:
            group = OpenGroup(name, place, logged_ms, self._ended)
            self._begun_ms = min(self._begun_ms, logged_ms) if self._open else logged_ms
            self._open[name] = group
        if group.size is None:
            group.size = (record.group_size or rules.default_size) if record.group_id else 1
            if group.size is None and rules.size_needed:
                self.unsized = name
        return group

    def _count_other_run(self, run: str) -> None:
        if run in self.other_runs or len(self.other_runs) < OTHER_RUNS_MAX:
            self.other_runs[run] += 1

    def _release(self, group: OpenGroup, outcome: SessionClosed, place: Place) -> list[Group]:
        for reason in group.close(outcome, place, self.rules):
            self.dropped[reason] += 1
        self._of_session[outcome.session_id] = group
        ending = self._complete(group)
        return [] if ending is None else self._end(group, ending)

    def _wait(self, group: OpenGroup, sample: Sample, place: Place, size_bytes: int) -> None:
        if not group.wait(sample, place, size_bytes):
            self.dropped["duplicate"] += 1
            return
        self._of_session[sample.session_id] = group
        self.open_bytes += size_bytes

    def _complete(self, group: OpenGroup) -> Ending | None:
        if group.size is not None and len(group.slots) >= group.size:
            return "complete"
        keep = self.rules.keep_first
        return "kept" if keep is not None and group.counting() >= keep else None

    def _over_limits(self) -> list[Group]:
        """Give up the oldest groups while a limit is passed."""
        ended: list[Group] = []
        while self._open:
            oldest = next(iter(self._open.values()))
            if self.open_bytes > self.rules.open_bytes_max and len(self._open) > 1:
                ended += self._end(oldest, "buffer_full")
            elif self._ended - oldest.closed_before > self.rules.overtaken_max:
                ended += self._end(oldest, "overtaken")
            else:
                break
        return ended

    def _end(self, group: OpenGroup, ending: Ending) -> list[Group]:
        """The group, if it is worth delivering; it waits no longer in any case."""
        given_up = ending not in ("complete", "kept")
        least = self.rules.partial if given_up else 0
        if least is None or group.counting() < least:
            self._drop(group, ending)
            return []
        for session_id, samples in group.waiting.items():
            if samples:
                self.dropped["unfinished"] += 1
                group.dropped.append((session_id, "unfinished"))
        self._forget(group, delivered=True)
        filled = group.slots.values()
        outside = [(f.rollout.session_id, f.dropped) for f in filled if f.dropped is not None]
        return [
            Group(
                group_id=group.group_id,
                size=group.size or len(group.slots),
                rollouts=tuple(f.rollout for f in filled if f.dropped is None),
                ending=ending,
                dropped=(*group.dropped, *outside),
                first=group.first,
                last=group.last,
                size_bytes=group.size_bytes,
            )
        ]

    def _drop(self, group: OpenGroup, reason: str) -> None:
        self.dropped[reason] += group.counting()
        self._forget(group, delivered=False)

    def _forget(self, group: OpenGroup, *, delivered: bool) -> None:
        del self._open[group.group_id]
        for session_id in group.closed | group.waiting.keys():
            self._of_session.pop(session_id, None)
        self.open_bytes -= group.size_bytes
        self._ended += 1
        self.closed.add(group.group_id, group.last, delivered=delivered)

    def _revise(self, late: SampleRevised) -> None:
        """Apply a later reward to what is still here; the caller looks where else it may be."""
        group = self._of_session.get(late.session_id)
        if group is None:
            return
        newest = {late.sample_id: late}
        for filled in group.slots.values():
            if filled.rollout.session_id == late.session_id:
                filled.rollout = filled.rollout.revised(newest)
