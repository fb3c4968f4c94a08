"""Whether two lists of samples say the same: everything exactly, but for rounding.

Logprobs travel as float32 and a reward share is a quotient, so those two may differ by
rounding; tokens, mask, order and counts may not differ at all.
"""

from collections.abc import Sequence
from typing import Any

Sample = dict[str, Any]
EXACT = ("index", "count", "tokens", "prompt_len", "loss_mask")
LOGPROB_ERROR_MAX = 1e-6
REWARD_ERROR_MAX = 1e-9


def difference(want: Sequence[Sample], got: Sequence[Sample]) -> str | None:
    """The first difference in words; None if the samples agree."""
    for place, (wanted, given) in enumerate(zip(want, got, strict=False)):
        for name in EXACT:
            if wanted[name] != given[name]:
                return f"sample {place}: {name} is {given[name]}, not {wanted[name]}"
        if not close(wanted["logprobs"], given["logprobs"], LOGPROB_ERROR_MAX):
            return f"sample {place}: logprobs are {given['logprobs']}, not {wanted['logprobs']}"
        if not close([wanted["reward"]], [given["reward"]], REWARD_ERROR_MAX):
            return f"sample {place}: reward is {given['reward']}, not {wanted['reward']}"
    if len(want) != len(got):
        return f"{len(got)} samples, not {len(want)}"
    return None


def close(want: Sequence[float], got: Sequence[float], error_max: float) -> bool:
    return len(want) == len(got) and all(
        abs(wanted - given) <= error_max for wanted, given in zip(want, got, strict=True)
    )
