"""The worked sample in every form, number by number; `given.py` draws it."""

from typing import Any

import numpy as np
import pytest

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
from tests.trainer.converters.given import WITHOUT_LOGPROBS, forked, row

ALL = [10, 11, 12, 13, 14, 15, 16, 17]
SHORT = row(
    tokens=np.array([7, 8, 9], np.int32),
    prompt_len=1,
    loss_mask=[(1, 3)],
    logprobs=np.array([0, -5, -6], np.float32),
    weight_versions=[(6, 1, 3)],
    turns=[],
)


def plain(value: Any) -> Any:
    """Arrays as lists, to be compared with what is written here."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_slime_has_the_response_alone_and_the_whole_reward() -> None:
    (fields,) = slime.samples([row()])
    assert fields == {
        "group_index": 0,
        "index": 0,
        "rollout_id": 0,
        "tokens": ALL,
        "response_length": 5,
        "loss_mask": [1, 1, 0, 1, 1],
        "rollout_log_probs": [-1, -2, 0, -3, -4],
        "reward": 2.0,
        "weight_versions": ["4", "5"],
        "status": "completed",
        "remove_sample": False,
        "metadata": {
            "turnstream": {
                "sample_id": "s1",
                "session_id": "session_1",
                "group_id": "task_7",
                "advantage": 0.5,
                "weight": 1.0,
            }
        },
    }


def test_slime_numbers_groups_and_rollouts_and_siblings_share_theirs() -> None:
    fields = slime.samples([*forked(), row()], start=100)
    assert [each["index"] for each in fields] == [100, 101, 102, 103]
    assert [each["rollout_id"] for each in fields] == [100, 100, 101, 102]
    assert [each["group_index"] for each in fields] == [100, 100, 100, 100]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "completed"),
        ({"truncated": True}, "truncated"),
        ({"end_status": "truncated"}, "truncated"),
        ({"end_status": "timeout"}, "truncated"),
        ({"end_status": "parse_error"}, "completed"),
        ({"end_status": None}, "completed"),
    ],
)
def test_what_trains_is_never_aborted_or_failed_in_slime(
    changes: dict[str, Any], status: str
) -> None:
    assert slime.samples([row(**changes)])[0]["status"] == status


class FromDict:
    """As slime's and miles' `Sample.from_dict` keeps what it is given."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.reward, self.metadata = fields["reward"], fields["metadata"]


def test_slime_gets_advantages_by_rollout_whatever_the_number_of_samples() -> None:
    samples = [FromDict(fields) for fields in slime.samples(forked())]
    assert slime.rewards(None, samples) == ([1.0, 1.0, 0.0], [0.5, 0.5, -0.5])


def test_miles_counts_a_rollout_once_if_weighted() -> None:
    samples = [FromDict(fields) for fields in slime.samples(forked(), weighted=True)]
    assert slime.rewards(None, samples) == ([1.0, 1.0, 0.0], [0.25, 0.25, -0.5])


def test_verl_pads_prompts_left_and_responses_right() -> None:
    columns = verl.padded([row(), SHORT], verl.Shape(prompt=4, response=6, pad_id=99))
    assert plain(columns) == {
        "prompts": [[99, 10, 11, 12], [99, 99, 99, 7]],
        "responses": [[13, 14, 15, 16, 17, 99], [8, 9, 99, 99, 99, 99]],
        "input_ids": [
            [99, 10, 11, 12, 13, 14, 15, 16, 17, 99],
            [99, 99, 99, 7, 8, 9, 99, 99, 99, 99],
        ],
        "attention_mask": [[0, 1, 1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]],
        "position_ids": [[0, 0, 1, 2, 3, 4, 5, 6, 7, 7], [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]],
        "response_mask": [[1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]],
        "rollout_log_probs": [[-1, -2, 0, -3, -4, 0], [-5, -6, 0, 0, 0, 0]],
        "rm_scores": [[0, 0, 0, 0, 2, 0], [0, 2, 0, 0, 0, 0]],
        "advantages": [[0.5, 0.5, 0, 0.5, 0.5, 0], [0.5, 0.5, 0, 0, 0, 0]],
        "returns": [[0.5, 0.5, 0, 0.5, 0.5, 0], [0.5, 0.5, 0, 0, 0, 0]],
    }


def test_verl_gets_no_advantages_if_there_are_none() -> None:
    columns = verl.padded([row(advantage=None)], verl.Shape(prompt=4, response=6))
    assert "advantages" not in columns


def test_verl_groups_by_uid_and_knows_the_span_of_versions() -> None:
    assert plain(verl.non_tensors([row(), SHORT])) == {
        "uid": ["task_7", "task_7"],
        "rollout_id": ["session_1", "session_1"],
        "sample_id": ["s1", "s1"],
        "min_global_steps": [4, 6],
        "max_global_steps": [5, 6],
        "__num_turns__": [2, 0],
    }


