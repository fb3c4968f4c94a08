"""A segment as the sample a trainer reads: arrays, runs and spans.

Invariant: tokens, mask and logprobs speak of the same positions; a logprob stands only where
the mask is 1 and the engine gave one.
"""

import math
from hashlib import blake2b
from typing import Any

import msgpack
import numpy as np

from schemas.events import Channel
from schemas.record import Floats, Octets
from schemas.samples import ChannelBlob, TurnSpan
from streams.core.delta import read
from streams.core.linearize import Fate, Segment
from streams.core.recorded import RecordedTurn
from streams.core.spans import Run, joined, total

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


_TURN_BYTES = 100
_RUN_BYTES = 20
_BLOB_BYTES = 250


def sample_id(session_id: str, policy: str, last_turn_id: str) -> str:
    """A name that every replay under the same rules gives again."""
    name = msgpack.packb([session_id, policy, last_turn_id])
    return blake2b(name, digest_size=16).hexdigest()


def sequence(segment: Segment) -> dict[str, Any]:
    """The fields of a sample that follow from its tokens alone."""
    last = segment.last
    ids = read(last.block, 0, last.end)
    runs = trained_runs(segment)
    logprobs, missing = _logprobs(segment, last.end)
    channels, blobs, channels_missing = _channels(segment)
    return {
        "tokens": np.frombuffer(ids, _INT32),
        "prompt_len": runs[0][0],
        "loss_mask": runs,
        "logprobs": logprobs,
        "logprobs_missing": missing or None,
        "weight_versions": version_runs(segment) or None,
        "turns": _spans(segment),
        "channels": channels or None,
        "channel_blobs": blobs or None,
        "channels_missing": channels_missing,
        "truncated": segment.leaf.event.finish_reason == "length",
        "use_tool": segment.leaf.branch_calls_tool,
        "ill_formed": segment.leaf.branch_ill_formed,
        "tool_turns": sum([fate.turn.calls_tool for fate in segment.owned]),
        "generated": sum([fate.generated for fate in segment.owned]),
        "trained": total(runs),
    }


def trained_runs(segment: Segment) -> list[Run]:
    """The loss mask; where it begins, the response does."""
    return joined(run for fate in segment.owned for run in fate.trained)


def encoded_bytes(segment: Segment) -> int:
    """About how large the sample is on the wire."""
    turns_with = segment.turns if segment.channels else []
    given = [pair for turn in turns_with for pair in (turn.event.channels or {}).items()]
    channels = {
        name: math.prod(channel.shape[1:]) * np.dtype(channel.dtype).itemsize
        for name, channel in given
        if channel.data is not None
    }
    blobs = _BLOB_BYTES * sum(channel.data is None for _, channel in given)
    per_token = 8 + sum(channels.values())
    runs = sum(len(fate.trained) for fate in segment.owned)
    versions = sum(len(fate.turn.event.weight_versions or ()) for fate in segment.owned)
    names = sum(len(turn.event.turn_id) for turn in segment.turns)
    turns = _TURN_BYTES * len(segment.turns) + names
    return per_token * segment.last.end + turns + blobs + _RUN_BYTES * (runs + versions)


def _logprobs(segment: Segment, length: int) -> tuple[Floats, list[Run]]:
    pieces: list[bytes] = []
    missing: list[Run] = []
    done = 0
    for fate in segment.owned:
        given, at = fate.turn.event.logprobs, fate.turn.prompt_len
        for start, end in fate.trained:
            if given is None:
                missing.append((start, end))
                continue
            pieces.append(bytes(_FLOAT32.itemsize * (start - done)))
            pieces.append(given[start - at : end - at].tobytes())
            done = end
    pieces.append(bytes(_FLOAT32.itemsize * (length - done)))
    return np.frombuffer(b"".join(pieces), _FLOAT32), joined(missing)


def version_runs(segment: Segment) -> list[tuple[int, int, int]]:
    """`[version, start, end)` over trained tokens only."""
    runs: list[tuple[int, int, int]] = []
    for fate in segment.owned:
        for version, start, end in _trained_versions(fate):
            if runs and runs[-1][0] == version and runs[-1][2] == start:
                runs[-1] = (version, runs[-1][1], end)
            else:
                runs.append((version, start, end))
    return runs


def _trained_versions(fate: Fate) -> list[tuple[int, int, int]]:
    """Version runs cut down to trained tokens; both sides are sorted, so one walk does it."""
    found: list[tuple[int, int, int]] = []
    runs = iter(fate.trained)
    run = next(runs, None)
    at = fate.turn.prompt_len
    for version, tokens in fate.turn.event.weight_versions or ():
        until = at + tokens
        while run is not None and run[0] < until:
            low = run[0] if run[0] > at else at
            high = run[1] if run[1] < until else until
            if low < high:
                found.append((version, low, high))
            if run[1] > until:
                break
            run = next(runs, None)
        at = until
    return found


def _spans(segment: Segment) -> list[TurnSpan]:
    return [
        TurnSpan(
            turn_id=turn.event.turn_id,
            start=turn.prompt_len,
            end=end,
            attach=turn.attach,
            sampling=turn.event.sampling,
            continued_at=turn.event.continued_at,
            cache_flushed=turn.event.cache_flushed,
        )
        for turn, end in _sampled_ends(segment)
    ]


def _sampled_ends(segment: Segment) -> list[tuple[RecordedTurn, int]]:
    """Each turn and where its sampled tokens stop: the next turn may repeat only some."""
    turns = segment.turns
    ends = [following.shared for following in turns[1:]] + [segment.last.end]
    return list(zip(turns, ends, strict=True))


def _channels(segment: Segment) -> tuple[dict[str, Channel], list[ChannelBlob], int]:
    """Per-token data over the whole sequence, zero where nothing was sampled.

    Blobs are not read here: the sample says where their rows belong.
    """
    names = dict.fromkeys(name for turn in segment.turns for name in turn.event.channels or ())
    arrays: dict[str, Any] = {}
    blobs: list[ChannelBlob] = []
    missing = 0
    for turn, end in _sampled_ends(segment) if names else ():
        at = turn.prompt_len
        for name in names:
            channel = (turn.event.channels or {}).get(name)
            if channel is None or not segment.channels:
                missing += turn.end > turn.prompt_len
            elif channel.data is None:
                blobs.append(ChannelBlob(name=name, start=at, end=end, channel=channel))
            else:
                array = _array(arrays, name, channel, segment.last.end)
                if array is None:
                    missing += 1
                    continue
                values = np.frombuffer(channel.data, array.dtype).reshape(channel.shape)
                array[at:end] = values[: end - at]
    return {name: _whole(array) for name, array in arrays.items()}, blobs, missing


def _array(arrays: dict[str, Any], name: str, channel: Channel, length: int) -> Any:
    """The channel's array over the sequence; None if this turn's rows are of another kind."""
    shape, dtype = (length, *channel.shape[1:]), np.dtype(channel.dtype)
    if name not in arrays:
        arrays[name] = np.zeros(shape, dtype)
    array = arrays[name]
    return array if array.shape == shape and array.dtype == dtype else None


def _whole(array: Any) -> Channel:
    return Channel(
        dtype=str(array.dtype),  # type: ignore[arg-type]  # came in as one of the literals
        shape=list(array.shape),
        data=Octets(array.tobytes()),
    )
