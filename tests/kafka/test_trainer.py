"""Trainers on a real broker: alone and sharing, killed, slow, moved, too late."""

import asyncio
import dataclasses
import datetime
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from streams.cli.inspect.step_on_log import Step, find_step
from streams.errors import NoSuchPosition
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.log.partitioner import partition_of
from streams.settings import Settings
from streams.trainer import Batch, Subscription, subscribe
from tests.kafka.broker import Broker
from tests.kafka.entries import delete_all
from tests.trainer.lives import RUN, Id, live, rollouts, steps
from tests.trainer.publishing import committed, publish, trained_records
from tests.trainer.records import session

GROUPS = 60
OPTIONS: dict[str, Any] = {"batch_rollouts": 16, "advantages": "grpo"}
SESSION_S = 6.0
"""The shortest that a broker takes."""
SECONDS_MAX = 60.0


@pytest.fixture
def one_partition(broker: Broker) -> Settings:
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    settings = Settings(
        bootstrap_servers=broker.bootstrap_servers, topic_prefix=prefix, partitions=1
    )
    assert asyncio.run(create_topics(settings)).problems == []
    return settings


def sessions(names: Iterable[str], samples: int = 1) -> list[Any]:
    return [record for name in names for record in session(name, samples, run_id=RUN)]


def names(batch: Batch) -> list[str]:
    return [rollout.session_id for rollout in batch.rollouts]


def by_partition(trained: dict[int, list[Id]]) -> dict[int, list[str]]:
    """Sample ids in the order they were trained."""
    found: dict[int, list[str]] = {}
    for step in sorted(trained):
        for name, partition, _ in trained[step]:
            found.setdefault(partition, []).append(name)
    return found


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.05)


def test_a_killed_trainer_trains_the_same_sequence_on_one_partition(
    one_partition: Settings, tmp_path: Path
) -> None:
    settings = one_partition
    publish(settings, rollouts(GROUPS))
    assert live(tmp_path, settings, "calm", group="calm", **OPTIONS) == 0
    assert live(tmp_path, settings, "killed", die_at=5, **OPTIONS) == -signal.SIGKILL
    assert live(tmp_path, settings, "killed", **OPTIONS) == 0
    calm = steps(tmp_path, "calm")
    assert steps(tmp_path, "killed") == calm
    assert len(calm) > 6


def test_a_killed_trainer_trains_the_same_set_in_each_partitions_order(
    settings: Settings, tmp_path: Path
) -> None:
    publish(settings, rollouts(GROUPS))
    assert live(tmp_path, settings, "calm", group="calm", **OPTIONS) == 0
    assert live(tmp_path, settings, "killed", die_at=5, **OPTIONS) == -signal.SIGKILL
    assert live(tmp_path, settings, "killed", **OPTIONS) == 0
    calm = by_partition(steps(tmp_path, "calm"))
    assert by_partition(steps(tmp_path, "killed")) == calm
    assert len(calm) == settings.partitions


def test_a_long_step_costs_neither_samples_nor_membership(settings: Settings) -> None:
    """Half as long again as the group allows for silence, with a full buffer."""
    publish(settings, sessions((f"s{n}" for n in range(400)), samples=2))
    with subscribe(
        settings, run_id=RUN, batch_rollouts=50, member_timeout=SESSION_S, buffer_bytes=10_000
    ) as batches:
        seen = names(next(batches))
        wait_for(lambda: batches.status.waited_s.get("trainer", 0) > 0)
        generation = _member(batches).generation
        time.sleep(SESSION_S * 1.5)
        assert _member(batches).generation == generation
        batches.commit(1, 1)
        assert "commit_refused" not in batches.status.dropped
        assert sum(committed(settings, _group(settings)).values()) > 0
        while len(seen) < 400:
            seen += names(next(batches))
            batches.commit(2, 2)
    assert sorted(seen) == sorted(f"s{n}" for n in range(400))
    assert len(trained_records(settings)) == 8


