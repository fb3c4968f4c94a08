"""The example trainer: what its loss counts, and that a run which died goes on as if it had not."""

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.trainer import plot
from examples.trainer import train as example
from examples.trainer.train import METRICS, Options, passes, policy_loss, train
from schemas.events import Sampling
from schemas.samples import Sample, TurnSpan
from streams.core.rollouts import Group, Rollout
from streams.trainer import Row
from streams.trainer.converters import padded
from tests.trainer.publishing import Published, in_file, publish, trained_records
from tests.trainer.records import outcome, sample, session

STEPS = 4
GROUP_SIZE = 4
WORDS = 97


def row(name: str, advantage: float, index: int = 0, count: int = 1, **fields: Any) -> Row:
    """One sample of a rollout that has `count` alike."""
    siblings = tuple(small(sample(name, at, count, **fields)) for at in range(count))
    rollout = Rollout(outcome=outcome(name, count), samples=siblings, advantage=advantage)
    return Row(siblings[index], rollout, Group(group_id="g", size=1, rollouts=(rollout,)))


def small(one: Any) -> Any:
    """With ids that the tiny model has."""
    one.tokens[:] %= WORDS
    return one


def loss_of(rows: list[Row], clip: float = 0.2) -> tuple[Any, Any, Any]:
    """Loss, ratios, and the gradient at the logits, which are all equal."""
    columns = padded.padded(rows)
    logits = torch.zeros((*columns["input_ids"].shape, WORDS), requires_grad=True)
    loss, ratio = policy_loss(logits, columns, clip)
    loss.backward()
    return loss.item(), ratio.detach(), logits.grad


def test_only_masked_tokens_pull_at_the_logits_one_place_before_them() -> None:
    uniform = -math.log(WORDS)
    sizes = {"a": 7, "b": 5}
    given = {name: torch.full((size,), uniform).numpy() for name, size in sizes.items()}
    given["a"][5] -= 0.1
    rows = [row(name, 1.0, length=sizes[name], logprobs=given[name]) for name in sizes]
    _, ratio, gradient = loss_of(rows)
    pulled = gradient.abs().sum(-1).bool()
    assert pulled.tolist() == [
        [False, False, False, False, True, True, False],
        [False, False, True, True, False, False, False],
    ]
    expected = torch.ones_like(ratio)
    expected[0, 4] = math.exp(0.1)
    torch.testing.assert_close(ratio, expected)


def test_a_rollout_counts_once_however_it_forked() -> None:
    alone = loss_of([row("a", 1.0)])[0]
    forked = loss_of([row("a", 1.0, at, 5) for at in range(5)])[0]
    assert forked == pytest.approx(alone)


@pytest.mark.parametrize(("advantage", "pulls"), [(1.0, False), (-1.0, True)])
def test_a_ratio_beyond_the_clip_pulls_only_where_it_is_the_worse(
    advantage: float, pulls: bool
) -> None:
    unlikely = torch.full((5,), -9.0).numpy()
    _, ratio, gradient = loss_of([row("a", advantage, logprobs=unlikely)])
    assert ratio.max() > 2
    assert bool(gradient.abs().sum() > 0) is pulls


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_token_that_was_next_to_impossible_leaves_the_gradient_finite(advantage: float) -> None:
    impossible = torch.full((5,), -1000.0).numpy()
    loss, _, gradient = loss_of([row("a", advantage, logprobs=impossible)])
    assert math.isfinite(loss)
    assert gradient.isfinite().all()


def test_no_pass_has_more_tokens_than_it_may_with_its_padding() -> None:
    lengths = [30, 5, 5, 30, 6, 5, 7, 60]
    rows = [row(str(at), 1.0, length=length) for at, length in enumerate(lengths)]
    found = [[one.sample.tokens.size for one in some] for some in passes(rows, 60)]
    assert found == [[5, 5, 5, 6, 7], [30, 30], [60]]


def published() -> list[Published]:
    """Groups whose rollouts differ, more than one batch has."""
    return [
        small(record) if hasattr(record, "tokens") else record
        for group in range(2 * STEPS)
        for slot in range(GROUP_SIZE)
        for record in session(
            f"{group}-{slot}",
            group_id=f"g{group}",
            group_size=GROUP_SIZE,
            rollout_index=slot,
            run_id="r",
            reward=float(slot % 2),
            length=5 + group + slot,
        )
    ]


def trained_weights(place: Path) -> dict[str, Any]:
    """Of the newest checkpoint."""
    newest = max(place.glob("step-????????"))
    weights: dict[str, Any] = AutoModelForCausalLM.from_pretrained(newest / "model").state_dict()
    return weights


