"""Tinker: `Datum`, whose inputs and targets are shifted against each other by one.

    fields = tinker.datum(row)
    Datum(
        model_input=ModelInput.from_ints(fields["model_input"]),
        loss_fn_inputs=fields["loss_fn_inputs"],
    )

    tokens           t0  t1  t2  t3
    model_input      t0  t1  t2             without the last
    target_tokens    t1  t2  t3             without the first; so are logprobs, advantages, mask

Tinker sums its losses over tokens. With `weighted` each advantage is multiplied by what a token of
its rollout counts, and a rollout counts once. The service takes no `mask`, and needs none: the
advantage is 0 where it is 0; `mask=True` adds it for code that looks at it first and takes it out.

Invariant: all arrays are as long as `model_input`, one less than the tokens.
"""

import numpy as np

from streams.trainer.converters.rows import Fields, Missing, Row, advantage_of, arrays
from streams.trainer.converters.tensors import wide


def datum(
    row: Row, *, weighted: bool = False, mask: bool = False, missing: Missing = "mask"
) -> Fields:
    """Arguments of `Datum`, the input as a list of ids."""
    full = arrays(row, missing)
    mask_T = full.mask_T[1:].astype(np.float32)
    scale = row.token_weight if weighted else 1.0
    inputs: Fields = {
        "target_tokens": wide(full.tokens_T[1:]),
        "logprobs": full.logprobs_T[1:],
        "advantages": mask_T * np.float32(advantage_of(row) * scale),
    }
    if mask:
        inputs["mask"] = mask_T
    return {"model_input": full.tokens_T[:-1].tolist(), "loss_fn_inputs": inputs}
