"""What a trainer calls around a weight update: no call begins before the new weights are there.

    gateway.pause(run)                 before the engine is touched
    ...                                stop the engine, load the weights into it
    gateway.resume(version, run)       declared; then let the engine go on

Invariant: a call that returns is durable and counts at every gateway that reads the log.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from streams.adapters.client_steps import Ask, Steps, steps_of


class ControlCalls(ABC):
    """How a gateway's control API is called."""

    patience_s: float

    @abstractmethod
    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, session_key: str | None = None
    ) -> Ask:
        """A call of the control API, to be sent."""

    @abstractmethod
    def run(self, steps: Steps) -> dict[str, Any]:
        """Take the steps; the answer at their end."""

    @abstractmethod
    async def run_async(self, steps: Steps) -> dict[str, Any]:
        """Take the steps without holding up the event loop."""


class WeightCalls(ControlCalls):
    """The part of it that is for trainers."""

    def pause(self, run_id: str | None = None) -> dict[str, Any]:
        """Let no call of a run begin until `resume`; those under way go on until the engine stops.

        Args:
            run_id: The run; unset: the sessions that name none.

        Returns:
            How the run stands, and how many of its calls this gateway has under way.

        Raises:
            ControlRefused: the gateway does not take it.
            GatewayAway: no answer in time.
        """
        return self.run(self._pausing(run_id))

    def resume(
        self,
        version: int,
        run_id: str | None = None,
        *,
        run_epoch: int = 0,
        cache_flushed: bool = False,
    ) -> dict[str, Any]:
        """Let a run's calls go on with these weights; without a pause it declares them.

        Args:
            version: Of the weights that the engine has now; never lower than before.
            run_id: The run; unset: the sessions that name none.
            run_epoch: Raised when the run goes on from an older checkpoint.
            cache_flushed: Whether the engine forgot what the weights before had computed.

        Raises:
            ControlRefused: version or epoch are lower than what was declared (409).
            GatewayAway: no answer in time.
        """
        return self.run(self._resuming(version, run_id, run_epoch, cache_flushed))

    async def pause_async(self, run_id: str | None = None) -> dict[str, Any]:
        """As `pause`, without holding up the event loop."""
        return await self.run_async(self._pausing(run_id))

    async def resume_async(
        self,
        version: int,
        run_id: str | None = None,
        *,
        run_epoch: int = 0,
        cache_flushed: bool = False,
    ) -> dict[str, Any]:
        """As `resume`, without holding up the event loop."""
        return await self.run_async(self._resuming(version, run_id, run_epoch, cache_flushed))

    def _pausing(self, run_id: str | None) -> Steps:
        body = {} if run_id is None else {"run_id": run_id}
        return steps_of(self.ask("/control/pause", body), self.patience_s)

    def _resuming(
        self, version: int, run_id: str | None, run_epoch: int, cache_flushed: bool
    ) -> Steps:
        body: dict[str, Any] = {} if run_id is None else {"run_id": run_id}
        body |= {"version": version, "run_epoch": run_epoch, "cache_flushed": cache_flushed}
        return steps_of(self.ask("/control/resume", body), self.patience_s)
