"""When are two chat messages the same message? By a digest of their canonical form.

    canonical text   JSON with sorted keys: 1, 1.0 and true are three messages
    equal values     the same, after numbers are spelled by value: 1, 1.0 and true are one

Nothing else is normalised here: adapters do that before they publish. A message is checked when
it arrives and kept as the JSON text it came in; equal texts are equal messages, so the digest is
made only for those that meet another spelling.

Invariant: two messages have one digest exactly if the policy's identity holds them equal.
"""

from hashlib import blake2b
from typing import Any, Literal

import msgspec

from streams.errors import BadEvent

Identity = Literal["canonical_text", "equal_values"]

_READ = msgspec.json.Decoder().decode
_WRITE = msgspec.json.Encoder(order="deterministic").encode


class Message(msgspec.Struct, eq=False):
    """One chat message: its text as given, and who it is."""

    text: bytes
    role: str | None
    """None when the message names no role; such a message never counts as an assistant's."""
    calls_tool: bool
    identity: Identity
    known_digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        """Of the canonical form; made when first asked for, as most messages never are."""
        if self.known_digest is None:
            value = _READ(self.text)
            if self.identity == "equal_values":
                _spell_numbers_by_value(value)
            self.known_digest = blake2b(_WRITE(value), digest_size=16).digest()
        return self.known_digest

    def same_as(self, other: "Message") -> bool:
        """Whether the policy holds the two messages equal."""
        return self is other or self.text == other.text or self.digest == other.digest


def read_message(text: msgspec.Raw, identity: Identity) -> Message:
    """A message from its JSON text; `BadEvent` if it is not a JSON object."""
    try:
        value = _READ(text)
    except (ValueError, RecursionError) as error:
        detail = f"a message is not readable JSON: {error}"
        raise BadEvent("invalid_field", detail) from None
    if not isinstance(value, dict):
        detail = f"a message is a {type(value).__name__}, not an object with a role"
        raise BadEvent("invalid_field", detail)
    role = value.get("role")
    calls = value.get("tool_calls")
    return Message(
        bytes(text),
        role if isinstance(role, str) else None,
        bool(calls) and isinstance(calls, list),
        identity,
    )


def _spell_numbers_by_value(root: dict[str, Any]) -> None:
    # Python's == holds 0, 0.0, -0.0 and false equal, and compares integers with floats by exact
    # value; an integral float therefore becomes the integer it is.
    unread: list[Any] = [root]
    while unread:
        node = unread.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                unread.append(value)
            elif isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
                node[key] = int(value)
