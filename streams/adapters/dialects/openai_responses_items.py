"""The items of a Responses request as the messages that chat templates read.

    message (system, developer, user)       ──► a message
    reasoning, message (assistant), calls   ──► one assistant message for all items of one answer
    outputs of calls                        ──► tool messages
    an item of a type that is not known     ──► a line of the user's: [TYPE omitted], counted

An answer is spread over items, and two answers may follow each other: a client goes on from what
it kept of a broken one. The ids that we give tell them apart, because they hold the answer's own
(`item_id`). A client that drops them is read by shape: an answer thinks, speaks, calls.

    rs_A_0  msg_A_1  rs_B_0  fc_B_1      two answers, A and B
    fc_A_1  output   fc_A_2              one answer, whose calls come with their outputs
    reasoning  message  reasoning        two answers

No answer of ours holds an item of an unknown type, so it is never part of one: it stands behind
the answer that it comes after, and that answer goes on behind it as it does behind outputs.

Of an item only what is said is read: status, annotations, phases and the ids of what a client
made itself differ from request to request.

Invariant: two spellings of one conversation give the same messages, and no item is dropped.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from streams.adapters.dialects.calls import CallRefused, Message
from streams.adapters.dialects.common import (
    IMAGE_OMITTED,
    Part,
    check_nesting,
    flatten,
    joined,
    read_arguments,
    refused,
    to_json,
)
from streams.adapters.dialects.openai_responses_given import (
    CLIENT_CALLS,
    CLIENT_OUTPUTS,
    SERVER_ITEMS,
    WHOLE_TYPES,
    GivenItem,
)
from streams.adapters.dialects.openai_responses_parts import placeholder, text_of
from streams.adapters.dialects.openai_responses_tools import (
    INPUT,
    TOOL_SEARCH,
    Tools,
    definitions,
    function_name,
)

ANSWER_PREFIX = "resp_"

_OWN_ID = re.compile(r"[a-z]+_([A-Za-z0-9]{16,})_[0-9]+")
_THOUGHT = re.compile(r"\s*<think>.*</think>\s*", re.DOTALL)

_NOT_SAID = {"type", "id", "call_id", "status", "caller", "result"}

_Kind = Literal["reasoning", "text", "call"]
_KINDS: dict[str, _Kind] = {"rs": "reasoning", "msg": "text"}
"""By the beginning of an item's id."""


def item_id(prefix: str, answer_id: str, index: int) -> str:
    """The id of an answer's item: whose it is, and which."""
    return f"{prefix}{answer_id.removeprefix(ANSWER_PREFIX)}_{index}"


def answer_of(item: Any) -> str | None:
    """The answer that an item's id names, if it is one of ours."""
    found = _OWN_ID.fullmatch(item) if isinstance(item, str) else None
    return ANSWER_PREFIX + found[1] if found else None


