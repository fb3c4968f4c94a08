"""subscribe() on an embedded log: what a loop is handed, and what it is not."""

import asyncio
import datetime
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.control import Resumed
from streams.errors import NoSuchPosition, PositionMoved, WrongLog
from streams.log.opening import open_log
from streams.settings import Settings
from streams.trainer import Batch, Subscription, subscribe, subscribe_async
from tests.trainer.publishing import (
    Published,
    committed,
    ids,
    in_file,
    publish,
    send,
    trained_records,
)
from tests.trainer.records import revised, sample, session

RUN = "r"
GROUP = "turnstream-trainer-r"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return in_file(tmp_path)


def group(name: str, *counts: int, **fields: Any) -> list[Published]:
    """A whole group: sessions with so many samples each, every other one a success."""
    return [
        record
        for slot, count in enumerate(counts)
        for record in session(
            f"{name}-{slot}",
            count,
            group_id=name,
            group_size=len(counts),
            rollout_index=slot,
            run_id=RUN,
            reward=float(slot % 2 == 0),
            **fields,
        )
    ]


def names(batch: Batch) -> list[str]:
    return [rollout.session_id for rollout in batch.rollouts]


def all_batches(settings: Settings, **options: Any) -> tuple[list[Batch], Subscription]:
    """Everything up to the log's end."""
    with subscribe(settings, run_id=RUN, until_end=True, **options) as batches:
        return list(batches), batches


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


