"""Two gateways behind the router, three processors, and a gateway that is killed in the middle.

    agents, three ways to bring a key ──► router ──► gateway-1, gateway-2 ──► 3 processors

The answers are spelled with tokens that no tokenizer would choose: who had only the text of one
could not go on from it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from streams.adapters.client import AsyncSession, Turnstream
from tests.compose.compose_file import COMPOSE, read_services
from tests.compose.dockerfile import Stage
from tests.compose.kafka_service import ComposeBroker
from tests.compose.on_machine import on_this_machine, tailed
from tests.compose.stand_in import StandIn
from tests.compose.table import ROUTER, filled

KEYS = {"SECRET": "a-secret-of-this-test", "CONTROL_KEY": "a-control-key-of-this-test"}
SCRIPT = {
    "answers": [{"contains": "slowly", "text": "Word after word.", "gap_ms": 300, "times": None}],
    "otherwise": {"text": "Tokens that nobody would choose.", "drift": 2},
}
SESSIONS_EACH = 3
ASK_S = 60.0
BROKEN = (openai.APIError, httpx.TransportError)


@dataclass
class Agent:
    """An agent that keeps its history, and sends again what was not answered to the end."""

    session: AsyncSession
    kind: str
    messages: list[Any] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream has brought its first words."""

    async def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer = await (self._anthropic() if self.kind == "anthropic" else self._openai())
        self.messages.append({"role": "assistant", "content": answer})

    async def _anthropic(self) -> str:
        url = self.session.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(
            base_url=url, api_key=self.session.key, max_retries=5, timeout=ASK_S
        ) as sdk:
            answer = await sdk.messages.create(model="m", max_tokens=99, messages=self.messages)
        return "".join(block.text for block in answer.content if block.type == "text")

    async def _openai(self) -> str:
        async with self._sdk() as sdk:
            answer = await sdk.chat.completions.create(model="m", messages=self.messages)
        return answer.choices[0].message.content or ""

    async def begin(self, text: str) -> None:
        """Ask and read the first words of a stream; whatever happens then, ask again."""
        self.messages.append({"role": "user", "content": text})
        async with self._sdk() as sdk:
            asked = sdk.chat.completions.create(model="m", messages=self.messages, stream=True)
            async with await asked as stream:
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        break
                self.began.set()
                with pytest.raises(BROKEN):
                    async for _ in stream:
                        pass
        self.messages.pop()
        await self.ask(text)

    def _sdk(self) -> openai.AsyncOpenAI:
        in_path = self.kind == "in the path"
        return openai.AsyncOpenAI(
            base_url=self.session.base_url_with_key if in_path else self.session.base_url,
            api_key="none" if in_path else self.session.key,
            max_retries=5,
            timeout=ASK_S,
        )