def test_a_record_of_verls_queue_is_not_padded() -> None:
    assert plain(verl_queue.columns(row())) == {
        "prompts": [10, 11, 12],
        "responses": [13, 14, 15, 16, 17],
        "input_ids": ALL,
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7],
        "response_mask": [1, 1, 0, 1, 1],
        "loss_mask": [1, 1, 0, 1, 1],
        "rollout_log_probs": [-1, -2, 0, -3, -4],
        "rm_scores": [0, 0, 0, 0, 2],
    }


def test_a_key_of_verls_queue_has_two_underscores_whatever_the_ids_are() -> None:
    slotted, free = row(index=3), row(rollout_index=None, index=1)
    assert verl_queue.key_of(slotted.sample) == "task%5F7_2_3"
    assert verl_queue.key_of(free.sample) == "task%5F7_session%5F1_1"
    assert verl_queue.key_of(row(group_id="task%5F7").sample) == "task%255F7_2_0"


def test_a_tag_of_verls_queue_tells_lengths_and_versions() -> None:
    assert verl_queue.tag_of(row().sample, global_steps=9) == {
        "status": "success",
        "prompt_len": 3,
        "response_len": 5,
        "seq_len": 8,
        "global_steps": 9,
        "min_global_steps": 4,
        "max_global_steps": 5,
    }


def test_prime_rl_has_full_arrays_and_the_turns_temperatures() -> None:
    (fields,) = prime_rl.samples([row()], env_name="swe")
    assert fields == {
        "token_ids": ALL,
        "mask": [False, False, False, True, True, False, True, True],
        "logprobs": [0, 0, 0, -1, -2, 0, -3, -4],
        "temperatures": [1, 1, 1, 0.5, 0.5, 1, 1, 1],
        "env_name": "swe",
        "advantages": [0, 0, 0, 0.5, 0.5, 0, 0.5, 0.5],
        "reward": 2.0,
    }


def test_trl_has_full_arrays_and_the_oldest_version() -> None:
    (fields,) = trl.samples([row()], start=4)
    assert plain(fields) == {
        "prompt": [],
        "completion": [],
        "input_ids": ALL,
        "completion_mask": [0, 0, 0, 1, 1, 0, 1, 1],
        "old_log_probs": [0, 0, 0, -1, -2, 0, -3, -4],
        "advantage": 0.5,
        "model_version": 4,
        "group_id": 4,
        "metrics": {"reward": 2.0},
    }


def test_areal_has_minus_one_where_nothing_trains() -> None:
    assert plain(areal.trajectory_arrays(row())) == {
        "input_ids": [ALL],
        "loss_mask": [[0, 0, 0, 1, 1, 0, 1, 1]],
        "logprobs": [[0, 0, 0, -1, -2, 0, -3, -4]],
        "versions": [[-1, -1, -1, 4, 4, -1, 5, 5]],
        "turn_ids": [[-1, -1, -1, 0, 0, -1, 1, 1]],
        "attention_mask": [[True] * 8],
        "rewards": [2.0],
    }


def test_tinker_is_shifted_by_one() -> None:
    assert plain(tinker.datum(row(), mask=True)) == {
        "model_input": [10, 11, 12, 13, 14, 15, 16],
        "loss_fn_inputs": {
            "target_tokens": [11, 12, 13, 14, 15, 16, 17],
            "logprobs": [0, 0, -1, -2, 0, -3, -4],
            "advantages": [0, 0, 0.5, 0.5, 0, 0.5, 0.5],
            "mask": [0, 0, 1, 1, 0, 1, 1],
        },
    }


def test_tinker_sums_so_a_weighted_rollout_sums_to_its_advantage() -> None:
    fields = [tinker.datum(each, weighted=True)["loss_fn_inputs"] for each in forked()]
    assert [each["advantages"].sum() for each in fields] == [0.25, 0.25, -0.5]


def test_tinkers_service_gets_no_mask_unless_asked() -> None:
    assert "mask" not in tinker.datum(row())["loss_fn_inputs"]


def test_skyrl_has_the_response_alone_and_the_reward_on_a_rollouts_last_sample() -> None:
    output = skyrl.generator_output(forked())
    assert output == {
        "prompt_token_ids": [[10, 11, 12]] * 3,
        "response_ids": [[13, 14, 15, 16, 17]] * 3,
        "rewards": [0.0, 1.0, 0.0],
        "loss_masks": [[1, 1, 0, 1, 1]] * 3,
        "stop_reasons": ["stop"] * 3,
        "rollout_metrics": None,
        "rollout_logprobs": [[-1, -2, 0, -3, -4]] * 3,
        "trajectory_ids": [("task_7", 0), ("task_7", 0), ("task_7", 1)],
        "rollout_expert_indices": None,
        "is_last_step": [False, True, True],
    }


