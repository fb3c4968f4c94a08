"""A process ends with the harness that started it, whatever state either is in.

die_with_parent   in the process: also when the harness is killed
ended_by_sigterm  in the harness: what it would end after Ctrl-C it ends after SIGTERM too
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """End when the harness is gone, also while stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # The harness holds the other end. Not through `sys.stdin`: its lock, held here, would
        # spoil the interpreter's end.
        while os.read(0, 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Leave every block inside this one when SIGTERM comes, and exit as a shell tells of it."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once: a second would cut short what the first ends
        signal.raise_signal(signal.SIGINT)  # an event loop that runs cancels its work for this one

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            raise  # it was Ctrl-C itself
        sys.exit(128 + signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
