"""subscribe() on an embedded log: what a loop is handed, and what it is not."""

import asyncio
import datetime
import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.control import Resumed
from streams.core.packing import unpacked
from streams.errors import WrongLog
from streams.settings import Settings
from streams.trainer import subscribe, subscribe_async
from streams.trainer.subscribing import Options
from tests.trainer.publishing import (
    publish,
    send,
    trained_records,
)
from tests.trainer.records import revised, sample, session
from tests.trainer.scenes import RUN, all_batches, group, names, wait_for


def test_batches_are_whole_groups_by_rollouts_tokens_or_groups(settings: Settings) -> None:
    publish(settings, [r for n in range(5) for r in group(f"g{n}", 1, 5, 0)])
    by_rollouts, _ = all_batches(settings, batch_rollouts=3)
    assert [names(b) for b in by_rollouts] == [
        ["g0-0", "g0-1", "g1-0", "g1-1"],
        ["g2-0", "g2-1", "g3-0", "g3-1"],
        ["g4-0", "g4-1"],
    ]
    by_groups, _ = all_batches(settings, batch_groups=4)
    assert [len(b.groups) for b in by_groups] == [4, 1]
    # A group has six samples of five tokens.
    by_tokens, _ = all_batches(settings, batch_tokens=65)
    assert [b.tokens for b in by_tokens] == [60, 60, 30]
    alone, _ = all_batches(settings, batch_tokens=10)
    assert [b.tokens for b in alone] == [30] * 5
    assert [len(r.samples) for r in by_rollouts[0].groups[0].rollouts] == [1, 5, 0]


def test_samples_arrive_as_they_were_sent(settings: Settings) -> None:
    sent = session("s", 2, run_id=RUN, length=3000, version=4)
    publish(settings, sent)
    ((batch,), _) = all_batches(settings, batch_rollouts=1, current_version=5)
    assert list(batch.samples) == sent[:2]
    assert batch.samples[0].tokens.dtype == np.int32
    assert batch.rollouts[0].outcome == sent[2]
    assert batch.rollouts[0].places == ((0, 0), (0, 1))
    assert batch.staleness == (1,)


def test_packed_rollouts_have_what_their_samples_share_once(settings: Settings) -> None:
    forked = session("s", 3, run_id=RUN)
    publish(settings, forked)
    ((batch,), _) = all_batches(settings, batch_rollouts=1, packed=True)
    (tree,) = batch.packed
    assert batch.packed is batch.packed  # made once
    assert unpacked(tree) == list(batch.samples)


def test_siblings_between_two_rewards_are_one_session(settings: Settings) -> None:
    first, second, closed = session("s", 2, run_id=RUN)
    newer = revised("s", 0, 9, 4.0)
    publish(settings, [first, second, closed, newer])
    ((batch,), _) = all_batches(settings, batch_groups=2, packed=True)
    assert [sample.session_reward for sample in batch.samples] == [4.0, 4.0]
    assert [tree.session_reward for tree in batch.packed] == [4.0]


def test_a_loop_waits_for_what_is_not_there_yet(settings: Settings) -> None:
    publish(settings, group("g", 1, 1)[:2])
    later = threading.Timer(0.6, lambda: publish(settings, group("g", 1, 1)[2:]))
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        later.start()
        assert names(next(batches)) == ["g-0", "g-1"]
        waited = batches.status.waited_s
    later.join()
    assert set(waited) <= {"log", "groups", "samples"}
    assert waited["groups"] > 0.1


def test_a_group_times_out_although_nothing_more_comes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.trainer.feed._SKEW_MS", 100)
    publish(settings, group("g", 1, 1, 1)[:4])
    with subscribe(
        settings, run_id=RUN, batch_groups=1, group_timeout=0.5, partial_groups="deliver"
    ) as batches:
        batch = next(batches)
    assert names(batch) == ["g-0", "g-1"]
    assert batch.groups[0].ending == "timeout"


def test_stale_rollouts_are_dropped_when_a_batch_is_asked_for_and_not_before(
    settings: Settings,
) -> None:
    """The version moves with commits: at the border a rollout trains, one further it is gone."""
    publish(settings, [r for n in range(6) for r in group(f"g{n}", 1, 1, version=3)])
    with subscribe(
        settings, run_id=RUN, batch_groups=1, max_staleness=2, current_version=3, until_end=True
    ) as batches:
        seen = []
        for step, batch in enumerate(batches):
            seen.append(batch.staleness)
            batches.commit(step, 3 + step + 1)
        assert seen == [(0, 0), (1, 1), (2, 2)]
        assert batches.status.dropped == {"stale": 6}
        assert batches.status.staleness == (2, 2)


