"""How many bytes a sample takes on the wire, known before the sample is built.

What one turn adds is summed along the turns that a sequence goes on from, once for all samples
that share them, so that a thousand branches of one long conversation cost a thousand steps.

    t1 ── t2 ── t3     sum(t3) = what t1 and t2 add
            └── t4     sum(t4) = the same; only where t2's tokens stop may differ

Invariant: `SampleSizes.of` is `len(codec.to_msgpack(sample))`, to the byte.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack
import msgspec
import numpy as np

from schemas import codec
from schemas.events import Channel
from schemas.record import Octets
from schemas.samples import ChannelBlob, Sample, TurnSpan
from streams.core.record_budget import id_bytes
from streams.core.recorded import RecordedTurn

_ID_BYTES = 4
_FLOAT_BYTES = 9
_SMALL_MAP = 15
_SMALL_TEXT = 31
_SMALL_NUMBER = 127
_UINT8_MAX, _UINT16_MAX, _UINT32_MAX = 2**8 - 1, 2**16 - 1, 2**32 - 1
_OF_THE_SESSION = ("index", "count", "prompt_len", "loss_mask", "tokens", "logprobs")
_PLAIN_SPAN = len(msgpack.packb({"turn_id": "", "start": 0, "end": 0, "attach": ""})) - 4
_SPAN_EXTRAS = ("sampling", "continued_at", "cache_flushed")

ChannelKind = tuple[str, tuple[int, ...]]
"""Element type, and the shape of one token's row."""


class Sums(NamedTuple):
    """What the turns of a sequence add to its sample."""

    turns: int = 0
    span_bytes: int = 0
    name_bytes: int = 0
    """Of the turns' ids, where a marker names the sample's turns."""
    rewarded: int = 0
    reward_bytes: int = 0
    sampled: int = 0
    """Turns with a sampled token: each misses every channel that it does not have."""
    given: int = 0
    """Channels that these turns have."""
    differing: int = 0
    """Channels of another kind than the sequence's first of that name."""
    blobs: int = 0
    blob_bytes: int = 0
    channels: Mapping[str, ChannelKind | None] = {}
    """Every channel's name, and its kind once some turn has its data in the event."""


class SampleSizes:
    """The sizes of one session's samples."""

    def __init__(self, like: Sample, turn_rewards: Mapping[str, float]) -> None:
        """`like` has the session's fields, as all of its samples do, and no others."""
        fields = msgpack.unpackb(codec.to_msgpack(like))
        for name in _OF_THE_SESSION:
            del fields[name]
        self._fields = len(fields)
        self._bytes = _body_bytes(fields)
        self._turn_rewards = turn_rewards
        self._above: dict[int, Sums] = {}
        self._known: dict[tuple[int, int], Sums] = {}

    def sums(self, last: RecordedTurn) -> Sums:
        """Over a sequence, up to its last turn."""
        chain = [last]
        while chain[-1].order not in self._above:
            above = chain[-1].goes_on_from
            if above is None:
                self._above[chain[-1].order] = Sums()
                break
            chain.append(above)
        for following, turn in zip(chain[-2::-1], chain[:0:-1], strict=True):
            self._above[following.order] = self._until(turn, following.shared)
        return self._until(last, last.end)

    def above(self, turn: RecordedTurn) -> Sums:
        """Over what a turn goes on from, once some sequence with the turn was summed."""
        return self._above[turn.order]

    def of(self, own: Mapping[str, Any], tokens: int, sums: Sums, *, channels: bool) -> int:
        """A sample with these fields of its own beside arrays and what its turns add."""
        fields = self._fields + len(own) + 3
        size = self._bytes + _body_bytes(own)
        size += len(b"\xa6tokens\xa8logprobs\xa5turns") + 2 * bin_bytes(_ID_BYTES * tokens)
        size += _list_header(sums.turns) + sums.span_bytes
        if sums.rewarded:
            fields += 1
            size += turn_rewards_bytes(sums.rewarded) + sums.reward_bytes
        kinds = {name: kind for name, kind in sums.channels.items() if kind and channels}
        if kinds:
            fields += 1
            size += len(b"\xa8channels") + _map_header(len(kinds))
            size += sum(_channel_bytes(name, kind, tokens) for name, kind in kinds.items())
        if sums.blobs and channels:
            fields += 1
            size += len(b"\xadchannel_blobs") + _list_header(sums.blobs) + sums.blob_bytes
        return size + _map_header(fields)

    def _until(self, turn: RecordedTurn, end: int) -> Sums:
        """Up to a turn whose tokens stop there, which is the same for most that go on from it."""
        place = turn.order, end
        if place not in self._known:
            self._known[place] = self._with(self._above[turn.order], turn, end)
        return self._known[place]

    def _with(self, sums: Sums, turn: RecordedTurn, end: int) -> Sums:
        turn_id = turn.event.turn_id
        rewarded = turn_id in self._turn_rewards
        sums = sums._replace(
            turns=sums.turns + 1,
            span_bytes=sums.span_bytes + _span_bytes(turn, end),
            name_bytes=sums.name_bytes + id_bytes(turn_id),
            sampled=sums.sampled + (turn.end > turn.prompt_len),
        )
        if rewarded:
            sums = sums._replace(
                rewarded=sums.rewarded + 1,
                reward_bytes=sums.reward_bytes + turn_reward_bytes(turn_id),
            )
        return _with_channels(sums, turn, end) if turn.event.channels else sums


