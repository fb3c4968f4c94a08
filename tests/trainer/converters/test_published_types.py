"""The frameworks' own types take what is made for them; those without a wheel have a table here."""

import ast

import numpy as np
import pytest

from streams.trainer.converters import atropos, prime_rl, skyrl, slime, tinker, trl, verl_queue
from streams.trainer.converters.replay import Replay
from tests.adapters.engines.published import strings_of
from tests.trainer.converters import published
from tests.trainer.converters.given import forked, row
from tests.trainer.converters.test_replay import told_everywhere

QUEUE = "verl/trainer/ppo/v1/agent_loop_tq.py"
AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"


def test_trl_takes_its_sample() -> None:
    sample = published.trl_sample()
    made = [sample(**fields) for fields in trl.samples(forked())]
    assert [each.group_id for each in made] == [0, 0, 0]
    # As TRL's trainer counts what trains.
    assert [int(each.completion_mask.sum()) for each in made] == [4, 4, 4]
    assert made[0].input_ids.dtype == np.int64
    assert made[0].old_log_probs.dtype == np.float32


def test_skyrl_validates_its_output_step_by_step() -> None:
    framework = published.skyrl()
    output = skyrl.generator_output(forked(), trajectory=framework.TrajectoryID)
    assert output.keys() <= framework.fields
    framework.validate(2, output, step_wise=True)


def test_skyrl_validates_its_output_without_forks() -> None:
    framework = published.skyrl()
    output = skyrl.generator_output([row()], trajectory=framework.TrajectoryID)
    framework.validate(1, output)


def test_skyrls_own_trajectory_and_ours_read_alike() -> None:
    theirs = published.skyrl().TrajectoryID("task_7", 2)
    assert skyrl.Trajectory("task_7", 2).to_string() == theirs.to_string()


def test_skyrl_refuses_rows_that_are_not_neighbours_as_we_do() -> None:
    framework = published.skyrl()
    output = skyrl.generator_output(forked(), trajectory=framework.TrajectoryID)
    order = [0, 2, 1]
    mixed = {
        name: [column[at] for at in order] if isinstance(column, list) else column
        for name, column in output.items()
    }
    with pytest.raises(AssertionError, match="Non-contiguous trajectory"):
        framework.validate(2, mixed, step_wise=True)


def test_atropos_server_takes_its_group_and_keeps_every_field() -> None:
    fields = atropos.scored_data(forked(), group_size=3, env_id=1)
    scored = published.atropos_data()
    assert fields.keys() <= scored.model_fields.keys()
    kept = scored(**fields).model_dump()
    versions = {"weight_versions": [(4, 5)] * 3}
    assert {name: kept[name] for name in fields} == fields | {"generation_params": versions}


def test_tinker_takes_its_datum() -> None:
    framework = published.tinker()
    fields = tinker.datum(row())
    datum = framework.Datum(
        model_input=framework.ModelInput.from_ints(fields["model_input"]),
        loss_fn_inputs=fields["loss_fn_inputs"],
    )
    inputs = datum.loss_fn_inputs
    assert {name: each.dtype for name, each in inputs.items()} == {
        "target_tokens": "int64",
        "logprobs": "float32",
        "advantages": "float32",
    }
    assert {each.shape[0] for each in inputs.values()} == {datum.model_input.length} == {7}
    assert inputs["target_tokens"].data == [11, 12, 13, 14, 15, 16, 17]


def test_verl_writes_the_same_fields_and_tags_into_its_queue() -> None:
    columns = verl_queue.columns(row(), replay=None)
    names = strings_of(published.wheel("verl").text(QUEUE))
    names |= strings_of(published.wheel("verl").text(AGENT_LOOP))
    assert columns.keys() <= names
    assert verl_queue.tag_of(row().sample, 0).keys() <= names
    assert {"uid", "num_turns", "multi_modal_inputs", "routed_experts"} <= names | _fields_of_verl()


def _fields_of_verl() -> set[str]:
    module = published.wheel("verl").module(AGENT_LOOP)
    return {
        node.target.id
        for node in ast.walk(module)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_verl_finds_uid_session_and_index_in_a_key() -> None:
    text = published.wheel("verl").text("verl/trainer/ppo/v1/replay_buffer.py")
    assert 'key.split("_")[0]' in text
    assert 'key.rsplit("_", 2)' in published.wheel("verl").text("verl/trainer/ppo/v1/utils.py")
    keys = [verl_queue.key_of(each.sample) for each in forked()]
    assert {key.split("_")[0] for key in keys} == {"task%5F7"}
    assert [key.rsplit("_", 2)[1:] for key in keys] == [["0", "0"], ["0", "1"], ["1", "0"]]


def test_transfer_queue_takes_keys_fields_and_tags() -> None:
    module = published.wheel("TransferQueue").module("transfer_queue/interface.py")
    (put,) = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == "kv_batch_put"
    ]
    assert {"keys", "partition_id", "fields", "tags"} <= {each.arg for each in put.args.args}


SLIME = {
    *("group_index", "index", "rollout_id", "prompt", "tokens", "multimodal_inputs"),
    *("multimodal_train_inputs", "response", "response_length", "label", "reward", "loss_mask"),
    *("weight_versions", "rollout_log_probs", "rollout_routed_experts", "remove_sample"),
    *("teacher_log_probs", "status", "metadata", "generate_function_path", "train_metadata"),
}
PRIME_RL = {
    *("token_ids", "mask", "logprobs", "temperatures", "env_name", "advantages", "reward"),
    *("mm_kwargs", "routed_experts", "mm_token_type_ids"),
}


def test_slime_and_miles_know_every_field() -> None:
    replayed = row(told_everywhere())
    (fields,) = slime.samples([replayed], replay=Replay())
    assert fields.keys() <= SLIME


def test_prime_rl_knows_every_field() -> None:
    replayed = row(told_everywhere())
    (fields,) = prime_rl.samples([replayed], env_name="any", replay=Replay())
    assert fields.keys() <= PRIME_RL
    assert fields["routed_experts"].keys() == {"data", "shape", "dtype"}