def test_trainers_of_one_group_share_and_of_two_do_not(settings: Settings) -> None:
    everyone = [f"s{n}" for n in range(200)]
    with (
        subscribe(settings, run_id=RUN, batch_rollouts=1) as one,
        subscribe(settings, run_id=RUN, batch_rollouts=1) as two,
        subscribe(settings, run_id=RUN, batch_rollouts=1, group="own") as own,
    ):
        for batches in (one, two):
            batches.run_epoch  # noqa: B018  # opens it
        wait_for(lambda: len(_member(one).partitions) == len(_member(two).partitions) == 2)
        publish(settings, sessions(everyone))
        mine = {
            partition: {n for n in everyone if partition_of(n.encode(), 4) in partitions}
            for partition, partitions in enumerate(
                (_member(one).partitions, _member(two).partitions)
            )
        }
        assert _take(one, len(mine[0])) == mine[0]
        assert _take(two, len(mine[1])) == mine[1]
        assert _take(own, 200) == set(everyone)


def test_who_goes_on_for_another_trains_nothing_twice(settings: Settings) -> None:
    """The first leaves an open group in each partition, which holds its position back."""
    openings = [
        next(g for g in map(str, range(1000)) if partition_of(g.encode(), 4) == partition)
        for partition in range(4)
    ]
    halves = [session(f"h{g}", group_id=g, group_size=2, run_id=RUN) for g in openings]
    rest = [session(f"k{g}", group_id=g, group_size=2, run_id=RUN) for g in openings]
    everyone = {f"s{n}" for n in range(100)}
    publish(settings, [r for half in halves for r in half] + sessions(sorted(everyone)))
    with subscribe(settings, run_id=RUN, batch_rollouts=1) as first:
        trained = set()
        for step in range(40):
            trained |= set(names(next(first)))
            first.commit(step, step)
        assert set(committed(settings, _group(settings)).values()) == {0}
    publish(settings, [r for half in rest for r in half])
    pairs = {name for g in openings for name in (f"h{g}", f"k{g}")}
    with subscribe(settings, run_id=RUN, batch_rollouts=1) as second:
        later: set[str] = set()
        while len(later) < 60 + len(pairs):
            later |= set(names(next(second)))
            second.commit(100, 100)
    assert later == (everyone - trained) | pairs
    assert len(trained) == 40


