"""What the trainer's tests share: groups to publish, batches to read, patience with a bound."""

import time
from collections.abc import Callable
from typing import Any

from streams.settings import Settings
from streams.trainer import Batch, Subscription, subscribe
from tests.trainer.publishing import Published
from tests.trainer.records import session

RUN = "r"
SECONDS_MAX = 20.0


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


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)
