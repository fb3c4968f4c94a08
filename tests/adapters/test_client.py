"""The client against a real gateway: how a block ends is how its session ends."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from schemas.events import Reward, SessionEnded, SessionOpened, Turn
from streams.adapters.client import (
    AsyncSession,
    ControlRefused,
    GatewayAway,
    Session,
    Turnstream,
)
from tests.adapters.faulty_proxy import proxy
from tests.cli.up_process import PATIENCE_S, Up, up
from tests.kafka.broker import free_port

AGENT = """
import openai
answer = openai.OpenAI().chat.completions.create(
    model="m", messages=[{"role": "user", "content": "Who are you?"}])
print(answer.choices[0].message.content)
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def turnstream(gateway: Up) -> Turnstream:
    return Turnstream(gateway.url, gateway.control_key)


class AgentFailed(Exception):
    """What an agent raises."""


def ended(gateway: Up, session: Session | AsyncSession) -> SessionEnded:
    """The one end that the log has of the session."""
    events = gateway.events(session.session_id)
    (event,) = [event for event in events if isinstance(event, SessionEnded)]
    return event


def test_an_agent_in_a_process_needs_nothing_but_the_variables(
    gateway: Up, turnstream: Turnstream
) -> None:
    with turnstream.session(group_id="g", rollout_index=3, metadata={"why": "test"}) as session:
        ran = subprocess.run(
            [sys.executable, "-c", AGENT],
            env={**os.environ, **session.env},
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        session.reward({"score": 0.5, "tests": 7})
    assert "scripted engine" in ran.stdout
    outcome = gateway.closed(session.session_id)
    assert (outcome.group_id, outcome.rollout_index, outcome.reward) == ("g", 3, 0.5)
    assert (outcome.end_status, outcome.turns) == ("completed", 1)
    assert outcome.trained == outcome.generated > 0
    assert b"test" in bytes(outcome.metadata)


def test_without_a_reward_it_is_completed_and_the_reward_pending(
    gateway: Up, turnstream: Turnstream
) -> None:
    with turnstream.session() as session:
        pass
    event = ended(gateway, session)
    assert (event.end_status, event.reward, event.reward_pending) == ("completed", None, None)
    # It waits for a reward, and one that comes later closes it.
    with pytest.raises(ControlRefused):
        turnstream.session(session_id=session.session_id).__enter__()
    session.reward(2)
    assert gateway.closed(session.session_id).reward == 2.0


def test_end_says_how_it_ended_and_leaving_adds_nothing(
    gateway: Up, turnstream: Turnstream
) -> None:
    with turnstream.session() as session:
        session.end("truncated", 0.25, finish_reason="length")
    event = ended(gateway, session)
    assert (event.end_status, event.reward, event.finish_reason) == ("truncated", 0.25, "length")


def test_a_block_that_raises_ends_as_error_with_the_reason(
    gateway: Up, turnstream: Turnstream
) -> None:
    with pytest.raises(AgentFailed, match="no disk"), turnstream.session() as session:
        raise AgentFailed("no disk")
    event = ended(gateway, session)
    assert event.end_status == "error"
    assert event.reason is not None
    assert (event.reason.stage, event.reason.type) == ("agent", "AgentFailed")
    assert event.reason.message == "no disk"


def test_a_long_reason_is_cut(gateway: Up, turnstream: Turnstream) -> None:
    with pytest.raises(AgentFailed), turnstream.session() as session:
        raise AgentFailed("x" * 100_000)
    event = ended(gateway, session)
    assert event.reason is not None
    assert len(event.reason.message or "") == 1000


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_block_that_is_cancelled_ends_as_cancelled(
    gateway: Up, turnstream: Turnstream, kind: type[BaseException]
) -> None:
    opening = turnstream.session()
    session = opening.__enter__()
    opening.__exit__(kind, kind(), None)
    assert ended(gateway, session).end_status == "cancelled"


def test_a_raise_after_the_end_changes_nothing(gateway: Up, turnstream: Turnstream) -> None:
    opening = turnstream.session()
    session = opening.__enter__()
    session.end(reward=1)
    opening.__exit__(AgentFailed, AgentFailed("while cleaning up"), None)
    assert ended(gateway, session).end_status == "completed"


def test_async_blocks_do_the_same(gateway: Up, turnstream: Turnstream) -> None:
    async def agent(session: AsyncSession) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url_with_key, api_key="none") as sdk:
            await sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Who are you?"}]
            )

    async def work() -> list[AsyncSession]:
        async with turnstream.session(task_id="t") as first:
            await agent(first)
            await first.reward(1)
            assert (await first.state())["calls"] == 1
        async with turnstream.session() as second:
            await second.end("timeout")
        with pytest.raises(AgentFailed):
            async with turnstream.session() as third:
                raise AgentFailed("async")
        return [first, second, third]

    sessions = asyncio.run(work())
    statuses = [ended(gateway, session).end_status for session in sessions]
    assert statuses == ["completed", "timeout", "error"]
    outcome = gateway.closed(sessions[0].session_id)
    assert (outcome.task_id, outcome.reward, outcome.turns) == ("t", 1.0, 1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_that_is_cancelled_ends_its_session_as_cancelled(
    gateway: Up, turnstream: Turnstream, times: int
) -> None:
    async def work() -> AsyncSession:
        opened: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            async with turnstream.session() as session:
                opened.set_result(session)
                await asyncio.sleep(PATIENCE_S)

        task = asyncio.create_task(run())
        session = await opened
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        # Cancelled once more while it ends, the request still goes through.
        for _ in range(200):
            if (await session.state()).get("ended"):
                break
            await asyncio.sleep(0.05)
        return session

    assert ended(gateway, asyncio.run(work())).end_status == "cancelled"


def test_a_turn_is_rewarded_by_the_id_of_its_answer(gateway: Up, turnstream: Turnstream) -> None:
    with turnstream.session() as session:
        with openai.OpenAI(base_url=session.base_url, api_key=session.key) as sdk:
            answer = sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Who are you?"}]
            )
        session.reward(0.1, turn_id=answer.id, final=False)
        session.reward(1)
    events = gateway.events(session.session_id)
    (turn,) = [event for event in events if isinstance(event, Turn)]
    rewards = [event for event in events if isinstance(event, Reward)]
    assert [(each.turn_id, each.reward) for each in rewards] == [(turn.turn_id, 0.1), (None, 1.0)]


