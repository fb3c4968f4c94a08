"""A broker that is killed and comes back under a trainer: nothing is lost, nothing comes twice."""

import asyncio
import time
from pathlib import Path

import pytest

from streams.errors import LogAway
from streams.log.kafka_topics import create_topics
from streams.settings import Settings
from streams.trainer import Subscription, subscribe
from tests.kafka.broker import Broker
from tests.trainer.publishing import publish, trained_records
from tests.trainer.records import session

RUN = "r"
AWAY_S = 3.0


def sessions(first: int, last: int) -> list[object]:
    return [record for n in range(first, last) for record in session(f"s{n}", run_id=RUN)]


def taken(batches: Subscription, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += [rollout.session_id for rollout in next(batches).rollouts]
    return found


def test_a_trainer_outlives_its_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            partitions=4,
            publish_timeout_s=2.0,
            request_timeout_s=5.0,
        )
        asyncio.run(create_topics(settings))
        publish(settings, sessions(0, 60))  # type: ignore[arg-type]
        with subscribe(
            settings, run_id=RUN, batch_rollouts=10, member_timeout=30, buffer_bytes=1
        ) as batches:
            seen = taken(batches, 20)
            broker.kill()
            with pytest.raises(LogAway):
                batches.commit(1, 1)
            time.sleep(AWAY_S)
            broker.start()
            # What was handed out is still to be committed; saying so twice harms nobody.
            deadline_s = time.monotonic() + 60
            while True:
                try:
                    batches.commit(1, 1)
                    break
                except LogAway:
                    assert time.monotonic() < deadline_s
            seen += taken(batches, 40)
            publish(settings, sessions(60, 80))  # type: ignore[arg-type]
            seen += taken(batches, 20)
            batches.commit(2, 2)
            assert "commit_refused" not in batches.status.dropped
        assert sorted(seen) == sorted(f"s{n}" for n in range(80))
        steps = {record.step: len(record.sample_ids) for record in trained_records(settings)}
        assert steps == {1: 20, 2: 60}
        with subscribe(settings, run_id=RUN, batch_rollouts=1, until_end=True) as batches:
            assert list(batches) == []