@pytest.fixture
def stack(broker: ComposeBroker, image: Stage, tmp_path: Path, ports: dict[str, int]) -> StandIn:
    """Everything of the file, its engine playing the script."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    given = {f"TURNSTREAM_GATEWAY_{name}": value for name, value in KEYS.items()}
    given["GATEWAY_ENGINE"] = f"scripted:{script}"
    services = read_services(COMPOSE.read_text("utf-8"), given)
    return StandIn(
        services, image, tmp_path, lambda name: filled(tmp_path, ports, name), foreign=ROUTER
    )


async def recorded(agent: Agent, ports: Mapping[str, int]) -> dict[str, int]:
    """How many turns of the session each gateway holds; one that does not answer is left out."""
    path = f"/control/sessions/{agent.session.session_id}"
    found: dict[str, int] = {}
    async with httpx.AsyncClient(trust_env=False, timeout=ASK_S) as http:
        for name in ("gateway-1", "gateway-2"):
            url = f"http://127.0.0.1:{ports[name.replace('-', '_')]}{path}"
            key = {"authorization": f"Bearer {KEYS['CONTROL_KEY']}"}
            try:
                told = (await http.get(url, headers=key)).json()
            except httpx.TransportError:
                continue
            found[name] = told.get("recorded_turns", 0)
    return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[list[Agent]]:
    control = Turnstream(url, KEYS["CONTROL_KEY"])
    kinds = ("bearer", "anthropic", "in the path")
    agents = [
        Agent(await control.session().__aenter__(), kind)
        for kind in kinds
        for _ in range(SESSIONS_EACH)
    ]
    yield agents
    await asyncio.gather(*(agent.session.end(reward=1.0) for agent in agents))


def assert_intact(events: list[dict[str, Any]]) -> None:
    """The turns of one session, as the log has them: each goes on from all of the one before."""
    turns = [event for event in events if event["type"] == "turn"]
    length = 0
    for before, turn in zip([None, *turns], turns, strict=False):
        if before is not None:
            assert turn["base_turn_id"] == before["turn_id"]
            assert turn["kept_ids"] == length
        length = turn.get("kept_ids", 0) + len(turn["prompt_ids"]) + len(turn["output_ids"])


def test_a_session_outlives_its_gateway(stack: StandIn, ports: dict[str, int]) -> None:
    async def story() -> dict[str, bool]:
        """By session: whether its gateway was killed."""
        async with opened(f"http://127.0.0.1:{ports['router']}") as agents:
            for _ in range(2):
                await asyncio.gather(*(agent.ask("And?") for agent in agents))
            held = [await recorded(agent, ports) for agent in agents]
            # Whoever opened it: all calls of a session went to one of the two.
            assert all(sorted(turns.values()) == [0, 2] for turns in held), held
            homes = [max(turns, key=lambda name: turns[name]) for turns in held]
            assert set(homes) == {"gateway-1", "gateway-2"}
            streaming = [i for i, agent in enumerate(agents) if agent.kind != "anthropic"]
            killed = homes[streaming[0]]
            cut = [agents[i] for i in streaming if homes[i] == killed]
            under_way = [asyncio.ensure_future(agent.begin("And slowly?")) for agent in cut]
            await asyncio.gather(*(agent.began.wait() for agent in cut))
            stack.containers[killed][0].process.kill()
            others = [agent for agent in agents if agent not in cut]
            await asyncio.gather(*under_way, *(agent.ask("And now?") for agent in others))
            await asyncio.gather(*(agent.ask("And then?") for agent in agents))
            left = [await recorded(agent, ports) for agent in agents]
            assert all(list(turns.values()) == [4] for turns in left), left
        pairs = zip(agents, homes, strict=True)
        return {agent.session.session_id: home == killed for agent, home in pairs}

    with stack:
        stack.up({"processor": 3}, profiles={"gateway"})
        moved = asyncio.run(asyncio.wait_for(story(), 3 * ASK_S))
        records = tailed(stack, 2 * len(moved))
        dump = on_this_machine(stack, "export", "events").splitlines()
        said = stack.containers["router"][0].said
        stack.down()

    events = [json.loads(line) for line in dump]
    outcomes = {r["session_id"]: r for r in records if r["type"] == "session_closed"}
    assert outcomes.keys() == moved.keys()
    for session_id, outcome in outcomes.items():
        assert (outcome["end_status"], outcome["reward"], outcome["turns"]) == ("completed", 1, 4)
        assert [row["attach"] for row in outcome["ledger"]] == [
            "root",
            "extend",
            "extend",
            "extend",
        ]
        assert outcome["trained"] == outcome["generated"] > 0
        assert len(outcome["sample_ids"]) == 1
        own = [event for event in events if event["session_id"] == session_id]
        assert_intact(own)
        sources = {event["source"] for event in own if event["type"] == "turn"}
        assert len(sources) == (2 if moved[session_id] else 1)
    assert all(key not in said for key in KEYS.values())
    assert "ts-" not in said
