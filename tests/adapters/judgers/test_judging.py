"""What a judger is given, what it may answer, and what becomes of anything else."""

import asyncio
import contextlib
import math
import time
from typing import Any

import numpy as np
import pytest

from schemas.samples import SessionClosed
from streams.adapters.judgers.evaluation import Evaluation, evaluated
from streams.adapters.judgers.judging import Case, Judger, Judging, Named, Verdict
from streams.core.content import text_of

CASE = Case(
    session_id="s",
    messages=[
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
    ],
    tools=[{"name": "sum"}],
    final_message={"role": "assistant", "content": [{"type": "text", "text": "4"}]},
    turns=1,
    metadata={"answer": "4", "nested": {"a": 1}},
)


OUTLASTS_S = 8.0
"""How long a judger goes on that does not let itself be cancelled."""


def verdict_of(*judgers: Judger | Named, timeout_s: float = 30.0) -> Verdict:
    """The verdict, which is the same for code that blocks and code that awaits."""
    judging = Judging(*judgers, timeout_s=timeout_s)
    awaited = asyncio.run(judging.judge(CASE))
    assert judging.judge_now(CASE) == awaited
    return awaited


def exact(case: Case) -> float:
    """Uses everything that it is given."""
    assert len(case.messages) == case.turns + 1
    assert (case.session_id, case.end_status, case.tools) == ("s", "completed", [{"name": "sum"}])
    return float(text_of(case.final_message) == case.metadata["answer"])


async def awaited(case: Case) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"score": 0.5, "terms": [1.0, 0.0, 0.5], "why": {"style": "plain"}}


def gives_something_to_await(case: Case) -> Any:
    return awaited(case)


def breaks_on_half_a_character(case: Case) -> float:
    raise ValueError("\ud83d is no text")


class Callable:
    """An object with an awaited call."""

    async def __call__(self, case: Case) -> float:
        return 0.25


def gives(answer: Any) -> Judger:
    return lambda _: answer


def raises(case: Case) -> float:
    raise KeyError("ground truth")


def exits(case: Case) -> float:
    raise SystemExit(3)


async def exits_awaited(case: Case) -> float:
    raise SystemExit(3)


def hangs(case: Case) -> float:
    time.sleep(1.0)
    return 1.0


async def hangs_awaited(case: Case) -> float:
    await asyncio.sleep(60)
    return 1.0


async def takes_no_notice(case: Case) -> float:
    until_s = time.monotonic() + OUTLASTS_S
    while time.monotonic() < until_s:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(OUTLASTS_S / 10)
    return 1.0


GOOD: dict[str, tuple[Judger, dict[str, Any]]] = {
    "a number": (exact, {"score": 1.0}),
    "a whole number": (lambda _: 3, {"score": 3.0}),
    "a truth value": (lambda _: True, {"score": 1.0}),
    "a mapping, awaited, with several numbers": (
        awaited,
        {"score": 0.5, "terms": [1.0, 0.0, 0.5], "why": {"style": "plain"}},
    ),
    "an object": (Callable(), {"score": 0.25}),
    "a number of numpy": (gives(np.float32(0.5)), {"score": 0.5}),
    "an array without dimensions": (gives(np.array(0.5)), {"score": 0.5}),
    "a comparison": (gives(np.float64(1) > 0), {"score": 1.0}),
    "numbers of numpy in a mapping": (
        gives({"score": np.bool_(False), "terms": np.arange(2), "bad": np.float32("nan")}),
        {"score": 0.0, "terms": [0, 1], "bad": None, "not_finite": ["bad"]},
    ),
    "a score that stands beside others": (
        lambda _: {"score": 0.0, "points": 7},
        {"score": 0.0, "points": 7},
    ),
    "a function that gives something to await": (
        gives_something_to_await,
        {"score": 0.5, "terms": [1.0, 0.0, 0.5], "why": {"style": "plain"}},
    ),
}


@pytest.mark.parametrize(("judger", "reward"), GOOD.values(), ids=GOOD)
def test_a_score_is_a_reward_with_everything_beside_it(
    judger: Judger, reward: dict[str, Any]
) -> None:
    verdict = verdict_of(judger)
    assert verdict.error is None
    assert verdict.accepted
    assert verdict.reward == reward


BAD: dict[str, tuple[Any, str, str, bool]] = {
    "a raise": (raises, "raised", "ground truth", False),
    "an exit": (exits, "raised", "SystemExit(3)", False),
    "an exit, awaited": (exits_awaited, "raised", "exits_awaited: 3", False),
    "no time": (hangs, "timeout", "gave no answer in 0.2 s", True),
    "no time, awaited": (hangs_awaited, "timeout", "gave no answer in 0.2 s", True),
    "no time, and no notice of it": (
        takes_no_notice,
        "timeout",
        "gave no answer in 0.2 s, took no notice of being cancelled and still runs",
        True,
    ),
    "no score": (lambda _: {"points": 7}, "bad_answer", "mapping with `score`", False),
    "several numbers alone": (lambda _: [1.0, 2.0], "bad_answer", "[1.0, 2.0]", False),
    "a text": (lambda _: "good", "bad_answer", "'good'", False),
    "several numbers of numpy": (gives(np.arange(2)), "bad_answer", "array([0, 1])", False),
    "a number that no float holds": (gives(10**400), "bad_answer", "finite number", False),
    "NaN": (lambda _: math.nan, "bad_answer", "nan", False),
    "infinity in a mapping": (lambda _: {"score": math.inf}, "bad_answer", "inf", False),
}


