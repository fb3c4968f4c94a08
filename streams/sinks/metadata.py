"""What stands beside a conversation on trackio's page.

trackio's page reads `status` and `duration_ms` itself; the rest is shown as it is.

Invariant: ids are texts, numbers are numbers, and what is not known is left out.
"""

from typing import Any

import msgspec

from schemas.record import IDENTITY_FIELDS
from schemas.traces import Trace
from streams.core.plain_values import plain, plain_json
from streams.sinks.choosing import Branch
from streams.sinks.statistics import split_of

_REJECTED = frozenset({"rejected", "no_reward"})
_NAMED = (
    *("reward", "accepted", "withheld", "policy", "generated", "trained", "tool_turns"),
    *("generate_ms", "tool_ms", "reward_ms", "finish_reason"),
)
_OF_A_SAMPLE = ("sample_id", "prompt_len", "response_len", "trained", "weight_versions")


def was_rejected(trace: Trace) -> bool:
    """Whether somebody decided that it counts for nothing, or nobody judged it."""
    rejected = trace.end_status == "rejected" or not trace.accepted
    return rejected or trace.withheld in _REJECTED


def metadata_of(branch: Branch) -> dict[str, Any]:
    """Identity, reward, lengths, versions and times of a session, and which branch this is."""
    trace = branch.trace
    samples = _samples(branch)
    told: dict[str, Any] = {
        "session_id": trace.session_id,
        **{name: getattr(trace, name) for name in (*IDENTITY_FIELDS, *_NAMED)},
        "split": split_of(trace),
        "branch": branch.shown.branch,
        "branches": branch.branches,
        "status": trace.end_status,
        "turns": len(trace.turns),
        "finish_reasons": [turn.finish_reason for turn in trace.turns],
        "prompt_len": samples[-1]["prompt_len"] if samples else None,
        "response_len": samples[-1]["response_len"] if samples else None,
        "samples": samples or None,
        "untrained": trace.untrained or None,
        "duration_ms": _duration_ms(trace),
        "reason": None if trace.reason is None else msgspec.to_builtins(trace.reason),
        "reward_payload": _payload(trace.reward_payload),
        "session_metadata": _payload(trace.metadata),
    }
    return {name: plain(value) for name, value in told.items() if value is not None}


def _samples(branch: Branch) -> list[dict[str, Any]]:
    """Those whose last answer stands on this branch."""
    answers = {turn.turn_id: turn.message for turn in branch.trace.turns}
    return [
        {name: held for name in _OF_A_SAMPLE if (held := getattr(sample, name)) is not None}
        for sample in branch.trace.samples
        if answers.get(sample.turn_id) in branch.conversation.places
    ]


def _payload(text: msgspec.Raw) -> Any:
    return plain_json(text) if text else None


def _duration_ms(trace: Trace) -> int | None:
    starts = [turn.started_ms for turn in trace.turns if turn.started_ms is not None]
    ends = [turn.finished_ms for turn in trace.turns if turn.finished_ms is not None]
    return max(ends) - min(starts) if starts and ends else None
