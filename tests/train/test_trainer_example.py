"""The example trainer: what its loss counts, and that a run which died goes on as if it had not."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.trainer import plot
from examples.trainer.train import METRICS, Options, policy_loss, train
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
