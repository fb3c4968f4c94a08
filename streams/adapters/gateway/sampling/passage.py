"""When one call may ask the engine: its run is not paused, and there is room.

    the run goes on ──► a place ──► generation ──► stopped for new weights ──► the run goes on ──►
                                                   its place is free meanwhile

Who waits for new weights holds no place: the calls of another run would wait for it too.

Invariant: a call has a place whenever it asks the engine, and none after it has left.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from streams.adapters.gateway.sampling.engine_labels import Sighting
from streams.adapters.gateway.sampling.limits import FairGate, Place
from streams.adapters.gateway.sampling.run_weights import RunWeights
from streams.adapters.gateway.sampling.weights import Weights


class Passage:
    """One call's way to the engine."""

    def __init__(self, gate: FairGate, weights: Weights, session_id: str, run_id: str | None):
        """It waits for nothing yet, but its turn among the others counts from now on."""
        self._gate = gate
        self._weights = weights
        self._session_id = session_id
        self._run_id = run_id
        self._since_s = time.monotonic()
        self._given_up = asyncio.Event()
        self._place: Place | None = None if self.now.paused else gate.ask(session_id)

    @property
    def now(self) -> RunWeights:
        """The run's weights, as far as it is known."""
        return self._weights.of(self._run_id)

    @property
    def engine_tells(self) -> bool:
        """Whether the engine says by itself which weights it samples with."""
        return self._weights.engine_tells

    def hear_version(self) -> None:
        """The engine has said a version."""
        self._weights.engine_tells = True

    @property
    def has_versions(self) -> bool:
        """Whether the run's weights have versions at all."""
        return self._weights.has_versions(self._run_id)

    def see_label(self, label: str, at: Sighting) -> None:
        """The engine reported this label."""
        self._weights.see_label(self._run_id, label, at)

    def version_of(self, label: str | None, at: Sighting) -> int | None:
        """The declared version of tokens that came so; None: not certain."""
        return self._weights.version_of(self._run_id, label, at)

    async def caught_up(self) -> bool:
        """Know what was declared by now; False: the log does not answer."""
        return await self._weights.caught_up()

    async def passed(self) -> bool:
        """Wait while the run is paused, and have a place then; False: gave up.

        Raises:
            StillPaused: the run is paused for too long.
        """
        while not self._given_up.is_set():
            if self.now.paused:
                self.leave()
                await self._unless_given_up(self._weights.opened(self._run_id, self._since_s))
            elif self._place is None:
                self._place = self._gate.ask(self._session_id)
            elif not await self._place:
                return False
            elif not self.now.paused:
                return True
        return False

    def give_up(self) -> None:
        """Wait no longer; whoever is inside already stays."""
        self._given_up.set()
        if self._place is not None:
            self._gate.give_up(self._session_id, self._place)

    def leave(self) -> None:
        """Make room, or give up waiting."""
        if self._place is not None:
            self._gate.leave(self._session_id, self._place)
            self._place = None

    async def _unless_given_up(self, waiting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(waiting)
        given_up = asyncio.create_task(self._given_up.wait())
        try:
            await asyncio.wait({task, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            for pending in (task, given_up):
                pending.cancel()
            await asyncio.wait({task, given_up})