# Which requests go wrong, for a block that opens, rewards and ends.
FAULTS: dict[str, list[int | str]] = {
    "the log is away at first": [503, 503],
    "nobody hears the first": ["drop"],
    "the answer to the opening is lost": ["lose"],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_what_goes_wrong_for_a_while_is_tried_again(gateway: Up, faults: list[int | str]) -> None:
    with proxy(gateway.url, *faults) as between:
        with Turnstream(between.url, gateway.control_key).session() as session:
            between.faults += faults
            session.reward(1)
            between.faults += faults
        assert len(between.asked) == 3 + 3 * len(faults)
    outcome = gateway.closed(session.session_id)
    assert (outcome.end_status, outcome.reward) == ("completed", 1.0)
    opened = [e for e in gateway.events(session.session_id) if isinstance(e, SessionOpened)]
    assert len(opened) == 1
    ended(gateway, session)


def test_async_blocks_try_again_too(gateway: Up) -> None:
    async def work(url: str) -> AsyncSession:
        async with Turnstream(url, gateway.control_key).session() as session:
            await session.reward(1)
        return session

    with proxy(gateway.url, 503, "drop", "lose") as between:
        session = asyncio.run(work(between.url))
    assert gateway.closed(session.session_id).reward == 1.0


def test_patience_ends_with_an_error_that_says_what_was_asked(gateway: Up) -> None:
    with proxy(gateway.url, *[503] * 100) as between:
        impatient = Turnstream(between.url, gateway.control_key, patience_s=1.0)
        with pytest.raises(GatewayAway, match=r"/control/sessions: status 503: .*tried for 1 s"):
            impatient.session().__enter__()


def test_nobody_there_is_an_error_in_time() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(GatewayAway, match="ConnectError"):
        Turnstream(url, "tc-any", patience_s=0.5).session().__enter__()


def test_whoever_waits_for_a_gateway_is_told_once_why(caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(GatewayAway, match="ConnectError"):
        Turnstream(url, "tc-any", patience_s=6.0).session().__enter__()
    (said,) = [one.getMessage() for one in caplog.records if one.name == "turnstream.client"]
    assert said.startswith(f"{url}/control/sessions: ConnectError: ")
    assert said.endswith("; trying for 6 s")


def test_a_session_that_cannot_be_ended_does_not_hide_what_the_block_raised(gateway: Up) -> None:
    with proxy(gateway.url) as between:
        opening = Turnstream(between.url, gateway.control_key, patience_s=1.0).session()
        opening.__enter__()
        between.faults += [503] * 100
        error = AgentFailed("first")
        opening.__exit__(AgentFailed, error, None)  # or the caller would see another one
    (note,) = error.__notes__
    assert "could not be ended" in note
    assert "503" in note


def test_a_session_that_cannot_be_ended_is_an_error_of_its_own(gateway: Up) -> None:
    with proxy(gateway.url) as between:
        opening = Turnstream(between.url, gateway.control_key, patience_s=1.0).session()
        with pytest.raises(GatewayAway, match="/end: status 503"), opening:
            between.faults += [503] * 100


def test_a_wrong_key_is_refused_at_once(gateway: Up) -> None:
    with pytest.raises(ControlRefused, match="control key is missing or wrong") as caught:
        Turnstream(gateway.url, gateway.key).session().__enter__()
    assert caught.value.status == 401


def test_what_the_gateway_does_not_take_is_told(turnstream: Turnstream) -> None:
    with pytest.raises(ControlRefused, match="group_size") as caught:
        turnstream.session(group_size="many").__enter__()
    assert caught.value.status == 400


def test_a_page_that_is_no_gateway_is_told(gateway: Up) -> None:
    with pytest.raises(ControlRefused, match="404"):
        Turnstream(f"{gateway.url}/elsewhere", gateway.control_key).session().__enter__()


def test_a_misspelt_field_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(TypeError, match="grup_id: not a field of session_opened"):
        Turnstream("http://127.0.0.1:9", "tc-any").session(grup_id="g")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "http://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="give an address"):
        Turnstream(url, "tc-any")


@pytest.mark.parametrize(
    "score",
    [math.nan, math.inf, 10**400, "1", True, np.bool_(True), {"points": 1}, {"score": None}],
)
def test_a_reward_that_is_no_number_is_refused_here(
    gateway: Up, turnstream: Turnstream, score: object
) -> None:
    with turnstream.session() as session:
        with pytest.raises(ValueError, match="give a finite number"):
            session.reward(score)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(ValueError, match="give a finite number"):
            session.end(reward=score)  # type: ignore[arg-type]
        session.end(reward=0)
    assert ended(gateway, session).reward == 0.0


SCORES: list[tuple[Any, Any]] = [
    (np.float64(0.5), 0.5),
    (np.float32(0.5), 0.5),
    (np.int64(2), 2.0),
    (np.array(0.5), 0.5),
    ({"score": np.float32(0.5), "terms": np.arange(2)}, {"score": 0.5, "terms": [0, 1]}),
]


@pytest.mark.parametrize(("score", "sent"), SCORES)
def test_numbers_of_numpy_are_plain_in_rewards_and_fields(
    gateway: Up, turnstream: Turnstream, score: Any, sent: Any
) -> None:
    fields: dict[str, Any] = {
        "rollout_index": np.int64(2),
        "metadata": {"level": np.float32(0.5), "seen": np.arange(2)},
    }
    with turnstream.session(**fields) as session:
        session.reward(score, turn_id="t", final=False)
        session.end(reward=score, final_message="Done.")
    events = gateway.events(session.session_id)
    (opened,) = [event for event in events if isinstance(event, SessionOpened)]
    assert opened.rollout_index == 2
    assert json.loads(bytes(opened.metadata)) == {"level": 0.5, "seen": [0, 1]}
    (reward,) = [event for event in events if isinstance(event, Reward)]
    end = ended(gateway, session)
    assert reward.reward == end.reward == sent
    assert json.loads(bytes(end.final_message)) == {"role": "assistant", "content": "Done."}


def test_a_final_message_that_is_none_is_refused_here(turnstream: Turnstream) -> None:
    with turnstream.session() as session:
        with pytest.raises(ValueError, match="no message"):
            session.end(final_message=7)
        session.end("cancelled")


def test_a_status_that_is_none_is_refused_here(turnstream: Turnstream) -> None:
    with turnstream.session() as session:
        with pytest.raises(ValueError, match="'done': a session ends as one of completed"):
            session.end("done")  # type: ignore[arg-type]
        session.end("cancelled")