def test_unknown_weights_are_stale_in_a_run_that_has_versions(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    publish(settings, group("none", 1))  # before any version was declared
    publish(settings, group("known", 1, version=3))
    publish(settings, group("unknown", 1, version=-1))
    publish(settings, group("later", 1))
    options: Options = {"batch_groups": 1, "max_staleness": 10, "current_version": 3}
    taken, batches = all_batches(settings, **options)
    assert [names(b) for b in taken] == [["none-0"], ["known-0"]]
    assert [b.staleness for b in taken] == [(), (0,)]
    assert batches.status.dropped == {"stale": 2}
    said = [record.getMessage() for record in caplog.records if "run r" in record.getMessage()]
    assert len(said) == 2
    assert "max_staleness has no effect" in said[0]
    assert "unknown_version='train'" in said[1]
    taken, batches = all_batches(settings, **options, unknown_version="train", group="other")
    assert [names(b) for b in taken] == [["none-0"], ["known-0"], ["unknown-0"], ["later-0"]]
    assert batches.status.dropped == {}


def test_a_run_without_versions_has_nothing_stale_and_says_so_once(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    publish(settings, [record for n in range(5) for record in group(f"g{n}", 1, 1)])
    options: Options = {"batch_groups": 1, "current_version": 100}
    assert len(all_batches(settings, **options)[0]) == 5
    assert not caplog.records
    assert len(all_batches(settings, **options, max_staleness=0, group="other")[0]) == 5
    (record,) = caplog.records
    assert "max_staleness has no effect" in record.getMessage()


def test_the_version_may_be_asked_of_the_trainer(settings: Settings) -> None:
    publish(settings, group("old", 1, version=1) + group("new", 1, version=9))
    taken, batches = all_batches(
        settings, batch_groups=1, max_staleness=2, current_version=lambda: 10
    )
    assert [names(b) for b in taken] == [["new-0"]]
    assert taken[0].version == 10
    assert batches.status.dropped == {"stale": 1}


def test_a_later_reward_changes_what_waits_and_is_handed_over_for_what_is_gone(
    settings: Settings,
) -> None:
    of = {f"g{n}-{slot}": f"g{n}" for n in range(3) for slot in range(2)}
    publish(
        settings,
        [*group("g0", 1, 1), *group("g1", 1, 1), revised("g1-1", 0, 99, 0.75)],
        groups=of,
    )
    with subscribe(settings, run_id=RUN, batch_groups=1, advantages="mean") as batches:
        first = next(batches)
        wait_for(lambda: batches.status.revisions == {"applied": 1})
        publish(settings, [revised("g0-1", 0, 100, 5.0), *group("g2", 1)], groups=of)
        wait_for(lambda: batches.status.ready_groups == 2)
        second = next(batches)
        assert [r.reward for r in first.rollouts] == [1.0, 0.0]
        assert [r.reward for r in second.rollouts] == [1.0, 0.75]
        assert [row.advantage for row in second.rows] == [0.125, -0.125]
        assert [(r.sample_id, r.reward) for r in second.revisions] == [("g0-1/0", 5.0)]
        assert names(next(batches)) == ["g2-0"]
        assert batches.status.revisions == {"applied": 1, "handed_over": 1}


def test_nothing_is_fetched_beyond_the_buffer_while_the_loop_is_busy(settings: Settings) -> None:
    """Each rollout is a kilobyte and more; the buffer holds ten of them."""
    publish(settings, [r for n in range(300) for r in group(f"g{n}", 1, length=200)])
    with subscribe(settings, run_id=RUN, batch_groups=1, buffer_bytes=20_000) as batches:
        next(batches)
        wait_for(lambda: "trainer" in batches.status.waited_s)
        held = batches.status.ready_groups
        time.sleep(0.5)
        assert batches.status.ready_groups == held < 150
        taken = {*names(next(batches))}
        for _ in range(298):
            taken |= {*names(next(batches))}
        assert len(taken) == 299


def test_a_loop_that_never_commits_holds_no_tokens(settings: Settings) -> None:
    publish(settings, [r for n in range(50) for r in group(f"g{n}", 1, length=5000)])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        seen = [weakref.ref(batch) for batch in batches]
        assert batches.status.buffered_bytes == 0
    gc.collect()
    assert [one for one in seen if one() is not None] == []


def test_a_batch_larger_than_the_buffer_is_still_made(settings: Settings) -> None:
    publish(settings, [r for n in range(200) for r in group(f"g{n}", 1, length=200)])
    (batch,), _ = all_batches(settings, batch_groups=200, buffer_bytes=1)
    assert len(batch.rollouts) == 200


def test_a_group_can_be_abandoned_open_or_ready(settings: Settings) -> None:
    publish(settings, [*group("a", 1), *group("b", 1), *group("c", 1, 1)[:2], *group("d", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        assert names(next(batches)) == ["a-0"]
        wait_for(lambda: batches.status.ready_groups == 2)
        assert batches.abandon("b")
        assert batches.abandon("c")
        assert not batches.abandon("a")
        assert [names(b) for b in batches] == [["d-0"]]
        assert batches.status.dropped == {"abandoned": 2}


def test_the_same_for_loops_that_await(settings: Settings) -> None:
    publish(settings, [r for n in range(3) for r in group(f"g{n}", 1)])

    async def loop() -> list[list[str]]:
        seen = []
        async with subscribe_async(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
            async for batch in batches:
                seen.append(names(batch))
                await batches.commit(len(seen), len(seen), {batch.samples[0].sample_id: {"x": 1}})
            assert batches.status.lag == 0
        return seen

    assert asyncio.run(loop()) == [["g0-0"], ["g1-0"], ["g2-0"]]
    assert [r.step for r in trained_records(settings)] == [1, 2, 3]


def test_a_cancelled_wait_takes_no_batch(settings: Settings) -> None:
    publish(settings, group("g", 1, 1)[:2])

    async def loop() -> list[str]:
        async with subscribe_async(settings, run_id=RUN, batch_groups=1) as batches:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.4):
                    await anext(batches)
            await asyncio.to_thread(publish, settings, group("g", 1, 1)[2:])
            async with asyncio.timeout(20):
                return names(await anext(batches))

    assert asyncio.run(loop()) == ["g-0", "g-1"]


def test_groups_that_nothing_would_end_are_an_error(settings: Settings) -> None:
    publish(settings, session("s", 1, group_id="g", run_id=RUN))
    with (
        pytest.raises(ValueError, match="group g does not say how many sessions it has"),
        subscribe(settings, run_id=RUN, batch_groups=1) as batches,
    ):
        next(batches)


def test_a_group_waits_no_longer_than_a_session_may_live(tmp_path: Path) -> None:
    settings = Settings(log=str(tmp_path / "log.db"), hard_limit_s=0.3, reward_grace_s=0.2)
    publish(settings, group("g", 1, 1)[:2])
    time.sleep(0.7)
    publish(settings, group("h", 1))
    taken, batches = all_batches(settings, batch_groups=1)
    assert [names(b) for b in taken] == [["h-0"]]
    assert batches.status.dropped == {"timeout": 1}


def test_what_is_no_record_is_counted(settings: Settings) -> None:
    publish(settings, [sample("s", run_id=RUN)])
    send(settings, settings.samples_topic, b"k", [Resumed(run_id=RUN, version=1)])
    publish(settings, group("g", 1))
    taken, batches = all_batches(settings, batch_groups=1)
    assert [names(b) for b in taken] == [["g-0"]]
    assert batches.status.dropped == {"unreadable": 1}


WRONG = {
    "no size": ({}, "give one of"),
    "two sizes": ({"batch_rollouts": 1, "batch_tokens": 2}, "give one of"),
    "a partial policy that is none": ({"batch_groups": 1, "partial_groups": "some"}, "partial"),
    "a start that is none": ({"batch_groups": 1, "start": "middle"}, "start='middle'"),
    "a time without its zone": (
        {"batch_groups": 1, "start": datetime.datetime(2026, 1, 1)},  # noqa: DTZ001
        "with its zone",
    ),
    "a first none": ({"batch_groups": 1, "keep_first": 0}, "keep_first=0: .* from 1"),
    "a group of nobody": ({"batch_groups": 1, "group_size": 0}, "group_size=0: .* from 1"),
    "a time that is over": ({"batch_groups": 1, "group_timeout": -0.5}, "group_timeout=-0.5"),
    "weights to come": ({"batch_groups": 1, "max_staleness": -1}, "max_staleness=-1"),
    "samples of nothing": ({"batch_groups": 1, "tokens_max": 0}, "tokens_max=0: .* from 1"),
    "a member that is out at once": ({"batch_groups": 1, "member_timeout": 0}, "member_timeout=0"),
    "an advantage that is none": ({"batch_groups": 1, "advantages": "ppo"}, "advantages='ppo'"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        subscribe("log.db", **options)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="batch_rolouts"):
        subscribe("log.db", batch_rolouts=1)  # type: ignore[call-arg]


def test_a_file_that_is_missing_is_told_in_the_loop(tmp_path: Path) -> None:
    with pytest.raises(WrongLog), subscribe(tmp_path / "none.db", batch_groups=1) as batches:
        next(batches)


def test_torch_and_the_kafka_client_stay_out_of_a_trainer_on_a_file() -> None:
    code = "import sys, streams.trainer; print({'torch', 'aiokafka', 'faust'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "set()\n"
