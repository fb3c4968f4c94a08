"""Per-token data beside the log is in the samples a loop is handed, or counted as lost."""

import asyncio
import dataclasses
from pathlib import Path

import msgspec

from schemas.events import Channel
from schemas.record import Octets
from schemas.samples import ChannelBlob, Sample
from streams.log.blobs import Blobs
from streams.settings import Settings
from streams.trainer import subscribe, subscribe_async
from tests.trainer.publishing import publish
from tests.trainer.records import session
from tests.trainer.scenes import RUN


def beside(settings: Settings, folder: Path) -> tuple[Settings, Path]:
    """A session whose two trained tokens have a channel in a blob."""
    settings = dataclasses.replace(settings, blob_url=str(folder), blob_threshold_bytes=0)
    rows = Channel(dtype="uint8", shape=[2], data=Octets(bytes([7, 9])))
    channel = asyncio.run(Blobs(settings).put(rows))
    sample, closed = session("s", run_id=RUN)
    assert isinstance(sample, Sample)
    part = ChannelBlob(name="experts", start=3, end=5, channel=channel)
    publish(settings, [msgspec.structs.replace(sample, channel_blobs=[part]), closed])
    return settings, folder / str(channel.blob)


def content(sample: Sample) -> bytes:
    assert sample.channels is not None
    assert sample.channel_blobs is None
    return bytes(sample.channels["experts"].data or b"")


def test_rows_that_lie_beside_the_log_stand_at_their_tokens(
    settings: Settings, tmp_path: Path
) -> None:
    settings, _ = beside(settings, tmp_path / "blobs")
    with subscribe(settings, run_id=RUN, batch_rollouts=1, until_end=True) as batches:
        (batch,) = list(batches)
    assert content(batch.samples[0]) == bytes([0, 0, 0, 7, 9])

    async def awaited() -> Sample:
        async with subscribe_async(
            settings, run_id=RUN, group="another", batch_rollouts=1, until_end=True
        ) as batches:
            (only,) = [batch async for batch in batches]
        return only.samples[0]

    assert content(asyncio.run(awaited())) == bytes([0, 0, 0, 7, 9])


def test_a_blob_that_is_gone_costs_its_channel_and_is_counted(
    settings: Settings, tmp_path: Path
) -> None:
    settings, blob = beside(settings, tmp_path / "blobs")
    nowhere = dataclasses.replace(settings, blob_url=None)
    (found,) = [path for path in blob.parent.rglob("*") if path.name == blob.name]
    found.unlink()
    for number, where in enumerate((settings, nowhere)):
        with subscribe(
            where, run_id=RUN, group=f"g{number}", batch_rollouts=1, until_end=True
        ) as batches:
            (batch,) = list(batches)
            assert batches.status.dropped == {"channel": 1}
        (sample,) = batch.samples
        assert (sample.channels, sample.channels_missing, sample.trained) == (None, 1, 2)