def channels_missing(sums: Sums, *, channels: bool) -> int:
    """Turns whose rows of a channel are neither in the sample nor in a blob."""
    expected = len(sums.channels) * sums.sampled
    return expected - sums.given + sums.differing if channels else expected


def span(turn: RecordedTurn, end: int) -> TurnSpan:
    """Where a turn's sampled tokens stand: from its prompt's end on, as far as they are kept."""
    return TurnSpan(
        turn_id=turn.event.turn_id,
        start=turn.prompt_len,
        end=end,
        attach=turn.attach,
        sampling=turn.event.sampling,
        continued_at=turn.event.continued_at,
        cache_flushed=turn.event.cache_flushed,
    )


def turn_rewards_bytes(turns: int) -> int:
    """Of the field with the rewards of so many turns, without these."""
    return len(b"\xacturn_rewards") + _map_header(turns)


def turn_reward_bytes(turn_id: str) -> int:
    """Of one of them."""
    return text_bytes(turn_id) + _FLOAT_BYTES


def text_bytes(text: str) -> int:
    """Of a text as MessagePack."""
    size = len(text) if text.isascii() else len(text.encode())
    return size + 1 + _length_bytes(size, _SMALL_TEXT)


def number_bytes(number: int) -> int:
    """Of a number from 0 as MessagePack."""
    if number <= _SMALL_NUMBER:
        return 1
    return 9 if number > _UINT32_MAX else 1 + _length_bytes(number, 0)


def bin_bytes(size: int) -> int:
    """Of so many bytes as MessagePack."""
    return size + 1 + _length_bytes(size, -1)


def _length_bytes(size: int, small: int) -> int:
    """What a length takes behind the first byte; up to `small` it stands in that."""
    if size <= small:
        return 0
    return 1 if size <= _UINT8_MAX else 2 if size <= _UINT16_MAX else 4


def _with_channels(sums: Sums, turn: RecordedTurn, end: int) -> Sums:
    given = turn.event.channels or {}
    kinds = sums.channels
    differing, blobs, blob_bytes = sums.differing, sums.blobs, sums.blob_bytes
    for name, channel in given.items():
        if channel.data is None:
            blobs += 1
            blob_bytes += _blob_bytes(name, turn.prompt_len, end, channel)
            if name not in kinds:
                kinds = {**kinds, name: None}
            continue
        kind = channel.dtype, tuple(channel.shape[1:])
        if kinds.get(name) is None:
            kinds = {**kinds, name: kind}
        differing += kinds[name] != kind
    return sums._replace(
        given=sums.given + len(given) * (turn.end > turn.prompt_len),
        differing=differing,
        blobs=blobs,
        blob_bytes=blob_bytes,
        channels=kinds,
    )


def _span_bytes(turn: RecordedTurn, end: int) -> int:
    event = turn.event
    size = _PLAIN_SPAN + text_bytes(event.turn_id) + 1 + len(turn.attach)
    size += number_bytes(turn.prompt_len) + number_bytes(end)
    if event.sampling is None and event.continued_at is None and event.cache_flushed is None:
        return size
    extras = {
        name: msgspec.to_builtins(value)
        for name in _SPAN_EXTRAS
        if (value := getattr(event, name)) is not None
    }
    return size + _body_bytes(extras)


def _blob_bytes(name: str, start: int, end: int, channel: Channel) -> int:
    blob = ChannelBlob(name=name, start=start, end=end, channel=channel)
    return len(_packed(blob))


def _channel_bytes(name: str, kind: ChannelKind, tokens: int) -> int:
    others, row_bytes = _row_of(kind)
    return text_bytes(name) + others + number_bytes(tokens) + bin_bytes(row_bytes * tokens)


@functools.lru_cache(maxsize=1024)
def _row_of(kind: ChannelKind) -> tuple[int, int]:
    """What a channel takes without its name, its number of rows and its data; a row's bytes."""
    dtype, row = kind
    empty = Channel(dtype=dtype, shape=[0, *row], data=Octets())  # type: ignore[arg-type]
    others = len(_packed(empty)) - number_bytes(0) - bin_bytes(0)
    return others, math.prod(row) * np.dtype(dtype).itemsize


def _packed(value: Any) -> bytes:
    fields = msgspec.to_builtins(value, enc_hook=bytes, builtin_types=(bytes,))
    return bytes(msgpack.packb(fields))


def _body_bytes(fields: Mapping[str, Any]) -> int:
    return len(msgpack.packb(fields)) - _map_header(len(fields))


def _map_header(size: int) -> int:
    return 1 if size <= _SMALL_MAP else 3 if size <= _UINT16_MAX else 5


_list_header = _map_header
"""Lists begin as maps do."""
