"""What was read and not yet trained: open groups, ready groups, batches under way.

    log ──► open groups ──► ready ──► handed out ──► committed
            (wait)          (order    (in the loop)  (gone for good)
                             of the log)

    position of a partition = the oldest record of anything left of "committed"

Everything below that position was trained or dropped for good; what stands above it is read again
after a restart, except for the groups that are known to have ended.

Invariants: batches follow from the order in which groups became ready, and from the version at
which each was asked for; no other time or thread has a say. Not thread-safe by itself.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.core.advantages import Judgement, judged
from streams.core.closed_groups import ClosedGroups
from streams.core.groups import GroupRules, Groups
from streams.core.rollouts import Group, Place
from streams.trainer.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """When a batch is full: exactly one of these is set. Groups stay whole."""

    rollouts: int | None = None
    """It ends with the group that reaches so many rollouts with something to train."""
    tokens: int | None = None
    """It ends before the group that would exceed so many tokens; a larger group stands alone."""
    groups: int | None = None
    """It has so many groups with something to train."""

    @property
    def wanted(self) -> int:
        """In `unit`."""
        return self.rollouts or self.tokens or self.groups or 0

    @property
    def unit(self) -> str:
        """What is counted."""
        return "rollouts" if self.rollouts else "tokens" if self.tokens else "groups"

    def of(self, group: Group) -> int:
        """What a group adds."""
        if self.rollouts:
            return group.trainable
        return group.tokens if self.tokens else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What has to be known of a batch in the loop; its tokens are the loop's alone."""

    groups: dict[str, Place]
    """Each with its oldest record."""
    sample_ids: list[str]
    places: list[Place]
    """Where each sample stands."""
    late: list[Place]
    """Where the later rewards stand that went with it."""


