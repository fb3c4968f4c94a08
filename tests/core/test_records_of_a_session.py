"""What a session's samples and its outcome say of it, field by field."""

import json
from hashlib import blake2b
from typing import Any

import msgpack
import pytest

from schemas import codec
from schemas.events import Event
from streams.core.partition import Partition
from streams.core.state import ClosedSession, Rules
from tests.core.life import T1, T2, T3, end, opened, ran, read, reward
from tests.core.notation import Json, turn

IDENTITY: Json = {
    "run_id": "run",
    "run_epoch": 0,
    "task_id": "task",
    "group_id": "group",
    "group_size": 4,
    "rollout_index": 0,
    "attempt": 0,
    "split": "train",
    "step": 0,
}


def identity_of(record: Json) -> Json:
    return {name: record[name] for name in IDENTITY if name in record}


# --- who it is -----------------------------------------------------------------------------------

CARRIERS: dict[str, list[Json]] = {
    "session_opened": [opened(**IDENTITY), T1, end(reward=1.0)],
    "the first turn": [T1 | IDENTITY, end(reward=1.0)],
    "a later turn": [T1, T2 | IDENTITY, end(reward=1.0)],
    "session_ended": [T1, end(reward=1.0, **IDENTITY)],
    "each a part": [
        opened(run_id="run", run_epoch=0, task_id="task"),
        T1 | {"group_id": "group", "group_size": 4, "rollout_index": 0, "run_id": "run"},
        end(reward=1.0, attempt=0, split="train", step=0, task_id="task"),
    ],
}


@pytest.mark.parametrize("events", CARRIERS.values(), ids=CARRIERS)
def test_the_identity_reaches_samples_and_outcome(events: list[Json]) -> None:
    run = ran(events)
    assert [identity_of(sample) for sample in run.samples] == [IDENTITY]
    assert [identity_of(closed) for closed in run.closed] == [IDENTITY]


@pytest.mark.parametrize("name", IDENTITY)
def test_a_different_later_value_is_a_bad_event(name: str) -> None:
    other: Json = {"split": "eval"} if name == "split" else {name: "x"}
    if isinstance(IDENTITY[name], int):
        other = {name: IDENTITY[name] + 1}
    run = ran([opened(**IDENTITY), T1 | other, T2 | {name: IDENTITY[name]}, end(reward=1.0)])
    assert run.lines[0] == "2 refused invalid_field t1"
    assert identity_of(run.closed[0]) == IDENTITY
    assert [row["turn_id"] for row in run.closed[0]["ledger"]] == ["t2"]


def test_a_rollout_is_its_session() -> None:
    run = ran([T1, T3, end(reward=1.0)])
    assert [sample["rollout_id"] for sample in run.samples] == ["s", "s"]


def test_what_is_not_given_is_not_said() -> None:
    run = ran([T1, end(reward=1.0)])
    assert identity_of(run.samples[0]) == {}
    assert identity_of(run.closed[0]) == {}


@pytest.mark.parametrize(("group", "key"), [({"group_id": "g"}, "g"), ({}, "s")])
def test_the_key_is_the_group_else_the_session(group: Json, key: str) -> None:
    partition = Partition()
    for position, event in enumerate([T1 | group, end(reward=1.0)], 1):
        record = read(event)
        assert isinstance(record, Event)
        partition.feed(record, position)
    state = partition.sessions["s"]
    assert isinstance(state, ClosedSession)
    assert state.marker.key == key


def test_a_sample_id_is_a_digest_of_session_policy_and_last_turn() -> None:
    run = ran([T1, T2, T3, end(reward=1.0)])
    for sample, last in zip(run.samples, ("t2", "t3"), strict=True):
        name = msgpack.packb(["s", "seed", last])
        assert sample["sample_id"] == blake2b(name, digest_size=16).hexdigest()
    assert run.closed[0]["sample_ids"] == [sample["sample_id"] for sample in run.samples]


# --- what the outcome passes on ------------------------------------------------------------------


def test_the_outcome_says_what_the_end_said() -> None:
    reason = {"stage": "agent", "category": "tool", "type": "E", "message": "m", "retryable": True}
    said = {
        "reason": reason,
        "finish_reason": "content_filter",
        "accepted": False,
        "will_retry": True,
        "final_message": {"role": "assistant", "content": "bye", "n": 2**70},
    }
    (closed,) = ran([T1, end("timeout", reward={"score": 1, "why": "x"}, **said)]).closed
    assert {name: closed[name] for name in said} == said
    assert (closed["end_status"], closed["reward"]) == ("timeout", 1.0)
    assert closed["reward_payload"] == {"score": 1, "why": "x"}


