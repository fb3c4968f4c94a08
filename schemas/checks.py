"""What a decoded event must satisfy beyond its types, before anything else sees it.

Adapters run the same checks before they publish, so no later turn hangs on one that a reader
will refuse. Order matters where two things are wrong: an empty prompt is reported first.

Invariant: an event that passes has finite logprobs of the output's length, ids from 0 to
2^31 - 1, and runs that lie inside the output.
"""

import math
from typing import Any

import numpy as np

from schemas.bad_record import BadRecord
from schemas.dead_letters import Code
from schemas.events import Channel, Reward, SessionEnded, Turn
from schemas.record import Ids, Record

DIGEST_BYTES = 16
_FEW_IDS = 1000
_DIMENSIONS_MAX = 8


def check(record: Record) -> None:
    """Raise `BadRecord` if the record cannot be true."""
    if isinstance(record, Turn):
        _check_turn(record)
    elif isinstance(record, Reward | SessionEnded):
        if isinstance(record, Reward) and record.reward is None and not record.reward_invalid:
            raise BadRecord(
                "invalid_field", "`reward` is missing: give a number or a payload with `score`"
            )
        score(record.reward)


def score(reward: float | dict[str, Any] | None) -> float | None:
    """The number in a reward; none if there is none or it is not finite."""
    if isinstance(reward, dict):
        value = reward.get("score")
        if isinstance(value, bool) or not isinstance(value, int | float):
            detail = f"a reward payload needs a number under `score`, got {value!r:.80}"
            raise BadRecord("invalid_field", detail)
        reward = value
    if reward is None:
        return None
    try:
        number = float(reward)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _check_turn(turn: Turn) -> None:
    if turn.base_turn_id is None:
        if not turn.prompt_messages:
            _refuse(turn, "invalid_field", "`prompt_messages` is empty")
        if turn.kept_messages or turn.kept_ids:
            _refuse(turn, "invalid_field", "`kept_messages` / `kept_ids` without a `base_turn_id`")
    outputs = turn.output_ids.size
    if turn.logprobs is not None:
        if turn.logprobs.size != outputs:
            detail = f"{turn.logprobs.size} logprobs for {outputs} output_ids"
            _refuse(turn, "length_mismatch", detail)
        _check_finite(turn, turn.logprobs)
    _check_ids(turn, "prompt_ids", turn.prompt_ids)
    _check_ids(turn, "output_ids", turn.output_ids)
    if turn.prompt_digest is not None and len(turn.prompt_digest) != DIGEST_BYTES:
        _refuse(turn, "invalid_field", f"`prompt_digest` is not {DIGEST_BYTES} bytes long")
    _check_runs(turn)
    for name, channel in (turn.channels or {}).items():
        _check_channel(turn, name, channel)
    if turn.reward is not None:
        score(turn.reward)


def _check_runs(turn: Turn) -> None:
    outputs = turn.output_ids.size
    if turn.weight_versions is not None:
        covered = sum([tokens for _, tokens in turn.weight_versions])
        if covered != outputs:
            detail = f"`weight_versions` cover {covered} tokens, the output has {outputs}"
            _refuse(turn, "length_mismatch", detail)
    for place, _ in turn.continued_at or ():
        if place > outputs:
            detail = f"`continued_at` {place} is outside the {outputs} output_ids"
            _refuse(turn, "invalid_field", detail)
    for start, end, _ in turn.untrained_runs or ():
        if not start <= end <= outputs:
            detail = f"untrained run [{start}, {end}) is outside the {outputs} output_ids"
            _refuse(turn, "invalid_field", detail)


def _check_ids(turn: Turn, field: str, ids: Ids) -> None:
    if ids.size > _FEW_IDS:
        negative = np.minimum.reduce(ids) < 0
    else:
        # The top byte of each id; for a few hundred ids numpy's call costs more than its work.
        negative = not ids.tobytes()[3::4].isascii()
    if negative:
        _refuse(turn, "invalid_field", f"`{field}` has a negative id: {int(ids.min())}")


def _check_finite(turn: Turn, logprobs: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    if logprobs.size > _FEW_IDS:
        finite = bool(np.isfinite(logprobs).all())
    else:
        # NaN and infinity always show in the sum of squares, and squares of float32 always fit
        # a double. For a long array the product would be spread over threads that then spin.
        wide = logprobs.astype(np.float64)
        finite = math.isfinite(wide.dot(wide))
    if not finite:
        place = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        _refuse(turn, "invalid_field", f"`logprobs` is not finite at {place}")


def _check_channel(turn: Turn, name: str, channel: Channel) -> None:
    if len(channel.shape) > _DIMENSIONS_MAX or max(channel.shape, default=0) > 2**31:
        _refuse(turn, "invalid_field", f"channel `{name}` has no usable shape")
    if not channel.shape or channel.shape[0] != turn.output_ids.size:
        detail = f"channel `{name}` has shape {channel.shape} for {turn.output_ids.size} output_ids"
        _refuse(turn, "length_mismatch", detail)
    if channel.data is None:
        if channel.blob is None:
            _refuse(turn, "invalid_field", f"channel `{name}` has neither `data` nor `blob`")
        return
    dtype = np.dtype(channel.dtype)
    size = math.prod(channel.shape) * dtype.itemsize
    if len(channel.data) != size:
        detail = f"channel `{name}` has {len(channel.data)} bytes, its shape says {size}"
        _refuse(turn, "length_mismatch", detail)
    if dtype.kind == "f" and not np.isfinite(np.frombuffer(channel.data, dtype)).all():
        _refuse(turn, "invalid_field", f"channel `{name}` holds NaN or infinity")


def _refuse(turn: Turn, code: Code, detail: str) -> None:
    raise BadRecord(code, detail, session_id=turn.session_id, turn_id=turn.turn_id)
