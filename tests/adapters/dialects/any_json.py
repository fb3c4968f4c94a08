"""JSON of any kind, for tests that no request breaks a dialect."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

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