def test_a_run_that_died_goes_on_as_if_it_had_not(tiny: Path, tmp_path: Path) -> None:
    class Died(Exception):
        pass

    def lived(name: str, die_at: int | None = None, steps: int = STEPS) -> list[int]:
        """One life; the versions that the engine was given."""
        given: list[int] = []

        def load(folder: Path, version: int) -> None:
            assert (folder / "config.json").is_file()
            given.append(version)
            if version == die_at:
                raise Died

        settings = whole if name == "whole" else broken
        options = Options(
            model=tiny,
            checkpoints=tmp_path / name,
            log=settings.log,
            run="r",
            steps=steps,
            groups=2,
            learning_rate=1e-2,
            tokens_max=24,
        )
        train(options, load)
        return given

    whole, broken = (in_file(tmp_path / name) for name in ("a", "b"))
    for settings in (whole, broken):
        Path(settings.log).parent.mkdir()
        publish(settings, published())

    assert lived("whole") == [1, 2, 3, 4]
    with pytest.raises(Died):
        lived("broken", die_at=2)
    (tmp_path / "broken/step-00000003.part").mkdir()  # as a crash while it is written leaves it
    assert lived("broken", steps=3) == [2, 3]
    assert lived("broken") == [3, 4]

    one, other = (trained_weights(tmp_path / name) for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    untrained = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
    assert not any(torch.equal(one[name], untrained[name]) for name in one)
    assert [r.sample_ids for r in trained_records(whole)] == [
        r.sample_ids for r in trained_records(broken)
    ]
    told = [plot.read(tmp_path / name / METRICS) for name in ("whole", "broken")]
    assert told[0] == told[1]
    assert len(list((tmp_path / "whole").glob("step-*"))) == 2


def test_a_run_that_died_before_its_first_checkpoint_trains_its_first_batch_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = in_file(tmp_path)
    publish(settings, published())
    options = Options(
        model=tiny, checkpoints=tmp_path / "c", log=settings.log, run="r", steps=1, groups=2
    )

    def killed(*_: Any) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(example, "_saved", killed)
        with pytest.raises(KeyboardInterrupt):
            train(options)
    train(options)
    lost, trained = trained_records(settings)
    assert trained.sample_ids == lost.sample_ids
    assert len((tmp_path / "c" / METRICS).read_text("utf-8").splitlines()) == 2
    assert [step["step"] for step in plot.read(tmp_path / "c" / METRICS)] == [1]


def test_a_sample_without_logprobs_costs_itself_and_not_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = in_file(tmp_path)
    mute = sample("0-0", group_id="g0", group_size=GROUP_SIZE, rollout_index=0, run_id="r")
    records = [
        msgspec.structs.replace(record, logprobs_missing=record.loss_mask)
        if isinstance(record, Sample) and record.sample_id == mute.sample_id
        else record
        for record in published()
    ]
    publish(settings, records)
    train(
        Options(
            model=tiny, checkpoints=tmp_path / "c", log=settings.log, run="r", steps=1, groups=2
        )
    )
    (record,) = trained_records(settings)
    assert mute.sample_id in record.sample_ids
    assert f"left out: sample {mute.sample_id}" in capsys.readouterr().err


def test_without_an_engine_to_load_into_no_rollout_is_too_old(tiny: Path, tmp_path: Path) -> None:
    settings = in_file(tmp_path)
    versions = [[0, 3, 5]]  # of weights that the engine keeps
    records = [
        msgspec.structs.replace(record, weight_versions=versions)
        if isinstance(record, Sample)
        else record
        for record in published()
    ]
    publish(settings, records)
    options = Options(
        model=tiny,
        checkpoints=tmp_path / "c",
        log=settings.log,
        run="r",
        steps=STEPS,
        groups=2,
        max_staleness=1,
    )
    train(options)
    assert [len(record.sample_ids) for record in trained_records(settings)] == [8] * STEPS


def test_another_temperature_than_the_sessions_had_ends_it_before_a_step(
    tiny: Path, tmp_path: Path
) -> None:
    settings = in_file(tmp_path)
    span = TurnSpan(turn_id="t", start=3, end=5, attach="root", sampling=Sampling(temperature=0.7))
    records = [
        msgspec.structs.replace(record, turns=[span]) if isinstance(record, Sample) else record
        for record in published()
    ]
    publish(settings, records)
    options = Options(
        model=tiny, checkpoints=tmp_path / "c", log=settings.log, run="r", steps=1, groups=2
    )
    with pytest.raises(
        SystemExit, match=r"0-0: sampled at temperature 0\.7, and --temperature is 1"
    ):
        train(options)
    assert trained_records(settings) == []
    train(dataclasses.replace(options, temperature=0.7))
    assert len(trained_records(settings)) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--clip", "-1"], "--clip: give a number above 0"),
        (["--temperature", "0"], "--temperature: give a number above 0"),
        (["--model", "nowhere"], "--model: nowhere is no folder of a model"),
        (
            ["--gateway", "http://127.0.0.1:1", "--sglang", "http://127.0.0.1:1"],
            "TURNSTREAM_GATEWAY_CONTROL_KEY: needed to pause calls",
        ),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(
    tiny: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    places = ["--model", str(tiny), "--checkpoints", str(tmp_path / "c")]
    environ = {name: value for name, value in os.environ.items() if name != example.CONTROL_KEY}
    ran = subprocess.run(
        [sys.executable, example.__file__, *places, *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, told in ran.stderr) == (2, True)
    assert not (tmp_path / "c").exists()