@pytest.mark.parametrize(("judger", "category", "words", "again"), BAD.values(), ids=BAD)
def test_anything_else_is_an_error_of_the_judger_and_never_a_score(
    judger: Judger, category: str, words: str, again: bool
) -> None:
    began_s = time.monotonic()
    verdict = verdict_of(judger, timeout_s=0.2)
    assert time.monotonic() - began_s < OUTLASTS_S
    assert (verdict.reward, verdict.error is None) == (None, False)
    error = verdict.error
    assert error is not None
    assert (error.stage, error.category, error.retryable) == ("judger", category, again)
    assert words in (error.message or "")
    assert error.type


def test_a_judger_that_outlasts_its_time_is_counted_until_it_ends() -> None:
    async def work() -> None:
        judging = Judging(released, timeout_s=0.05)
        verdict = await judging.judge(CASE)
        assert verdict.error is not None
        assert (verdict.error.category, judging.still_running) == ("timeout", 1)
        enough.set()
        await asyncio.sleep(0.05)
        assert judging.still_running == 0

    async def released(case: Case) -> float:
        until_s = time.monotonic() + OUTLASTS_S
        while not enough.is_set() and time.monotonic() < until_s:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(enough.wait(), OUTLASTS_S)
        return 1.0

    enough = asyncio.Event()
    asyncio.run(work())


def test_whoever_is_cancelled_while_judging_waits_no_longer_either() -> None:
    async def work() -> None:
        judging = asyncio.create_task(Judging(takes_no_notice).judge(CASE))
        await asyncio.sleep(0.1)
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging

    began_s = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - began_s < OUTLASTS_S


def test_what_a_cancelled_judger_puts_away_is_waited_for() -> None:
    async def tidy(case: Case) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            put_away.append(True)
        return 1.0

    put_away: list[bool] = []
    error = asyncio.run(Judging(tidy, timeout_s=0.05).judge(CASE)).error
    assert error is not None
    assert (error.message, put_away) == ("tidy gave no answer in 0.05 s", [True])


@pytest.mark.parametrize("answer", [None, {"accepted": False}, {"accepted": False, "score": 1.0}])
def test_none_or_not_accepted_is_a_rejection(answer: Any) -> None:
    assert verdict_of(lambda _: answer) == Verdict(accepted=False)


def test_several_judgers_add_up_by_weight_and_keep_their_own_answers() -> None:
    verdict = verdict_of(exact, Named(awaited, "style", 0.5), Named(Callable(), weight=2.0))
    assert verdict.reward == {
        "score": 1.0 + 0.25 + 0.5,
        "exact": {"score": 1.0},
        "style": {"score": 0.5, "terms": [1.0, 0.0, 0.5], "why": {"style": "plain"}},
        "Callable": {"score": 0.25},
    }


def test_one_error_or_rejection_among_several_decides() -> None:
    assert verdict_of(exact, lambda _: None) == Verdict(accepted=False)
    error = verdict_of(exact, raises, lambda _: None).error
    assert error is not None
    assert error.type == "KeyError"
    error = verdict_of(Named(lambda _: 1e308, "a", 10.0), exact).error
    assert error is not None
    assert error.category == "bad_answer"


def test_what_a_judger_does_to_its_case_no_other_sees() -> None:
    def spoils(case: Case) -> float:
        case.messages.clear()
        case.metadata["nested"]["a"] = 2
        return 0.0

    def looks(case: Case) -> float:
        time.sleep(0.1)
        return float(len(case.messages) == 2 and case.metadata["nested"]["a"] == 1)

    verdict = verdict_of(spoils, looks)
    assert verdict.reward is not None
    assert verdict.reward["score"] == 1.0
    assert len(CASE.messages) == 2


def test_a_judging_without_sense_is_refused() -> None:
    for judgers in ((), (exact, exact)):
        with pytest.raises(ValueError, match="each with a name of its own"):
            Judging(*judgers)
    with pytest.raises(ValueError, match="score: beside others a judger cannot have this name"):
        Judging(exact, Named(awaited, "score"))
    assert verdict_of(Named(exact, "score")).reward == {"score": 1.0}
    with pytest.raises(ValueError, match="give seconds above 0"):
        Judging(exact, timeout_s=0)


def test_judging_now_works_inside_a_running_loop() -> None:
    async def work() -> Verdict:
        return Judging(exact).judge_now(CASE)

    assert asyncio.run(work()).reward == {"score": 1.0}


def outcome(reward: float | None, **more: Any) -> SessionClosed:
    fields: dict[str, Any] = {"sample_ids": [], "policy": "seed", "turns": 0, "ledger": []}
    counts: dict[str, Any] = {"generated": 0, "trained": 0, "end_status": "completed"}
    return SessionClosed(session_id="s", reward=reward, **{**fields, **counts, **more})


def test_eval_counts_failures_with_0_and_retries_not_at_all() -> None:
    good = [outcome(1.0)] * 4
    failed = [outcome(None, end_status="error"), outcome(None, reward_invalid=True)]
    retried = [outcome(None, will_retry=True)]
    assert evaluated([*good, *failed, *retried]) == Evaluation(6, 2, 4 / 6)
    assert evaluated([]) == Evaluation(0, 0, None)
    assert evaluated([outcome(0.5)]) == Evaluation(1, 0, 0.5)


def test_an_error_whose_text_is_no_text_can_be_recorded() -> None:
    error = verdict_of(breaks_on_half_a_character).error
    assert error is not None
    assert error.message == "breaks_on_half_a_character: ? is no text"
