"""`turnstream processor`, able to say how much memory it holds.

    python -m tests.soak.watched_worker        settings from TURNSTREAM_*
    kill -ASK pid                              writes SOAK_FOLDER/held.json

What a process has from the system says little about what it holds: allocators keep what was
freed for the next time. So both of them are asked: Python's own, for objects up to 512 bytes,
and the C library's, for everything else.

Invariant: nothing is collected, trimmed or set otherwise than in a worker that nobody watches.
"""

import ctypes
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from streams.cli.main import main
from tests.chaos.leash import die_with_parent

ASK = signal.SIGRTMIN
"""Faust has the usual ones for itself."""
_SMALL_OBJECTS = re.compile(rb"# bytes in allocated blocks *= *([\d,]+)")
_FOLDER = Path(os.environ.get("SOAK_FOLDER", "."))


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def small_objects_bytes() -> int:
    """In blocks that Python's allocator has given out."""
    # It writes to the C library's standard error and nowhere else.
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        found = _SMALL_OBJECTS.search(said.read())
    assert found is not None, "CPython no longer says what its allocator holds"
    return int(found[1].replace(b",", b""))


def large_objects_bytes() -> int:
    """In chunks and mappings that malloc has given out, in all its arenas."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo
    info = ask()
    return int(info.uordblks + info.hblkhd)


def answer(_signal: int, _frame: FrameType | None) -> None:
    """Write what is held, whole or not at all."""
    held = {"small": small_objects_bytes(), "large": large_objects_bytes()}
    new = _FOLDER / "held.new"
    new.write_text(json.dumps(held))
    new.replace(_FOLDER / "held.json")


if __name__ == "__main__":
    die_with_parent()
    signal.signal(ASK, answer)
    sys.argv[1:] = ["processor"]
    main()
