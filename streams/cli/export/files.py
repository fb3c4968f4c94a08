"""Where an export goes: stdout, or a file that is there whole or not at all.

Invariant: a file of that name holds a complete export, this one or the one before. It is never
the log.
"""

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import click

from schemas import codec
from schemas.samples import Sample, SessionClosed
from streams.settings import KAFKA, Settings


class Writer(Protocol):
    """Takes sessions; what it was given is written when it is closed."""

    def write(self, outcome: SessionClosed, samples: list[Sample]) -> None:
        """One session."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


class JsonLines:
    """One record a line."""

    def __init__(self, stream: BinaryIO, *, sessions: bool) -> None:
        """Outcomes, or else samples."""
        self._stream = stream
        self._sessions = sessions

    def write(self, outcome: SessionClosed, samples: list[Sample]) -> None:
        """One session."""
        for record in [outcome] if self._sessions else samples:
            self._stream.write(codec.to_json(record) + b"\n")

    def close(self) -> None:
        """Nothing is held back."""


def keep_off_the_log(path: Path | None, settings: Settings) -> None:
    """Refuse to write over the log, or over what SQLite keeps beside it."""
    if path is None or settings.log == KAFKA:
        return
    for name in (settings.log, f"{settings.log}-wal", f"{settings.log}-shm"):
        with contextlib.suppress(OSError):  # one of them is not there
            if path.samefile(name):
                raise click.UsageError(f"--to {path} is the log itself; name another file")
        if path.resolve() == Path(name).resolve():
            raise click.UsageError(f"--to {path} is the log itself; name another file")


@contextlib.contextmanager
def destination(path: Path | None) -> Iterator[BinaryIO]:
    """A stream into the file, or to stdout; the file appears when all went well."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise click.UsageError(f"--to {path}: no regular file; leave it out to write to stdout")
    part = path.with_name(f".{path.name[:200]}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it has its name by now, or never came to be
            part.unlink()
