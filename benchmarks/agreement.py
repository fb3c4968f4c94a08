"""Do the core and the baseline make the same samples? Nothing is timed before they do."""

from typing import NamedTuple

import numpy as np

from benchmarks.contenders import Session, core, plain


class PlainSample(NamedTuple):
    """What both sides must agree on, in the form of neither."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]


def of_core(session: Session) -> list[PlainSample]:
    """The core's samples under the baseline's rules."""
    samples = core("slime").run(session.events).samples
    plain_samples = []
    for sample in samples:
        mask = [0] * sample.tokens.size
        for start, end in sample.loss_mask:
            mask[start:end] = [1] * (end - start)
        plain_samples.append(PlainSample(sample.tokens.tolist(), mask, sample.logprobs.tolist()))
    return plain_samples


def of_baseline(session: Session) -> list[PlainSample]:
    """The baseline's samples; its logprobs rounded to what the wire carries."""
    _, builders = plain().run(session.requests())
    return [
        PlainSample(b.tokens, b.mask, np.array(b.logprobs, np.float32).tolist()) for b in builders
    ]


def difference(session: Session) -> str | None:
    """The first thing on which the two sides differ; none if they agree."""
    ours, theirs = of_core(session), of_baseline(session)
    if len(ours) != len(theirs):
        return f"the core gives {len(ours)} samples, the baseline {len(theirs)}"
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        for name in PlainSample._fields:
            if getattr(our, name) != getattr(their, name):
                return f"sample {index}: `{name}` differs"
    return None
