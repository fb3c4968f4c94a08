"""Commits and checkpoints on an embedded log: where a trainer goes on, and what it leaves alone."""

import asyncio
import dataclasses
import datetime
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest

from schemas.control import Resumed
from streams.core.closed_groups import ClosedGroups
from streams.core.open_group import Fence
from streams.errors import NoSuchPosition, PositionMoved
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from streams.trainer import Subscription, subscribe
from streams.trainer.state import FENCES_MAX, State, from_dict, to_dict
from streams.trainer.subscribing import Options
from tests.trainer.publishing import (
    committed,
    ids,
    publish,
    send,
    trained_records,
)
from tests.trainer.records import outcome, revised
from tests.trainer.scenes import RUN, all_batches, group, names, wait_for

GROUP = "turnstream-trainer-r"


def test_a_commit_says_what_was_trained_and_moves_the_group(settings: Settings) -> None:
    publish(settings, [r for n in range(3) for r in group(f"g{n}", 1, 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1, until_end=True) as batches:
        first = next(batches)
        statistics = {"ratio": np.float32(1.5), "kl": np.longdouble(0.5)}
        batches.commit(7, 70, {first.samples[0].sample_id: statistics})
        second = next(batches)
    (record,) = trained_records(settings)
    assert (record.run_id, record.step, record.weight_version) == (RUN, 7, 70)
    assert record.sample_ids == ids(first.samples)
    assert record.places == [(0, 0), (0, 2)]
    assert json.loads(bytes(record.statistics)) == {"g0-0/0": {"ratio": 1.5, "kl": 0.5}}
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


def test_a_step_without_a_batch_is_told_of_too(settings: Settings) -> None:
    publish(settings, group("g", 1))
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        batches.commit(0, 1)
        assert names(next(batches)) == ["g-0"]
        assert batches.current_version == 1
    (record,) = trained_records(settings)
    assert (record.step, record.sample_ids) == (0, [])


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

    _trim(settings)
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

    def go_on(**options: Unpack[Options]) -> tuple[list[list[str]], Subscription]:
        options = {"run_id": RUN, "batch_groups": 1, "until_end": True, **options}
        with subscribe(settings, **options) as batches:
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
    # What is unknown of an earlier life may be of weights that are gone.
    publish(settings, group("f", 1, version=-1) + group("g", 1, version=-1, run_epoch=2))
    seen, batches = go_on()
    assert seen == [["b-0"], ["d-0"], ["g-0"]]
    assert batches.status.dropped == {"fenced": 3}
    seen, batches = go_on(unknown_version="train")
    assert seen == [["b-0"], ["d-0"], ["f-0"], ["g-0"]]


def test_a_restored_life_knows_which_runs_have_versions(settings: Settings) -> None:
    publish(settings, group("a", 1, version=1))
    options: Options = {
        "run_id": RUN,
        "batch_groups": 1,
        "until_end": True,
        "current_version": 1,
        "max_staleness": 5,
    }
    with subscribe(settings, **options) as batches:
        next(batches)
        batches.commit(1, 2)
        state = json.loads(json.dumps(batches.state_dict()))
    publish(settings, group("b", 1))
    with subscribe(settings, **options) as batches:
        batches.load_state_dict(state)
        assert list(batches) == []
        assert batches.status.dropped == {"stale": 1}
    del state["versioned"]  # as an older one was saved
    with subscribe(settings, **options) as batches:
        batches.load_state_dict(state)
        assert [names(batch) for batch in batches] == [["b-0"]]


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


def test_a_later_reward_that_was_not_handed_over_yet_is_read_again(settings: Settings) -> None:
    publish(settings, [*group("a", 1), *group("b", 1)])
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
        batches.commit(1, 1)
        next(batches)
        publish(settings, [revised("a-0", 0, 50, 0.25)], groups={"a-0": "a"})
        wait_for(lambda: batches.status.revisions == {"handed_over": 1})
        batches.commit(2, 2)
        state = batches.state_dict()
    assert committed(settings, GROUP) == {0: 4}
    publish(settings, group("c", 1))
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        batches.load_state_dict(state)
        batch = next(batches)
        assert [(r.sample_id, r.reward) for r in batch.revisions] == [("a-0/0", 0.25)]
        assert names(batch) == ["c-0"]
        batches.commit(3, 3)
    assert committed(settings, GROUP) == {0: 7}


def test_retention_that_overtakes_a_busy_trainer_is_an_error(tmp_path: Path) -> None:
    settings = Settings(log=str(tmp_path / "log.db"), retention_samples_hours=1)
    publish(settings, [r for n in range(400) for r in group(f"g{n}", 1, length=200)])
    with subscribe(settings, run_id=RUN, batch_groups=1, buffer_bytes=10_000) as batches:
        next(batches)
        wait_for(lambda: batches.status.waited_s.get("trainer", 0) > 0)
        _trim(settings)
        with pytest.raises(NoSuchPosition, match="lost to retention"):
            list(itertools.islice(batches, 400))
        with pytest.raises(NoSuchPosition, match="lost to retention"):
            batches.commit(1, 1)  # what ended the reading, not that it has ended


def test_a_state_without_a_version_leaves_the_one_that_is_given(settings: Settings) -> None:
    publish(settings, group("old", 1, version=1) + group("new", 1, version=6))
    state = subscribe(settings, run_id=RUN, batch_groups=1).state_dict()
    with subscribe(
        settings, run_id=RUN, batch_groups=1, current_version=7, max_staleness=2, until_end=True
    ) as batches:
        batches.load_state_dict(state)
        assert [names(batch) for batch in batches] == [["new-0"]]
        assert batches.state_dict()["version"] == 7


def test_a_full_state_is_under_a_megabyte() -> None:
    closed = ClosedGroups()
    for number in range(100_000):
        closed.add(f"group-{number}", (number % 16, number), delivered=number % 3 > 0)
    delivered, dropped = closed.names()
    fences = tuple(Fence(epoch, epoch, dict.fromkeys(range(64), 2**40)) for epoch in range(20))
    state = State(
        topic="t",
        run_id="r",
        run_epoch=20,
        version=1,
        step=1,
        next_batch=1,
        fences=fences,
        positions=dict.fromkeys(range(64), 2**40),
        delivered=delivered,
        dropped=dropped,
    )
    text = json.dumps(to_dict(state))
    assert len(text) < 1_000_000
    assert from_dict(json.loads(text)) == state
    assert len(closed) == closed.most
    assert "group-99999" in closed
    assert "group-0" not in closed


def test_fences_are_bounded_and_bar_what_they_barred() -> None:
    """Restored a thousand times, to versions that rise, fall and stay."""
    choose = random.Random(1)
    every: list[Fence] = []
    state = State(topic="t", run_id="r", run_epoch=0, version=0, step=0, next_batch=0)
    for end in range(1_000):
        state = dataclasses.replace(state, version=choose.randrange(end // 50 + 1))
        epoch, fences = state.restored(0, {0: end})
        state = dataclasses.replace(state, run_epoch=epoch, fences=fences)
        every.append(Fence(epoch, state.version or 0, {0: end}))
        for _ in range(5):
            told = choose.choice([None, choose.randrange(epoch + 1)])
            closed, newest = outcome("s", run_epoch=told), choose.randrange(25)
            place = (0, choose.randrange(end + 1))
            assert any(one.bars(closed, newest, place) for one in fences) == any(
                one.bars(closed, newest, place) for one in every
            )
    assert len(state.fences) <= 20
    for version in range(25, 100):
        epoch, fences = dataclasses.replace(state, version=version).restored(0, {0: 2_000})
        state = dataclasses.replace(state, run_epoch=epoch, fences=fences)
    assert [fence.version for fence in state.fences] == list(range(100 - FENCES_MAX, 100))


def _trim(settings: Settings) -> None:
    async def work() -> None:
        async with SqliteLog(Path(settings.log), settings) as log:
            while await log.trim(int(time.time() * 1000) + 7_200_000):
                pass

    asyncio.run(work())
