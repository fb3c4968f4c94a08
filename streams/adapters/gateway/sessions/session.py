"""One session, as far as this gateway knows it.

    opened ──► calls under way, turns recorded ──► sealed ──► ended
                                                   no new calls; turns under way end first

Invariant: `seq` is the number of the last turn handed to the log from here, also after the session
was let go and read back.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from schemas.events import Sampling, SessionOpened, TurnUndelivered
from streams.adapters.dialects.calls import CallRefused
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.sessions.classing import Work
from streams.log.interface import Position


class UnderWay(Protocol):
    """A turn that runs."""

    @property
    def task(self) -> "asyncio.Task[None]":
        """Done when everything of it is recorded."""
        ...

    @property
    def gone(self) -> bool:
        """Whether its client has hung up."""
        ...

    def stop(self, why: CallRefused) -> None:
        """Sample no further; what there is is recorded as not delivered."""
        ...


@dataclass(slots=True, eq=False)
class Session:
    """What is recorded, what is under way, what is still to be said."""

    session_id: str
    history: History
    opened: SessionOpened | None = None
    opened_at: Position | None = None
    opened_ms: int = 0
    """When the log took its opening."""
    sealed: bool = False
    """An end is under way, or may be in the log already."""
    ended: str | None = None
    """How, once the log has it."""
    ended_words: bytes | None = None
    """A digest of what was said at the end; None if it expired."""
    ended_at: int | None = None
    """Where the end stands, if it was read there."""
    sources: dict[str, int] = field(default_factory=dict)
    """The highest `seq` known of each source."""
    prev: int | None = None
    """Where the session's newest acknowledged turn stands."""
    newest: tuple[int, int] = (-1, 0)
    """Where its newest known event stands, and when the log took it."""
    read: int = -1
    """Where the newest event stands that was read there; those published since are not counted."""
    news: bool = False
    """Somebody else wrote something of it that is not read yet."""
    doubted: bool = False
    """It may have expired before what was published last."""
    unrecorded: int = 0
    """Calls that were answered without a turn, because the context was full."""
    place: tuple[int, int] | None = None
    """Partition, and how far its events were read."""
    running: dict[str, UnderWay] = field(default_factory=dict)
    work: Work = field(default_factory=Work)
    tools_sent: set[str] = field(default_factory=set)
    """Digests of tool lists that stand in the log."""
    undelivered: set[str] = field(default_factory=set)
    """Turns that are said, or are to be said, not to have reached the client."""
    unsaid: dict[str, TurnUndelivered] = field(default_factory=dict)
    """What the log has still to be told, by turn."""

    @property
    def pins(self) -> Sampling | None:
        """How its turns have to be sampled."""
        return self.opened.sampling if self.opened else None

    @property
    def run_id(self) -> str | None:
        """The run it belongs to, if it says."""
        return self.opened.run_id if self.opened else None

    @property
    def trains(self) -> bool:
        """Whether its sampling is pinned."""
        return self.opened is None or self.opened.split != "eval"

    @property
    def calls(self) -> int:
        """Answered, recorded or under way; a call that was refused does not count."""
        known = sum(turn_id not in self.history.turns for turn_id in self.running)
        return len(self.history.turns) - self.history.parts + known + self.unrecorded

    @property
    def may_go(self) -> bool:
        """Whether the log has everything of it."""
        return not self.running and not self.unsaid and not self.sealed

    def budget(self, name: str) -> int | None:
        """What the session may use of something, if it says."""
        budgets = self.opened.budgets if self.opened else None
        return (budgets or {}).get(name)

    def number(self, source: str | None, seq: int | None) -> None:
        """A numbered event of the session."""
        if source is not None and seq is not None:
            self.sources[source] = max(seq, self.sources.get(source, 0))

    def stands(self, offset: int) -> None:
        """The log has a turn there; acknowledgements may come in another order."""
        self.prev = offset if self.prev is None else max(offset, self.prev)

    def met(self, offset: int, taken_ms: int) -> None:
        """An event of the session, and when the log took it."""
        self.newest = max(offset, self.newest[0]), max(taken_ms, self.newest[1])

    async def quiet(self, seconds: float) -> bool:
        """Wait until no turn is under way."""
        tasks = {turn.task for turn in self.running.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return not self.running
