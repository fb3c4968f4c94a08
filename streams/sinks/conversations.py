"""A trace as conversations, one a branch, as chat pages read them: a list of messages.

The messages themselves are taken where the trace has them, so that no tokenizer is needed. Where
they were too large for it, lengths are all there is: what was given is `user`, then `tool`, what
was sampled `assistant`.

Invariant: every message is an object with a role and of values that every JSON writer takes.
"""

from dataclasses import dataclass
from typing import Any

from schemas.traces import Trace
from streams.core.plain_values import plain_json

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch."""

    messages: list[Message]
    places: frozenset[int] = frozenset()
    """Of its messages in the trace."""


def branches_of(trace: Trace) -> list[Conversation]:
    """From a root to each leaf, in the order of the leaves; at least one, be it empty.

    Raises:
        ValueError: the trace is not one of ours: its messages are no tree.
    """
    messages = [_message(one) for one in plain_json(trace.messages)]
    if not messages:
        return [Conversation(_lengths(trace) if trace.messages_left_out else [])]
    if len(messages) != len(trace.parents) or any(
        not -1 <= parent < at for at, parent in enumerate(trace.parents)
    ):
        raise ValueError("`parents` does not name for each message one before it")
    inner = set(trace.parents)
    leaves = (at for at in range(len(messages)) if at not in inner)
    paths = [_path(leaf, trace.parents) for leaf in leaves]
    return [Conversation([messages[at] for at in path], frozenset(path)) for path in paths]


def _path(leaf: int, parents: list[int]) -> list[int]:
    path, at = list[int](), leaf
    while at >= 0:
        path.append(at)
        at = parents[at]
    return path[::-1]


def _message(made: Any) -> Message:
    if not isinstance(made, dict):
        return {"role": "user", "content": made}
    return made if isinstance(made.get("role"), str) else {**made, "role": "user"}


def _lengths(trace: Trace) -> list[Message]:
    path, before = list[Message](), 0
    for turn in trace.turns:
        given = turn.prompt_len - before
        if given > 0:
            role = "tool" if path else "user"
            path.append({"role": role, "content": f"[{given} tokens]"})
        path.append({"role": "assistant", "content": f"[{turn.response_len} tokens]"})
        before = turn.prompt_len + turn.response_len
    return path
