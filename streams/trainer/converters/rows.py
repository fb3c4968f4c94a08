"""What every converter starts from: a sample as arrays of its full length, checked once.

    tokens     t0 t1 t2 | t3 t4 t5 t6
    mask        .  .  . |  x  x  .  x      prompt_len = 3: the first trained token
    logprobs    0  0  0 | -1 -2  0 -3

Frameworks that read the response alone get the part behind the bar: a view, no copy.

Tokens in `logprobs_missing` were trained without a logprob from the engine. They are masked
(`missing="mask"`) or the sample is refused (`missing="refuse"`).

Invariant: mask and logprobs agree: a logprob that the mask trains came from the engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from schemas.record import UNKNOWN_VERSION, Floats, Ids
from schemas.samples import Sample
from streams.core.rollouts import trained_tokens
from streams.errors import CannotConvert

Missing = Literal["mask", "refuse"]
Mask = npt.NDArray[np.bool_]
Fields = dict[str, Any]
"""Arguments of a framework's own type, by their names there."""
NUMBER_MAX = float(np.finfo(np.float32).max)
"""Frameworks compute in 32 bits, where more is infinite."""


class Row(Protocol):
    """A sample of a batch, with what its rollout and its group make of it."""

    @property
    def sample(self) -> Sample:
        """What was sampled."""
        ...

    @property
    def advantage(self) -> float | None:
        """The rollout's, the same on every sibling; None: not asked for."""
        ...

    @property
    def weight(self) -> float:
        """This sample's part of its rollout's trained tokens; siblings sum to 1."""
        ...

    @property
    def token_weight(self) -> float:
        """What one trained token counts, so that every rollout counts 1."""
        ...


@dataclass(frozen=True, slots=True)
class Arrays:
    """A sample at full length; `tokens_T` and `logprobs_T` are the sample's own, read-only."""

    tokens_T: Ids
    mask_T: Mask
    logprobs_T: Floats
    prompt_len: int

    @property
    def response(self) -> slice:
        """From the first trained token to the end."""
        return slice(self.prompt_len, None)

    @property
    def response_len(self) -> int:
        return len(self.tokens_T) - self.prompt_len


def arrays(row: Row, missing: Missing = "mask") -> Arrays:
    """The row's sample, checked; nothing is copied but the mask, which is spelled out."""
    sample = row.sample
    _check(sample)
    mask_T = np.zeros(len(sample.tokens), np.bool_)
    for start, end in sample.loss_mask:
        mask_T[start:end] = True
    logprobs_T = sample.logprobs
    if sample.logprobs_missing:
        if missing == "refuse":
            count = sum(end - start for start, end in sample.logprobs_missing)
            raise refusal(sample, f"the engine gave no logprob for {count} trained tokens")
        for start, end in sample.logprobs_missing:
            mask_T[start:end] = False
        if not mask_T.any():
            raise refusal(sample, "the engine gave no logprob for any trained token")
    return Arrays(sample.tokens, mask_T, logprobs_T, sample.prompt_len)


def convertible(
    rows: Iterable[Row], missing: Missing = "mask"
) -> tuple[list[Row], list[CannotConvert]]:
    """Rows whose samples are whole, and what is wrong with the others.

    So that a sample of an engine that gave no logprobs costs itself and not its batch.
    """
    kept: list[Row] = []
    refused: list[CannotConvert] = []
    for row in rows:
        try:
            arrays(row, missing)
        except CannotConvert as error:
            refused.append(error)
        else:
            kept.append(row)
    return kept, refused


def _check(sample: Sample) -> None:
    length, runs = len(sample.tokens), sample.loss_mask
    if len(sample.logprobs) != length:
        raise refusal(sample, f"{length} tokens, {len(sample.logprobs)} logprobs")
    if not runs or runs[0][0] != sample.prompt_len or runs[-1][1] > length:
        raise refusal(sample, f"loss mask {runs} for a prompt of {sample.prompt_len} in {length}")
    if sample.prompt_len == 0:
        raise refusal(sample, "its first token is trained, and nothing before it predicts it")


def refusal(sample: Sample, why: str) -> CannotConvert:
    """The error that names the sample."""
    return CannotConvert(f"sample {sample.sample_id} of session {sample.session_id}: {why}")


def reward_of(row: Row) -> float:
    """The session's own reward, whole on every sibling."""
    reward = row.sample.session_reward
    if reward is None or not abs(reward) <= NUMBER_MAX:
        raise refusal(row.sample, f"its session's reward is {reward}")
    return reward


def advantage_of(row: Row) -> float:
    """The rollout's advantage, whole on every sibling."""
    advantage = row.advantage
    if advantage is None:
        raise refusal(row.sample, "it has no advantage; ask for them: subscribe(advantages=...)")
    if not abs(advantage) <= NUMBER_MAX:
        raise refusal(row.sample, f"its advantage is {advantage}")
    return advantage


def versions_of(sample: Sample) -> tuple[int, int] | None:
    """The oldest and the newest weights that sampled its trained tokens; None: nobody said.

    The oldest is -1 if some are unknown: frameworks drop by how far it lies behind.
    """
    runs = sample.weight_versions
    if not runs:
        return None
    versions = [version for version, _, _ in runs]
    if sum(end - start for _, start, end in runs) < trained_tokens(sample):
        versions.append(UNKNOWN_VERSION)
    return min(versions), max(versions)


def group_of(sample: Sample) -> str:
    """The group's id; a session without one is a group of its own."""
    return sample.group_id or sample.session_id


def rollout_of(sample: Sample) -> str:
    """What siblings share."""
    return sample.rollout_id or sample.session_id


def numbered(names: Iterable[str], start: int = 0) -> Iterator[int]:
    """For frameworks that count: equal names get equal numbers, in order of their appearance."""
    numbers: dict[str, int] = {}
    for name in names:
        yield numbers.setdefault(name, start + len(numbers))


def rows_given(rows: Iterable[Row]) -> Sequence[Row]:
    """The rows as a sequence; none at all is an error of the caller's."""
    given = tuple(rows)
    if not given:
        raise CannotConvert("there are no rows to convert")
    return given
