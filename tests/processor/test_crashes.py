"""Crash anywhere, any number of times: the same bytes come out as if nothing had happened."""

import asyncio

import pytest

from schemas import codec
from streams.core.state import Rules
from tests.processor.busy_sessions import busy_log
from tests.processor.crashing import Crashing, Written, expected

RULES = Rules()


def after_crashes(seed: int, crashes: int) -> tuple[Written, Written]:
    log = busy_log(seed)

    async def live() -> Written:
        return await Crashing(log, RULES, seed).run(crashes)

    return asyncio.run(live()), expected(log, RULES)


@pytest.mark.parametrize("crashes", [0, 1, 3, 8])
@pytest.mark.parametrize("hundred", range(3))
def test_a_worker_that_crashes_writes_what_the_core_says(hundred: int, crashes: int) -> None:
    for seed in range(40 * hundred, 40 * (hundred + 1)):
        written, wanted = after_crashes(seed, crashes)
        assert written.letters == wanted.letters, f"seed {seed}"
        assert written.records == wanted.records, f"seed {seed}"


@pytest.mark.parametrize("crashes", [2, 6])
def test_a_count_row_that_outlives_the_event_it_counts_is_still_counted(crashes: int) -> None:
    written, wanted = after_crashes(1071, crashes)
    assert written == wanted


def test_the_logs_hold_what_the_claim_is_about() -> None:
    kinds: set[str] = set()
    codes: set[str] = set()
    for seed in range(40):
        wanted = expected(busy_log(seed), RULES)
        kinds |= {type(codec.from_msgpack(record)).__name__ for record in wanted.records}
        codes |= {code for _, code in wanted.letters}
    assert kinds == {"Sample", "SampleRevised", "SessionClosed"}
    assert codes >= {"undecodable", "unknown_session", "unknown_base", "late_turn", "late_reward"}
