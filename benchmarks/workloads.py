"""Made-up agent sessions, call by call, with the whole prompt of every call.

    append   one agent; every prompt is the last prompt, its output and a tool result
    drift    the same with what goes wrong in practice, and with sub-agents

A call holds its prompt as a view: calls of one transcript share one buffer until a drift
rewrites it, so a session of 300 turns does not hold 23 million ids here.

Invariant: the same arguments give the same session, byte for byte.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from schemas.record import Floats, Ids

VOCABULARY = 150_000
LINE_CHARS = 80
RESPONSE_DRIFT_EVERY, RESPONSE_DRIFT_AT = 10, 5
PROMPT_DRIFT_EVERY = 20
SUBAGENT_EVERY, SUBAGENT_AT = 10, 3
SUBAGENT_TURNS = 3
RETRY_EVERY, RETRY_AT = 20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of each part of a session."""

    first_prompt: int = 2_000
    output: int = 200
    tool: int = 300
    text_chars_per_token: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call with its whole prompt."""

    turn_id: str
    request_class: Literal["main", "subagent"]
    agent_id: str
    grown_from: "Call | None"
    """The agent's call before this one; none for its first."""
    prompt_T: Ids
    output_T: Ids
    logprobs_T: Floats
    messages: tuple[bytes, ...]
    """The whole prompt as chat messages, each as JSON text."""
    response: bytes


def appending(turns: int, seed: int, sizes: Sizes | None = None) -> list[Call]:
    """A session that only grows."""
    session = _Session(seed, sizes or Sizes())
    agent = session.new_agent("main", session.sizes.first_prompt)
    for turn in range(turns):
        if turn:
            session.tool_result(agent)
        session.call(agent)
    return session.calls


def drifting(turns: int, seed: int, sizes: Sizes | None = None) -> list[Call]:
    """A session of `turns` main turns in which things go wrong, at fixed places.

    Main turns are counted from 1:

    - before every 10th (5, 15, ...) the last response is re-rendered with one token fewer, at a
      random place in it;
    - before every 20th (20, 40, ...) the last prompt is re-rendered with one token more, at a
      random place in it;
    - after every 10th (3, 13, ...) a sub-agent with its own system prompt and half the first
      prompt's length makes 3 calls, without drift;
    - every 20th (8, 28, ...) is sampled twice from one prompt; the second copy is continued.

    Messages never change, only how they are rendered.
    """
    session = _Session(seed, sizes or Sizes())
    agent = session.new_agent("main", session.sizes.first_prompt)
    for turn in range(1, turns + 1):
        if turn > 1:
            if turn % RESPONSE_DRIFT_EVERY == RESPONSE_DRIFT_AT:
                session.drift_in_response(agent)
            if turn % PROMPT_DRIFT_EVERY == 0:
                session.drift_in_prompt(agent)
            session.tool_result(agent)
        session.call(agent, samples=2 if turn % RETRY_EVERY == RETRY_AT else 1)
        if turn % SUBAGENT_EVERY == SUBAGENT_AT:
            session.subagent()
    return session.calls


def compacted(seed: int, drift_every: int | None) -> list[Call]:
    """One realistic session: a main agent of 20 turns with a compaction after 12, two sub-agents.

    The sub-agents make 10 turns each, side by side with the main agent. Every so-many-th turn of
    each history is echoed with two of its tokens replaced by one, as re-tokenizing does.
    """
    session = _Session(seed, Sizes())
    long, short = (session.new_agent("main", tokens) for tokens in (2_000, 2_300))
    helpers = [session.new_agent("subagent", 1_500) for _ in range(2)]
    turns: Counter[str] = Counter()

    def step(agent: _Agent) -> None:
        if turn := turns[agent.name]:
            if drift_every is not None and turn % drift_every == 0:
                session.drift_in_response(agent)
            session.tool_result(agent)
        turns[agent.name] += 1
        session.call(agent)

    for _ in range(10):
        for agent in (long, *helpers):
            step(agent)
    for agent, count in ((long, 2), (short, 8)):
        for _ in range(count):
            step(agent)
    return session.calls


