"""Who may do what: a session key opens one session, the control key opens the control API.

    ts-<signed: session, expiry, place of `session_opened` in the log>
    tc-<the control key, derived from the secret unless it was given>

A session key is a capability: it needs no table, says where its session begins in the log, and
opens nothing else. It is safe in a header and as a part of a path.

Invariant: whatever is wrong with a key, the outside hears the same sentence; comparisons take
the same time whatever they find; neither kind of key passes for the other.
"""

import base64
import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from streams.adapters.gateway.access.secret import LENGTH_MIN, derived, mac
from streams.errors import BadSetting, TurnstreamError
from streams.log.interface import Position

SESSION_PREFIX = "ts-"
CONTROL_PREFIX = "tc-"
VERSION = 1
HEAD = struct.Struct(">BQiq")
"""Version, expiry, partition and offset; partition -1: the place is not known."""
MAC_BYTES = 16
KEY_LENGTH_MAX = 400
SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_PURPOSE = b"ts-session-key"
_CONTROL_PURPOSE = b"ts-control-key"


class BadKey(TurnstreamError):
    """A key that opens nothing. Its text may go outside, its reason only into a log."""

    def __init__(self, reason: str) -> None:
        """The reason never names another session."""
        super().__init__(
            "unknown or expired key: open a session with the control API for a new one"
        )
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """What a session key says."""

    session_id: str
    expires_ms: int
    partition: int | None
    """Of `session_opened` in the log; None if it was not known yet. So is the offset."""
    offset: int | None

    def place(self, topic: str) -> Position | None:
        """Where the session begins."""
        if self.partition is None or self.offset is None:
            return None
        return Position(topic, self.partition, self.offset)


class KeyRing:
    """Mints and reads keys; the first secret mints, all of them are accepted."""

    def __init__(self, accepted: Sequence[bytes], control_key: str | None = None) -> None:
        """With the shared secrets, and a control key if the operator chose one.

        Raises:
            BadSetting: the control key can be guessed or taken for a session key.
        """
        self._keys = [derived(secret, _PURPOSE) for secret in accepted]
        if control_key is None:
            self._control = [_control_key(secret) for secret in accepted]
        else:
            self._control = [_checked(control_key)]

    @property
    def control_key(self) -> str:
        """The one to hand out."""
        return self._control[0]

    def is_control(self, text: str) -> bool:
        """Whether it is the control key, or was before a rotation that is under way."""
        asked = _digest(text)
        good = [hmac.compare_digest(asked, _digest(key)) for key in self._control]
        return any(good)

    def mint(self, session_id: str, expires_ms: int, place: Position | None = None) -> str:
        """A key for one session.

        Raises:
            ValueError: no such session id is possible.
        """
        if not SESSION_ID.fullmatch(session_id):
            raise ValueError(f"session {session_id!r}: not a session id")
        partition, offset = (place.partition, place.offset) if place else (-1, -1)
        body = HEAD.pack(VERSION, expires_ms, partition, offset) + session_id.encode()
        signed = body + mac(self._keys[0], body, MAC_BYTES)
        return SESSION_PREFIX + base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def read(self, key: str, now_ms: int) -> SessionKey:
        """What the key says.

        Raises:
            BadKey: it was not minted under an accepted secret, was changed, or has expired.
        """
        whole = _bytes_of(key)
        body, signed = whole[:-MAC_BYTES], whole[-MAC_BYTES:]
        good = [hmac.compare_digest(mac(held, body, MAC_BYTES), signed) for held in self._keys]
        if not any(good):
            raise BadKey("the signature is not ours")
        version, expires_ms, partition, offset = HEAD.unpack_from(body)
        if version != VERSION:
            raise BadKey(f"version {version} is not known")
        session_id = body[HEAD.size :].decode()
        if now_ms >= expires_ms:
            raise BadKey(f"session {session_id}: expired at {expires_ms} ms, it is {now_ms} ms")
        known = partition >= 0
        return SessionKey(
            session_id=session_id,
            expires_ms=expires_ms,
            partition=partition if known else None,
            offset=offset if known else None,
        )


def _bytes_of(key: str) -> bytes:
    """Body and signature; the one spelling of them that is minted, and no other."""
    if not key.startswith(SESSION_PREFIX):
        raise BadKey("not in the form of a session key")
    if len(key) > KEY_LENGTH_MAX:
        raise BadKey("too long")
    text = key.removeprefix(SESSION_PREFIX)
    try:
        whole = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise BadKey("not base64") from None
    if base64.urlsafe_b64encode(whole).decode().rstrip("=") != text:
        raise BadKey("not the spelling that is minted")
    if len(whole) <= HEAD.size + MAC_BYTES:
        raise BadKey("too short")
    return whole


def _control_key(secret: bytes) -> str:
    text = base64.urlsafe_b64encode(derived(secret, _CONTROL_PURPOSE)).decode().rstrip("=")
    return f"{CONTROL_PREFIX}{text}"


def _checked(control_key: str) -> str:
    if len(control_key) < LENGTH_MIN:
        raise BadSetting(f"the control key is too short: give at least {LENGTH_MIN} characters")
    if control_key.startswith(SESSION_PREFIX):
        raise BadSetting(
            f"the control key starts like a session key, {SESSION_PREFIX}: choose another"
        )
    return control_key


def _digest(text: str) -> bytes:
    """Of equal length for any text, so that a comparison does not tell how long the key is.

    Headers come with bytes that are no UTF-8 as lone surrogates.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
