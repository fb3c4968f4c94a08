"""Groups end by their outcomes, whatever the number of samples, and say what they left out."""

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.core.groups import GroupRules, Groups
from streams.core.open_group import Fence
from streams.core.rollouts import Group
from tests.trainer.records import outcome, revised, sample, session

Records = Sequence[Sample | SessionClosed | SampleRevised]
MINUTE_MS = 60_000


def grouped(
    records: Records, *, every_ms: int = 0, **rules: Any
) -> tuple[list[Group], dict[str, int]]:
    """What ends, in order, and what was dropped; records come so far apart."""
    groups = Groups(GroupRules(**rules))
    ended: list[Group] = []
    for offset, record in enumerate(records):
        ended += groups.take(record, (0, offset), offset * every_ms, 10)
    return ended, {reason: count for reason, count in groups.dropped.items() if count}


def in_group(
    session_id: str, samples: int = 1, *, size: int = 4, group: str = "g", **fields: Any
) -> list[Sample | SessionClosed]:
    return session(session_id, samples, group_id=group, group_size=size, **fields)


def drawn(group: Group) -> str:
    """`g: s1(5) s2(1) | s3 status`."""
    kept = " ".join(f"{r.session_id}({len(r.samples)})" for r in group.rollouts)
    left = " ".join(f"{name} {reason}" for name, reason in group.dropped)
    return f"{group.group_id}: {kept}" + (f" | {left}" if left else "")


CASES: dict[str, tuple[Records, dict[str, Any], str]] = {
    "0, 1 and 5 samples fill one slot each": (
        [*in_group("a", 5, size=3), *in_group("b", 1, size=3), *in_group("c", 0, size=3)],
        {},
        "g: a(5) b(1) c(0)",
    ),
    "a group waits for every outcome": (
        [*in_group("a"), *in_group("b"), *in_group("c")],
        {},
        "",
    ),
    "a session without a group is a group of one": (session("a", 2), {}, "a: a(2)"),
    "groups interleave": (
        [
            *in_group("a", size=2),
            *in_group("x", group="h", size=2),
            *in_group("y", group="h", size=2),
            *in_group("b", size=2),
        ],
        {},
        "h: x(1) y(1)\ng: a(1) b(1)",
    ),
    "failures of the machine fill their slot and are not in the baseline": (
        [
            *in_group("a", size=3),
            *in_group("b", 0, size=3, end_status="error", reward=None, withheld="status"),
            *in_group("c", size=3, reward=0.0),
        ],
        {},
        "g: a(1) c(1) | b status",
    ),
    "no reward is no baseline": (
        [*in_group("a", size=2), *in_group("b", 0, size=2, reward=None)],
        {},
        "g: a(1) | b no_reward",
    ),
    "a rejected session is outside, whatever its reward": (
        [*in_group("a", size=2), *in_group("b", 0, size=2, accepted=False)],
        {},
        "g: a(1) | b rejected",
    ),
    "a session that lost its samples keeps its reward": (
        [*in_group("a", size=2), *in_group("b", 0, size=2, withheld="gap")],
        {},
        "g: a(1) b(0)",
    ),
    "a session that will be retried fills nothing": (
        [
            *in_group("a", size=2, rollout_index=0),
            *in_group("b", 0, size=2, rollout_index=1, will_retry=True, end_status="error"),
            *in_group("c", 2, size=2, rollout_index=1, attempt=1),
        ],
        {},
        "g: a(1) c(2) | b will_retry",
    ),
    "the highest attempt wins": (
        [
            *in_group("a", size=2, rollout_index=0),
            *in_group("b", size=2, rollout_index=0, attempt=2),
            *in_group("c", size=2, rollout_index=0, attempt=1),
            *in_group("d", size=2, rollout_index=1),
        ],
        {},
        "g: b(1) d(1) | a superseded c superseded",
    ),
    "an attempt behind its group's end is late": (
        [*in_group("a", size=1, rollout_index=0), *in_group("b", size=1, rollout_index=0)],
        {},
        "g: a(1)",
    ),
    "start four, keep the first two that count": (
        [
            *in_group("a"),
            *in_group("b", 0, end_status="expired", reward=None, withheld="status"),
            *in_group("c", 3),
            *in_group("d"),
        ],
        {"keep_first": 2},
        "g: a(1) c(3) | b status",
    ),
    "fewer than the first K end a group when all are there": (
        [*in_group("a", size=2), *in_group("b", 0, size=2, reward=None)],
        {"keep_first": 2},
        "g: a(1) | b no_reward",
    ),
    "only listed samples are released": (
        [sample("a", 0), sample("a", 7), outcome("a", 1)],
        {},
        "a: a(1)",
    ),
    "everything twice is everything once": (
        [r for r in [*in_group("a", 2, size=2), *in_group("b", size=2)] for _ in range(2)],
        {},
        "g: a(2) b(1)",
    ),
    "an outcome whose samples were not read is no rollout": (
        [outcome("a", 2)],
        {},
        "a:  | a samples_missing",
    ),
    "another split and another run are not ours": (
        [
            *session("a", run_id="r", split="eval"),
            *session("b", run_id="q"),
            *session("c", run_id="r"),
            *session("d", run_id="r", split="train"),
        ],
        {"run_id": "r"},
        "c: c(1)\nd: d(1)",
    ),
    "eval outcomes have rewards and no samples": (
        session("a", 0, split="eval", withheld="eval", reward=0.25),
        {"split": "eval"},
        "a: a(0)",
    ),
    "a size that nobody names can be given": (
        [*session("a", group_id="g"), *session("b", group_id="g")],
        {"default_size": 2},
        "g: a(1) b(1)",
    ),
}


