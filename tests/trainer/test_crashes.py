"""`kill -9` between step and commit: the weights see what an undisturbed run sees, in order."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.lives import SAVE_EVERY, dropped, handed_out, live, rollouts, steps
from tests.trainer.publishing import in_file, publish, trained_records

GROUPS = 60
OPTIONS: dict[str, Any] = {
    "batch_rollouts": 16,
    "advantages": "grpo",
    "drop_zero_signal": True,
    "buffer_bytes": 60_000,
}
"""The buffer holds a part of the log, so that groups are open when a step is committed."""


@pytest.mark.parametrize("die_at", [1, 5, 6])
def test_a_killed_trainer_trains_the_same_sequence_on_a_file(tmp_path: Path, die_at: int) -> None:
    settings = in_file(tmp_path)
    publish(settings, rollouts(GROUPS))
    assert live(tmp_path, settings, "calm", group="calm", **OPTIONS) == 0
    assert (
        live(tmp_path, settings, "killed", group="k", die_at=die_at, **OPTIONS) == -signal.SIGKILL
    )
    assert live(tmp_path, settings, "killed", group="k", **OPTIONS) == 0
    calm, killed = steps(tmp_path, "calm"), steps(tmp_path, "killed")
    assert killed == calm
    assert len(calm) > 6
    assert "buffer_full" not in dropped(tmp_path, "killed")
    # It went back to its last checkpoint, and to no other place.
    assert (
        handed_out(tmp_path, "killed")
        == len(calm) + die_at - (die_at - 1) // SAVE_EVERY * SAVE_EVERY
    )
    ids = [name for step in killed.values() for name, _, _ in step]
    assert len(ids) == len(set(ids))
    epochs = {(r.step, r.run_epoch) for r in trained_records(settings) if r.run_epoch}
    assert {step for step, _ in epochs} == (
        set() if die_at <= SAVE_EVERY else set(range(SAVE_EVERY + 1, len(calm) + 1))
    )


def test_a_trainer_killed_twice_in_the_same_place_still_gets_through(tmp_path: Path) -> None:
    settings = in_file(tmp_path)
    publish(settings, rollouts(GROUPS, seed=2))
    assert live(tmp_path, settings, "calm", group="calm", **OPTIONS) == 0
    for die_at in (5, 5, 8):
        assert live(tmp_path, settings, "killed", die_at=die_at, **OPTIONS) == -signal.SIGKILL
    assert live(tmp_path, settings, "killed", **OPTIONS) == 0
    assert steps(tmp_path, "killed") == steps(tmp_path, "calm")
