"""An agent at the gateway: the real openai SDK, and the history that an agent keeps."""

from collections.abc import Sequence
from typing import Any

import openai

from streams.adapters.engines.scripted import Rule

Message = dict[str, Any]
BASH: Message = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class Agent:
    """One session's client: the real SDK, which sends what an agent would."""

    def __init__(self, opened: dict[str, Any], **client: Any) -> None:
        self.session_id: str = opened["session_id"]
        self.key: str = opened["key"]
        # Its signatures know the vendor's own fields only.
        self.client: Any = openai.AsyncOpenAI(
            **{"base_url": opened["base_url"], "api_key": self.key, "max_retries": 0, **client}
        )
        self.messages: list[Message] = []
        self.tools: list[Message] = []
        self.answers: list[Message] = []
        self.stream = False

    async def ask(self, *new: Message, **more: Any) -> Message:
        """Say something, keep the answer as an agent does, and return it."""
        self.messages += new
        answer = await self.send(self.messages, **more)
        self.messages.append(answer)
        return answer

    async def send(self, messages: Sequence[Message], **more: Any) -> Message:
        """One call; the answer in the form that goes back."""
        asked: dict[str, Any] = {"model": "m", "messages": list(messages), **more}
        if self.tools and "tools" not in asked:
            asked["tools"] = self.tools
        if not asked.setdefault("stream", self.stream):
            reply = await self.client.chat.completions.create(**asked)
            answer: Message = reply.choices[0].message.model_dump(exclude_none=True)
        else:
            answer = await self._streamed(asked)
        self.answers.append(answer)
        return answer

    async def _streamed(self, asked: dict[str, Any]) -> Message:
        answer: Message = {"role": "assistant", "content": None}
        async with await self.client.chat.completions.create(**asked) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    add_delta(answer, choice.delta.model_dump(exclude_none=True))
        return answer

    async def run_tools(self, answer: Message, text: str = "ok", **more: Any) -> Message:
        """Answer every call of an answer, and go on."""
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"{text} {number}"}
            for number, call in enumerate(answer["tool_calls"])
        ]
        return await self.ask(*results, **more)


def add_delta(answer: Message, delta: Message) -> None:
    """One more chunk of a streamed message."""
    for name in ("content", "reasoning_content"):
        if delta.get(name) is not None:
            answer[name] = (answer.get(name) or "") + delta[name]
    for call in delta.get("tool_calls", ()):
        kept = {name: value for name, value in call.items() if name != "index"}
        answer.setdefault("tool_calls", []).append(kept)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def says(text: str, reasoning: str = "", **more: Any) -> Rule:
    """The engine answers in words."""
    return Rule(message={"content": text, "reasoning_content": reasoning}, **more)


def calls(*commands: str, text: str = "", reasoning: str = "", **more: Any) -> Rule:
    """The engine calls its tool."""
    made = [{"function": {"name": "bash", "arguments": {"command": text}}} for text in commands]
    message = {"content": text, "reasoning_content": reasoning, "tool_calls": made}
    return Rule(message=message, **more)
