"""What the tokens of one model family mean: where it thinks, where it calls, where it ends.

Structure is read from token ids, never from text: `<tool_call>` spelled with ordinary tokens is
text. Which ids are markers follows from the tokenizer, by the table below. What stands inside a
call is read by the family's own reader, the `renderers` object that writes its prompts.

    reader   markers     answers are read
    yes      both        while they stream
    yes      not both    whole, at their end: nothing is given before
    none     thinking    while they stream; what is no thought is text
    none     none        while they stream; everything is text

Invariant: what `read` returns can be run by any client: a name, and a JSON object's text.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

from schemas.json_lines import NESTING_MAX
from streams.adapters.dialects.calls import Tool
from streams.adapters.gateway.rendering.detokenising import Vocabulary

THINKING = (("<think>", "</think>"),)
CALLING = (
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<tool_call>", "</tool_call>"),
)
"""The first pair that a tokenizer has."""

OK = "ok"
DEPTH_MAX = NESTING_MAX - 10
"""Of arguments: a record has brackets around them, and JSON libraries give up at some depth."""
CALLS_MAX = 1000
"""Of one answer; a model in a loop writes more than any client would run."""


class SeenCall(Protocol):
    """One attempt at a call, as a reader reports it."""

    raw: str
    name: Any
    arguments: Any
    status: Any


class Seen(Protocol):
    """A whole answer, as a reader reports it."""

    content: str
    reasoning_content: str | None

    @property
    def tool_calls(self) -> Sequence[SeenCall]:
        """Every attempt, broken ones too."""
        ...


class Reader(Protocol):
    """What is needed of a `renderers` renderer."""

    def parse_response(
        self, token_ids: list[int], *, tools: Any = None, prompt_ids: list[int] | None = None
    ) -> Seen:
        """Sampled ids as a message."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """The ids that end an answer."""
        ...


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call that can be run."""

    name: str
    arguments: str
    """The text of a JSON object, as it was sampled where the family writes JSON."""
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """One tokenizer's markers and its reader; one for all answers."""

    vocabulary: Vocabulary
    reader: Reader | None
    stop_ids: frozenset[int]
    think: tuple[int, int] | None
    call: tuple[int, int] | None
    """The ids that open and close a call; None where calls are not read from a stream."""
    whole_only: bool
    """The family is known but its markers are not single tokens: only whole answers are read."""

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, reader: Reader | None, stop_ids: Iterable[int] = ()
    ) -> "Grammar":
        """Look the markers up; `stop_ids` are those that the reader does not name."""
        vocabulary = Vocabulary(tokenizer)
        think = _pair(vocabulary, THINKING)
        call = _pair(vocabulary, CALLING) if reader else None
        return cls(
            vocabulary=vocabulary,
            reader=reader,
            stop_ids=frozenset(stop_ids) | frozenset(reader.get_stop_token_ids() if reader else ()),
            think=think,
            call=call,
            whole_only=reader is not None and (think is None or call is None),
        )

    def see(self, ids: list[int], tools: Sequence[Tool], prompt_ids: list[int]) -> Seen | None:
        """The reader's view of a whole answer or of one block; None if it cannot cope."""
        if self.reader is None:
            return None
        try:
            return self.reader.parse_response(ids, tools=list(tools) or None, prompt_ids=prompt_ids)
        except Exception:
            # Sampled ids are the world's: a thousand brackets in a row exhaust its JSON parser,
            # and a turn that was sampled has to be recorded whatever its reader thinks of it.
            return None

    def read(self, ids: list[int], tools: Sequence[Tool]) -> list[ReadCall] | None:
        """The calls of one closed block; None if one of them cannot be run."""
        seen = self.see(ids, tools, [])
        calls = [usable(call) for call in seen.tool_calls] if seen else []
        whole = [call for call in calls if call is not None]
        return whole if whole and len(whole) == len(calls) else None


def usable(call: SeenCall) -> ReadCall | None:
    """A reader's call in the form clients run; None where they could not.

    Readers let pass what no client can run: a name that is no text, arguments that are no
    object, NaN, half a surrogate, brackets by the hundred.
    """
    if call.status != OK or not isinstance(call.name, str) or not call.name:
        return None
    text = _arguments_text(call)
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None
    return None if _deep(values) else ReadCall(call.name, text, values)


class _Sampled(msgspec.Struct):
    """A call as the families write it that write name and arguments in one JSON object."""

    name: str
    arguments: msgspec.Raw


def _arguments_text(call: SeenCall) -> str:
    """The arguments as they were sampled, else as JSON writes them; empty if it cannot."""
    try:
        sampled = msgspec.json.decode(call.raw, type=_Sampled)
    except (ValueError, RecursionError):
        return _dumped(call.arguments)
    text = bytes(sampled.arguments).decode()
    return text if sampled.name == call.name and text != "null" else _dumped(call.arguments)


def _dumped(arguments: Any) -> str:
    values = {} if arguments is None else arguments
    try:
        return json.dumps(values, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return ""


def _deep(values: dict[str, Any]) -> bool:
    level: list[Any] = [values]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _pair(vocabulary: Vocabulary, table: tuple[tuple[str, str], ...]) -> tuple[int, int] | None:
    """The ids of the first pair whose tokens both exist."""
    for opening, closing in table:
        first, last = vocabulary.id_of(opening), vocabulary.id_of(closing)
        if first is not None and last is not None:
            return first, last
    return None
