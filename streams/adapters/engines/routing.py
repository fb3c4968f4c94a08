"""Which of several replicas a session is sent to.

    key ──► every address gets a number from (key, address); the highest is home, then the next

A session's home is the same for every gateway, without a table. A replica that goes away moves
only its own sessions, and gets them back.

Invariant: while no replica is away, the order is a function of key and addresses alone; a password
in an address is no part of it, and is never shown.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

from streams.errors import BadSetting

AWAY_S = 5.0
"""How long a replica that did not answer is asked last: a connection that hangs costs seconds."""


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses in a text with commas between them.

    Raises:
        BadSetting: there are none, or one is no address.
    """
    found = tuple(part.strip().rstrip("/") for part in text.split(","))
    for address in found:
        if not _is_address(address):
            what = f"{shown(address)!r}: no address"
            raise BadSetting(f"{what}; give http://HOST:PORT, several with commas")
    if len({without_password(address)[0] for address in found}) != len(found):
        raise BadSetting(f"{shown(text)}: an address stands there twice")
    return found


def shown(text: str) -> str:
    """An address, or what was meant to be one, without user and password."""
    before, secret, host = text.rpartition("@")
    if not secret:
        return text
    scheme, slashes, _ = before.partition("//")
    return f"{scheme}{slashes}{host}" if slashes else host


def without_password(address: str) -> tuple[str, tuple[str, str] | None]:
    """An address, and the user and password that stood in it."""
    parts = urlsplit(address)
    if parts.username is None and parts.password is None:
        return address, None
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return bare, (unquote(parts.username or ""), unquote(parts.password or ""))


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        known = parts.scheme in {"http", "https"} and (parts.port is None or parts.port > 0)
    except ValueError:  # of brackets, or of a port that is no number
        return False
    return known and bool(parts.hostname) and not (parts.query or parts.fragment)


class Replicas:
    """The addresses of one engine."""

    def __init__(
        self, addresses: Sequence[str], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """All are taken to be there."""
        self.addresses = tuple(addresses)
        self._clock_s = clock_s
        self._away_until_s: dict[str, float] = {}

    def order(self, key: str) -> list[str]:
        """Home first; those that are away last."""
        now_s = self._clock_s()
        return sorted(
            self.addresses,
            key=lambda address: (
                self._away_until_s.get(address, now_s) > now_s,
                -_weight(key, address),
            ),
        )

    def failed(self, address: str) -> None:
        """It could not be reached."""
        self._away_until_s[address] = self._clock_s() + AWAY_S

    def answered(self, address: str) -> None:
        """It is there."""
        self._away_until_s.pop(address, None)


def _weight(key: str, address: str) -> int:
    digest = blake2b(f"{len(key)}:{key}{address}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
