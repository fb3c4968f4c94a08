"""What is sent to trainers: samples of one length, the same for every side.

    tokens     2/16 of it a first prompt, then 30 turns, each sampled and then context
    ids        drawn so that small ones are frequent, as in text; the first is the sample's number
    mask       the sampled tokens, in runs
    logprobs   of those, 0.0 elsewhere

Some contents are made and used in turn, each with a number of its own. Every side ends with
`[BATCH, tokens]` tensors: ids as int64, mask as bool, logprobs as float32.

Invariant: this module needs numpy alone: it also runs in the environments of others.
"""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 8
BATCH = 64
CHECK_EVERY = 37
"""So many samples apart are those whose every token is checked; no divisor of the contents."""
_CONTENTS = 64
_VOCABULARY = 151_000
_TURNS = 30


@dataclass(frozen=True, slots=True)
class Content:
    """One sample's tokens."""

    ids_T: npt.NDArray[np.int32]
    mask_T: npt.NDArray[np.bool_]
    logprobs_T: npt.NDArray[np.float32]
    runs: list[tuple[int, int]]


def content(number: int, tokens: int) -> Content:
    """That of the sample with this number."""
    made = _contents(tokens)[number % _CONTENTS]
    ids_T = made.ids_T.copy()
    ids_T[0] = number
    return Content(ids_T, made.mask_T, made.logprobs_T, made.runs)


@functools.cache
def _contents(tokens: int) -> list[Content]:
    rng = np.random.default_rng(1)
    prompt = tokens // 8
    turn = max(2, (tokens - prompt) // _TURNS)
    starts = range(prompt, tokens - turn + 1, turn)
    runs = [(start, start + max(1, turn * 3 // 7)) for start in starts]
    made = []
    for _ in range(_CONTENTS):
        ids_T = np.exp(rng.uniform(0, np.log(_VOCABULARY), tokens)).astype(np.int32)
        mask_T, logprobs_T = np.zeros(tokens, np.bool_), np.zeros(tokens, np.float32)
        for start, end in runs:
            mask_T[start:end] = True
            logprobs_T[start:end] = -rng.exponential(0.5, end - start)
        made.append(Content(ids_T, mask_T, logprobs_T, runs))
    return made


def groups(count: int) -> Iterator[range]:
    """The numbers of the samples, a group at a time."""
    return (range(at, at + GROUP) for at in range(0, count, GROUP))


@dataclass(slots=True)
class Seen:
    """What a reader has been given: every sample's number, and the digests of some."""

    numbers: list[int] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, ids: Any, mask: Any, logprobs: Any) -> None:
        """A batch, as tensors or arrays."""
        found = [int(number) for number in ids[:, 0]]
        self.numbers += found
        for at, number in enumerate(found):
            if number % CHECK_EVERY == 0:
                self.digests[number] = digest(
                    *(np.asarray(one[at]) for one in (ids, mask, logprobs))
                )


def expected(count: int, tokens: int) -> Seen:
    """What a reader has to be given."""
    seen = Seen(list(range(count)))
    for number in range(0, count, CHECK_EVERY):
        one = content(number, tokens)
        seen.digests[number] = digest(one.ids_T.astype(np.int64), one.mask_T, one.logprobs_T)
    return seen


def digest(ids_T: Any, mask_T: Any, logprobs_T: Any) -> str:
    """Of one sample; the same only if types, lengths and all values are."""
    found = hashlib.blake2b(digest_size=16)
    for array in (ids_T, mask_T, logprobs_T):
        found.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
