"""Random sessions, attempts, repeats and orders against a plain reading of the rules.

The oracle keeps no state: for every prefix of a group's records it works everything out anew.
"""

import itertools
import random
from dataclasses import dataclass
from typing import Any

import pytest

from schemas.samples import Sample, SessionClosed
from streams.core.groups import GroupRules, Groups
from tests.trainer.records import session

Timed = tuple[int, Sample | SessionClosed]
Told = tuple[str, str, tuple[tuple[str, int], ...]]
"""Group, how it ended, and its rollouts with their numbers of samples."""


@dataclass(frozen=True)
class Asked:
    """The rules of one run."""

    timeout_ms: int | None
    partial: int | None
    keep_first: int | None


def winners(prefix: list[Timed]) -> dict[object, tuple[int, SessionClosed]]:
    """By slot: the place and outcome of the attempt that holds it."""
    seen: set[str] = set()
    best: dict[object, tuple[int, SessionClosed]] = {}
    for place, (_, record) in enumerate(prefix):
        if not isinstance(record, SessionClosed) or record.session_id in seen:
            continue
        seen.add(record.session_id)
        slot: object = record.session_id if record.rollout_index is None else record.rollout_index
        held = best.get(slot)
        if not record.will_retry and (
            held is None or (held[1].attempt or 0) < (record.attempt or 0)
        ):
            best[slot] = (place, record)
    return best


def counting(prefix: list[Timed]) -> list[tuple[str, int]]:
    """The rollouts of the baseline, by the order of their outcomes."""
    found = sorted(winners(prefix).values(), key=lambda held: held[0])
    return [
        (closed.session_id, len(closed.sample_ids))
        for _, closed in found
        if closed.reward is not None and closed.end_status == "completed"
    ]


def told(name: str, records: list[Timed], size: int, asked: Asked, end_ms: int) -> Told | None:
    """What becomes of a group by the end."""
    first_ms = records[0][0]
    for count in range(len(records) + 1):
        prefix = records[:count]
        rollouts = counting(prefix)
        if len(winners(prefix)) >= size:
            return name, "complete", tuple(rollouts)
        if asked.keep_first is not None and len(rollouts) >= asked.keep_first:
            return name, "kept", tuple(rollouts)
        next_ms = records[count][0] if count < len(records) else end_ms
        if asked.timeout_ms is not None and next_ms - first_ms > asked.timeout_ms:
            enough = asked.partial is not None and len(rollouts) >= asked.partial
            return (name, "timeout", tuple(rollouts)) if enough else None
    return None


def random_session(choose: random.Random, name: str, group: str, size: int) -> list[object]:
    fields: dict[str, Any] = {"group_id": group, "group_size": size}
    if choose.random() < 0.8:
        fields |= {"rollout_index": choose.randrange(size), "attempt": choose.randrange(3)}
    kind = choose.random()
    if kind < 0.15:
        return [*session(name, 0, will_retry=True, end_status="error", reward=None, **fields)]
    if kind < 0.3:
        return [*session(name, 0, end_status="expired", reward=None, withheld="status", **fields)]
    return [*session(name, choose.choice([0, 1, 1, 5]), reward=choose.choice([0.0, 1.0]), **fields)]


def random_log(choose: random.Random) -> tuple[list[Timed], dict[str, int]]:
    """Sessions of some groups, interleaved, some records repeated later."""
    sizes = {f"g{n}": choose.randint(1, 4) for n in range(choose.randint(1, 4))}
    queues = []
    for number in range(choose.randint(1, 16)):
        group = choose.choice(list(sizes))
        records = random_session(choose, f"s{number}", group, sizes[group])
        if choose.random() < 0.3:
            records = [r for r in records for _ in range(choose.randint(1, 2))]
        if choose.random() < 0.2:
            records += records  # the processor died before it had noted the close
        queues.append(records)
    log: list[Timed] = []
    now_ms = 0
    while queues:
        queue = choose.choice(queues)
        now_ms += choose.choice([0, 1, 5, 40])
        record = queue.pop(0)
        assert isinstance(record, Sample | SessionClosed)
        log.append((now_ms, record))
        queues = [queue for queue in queues if queue]
    return log, sizes


@pytest.mark.parametrize("seed", range(400))
def test_groups_end_as_a_plain_reading_of_the_rules_says(seed: int) -> None:
    choose = random.Random(seed)
    log, sizes = random_log(choose)
    asked = Asked(
        timeout_ms=choose.choice([None, 50, 150]),
        partial=choose.choice([None, 1, 2]),
        keep_first=choose.choice([None, None, 1, 2]),
    )
    rules = GroupRules(
        timeout_ms=asked.timeout_ms, partial=asked.partial, keep_first=asked.keep_first
    )
    groups = Groups(rules)
    ended = []
    for offset, (now_ms, record) in enumerate(log):
        ended += groups.take(record, (0, offset), now_ms, 1)
    end_ms = log[-1][0] + 200
    ended += groups.expire(end_ms)
    found = {
        (g.group_id, g.ending, tuple((r.session_id, len(r.samples)) for r in g.rollouts))
        for g in ended
    }
    wanted = set()
    for name, size in sizes.items():
        mine = [
            (now_ms, r)
            for now_ms, r in log
            if isinstance(r, Sample | SessionClosed) and r.group_id == name
        ]
        if mine and (one := told(name, mine, size, asked, end_ms)) is not None:
            wanted.add(one)
    assert found == wanted
    assert len(found) == len(ended), "a group ends once"
    ids = [s.sample_id for g in ended for r in g.rollouts for s in r.samples]
    assert len(ids) == len(set(ids)), "a sample is released once"
    assert groups.waiting or (groups.open_bytes, groups.floor) == (0, None)


def test_the_random_logs_reach_every_ending() -> None:
    endings = set()
    for seed in range(400):
        log, sizes = random_log(random.Random(seed))
        for asked in itertools.starmap(Asked, [(50, 1, None), (None, None, 1), (50, None, None)]):
            for name, size in sizes.items():
                mine = [(ms, r) for ms, r in log if r.group_id == name]
                one = told(name, mine, size, asked, log[-1][0] + 200) if mine else None
                endings.add(one and one[1])
    assert endings == {"complete", "kept", "timeout", None}
