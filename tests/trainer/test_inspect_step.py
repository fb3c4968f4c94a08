"""`turnstream inspect --step`: from a step of the optimizer to samples and tokens."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.samples import Sample, TurnSpan
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from streams.trainer import subscribe
from tests.cli.command import Ran, turnstream
from tests.trainer.publishing import Published, in_file, publish
from tests.trainer.records import session

RUN = "r"


def sessions() -> list[Published]:
    """Two rollouts of a group: three samples, one turn each."""
    records: list[Published] = [
        *session("a", 2, run_id=RUN, group_id="g", group_size=2, version=4, length=40),
        *session("b", 1, run_id=RUN, group_id="g", group_size=2, version=5, reward=0.0),
    ]
    return [_with_turn(record) if isinstance(record, Sample) else record for record in records]


def _with_turn(sample: Sample) -> Sample:
    span = TurnSpan(turn_id="t1", start=sample.prompt_len, end=sample.tokens.size, attach="root")
    return msgspec.structs.replace(sample, turns=[span])


@pytest.fixture
def trained(tmp_path: Path) -> Settings:
    """Step 3 of a run, with ratios."""
    settings = dataclasses.replace(in_file(tmp_path), retention_trained_hours=-1)
    publish(settings, sessions())
    statistics: dict[str, dict[str, Any]] = {
        "a/0": {"ratio": 1.25},
        "a/1": {"ratio": {"value": 7.5, "token": 39}, "kl": float("nan")},
        "b/0": {"ratio": 0.5, "kl": 0.125},
    }
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
        batches.commit(3, 6, statistics)
    return settings


def inspected(settings: Settings, *arguments: str) -> Ran:
    return turnstream("inspect", "--log", settings.log, *arguments)


def test_a_step_shows_its_samples_and_their_statistics(trained: Settings) -> None:
    ran = inspected(trained, "--step", "3")
    assert (ran.code, ran.err) == (0, "")
    title, counts, _, *table = ran.out.splitlines()
    assert title.startswith("step 3 of run r, epoch 0, weight version 6, trained 20")
    assert counts == "3 samples of 2 rollouts, 85 tokens, 6 trained"
    assert [line.split() for line in table] == [
        [
            "K",
            "sample",
            "session",
            "group",
            "reward",
            "tokens",
            "trained",
            "versions",
            "kl",
            "ratio",
        ],
        ["1", "a/0", "a", "g", "1", "40", "2", "4", "1.25"],
        ["2", "a/1", "a", "g", "1", "40", "2", "4", "none", "7.5", "at", "39"],
        ["3", "b/0", "b", "g", "0", "5", "2", "5", "0.125", "0.5"],
    ]


def test_the_largest_come_first_with_the_token_in_question(trained: Settings) -> None:
    ran = inspected(trained, "--step", "3", "--top", "ratio")
    assert "the 3 with the largest ratio" in ran.out
    rows = [line.split()[1] for line in ran.out.splitlines() if "  g  " in line]
    assert rows == ["a/1", "a/0", "b/0"]
    assert (
        "sample 2, a, token 39 of 40, turn t1, weight version 4, trained, logprob -0.5\n"
        "  … 227 228 229 230 231 232 233 234 235 236 237 238 [239]" in ran.out
    )


def test_any_token_of_a_step_can_be_asked_for(trained: Settings) -> None:
    ran = inspected(trained, "--step", "3", "--sample", "3", "--token", "0")
    assert ran.out == (
        "sample 3, b, token 0 of 5, given, not sampled, untrained\n  [100] 101 102 103 104\n"
    )
    for arguments, told in [
        (["--sample", "4", "--token", "0"], "step 3 has 3 samples"),
        (["--sample", "3", "--token", "5"], "sample 3 has 5 tokens, from 0"),
        (["--top", "loss"], "no statistic loss: it has kl, ratio"),
    ]:
        ran = inspected(trained, "--step", "3", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert told in ran.err


@pytest.mark.parametrize("number", ["1e999", "9" * 400, "9" * 5_000], ids=len)
def test_a_number_that_no_reader_holds_is_none_of_a_step(tmp_path: Path, number: str) -> None:
    settings = dataclasses.replace(in_file(tmp_path), retention_trained_hours=-1)
    publish(settings, sessions())
    statistics: dict[str, dict[str, Any]] = {"a/0": {"kl": msgspec.Raw(number.encode())}}
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
        batches.commit(3, 6, statistics)
    ran = inspected(settings, "--step", "3")
    assert (ran.code, ran.err) == (0, "")
    assert "none" in ran.out


def test_a_step_that_nobody_told_of_is_said_so(trained: Settings) -> None:
    ran = inspected(trained, "--step", "4")
    assert ran.code == 1
    assert "step 4: no trainer has told of it in turnstream.trained" in ran.err
    assert inspected(trained, "--step", "3", "--run", "q").code == 1
    assert inspected(trained).code == 2
    assert inspected(trained, "a", "--top", "ratio").code == 2
    assert inspected(trained, "a", "--step", "3").code == 2


def test_runs_and_epochs_are_kept_apart(trained: Settings) -> None:
    publish(trained, session("z", run_id="q"))
    with subscribe(trained, run_id="q", batch_groups=1) as batches:
        next(batches)
        batches.commit(3, 1)
    ran = inspected(trained, "--step", "3")
    assert (ran.code, "the runs q, r: name one with --run" in ran.err) == (1, True)
    assert "1 samples of 1 rollouts" in inspected(trained, "--step", "3", "--run", "q").out
    # The run is restored at a state without anything trained, and trains the step again.
    publish(trained, session("c", run_id=RUN))
    fresh = subscribe(trained, run_id=RUN, batch_groups=1, start="beginning")
    state = fresh.state_dict()
    with subscribe(trained, run_id=RUN, batch_groups=2, start="beginning") as batches:
        batches.load_state_dict(state)
        next(batches)
        batches.commit(3, 6)
    ran = inspected(trained, "--step", "3", "--run", RUN)
    assert "epoch 1, weight version 6" in ran.out
    assert "; also in epoch 0, rolled back" in ran.out
    assert "4 samples of 3 rollouts" in ran.out


def test_samples_that_retention_took_are_named_by_their_ids(trained: Settings) -> None:
    async def trim() -> None:
        async with SqliteLog(Path(trained.log), trained) as log:
            # A year on; steps are kept for ever here.
            assert await log.trim(int(time.time() * 1000) + 365 * 86_400_000) > 0

    asyncio.run(trim())
    ran = inspected(trained, "--step", "3")
    assert ran.code == 0
    assert "; 3 samples no longer in the log" in ran.out
    assert inspected(trained, "--step", "3", "--token", "0").code == 1