def test_skyrl_numbers_the_slots_that_have_no_number() -> None:
    rows = [row(session_id=name, rollout_id=name, rollout_index=None) for name in "aab"]
    output = skyrl.generator_output(rows)
    assert output["trajectory_ids"] == [("task_7", 0), ("task_7", 0), ("task_7", 1)]
    assert skyrl.generator_output([row()])["trajectory_ids"] == [("task_7", 2)]


def test_skyrl_is_told_what_was_cut_off() -> None:
    assert skyrl.generator_output([row(truncated=True)])["stop_reasons"] == ["length"]


def test_atropos_has_fill_values_of_its_own() -> None:
    assert atropos.scored_data([row()], group_size=1, env_id=3) == {
        "tokens": [ALL],
        "masks": [[-100, -100, -100, 13, 14, -100, 16, 17]],
        "scores": [2.0],
        "inference_logprobs": [[1, 1, 1, -1, -2, 1, -3, -4]],
        "overrides": [{"rollout_id": "session_1"}],
        "generation_params": {"weight_versions": [(4, 5)]},
        "env_id": 3,
        "advantages": [[0, 0, 0, 0.5, 0.5, 0, 0.5, 0.5]],
    }


def test_a_padded_batch_is_padded_right_to_a_multiple() -> None:
    columns = padded.padded_arrays([row(), SHORT], pad_id=99, multiple=5)
    assert plain(columns) == {
        "input_ids": [[*ALL, 99, 99], [7, 8, 9, 99, 99, 99, 99, 99, 99, 99]],
        "attention_mask": [[1] * 8 + [0] * 2, [1] * 3 + [0] * 7],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6, 7, 0, 0], [0, 1, 2, 0, 0, 0, 0, 0, 0, 0]],
        "loss_mask": [
            [False, False, False, True, True, False, True, True, False, False],
            [False, True, True, False, False, False, False, False, False, False],
        ],
        "logprobs": [[0, 0, 0, -1, -2, 0, -3, -4, 0, 0], [0, -5, -6, 0, 0, 0, 0, 0, 0, 0]],
        "weights": [
            [0, 0, 0, 0.25, 0.25, 0, 0.25, 0.25, 0, 0],
            [0, 0.25, 0.25, 0, 0, 0, 0, 0, 0, 0],
        ],
        "advantages": [
            [0, 0, 0, 0.5, 0.5, 0, 0.5, 0.5, 0, 0],
            [0, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0],
        ],
    }


def test_a_packed_batch_counts_positions_from_each_seam() -> None:
    columns = padded.packed_arrays([SHORT, row()])
    assert plain(columns) == {
        "input_ids": [[7, 8, 9, *ALL]],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]],
        "loss_mask": [
            [False, True, True, False, False, False, True, True, False, True, True],
        ],
        "logprobs": [[0, -5, -6, 0, 0, 0, -1, -2, 0, -3, -4]],
        "weights": [[0, 0.25, 0.25, 0, 0, 0, 0.25, 0.25, 0, 0.25, 0.25]],
        "advantages": [[0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5, 0, 0.5, 0.5]],
        "cu_seqlens": [0, 3, 11],
    }


def test_packs_take_rows_in_order_as_long_as_they_fit() -> None:
    rows = [row(), SHORT, SHORT, row()]
    assert [len(pack) for pack in padded.packs(rows, tokens_max=14)] == [3, 1]
    assert [len(pack) for pack in padded.packs(rows, tokens_max=8)] == [1, 2, 1]


def test_tokens_without_a_logprob_are_masked_everywhere_and_nothing_else_is() -> None:
    given = [row(WITHOUT_LOGPROBS)]
    response, whole = [1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]
    (fields,) = slime.samples(given)
    assert (fields["loss_mask"], fields["response_length"]) == (response, 5)
    columns = verl.padded(given, verl.Shape(prompt=3, response=5))
    assert columns["response_mask"].tolist() == [response]
    assert columns["advantages"].tolist() == [[0.5, 0.5, 0, 0, 0]]
    assert verl_queue.columns(given[0])["loss_mask"].tolist() == response
    assert skyrl.generator_output(given)["loss_masks"] == [response]
    assert prime_rl.samples(given, env_name="any")[0]["mask"] == [bool(each) for each in whole]
    assert trl.samples(given)[0]["completion_mask"].tolist() == whole
    areals = areal.trajectory_arrays(given[0])
    assert areals["loss_mask"].tolist() == [whole]
    assert areals["versions"].tolist() == [[-1, -1, -1, 4, 4, -1, -1, -1]]
    inputs = tinker.datum(given[0])["loss_fn_inputs"]
    assert inputs["advantages"].tolist() == [0, 0, 0.5, 0.5, 0, 0, 0]
    scored = atropos.scored_data(given, group_size=1)
    assert scored["masks"] == [[-100, -100, -100, 13, 14, -100, -100, -100]]
    assert scored["inference_logprobs"] == [[1, 1, 1, -1, -2, 1, 1, 1]]
    assert padded.packed_arrays(given)["loss_mask"].tolist() == [[bool(each) for each in whole]]
