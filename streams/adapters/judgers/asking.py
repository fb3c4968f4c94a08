"""What a client asks judgers, and what their verdict asks of the gateway.

Invariant: a verdict is a reward or an end of the session, never both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from schemas.events import EndStatus
from streams.adapters.judgers.judging import Case, Verdict
from streams.core.content import message_from
from streams.core.plain_values import plain


def case_for(
    session_id: str,
    messages: Sequence[Any],
    tools: Sequence[Any],
    *,
    turns: int,
    metadata: Mapping[str, Any],
) -> Case:
    """A case of what the client itself knows of a session."""
    read = [message_from(message, "user") for message in messages]
    return Case(
        session_id=session_id,
        messages=read,
        tools=list(tools),
        final_message=read[-1] if read else None,
        turns=turns,
        metadata=plain(metadata),
    )


def end_of(verdict: Verdict) -> tuple[EndStatus, dict[str, Any]]:
    """How a session ends that was given no score."""
    if verdict.error is not None:
        return "error", {"reason": to_builtins(verdict.error)}
    return "rejected", {"accepted": False, "reason": {"stage": "judger"}}
