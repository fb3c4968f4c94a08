"""The scripted engine plays what its script says, and its journal says what it played."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.adapters.engines.interface import Engine, Generation, Tokens
from streams.adapters.engines.scripted import (
    Failure,
    Rule,
    Sampled,
    Script,
    ScriptedEngine,
)
from streams.adapters.engines.scripted.spelling import derived_logprobs
from tests.adapters.engines.calls import Came, asks, decode, encode, heard, tokenizer

END = encode("<|im_end|>")
PATIENCE_S = 10.0


def engine_of(*rules: Rule, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(Script(answers=rules, **options), tokenizer())


def played(engine: ScriptedEngine, *calls: Generation) -> list[Came]:
    async def scenario() -> list[Came]:
        return [await heard(engine, call) for call in calls]

    return asyncio.run(scenario())


def one(rule: Rule, call: Generation | None = None) -> Came:
    (came,) = played(engine_of(rule), call or asks())
    return came


def entries(engine: ScriptedEngine) -> list[Sampled]:
    return list(engine.journal)


def test_it_is_an_engine() -> None:
    engine: Engine = engine_of(Rule(text="a"))
    asyncio.run(engine.require_ready())
    assert engine.logprobs == "processed"


WORDS = {
    "text": (Rule(text="It is big."), "It is big.<|im_end|>"),
    "text without its end": (Rule(text="It is b", end=False), "It is b"),
    "no text": (Rule(text=""), "<|im_end|>"),
    "a message": (Rule(message={"content": "It is big."}), "It is big.<|im_end|>"),
    "a message with a thought and calls": (
        Rule(
            message={
                "reasoning_content": "hm.",
                "content": "Look.",
                "tool_calls": [
                    {"function": {"name": "bash", "arguments": {"command": "café"}}},
                    {"function": {"name": "bash", "arguments": '{"a":1e3}'}},
                ],
            }
        ),
        "<think>\nhm.\n</think>\n\nLook.\n"
        '<tool_call>\n{"name": "bash", "arguments": {"command": "café"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "bash", "arguments": {"a":1e3}}\n</tool_call><|im_end|>',
    ),
    "pieces": (Rule(pieces=(" hel", "lo")), " hello<|im_end|>"),
    "ids": (Rule(ids=(11338, 385)), " hello"),
}


@pytest.mark.parametrize(("rule", "text"), WORDS.values(), ids=WORDS)
def test_an_answer_is_given_as_it_is_written(rule: Rule, text: str) -> None:
    came = one(rule)
    assert came.text == text
    assert came.finish == "stop"


def test_ids_are_given_exactly() -> None:
    assert one(Rule(ids=(198, 198, 151_900))).ids == (198, 198, 151_900)


def test_pieces_are_tokens_that_no_tokenizer_would_choose() -> None:
    assert one(Rule(pieces=(" hel", "lo"), end=False)).ids == (11338, 385)
    assert encode(" hello") == (23811,)


@given(every=st.integers(1, 4))
def test_drift_reads_the_same_in_other_tokens(every: int) -> None:
    text = "<think>\nI should measure it.\n</think>\n\nLet me look at café and 🤝🏿 there."
    straight, drifted = one(Rule(text=text)).ids, one(Rule(text=text, drift=every)).ids
    assert decode(drifted) == decode(straight)
    assert drifted != straight
    assert [t for t in drifted if t > 151_642] == [t for t in straight if t > 151_642]


def test_logprobs_are_given_or_follow_from_token_and_place() -> None:
    assert one(Rule(ids=(5, 6), logprobs=(-0.5, -0.25))).logprobs == (-0.5, -0.25)
    came = one(Rule(text="It is big."))
    assert came.logprobs == derived_logprobs(came.ids)
    assert all(-4 <= value < 0 for value in came.logprobs)
    assert came.logprobs == tuple(np.asarray(came.logprobs, np.float32).tolist())
    assert len(set(derived_logprobs([7] * 50))) > 40


def test_logprobs_that_do_not_fit_the_tokens_fail_the_call() -> None:
    came = one(Rule(text="It is big.", logprobs=(-0.5,)))
    assert came.error is not None
    assert not came.error.retryable


def test_tokens_come_in_the_sizes_of_the_script_over_and_over() -> None:
    assert one(Rule(ids=tuple(range(9)), chunks=(1, 3))).sizes == [1, 3, 1, 3, 1]
    apart = one(Rule(ids=(1, 2), finish_apart=True))
    assert apart.sizes == [1, 1, 0]
    assert apart.finish == "stop"


def test_answers_without_conditions_come_in_their_order() -> None:
    engine = engine_of(Rule(text="a"), Rule(text="b"), Rule(text="c"))
    came = played(engine, asks(key="x"), asks(key="y"), asks(key="x"))
    assert [one.text for one in came] == [f"{word}<|im_end|>" for word in "abc"]


def answered(rules: list[Rule], *calls: Generation) -> list[str]:
    engine = engine_of(*rules, otherwise=Rule(text="none"))
    return [came.text.removesuffix("<|im_end|>") for came in played(engine, *calls)]


def test_a_condition_chooses_the_call() -> None:
    a, b = asks("How big?", key="a"), asks("How small?", key="b")
    assert answered([Rule(text="x", routing_key="b")], a, b) == ["none", "x"]
    assert answered([Rule(text="x", contains="small")], a, b) == ["none", "x"]
    assert answered([Rule(text="x", call=1)], a, b) == ["none", "x"]
    small = encode(" small")
    assert answered([Rule(text="x", prompt_ids=small)], a, b) == ["none", "x"]
    assert answered([Rule(text="x", prompt_ids=encode("How small?") * 9)], a, b) == ["none"] * 2
    assert answered([Rule(text="x", contains="small", routing_key="a")], a, b) == ["none"] * 2


def test_a_rule_is_used_as_often_as_it_says() -> None:
    assert answered([Rule(text="x", times=2)], *[asks()] * 3) == ["x", "x", "none"]
    assert answered([Rule(text="x", times=None)], *[asks()] * 3) == ["x"] * 3


def test_a_call_that_no_answer_fits_fails_for_good() -> None:
    engine = engine_of(Rule(text="a", routing_key="other"))
    (came,) = played(engine, asks(key="s1"))
    assert came.error is not None
    assert "s1" in str(came.error)
    assert not came.error.retryable
    assert entries(engine)[0].outcome == "failed"


CUTS = {
    "at the length asked for": (Rule(ids=(1, 2, 3, 4)), {"max_new_tokens": 3}, (1, 2, 3), "length"),
    "at the script's length": (Rule(ids=(1, 2, 3), length=2), {}, (1, 2), "length"),
    "behind a stop token": (Rule(ids=(1, 2, 3)), {"stop_ids": (2,)}, (1, 2), "stop"),
    "at its own end, just as long": (Rule(ids=(1, 2)), {"max_new_tokens": 2}, (1, 2), "stop"),
    "at a stop string": (
        Rule(text="One two three"),
        {"stop": ("hre", "wo t")},
        encode("One two three")[:3],
        "stop",
    ),
    "at no stop string": (Rule(ids=(1, 2)), {"stop": ("never",)}, (1, 2), "stop"),
    "before the first token": (Rule(ids=(1,), length=0), {}, (), "length"),
}


@pytest.mark.parametrize(("rule", "sampling", "ids", "finish"), CUTS.values(), ids=CUTS)
def test_an_answer_is_cut(
    rule: Rule, sampling: dict[str, Any], ids: tuple[int, ...], finish: str
) -> None:
    came = one(rule, asks(**sampling))
    assert came.ids == ids
    assert came.finish == finish


def test_the_reason_of_an_end_is_named() -> None:
    assert one(Rule(text="One two"), asks(stop=("two",))).stop_reason == "two"
    assert one(Rule(ids=(1, 2)), asks(stop_ids=(2,))).stop_reason == "2"


def test_a_failure_comes_before_the_first_token_or_between_tokens() -> None:
    early = one(Rule(ids=(1, 2), fail=Failure(message="out of memory")))
    assert early.chunks == []
    assert str(early.error) == "scripted engine: out of memory"
    late = one(Rule(ids=(1, 2, 3), fail=Failure(after=2, retryable=False)))
    assert late.ids == (1, 2)
    assert late.error is not None
    assert not late.error.retryable
    assert late.finish is None


def test_an_answer_that_is_stopped_goes_on_for_whoever_resubmits_it() -> None:
    engine = engine_of(
        Rule(ids=tuple(range(1, 9)), chunks=(2,), abort_after=5),
        Rule(text="another"),
        weight_version=3,
    )
    first = played(engine, asks((100, 101)))[0]
    assert (first.ids, first.finish) == ((1, 2, 3, 4, 5), "abort")
    engine.update_weights(4, "four")
    other, rest = played(engine, asks((100, 101), key="s2"), asks((100, 101, *first.ids)))
    assert other.text == "another<|im_end|>"
    assert (rest.ids, rest.finish) == ((6, 7, 8), "stop")
    whole = derived_logprobs(range(1, 9))
    assert first.logprobs + rest.logprobs == whole
    stopped, _, went_on = entries(engine)
    assert stopped.weight_versions == [(3, 5)]
    assert (went_on.weight_versions, went_on.weight_label) == ([(4, 3)], "four")
    assert went_on.rule == "rest"


def test_the_rest_is_of_the_weights_of_its_time() -> None:
    engine = engine_of(Rule(ids=(1, 2), abort_after=1, weight_version=1), weight_version=2)
    first, rest = played(engine, asks((100,)), asks((100, 1)))
    assert first.chunks[0].weight_version == 1
    assert rest.chunks[0].weight_version == 2


def test_the_rest_obeys_the_length_asked_for() -> None:
    engine = engine_of(Rule(ids=(1, 2, 3, 4), abort_after=1))
    played(engine, asks((100,)))
    (rest,) = played(engine, asks((100, 1), max_new_tokens=2))
    assert (rest.ids, rest.finish) == ((2, 3), "length")


Stopping = Callable[[ScriptedEngine, Generation], Coroutine[Any, Any, None]]


async def by_abort(engine: ScriptedEngine, call: Generation) -> None:
    await engine.abort(call.request_id)


async def by_weights(engine: ScriptedEngine, _: Generation) -> None:
    engine.update_weights(9)


async def by_closing(engine: ScriptedEngine, _: Generation) -> None:
    await engine.close()


@pytest.mark.parametrize("stop", [by_abort, by_weights, by_closing])
def test_what_is_under_way_can_be_stopped_while_it_waits(stop: Stopping) -> None:
    engine, call = engine_of(Rule(ids=(1, 2, 3), gap_ms=60_000)), asks()

    async def scenario() -> list[Tokens]:
        stream = engine.generate(call)
        first = await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await stop(engine, call)
        return [first, await asyncio.wait_for(waiting, PATIENCE_S)]

    came = Came(asyncio.run(scenario()))
    assert (came.ids, came.finish) == ((1,), "abort")
    assert entries(engine)[0].finish == "abort"
    assert entries(engine)[0].outcome == "finished"


def test_to_stop_what_is_over_is_no_error() -> None:
    engine = engine_of(Rule(text="a"))
    played(engine, asks())
    asyncio.run(engine.abort(asks().request_id))
    asyncio.run(engine.abort("never asked"))
    assert [entry.finish for entry in entries(engine)] == ["stop"]


def test_weights_may_change_in_the_middle_of_an_answer() -> None:
    engine = engine_of(Rule(ids=(1, 2, 3, 4, 5)), weight_version=1)

    async def scenario() -> None:
        async for tokens in engine.generate(asks()):
            if tokens.ids == (2,):
                engine.update_weights(2, abort=False)

    asyncio.run(scenario())
    assert entries(engine)[0].weight_versions == [(1, 2), (2, 3)]


def test_an_answer_may_name_its_own_weights() -> None:
    engine = engine_of(Rule(ids=(1,), weight_version=7, weight_label="seven"), weight_version=1)
    (came,) = played(engine, asks())
    assert (came.chunks[0].weight_version, came.chunks[0].weight_label) == (7, "seven")


def test_a_caller_that_goes_away_is_journalled_with_what_it_took() -> None:
    engine = engine_of(Rule(ids=tuple(range(20)), chunks=(3,)))
    came = asyncio.run(heard(engine, asks(), most=2))
    (entry,) = entries(engine)
    assert (entry.outcome, entry.finish) == ("closed", None)
    assert tuple(entry.ids) == came.ids == tuple(range(6))
    assert entry.taken == 6


def test_a_caller_that_is_cancelled_while_it_waits_is_journalled() -> None:
    engine = engine_of(Rule(ids=(1, 2), gap_ms=60_000))

    async def scenario() -> None:
        stream = engine.generate(asks())
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    (entry,) = entries(engine)
    assert (entry.outcome, entry.taken) == ("closed", 1)


def test_the_journal_is_what_was_given_also_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    rules = (Rule(text="One two."), Rule(ids=(1, 2), fail=Failure(after=1)))
    engine = ScriptedEngine(Script(answers=rules), tokenizer(), journal_path=path)
    came = played(engine, asks("a?", key="a"), asks("b?", key="b"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for call, (one, entry, line) in enumerate(zip(came, entries(engine), lines, strict=True)):
        assert tuple(entry.ids) == tuple(line["ids"]) == one.ids
        assert tuple(entry.logprobs) == tuple(line["logprobs"]) == one.logprobs
        assert entry.taken == line["taken"] == len(one.ids)
        assert line["call"] == call
        assert line["routing_key"] == "ab"[call]
        assert tuple(line["input_ids"]) == encode(("a?", "b?")[call])
    assert [line["outcome"] for line in lines] == ["finished", "failed"]
    assert [line["rule"] for line in lines] == ["answers[0]", "answers[1]"]
    assert engine.journal.of("b") == entries(engine)[1:]


def test_the_journal_keeps_no_more_than_it_is_told() -> None:
    script = Script(otherwise=Rule(ids=(1,)))
    engine = ScriptedEngine(script, journal_keep=3)
    played(engine, *[asks()] * 10)
    assert [entry.call for entry in engine.journal] == [7, 8, 9]


@settings(max_examples=50, deadline=None)
@given(
    ids=st.lists(st.integers(0, 1000), max_size=20).map(tuple),
    chunks=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    abort_after=st.none() | st.integers(0, 25),
    apart=st.booleans(),
)
def test_parts_and_rests_join_to_the_whole_answer(
    ids: tuple[int, ...], chunks: tuple[int, ...], abort_after: int | None, apart: bool
) -> None:
    rule = Rule(ids=ids, chunks=chunks, abort_after=abort_after, finish_apart=apart)
    engine = ScriptedEngine(Script(answers=(rule,)))
    (first,) = played(engine, asks((7,)))
    both = [first]
    if first.finish == "abort":
        both += played(engine, asks((7, *first.ids)))
    assert tuple(itertools.chain.from_iterable(came.ids for came in both)) == ids
    assert both[-1].finish == "stop"