def test_a_killed_trainers_partitions_go_to_the_others(settings: Settings, tmp_path: Path) -> None:
    """What it had committed is not trained again, the rest is."""
    everyone = {f"s{n}" for n in range(80)}
    publish(settings, sessions(sorted(everyone)))
    code = (
        "import os, signal\n"
        "from streams.settings import Settings\n"
        "from streams.trainer import subscribe\n"
        f"settings = Settings(bootstrap_servers={settings.bootstrap_servers!r},"
        f" topic_prefix={settings.topic_prefix!r}, partitions=4)\n"
        f"batches = subscribe(settings, run_id={RUN!r}, batch_rollouts=10,"
        f" member_timeout={SESSION_S})\n"
        "next(batches); batches.commit(1, 1); next(batches)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], timeout=SECONDS_MAX, check=False)
    assert run.returncode == -signal.SIGKILL
    (record,) = trained_records(settings)
    done = {name.partition("/")[0] for name in record.sample_ids}
    assert len(done) == 10
    with subscribe(settings, run_id=RUN, batch_rollouts=1, member_timeout=SESSION_S) as batches:
        assert _take(batches, 70) == everyone - done


def test_partitions_that_stay_are_read_on_when_others_come_and_go(settings: Settings) -> None:
    """Nothing that was buffered is handed out twice, and nothing is lost."""
    everyone = [f"s{n}" for n in range(300)]
    stop = threading.Event()
    with subscribe(settings, run_id=RUN, batch_rollouts=1) as batches:
        publish(settings, sessions(everyone[:150]))
        seen = [*names(next(batches))]
        batches.commit(0, 0)

        def come_and_go() -> None:
            for _ in range(2):
                with subscribe(settings, run_id=RUN, batch_rollouts=10_000) as other:
                    other.run_epoch  # noqa: B018  # opens it
                    wait_for(lambda: stop.is_set() or len(_member(other).partitions) == 2)

        visitor = threading.Thread(target=come_and_go)
        visitor.start()
        try:
            publish(settings, sessions(everyone[150:]))
            while len(set(seen)) < 300:
                seen += names(next(batches))
                batches.commit(len(seen), len(seen))
        finally:
            stop.set()
            visitor.join()
    # A commit that the group refused while partitions were given out may cost a repetition.
    repeated = len(seen) - len(set(seen))
    assert repeated <= batches.status.dropped.get("commit_refused", 0)
    assert set(seen) == set(everyone)


def test_a_position_that_retention_took_is_an_error(settings: Settings) -> None:
    publish(settings, sessions(f"s{n}" for n in range(40)))
    with subscribe(settings, run_id=RUN, batch_rollouts=5) as batches:
        next(batches)
        batches.commit(1, 1)
        state = batches.state_dict()
    asyncio.run(delete_all(settings, settings.samples_topic))
    with (
        subscribe(settings, run_id=RUN, batch_rollouts=5) as batches,
        pytest.raises(NoSuchPosition, match="lost to retention"),
    ):
        next(batches)
    batches = subscribe(settings, run_id=RUN, batch_rollouts=5)
    batches.load_state_dict(state)
    with batches, pytest.raises(NoSuchPosition, match="lost to retention"):
        next(batches)
    publish(settings, sessions(["new"]))
    with subscribe(settings, run_id=RUN, batch_rollouts=1, start="beginning") as batches:
        assert names(next(batches)) == ["new"]


def test_reading_begins_at_a_time(settings: Settings) -> None:
    publish(settings, sessions(f"s{n}" for n in range(20)))
    time.sleep(0.1)
    between = datetime.datetime.now(datetime.UTC)
    time.sleep(0.1)
    publish(settings, sessions(["later"]))
    starts: list[tuple[Any, int]] = [(between, 1), ("beginning", 21), ("end", 0)]
    for start, wanted in starts:
        with subscribe(
            settings, run_id=RUN, batch_rollouts=100, start=start, until_end=True
        ) as batches:
            assert sum(len(batch.rollouts) for batch in batches) == wanted


def test_a_step_is_found_again_with_its_samples(settings: Settings) -> None:
    publish(settings, sessions((f"s{n}" for n in range(30)), samples=2))
    with subscribe(settings, run_id=RUN, batch_rollouts=10) as batches:
        for step in range(3):
            batch = next(batches)
            batches.commit(step, step, {s.sample_id: {"x": step} for s in batch.samples})

    async def look() -> Step | None:
        async with KafkaLog(settings) as log:
            return await find_step(log, settings, 2, RUN)

    found = asyncio.run(look())
    assert found is not None
    assert found.sample_ids == [sample.sample_id for sample in batch.samples]
    assert {*found.samples} == {*found.sample_ids}
    assert {found.statistics[name]["x"].value for name in found.sample_ids} == {2.0}


def test_a_url_names_the_broker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_TOPIC_PREFIX", settings.topic_prefix)
    publish(settings, sessions(["s"]))
    with subscribe(f"kafka://{settings.bootstrap_servers}", batch_rollouts=1) as batches:
        assert names(next(batches)) == ["s"]


def _take(batches: Subscription, count: int) -> set[str]:
    found: list[str] = []
    while len(found) < count:
        found += names(next(batches))
    assert len(found) == len(set(found)) == count
    return set(found)


def _group(settings: Settings) -> str:
    return settings.trainer_group_of(RUN)


def _member(batches: Subscription) -> Any:
    feed = batches._feed
    assert feed is not None
    return feed._source._member  # type: ignore[union-attr]


def test_the_settings_of_a_child_are_those_of_its_parent(settings: Settings) -> None:
    assert Settings(**dataclasses.asdict(settings)) == settings
