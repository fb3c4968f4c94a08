"""How a session is told that ends in an odd place, or that nobody trains on."""

import json
from dataclasses import replace

import pytest

from schemas import codec
from schemas.events import Event
from streams.core.partition import Partition
from tests.core.life import end, opened, ran, read
from tests.core.life_claims_limits import under
from tests.core.notation import Json, cut, drawn, turn

CALL = turn("<u>", "call", turn_id="t1")


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
def test_a_session_that_ends_on_a_tool_result_keeps_what_it_sampled(profile: str) -> None:
    result = turn("<u>{call}(x)", None, turn_id="t2")
    run = ran([opened(policy=profile), CALL, result, end(reward=1.0)])
    (closed,) = run.closed
    assert (closed["turns"], closed["generated"], closed["trained"]) == (2, 5, 5)
    (sample,) = run.samples
    assert drawn(sample).startswith("<u>{[call}]")
    assert sample["trained"] == 5


def test_what_is_no_longer_than_the_turn_above_it_is_a_sample_with_its_whole_prompt_masked() -> (
    None
):
    """A compaction, and a prompt that repeats less than its own history."""
    summed = turn("<sum>", "go", turn_id="t2")
    run = ran([CALL, summed, end(reward=1.0)])
    assert [drawn(sample) for sample in run.samples] == ["<u>{[call}]", "<sum>{[go}]"]
    shorter = turn("<u>{call}(x)", "go", turn_id="t2", drift=cut(3))
    run = ran([opened(policy="lossless"), CALL, shorter, end(reward=1.0)])
    assert [row["attach"] for row in run.closed[0]["ledger"]] == ["root", "fork"]
    assert [sample["prompt_len"] for sample in run.samples] == [4, 3]
    assert run.samples[1]["loss_mask"] == [[3, 6]]


def told(split: str) -> list[Json]:
    """Every record of a session under a split, without the split."""
    partition = Partition(rules=replace(under(eval_samples=True), trace_share=1.0))
    calls = {"role": "assistant", "content": "call", "tool_calls": [{"id": "a"}]}
    events = [
        opened(split=split, group_id="g"),
        CALL | {"response_message": calls, "weight_versions": [[3, 5]]},
        turn("<u>{call}(x)", "done", turn_id="t2", finish_reason="length"),
        end(reward={"score": 1.0, "terms": [0.5, 0.5]}),
    ]
    found: list[Json] = []
    for position, event in enumerate(map(read, events), 1):
        assert isinstance(event, Event)
        effects = partition.feed(event, position)
        records = [*effects.records(), *([effects.trace] if effects.trace else [])]
        found += [json.loads(codec.to_json(record)) for record in records]
    assert {record.pop("split") for record in found} == {split}
    return found


def test_train_and_eval_are_told_by_the_same_definitions() -> None:
    trained = told("train")
    assert [record["type"] for record in trained] == ["sample", "session_closed", "trace"]
    assert told("eval") == trained
