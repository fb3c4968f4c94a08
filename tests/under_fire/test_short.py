"""The whole pipeline under some faults, on every run of the tests; and built wrong, it shows."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import BROKER_KILL, KILL
from tests.kafka.broker import Broker
from tests.under_fire.faults import (
    AGAIN,
    CUT_AGENTS,
    CUT_ENGINE,
    GATEWAY_KILL,
    TRAINER_COMMIT,
)
from tests.under_fire.run import HASTY_GATEWAY, Plan, Run, played

KINDS = (GATEWAY_KILL, KILL, BROKER_KILL, TRAINER_COMMIT, CUT_AGENTS, CUT_ENGINE, AGAIN)
SHORT = Plan(16, len(KINDS), kinds=KINDS, at_once=12, rest_s=1.0, turns_max=8)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def run(folder: Path, broker: Broker, plan: Plan) -> Run:
    done = asyncio.run(played(folder, broker, plan))
    print("\n".join(done.report()))
    return done


def test_nothing_is_lost_or_wrong_and_no_session_fails(broker: Broker, tmp_path: Path) -> None:
    done = run(tmp_path, broker, SHORT)
    assert done.wrong == []
    assert {fault.kind for fault in done.faults.done} == set(KINDS)
    assert done.judgement is not None
    assert done.judgement.samples_trained > 0
    assert done.history.updates > 0


def test_a_gateway_that_answers_before_the_log_has_the_turn_is_noticed(
    broker: Broker, tmp_path: Path
) -> None:
    plan = dataclasses.replace(SHORT, faults=1, kinds=(GATEWAY_KILL,), variant=HASTY_GATEWAY)
    done = run(tmp_path, broker, plan)
    assert any("was seen and is 0 times in the log" in line for line in done.wrong), done.wrong
