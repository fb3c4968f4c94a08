"""What the agents of the benchmark say and what the model answers: one conversation, written once.

    request 1   tools, system, user
    request n   request n-1, its answer as a client sends it back, the tool's result

An answer thinks, speaks and calls a tool. A client drops the thinking and carries the call's id,
so the prompt of the next request goes on from the recorded tokens or loses them. Ids are minted
by the gateway while the load runs, so every body is prepared with holes where they stand. What
the user asks and what tools give begins with the session's own name, also a hole: only system
prompt and tools are the same in all sessions.

Text is made of long words that are one token each, so that 4,000 tokens take about 55 KB.

Invariant: an answer has exactly the asked number of ids, the end token included.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.drift.qwen3 import STOP, Qwen3

HOLE = re.compile(rb"<<(call-\d+|session)>>")
SESSION_HOLE = -1
OWN = "<<session>>"
LONG = re.compile("\u0120[a-z]{15,}")
"""A word of the vocabulary with the blank before it, as byte-level vocabularies spell one."""
ORDINARY = re.compile("\u0120[a-z]{3,5}")
THOUGHT_SHARE = 0.3
MODEL = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How long a session is, in tokens."""

    turns: int = 10
    question: int = 1_850
    answer: int = 200
    result: int = 130
    tools: int = 4


class Answer(msgspec.Struct, frozen=True):
    """One answer of the model."""

    ids: list[int]
    logprobs: list[float]
    reasoning: str
    text: str
    arguments: dict[str, str]


class Script(msgspec.Struct, frozen=True):
    """A session: its answers, and its requests as bodies with holes."""

    answers: list[Answer]
    bodies: list[list[bytes]]
    """Each in parts, between which the ids of earlier calls and the session's name belong."""
    holes: list[list[int]]
    """Of which turn's call, for each gap between two parts; `SESSION_HOLE`: the name."""
    prompt_tokens: list[int] = []
    """Of each request, as a template prints it."""

    def body(self, turn: int, session_id: bytes, calls: Sequence[bytes]) -> bytes:
        """A request, its holes filled."""
        parts = self.bodies[turn]
        pieces = [parts[0]]
        for hole, part in zip(self.holes[turn], parts[1:], strict=True):
            pieces += [session_id if hole == SESSION_HOLE else calls[hole], part]
        return b"".join(pieces)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))

    @staticmethod
    def load(path: Path) -> "Script":
        return msgspec.msgpack.decode(path.read_bytes(), type=Script)


class Writer:
    """Writes texts of a given number of tokens."""

    def __init__(self, qwen: Qwen3, words: re.Pattern[str] = LONG) -> None:
        """The same words every time."""
        self._qwen = qwen
        self._chance = random.Random(0)
        vocabulary = qwen.tokenizer.get_vocab()
        self._words = sorted(word[1:] for word in vocabulary if words.fullmatch(word))

    def words(self, tokens: int) -> str:
        return "".join(f" {word}" for word in self._chance.choices(self._words, k=tokens))

    def answer(self, tokens: int) -> Answer:
        """Thinking, text and a call, so many ids in all."""
        arguments = {"path": f"/src/{self._chance.choice(self._words)}.py", "pattern": "def "}
        spoken = 0
        while True:
            thought = int(spoken * THOUGHT_SHARE)
            reasoning, text = self.words(thought), self.words(spoken - thought)
            call = msgspec.json.encode({"name": "search", "arguments": arguments}).decode()
            ids = self._qwen.encode(
                f"<think>\n{reasoning}\n</think>\n\n{text}\n<tool_call>\n{call}\n</tool_call>{STOP}"
            )
            if len(ids) == tokens:
                break
            # A word is a token, but blanks at the edges join their neighbours.
            spoken += tokens - len(ids)
            if spoken < 0:
                raise ValueError(f"no answer has only {tokens} tokens")
        logprobs = [round(-self._chance.random(), 6) for _ in ids]
        return Answer(ids, logprobs, reasoning, text, arguments)


def tools(writer: Writer, count: int) -> list[dict[str, Any]]:
    """Tools with a description and two parameters each; the first is the one that is called."""
    names = ["search", *(f"tool_{number}" for number in range(1, count))]
    parameters = {name: {"type": "string", "description": "Text."} for name in ("path", "pattern")}
    schema = {"type": "object", "properties": parameters, "required": ["path"]}
    functions = [
        {"name": name, "description": writer.words(60), "parameters": schema} for name in names
    ]
    return [{"type": "function", "function": function} for function in functions[:count]]


def echo(answer: Answer, identity: str) -> dict[str, Any]:
    """An answer as most clients send it back: without what was thought."""
    arguments = msgspec.json.encode(answer.arguments).decode()
    function = {"name": "search", "arguments": arguments}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": answer.text.strip(), "tool_calls": [call]}


def result(text: str, identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def body(messages: Sequence[dict[str, Any]], offered: Sequence[dict[str, Any]]) -> bytes:
    asked = {"model": MODEL, "messages": messages, "tools": offered, "temperature": 1.0}
    return msgspec.json.encode(asked)


def write(qwen: Qwen3, shape: Shape) -> Script:
    """One session."""
    writer = Writer(qwen)
    offered = tools(writer, shape.tools)
    half = shape.question // 2
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": writer.words(half)},
        {"role": "user", "content": OWN + writer.words(shape.question - half)},
    ]
    script = Script([], [], [], [])
    for turn in range(shape.turns):
        parts = HOLE.split(body(messages, offered))
        script.bodies.append(parts[::2])
        script.holes.append([_hole(name) for name in parts[1::2]])
        script.prompt_tokens.append(len(qwen.render(messages, offered)))
        answer = writer.answer(shape.answer)
        script.answers.append(answer)
        identity = f"<<call-{turn}>>"
        messages += [echo(answer, identity), result(OWN + writer.words(shape.result), identity)]
    return script


def _hole(name: bytes) -> int:
    return SESSION_HOLE if name == b"session" else int(name.removeprefix(b"call-"))
