"""Items that do not fit the form of the ones that are known.

An API grows types of items, and what the fields of a new one hold is not known: one that is
called `tools` or `summary` may be anything. Requests are decoded in one go, because most fit;
where one does not, what cannot be read here is cut down to what names it.

    an item that is read field by field        as it is; its parts of unknown types cut down
    every other                                its type, its ids, its name

Invariant: a request is refused for a field that does not fit only where that field is read.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streams.adapters.dialects.common import refused
from streams.adapters.dialects.openai_responses_given import READ_TYPES, GivenItem
from streams.adapters.dialects.openai_responses_parts import is_known

_NAMES = ("type", "id", "call_id", "name")


def read_odd(items: Sequence[Any]) -> list[GivenItem]:
    """Items, of which at least one did not fit.

    Raises:
        CallRefused: 400, if one that is read here does not.
    """
    return [_read(item, f"input[{index}]") for index, item in enumerate(items)]


def _read(item: Any, param: str) -> GivenItem:
    try:
        return msgspec.convert(_cut(item), GivenItem)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        why = f"is wrong: {what[:1].lower()}{what[1:]}"
        raise refused(param + where.removesuffix("`"), why) from None


def _cut(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if isinstance(kind, str) and kind not in READ_TYPES:
        return _named(item)
    content = item.get("content")
    if isinstance(content, list):
        return item | {"content": [_cut_part(part) for part in content]}
    return item


def _cut_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or is_known(kind):
        return part
    return {name: part[name] for name in ("type", "text") if isinstance(part.get(name), str)}


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in _NAMES if isinstance(item.get(name), str)}
