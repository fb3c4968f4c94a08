"""A defect of ours costs one session: outcome `error`, stage `processor`; everyone else goes on.

The defect is planted: a function of the core is replaced by one that fails on a poisoned turn.
"""

from collections.abc import Callable
from typing import Any

import pytest

from streams.core import after_close, closing, session, tree
from streams.core.linearize import linearize
from streams.core.rewards import share
from streams.core.routing import route
from streams.core.twins import check_twin
from tests.core.life import T1, T2, Run, end, of, opened, ran, ran_with_replays, reward
from tests.core.notation import Json, turn

POISON = "poison"
POISONED = turn(f"<{POISON}>", "ok", turn_id="t1")


def failing(original: Callable[..., Any], poisoned: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if poisoned(*args, **kwargs):
            message = "a defect"
            raise ZeroDivisionError(message)
        return original(*args, **kwargs)

    return wrapped


def always(*_: Any, **__: Any) -> bool:
    return True


def check_failed(run: Run, session_id: str = "s") -> Json:
    """One outcome for the session, that of a failure, and no sample of it."""
    (closed,) = [closed for closed in run.closed if closed["session_id"] == session_id]
    assert closed["end_status"] == "error"
    assert closed["withheld"] == "core_failure"
    assert closed["reason"]["stage"] == "processor"
    assert "ZeroDivisionError: a defect" in closed["reason"]["message"]
    assert closed["sample_ids"] == []
    assert [s for s in run.samples if s["session_id"] == session_id] == []
    for row in closed["ledger"]:
        assert row["trained"] == 0
        assert row["generated"] == sum(row["untrained"].values())
    return closed


def codes(run: Run) -> list[str]:
    return [line.split(" refused ")[1] for line in run.lines if " refused " in line]


def test_a_failure_in_routing_costs_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_poison(_root: Any, _base: Any, _kept: Any, new: Any, _policy: Any) -> bool:
        return any(POISON.encode() in message.text for message in new)

    monkeypatch.setattr(tree, "route", failing(route, has_poison))
    run = ran(
        [
            T1,
            of("bad", opened(group_id="g", metadata={"a": 1})),
            of("bad", POISONED),
            T2,
            of("bad", T2),
            of("bad", end(reward=1.0)),
            of("bad", reward(1.0)),
            end(reward=1.0),
        ]
    )
    closed = check_failed(run, "bad")
    assert (closed["group_id"], closed["metadata"]) == ("g", {"a": 1})
    assert codes(run) == ["core_failure t1", "late_turn t2", "late_reward"]
    assert run.lines[-2:] == [
        "8 sample <u>{[ok}](x){[done}], reward 1",
        "8 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5",
    ]


def test_a_failure_on_the_first_event_is_an_outcome_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "route", failing(route, always))
    run = ran([T1])
    assert check_failed(run)["ledger"] == []
    assert codes(run) == ["core_failure t1"]


CLOSERS: dict[str, list[Json]] = {
    "an end": [T1, end(reward=1.0)],
    "a final reward": [T1, end(), reward(1.0)],
}


@pytest.mark.parametrize("events", CLOSERS.values(), ids=CLOSERS)
def test_a_failure_while_closing_is_the_outcome(
    events: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "linearize", failing(linearize, always))
    run = ran(events)
    (row,) = check_failed(run)["ledger"]
    assert (row["turn_id"], row["generated"], row["untrained"]) == ("t1", 3, {"status": 3})
    assert codes(run) == ["core_failure"]


def test_a_failure_at_the_end_of_the_file_costs_its_session_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_bad(session: Any, **_: Any) -> bool:
        return bool(session.session_id == "bad")

    monkeypatch.setattr(session, "close", failing(closing.close, is_bad))
    run = ran([of("bad", T1), reward(1.0), T1, reward(1.0)])
    check_failed(run, "bad")
    assert "core_failure" in codes(run)
    assert run.lines[-1] == "end closed completed, implied, reward 1 | t1 root 3/3"


def test_a_failure_while_comparing_twins_is_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "check_twin", failing(check_twin, always))
    run = ran([T1, T1])
    check_failed(run)
    assert codes(run) == ["core_failure t1"]


def test_a_failure_after_the_close_is_a_dead_letter_and_no_second_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(after_close, "share", failing(share, always))
    run = ran([T1, end(reward=1.0), reward(0.5), of("other", T1), of("other", end(reward=1.0))])
    assert [closed["end_status"] for closed in run.closed] == ["completed", "completed"]
    assert codes(run) == ["core_failure"]


def test_a_session_that_failed_stays_closed_when_its_log_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "linearize", failing(linearize, always))
    events = [T1, T2, end(reward=1.0), reward(0.5), T1, end()]
    once, again = ran(events), ran_with_replays(events)
    assert again.transcript == once.transcript
    assert len(again.closed) == 1


def test_the_outcome_of_a_failure_keeps_what_the_end_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without `will_retry` the failed attempt would fill the slot of the one that follows.
    monkeypatch.setattr(closing, "linearize", failing(linearize, always))
    closed = check_failed(ran([T1, end(will_retry=True, accepted=False, reward=1.0)]))
    assert (closed.get("will_retry"), closed.get("accepted")) == (True, False)
