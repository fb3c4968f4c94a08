"""Whether a stop string begins before a join and ends behind it, where no engine sees it.

    sampled   ... four  five │ six  seven        stop = ("five six",)
                             join

An engine that goes on from a prompt looks for stop strings behind the prompt alone. Here the text
on both sides is looked at, as it was sampled: also inside a call, and in answers that are only read
whole.

Invariant: pure; a stop string on one side alone is the engine's.
"""

from collections.abc import Sequence

from streams.adapters.gateway.rendering.detokenising import Vocabulary
from streams.adapters.gateway.sampling.sampled import Sampled

_TOKENS_PER_CHARACTER = 4
"""At most: a character has four bytes, and a token may be one of them."""


def straddles(vocabulary: Vocabulary, sampled: Sampled, stop: Sequence[str]) -> bool:
    """Whether one of them is complete, and stands on both sides of the last join."""
    ids, join = sampled.ids, sampled.joins[-1][0] if sampled.joins else 0
    reach = _TOKENS_PER_CHARACTER * max(map(len, stop), default=0)
    if not join or not 0 < len(ids) - join <= reach:
        return False
    tail = ids[max(0, join - reach) : join]
    whole = vocabulary.text([*tail, *ids[join:]])
    edge = len(vocabulary.text(tail))
    starts = ((whole.find(text, max(0, edge - len(text) + 1)), text) for text in stop if text)
    return any(0 <= start < edge < start + len(text) for start, text in starts)