@pytest.mark.parametrize(("records", "rules", "drawing"), CASES.values(), ids=CASES)
def test_a_group_ends_with_the_outcome_of_its_last_slot(
    records: Records, rules: dict[str, Any], drawing: str
) -> None:
    ended, _ = grouped(records, **rules)
    assert "\n".join(drawn(group) for group in ended) == drawing


def test_what_is_left_out_is_counted_by_its_reason() -> None:
    records, rules, _ = CASES["the highest attempt wins"]
    assert grouped(records, **rules)[1] == {"superseded": 2}
    records, rules, _ = CASES["an attempt behind its group's end is late"]
    assert grouped(records, **rules)[1] == {"late": 1}
    records, rules, _ = CASES["everything twice is everything once"]
    # Of session b the second outcome comes when its group has ended.
    assert grouped(records, **rules)[1] == {"duplicate": 4, "late": 1}


def test_a_group_times_out_by_the_logs_clock() -> None:
    records = [*in_group("a", size=2), *session("x"), *session("y"), *in_group("b", size=2)]
    every_ms = MINUTE_MS // 2
    patient, nothing = grouped(records, every_ms=every_ms, timeout_ms=7 * every_ms)
    assert [drawn(g) for g in patient] == ["x: x(1)", "y: y(1)", "g: a(1) b(1)"]
    assert nothing == {}
    dropped, counts = grouped(records, every_ms=every_ms, timeout_ms=6 * every_ms)
    assert [drawn(g) for g in dropped] == ["x: x(1)", "y: y(1)"]
    assert counts == {"timeout": 1, "late": 1}
    kept, counts = grouped(records, every_ms=every_ms, timeout_ms=6 * every_ms, partial=1)
    assert [drawn(g) for g in kept] == ["x: x(1)", "y: y(1)", "g: a(1) | b unfinished"]
    assert kept[-1].ending == "timeout"
    assert kept[-1].size == 2
    assert counts == {"unfinished": 1, "late": 1}


def test_a_group_that_waited_exactly_so_long_outlives_an_older_one() -> None:
    groups = Groups(GroupRules(timeout_ms=10, partial=1))
    for logged_ms, name in enumerate("gh"):
        for offset, record in enumerate(in_group(f"{name}0", group=name, size=2)):
            groups.take(record, (0, 2 * logged_ms + offset), logged_ms, 1)
    assert [drawn(group) for group in groups.expire(11)] == ["g: g0(1)"]
    assert [drawn(group) for group in groups.expire(12)] == ["h: h0(1)"]


def test_a_partial_group_needs_as_many_rollouts_as_were_asked_for() -> None:
    records = [*in_group("a"), *in_group("b", 0, reward=None), *in_group("c")]
    for least, expected in [(2, ["g: a(1) c(1) | b no_reward"]), (3, [])]:
        groups = Groups(GroupRules(timeout_ms=10, partial=least))
        for offset, record in enumerate(records):
            assert groups.take(record, (0, offset), 0, 1) == []
        assert [drawn(g) for g in groups.expire(11)] == expected
        assert groups.waiting == groups.open_bytes == 0
        assert "g" in groups.closed


