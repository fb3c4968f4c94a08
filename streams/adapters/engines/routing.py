"""Which of several replicas a session is sent to.

    key ──► every address gets a number from (key, address); the highest is home, then the next

A session's home is the same for every gateway, without a table. A replica that goes away moves
only its own sessions, and gets them back.

Invariant: while no replica is away, the order is a function of key and addresses alone.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from urllib.parse import urlsplit

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
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BadSetting(f"{address!r}: no address; give http://HOST:PORT, several with commas")
    if len(set(found)) != len(found):
        raise BadSetting(f"{text}: an address stands there twice")
    return found


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
