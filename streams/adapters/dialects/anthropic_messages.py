"""The messages of a Messages request in the form that chat templates read.

    system (a field)         ──► system, first; a billing line of the client's is taken out
    system (in the list)     ──► system, where it stands
    user: text, media, ...   ──► user; what stands side by side is one message, as in the API
    user: tool_result        ──► tool, with the name of the function that was called
    assistant                ──► assistant: its thinking, its text, its calls; one answer each

The API makes one turn of messages of one role that stand side by side. For the user that is done
here, because clients merge theirs between two requests. An assistant's stay apart: each was an
answer of its own.

Null is the same as not given. Whether a tool failed is said by its text; one that says nothing
gets a word.

Invariant: two spellings of one conversation give the same messages; `carriers` has, by the place
of its message, every signature and every sealed thought that came back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.adapters.dialects.anthropic_blocks import Block, BlockTexts, blocks_of
from streams.adapters.dialects.anthropic_tools import Tools
from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.dialects.common import check_nesting, joined, read_arguments, refused

UNPARSED = "__unparsedToolInput"
"""How Claude Code sends back the input of a call that is no JSON."""

_BILLING = "x-anthropic-billing-header:"
_FAILED = "[error]"


class GivenMessage(msgspec.Struct):
    """One message as a client spells it."""

    role: str
    content: str | list[Block] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was read."""

    messages: tuple[Message, ...]
    carriers: dict[int, tuple[str, ...]]
    added_tools: tuple[Tool, ...]
    """Defined within the conversation."""
    placeholders: int


def read_messages(
    system: str | list[Block] | None, given: Sequence[GivenMessage], tools: Tools
) -> Conversation:
    """The conversation; `tools` has the definitions that it refers to."""
    reader = _Reader(tools)
    reader.instruct(system)
    for index, message in enumerate(given):
        param = f"messages[{index}]"
        match message.role:
            case "user":
                reader.ask(message.content, f"{param}.content")
            case "assistant":
                reader.answer(message.content, f"{param}.content")
            case "system":
                reader.tell(message.content, f"{param}.content")
            case role:
                why = f"is {role!r:.80}; it has to be user, assistant or system"
                raise refused(f"{param}.role", why)
    reader.end_question()
    if not given or not reader.messages:
        raise refused("messages", "is empty; a call needs at least one message")
    texts = reader.texts
    return Conversation(
        tuple(reader.messages), reader.carriers, tuple(texts.added_tools), texts.placeholders
    )


class _Reader:
    """One conversation on its way."""

    def __init__(self, tools: Tools) -> None:
        self.messages: list[Message] = []
        self.carriers: dict[int, tuple[str, ...]] = {}
        self.texts = BlockTexts(tools)
        self._names: dict[str, str] = {}
        """Of the functions that were called, by the id of the call."""
        self._asked: list[str] = []
        """What the user says until somebody else speaks."""

    def instruct(self, system: str | list[Block] | None) -> None:
        """The instructions at the head."""
        texts = (self.texts.text_of(block, f"system[{i}]") for i, block in blocks_of(system))
        text = joined((_without_billing(text) for text in texts), "\n")
        if text:
            self._add({"role": "system", "content": text})

    def tell(self, content: str | list[Block] | None, param: str) -> None:
        """Instructions in the middle; without text they are settings for the vendor."""
        self.end_question()
        text = self.texts.all_of(content, param)
        if text:
            self._add({"role": "system", "content": text})

    def ask(self, content: str | list[Block] | None, param: str) -> None:
        """What the user says and what tools have given, in the given order."""
        if content is None:
            raise refused(param, "is missing")
        results = False
        for index, block in blocks_of(content):
            if block.type == "tool_result":
                results = True
                self._give_result(block, f"{param}[{index}]")
            else:
                text = self.texts.text_of(block, f"{param}[{index}]")
                self._asked += [text] if text else []
        if not results and not self._asked:
            self._asked.append("")  # the user's turn, though nothing is said

    def end_question(self) -> None:
        if self._asked:
            self._add({"role": "user", "content": joined(self._asked, "\n")})
            self._asked = []

    def answer(self, content: str | list[Block] | None, param: str) -> None:
        """What an assistant said. Its text was one; nothing stood between the blocks of it.

        Neighbouring messages are one turn, as the API has it: some clients keep one a block.
        """
        self.end_question()
        texts: list[str] = []
        thoughts: list[str] = []
        carriers: list[str] = []
        calls: list[dict[str, Any]] = []
        for index, block in blocks_of(content):
            match block.type:
                case "thinking":
                    thoughts.append(block.thinking or "")
                    carriers.append(block.signature or "")
                case "redacted_thinking":
                    carriers.append(block.data or "")
                case "tool_use":
                    calls.append(self._read_call(block, f"{param}[{index}]"))
                case _:
                    text = self.texts.text_of(block, f"{param}[{index}]")
                    # Clients drop blocks of blanks, so there is no telling whether one was there.
                    texts += [text] if text.strip() else []
        message: Message = {"role": "assistant", "content": "".join(texts)}
        if any(thoughts):
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        before = self.messages[-1] if self.messages else None
        if before is not None and before["role"] == "assistant":
            message = _one_turn(self.messages.pop(), message)
        place = len(self.messages)
        given = dict.fromkeys(text for text in (*self.carriers.get(place, ()), *carriers) if text)
        if given:
            self.carriers[place] = tuple(given)
        self._add(message)

    def _add(self, message: Message) -> None:
        self.messages.append(message)

    def _read_call(self, block: Block, param: str) -> dict[str, Any]:
        if not block.name:
            raise refused(f"{param}.name", "is missing")
        function = {"name": block.name, "arguments": _arguments(block.input, f"{param}.input")}
        self._names[block.id or ""] = block.name
        return {"id": block.id or "", "type": "function", "function": function}

    def _give_result(self, block: Block, param: str) -> None:
        self.end_question()
        if not block.tool_use_id:
            raise refused(f"{param}.tool_use_id", "is missing; it names the call that this answers")
        text = self.texts.all_of(block.content, f"{param}.content")
        if block.is_error and not text:
            text = _FAILED
        message: Message = {"role": "tool", "content": text, "tool_call_id": block.tool_use_id}
        name = self._names.get(block.tool_use_id)
        if name:
            message["name"] = name
        self._add(message)


def _one_turn(first: Message, second: Message) -> Message:
    """Two messages of an assistant, with nobody between them."""
    message: Message = {"role": "assistant", "content": first["content"] + second["content"]}
    thought = first.get("reasoning_content", "") + second.get("reasoning_content", "")
    if thought:
        message["reasoning_content"] = thought
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    if calls:
        message["tool_calls"] = calls
    return message


def _without_billing(text: str) -> str:
    # It names a number made of the first question: two sessions of one task would share nothing.
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _arguments(given: Any, param: str) -> dict[str, Any] | str:
    if not isinstance(given, str | dict | None):
        raise refused(param, "is no object")
    if isinstance(given, dict):
        unparsed = given.get(UNPARSED) if len(given) == 1 else None
        if isinstance(unparsed, dict) and isinstance(unparsed.get("raw"), str):
            return read_arguments(unparsed["raw"])
        check_nesting(given, param)
    return read_arguments(given)