def test_samples_without_an_outcome_are_named_when_their_group_is_given_up() -> None:
    groups = Groups(GroupRules(timeout_ms=10, partial=1))
    for offset, record in enumerate([*in_group("a"), *in_group("b")[:1]]):
        groups.take(record, (0, offset), 0, 1)
    (group,) = groups.expire(11)
    assert drawn(group) == "g: a(1) | b unfinished"


def test_an_abandoned_group_is_gone_and_stays_gone() -> None:
    groups = Groups(GroupRules(partial=1))
    for offset, record in enumerate(in_group("a", size=2)):
        groups.take(record, (0, offset), 0, 1)
    assert groups.abandon("g")
    assert not groups.abandon("g")
    for record in in_group("b", size=2):
        assert groups.take(record, (0, 9), 0, 1) == []
    assert groups.dropped == {"abandoned": 1, "late": 1}
    assert groups.floor is None


def test_the_floor_is_the_oldest_record_that_is_still_needed() -> None:
    groups = Groups(GroupRules())
    floors = []
    records = [
        *in_group("a", size=2),
        *in_group("x", group="h", size=1),
        sample("lone"),
        *in_group("b", size=2),
        outcome("lone"),
    ]
    for offset, record in enumerate(records):
        groups.take(record, (0, offset), 0, 1)
        floors.append(groups.floor)
    assert floors == [0, 0, 0, 0, 0, 0, 4, None]


def test_a_later_reward_changes_what_is_still_here() -> None:
    records = [
        *in_group("a", 2, size=2),
        revised("a", 1, 50, 0.25),
        revised("a", 1, 40, 9.0),
        *in_group("b", size=2),
    ]
    ((group,), _) = grouped(records)
    assert [s.session_reward for s in group.rollouts[0].samples] == [0.25, 0.25]
    assert [s.reward for s in group.rollouts[0].samples] == [0.5, 0.25]  # its own share
    assert [s.revision for s in group.rollouts[0].samples] == [0, 50]
    assert group.rollouts[0].reward == 0.25


def test_the_oldest_group_goes_when_the_open_ones_hold_too_much() -> None:
    records = [r for n in range(6) for r in in_group(f"s{n}", 1, group=f"g{n}", size=2)]
    ended, counts = grouped(records, open_bytes_max=30, partial=1)
    assert [(g.group_id, g.ending) for g in ended] == [(f"g{n}", "buffer_full") for n in range(3)]
    assert counts == {}


def test_a_group_that_all_others_overtake_is_given_up() -> None:
    records = [*in_group("slow", size=2), *(r for n in range(4) for r in session(f"s{n}"))]
    ended, counts = grouped(records, overtaken_max=3)
    assert [g.group_id for g in ended] == ["s0", "s1", "s2", "s3"]
    assert counts == {"overtaken": 1}


def test_samples_of_weights_that_were_rolled_back_are_fenced() -> None:
    """Restored at version 10 into epoch 1, then at 15 into epoch 2."""
    records = [
        *session("old-enough", version=10),
        *session("rolled-back", version=11),
        *session("again", version=12, run_epoch=1),
        *session("rolled-back-twice", version=16, run_epoch=1),
        *session("now", version=16, run_epoch=2),
        *session("now-too", 2, version=16, run_epoch=2),
        *session("unnamed", version=16),  # behind the end that the log had at the last restore
    ]
    ended, counts = grouped(records, fences=(Fence(1, 10, {0: 8}), Fence(2, 15, {0: 10})))
    trained = [g.group_id for g in ended if g.rollouts]
    assert trained == ["old-enough", "again", "now", "now-too", "unnamed"]
    assert counts == {"fenced": 2}


def test_unknown_weights_of_an_earlier_life_are_fenced_unless_they_may_train() -> None:
    records = [
        *session("known", version=10),
        *session("unknown", version=-1),
        *session("none"),
        *session("now", version=-1, run_epoch=1),
    ]
    fences = (Fence(1, 10, {0: 100}),)
    ended, counts = grouped(records, fences=fences)
    assert [g.group_id for g in ended if g.rollouts] == ["known", "none", "now"]
    assert counts == {"fenced": 1}
    ended, counts = grouped(records, fences=fences, unknown_version="train")
    assert len([g for g in ended if g.rollouts]) == 4
    assert not counts


def test_a_group_of_unknown_size_is_named_where_its_size_is_needed() -> None:
    for needed, named in [(True, "g"), (False, None)]:
        groups = Groups(GroupRules(size_needed=needed))
        groups.take(sample("a", group_id="g"), (0, 0), 0, 1)
        assert groups.unsized == named
