"""A segment as the sample a trainer reads: arrays, runs and spans.

Invariant: tokens, mask and logprobs speak of the same positions; a logprob stands only where
the mask is 1 and the engine gave one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, overload

import msgpack
import numpy as np

from schemas.events import Channel
from schemas.record import UNKNOWN_VERSION, Floats, Octets
from schemas.samples import ChannelBlob, Sample
from streams.core.delta import read
from streams.core.linearize import Fate, Segment
from streams.core.recorded import RecordedTurn
from streams.core.rewards import RewardBook
from streams.core.sample_size import Sums, channels_missing, span
from streams.core.spans import Run, joined, total

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def sample_id(session_id: str, policy: str, last_turn_id: str) -> str:
    """A name that every replay under the same rules gives again."""
    name = msgpack.packb([session_id, policy, last_turn_id])
    return blake2b(name, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A sample that is not built yet."""

    segment: Segment
    sample_id: str
    own: dict[str, Any]
    """Its fields beside what all samples of its session share, arrays and what its turns add."""
    encoded_bytes: int
    channels: bool
    """False: with the turns' channels the sample would be too large."""

    @property
    def tokens(self) -> int:
        """How many it will have."""
        return self.segment.last.end


class Samples(Sequence[Sample]):
    """The samples of a session: each is built when it is asked for, and kept by nobody.

    Whoever goes through them again gets equal ones again.
    """

    def __init__(
        self,
        planned: Sequence[Planned] = (),
        shared: Mapping[str, Any] | None = None,
        rewards: RewardBook | None = None,
    ) -> None:
        """`shared` are the fields that are the session's; `rewards` has those of its turns."""
        self.planned = planned
        self._shared = dict(shared or {})
        self._rewards = rewards or RewardBook()

    def __len__(self) -> int:
        """How many there are."""
        return len(self.planned)

    @property
    def reward(self) -> float | None:
        """Each sample's share."""
        share: float | None = self._shared.get("reward")
        return share

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> "Samples": ...

    def __getitem__(self, index: int | slice) -> "Sample | Samples":
        """Build one; a slice is as lazy as the whole."""
        if isinstance(index, slice):
            return Samples(self.planned[index], self._shared, self._rewards)
        planned = self.planned[index]
        turns = planned.segment.turns()
        return Sample(
            sample_id=planned.sample_id,
            turn_rewards=self._rewards.of([turn.event.turn_id for turn in turns]),
            **self._shared,
            **planned.own,
            **_sequence(planned, turns),
        )


def own_fields(segment: Segment, sums: Sums, *, channels: bool) -> dict[str, Any]:
    """What a sample says of its tokens, without the arrays; defaults are left out."""
    runs = trained_runs(segment)
    fields = {
        "prompt_len": runs[0][0],
        "loss_mask": runs,
        "logprobs_missing": _without_logprobs(segment),
        "weight_versions": version_runs(segment),
        "channels_missing": channels_missing(sums, channels=channels),
        "truncated": segment.leaf.event.finish_reason == "length",
        "use_tool": segment.leaf.branch_calls_tool,
        "ill_formed": segment.leaf.branch_ill_formed,
        "tool_turns": sum([fate.turn.calls_tool for fate in segment.owned]),
        "generated": sum([fate.generated for fate in segment.owned]),
        "trained": total(runs),
    }
    return {name: value for name, value in fields.items() if value or name == "prompt_len"}


def _sequence(planned: Planned, turns: list[RecordedTurn]) -> dict[str, Any]:
    """The arrays of a sample, and what its turns add."""
    last = planned.segment.last
    ids = read(last.block, 0, last.end)
    ends = _sampled_ends(turns)
    channels, blobs = _channels(ends, last.end) if planned.channels else (None, None)
    return {
        "tokens": np.frombuffer(ids, _INT32),
        "logprobs": _logprobs(planned.segment, last.end),
        "turns": [span(turn, end) for turn, end in ends],
        "channels": channels or None,
        "channel_blobs": blobs or None,
    }


def trained_runs(segment: Segment) -> list[Run]:
    """The loss mask; where it begins, the response does."""
    return joined(run for fate in segment.owned for run in fate.trained)


def _logprobs(segment: Segment, length: int) -> Floats:
    pieces: list[bytes] = []
    done = 0
    for fate in segment.owned:
        given, at = fate.turn.event.logprobs, fate.turn.prompt_len
        if given is None:
            continue
        for start, end in fate.trained:
            pieces.append(bytes(_FLOAT32.itemsize * (start - done)))
            pieces.append(given[start - at : end - at].tobytes())
            done = end
    pieces.append(bytes(_FLOAT32.itemsize * (length - done)))
    return np.frombuffer(b"".join(pieces), _FLOAT32)


def _without_logprobs(segment: Segment) -> list[Run]:
    return joined(
        run for fate in segment.owned if fate.turn.event.logprobs is None for run in fate.trained
    )


def version_runs(segment: Segment) -> list[tuple[int, int, int]]:
    """`[version, start, end)` over trained tokens only: over all of them, or none."""
    if all(fate.turn.event.weight_versions is None for fate in segment.owned):
        return []
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
    if fate.turn.event.weight_versions is None:
        return [(UNKNOWN_VERSION, start, end) for start, end in fate.trained]
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


def _sampled_ends(turns: list[RecordedTurn]) -> list[tuple[RecordedTurn, int]]:
    """Each turn and where its sampled tokens stop: the next turn may repeat only some."""
    ends = [following.shared for following in turns[1:]] + [turns[-1].end]
    return list(zip(turns, ends, strict=True))


def _channels(
    ends: list[tuple[RecordedTurn, int]], length: int
) -> tuple[dict[str, Channel], list[ChannelBlob]]:
    """Per-token data over the whole sequence, zero where nothing was sampled.

    Blobs are not read here: the sample says where their rows belong.
    """
    names = dict.fromkeys(name for turn, _ in ends for name in turn.event.channels or ())
    arrays: dict[str, Any] = {}
    blobs: list[ChannelBlob] = []
    for turn, end in ends if names else ():
        at = turn.prompt_len
        for name in names:
            channel = (turn.event.channels or {}).get(name)
            if channel is None:
                continue
            if channel.data is None:
                blobs.append(ChannelBlob(name=name, start=at, end=end, channel=channel))
            elif (array := _array(arrays, name, channel, length)) is not None:
                values = np.frombuffer(channel.data, array.dtype).reshape(channel.shape)
                array[at:end] = values[: end - at]
    return {name: _whole(array) for name, array in arrays.items()}, blobs


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
