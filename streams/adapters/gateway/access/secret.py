"""The secrets that everything minted here is signed with, and where they come from.

    file or variable   one secret a line: the first mints, all of them are accepted
    to rotate          put a new first line, wait until the old keys have expired, drop the last

Gateways that share their secrets recognise each other's keys and ids, so a session may go on at
any of them. Each use has a key of its own derived from the secret: what was signed for one use
is nothing in another.

Invariant: a file made here is whole from the moment it has its name, and only its owner reads it.
"""

import hashlib
import os
import secrets
from pathlib import Path

from streams.errors import BadSetting

SECRET_BYTES = 32
LENGTH_MIN = 16
"""Characters of a secret that somebody chose; less can be guessed."""

Secrets = tuple[bytes, ...]
"""Never empty."""


def secrets_of(text: str, name: str) -> Secrets:
    """The secrets in a text, a line each; `name` says where it is from.

    Raises:
        BadSetting: there is none, or one that can be guessed.
    """
    lines = [line.strip() for line in text.splitlines()]
    found = tuple(line.encode() for line in lines if line and not line.startswith("#"))
    if not found:
        raise BadSetting(f"{name}: holds no secret; give one a line, the first mints")
    if any(len(secret) < LENGTH_MIN for secret in found):
        raise BadSetting(f"{name}: a secret is too short; give at least {LENGTH_MIN} characters")
    return found


def secrets_from(path: Path) -> Secrets:
    """The secrets in a file; a new one is made if there is no such file.

    Raises:
        BadSetting: it cannot be read or made, or holds nothing usable.
    """
    try:
        if not path.exists():
            _make(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise BadSetting(f"{path}: the secret cannot be read or made: {error}") from error
    return secrets_of(text, str(path))


def derived(secret: bytes, purpose: bytes) -> bytes:
    """The key for one use; a purpose has at most 16 bytes."""
    return hashlib.blake2b(secret, digest_size=32, person=purpose).digest()


def mac(key: bytes, body: bytes, size: int) -> bytes:
    return hashlib.blake2b(body, digest_size=size, key=key).digest()


def _make(path: Path) -> None:
    """Under another name first: two that start at once end up with one secret, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_urlsafe(SECRET_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(draft)
    except FileExistsError:
        pass  # another was first; its secret counts
    finally:
        draft.unlink()
