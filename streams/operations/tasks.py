"""What every task and thread of this process waits for, as text for a person.

A chain is the calls from a task's first coroutine down to what it waits for: a future, a lock, or
another task, whose own chain stands in the same text. Tasks that wait in the same place stand
together.

Invariant: only names from the code and places in it are written, never a value: what a task holds
may be somebody's conversation.
"""

import asyncio
import gc
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_CHAIN_MAX = 100
_NAMES_SHOWN = 5
_PLAIN_NAME = re.compile(r"[\w.:-]{1,80}( \(\w{1,80}\))?")
"""With the function in brackets, as Python names threads."""
_NEXT = ("cr_await", "ag_await", "gi_yieldfrom")
_FRAME = ("cr_frame", "ag_frame", "gi_frame")


def tasks_as_text(loop: asyncio.AbstractEventLoop | None) -> str:
    """Every unfinished task of that loop and of the loops of other threads; then the threads."""
    frames = sys._current_frames()
    loops = dict.fromkeys([*([loop] if loop is not None else ()), *_loops_in(frames.values())])
    tasks = [task for one in loops for task in asyncio.all_tasks(one)]
    alike: dict[str, list[str]] = {}
    for task in sorted(tasks, key=_name):
        alike.setdefault("\n".join(f"  {line}" for line in chain(task)), []).append(_name(task))
    # A rare chain is more telling than the one in which a hundred calls wait.
    groups = [f"{_titled(names)}\n{text}" for text, names in sorted(alike.items(), key=_rareness)]
    names = {thread.ident: _told(thread.name) for thread in threading.enumerate()}
    threads = [
        f"thread {names.get(ident, '?')}\n" + "\n".join(f"  {line}" for line in _stack(frame))
        for ident, frame in frames.items()
    ]
    return "\n\n".join([f"{len(tasks)} tasks, {len(threads)} threads", *groups, *threads]) + "\n"


def chain(task: "asyncio.Task[Any]") -> list[str]:
    """Where the task stands, call by call, and what it waits for at the end."""
    lines: list[str] = []
    step: Any = task.get_coro()
    while step is not None and len(lines) < _CHAIN_MAX:
        frame = _first(step, _FRAME)
        if frame is not None:
            lines.append(_place(frame))
            step = _first(step, _NEXT)
        else:
            # What stands between an object's `__await__`, or an `async for`, and its coroutine
            # has no attribute that leads on; the collector knows what it holds.
            step = next((held for held in gc.get_referents(step) if _first(held, _FRAME)), None)
    waited = getattr(task, "_fut_waiter", None)
    return [*lines, *(f"waits for {kind}" for kind in _waited_for(waited))]


def _first(step: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(step, name, None)) is not None), None)


def _waited_for(waited: Any) -> list[str]:
    if waited is None:
        return ["its turn"]
    parts = getattr(waited, "_children", None) or [waited]  # of `asyncio.gather`
    unfinished = [part for part in parts if not part.done()] or [waited]
    return [
        f"task {_name(part)}" if isinstance(part, asyncio.Task) else type(part).__name__
        for part in unfinished[:_NAMES_SHOWN]
    ]


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"


def _stack(frame: FrameType | None) -> list[str]:
    places: list[str] = []
    while frame is not None and len(places) < _CHAIN_MAX:
        places.append(_place(frame))
        frame = frame.f_back
    return places[::-1]


def _loops_in(frames: Any) -> Iterator[asyncio.AbstractEventLoop]:
    """Loops that run in other threads: known only by who runs them."""
    for innermost in frames:
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == "run_forever":
                runs = frame.f_locals.get("self")
                if isinstance(runs, asyncio.AbstractEventLoop):
                    yield runs
            frame = frame.f_back


def _name(task: "asyncio.Task[Any]") -> str:
    return _told(task.get_name())


def _told(name: str) -> str:
    """A name; some libraries take what they print of a coroutine for one."""
    return name if _PLAIN_NAME.fullmatch(name) else "unnamed"


def _titled(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    if len(names) == 1:
        return f"task {shown}"
    return f"{len(names)} tasks: {shown}{', ...' if len(names) > _NAMES_SHOWN else ''}"


def _rareness(group: tuple[str, list[str]]) -> tuple[int, str]:
    return len(group[1]), group[0]
