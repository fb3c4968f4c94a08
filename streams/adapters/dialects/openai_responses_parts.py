"""The content of a message item as one text, whatever its parts are.

    text, input_text, output_text, refusal    its text; null is an empty one
    input_image, input_file, ...              a placeholder, counted
    a type that is not known                  the text it holds, else a placeholder, counted

Invariant: no content is refused for the type of a part, and a part that is no text leaves its
mark.
"""

import re

from streams.adapters.dialects.common import Content, Part, joined, omitted

_PLAIN_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_TEXTS = {"text", "input_text", "output_text"}


def placeholder(kind: str, otherwise: str) -> str:
    """What stands for something that cannot be read; a type that is no name is not repeated."""
    named = kind if _PLAIN_NAME.fullmatch(kind) else otherwise
    return omitted(kind) or f"[{named} omitted]"


def is_known(kind: str) -> bool:
    """Whether it is known what a part of this type holds."""
    return kind in _TEXTS or kind == "refusal" or omitted(kind) is not None


def text_of(content: Content, *, between: str = "\n") -> tuple[str, int]:
    """Content as one text, and how many of its parts are only placeholders there."""
    if isinstance(content, str):
        return content, 0
    texts: list[str] = []
    placeholders = 0
    for part in content or ():
        text = part if isinstance(part, str) else _said(part)
        if text is None:
            assert isinstance(part, Part), "a text says itself"
            text = placeholder(part.type, "part")
            placeholders += 1
        texts.append(text)
    return joined(texts, between), placeholders


def _said(part: Part) -> str | None:
    """The text of a part; None if it has none."""
    if part.type in _TEXTS:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    return None if omitted(part.type) else part.text or None
