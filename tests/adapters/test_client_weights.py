"""A trainer's calls around a weight update, against a real gateway."""

import asyncio
import threading
from collections.abc import Iterator

import openai
import pytest

from schemas.events import Turn
from streams.adapters.client import ControlRefused, Turnstream
from tests.cli.up_process import PATIENCE_S, Up, up


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def turnstream(gateway: Up) -> Turnstream:
    return Turnstream(gateway.url, gateway.control_key)


def test_an_agent_waits_for_the_weights_and_notices_nothing(
    gateway: Up, turnstream: Turnstream
) -> None:
    with turnstream.session(run_id="one") as session:
        assert turnstream.pause("one")["paused"]
        said: list[str | None] = []

        def ask() -> None:
            with openai.OpenAI(base_url=session.base_url, api_key=session.key) as client:
                answer = client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Who are you?"}]
                )
            said.append(answer.choices[0].message.content)

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(0.5)
        assert (asking.is_alive(), said) == (True, [])
        told = turnstream.resume(3, "one", cache_flushed=True)
        assert (told["version"], told["cache_flushed"], told["paused"]) == (3, True, False)
        asking.join(PATIENCE_S)
        assert "scripted engine" in (said[0] or "")
        session.reward(1)
    (turn,) = [e for e in gateway.events(session.session_id) if isinstance(e, Turn)]
    assert turn.cache_flushed is True


def test_runs_are_apart_and_a_lower_version_is_refused(turnstream: Turnstream) -> None:
    turnstream.resume(5, "two")
    with pytest.raises(ControlRefused, match="below 5") as caught:
        turnstream.resume(4, "two")
    assert caught.value.status == 409
    assert turnstream.resume(4, "two", run_epoch=1)["version"] == 4
    assert turnstream.resume(1)["run_id"] == "default"


def test_the_same_for_code_that_awaits(turnstream: Turnstream) -> None:
    async def story() -> None:
        assert (await turnstream.pause_async("three"))["paused"]
        assert (await turnstream.pause_async("three"))["already"]
        told = await turnstream.resume_async(7, "three", run_epoch=2)
        assert (told["version"], told["run_epoch"], told["paused"]) == (7, 2, False)

    asyncio.run(story())
