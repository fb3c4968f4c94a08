"""What a framework cannot take is refused in words that name the sample, never bent to fit."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from streams.errors import CannotConvert
from streams.trainer.converters import (
    areal,
    atropos,
    padded,
    prime_rl,
    skyrl,
    slime,
    tinker,
    trl,
    verl,
    verl_queue,
)
from streams.trainer.converters.rows import Missing, convertible
from tests.trainer.converters.given import WITHOUT_LOGPROBS, WORKED, Given, forked, row, turn

SHAPE = verl.Shape(prompt=8, response=8)

Convert = Callable[[Sequence[Given], Missing], Any]
EVERY: dict[str, Convert] = {
    "slime": lambda rows, missing: slime.samples(rows, missing=missing),
    "verl": lambda rows, missing: verl.padded(rows, SHAPE, missing=missing),
    "verl_queue": lambda rows, missing: [
        verl_queue.columns(each, missing=missing) for each in rows
    ],
    "prime_rl": lambda rows, missing: prime_rl.samples(rows, env_name="any", missing=missing),
    "trl": lambda rows, missing: trl.samples(rows, missing=missing),
    "areal": lambda rows, missing: [
        areal.trajectory_arrays(each, missing=missing) for each in rows
    ],
    "tinker": lambda rows, missing: [tinker.datum(each, missing=missing) for each in rows],
    "skyrl": lambda rows, missing: skyrl.generator_output(rows, missing=missing),
    "atropos": lambda rows, missing: atropos.scored_data(
        rows, group_size=len(rows), missing=missing
    ),
    "padded": lambda rows, missing: padded.padded_arrays(rows, missing=missing),
    "packed": lambda rows, missing: padded.packed_arrays(rows, missing=missing),
}
NEEDS_REWARD = ("slime", "verl", "verl_queue", "trl", "areal", "skyrl", "atropos")
NEEDS_ADVANTAGE = ("prime_rl", "trl", "tinker")
TAKES_AN_ADVANTAGE = (*NEEDS_ADVANTAGE, "slime", "verl", "atropos", "padded", "packed")

BROKEN = {
    "trained without any logprob": (
        row(WITHOUT_LOGPROBS, loss_mask=[(6, 8)], prompt_len=6),
        "the engine gave no logprob for any trained token",
    ),
    "trained from its first token": (
        row(prompt_len=0, loss_mask=[(0, 5)]),
        "its first token is trained, and nothing before it predicts it",
    ),
    "logprobs of another length": (
        row(logprobs=np.zeros(7, np.float32)),
        "8 tokens, 7 logprobs",
    ),
    "a mask behind the end": (row(loss_mask=[(3, 9)]), "loss mask .* for a prompt of 3 in 8"),
    "a prompt that ends elsewhere": (row(prompt_len=2), "loss mask .* for a prompt of 2 in 8"),
    "nothing trained": (row(loss_mask=[]), "loss mask .* for a prompt of 3 in 8"),
}


@pytest.mark.parametrize("convert", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize(("broken", "why"), BROKEN.values(), ids=BROKEN)
def test_no_framework_takes_a_sample_that_is(broken: Given, why: str, convert: Convert) -> None:
    with pytest.raises(CannotConvert, match=f"^sample s[12] of session session_1: {why}$"):
        convert([broken], "mask")


def test_a_sample_that_no_framework_takes_costs_itself_alone() -> None:
    whole = [row(), row(WITHOUT_LOGPROBS)]
    broken = [each for each, _ in BROKEN.values()]
    kept, refused = convertible([whole[0], *broken, whole[1]])
    assert kept == whole
    assert [str(error).partition(": ")[0] for error in refused] == [
        f"sample {each.sample.sample_id} of session session_1" for each in broken
    ]
    assert convertible(whole, "refuse")[0] == whole[:1]
    assert [convert(whole, "mask") for convert in EVERY.values()]


@pytest.mark.parametrize("convert", EVERY.values(), ids=EVERY)
def test_a_missing_logprob_is_refused_if_it_is_not_to_be_masked(convert: Convert) -> None:
    with pytest.raises(CannotConvert, match="the engine gave no logprob for 2 trained tokens"):
        convert([row(WITHOUT_LOGPROBS)], "refuse")


@pytest.mark.parametrize("name", NEEDS_REWARD)
@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), 1e39])
def test_a_reward_is_a_number_where_one_is_needed(name: str, reward: float | None) -> None:
    with pytest.raises(CannotConvert, match=re.escape(f"its session's reward is {reward}")):
        EVERY[name]([row(session_reward=reward)], "mask")


@pytest.mark.parametrize("name", NEEDS_ADVANTAGE)
def test_an_advantage_is_there_where_one_is_needed(name: str) -> None:
    with pytest.raises(CannotConvert, match=r"ask for them: subscribe\(advantages=\.\.\.\)"):
        EVERY[name]([row(advantage=None)], "mask")


@pytest.mark.parametrize("name", TAKES_AN_ADVANTAGE)
@pytest.mark.parametrize("advantage", [float("nan"), -1e39])
def test_an_advantage_is_a_number(name: str, advantage: float) -> None:
    with pytest.raises(CannotConvert, match=re.escape(f"its advantage is {advantage}")):
        EVERY[name]([row(advantage=advantage)], "mask")


@pytest.mark.parametrize("name", ["verl", "atropos", "padded", "packed"])
def test_advantages_are_there_for_all_rows_or_for_none(name: str) -> None:
    with pytest.raises(CannotConvert, match="it has no advantage"):
        EVERY[name]([row(), row(advantage=None)], "mask")


def test_slimes_own_baseline_is_never_fallen_back_to() -> None:
    class Sample:
        reward = 1.0
        metadata = slime.samples([row(advantage=None)])[0]["metadata"]

    with pytest.raises(CannotConvert, match="sample s1: it has no advantage"):
        slime.rewards(None, [Sample()])


def test_slime_takes_no_session_that_ended_by_infrastructure() -> None:
    with pytest.raises(CannotConvert, match="a session that ended as 'error' does not train"):
        slime.samples([row(end_status="error")])


@pytest.mark.parametrize(
    "shape", [verl.Shape(prompt=2, response=9), verl.Shape(prompt=9, response=4)]
)
def test_verl_would_cut_what_is_too_long(shape: verl.Shape) -> None:
    with pytest.raises(CannotConvert, match="a prompt of 3 and a response of 5 do not fit into"):
        verl.padded([row()], shape)


@pytest.mark.parametrize(
    ("temperature", "words"), [(None, "no temperature"), (0.0, "temperature 0.0")]
)
def test_prime_rl_divides_by_the_temperature(temperature: float | None, words: str) -> None:
    turns = [turn("t1", 3, 5, 0.5), turn("t2", 6, 8, temperature)]
    with pytest.raises(CannotConvert, match=f"turn t2 has {words}, and logits are divided by it"):
        prime_rl.samples([row(turns=turns)], env_name="any")


def test_prime_rl_takes_a_temperature_for_turns_that_say_none() -> None:
    turns = [turn("t1", 3, 5, 0.5), turn("t2", 6, 8, None)]
    (fields,) = prime_rl.samples([row(turns=turns)], env_name="any", temperature=0.25)
    assert fields["temperatures"] == [1, 1, 1, 0.5, 0.5, 1, 0.25, 0.25]


def test_prime_rl_needs_no_temperature_where_nothing_trains() -> None:
    turns = [turn("t1", 3, 5, 0.5), turn("t2", 6, 8, None)]
    (fields,) = prime_rl.samples([row(loss_mask=[(3, 5)], turns=turns)], env_name="any")
    assert fields["temperatures"] == [1, 1, 1, 0.5, 0.5, 1, 1, 1]


def test_prime_rl_needs_the_turn_of_every_trained_token() -> None:
    with pytest.raises(CannotConvert, match="trained tokens are in none of its turns"):
        prime_rl.samples([row(turns=[turn("t1", 3, 5)])], env_name="any")


def test_trl_drops_by_versions_and_needs_one() -> None:
    with pytest.raises(CannotConvert, match="nobody said which weights sampled it"):
        trl.samples([row(weight_versions=None)])


@pytest.mark.parametrize("versions", [[(-1, 3, 5), (4, 6, 8)], [(4, 6, 8)]])
def test_unknown_weights_are_older_than_all_for_frameworks_that_take_a_version(
    versions: list[tuple[int, int, int]],
) -> None:
    given = row(weight_versions=versions)
    (fields,) = trl.samples([given])
    assert fields["model_version"] == -1
    tag = verl_queue.tag_of(given.sample, 9)
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (-1, 4)


@pytest.mark.parametrize("versions", [None, [(4, 3, 5)], [(-1, 3, 5), (4, 6, 8)]])
def test_areal_needs_the_version_of_every_trained_token(versions: Any) -> None:
    with pytest.raises(CannotConvert, match="-1 means not sampled"):
        areal.trajectory_arrays(row(weight_versions=versions))


def test_skyrl_needs_the_samples_of_a_rollout_side_by_side() -> None:
    first, second, other = forked()
    with pytest.raises(CannotConvert, match=r"sample a1 .* its rollout are not neighbours"):
        skyrl.generator_output([first, other, second])


def test_atropos_has_one_group_in_an_object() -> None:
    with pytest.raises(CannotConvert, match="it is not of group task_7"):
        atropos.scored_data([row(), row(group_id="task_8")], group_size=2)


def test_atropos_holds_back_a_group_of_another_size() -> None:
    words = "group task_7 has 3 samples, its environment is registered for 2"
    with pytest.raises(CannotConvert, match=words):
        atropos.scored_data(forked(), group_size=2)


def test_a_pack_holds_no_sample_that_is_longer() -> None:
    with pytest.raises(CannotConvert, match="8 tokens do not fit into 7"):
        list(padded.packs([row()], tokens_max=7))


@pytest.mark.parametrize("name", ["verl", "skyrl", "atropos", "padded", "packed"])
def test_a_batch_of_nothing_is_an_error(name: str) -> None:
    with pytest.raises(CannotConvert, match="there are no rows to convert"):
        EVERY[name]([], "mask")


@pytest.mark.parametrize("name", EVERY)
def test_the_worked_sample_is_refused_by_none(name: str) -> None:
    assert EVERY[name]([Given(WORKED)], "refuse")
