"""The extra data of a turn on its way into the log: in the event, in a blob, or left out.

Invariant: whatever is wrong with a channel costs the channel, and is counted; the turn is recorded.
"""

import msgspec

from schemas import codec
from schemas.events import Channel, Turn
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.sampling.experts import NAME
from streams.adapters.gateway.sampling.sampled import Sampled
from streams.errors import LogError
from streams.log.blobs import blobs_from
from streams.settings import Settings

_KEY_BYTES = 1024
"""More than a session's id has."""


class Channels:
    """Where a gateway's channels go."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Nothing is written yet."""
        self._bytes_max = settings.message_bytes_max
        self._blobs = blobs_from(settings) if settings.gateway_routed_experts else None
        self._metrics = metrics

    async def of(self, sampled: Sampled) -> dict[str, Channel] | None:
        """What a turn sampled beside its ids; large channels are blobs when this returns."""
        experts, tokens = sampled.experts, len(sampled.ids)
        if experts is None or not tokens:
            return None
        channel = experts.channel(tokens)
        if channel is None:
            self._metrics.count(f"channels_lost:{experts.lost or 'untold'}")
            return None
        try:
            put = channel if self._blobs is None else await self._blobs.put(channel)
        except LogError as error:
            self._metrics.count("channels_lost:blob")
            self._metrics.say("blob", None, None, str(error))
            return None
        return {NAME: put}

    def fitting(self, event: Turn) -> Turn:
        """The event, without its channels if it is too large with them."""
        if event.channels is None or len(codec.to_msgpack(event)) + _KEY_BYTES <= self._bytes_max:
            return event
        self._metrics.count("channels_lost:large")
        return msgspec.structs.replace(event, channels=None)