def test_metadata_reaches_the_outcome_as_it_was_written() -> None:
    metadata = b'{"truth":123456789012345678901234567890,"x":1.50,"s":"\\u00e9\\n"}'
    line = b'{"type":"session_opened","session_id":"s","metadata":' + metadata + b"}"
    partition = Partition()
    opening = codec.from_json(line)
    assert isinstance(opening, Event)
    partition.feed(opening, 1)
    (effects,) = partition.finish()
    assert effects.outcome is not None
    assert bytes(effects.outcome.metadata) == metadata
    assert metadata in codec.to_json(effects.outcome)


def test_the_outcome_counts_turns_and_tokens() -> None:
    (closed,) = ran([T1, T1, T2, T3 | {"trainable": False}, end(reward=1.0)]).closed
    assert (closed["turns"], closed["generated"], closed["trained"]) == (3, 11, 8)


def test_a_session_without_a_turn_has_an_outcome() -> None:
    (closed,) = ran([opened(group_id="g"), end("error", reason={"stage": "agent"})]).closed
    assert (closed["turns"], closed["ledger"], closed["sample_ids"]) == (0, [], [])
    assert (closed["group_id"], closed["reason"]) == ("g", {"stage": "agent"})


def test_the_outcome_of_an_absurd_end_can_be_written_and_read() -> None:
    last = 2**63 - 1
    partition = Partition()
    ending = read(end(reward=1.0, turns={"a": last, "b": last, "c": last}))
    assert isinstance(ending, Event)
    (outcome,) = partition.feed(ending, 1).records()
    assert codec.from_json(codec.to_json(outcome)) == outcome
    assert codec.from_msgpack(codec.to_msgpack(outcome)) == outcome


def test_the_budgets_of_a_session_that_sets_none() -> None:
    limits = Rules().limits
    assert (limits.turns, limits.nodes) == (20_000, 100_000)
    assert (limits.tokens, limits.bytes) == (4_000_000, 256_000_000)


def test_rewards_are_not_rounded() -> None:
    run = ran([T1, T3, end(reward=0.1), reward(1e-300, "b")])
    assert [sample["reward"] for sample in run.samples] == [0.1 / 2, 0.1 / 2]
    assert [sample["session_reward"] for sample in run.samples] == [0.1, 0.1]
    assert [revised["reward"] for revised in run.revised] == [1e-300 / 2, 1e-300 / 2]


# --- what a sample says of its turns -------------------------------------------------------------


def only_sample(*turns: Json, **policy: Any) -> Json:
    (sample,) = ran([*turns, end("truncated", reward=1.0)], **policy).samples
    return sample


def test_a_sample_places_its_turns() -> None:
    sampling = {"temperature": 1.0, "logprobs": "processed"}
    sample = only_sample(T1 | {"sampling": sampling}, T2)
    assert sample["turns"] == [
        {"turn_id": "t1", "start": 4, "end": 7, "attach": "root", "sampling": sampling},
        {"turn_id": "t2", "start": 11, "end": 16, "attach": "extend"},
    ]
    assert (sample["prompt_len"], sample["loss_mask"]) == (4, [[4, 7], [11, 16]])
    assert (sample["generated"], sample["trained"], sample["end_status"]) == (8, 8, "truncated")


def test_a_sample_knows_the_versions_of_its_trained_tokens() -> None:
    sample = only_sample(
        T1 | {"weight_versions": [[7, 2], [8, 1]], "untrained_runs": [[0, 1, "forced"]]},
        T2 | {"weight_versions": [[8, 5]]},
    )
    assert sample["weight_versions"] == [[7, 5, 6], [8, 6, 7], [8, 11, 16]]


def test_a_sample_says_where_the_engine_gave_no_logprobs() -> None:
    sample = only_sample(T1 | {"logprobs": [-1.0, -2.0, -3.0]}, T2)
    assert sample["logprobs"] == [0.0] * 4 + [-1.0, -2.0, -3.0] + [0.0] * 9
    assert sample["logprobs_missing"] == [[11, 16]]


