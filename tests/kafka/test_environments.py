"""Wrapped environments on a real broker, with real workers: ends, outages, and a kill."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.events import Event
from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.adapters.environments import NotRecorded, Recorder, recorded
from streams.adapters.judgers.consumer import JudgingConsumer
from streams.adapters.judgers.judging import Judging
from streams.core.partition import Partition
from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from tests.adapters.environments.test_model_calls import Model
from tests.adapters.environments.toys import Chat, ToyError, Walk, said
from tests.adapters.environments.world import Told
from tests.kafka.broker import Broker
from tests.kafka.test_processor import worker

SECONDS_MAX = 150.0
CHILD = """
import sys, time
from streams.adapters.environments import Recorder, recorded
from streams.settings import Settings
from tests.adapters.environments.toys import Walk

settings = Settings(bootstrap_servers=sys.argv[1], topic_prefix=sys.argv[2], partitions=4)
env = recorded(Walk(8), Recorder(settings))
env.reset()
env.step(1)
env.step(1)
print(env.session_id, flush=True)
time.sleep(120)
"""


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as running:
        yield running


async def records(settings: Settings, topic: str) -> list[Record]:
    async with KafkaLog(settings) as log:
        ends = await log.end_positions(topic)
        reader = await log.read(topic, await log.start_positions(topic))
        found: list[Record] = []
        while any(reader.positions[at] < end for at, end in ends.items()):
            batch = await reader.next_batch(1.0)
            found += [codec.from_msgpack(entry.value or b"") for entry in batch]
        await reader.close()
    return found


def told(settings: Settings) -> dict[str, Told]:
    sessions: dict[str, Told] = {}
    for event in asyncio.run(records(settings, settings.turns_topic)):
        session_id = getattr(event, "session_id", "")
        sessions.setdefault(session_id, Told([])).events.append(event)
    return sessions


def closed(settings: Settings, count: int) -> tuple[dict[str, SessionClosed], list[Sample]]:
    """Outcomes and samples once the workers have closed so many sessions."""
    deadline_s = time.monotonic() + SECONDS_MAX
    while True:
        found = asyncio.run(records(settings, settings.samples_topic))
        outcomes = {one.session_id: one for one in found if isinstance(one, SessionClosed)}
        if len(outcomes) >= count:
            return outcomes, [one for one in found if isinstance(one, Sample)]
        assert time.monotonic() < deadline_s, outcomes
        time.sleep(0.5)


def test_every_way_to_end_is_one_outcome_on_kafka(settings: Settings, tmp_path: Path) -> None:
    quick = dataclasses.replace(
        settings, metrics_port=0, idle_limit_s=20.0, processor_sweep_interval_s=0.5
    )

    def play(recorder: Recorder) -> dict[str, str]:
        ends: dict[str, str] = {}
        env = recorded(Walk(2), recorder, fields={"group_id": "g"})
        for status in ("completed", "interrupted", "error", "closed"):
            env.reset()
            ends[env.session_id] = status
            call = Model().answer([{"role": "user", "content": "hi"}])
            env.turn(**call | {"finish_reason": "length"})
            env.step(1)
            if status == "completed":
                env.step(1)
            elif status == "error":
                with pytest.raises(ToyError):
                    env.step(9)
        env.close()
        return ends

    async def cancelled(recorder: Recorder) -> str:
        env = recorded(Chat(slow_s=60.0), recorder)
        await env.reset()
        task = asyncio.create_task(env.step(said("on")))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return str(env.session_id)

    with worker(quick, tmp_path / "one.log"), worker(quick, tmp_path / "two.log"):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, quick.bootstrap_servers, quick.topic_prefix],
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            killed = child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate(timeout=SECONDS_MAX)
        with Recorder(quick) as recorder:
            ends = play(recorder)
            ends[asyncio.run(cancelled(recorder))] = "cancelled"
        ends[killed] = "expired"
        outcomes, samples = closed(quick, 6)
    assert {name: one.end_status for name, one in outcomes.items()} == ends
    assert (outcomes[killed].turns, outcomes[killed].withheld) == (2, "status")
    # Only the completed one trains: its model call; the step after it drew no token.
    (sample,) = samples
    assert (sample.trained, sample.group_id, sample.reward) == (3, "g", -1.0)
    events = told(quick)
    assert events[sample.session_id].turns[0].finish_reason == "length"
    assert all(events[name].kinds.count("session_ended") == 1 for name in ends if name != killed)


def test_fifty_environments_and_a_judger_on_kafka(settings: Settings, tmp_path: Path) -> None:
    quick = dataclasses.replace(settings, metrics_port=0)

    async def one(recorder: Recorder, number: int) -> None:
        fields = {"task_id": f"env{number}", "metadata": {"answer": number}}
        async with recorded(Chat(turns=3), recorder, fields=fields, score=None) as env:
            step = await env.reset()
            while not step.last():
                await env.turn(**Model().answer([{"role": "user", "content": f"env{number}"}]))
                step = await env.step(said("on"))

    async def work() -> dict[str, int]:
        with Recorder(quick) as recorder:
            await asyncio.gather(*(one(recorder, number) for number in range(50)))
        async with KafkaLog(quick) as log:
            judging = Judging(lambda case: float(case.metadata["answer"]))
            consumer = JudgingConsumer(quick, log, judging)
            await consumer.run(asyncio.Event(), once=True)
            return dict(consumer.counts)

    with worker(quick, tmp_path / "worker.log"):
        assert asyncio.run(asyncio.wait_for(work(), SECONDS_MAX)) == {"judged": 50}
        outcomes, samples = closed(quick, 50)
    assert len(outcomes) == 50
    for outcome in outcomes.values():
        assert outcome.task_id == f"env{int(outcome.reward or 0)}"
        assert (outcome.turns, outcome.gaps, outcome.refused) == (3, 0, 0)
    assert {sample.session_id for sample in samples} == set(outcomes)


def test_a_topic_that_is_not_as_it_has_to_be_is_said_at_once(settings: Settings) -> None:
    other = dataclasses.replace(settings, partitions=7)
    with Recorder(other, patience_s=SECONDS_MAX) as recorder:
        with pytest.raises(NotRecorded, match="has 4 partitions instead of 7"):
            recorded(Walk(1), recorder).reset()
        assert recorder.counts["retries"] == 0


def away_settings(broker: Broker) -> Settings:
    """Of a broker that is given up soon."""
    settings = Settings(
        bootstrap_servers=broker.bootstrap_servers,
        partitions=2,
        publish_timeout_s=4.0,
        request_timeout_s=4.0,
    )
    asyncio.run(create_topics(settings))
    return settings


def leave(env: Any) -> None:
    with env:
        raise KeyError("lost")


AWAY: dict[str, tuple[Callable[[Any], object], type[BaseException], str]] = {
    "last step": (lambda env: env.step(1), NotRecorded, "completed"),
    "reset while active": (lambda env: env.reset(), NotRecorded, "interrupted"),
    "close while active": (lambda env: env.close(), NotRecorded, "closed"),
    "leaving by an error": (leave, KeyError, "error"),
    "step raises": (lambda env: env.step(9), ToyError, "error"),
}


def test_a_broker_that_is_killed_masks_nothing_and_gets_the_ends_when_it_is_back(
    own_broker: Broker,
) -> None:
    settings = away_settings(own_broker)

    async def cancelled(recorder: Recorder) -> str:
        env = recorded(Chat(slow_s=60.0), recorder)
        await env.reset()
        task = asyncio.create_task(env.step(said("on")))
        await asyncio.to_thread(own_broker.kill)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        return str(env.session_id)

    with Recorder(settings, patience_s=5.0) as recorder, ThreadPoolExecutor(len(AWAY)) as pool:
        going_on = recorded(Walk(8), recorder)
        envs = [going_on, *(recorded(Walk(2), recorder) for _ in AWAY)]
        for env in envs:
            env.reset()
            env.step(1)
        names = [str(env.session_id) for env in envs]
        ends = {names[0]: "error"}
        ends[asyncio.run(cancelled(recorder))] = "cancelled"  # the broker is gone from here on
        asked = [
            pool.submit(how, env) for env, (how, *_) in zip(envs[1:], AWAY.values(), strict=True)
        ]
        with pytest.raises(NotRecorded):
            going_on.step(1)
        for done, name, (_, error, status) in zip(asked, names[1:], AWAY.values(), strict=True):
            assert isinstance(done.exception(SECONDS_MAX), error)
            ends[name] = status
        assert envs[3].unwrapped.closed == 1  # the environment is, whatever the record
        own_broker.start()
        deadline_s = time.monotonic() + SECONDS_MAX
        while not ends.keys() <= {name for name, one in told(settings).items() if one.is_over}:
            assert time.monotonic() < deadline_s, recorder.counts
            time.sleep(0.5)
    # What the broker had and did not say stands there twice, in the same words; it counts once.
    outcomes = {name: outcome_of(one) for name, one in told(settings).items() if name in ends}
    assert {name: one.end_status for name, one in outcomes.items()} == ends
    assert {one.refused for one in outcomes.values()} == {0}
    reason = outcomes[names[0]].reason
    assert reason is not None
    assert reason.stage == "log"


def test_a_broker_that_hangs_holds_up_nobody_for_longer_than_their_patience(
    own_broker: Broker,
) -> None:
    settings = away_settings(own_broker)
    with Recorder(settings, patience_s=1.0) as recorder:
        env, other = recorded(Walk(8), recorder), recorded(Walk(8), recorder)
        for one in (env, other):
            one.reset()
            one.step(1)
        own_broker.pause()  # its connections stay open
        with pytest.raises(NotRecorded):
            env.step(1)
        with pytest.raises(ToyError):
            other.step(9)
        assert recorder.close(1.0) > 0
        own_broker.resume()


def outcome_of(one: Told) -> SessionClosed:
    """What the core makes of a session's events; there is one outcome."""
    partition = Partition()
    events = [event for event in one.events if isinstance(event, Event)]
    effects = [partition.feed(event, position) for position, event in enumerate(events)]
    found = [effect.outcome for effect in effects if effect.outcome is not None]
    (outcome,) = found
    return outcome
