"""One agent at three APIs: the same conversation, told and kept as each vendor's SDK does it.

    ask(user("How big?")) ──► messages, blocks or items ──► SDK ──► gateway
    Said                 ◄── the SDK's own objects, which go back with the next request

Invariant: a history holds what the SDK gave, unread; only what is new is translated.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import anthropic

from tests.adapters.gateway.agents import BASH, Agent, Message
from tests.adapters.gateway.world import World

MAX_TOKENS = 4096
_ENDS = ("response.completed", "response.incomplete")
Group = list[Any]
"""What was said at once, in the form of the API."""


@dataclass(frozen=True)
class Called:
    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Said:
    """An answer, in words that fit every API."""

    text: str
    reasoning: str
    calls: tuple[Called, ...]
    native: Group
    id: str
    usage: Any = None


class Talker(ABC):
    """An agent that keeps its history and does not know what it speaks with."""

    def __init__(self, agent: Agent, *, stream: bool = False) -> None:
        self.agent = agent
        self.stream = stream
        self.head: Any = ""
        """What stands before everything: a text, or whatever the API takes for it."""
        self.tools: list[Message] = [BASH]
        """As Chat Completions spells them."""
        self.history: list[Group] = []

    @property
    def session_id(self) -> str:
        return self.agent.session_id

    @property
    def client(self) -> Any:
        return self.agent.client

    def another(self) -> Self:
        """Another agent in the same session, which has said nothing yet."""
        other = type(self)(self.agent, stream=self.stream)
        other.tools = self.tools
        return other

    async def ask(self, *new: Message, **more: Any) -> Said:
        """Say something, keep the answer as an agent does, and return it."""
        if new and new[0]["role"] == "system" and not self.history:
            self.head, new = new[0]["content"], new[1:]
        if new:
            self.history.append(self.told(new))
        said = await self.send(self.history, **more)
        self.history.append(said.native)
        return said

    async def run_tools(self, said: Said, text: str = "ok", *, backwards: bool = False) -> Said:
        """Answer every call of an answer, and go on."""
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"{text} {number}"}
            for number, call in enumerate(said.calls)
        ]
        return await self.ask(*(reversed(results) if backwards else results))

    async def send(self, history: Sequence[Group], **more: Any) -> Said:
        """One call."""
        return await self.post(self.body([part for group in history for part in group]) | more)

    @abstractmethod
    def told(self, new: Sequence[Message]) -> Group:
        """What is new, as the API spells it."""

    @abstractmethod
    def body(self, history: Group) -> dict[str, Any]:
        """A request."""

    @abstractmethod
    async def post(self, asked: dict[str, Any]) -> Said:
        """Send it with the SDK."""

    @abstractmethod
    def begun(self, text: str) -> Group:
        """The beginning of an answer, for the model to go on in."""


class ChatTalker(Talker):
    """Chat Completions."""

    def told(self, new: Sequence[Message]) -> Group:
        return list(new)

    def begun(self, text: str) -> Group:
        return [{"role": "assistant", "content": text}]

    def body(self, history: Group) -> dict[str, Any]:
        head = [{"role": "system", "content": self.head}] if self.head else []
        return {"messages": [*head, *history]}

    async def post(self, asked: dict[str, Any]) -> Said:
        self.agent.tools, self.agent.stream = self.tools, self.stream
        answer = await self.agent.send(**asked)
        made = [(call["id"], call["function"]) for call in answer.get("tool_calls", ())]
        calls = tuple(Called(i, f["name"], json.loads(f["arguments"])) for i, f in made)
        text, thought = answer.get("content") or "", answer.get("reasoning_content", "")
        return Said(text, thought, calls, [answer], "")


class MessagesTalker(Talker):
    """Messages, with the anthropic SDK."""

    def told(self, new: Sequence[Message]) -> Group:
        """Results stand in one message, as the API wants it."""
        told: Group = []
        for message in new:
            if message["role"] != "tool":
                told.append(dict(message))
                continue
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            if not told or told[-1].get("role") != "user" or isinstance(told[-1]["content"], str):
                told.append({"role": "user", "content": []})
            told[-1]["content"].append(block)
        return told

    def begun(self, text: str) -> Group:
        return [{"role": "assistant", "content": text}]

    def body(self, history: Group) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": "m", "max_tokens": MAX_TOKENS, "messages": history}
        if self.head:
            asked["system"] = self.head
        if self.tools:
            asked["tools"] = [messages_tool(tool) for tool in self.tools]
        return asked

    async def post(self, asked: dict[str, Any]) -> Said:
        if self.stream:
            async with self.client.messages.stream(**asked) as stream:
                reply = await stream.get_final_message()
        else:
            reply = await self.client.messages.create(**asked)
        blocks = reply.content
        return Said(
            "".join(block.text for block in blocks if block.type == "text"),
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            tuple(Called(b.id, b.name, b.input) for b in blocks if b.type == "tool_use"),
            [{"role": "assistant", "content": blocks}] if blocks else [],
            reply.id,
            reply.usage,
        )


class ResponsesTalker(Talker):
    """Responses."""

    def told(self, new: Sequence[Message]) -> Group:
        told: Group = []
        for message in new:
            match message["role"]:
                case "tool":
                    told.append(self._output(message))
                case "system":
                    told.append({"role": "developer", "content": message["content"]})
                case _:
                    told.append(dict(message))
        return told

    def _output(self, message: Message) -> Message:
        called = message["tool_call_id"]
        said = [plain(item) for group in self.history for item in group]
        free = any(item.get("call_id") == called and "input" in item for item in said)
        kind = "custom_tool_call_output" if free else "function_call_output"
        return {"type": kind, "call_id": called, "output": message["content"]}

    def begun(self, text: str) -> Group:
        return [{"role": "assistant", "content": text}]

    def body(self, history: Group) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": "m", "input": history, "store": False}
        if self.head:
            asked["instructions"] = self.head
        if self.tools:
            asked["tools"] = [responses_tool(tool) for tool in self.tools]
        return asked

    async def post(self, asked: dict[str, Any]) -> Said:
        if self.stream:
            async with self.client.responses.stream(**asked) as stream:
                # Its own helper takes no answer that was cut by length.
                ends = [event async for event in stream if event.type in _ENDS]
            reply = ends[-1].response
        else:
            reply = await self.client.responses.create(**asked)
        items = reply.output
        thoughts = [item.content or [] for item in items if item.type == "reasoning"]
        return Said(
            reply.output_text,
            "".join(part.text for parts in thoughts for part in parts),
            tuple(_called(item) for item in items if item.type.endswith("_call")),
            list(items),
            reply.id,
            reply.usage,
        )


def plain(part: Any) -> Any:
    """What an SDK gave, as the JSON that it sends."""
    if isinstance(part, list):
        return [plain(item) for item in part]
    if isinstance(part, dict):
        return {name: plain(value) for name, value in part.items()}
    return part.to_dict(mode="json") if hasattr(part, "to_dict") else part


def _called(item: Any) -> Called:
    if item.type == "custom_tool_call":
        return Called(item.call_id, item.name, item.input)
    if item.type == "tool_search_call":
        return Called(item.call_id, "tool_search", item.arguments)
    return Called(item.call_id, item.name, json.loads(item.arguments))


def messages_tool(tool: Message) -> Message:
    """A function as Messages spells it."""
    if "function" not in tool:
        return tool
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    return {"name": function["name"], "input_schema": schema}


def responses_tool(tool: Message) -> Message:
    """A function as Responses spells it; whatever is spelled so already stays."""
    if "function" not in tool:
        return tool
    return {"type": "function", "strict": False, **tool["function"]}


KINDS: dict[str, type[Talker]] = {
    "chat": ChatTalker,
    "messages": MessagesTalker,
    "responses": ResponsesTalker,
}


async def opened(world: World, kind: str, *, stream: bool = False, **fields: Any) -> Talker:
    """A session with an agent of that kind."""
    agent = await world.open(**fields)
    if kind == "messages":
        base_url = str(agent.client.base_url).removesuffix("/v1/")
        await agent.client.close()
        # The world closes it with the agent.
        agent.client = anthropic.AsyncAnthropic(base_url=base_url, api_key=agent.key, max_retries=0)
    return KINDS[kind](agent, stream=stream)
