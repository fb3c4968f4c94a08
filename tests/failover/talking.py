"""Agents on the vendors' SDKs, with the retries those have and the patience agents have.

The SDK tries a call again whose connection breaks before its answer has begun; a stream that
breaks later it gives up, and the agent asks again. Every answer of the engine has a number of its
own, so that what a client has seen the end of can be found in the log.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anthropic
import httpx
import httpx2
import openai

from streams.adapters.engines.scripted import Rule, Script
from tests.adapters.gateway.agents import Agent, Message, calls, says, user
from tests.adapters.gateway.agents_kinds import KINDS, Said, Talker

TRIES_MAX = 8
TRY_AGAIN_S = 0.3
CALL_SECONDS_MAX = 60.0
ANEW_AFTER = 8
"""Answers after which an agent begins anew: an SDK works on all of a long history at every call,
and with a hundred of them in one process that is what would be measured."""
BROKEN = (openai.APIError, anthropic.APIError, httpx.HTTPError, httpx2.HTTPError, TimeoutError)
_NUMBER = re.compile(r"number (\d+)")


def numbered(count: int) -> Script:
    """Answers in words and answers with calls, each with its number, none spelled as usual."""
    return Script(answers=tuple(_answer(number) for number in range(count)))


def _answer(number: int) -> Rule:
    slow: dict[str, Any] = {"drift": 3, "chunks": (2,), "gap_ms": 40 if number % 4 else 120}
    thought = f"I think of number {number}, and of what comes after it." if number % 2 else ""
    if number % 3 == 0:
        return calls(f"look at number {number}", reasoning=thought, **slow)
    return says(f"This is the answer with number {number}, at some length.", thought, **slow)


@dataclass
class Asked:
    """One question, from the first try to its answer."""

    began_s: float
    ended_s: float = 0.0
    tries: int = 0
    number: int = -1
    """Of the answer."""


@dataclass
class Walker:
    """One session's agent."""

    talker: Talker
    key: str
    asked: list[Asked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What the agent itself saw break."""
    last: Said | None = None
    tries_max: int = TRIES_MAX

    def __post_init__(self) -> None:
        self._dice = Random(self.session_id)

    @property
    def session_id(self) -> str:
        return self.talker.session_id

    async def run(self, least: int, enough: asyncio.Event | None = None, rest_s: float = 0) -> None:
        """Ask until it has so many answers, and it is enough."""
        while len(self.asked) < least or not (enough is None or enough.is_set()):
            if len(self.asked) % ANEW_AFTER == 0:
                self.talker.history, self.last = [], None
            await self.answer(self.next_words())
            await asyncio.sleep(self._dice.uniform(0.2, 1.8) * rest_s)

    def move(self, url: str) -> None:
        """Go on at another address."""
        ours = self.talker.agent
        base_url = f"{url}/v1" if isinstance(ours.client, openai.AsyncOpenAI) else url
        ours.client = ours.client.copy(base_url=base_url)

    async def answer(self, new: list[Message]) -> None:
        """One answer, asked for again while the stream breaks."""
        talker, asked = self.talker, Asked(time.monotonic())
        history = [*talker.history, talker.told(new)]
        while True:
            asked.tries += 1
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    said = await talker.send(history)
                break
            except BROKEN as error:
                self.faults.append(f"{type(error).__name__}: {error}"[:200])
                if asked.tries == self.tries_max:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)
        asked.ended_s, asked.number = time.monotonic(), number_in(said)
        self.asked.append(asked)
        talker.history = [*history, said.native]
        self.last = said

    def next_words(self) -> list[Message]:
        """Results of what was called, or a question."""
        said = self.last
        if said is None or not said.calls:
            return [user(f"Question {len(self.asked)}?")]
        return [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {n}"}
            for n, call in enumerate(said.calls)
        ]

    async def close(self) -> None:
        await self.talker.client.close()


def number_in(said: Said) -> int:
    texts = [said.text, *(str(call.arguments) for call in said.calls)]
    (found,) = {match[1] for text in texts for match in _NUMBER.finditer(text)}
    return int(found)


def walker(url: str, opened: Mapping[str, Any], kind: str, *, stream: bool) -> Walker:
    """An agent of that kind, with connections of its own and the SDK's own retries."""
    # Without TLS there is nothing to verify; reading the authorities would take a while each.
    plain: dict[str, Any] = {"verify": False, "trust_env": False, "timeout": CALL_SECONDS_MAX}
    http = openai.DefaultAsyncHttpxClient(**plain)
    fields = {**opened, "base_url": f"{url}/v1"}
    agent = Agent(fields, max_retries=openai.DEFAULT_MAX_RETRIES, http_client=http)
    if kind == "messages":
        agent.client = anthropic.AsyncAnthropic(
            base_url=url,
            api_key=agent.key,
            http_client=anthropic.DefaultAsyncHttpxClient(**plain),
        )
    return Walker(KINDS[kind](agent, stream=stream), agent.key)