def test_a_channel_covers_all_tokens_with_zero_where_nothing_was_sampled() -> None:
    data = bytes([1, 2, 3])
    channel = {"dtype": "uint8", "shape": [3], "data": data.hex()}
    blob = {"dtype": "uint8", "shape": [5], "blob": "blobs/1", "length": 5}
    sample = only_sample(T1 | {"channels": {"c": channel}}, T2 | {"channels": {"c": blob}})
    whole = bytes(4) + data + bytes(9)
    assert sample["channels"] == {"c": {"dtype": "uint8", "shape": [16], "data": whole.hex()}}
    assert sample["channel_blobs"] == [{"name": "c", "start": 11, "end": 16, "channel": blob}]
    assert sample.get("channels_missing", 0) == 0


def test_turns_without_a_channel_that_others_have_are_counted() -> None:
    channel = {"dtype": "uint8", "shape": [3], "data": "010203"}
    other = {"dtype": "int8", "shape": [5], "data": "0102030405"}
    sample = only_sample(T1 | {"channels": {"c": channel}}, T2)
    assert sample["channels"]["c"]["data"] == (bytes(4) + bytes([1, 2, 3]) + bytes(9)).hex()
    assert sample["channels_missing"] == 1
    sample = only_sample(T1 | {"channels": {"c": channel}}, T2 | {"channels": {"c": other}})
    assert sample["channels_missing"] == 1
    assert "channels" not in only_sample(T1, T2)


def test_a_sample_says_where_its_turns_were_gone_on_with() -> None:
    sample = only_sample(T1 | {"continued_at": [[1, True], [2, None]], "cache_flushed": False}, T2)
    assert sample["turns"][0]["continued_at"] == [[1, True], [2, None]]
    assert sample["turns"][0]["cache_flushed"] is False
    assert "cache_flushed" not in sample["turns"][1]


@pytest.mark.parametrize(
    ("first", "last", "truncated"),
    [("stop", "length", True), ("length", "stop", False), ("length", None, False)],
)
def test_truncated_is_how_the_last_turn_stopped(
    first: str, last: str | None, truncated: bool
) -> None:
    sample = only_sample(T1 | {"finish_reason": first}, T2 | {"finish_reason": last})
    assert sample.get("truncated", False) is truncated


def test_a_sample_says_that_a_tool_was_used_and_a_call_ill_formed() -> None:
    calls = {"role": "assistant", "content": "ok", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    prompt = [*T1["prompt_messages"], calls, {"role": "tool", "content": "x"}]
    sample = only_sample(
        T1 | {"response_message": calls}, T2 | {"prompt_messages": prompt, "ill_formed": True}
    )
    assert (sample["use_tool"], sample["tool_turns"], sample["ill_formed"]) == (True, 1, True)
    plain = only_sample(T1 | {"response_message": calls | {"tool_calls": []}})
    assert [plain.get(name) for name in ("use_tool", "tool_turns", "ill_formed")] == [None] * 3


# --- too old -------------------------------------------------------------------------------------


def fed(logged: list[tuple[Json, int | None]], limit: int | None) -> list[str]:
    partition = Partition(rules=Rules(turn_age_ms_max=limit))
    refused = []
    for position, (event, logged_ms) in enumerate(logged, 1):
        record = read(event)
        assert isinstance(record, Event)
        effects = partition.feed(record, position, logged_ms)
        refused += [f"{error.turn_id} {error.code}" for error in effects.refusals]
    return refused


@pytest.mark.parametrize(
    ("limit", "refused"), [(None, []), (100, []), (99, ["t1 too_old"]), (0, ["t1 too_old"])]
)
def test_a_turn_that_was_logged_too_long_after_it_was_finished_is_too_old(
    limit: int | None, refused: list[str]
) -> None:
    assert fed([(opened(), 0), (T1 | {"finished_ms": 1000}, 1100)], limit) == refused


def test_a_turn_that_is_too_old_starts_no_session() -> None:
    old = T1 | {"finished_ms": 0}
    assert fed([(old, 100), (reward(1.0), 100)], 10) == ["t1 too_old", "None unknown_session"]


def test_a_turn_without_a_time_has_no_age() -> None:
    assert fed([(T1, 10**9), (T2 | {"finished_ms": 0}, None)], 10) == []


def test_every_record_is_json_a_strict_reader_takes() -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    partition = Partition()
    for position, event in enumerate([T1, turn("<w>", None, turn_id="t9"), end(reward=1.0)], 1):
        record = read(event)
        assert isinstance(record, Event)
        for out in partition.feed(record, position).records():
            json.loads(codec.to_json(out), parse_constant=refuse)
