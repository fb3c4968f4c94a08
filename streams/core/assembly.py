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
from schemas.samples import TurnSpan
from streams.core.delta import read
from streams.core.linearize import Fate, Segment
from streams.core.recorded import RecordedTurn
from streams.core.spans import Run, joined, total

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


_TURN_BYTES = 100
_RUN_BYTES = 20


def sample_id(session_id: str, policy: str, last_turn_id: str) -> str:
    """A name that every replay under the same rules gives again."""
    name = msgpack.packb([session_id, policy, last_turn_id])
    return blake2b(name, digest_size=16).hexdigest()


def sequence(segment: Segment) -> dict[str, Any]:
    """The fields of a sample that follow from its tokens alone."""
    last = segment.last
    ids = read(last.block, 0, last.end)
    runs = joined(run for fate in segment.owned for run in fate.trained)
    logprobs, missing = _logprobs(segment, last.end)
    channels, channels_missing = _channels(segment)
    return {
        "tokens": np.frombuffer(ids, _INT32),
        "prompt_len": runs[0][0],
        "loss_mask": runs,
        "logprobs": logprobs,
        "logprobs_missing": missing or None,
        "weight_versions": _versions(segment) or None,
        "turns": _spans(segment),
        "channels": channels or None,
        "channels_missing": channels_missing,
        "truncated": segment.leaf.event.finish_reason == "length",
        "use_tool": segment.leaf.branch_calls_tool,
        "ill_formed": segment.leaf.branch_ill_formed,
        "tool_turns": sum([fate.turn.calls_tool for fate in segment.owned]),
        "generated": sum([fate.generated for fate in segment.owned]),
        "trained": total(runs),
    }


def encoded_bytes(segment: Segment) -> int:
    """About how large the sample is on the wire."""
    channels = {
        name: math.prod(channel.shape[1:]) * np.dtype(channel.dtype).itemsize
        for turn in segment.turns
        for name, channel in (turn.event.channels or {}).items()
    }
    per_token = 8 + sum(channels.values())
    runs = sum(len(fate.trained) for fate in segment.owned)
    versions = sum(len(fate.turn.event.weight_versions or ()) for fate in segment.owned)
    names = sum(len(turn.event.turn_id) for turn in segment.turns)
    turns = _TURN_BYTES * len(segment.turns) + names
    return per_token * segment.last.end + turns + _RUN_BYTES * (runs + versions)


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


def _versions(segment: Segment) -> list[tuple[int, int, int]]:
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
        )
        for turn, end in _sampled_ends(segment)
    ]


def _sampled_ends(segment: Segment) -> list[tuple[RecordedTurn, int]]:
    """Each turn and where its sampled tokens stop: the next turn may repeat only some."""
    turns = segment.turns
    ends = [following.shared for following in turns[1:]] + [segment.last.end]
    return list(zip(turns, ends, strict=True))


def _channels(segment: Segment) -> tuple[dict[str, Channel], int]:
    """Per-token data over the whole sequence, zero where nothing was sampled."""
    if not any(turn.event.channels for turn in segment.turns):
        return {}, 0
    arrays: dict[str, Any] = {}
    missing = 0
    for turn, end in _sampled_ends(segment):
        for name, channel in (turn.event.channels or {}).items():
            if channel.data is None:
                missing += 1
                continue
            shape = (segment.last.end, *channel.shape[1:])
            if name not in arrays:
                arrays[name] = np.zeros(shape, np.dtype(channel.dtype))
            array = arrays[name]
            if array.shape != shape or array.dtype != np.dtype(channel.dtype):
                missing += 1
                continue
            values = np.frombuffer(channel.data, array.dtype).reshape(channel.shape)
            array[turn.prompt_len : end] = values[: end - turn.prompt_len]
    return {
        name: Channel(
            dtype=str(array.dtype),  # type: ignore[arg-type]  # came in as one of the literals
            shape=list(array.shape),
            data=Octets(array.tobytes()),
        )
        for name, array in arrays.items()
    }, missing
