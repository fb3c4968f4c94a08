"""How many model calls run at a time, and who is next: sessions take turns.

    running   a b c            at most so many
    waiting   a: 2 3   d: 1    next is d, then a again, whoever asked first within a session

Invariant: a session with many calls waiting holds nobody up for longer than one turn each; who
gives up waiting leaves no trace.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

Place = asyncio.Future[bool]
"""True: let in. False: gave up."""
_Result = TypeVar("_Result")


class FairGate:
    """Lets a limited number through, session by session in turn."""

    def __init__(self, limit: int) -> None:
        """Nobody is inside."""
        self._limit = limit
        self.running = 0
        self._waiting: OrderedDict[str, deque[Place]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many are outside."""
        return sum(len(queue) for queue in self._waiting.values())

    def ask(self, session_id: str) -> Place:
        """A place, to be awaited, and to be left in any case."""
        place: Place = asyncio.get_running_loop().create_future()
        if self.running < self._limit and not self._waiting:
            self.running += 1
            place.set_result(True)
        else:
            self._waiting.setdefault(session_id, deque()).append(place)
        return place

    def give_up(self, session_id: str, place: Place) -> None:
        """Wait no longer; whoever is inside already stays."""
        self._forget(session_id, place)
        if not place.done():
            place.set_result(False)

    def leave(self, session_id: str, place: Place) -> None:
        """Make room, or give up waiting."""
        if place.done() and not place.cancelled() and place.result():
            self.running -= 1
            self._let_in()
        else:
            self._forget(session_id, place)

    def _forget(self, session_id: str, place: Place) -> None:
        queue = self._waiting.get(session_id)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._waiting[session_id]

    def _let_in(self) -> None:
        while self.running < self._limit and self._waiting:
            session_id, queue = self._waiting.popitem(last=False)
            place = queue.popleft()
            if queue:
                self._waiting[session_id] = queue  # at the end: others are next
            if not place.done():
                self.running += 1
                place.set_result(True)


class LoopTurns:
    """One long computation in each round of the event loop, session by session in turn.

    A prompt takes the loop milliseconds. Sixty that one session asks for at a time would otherwise
    be built in one round, and streams and other sessions wait for all of them. One that takes
    longer is built beside the loop, in a thread; one at a time, because they are Python, too.
    """

    def __init__(self) -> None:
        """Nothing is computed."""
        self._gate = FairGate(1)
        self._beside = FairGate(1)

    async def next(self, session_id: str) -> None:
        """Wait for a round; it is the caller's until that awaits something else."""
        place = self._gate.ask(session_id)
        try:
            await place
        finally:
            asyncio.get_running_loop().call_soon(self._gate.leave, session_id, place)

    async def beside(self, session_id: str, work: Callable[[], _Result]) -> _Result:
        """What the work returns, which touches nothing that the event loop changes."""
        place = self._beside.ask(session_id)
        working: asyncio.Task[_Result] | None = None
        try:
            await place
            working = asyncio.create_task(asyncio.to_thread(work))
            return await asyncio.shield(working)
        finally:
            if working is None or working.done():
                self._beside.leave(session_id, place)
            else:  # a thread does not stop for a client that hangs up
                working.add_done_callback(lambda _: self._beside.leave(session_id, place))
            del working  # as in `Bodies`: what it raises leads to this frame
