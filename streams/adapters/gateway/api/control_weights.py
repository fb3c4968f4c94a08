"""Weight updates on the control API: stop what is new, declare what it goes on with.

    POST  /control/pause    {run_id}                                       new calls wait
    POST  /control/resume   {run_id, version, run_epoch, cache_flushed}    they go on
    GET   /control/weights  ?run_id=                                       what is declared

Without `run_id` they speak of the sessions that name none. Each reply says how the run stands and
how many of its calls are under way at this gateway, those that wait included. `version` is
the declared one; before any, the one that engines start with as it is set, else 0.

    paused a second time                   the same as once: `already`
    resumed with the same words again      likewise
    resumed without a pause                declares the version
    resumed with a lower version or epoch  409; nothing is written, and a pause goes on

Invariant: a reply means that the log has it and that this gateway acts on it; what is decided is
decided by all that the log had when it was asked.
"""

from typing import Any

from aiohttp import web

from schemas.control import DEFAULT_RUN, Paused, Resumed
from streams.adapters.gateway.api.app import Api
from streams.adapters.gateway.api.control import Control, Refused, Told, event_of
from streams.adapters.gateway.sampling.weights import Weights


class WeightControl:
    """The routes for whoever trains."""

    def __init__(self, weights: Weights, api: Api, control: Control) -> None:
        """Nothing is served yet; `control` has the key and reads the bodies."""
        self._control = control
        self._weights = weights
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All of them, behind the control key."""
        guarded = self._control.guarded
        return [
            web.post("/control/pause", guarded(self._pause)),
            web.post("/control/resume", guarded(self._resume)),
            web.get("/control/weights", guarded(self._state)),
        ]

    async def _pause(self, request: web.Request) -> Told:
        asked = {"run_id": DEFAULT_RUN, **await self._control.fields_of(request, Paused)}
        record = event_of(Paused, "paused", asked)
        await self._weights.up_to_date()
        already = self._weights.of(record.run_id).paused
        if not already:
            await self._weights.tell(record)
        return self._told(record.run_id, already=already)

    async def _resume(self, request: web.Request) -> Told:
        asked = {"run_id": DEFAULT_RUN, **await self._control.fields_of(request, Resumed)}
        record = event_of(Resumed, "resumed", asked)
        if record.version < 0:
            raise Refused(400, f"`version` {record.version}: give one from 0; -1 means unknown")
        await self._weights.up_to_date()
        before = self._weights.of(record.run_id)
        already = before.says_already(record)
        if not already:
            self._check(before.refuses(record))
            await self._weights.tell(record)
            # Another gateway may have written in between; who comes first in the log counts.
            self._check(self._weights.of(record.run_id).refuses(record))
        return self._told(record.run_id, already=already)

    async def _state(self, request: web.Request) -> Told:
        await self._weights.up_to_date()
        return self._told(request.query.get("run_id", DEFAULT_RUN))

    def _check(self, refusal: str | None) -> None:
        if refusal is not None:
            raise Refused(409, refusal)

    def _told(self, run_id: str, *, already: bool = False) -> Told:
        run = self._weights.of(run_id)
        told: dict[str, Any] = {
            "run_id": run_id,
            "paused": run.paused,
            "version": run.version or 0,
            "run_epoch": run.run_epoch,
            "cache_flushed": run.cache_flushed,
            "in_flight": self._api.in_flight_of(run_id),
        }
        return told | ({"already": True} if already else {})
