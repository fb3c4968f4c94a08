"""Ids that name the turn they were made in, for whoever knows the secret.

    call_  0EJ2...31 letters and digits     turn, session, kind, place, signature
    ^      ^
    the prefix is the client's taste and is not signed: an id survives a change of API

What a client sends back of an answer is rewritten in many ways, but its tool-call ids come back
as they were. So the id itself says which turn it came from: nothing has to be remembered, and
any gateway with the same secret can tell. A client cannot make one up.

An id has at most 40 characters, which is the most that OpenAI's API takes for a tool call, and
nothing but letters and digits after its prefix, because some clients replace all else.

Invariant: `recognise` gives back exactly what was minted, and nothing for any other text.
"""

import base64
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from streams.adapters.gateway.access.secret import derived, mac

ID_LENGTH_MAX = 40
TURN_BYTES = 10
TAG_BYTES = 3
PLACE_BYTES = 2
MAC_BYTES = 8
BODY_BYTES = TURN_BYTES + TAG_BYTES + PLACE_BYTES
KIND_SHIFT = 12
INDEX_MAX = (1 << KIND_SHIFT) - 1

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WIDTH = 31
"""Letters that hold the 23 bytes."""
PREFIXES = ("call_", "chatcmpl-", "toolu_", "msg_", "resp_", "fc_", "rs_")
_VALUES = {letter: value for value, letter in enumerate(LETTERS)}
_ANYWHERE = re.compile(
    rf"(?<![A-Za-z0-9])(?:{'|'.join(PREFIXES)})[A-Za-z0-9]{{{WIDTH}}}(?![A-Za-z0-9])"
)
_PURPOSE = b"ts-minted-id"


class Kind(IntEnum):
    """What an id stands for."""

    TOOL_CALL = 0
    ANSWER = 1
    MESSAGE = 2
    """The text of an answer, where an API gives it an id of its own."""
    REASONING = 3
    """Its thinking, likewise."""


_KINDS = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Minted:
    """What an id says."""

    kind: Kind
    turn_id: str
    index: int
    """The place among the turn's things of that kind, from 0."""
    session_tag: bytes

    def of(self, session_id: str) -> bool:
        """Whether it was minted in this session; wrongly true once in 16 million."""
        return self.session_tag == _tag(session_id)


def new_turn_id() -> str:
    """16 letters and digits, never twice."""
    return _turn_id(secrets.token_bytes(TURN_BYTES))


class Minter:
    """Mints ids and knows its own; the first secret mints, all of them are recognised."""

    def __init__(self, accepted: Sequence[bytes]) -> None:
        """With the secrets that all gateways of a deployment share."""
        self._keys = [derived(secret, _PURPOSE) for secret in accepted]

    def mint(self, kind: Kind, session_id: str, turn_id: str, *, index: int, prefix: str) -> str:
        """An id for one thing of a turn.

        Raises:
            ValueError: the turn id is none of `new_turn_id`, or there are too many things.
        """
        if not 0 <= index <= INDEX_MAX or prefix not in PREFIXES:
            raise ValueError(f"turn {turn_id}: no id for {prefix} {kind.name} {index}")
        place = (kind << KIND_SHIFT) | index
        body = _turn_bytes(turn_id) + _tag(session_id) + place.to_bytes(PLACE_BYTES, "big")
        return prefix + _lettered(body + mac(self._keys[0], body, MAC_BYTES))

    def recognise(self, text: str) -> Minted | None:
        """What the id says; None if it was not minted under an accepted secret."""
        if text[:-WIDTH] not in PREFIXES:
            return None
        whole = _bytes_of(text[-WIDTH:])
        if whole is None:
            return None
        body, signed = whole[:BODY_BYTES], whole[BODY_BYTES:]
        good = [hmac.compare_digest(mac(key, body, MAC_BYTES), signed) for key in self._keys]
        return _read(body) if any(good) else None

    def find(self, text: str) -> list[Minted]:
        """The ids that stand anywhere in a text, in their order."""
        found = (self.recognise(match) for match in _ANYWHERE.findall(text))
        return [minted for minted in found if minted is not None]


def _read(body: bytes) -> Minted | None:
    place = int.from_bytes(body[-PLACE_BYTES:], "big")
    if place >> KIND_SHIFT not in _KINDS:
        return None  # of a newer gateway
    return Minted(
        Kind(place >> KIND_SHIFT),
        _turn_id(body[:TURN_BYTES]),
        place & INDEX_MAX,
        body[TURN_BYTES : TURN_BYTES + TAG_BYTES],
    )


def _tag(session_id: str) -> bytes:
    return hashlib.blake2b(session_id.encode(), digest_size=TAG_BYTES).digest()


@functools.lru_cache(maxsize=1024)
def _turn_bytes(turn_id: str) -> bytes:
    try:
        found = base64.b32decode(turn_id.upper())
    except ValueError:
        found = b""
    if len(found) != TURN_BYTES or _turn_id(found) != turn_id:
        raise ValueError(f"turn {turn_id}: not an id that can be minted into others")
    return found


def _turn_id(found: bytes) -> str:
    return base64.b32encode(found).decode().lower()


def _lettered(whole: bytes) -> str:
    number = int.from_bytes(whole, "big")
    letters = []
    for _ in range(WIDTH):
        number, value = divmod(number, len(LETTERS))
        letters.append(LETTERS[value])
    return "".join(reversed(letters))


def _bytes_of(text: str) -> bytes | None:
    """The bytes that were lettered so; None if none were."""
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            return None
        number = number * len(LETTERS) + value
    size = BODY_BYTES + MAC_BYTES
    return number.to_bytes(size, "big") if number < 1 << 8 * size else None
