"""A loop that waits for a batch says which runs and groups it sees, and which it skips."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams.settings import Settings
from streams.trainer import subscribe
from tests.trainer.publishing import publish
from tests.trainer.records import revised, session
from tests.trainer.scenes import group, wait_for


@contextmanager
def waiting_loop(settings: Settings, **options: Any) -> Iterator[list[Any]]:
    """A training loop that waits in another thread; what it was handed."""
    got: list[Any] = []
    with subscribe(settings, advantages="grpo", **options) as batches:
        thread = threading.Thread(target=lambda: got.extend(batches))
        thread.start()
        try:
            yield got
        finally:
            batches.close()
            thread.join(60)


def test_a_loop_that_waits_names_the_runs_it_skips_and_the_groups_it_has(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    publish(settings, group("mine", 1, 1)[:2])
    publish(settings, session("a", run_id="r", group_id="a"))
    publish(settings, session("b", run_id="r2"))
    publish(settings, session("c", run_id="r", split="eval"))
    publish(settings, session("d"))
    caplog.set_level(logging.WARNING, "turnstream.trainer")
    with waiting_loop(settings, run_id="r", batch_groups=3, group_size=1):
        wait_for(lambda: bool(caplog.records))
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("waited ")
    assert " for 3 groups: 1 there; open: mine (1 of 2 sessions closed); " in said
    assert "skipped 2 sessions of other runs (none: 1, r2: 1); " in said
    assert said.endswith("skipped 1 of another split; asked for: run r, split train")


def test_where_nothing_has_closed_it_says_that_rewards_are_waited_for(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    publish(settings, [revised("of-another-day", 0, 9, 1.0)])
    caplog.set_level(logging.WARNING, "turnstream.trainer")
    with waiting_loop(settings, batch_rollouts=2):
        wait_for(lambda: bool(caplog.records))
    said = caplog.records[0].getMessage()
    assert "for 2 rollouts: 0 there; no session of any run has closed;" in said
    assert said.endswith("asked for: any run, split train")


def test_a_loop_without_progress_says_nothing(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    publish(settings, group("g", 1))
    caplog.set_level(logging.WARNING, "turnstream.trainer")
    with waiting_loop(settings, run_id="x", batch_groups=1, progress=False) as got:
        threading.Event().wait(5)
    assert (got, caplog.records) == ([], [])