def test_a_commit_says_what_was_trained_and_moves_the_group(settings: Settings) -> None:
    publish(settings, [r for n in range(3) for r in group(f"g{n}", 1, 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        first = next(batches)
        batches.commit(7, 70, {first.samples[0].sample_id: {"ratio": np.float32(1.5)}})
        second = next(batches)
    (record,) = trained_records(settings)
    assert (record.run_id, record.step, record.weight_version) == (RUN, 7, 70)
    assert record.sample_ids == ids(first.samples)
    assert record.places == [(0, 0), (0, 2)]
    assert json.loads(bytes(record.statistics)) == {"g0-0/0": {"ratio": 1.5}}
    # The second batch was handed out and not committed: it is read again.
    assert committed(settings, GROUP) == {0: 4}
    again, _ = all_batches(settings, batch_groups=1)
    assert ids(again[0].samples) == ids(second.samples)
    assert len(again) == 2


def test_several_batches_may_make_one_step_and_one_may_be_committed_alone(
    settings: Settings,
) -> None:
    publish(settings, [r for n in range(4) for r in group(f"g{n}", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        taken = [next(batches) for _ in range(3)]
        batches.commit(1, 1, batches=taken[1:2])
        assert committed(settings, GROUP) == {0: 0}
        state = batches.state_dict()
        batches.commit(2, 2)
        assert committed(settings, GROUP) == {0: 6}
        with pytest.raises(ValueError, match="batch 0 was committed already"):
            batches.commit(3, 3, batches=taken[:1])
        with pytest.raises(ValueError, match="is in no batch of this step"):
            batches.commit(3, 3, {"strange": {"ratio": 1}})
    assert [r.sample_ids for r in trained_records(settings)] == [["g1-0/0"], ["g0-0/0", "g2-0/0"]]
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        batches.load_state_dict(state)
        assert [names(b) for b in batches] == [["g0-0"], ["g2-0"], ["g3-0"]]


def test_an_open_group_holds_the_position_and_what_overtook_it_is_not_trained_again(
    settings: Settings,
) -> None:
    slow = group("slow", 1, 1)
    publish(settings, [*slow[:2], *group("a", 1), *group("b", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        assert names(next(batches)) == ["a-0"]
        batches.commit(1, 1)
        assert committed(settings, GROUP) == {0: 0}
        state = json.loads(json.dumps(batches.state_dict()))
    publish(settings, slow[2:])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        batches.load_state_dict(state)
        assert [names(b) for b in batches] == [["b-0"], ["slow-0", "slow-1"]]
        # Of group a an outcome was seen again.
        assert batches.status.dropped == {"late": 1}


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
        _wait(lambda: batches.status.revisions == {"applied": 1})
        publish(settings, [revised("g0-1", 0, 100, 5.0), *group("g2", 1)], groups=of)
        _wait(lambda: batches.status.ready_groups == 2)
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
        _wait(lambda: "trainer" in batches.status.waited_s)
        held = batches.status.ready_groups
        time.sleep(0.5)
        assert batches.status.ready_groups == held < 150
        taken = {*names(next(batches))}
        for _ in range(298):
            taken |= {*names(next(batches))}
        assert len(taken) == 299


def test_a_batch_larger_than_the_buffer_is_still_made(settings: Settings) -> None:
    publish(settings, [r for n in range(200) for r in group(f"g{n}", 1, length=200)])
    (batch,), _ = all_batches(settings, batch_groups=200, buffer_bytes=1)
    assert len(batch.rollouts) == 200


def test_a_group_can_be_abandoned_open_or_ready(settings: Settings) -> None:
    publish(settings, [*group("a", 1), *group("b", 1), *group("c", 1, 1)[:2], *group("d", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        assert names(next(batches)) == ["a-0"]
        _wait(lambda: batches.status.ready_groups == 2)
        assert batches.abandon("b")
        assert batches.abandon("c")
        assert not batches.abandon("a")
        assert [names(b) for b in batches] == [["d-0"]]
        assert batches.status.dropped == {"abandoned": 2}


def test_reading_begins_where_one_says(settings: Settings) -> None:
    publish(settings, group("a", 1))
    time.sleep(0.05)
    between = datetime.datetime.now(datetime.UTC)
    time.sleep(0.05)
    publish(settings, group("b", 1))

    def seen(start: Any) -> list[list[str]]:
        return [names(b) for b in all_batches(settings, batch_groups=1, start=start)[0]]

    assert seen("committed") == seen("beginning") == [["a-0"], ["b-0"]]
    assert seen(between) == [["b-0"]]
    assert seen("end") == []
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
        batches.commit(1, 1)
    assert seen("committed") == [["b-0"]]
    assert seen("beginning") == [["a-0"], ["b-0"]]


def test_a_position_that_retention_took_is_an_error(tmp_path: Path) -> None:
    settings = Settings(log=str(tmp_path / "log.db"), retention_samples_hours=1)
    publish(settings, group("a", 1))
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
        state = batches.state_dict()
        batches.commit(1, 1)
    publish(settings, group("b", 1))

    async def trim() -> None:
        async with open_log(settings) as log:
            assert await log.trim(int(time.time() * 1000) + 7_200_000) > 0  # type: ignore[attr-defined]

    asyncio.run(trim())
    fresh = subscribe(settings, run_id=RUN, batch_groups=1)
    with fresh as batches, pytest.raises(NoSuchPosition, match="lost to retention"):
        next(batches)
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        batches.load_state_dict(state)
        with pytest.raises(NoSuchPosition, match="lost to retention"):
            next(batches)
    assert all_batches(settings, batch_groups=1, start="beginning")[0] == []


def test_two_trainers_of_one_group_on_a_file_are_told_apart(settings: Settings) -> None:
    publish(settings, [*group("a", 1), *group("b", 1)])
    with (
        subscribe(settings, run_id=RUN, batch_groups=1) as one,
        subscribe(settings, run_id=RUN, batch_groups=1) as two,
        subscribe(settings, run_id=RUN, batch_groups=1, group="own") as three,
    ):
        for batches in (one, two, three):
            assert names(next(batches)) == ["a-0"]
        one.commit(1, 1)
        three.commit(1, 1)
        with pytest.raises(PositionMoved, match="another process works for it"):
            two.commit(1, 1)
    assert len(trained_records(settings)) == 2


def test_a_restore_raises_the_epoch_and_fences_what_never_was(settings: Settings) -> None:
    publish(settings, [*group("a", 1, version=1), *group("b", 1, version=2)])
    with subscribe(settings, run_id=RUN, batch_groups=1, current_version=1) as batches:
        next(batches)
        batches.commit(1, 2)
        state = batches.state_dict()
        assert batches.run_epoch == 0
        next(batches)
        batches.commit(2, 3)  # and dies before it saves anything
    publish(settings, [*group("c", 1, version=3), *group("d", 1, version=2, run_epoch=1)])

    def go_on() -> tuple[list[list[str]], Subscription]:
        with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
            batches.load_state_dict(state)
            return [names(b) for b in batches], batches

    seen, batches = go_on()
    assert seen == [["b-0"], ["d-0"]]
    assert (batches.run_epoch, batches.current_version) == (1, 2)
    assert batches.status.dropped == {"fenced": 1}
    # A life that told the gateways its epoch and died unsaved is not taken for the next one.
    send(
        settings,
        settings.control_topic,
        RUN.encode(),
        [Resumed(run_id=RUN, version=3, run_epoch=1)],
    )
    publish(settings, group("e", 1, version=3, run_epoch=1))
    seen, batches = go_on()
    assert (seen, batches.run_epoch) == ([["b-0"], ["d-0"]], 2)
    assert batches.status.dropped == {"fenced": 2}


def test_a_state_is_small_plain_and_of_one_run(settings: Settings) -> None:
    publish(settings, [r for n in range(2_000) for r in group(f"group-{n}", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=500) as batches:
        for step in range(4):
            next(batches)
            batches.commit(step, step)
        text = json.dumps(batches.state_dict())
    assert len(text) < 30_000
    with subscribe(settings, run_id="other", batch_groups=1) as batches:
        with pytest.raises(ValueError, match="is of run r"):
            batches.load_state_dict(json.loads(text))
        with pytest.raises(ValueError, match="format None"):
            batches.load_state_dict({})
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        with pytest.raises(ValueError, match="not a state"):
            batches.load_state_dict({"format": 1})
        batches.load_state_dict(json.loads(text))
        assert batches.state_dict() == json.loads(text)


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


def _wait(holds: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)
