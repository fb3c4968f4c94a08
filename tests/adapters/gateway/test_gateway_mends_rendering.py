"""Long prompts are rendered beside the event loop, once, and one at a time."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streams.adapters.dialects import openai_chat
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.history.recorded import History
from streams.adapters.gateway.prompts.building import build
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.sampling.limits import LoopTurns
from tests.adapters.gateway.agents import user
from tests.adapters.gateway.outcomes import whole_prompts
from tests.adapters.gateway.prompts.prompt_setting import renderer, said
from tests.adapters.gateway.test_gateway_mends_bounds import posted
from tests.adapters.gateway.world import World, played

ANY = Rule(text="Yes.", times=None)
CHAT = "/v1/chat/completions"
HELD_S_MAX = 60.0
ANSWERS = 200
FOREIGN = json.dumps(
    {"model": "m", "messages": [*[user("Hi"), said("Hello.")] * ANSWERS, user("Go on.")]}
).encode()
"""A conversation whose answers nobody recorded."""


class Held:
    """Rendering that waits, the first time, until it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.waited_in_vain = False

    def wait(self) -> None:
        self.threads.append(threading.current_thread())
        if not self.began.is_set():
            self.began.set()
            self.waited_in_vain = not self.let_go.wait(HELD_S_MAX)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Every answer that is rendered and was not sampled here goes through it."""
    renderer()  # made once for all tests, and it renders while it is made
    holding, given = Held(), Renderer.given

    def waiting(self: Renderer, *args: Any, **options: Any) -> Any:
        holding.wait()
        return given(self, *args, **options)

    monkeypatch.setattr(Renderer, "given", waiting)
    yield holding
    holding.let_go.set()


def test_others_are_answered_while_a_long_prompt_is_rendered(tmp_path: Any, held: Held) -> None:
    @played(otherwise=ANY)
    async def story(world: World) -> None:
        slow, quick = await world.open(), await world.open()
        call = asyncio.create_task(posted(world, CHAT, FOREIGN, slow.key))
        assert await asyncio.to_thread(held.began.wait, HELD_S_MAX)
        await quick.ask(user("Hi"))
        held.let_go.set()
        assert (await call)[0] == 200
        assert not held.waited_in_vain
        assert threading.main_thread() not in held.threads

    story(tmp_path)


def test_a_conversation_of_others_is_rendered_once_and_as_in_one_go(
    tmp_path: Any, held: Held
) -> None:
    held.let_go.set()

    @played(otherwise=ANY)
    async def story(world: World) -> None:
        agent = await world.open()
        assert (await posted(world, CHAT, FOREIGN, agent.key))[0] == 200
        assert len(held.threads) == ANSWERS
        (turn,) = await world.recorded(agent.session_id)
        expected = build(openai_chat.read_call(FOREIGN), History(), world.renderer)
        (prompt,) = whole_prompts({turn.turn_id: turn}).values()
        assert list(prompt) == expected.ids.tolist()

    story(tmp_path)


def test_a_client_that_hangs_up_keeps_its_turn_in_the_thread_until_that_ends() -> None:
    async def story() -> None:
        turns, held = LoopTurns(), threading.Event()
        began, over = threading.Event(), threading.Event()

        def hold() -> None:
            began.set()
            held.wait(HELD_S_MAX)
            over.set()

        first = asyncio.create_task(turns.beside("a", hold))
        assert await asyncio.to_thread(began.wait, HELD_S_MAX)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(turns.beside("b", over.is_set))
        await asyncio.sleep(0.2)
        assert not second.done()
        held.set()
        assert await second, "it began when the first had ended"

    asyncio.run(story())


def test_sessions_take_turns_in_the_thread() -> None:
    async def story() -> None:
        turns, done = LoopTurns(), list[str]()
        inside = threading.Semaphore(1)

        def work(name: str) -> str:
            assert inside.acquire(blocking=False), "one at a time"
            done.append(name)
            inside.release()
            return name

        asked = ["a1", "a2", "a3", "b1"]
        calls = [turns.beside(name[0], lambda name=name: work(name)) for name in asked]  # type: ignore[misc]
        assert await asyncio.gather(*calls) == asked
        assert done == ["a1", "a2", "b1", "a3"]

    asyncio.run(story())
