"""Sampled answers of the real Qwen3 vocabulary, and what a parser makes of them, as text.

    thinks "hm." says "Let me look." calls bash {"command": "ls"}

A drawing joins pieces of the same kind, so that it does not show how the ids were divided.
"""

import functools
import importlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from streams.adapters.dialects.calls import Call, Message, Piece, Reasoning, Text, Tool, ToolCall
from streams.adapters.engines.interface import Finish
from streams.adapters.gateway.answers.grammar import Grammar, Reader
from streams.adapters.gateway.answers.parsing import AnswerParser, Parsed
from tests.drift import qwen3

HEADER = "<|im_start|>assistant\n"
THINKING_HEADER = f"{HEADER}<think>\n"
BASH: Tool = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
USER: Message = {"role": "user", "content": "How big is the repo?"}


@functools.cache
def loaded() -> qwen3.Qwen3:
    return qwen3.load()


def backend() -> Tokenizer:
    found = loaded().tokenizer.backend_tokenizer
    assert isinstance(found, Tokenizer)
    return found


@functools.cache
def renderer(family: str = "Qwen3") -> Any:
    """A family's reader over this vocabulary; the package carries no types."""
    package = importlib.import_module("renderers")
    return package.create_renderer(
        loaded().tokenizer, getattr(package, f"{family}RendererConfig")()
    )


@functools.cache
def grammar(family: str = "Qwen3") -> Grammar:
    return Grammar.of(backend(), renderer(family))


def encode(text: str) -> list[int]:
    return loaded().encode(text)


def spelled(text: str) -> list[int]:
    """The ids of each character by itself, so that no marker is among them."""
    return [token for character in text for token in encode(character)]


def call(*, tools: tuple[Tool, ...] = (BASH,), stop: tuple[str, ...] = (), **more: Any) -> Call:
    return Call(**{"model": "m", "messages": (USER,), "tools": tools, "stop": stop} | more)


@dataclass(frozen=True)
class Heard:
    """All that came out of one answer."""

    given: list[Piece]
    parsed: Parsed

    @property
    def drawing(self) -> str:
        return drawn([*self.given, *self.parsed.pieces])


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an answer answers."""

    asked: Call = field(default_factory=call)
    prompt: str = HEADER
    finish: Finish = "stop"
    by: Grammar = field(default_factory=grammar)


def heard(ids: Sequence[int], setting: Setting | None = None, cuts: Iterable[int] = ()) -> Heard:
    """Feed the ids, divided at the cuts."""
    setting = setting or Setting()
    parser = AnswerParser(
        setting.by,
        setting.asked,
        mint=lambda index: f"call_{index}",
        prompt_tail_ids=encode(setting.prompt),
    )
    given: list[Piece] = []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(ids)]):
        given += parser.feed(ids[start:end])
    return Heard(given, parser.finish(setting.finish))


def one_by_one(ids: Sequence[int], setting: Setting | None = None) -> Heard:
    return heard(ids, setting, cuts=range(1, len(ids)))


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + piece.text)
        else:
            whole.append(piece)
    return whole


def drawn(pieces: Iterable[Piece]) -> str:
    return " ".join(_drawn(piece) for piece in joined(pieces))


def _drawn(piece: Piece) -> str:
    if isinstance(piece, ToolCall):
        return f"calls {piece.name} {piece.arguments}"
    return f'{"thinks" if isinstance(piece, Reasoning) else "says"} "{piece.text}"'


def reader_view(ids: Sequence[int], *, prompt: str = HEADER) -> Any:
    """What the reader makes of the whole answer."""
    reader: Reader = renderer()
    return reader.parse_response(list(ids), tools=[BASH], prompt_ids=encode(prompt))
