"""JSON of any kind, and a dialect that it is sent to: it gives a call or a refusal."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from schemas.json_lines import too_deep
from streams.adapters.dialects.calls import Call, CallRefused

any_body = settings(max_examples=300, deadline=None, derandomize=True, database=None)

# Texts with lone surrogates and numbers of any size: Python writes both, JSON has only some.
TEXTS = st.text(st.characters(), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def object_of(
    needed: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(needed, optional=optional)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a request: what holds it, and the key or index there."""
    found: list[tuple[Any, Any]] = []
    unread = [value]
    while unread:
        holder = unread.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in items:
            found.append((holder, key))
            if isinstance(inner, dict | list):
                unread.append(inner)
    return found


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A dialect's own reader, and requests for it."""

    read_call: Callable[[bytes], Call]
    error_body: Callable[[CallRefused], bytes]
    requests: st.SearchStrategy[Any]
    """That are right."""
    whole: bytes
    """One of them, to be damaged."""
    check_call: Callable[[Call], None] = lambda _: None
    """What else has to hold of a call."""

    def outcome(self, body: bytes) -> Call | CallRefused:
        try:
            return self.read_call(body)
        except CallRefused as refusal:
            return refusal

    def check(self, body: bytes) -> None:
        """A refusal says why; a call can be recorded."""
        found = self.outcome(body)
        if isinstance(found, CallRefused):
            assert found.status == 400
            assert json.loads(self.error_body(found))["error"]["message"] == found.message
            return
        tools = (*found.tools, *found.deferred_tools)
        record = msgspec.json.encode({"prompt_messages": found.messages, "tools": tools})
        assert not too_deep(record)
        for message in found.messages:
            assert message["role"] in {"system", "user", "assistant", "tool"}
            assert isinstance(message["content"], str)
        for place, carriers in found.carriers.items():
            assert found.messages[place]["role"] == "assistant"
            assert carriers
            assert all(carriers)
        self.check_call(found)