class Book:
    """All of a subscription's groups."""

    def __init__(self, rules: GroupRules, judgement: Judgement, size: BatchSize) -> None:
        """Nothing was read."""
        self.rules = rules
        self.judgement = judgement
        self.size = size
        self.closed = ClosedGroups()
        self.dropped: Counter[str] = Counter()
        self.revisions: Counter[str] = Counter()
        self.repeatable = 0
        """Groups that were trained, above what is committed, and noted nowhere in the log."""
        self.next_number = 0
        self.handed: dict[int, Handed] = {}
        """Batches in the loop, not committed, by number."""
        self.ready_bytes = 0
        self.hungry = False
        """The loop waits for a batch, and there is none yet."""
        self.versioned: dict[str, None] = {}
        """Runs with weight versions, in the order in which the first of them was seen."""
        self.remarks: dict[str, str] = {}
        """What the loop should be told once, by kind."""
        self._partitions: dict[int, Groups] = {}
        self._ready: dict[str, Group] = {}
        self._filled = 0
        """What the ready groups add up to, at most."""
        self._late: list[tuple[SampleRevised, Place]] = []
        """Later rewards of what is gone, to go with the next batch."""

    @property
    def buffered_bytes(self) -> int:
        """In memory, but for what the loop itself holds."""
        return self.ready_bytes + sum(g.open_bytes for g in self._partitions.values())

    @property
    def open_groups(self) -> int:
        """Not complete."""
        return sum(groups.waiting for groups in self._partitions.values())

    def open_summaries(self, most: int) -> list[str]:
        """The oldest groups that are not complete, for people."""
        found = (text for g in self._partitions.values() for text in g.open_summaries(most))
        return list(itertools.islice(found, most))

    def other_runs(self) -> Counter[str]:
        """Closed sessions of other runs, by run."""
        return sum((groups.other_runs for groups in self._partitions.values()), Counter())

    @property
    def ready_groups(self) -> int:
        """Complete, and not handed out."""
        return len(self._ready)

    @property
    def filled(self) -> int:
        """Of the next batch, before staleness and filters."""
        return self._filled

    def gain(self, partition: int) -> None:
        """A partition is ours from now on."""
        self._partitions[partition] = Groups(self.rules, self.closed)

    def lose(self, partition: int) -> None:
        """It is somebody else's: what waits of it is his to read again."""
        groups = self._partitions.pop(partition, None)
        if groups is not None:
            self.dropped.update(groups.dropped)
        for name in [n for n, group in self._ready.items() if group.first[0] == partition]:
            self._remove(name)
            self.closed.forget(name)

    def take(
        self,
        record: Sample | SessionClosed | SampleRevised,
        place: Place,
        logged_ms: int,
        size_bytes: int,
        key: str,
    ) -> None:
        """The next record of its partition."""
        groups = self._partitions.get(place[0])
        if groups is None:
            return  # lost while it was on its way
        if isinstance(record, SampleRevised):
            self._revise(groups, record, place, key)
        for group in groups.take(record, place, logged_ms, size_bytes):
            self._add(group)

    def expire(self, partition: int, now_ms: int) -> None:
        """Everything that the log took by then was read."""
        groups = self._partitions.get(partition)
        for group in groups.expire(now_ms) if groups is not None else ():
            self._add(group)

    def abandon(self, group_id: str) -> bool:
        """Drop a group that was not handed out."""
        if any(groups.abandon(group_id) for groups in self._partitions.values()):
            return True
        if group_id not in self._ready:
            return False
        self.dropped["abandoned"] += self._remove(group_id).trainable
        return True

    def unsized(self) -> str | None:
        """A group whose size nobody names although it is needed."""
        found = (groups.unsized for groups in self._partitions.values())
        return next((name for name in found if name is not None), None)

    def next_batch(self, version: int | None, *, rest: bool = False) -> Batch | None:
        """The next batch if it is full; with `rest`, whatever is left."""
        batch = self._next_batch(version, rest=rest)
        self.hungry = batch is None
        return batch

    def _next_batch(self, version: int | None, *, rest: bool) -> Batch | None:
        if not rest and self._filled < self.size.wanted:
            return None
        picked: list[Group] = []
        empty: list[str] = []
        counts: Counter[str] = Counter()
        filled, full = 0, False
        for name, raw in self._ready.items():
            group, why = judged(raw, version, self.judgement)
            self._remark(raw, version)
            if not group.trainable:
                empty.append(name)
                self.dropped.update(why)
                continue
            added = self.size.of(group)
            if self.size.tokens and picked and filled + added > self.size.tokens:
                full = True
                break
            picked.append(group)
            counts.update(why)
            filled += added
            if full := filled >= self.size.wanted:
                break
        for name in empty:
            self._remove(name)
        if not picked or not (full or rest):
            return None
        self.dropped.update(counts)
        for group in picked:
            self._remove(group.group_id)
        late, self._late = self._late, []
        batch = Batch(
            number=self.next_number,
            groups=tuple(picked),
            version=version,
            revisions=tuple(revised for revised, _ in late),
        )
        self.next_number += 1
        self.handed[batch.number] = Handed(
            groups={group.group_id: group.first for group in picked},
            sample_ids=[sample.sample_id for sample in batch.samples],
            places=[place for rollout in batch.rollouts for place in rollout.places],
            late=[place for _, place in late],
        )
        return batch

    def committed(self, numbers: Collection[int]) -> None:
        """These batches were trained."""
        for number in numbers:
            self.handed.pop(number, None)

    def positions(self, read: Mapping[int, int], without: Collection[int] = ()) -> dict[int, int]:
        """What has to be read again, given what is read next; some batches count as trained."""
        needed = {p: [at] for p, at in read.items()}
        for partition, groups in self._partitions.items():
            if partition in needed and groups.floor is not None:
                needed[partition].append(groups.floor)
        places = [*self._untrained(without).values(), *(place for _, place in self._late)]
        places += [p for n, one in self.handed.items() if n not in without for p in one.late]
        for partition, offset in places:
            if partition in needed:
                needed[partition].append(offset)
        return {partition: min(offsets) for partition, offsets in needed.items()}

    def ended(self, without: Collection[int] = ()) -> tuple[bytes, bytes]:
        """Digests of groups that are gone for good: delivered, dropped."""
        return self.closed.names(without=self._untrained(without))

    def ended_above(
        self, positions: Mapping[int, int], without: Collection[int]
    ) -> dict[int, bytes]:
        """By partition, groups that are gone for good although they will be read again."""
        untrained = self._untrained(without)
        return {p: self.closed.names_above(p, at, untrained) for p, at in positions.items()}

    def partitions_of(self, batches: Collection[int]) -> set[int]:
        """Where the groups of these come from."""
        return {first[0] for number in batches for first in self.handed[number].groups.values()}

    def all_dropped(self) -> Counter[str]:
        """Rollouts that never train, by reason."""
        total = Counter(self.dropped)
        for groups in self._partitions.values():
            total.update(groups.dropped)
        return Counter({reason: count for reason, count in total.items() if count})

    def _untrained(self, without: Collection[int]) -> dict[str, Place]:
        """Groups that may have to be read again, each with its oldest record."""
        found = {name: group.first for name, group in self._ready.items()}
        for number, one in self.handed.items():
            if number not in without:
                found |= one.groups
        return found

    def _add(self, group: Group) -> None:
        if not group.trainable:
            return  # all of it was dropped or had nothing; it is done
        group = self._with_runs(group)
        self._ready[group.group_id] = group
        self._filled += self.size.of(group)
        self.ready_bytes += group.size_bytes

    def _with_runs(self, group: Group) -> Group:
        """The group, with whether the runs of its rollouts have versions.

        This follows from the order in which groups became ready, not from when it is asked.
        """
        for rollout in group.rollouts:
            if rollout.has_versions:
                self.versioned.setdefault(rollout.outcome.run_id or "")
        rollouts = tuple(
            replace(rollout, run_has_versions=(rollout.outcome.run_id or "") in self.versioned)
            for rollout in group.rollouts
        )
        return replace(group, rollouts=rollouts)

    def _remark(self, group: Group, version: int | None) -> None:
        """Note where staleness cannot be judged."""
        if self.judgement.max_staleness is None or version is None:
            return
        for rollout in group.rollouts:
            run = rollout.outcome.run_id or "(none)"
            if rollout.has_unknown_version and self.judgement.unknown_version == "stale":
                self.remarks.setdefault(
                    "unknown",
                    f"run {run}: dropped as stale, since it is unknown which weights sampled "
                    f"session {rollout.session_id}: give the engine an integer weight version with "
                    "each update, or subscribe(..., unknown_version='train')",
                )
            elif rollout.samples and rollout.oldest_version is None:
                self.remarks.setdefault(
                    "no versions",
                    f"run {run}: max_staleness has no effect, no weight version was declared or "
                    f"reported (session {rollout.session_id}): give the engine an integer weight "
                    "version with each update",
                )

    def _remove(self, name: str) -> Group:
        group = self._ready.pop(name)
        self._filled -= self.size.of(group)
        self.ready_bytes -= group.size_bytes
        return group

    def _revise(self, groups: Groups, late: SampleRevised, place: Place, key: str) -> None:
        if groups.holds(late.session_id):
            self.revisions["applied"] += 1
        elif (group := self._ready.get(key)) is not None:
            self.revisions["applied"] += 1
            newest = {late.sample_id: late}
            rollouts = tuple(
                r.revised(newest) if r.session_id == late.session_id else r for r in group.rollouts
            )
            self._ready[key] = replace(group, rollouts=rollouts)
        elif self.closed.delivered(key):
            self.revisions["handed_over"] += 1
            self._late.append((late, place))
        else:
            self.revisions["unknown"] += 1
