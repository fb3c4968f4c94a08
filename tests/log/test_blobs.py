"""Large channels beside the log: what is read is what was written, or is reported missing."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas import codec
from schemas.events import Channel, Turn
from schemas.record import Octets
from schemas.samples import ChannelBlob, Sample
from streams.errors import BadSetting, LogError
from streams.log.blobs import Blobs, MissingBlob, blobs_from
from streams.settings import Settings

LARGE = bytes(range(256)) * 257
"""One token's worth over 64 KiB."""


def turn(data: bytes, **fields: Any) -> Turn:
    channel = Channel(dtype="uint8", shape=[1, len(data)], data=Octets(data), **fields)
    event = codec.from_json(
        b'{"type":"turn","session_id":"s","turn_id":"t","prompt_messages":[{}],'
        b'"prompt_ids":[],"output_ids":[1]}'
    )
    assert isinstance(event, Turn)
    return msgspec.structs.replace(event, channels={"big": channel})


def store(folder: Path) -> Blobs:
    return Blobs(Settings(blob_url=str(folder / "blobs")))


def put(blobs: Blobs, data: bytes) -> Channel:
    event = asyncio.run(blobs.put_aside(turn(data)))
    assert event.channels is not None
    return event.channels["big"]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_large_channel_leaves_the_event_and_is_read_back(tmp_path: Path) -> None:
    channel = put(store(tmp_path), LARGE)
    assert channel.data is None
    assert channel.length == len(LARGE)
    assert channel.digest is not None
    assert channel.blob == channel.digest.hex()
    assert asyncio.run(store(tmp_path).read(channel)) == LARGE


def test_what_is_put_aside_is_a_valid_event_of_a_few_bytes(tmp_path: Path) -> None:
    event = asyncio.run(store(tmp_path).put_aside(turn(LARGE)))
    wire = codec.to_msgpack(event)
    assert len(wire) < 1000
    assert codec.from_msgpack(wire) == event


def test_a_channel_at_the_threshold_stays_and_one_byte_more_goes(tmp_path: Path) -> None:
    assert put(store(tmp_path), bytes(65_536)).blob is None
    assert files(tmp_path) == []
    assert put(store(tmp_path), bytes(65_537)).blob is not None


def test_the_same_content_is_kept_once(tmp_path: Path) -> None:
    assert put(store(tmp_path), LARGE) == put(store(tmp_path), LARGE)
    assert len(files(tmp_path)) == 1


def test_a_blob_that_a_crash_left_half_written_is_written_anew(tmp_path: Path) -> None:
    channel = put(store(tmp_path), LARGE)
    (path,) = files(tmp_path)
    path.write_bytes(LARGE[:100])
    put(store(tmp_path), LARGE)
    assert asyncio.run(store(tmp_path).read(channel)) == LARGE


def test_a_missing_blob_is_reported_and_not_raised(tmp_path: Path) -> None:
    channel = put(store(tmp_path), LARGE)
    (path,) = files(tmp_path)
    path.unlink()
    found = asyncio.run(store(tmp_path).read(channel))
    assert isinstance(found, MissingBlob)
    assert found.why == "absent"
    assert found.name == channel.blob


@pytest.mark.parametrize("damaged", [LARGE[:-1], b"x" + LARGE[1:]], ids=["short", "changed"])
def test_a_damaged_blob_is_reported(tmp_path: Path, damaged: bytes) -> None:
    channel = put(store(tmp_path), LARGE)
    (path,) = files(tmp_path)
    path.write_bytes(damaged)
    found = asyncio.run(store(tmp_path).read(channel))
    assert isinstance(found, MissingBlob)
    assert found.why == "damaged"


@pytest.mark.parametrize("name", ["../secret", "/etc/hosts", "file:///etc/hosts", "", "ab" * 17])
def test_a_name_cannot_point_outside_of_the_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(LARGE)
    channel = Channel(dtype="uint8", shape=[1], blob=name)
    found = asyncio.run(store(tmp_path).read(channel))
    assert isinstance(found, MissingBlob)
    assert found.detail == "not the name of a blob"


