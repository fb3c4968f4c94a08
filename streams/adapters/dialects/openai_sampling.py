"""How OpenAI's APIs ask for tokens to be sampled: one set of fields for all of them.

    carried      temperature, top_p, top_k, min_p, penalties, seed, stop strings
    refused      what bends the sampling in a way that a recorded turn has no field for

Invariant: a field that is known to change how tokens are sampled is carried or refused, never
dropped.
"""

from typing import Any

import msgspec

from streams.adapters.dialects.common import Int64, NotNegative, Share, read_stops, refused


class SamplingFields(msgspec.Struct, kw_only=True):
    """The part of a request that says how to sample."""

    stop: str | list[str] | None = None
    temperature: NotNegative | None = None
    top_p: Share | None = None
    top_k: Int64 | None = None
    min_p: Share | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: NotNegative | None = None
    seed: Int64 | None = None

    logit_bias: Any = None
    bad_words: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    ignore_eos: Any = None
    min_tokens: Any = None
    stop_token_ids: Any = None
    structured_outputs: Any = None


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
)
# The recorded turn has no field that would say so, and its logprobs would be of another
# distribution than the one that was asked for.
_BENDS_SAMPLING = (
    "logit_bias",
    "bad_words",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "structured_outputs",
)


def read_sampling(request: SamplingFields) -> dict[str, float]:
    """What is asked for, without what is not given.

    Raises:
        CallRefused: it cannot be carried.
    """
    for name in _BENDS_SAMPLING:
        if getattr(request, name):
            raise refused(
                name, "changes which tokens are sampled and is not supported; leave it out"
            )
    given = {name: getattr(request, name) for name in _SAMPLING}
    return {name: value for name, value in given.items() if value is not None}


def read_stop(request: SamplingFields) -> tuple[str, ...]:
    """The texts that end an answer."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    return read_stops(stop, "stop")