class Reader:
    """Reads the items of one request, in their order."""

    def __init__(self, tools: Tools, whole: Callable[[int], dict[str, Any]]) -> None:
        """`tools` get those that the items tell of; `whole` gives an item with all its fields."""
        self.messages: list[Message] = []
        self.carriers: dict[int, tuple[str, ...]] = {}
        self.references: set[int] = set()
        self.placeholders = 0
        self._tools = tools
        self._whole = whole
        self._names: dict[str, str] = {}
        """Of the functions that were called, by the ids of the calls."""
        self._open: int | None = None
        """The place of the last answer, if nothing but outputs follows it."""
        self._answer: str | None = None
        """Its id, as its items tell."""
        self._kinds: list[_Kind] = []

    def read(self, items: Sequence[GivenItem]) -> None:
        for index, item in enumerate(items):
            self._read(item, index, f"input[{index}]")

    def say(self, role: str, text: str) -> None:
        """A message that is no answer."""
        self._open = None
        self.messages.append({"role": role, "content": text})

    def _read(self, item: GivenItem, index: int, param: str) -> None:
        match item.type or ("message" if item.role else "item_reference" if item.id else None):
            case "message":
                self._read_message(item, param)
            case "reasoning":
                self._read_reasoning(item)
            case "function_call" | "custom_tool_call" | "tool_search_call" as kind:
                self._read_call(item, kind, param)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, param, self._text_of_output(item.output, f"{param}.output"))
            case "additional_tools":
                self._read_tools(item, param)
            case "tool_search_output":
                told = self._tools.add(item.tools or (), f"{param}.tools", found=True)
                self._result(item, param, definitions(told))
            case "item_reference":
                self._read_reference(item, param)
            case None:
                raise refused(f"{param}.type", "is missing")
            case kind if kind in WHOLE_TYPES:
                self._read_other(kind, item, self._whole(index), param)
            case unknown:
                self.messages.append({"role": "user", "content": placeholder(unknown, "item")})
                self.placeholders += 1

    def _read_message(self, item: GivenItem, param: str) -> None:
        if item.role == "assistant":
            # What one answer said was one text; whoever cut it put nothing between the parts.
            text, omitted = text_of(item.content, between="")
            message = self._speaking(item, "text")
            message["content"] += text
        elif item.role in {"system", "developer", "user"}:
            if item.content is None:
                raise refused(f"{param}.content", "is missing")
            text, omitted = text_of(item.content)
            self.say("user" if item.role == "user" else "system", text)
        else:
            why = f"is {item.role!r:.80}; it has to be system, developer, user or assistant"
            raise refused(f"{param}.role", why)
        self.placeholders += omitted

    def _read_reasoning(self, item: GivenItem) -> None:
        message = self._speaking(item, "reasoning")
        text = _thought(item)
        if text:
            message["reasoning_content"] = joined((message.get("reasoning_content"), text), "\n")

    def _read_call(self, item: GivenItem, kind: str, param: str) -> None:
        if kind == "custom_tool_call":
            arguments: Any = {INPUT: item.input or ""}
        elif isinstance(item.arguments, dict):
            check_nesting(item.arguments, f"{param}.arguments")
            arguments = item.arguments
        elif item.arguments is None or isinstance(item.arguments, str):
            arguments = read_arguments(item.arguments)
        else:
            raise refused(f"{param}.arguments", "is neither a text nor an object")
        name = TOOL_SEARCH if kind == "tool_search_call" else item.name
        if not name:
            raise refused(f"{param}.name", "is missing")
        self._call(item, function_name(name, item.namespace), arguments)

    def _call(self, item: GivenItem, name: str, arguments: Any) -> None:
        call_id = item.call_id or ""
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._speaking(item, "call").setdefault("tool_calls", []).append(call)
        self._names[call_id] = name

    def _result(self, item: GivenItem, param: str, text: str) -> None:
        # Of a local shell the API names the call by `id`.
        called = item.call_id or (item.id if item.type == "local_shell_call_output" else None)
        if not called or not isinstance(called, str):
            raise refused(f"{param}.call_id", "is missing; it names the call that this answers")
        message: Message = {"role": "tool", "content": text, "tool_call_id": called}
        name = self._names.get(called) or item.name
        if name:
            message["name"] = name
        self.messages.append(message)

    def _text_of_output(self, output: Any, param: str) -> str:
        if isinstance(output, str):
            return output
        if output is None:
            return ""
        try:
            text, omitted = flatten(msgspec.convert(output, list[Part | str]), param)
        except (msgspec.ValidationError, CallRefused):
            check_nesting(output, param)
            return to_json(output).decode()
        self.placeholders += omitted
        return text

    def _read_tools(self, item: GivenItem, param: str) -> None:
        at_head = all(message["role"] == "system" for message in self.messages)
        told = self._tools.add(item.tools or (), f"{param}.tools", found=not at_head)
        if told and not at_head:
            self.say("system", "From here on there are more tools:\n" + definitions(told))

    def _read_reference(self, item: GivenItem, param: str) -> None:
        if answer_of(item.id) is None:
            why = "names no item of an answer that was given here; send the item itself"
            raise refused(f"{param}.id", why)
        kind = _KINDS.get(item.id.partition("_")[0], "call")
        self._speaking(item, kind)
        assert self._open is not None, "an answer is open"
        self.references.add(self._open)

    def _read_other(self, kind: str, item: GivenItem, whole: dict[str, Any], param: str) -> None:
        check_nesting(whole, param)
        said = {name: value for name, value in whole.items() if name not in _NOT_SAID}
        if kind in CLIENT_CALLS:
            self._call(item, kind.removesuffix("_call"), said)
        elif kind in CLIENT_OUTPUTS:
            output = said.get("output")
            if kind == "computer_call_output":
                output = IMAGE_OMITTED
                self.placeholders += 1
            text = output if isinstance(output, str) else to_json(said).decode()
            self._result(item, param, text)
        elif kind in SERVER_ITEMS:
            text = f"[{kind} {to_json(said).decode()}]"
            message = self._speaking(item, "call")
            message["content"] = joined((message["content"], text), "\n")
            self.placeholders += 1
        else:
            self.say("user", f"[{kind} {to_json(said).decode()}]")

    def _speaking(self, item: GivenItem, kind: _Kind) -> Message:
        """The assistant message that an item belongs to."""
        answer = answer_of(item.id)
        if not self._goes_on(answer, kind):
            self._open = len(self.messages)
            self._answer = None
            self._kinds = []
            self.messages.append({"role": "assistant", "content": ""})
        assert self._open is not None, "an answer was just opened"
        self._answer = self._answer or answer
        self._kinds.append(kind)
        named = answer or (item.id if isinstance(item.id, str) else None)
        given = (*self.carriers.get(self._open, ()), item.encrypted_content, named)
        carriers = tuple(dict.fromkeys(text for text in given if text))
        if carriers:
            self.carriers[self._open] = carriers
        return self.messages[self._open]

    def _goes_on(self, answer: str | None, kind: _Kind) -> bool:
        if self._open is None:
            return False
        if answer and self._answer:
            return answer == self._answer
        if self._open < len(self.messages) - 1:
            return False  # its outputs stand between
        if kind == "reasoning":
            return set(self._kinds) <= {"reasoning"}
        if kind == "text" and self._kinds[-1] == "text":
            # One answer says one text, but some clients send its thought as a text before it.
            return _THOUGHT.fullmatch(self.messages[self._open]["content"]) is not None
        return True


def _thought(item: GivenItem) -> str:
    content = item.content
    if isinstance(content, str):
        return content
    texts = (part if isinstance(part, str) else part.text for part in content or ())
    return joined(texts, "") or joined((part.text for part in item.summary or ()), "\n")