def test_a_blob_under_anothers_name_is_damaged(tmp_path: Path) -> None:
    put(store(tmp_path), LARGE)
    (path,) = files(tmp_path)
    other = "ab" * 16
    (tmp_path / "blobs/ab").mkdir()
    path.rename(tmp_path / "blobs/ab" / other)
    found = asyncio.run(store(tmp_path).read(Channel(dtype="uint8", shape=[1], blob=other)))
    assert isinstance(found, MissingBlob)
    assert found.why == "damaged"


def test_a_store_that_cannot_be_written_refuses_the_turn(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file, not a folder")
    with pytest.raises(LogError, match="was not written to"):
        put(store(tmp_path), LARGE)


def test_any_fsspec_url_is_a_store() -> None:
    blobs = Blobs(Settings(blob_url="memory://turnstream-test"))
    assert asyncio.run(blobs.read(put(blobs, LARGE))) == LARGE


def test_without_a_url_there_is_no_store_and_an_unknown_one_is_refused() -> None:
    assert blobs_from(Settings()) is None
    with pytest.raises(BadSetting, match="TURNSTREAM_BLOB_URL=nope://x"):
        blobs_from(Settings(blob_url="nope://x"))


def sample(**fields: Any) -> Sample:
    return Sample(
        session_id="s",
        sample_id="x",
        index=0,
        count=1,
        tokens=np.arange(6, dtype=np.int32),
        prompt_len=1,
        loss_mask=[(1, 6)],
        logprobs=np.zeros(6, np.float32),
        reward=None,
        session_reward=None,
        policy="seed",
        revision=0,
        **fields,
    )


def in_blob(blobs: Blobs, rows: bytes, start: int, end: int) -> ChannelBlob:
    channel = Channel(dtype="uint8", shape=[len(rows)], data=Octets(rows))
    put = asyncio.run(blobs.put(channel))
    assert put.data is None
    return ChannelBlob(name="c", start=start, end=end, channel=put)


def test_the_rows_of_blobs_stand_in_their_places_beside_those_of_the_sample(tmp_path: Path) -> None:
    blobs = Blobs(Settings(blob_url=str(tmp_path / "blobs"), blob_threshold_bytes=0))
    inside = Channel(dtype="uint8", shape=[6], data=Octets(bytes([0, 9, 0, 0, 0, 0])))
    first, second = in_blob(blobs, bytes([1, 2, 3]), 2, 4), in_blob(blobs, bytes([7]), 5, 6)
    whole = asyncio.run(blobs.whole(sample(channels={"c": inside}, channel_blobs=[first, second])))
    assert whole.channels is not None
    assert bytes(whole.channels["c"].data or b"") == bytes([0, 9, 1, 2, 0, 7])
    assert (whole.channel_blobs, whole.channels_missing) == (None, 0)
    alone = asyncio.run(blobs.whole(sample(channel_blobs=[second])))
    assert alone.channels is not None
    assert bytes(alone.channels["c"].data or b"") == bytes([0, 0, 0, 0, 0, 7])


def test_a_channel_whose_blob_is_missing_or_of_another_kind_is_left_out(tmp_path: Path) -> None:
    blobs = Blobs(Settings(blob_url=str(tmp_path / "blobs"), blob_threshold_bytes=0))
    inside = Channel(dtype="int16", shape=[6], data=Octets(bytes(12)))
    other = Channel(dtype="int8", shape=[6], data=Octets(bytes(6)))
    there = in_blob(blobs, bytes([1, 2]), 2, 4)
    gone = msgspec.structs.replace(
        there, channel=msgspec.structs.replace(there.channel, blob="ab" * 16)
    )
    for part in (there, gone):
        given = sample(
            channels={"c": inside, "other": other}, channel_blobs=[part], channels_missing=2
        )
        whole = asyncio.run(blobs.whole(given))
        assert whole.channels == {"other": other}
        assert whole.channels_missing == 3


def test_a_sample_without_blobs_stays_as_it_is(tmp_path: Path) -> None:
    given = sample(channels_missing=1)
    assert asyncio.run(store(tmp_path).whole(given)) is given