@dataclass(slots=True, eq=False)
class _Agent:
    """A transcript as the client will send it next."""

    request_class: Literal["main", "subagent"]
    name: str
    ids: Ids
    used: int
    messages: list[bytes]
    last: Call | None = None

    def add(self, ids: Ids, message: bytes) -> None:
        end = self.used + ids.size
        if end > self.ids.size:
            # Views of the old buffer stay valid: it is left, never resized.
            self._replace(self.ids[: self.used], 2 * end)
        self.ids[self.used : end] = ids
        self.used = end
        self.messages.append(message)

    def edit(self, at: int, removed: int, inserted: Ids) -> None:
        parts = (self.ids[:at], inserted, self.ids[at + removed : self.used])
        self._replace(np.concatenate(parts), self.ids.size)

    def prompt(self) -> Ids:
        view = self.ids[: self.used]
        view.flags.writeable = False
        return view

    def _replace(self, ids: Ids, capacity: int) -> None:
        self.ids = np.empty(max(capacity, ids.size), np.int32)
        self.ids[: ids.size] = ids
        self.used = ids.size


class _Session:
    def __init__(self, seed: int, sizes: Sizes) -> None:
        self.random = np.random.default_rng(seed)
        self.sizes = sizes
        self.calls: list[Call] = []
        self.agents = 0
        letters = self.random.choice(list("etaoinshrdlu cmfwypvbgk "), 50_000)
        letters[::LINE_CHARS] = "\n"
        self.letters = "".join(letters)
        self.system = self.message("system", sizes.first_prompt // 4)
        self.subagent_system = self.message("system", sizes.first_prompt // 8)

    def new_agent(self, kind: Literal["main", "subagent"], tokens: int) -> _Agent:
        system, system_ids = self.system if kind == "main" else self.subagent_system
        user, user_ids = self.message("user", tokens - system_ids.size)
        self.agents += 1
        agent = _Agent(kind, f"agent-{self.agents}", np.empty(0, np.int32), 0, [])
        agent.add(system_ids, system)
        agent.add(user_ids, user)
        return agent

    def call(self, agent: _Agent, samples: int = 1) -> None:
        """Sample one prompt some times; the last sample is continued."""
        prompt_T, messages, last = agent.prompt(), tuple(agent.messages), agent.last
        for _ in range(samples):
            response, output_T = self.message("assistant", self.sizes.output)
            logprobs_T = -self.random.random(output_T.size, np.float32)
            for array in (output_T, logprobs_T):
                array.flags.writeable = False
            agent.last = Call(
                turn_id=f"turn-{len(self.calls) + 1}",
                request_class=agent.request_class,
                agent_id=agent.name,
                grown_from=last,
                prompt_T=prompt_T,
                output_T=output_T,
                logprobs_T=logprobs_T,
                messages=messages,
                response=response,
            )
            self.calls.append(agent.last)
        agent.add(output_T, response)

    def tool_result(self, agent: _Agent) -> None:
        message, ids = self.message("tool", self.sizes.tool)
        agent.add(ids, message)

    def subagent(self) -> None:
        agent = self.new_agent("subagent", self.sizes.first_prompt // 2)
        for turn in range(SUBAGENT_TURNS):
            if turn:
                self.tool_result(agent)
            self.call(agent)

    def drift_in_response(self, agent: _Agent) -> None:
        size = self.sizes.output
        at = agent.used - size + int(self.random.integers(size))
        agent.edit(at, 1, np.empty(0, np.int32))

    def drift_in_prompt(self, agent: _Agent) -> None:
        at = int(self.random.integers(agent.used - self.sizes.output))
        agent.edit(at, 0, self.ids(1))

    def message(self, role: str, tokens: int) -> tuple[bytes, Ids]:
        chars = tokens * self.sizes.text_chars_per_token
        at = int(self.random.integers(len(self.letters)))
        content = (self.letters[at:] + self.letters * (1 + chars // len(self.letters)))[:chars]
        return msgspec.json.encode({"role": role, "content": content}), self.ids(tokens)

    def ids(self, count: int) -> Ids:
        return self.random.integers(0, VOCABULARY, count, np.int32)
