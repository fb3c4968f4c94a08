"""What the agents of the benchmark ask and what the model answers: one conversation.

    request 1   tools, system, user, earlier calls and results, up to the asked history
    request n   request n-1, its answer as a client sends it back, the tool's result

An answer has reasoning, text and a tool call. A client drops the reasoning and carries the call's
id, so the next prompt either extends the recorded tokens or loses them. Ids are minted by the
gateway while the load runs, so messages are prepared with placeholders for them. The user's
question and every result begin with the session's name, also a placeholder: only tools, system
prompt and earlier calls are the same in all sessions.

Invariant: an answer has exactly the asked number of ids, the end token included.
"""

import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    # It takes seconds to load, and the processes that only read a script do not need it.
    from tests.drift.qwen3 import Qwen3

HOLE = re.compile(rb"<<(call-\d+|session)>>")
SESSION_HOLE = -1
OWN = "<<session>>"
ORDINARY = re.compile("\u0120[a-z]{3,5}")
"""Words of the vocabulary, with the blank before them as byte-level vocabularies spell one."""
THOUGHT_SHARE = 0.3
MODEL = "bench"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
"""The APIs that agents speak."""
STOP = "<|im_end|>"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How long a session is, in tokens."""

    turns: int = 10
    history: int = 4_000
    """The first prompt, about; never less than tools, system prompt and question."""
    system: int = 1_000
    question: int = 200
    answer: int = 200
    result: int = 300
    tools: int = 4


class Answer(msgspec.Struct, frozen=True):
    """One answer of the model."""

    ids: list[int]
    logprobs: list[float]
    """Float32 values, as engines send them."""
    pieces: list[str]
    """The text of each id."""
    reasoning: str
    text: str
    arguments: dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """Some messages as JSON, with placeholders."""

    texts: list[bytes]
    holes: list[int]
    """Of which turn's call, between two texts; `SESSION_HOLE`: the session's name."""

    def filled(self, session_id: bytes, calls: Sequence[bytes]) -> bytes:
        pieces = [self.texts[0]]
        for hole, text in zip(self.holes, self.texts[1:], strict=True):
            pieces += [session_id if hole == SESSION_HOLE else calls[hole], text]
        return b"".join(pieces)


class Bodies(msgspec.Struct, frozen=True):
    """The requests of a session in one API."""

    head: bytes
    """Of every body, up to its messages."""
    added: list[Part]
    """By turn."""


class Script(msgspec.Struct, frozen=True):
    """A session: its answers, and its requests."""

    answers: list[Answer]
    bodies: dict[str, Bodies]
    """By path of the API."""
    prompt_tokens: list[int]
    """Of each request, about; the first as a template renders it."""

    def body(self, turn: int, session_id: bytes, calls: Sequence[bytes], path: str = CHAT) -> bytes:
        """A streamed request with its placeholders filled."""
        bodies = self.bodies[path]
        parts = [part.filled(session_id, calls) for part in bodies.added[: turn + 1]]
        return b"".join((bodies.head, b",".join(parts), b"]}"))

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))

    @staticmethod
    def load(path: Path) -> "Script":
        return msgspec.msgpack.decode(path.read_bytes(), type=Script)


class Writer:
    """Writes texts of a given number of tokens."""

    def __init__(self, qwen: "Qwen3") -> None:
        """The same words every time."""
        self._qwen = qwen
        self._chance = random.Random(0)
        vocabulary = qwen.tokenizer.get_vocab()
        self._words = sorted(word[1:] for word in vocabulary if ORDINARY.fullmatch(word))

    def words(self, tokens: int) -> str:
        return "".join(f" {word}" for word in self._chance.choices(self._words, k=tokens))

    def answer(self, tokens: int) -> Answer:
        """Reasoning, text and a call, so many ids in all."""
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
        logprobs = [_float32(-self._chance.random()) for _ in ids]
        return Answer(ids, logprobs, self._qwen.pieces(ids), reasoning, text, arguments)


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
    """An answer as most clients send it back: without its reasoning."""
    arguments = msgspec.json.encode(answer.arguments).decode()
    function = {"name": "search", "arguments": arguments}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": answer.text.strip(), "tool_calls": [call]}


def result(text: str, identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def body(messages: Sequence[dict[str, Any]], offered: Sequence[dict[str, Any]]) -> bytes:
    asked = {"model": MODEL, "stream": True, "temperature": 1.0, "tools": offered}
    return msgspec.json.encode({**asked, "messages": messages})


def messages_body(system: str, offered: Sequence[dict[str, Any]]) -> bytes:
    """A request of the Messages API without messages."""
    renamed = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in offered
    ]
    asked = {"model": MODEL, "max_tokens": 4096, "stream": True, "temperature": 1.0}
    return msgspec.json.encode({**asked, "system": system, "tools": renamed, "messages": []})


def messages_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the chat API as the Messages API has it."""
    if message["role"] == "tool":
        identity, content = message["tool_call_id"], message["content"]
        given = {"type": "tool_result", "tool_use_id": identity, "content": content}
        return {"role": "user", "content": [given]}
    if message["role"] == "assistant":
        (call,) = message["tool_calls"]
        arguments = msgspec.json.decode(call["function"]["arguments"])
        name = call["function"]["name"]
        use = {"type": "tool_use", "id": call["id"], "name": name, "input": arguments}
        return {"role": "assistant", "content": [{"type": "text", "text": message["content"]}, use]}
    return message


def write(qwen: "Qwen3", shape: Shape) -> Script:
    """One session."""
    writer = Writer(qwen)
    offered = tools(writer, shape.tools)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": writer.words(shape.system)},
        {"role": "user", "content": OWN + writer.words(shape.question)},
    ]

    def exchange(identity: str, answer: Answer) -> list[dict[str, Any]]:
        return [echo(answer, identity), result(OWN + writer.words(shape.result), identity)]

    step = shape.answer + shape.result
    for at in range(shape.system + shape.question, shape.history, step):
        messages += exchange(f"call_earlier_{at}", writer.answer(shape.answer))
    prompt_tokens = len(qwen.render(messages, offered))
    chat = Bodies(body([], offered)[: -len(b"]}")], [])
    system, *messages = messages
    other = Bodies(messages_body(system["content"], offered)[: -len(b"]}")], [])
    script = Script([], {CHAT: chat, MESSAGES: other}, [])
    for turn in range(shape.turns):
        chat.added.append(_part(messages if turn else [system, *messages]))
        other.added.append(_part([messages_message(message) for message in messages]))
        script.answers.append(writer.answer(shape.answer))
        script.prompt_tokens.append(prompt_tokens + turn * step)
        messages = exchange(f"<<call-{turn}>>", script.answers[-1])
    return script


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def _part(messages: Sequence[dict[str, Any]]) -> Part:
    parts = HOLE.split(msgspec.json.encode(messages)[1:-1])
    return Part(parts[::2], [_hole(name) for name in parts[1::2]])


def _hole(name: bytes) -> int:
    return SESSION_HOLE if name == b"session" else int(name.removeprefix(b"call-"))
