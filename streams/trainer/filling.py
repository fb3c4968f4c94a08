"""Per-token data that lies beside the log, put into a batch's samples before it is handed out.

Invariant: what cannot be had costs the channel, never the sample, and is counted.
"""

import dataclasses

from schemas.samples import Sample
from streams.core.rollouts import Group, Rollout
from streams.log.blobs import Blobs, MissingBlob, with_rows
from streams.settings import Settings
from streams.trainer.batches import Batch

_NOWHERE = MissingBlob("", "unreachable", "TURNSTREAM_BLOB_URL is not set")


def has_blobs(batch: Batch) -> bool:
    """Whether some of it lies beside the log."""
    return any(sample.channel_blobs for sample in batch.samples)


class Filler:
    """Reads them, if it is told where they are."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is read yet."""
        self._blobs = Blobs(settings) if settings.blob_url else None

    async def filled(self, batch: Batch) -> tuple[Batch, int]:
        """The batch with the rows of its blobs in place, and how many channels it lost."""
        groups = [await self._group(group) for group in batch.groups]
        whole = dataclasses.replace(batch, groups=tuple(groups))
        before, after = (sum(s.channels_missing for s in one.samples) for one in (batch, whole))
        return whole, after - before

    async def _group(self, group: Group) -> Group:
        rollouts = [await self._rollout(rollout) for rollout in group.rollouts]
        return dataclasses.replace(group, rollouts=tuple(rollouts))

    async def _rollout(self, rollout: Rollout) -> Rollout:
        samples = [await self._sample(sample) for sample in rollout.samples]
        return dataclasses.replace(rollout, samples=tuple(samples))

    async def _sample(self, sample: Sample) -> Sample:
        if self._blobs is not None:
            return await self._blobs.whole(sample)
        return with_rows(sample, [(part, _NOWHERE) for part in sample.channel_blobs or ()])
