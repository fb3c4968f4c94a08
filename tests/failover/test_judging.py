"""The judge of failover runs finds tokens that no engine sampled."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from schemas.events import Turn
from schemas.samples import LedgerRow
from tests.adapters.gateway.outcomes import Outcome
from tests.failover.judging import judged
from tests.trainer.records import outcome

PROMPT, IDS, LOGPROBS = (1, 2), (3, 4, 5), (-0.5, -0.25, -0.125)


def left(tokens: int, **fields: Any) -> Turn:
    """A turn whose client hung up when the gateway had so many tokens."""
    values: dict[str, Any] = {
        "prompt_messages": (),
        "prompt_ids": np.array(PROMPT, np.int32),
        "output_ids": np.array(IDS[:tokens], np.int32),
        "logprobs": np.array(LOGPROBS[:tokens], np.float32),
        "delivered": False,
    }
    return Turn(session_id="s", turn_id="t", **(values | fields))


def wrong(turn: Turn, *sampled: tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]) -> bool:
    row = LedgerRow(turn_id="t", attach="root", generated=len(turn.output_ids), trained=0)
    closed = outcome("s", 0, ledger=[row])
    found = judged(Outcome({"t": turn}, {"t": list(PROMPT)}, [], closed), Counter(sampled), [])
    return "s: 1 turns are not what was sampled" in found.wrong


@pytest.mark.parametrize("tokens", range(4))
def test_a_beginning_of_what_the_engine_sampled_is_right(tokens: int) -> None:
    assert not wrong(left(tokens), (PROMPT, IDS, LOGPROBS))


@pytest.mark.parametrize("tokens", range(1, 4))
def test_tokens_of_a_request_that_the_engine_never_had_are_wrong(tokens: int) -> None:
    assert wrong(left(tokens))
    assert wrong(left(tokens), (PROMPT, (9, *IDS[1:]), LOGPROBS))


def test_a_call_that_was_cut_before_the_engine_had_it_sampled_nothing() -> None:
    assert not wrong(left(0))
    assert wrong(left(0, delivered=True))
