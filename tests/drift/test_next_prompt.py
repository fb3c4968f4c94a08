"""The next prompt is not prompt + response: each row of `next_prompts` against the real template.

What the table says is checked in two halves: where the prefix breaks, by the tokenizer alone;
and what the three profiles make of it, by the samples and the ledger of a whole session.
"""

import pytest

from tests.drift.next_prompts import (
    ANSWER,
    ANSWER_LEN,
    BASH,
    CALL,
    OPENING,
    ROWS,
    SHORT,
    Row,
)
from tests.drift.qwen3 import STOP, Message, Qwen3, parse
from tests.drift.sessions import (
    PROFILES,
    REWARD,
    Call,
    first_difference,
    run,
    sampled_ids,
    story,
    trained_ids,
)

LOSSY = {name: row for name, row in ROWS.items() if row.seed != row.lossless}

each_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
each_profile = pytest.mark.parametrize("profile", PROFILES)


def session(qwen3: Qwen3, row: Row) -> list[Call]:
    recorded = parse(row.sampled)
    sent_back = {field: value for field, value in recorded.items() if field != row.unsent}
    first = Call(
        messages=OPENING,
        prompt=qwen3.render(OPENING, row.tools, thinking=row.thinking),
        sampled=qwen3.encode(row.sampled),
        response=recorded,
        finish="stop" if row.sampled.endswith(STOP) else "length",
    )
    second = Call(
        messages=[*OPENING, recorded if row.restored else sent_back, row.then],
        prompt=qwen3.render(
            [*OPENING, sent_back, row.then], row.tools_later, thinking=row.thinking
        ),
        sampled=qwen3.encode(ANSWER),
        response=parse(ANSWER),
    )
    return [first, second]


def where(first: Call, place: int) -> str:
    """A place in a call's sequence, counted in the half it falls in."""
    if place == len(first.held):
        return "holds"
    inside = place - len(first.prompt)
    return f"response {inside}" if inside >= 0 else f"prompt {place} of {len(first.prompt)}"


@each_row
def test_the_next_prompt_leaves_the_sequence_here(qwen3: Qwen3, row: Row) -> None:
    first, second = session(qwen3, row)
    place = first_difference(first.held, second.prompt)

    assert (len(first.prompt), len(first.sampled), len(second.prompt)) == row.sizes
    assert where(first, place) == row.breaks
    assert qwen3.pieces(first.held[place : place + len(row.old)]) == row.old
    assert qwen3.pieces(second.prompt[place : place + len(row.new)]) == row.new


@each_row
@each_profile
def test_each_profile_does_this_with_it(qwen3: Qwen3, row: Row, profile: str) -> None:
    calls = session(qwen3, row)
    assert story(calls, run(calls, profile=profile)) == row.outcome(profile)


@each_row
@each_profile
def test_seed_deals_the_reward_out_and_the_others_repeat_it(
    qwen3: Qwen3, row: Row, profile: str
) -> None:
    samples = run(session(qwen3, row), profile=profile).samples
    count = row.outcome(profile).count("/") + 1
    share = REWARD / count if profile == "seed" else REWARD
    assert [sample["reward"] for sample in samples] == [share] * count


@each_row
def test_lossless_trains_every_sampled_id_once(qwen3: Qwen3, row: Row) -> None:
    calls = session(qwen3, row)
    assert trained_ids(run(calls, profile="lossless")) == sampled_ids(calls)


@pytest.mark.parametrize("row", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize("profile", ["seed", "slime"])
def test_a_response_is_given_up_only_below_the_threshold(
    qwen3: Qwen3, row: Row, profile: str
) -> None:
    """At the number that a profile's gate counts, it keeps both turns, as `lossless` does."""
    calls = session(qwen3, row)
    first, second = calls
    merged = row.seed.endswith("merged")
    if merged:
        counted = len(first.sampled)
    elif profile == "seed":
        counted = len(first.held) - first_difference(first.held, second.prompt)
    else:
        counted = ANSWER_LEN

    at = run(calls, profile=profile, fork_threshold=counted)
    above = run(calls, profile=profile, fork_threshold=counted + 1)
    assert story(calls, at) == row.lossless
    assert story(calls, above) == row.outcome(profile)


def parallel_results(qwen3: Qwen3) -> list[Call]:
    """Row 12: two calls in one response; a request with one result, then one with both."""
    second_call = CALL.replace("du -sh .", "ls")
    recorded = parse(f"{SHORT}{CALL}\n{second_call}{STOP}")
    one: Message = {"role": "tool", "content": "48M"}
    other: Message = {"role": "tool", "content": "src"}
    histories = [OPENING, [*OPENING, recorded, one], [*OPENING, recorded, one, other]]
    answers = [f"{SHORT}{CALL}\n{second_call}{STOP}", ANSWER, ANSWER]
    return [
        Call(
            messages=history,
            prompt=qwen3.render(history, [BASH]),
            sampled=qwen3.encode(answer),
            response=parse(answer),
        )
        for history, answer in zip(histories, answers, strict=True)
    ]


def test_a_second_parallel_result_breaks_the_prompt_that_had_one(qwen3: Qwen3) -> None:
    _, one, both = parallel_results(qwen3)
    place = first_difference(one.prompt, both.prompt)

    assert (place, len(one.prompt)) == (223, 228)
    assert qwen3.pieces(one.prompt[place : place + 1]) == [STOP]
    assert qwen3.pieces(both.prompt[place : place + 2]) == ["\n", "<tool_response>"]


@each_profile
def test_a_second_parallel_result_is_a_branch_that_loses_nothing(
    qwen3: Qwen3, profile: str
) -> None:
    """Only in tokens, but between siblings: turn 3 is below turn 1, not turn 2, and extends it.

    Turn 1 trains on the first branch; the second one carries it as context.
    """
    calls = parallel_results(qwen3)
    result = run(calls, profile=profile)

    assert story(calls, result) == (
        "t2 extend, t3 extend: given [t1] given [t2] / given [t3]; 57 of 57 trained"
    )
    assert [sample["tokens"] for sample in result.samples] == [calls[1].held, calls[2].held]
    assert trained_ids(result) == sampled_ids(calls)
