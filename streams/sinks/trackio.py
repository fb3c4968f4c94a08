"""Sessions as traces of trackio, for its page: few, fairly chosen, and never in anybody's way.

    trace ──► Choosing ──► a step's branches ──► queue, bounded ──► thread ──► trackio's folder
                                                     └► full: dropped and counted

trackio reports a failure by a warning, takes a whole batch back for one value it cannot write, and
knows no second time of the same trace. So everything is made plain before, each step is one run of
trackio that is finished at once, and what its database then has is looked up: at a start, not to
show anything twice, and after each step, to count what is missing.

Invariant: whatever trackio does, traces are read on, and stopping takes bounded time.
"""

import contextlib
import contextvars
import importlib
import importlib.util
import io
import os
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from schemas.traces import Trace
from streams.errors import BadSetting
from streams.log.interface import Position
from streams.sinks.choosing import Branch, Choosing, Shown, Step
from streams.sinks.interface import Passed
from streams.sinks.metadata import metadata_of, was_rejected

PACKAGE = "trackio"
NO_RUN = "turnstream"
"""The name of the run for sessions that name none."""
STEPS_QUEUED_MAX = 32
_STOP_S = 45.0
"""For what is queued when told to stop; trackio itself gives up after 30 s."""
_LOOK_S = 10.0
"""For its database, which the page may be reading."""
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID")
"""What would send traces off this machine."""

Batch = tuple[Step, list[Branch]]


def require_trackio() -> None:
    """Without importing it.

    Raises:
        BadSetting: it is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise BadSetting(
            "trackio is not installed: `pip install 'turnstream[trackio]'`, or leave the sink out"
        )


class TrackioSink:
    """The sink of best effort."""

    def __init__(
        self,
        project: str,
        folder: Path | None,
        most: int,
        hold_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Nothing is imported yet; without a folder trackio's own is taken."""
        self.counts: Counter[str] = Counter()
        self._project = project
        self._folder = folder
        self._most = most
        self._hold_s = hold_s
        self._say = say
        self._choosing = Choosing(0, hold_s)
        self._queue: queue.Queue[Batch | None] = queue.Queue(STEPS_QUEUED_MAX)
        self._thread: threading.Thread | None = None
        self._trackio: Any = None

    @property
    def held(self) -> int:
        """Sessions among which is still to be chosen."""
        return self._choosing.held

    def opened(self, topic: str) -> None:
        """Load trackio, and learn what it shows already; where to read on the group knows."""
        require_trackio()
        if self._folder is not None:
            os.environ["TRACKIO_DIR"] = str(self._folder)
        for name in _ELSEWHERE:
            os.environ.pop(name, None)
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._trackio = importlib.import_module(PACKAGE)
        except (ImportError, OSError) as error:
            raise BadSetting(f"trackio cannot be used: {error}") from error
        self._choosing = Choosing(self._most, self._hold_s, self._stored())
        self._choosing.counts = self.counts
        self._thread = threading.Thread(target=self._work, name="turnstream-trackio", daemon=True)
        self._thread.start()

    def take(self, trace: Trace, position: Position) -> None:
        """A candidate, unless it was rejected or none are wanted."""
        if self._most <= 0:
            self.counts["not_wanted"] += 1
        elif was_rejected(trace):
            self.counts["rejected"] += 1
        else:
            self._choosing.offer(trace, position, time.monotonic())

    def passed(self, position: Position, why: Passed, count: int = 1) -> None:
        """Nothing to show."""

    def due(self) -> bool:
        """Cheap to ask for, so always."""
        return True

    def settle(self, *, everything: bool = False) -> None:
        """Hand over what is chosen; at the end, wait for it."""
        for batch in self._choosing.ripe(time.monotonic(), everything=everything):
            try:
                self._queue.put_nowait(batch)
            except queue.Full:
                self._count("dropped", batch)
        if everything and self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=_STOP_S)
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                self._say("trackio does not finish; what it has not written is lost")

    def settled(self, read: Mapping[int, int]) -> dict[int, int]:
        """All but what is still held."""
        first = self._choosing.first_held()
        return {at: min(offset, first.get(at, offset)) for at, offset in read.items()}

    def close(self) -> None:
        """Nothing to let go of: a thread that hangs ends with the process."""

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._write(*batch)
            except Exception as error:  # whatever it is, the next step may do better
                self._count("failed", batch)
                self._say(f"trackio failed: {type(error).__name__}: {error}")

    def _count(self, what: str, batch: Batch) -> None:
        """Once a kind it is said; all of them are counted."""
        if not self.counts[what]:
            self._say(f"traces {what}: a step of {len(batch[1])}; more of them are only counted")
        self.counts[what] += len(batch[1])

    def _write(self, step: Step, branches: list[Branch]) -> None:
        traces = [made for branch in branches if (made := self._made(branch)) is not None]
        if not traces:
            return  # trackio would store an empty list as a metric
        with contextlib.redirect_stdout(io.StringIO()):  # each time it says how to open its page
            # In a context of its own: trackio would end the run that it finds in ours.
            run = contextvars.Context().run(self._init, step.run_id or NO_RUN)
            run.log({f"{step.split}/traces": traces}, step=step.step)
            run.finish()
        stored = self._stored()
        lost = sum(branch.shown not in stored for branch in branches)
        self.counts["written"] += len(branches) - lost
        if lost:
            self._count("lost", (step, branches[:lost]))

    def _init(self, name: str) -> Any:
        return self._trackio.init(
            project=self._project,
            name=name,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _made(self, branch: Branch) -> Any:
        """As trackio takes it; one that cannot be written costs itself only."""
        try:
            messages, metadata = branch.conversation.messages, metadata_of(branch)
            orjson.dumps([messages, metadata])
            return self._trackio.Trace(messages=messages, metadata=metadata)
        except (TypeError, ValueError) as error:
            self.counts["unwritable"] += 1
            self._say(f"session {branch.shown.session_id}: trackio cannot hold it: {error}")
            return None

    def _stored(self) -> dict[Shown, Step]:
        """What the project's database shows; nothing if there is none."""
        storage = importlib.import_module(f"{PACKAGE}.sqlite_storage").SQLiteStorage
        path = Path(storage.get_project_db_path(self._project))
        if not path.exists():
            return {}
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=_LOOK_S)) as database:
                rows = database.execute("SELECT metadata FROM traces").fetchall()
        except sqlite3.Error as error:
            self._say(f"{path} cannot be read, so a session may be shown twice: {error}")
            return {}
        return dict(_shown(text for (text,) in rows))


class _Stored(msgspec.Struct):
    session_id: str
    branch: int
    split: str
    run_id: str | None = None
    step: int | None = None


def _shown(texts: Iterable[str]) -> Iterable[tuple[Shown, Step]]:
    for text in texts:
        with contextlib.suppress(msgspec.MsgspecError):  # somebody else's trace
            found = msgspec.json.decode(text, type=_Stored)
            name = Shown(found.session_id, found.branch)
            yield name, Step(found.run_id, found.step, found.split)
