r"""What a template prints after an answer, found with a marker instead of the history.

A stub of two messages stands for the whole history; its answer holds a marker. Rendered with the
new messages, everything after the first end token past the marker is what they add:

    <|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\nMARK<|im_end|>│\n<|im_start|>user\n...
                                                                      └ from here on

That holds for templates that print a message without looking back. Whether this one does is
tried at the start with a longer history, with tools and without; if the two differ, there is no
suffix for it.

Invariant: what is returned starts right after an end token, so it can be encoded by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering import probes
from streams.adapters.gateway.rendering.encoding import Encoder, RenderFailed
from streams.adapters.gateway.rendering.template import Template

_MARK = "Turnstream7marks5this3place"
_TAIL = "Turnstream9ends1here"
_THOUGHT = "Turnstream2thought8so"
_ASKED: Message = {"role": "user", "content": "?"}
_TAILS: tuple[tuple[Message, ...], ...] = (
    ({"role": "tool", "content": _TAIL, "tool_call_id": "call00000", "name": "f"},),
    ({"role": "user", "content": _TAIL},),
    (),
)
"""What may stand behind a given answer so that the template does not take it for the last."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """The suffixes of one template."""

    template: Template
    encoder: Encoder
    stop: str
    """The token that ends an answer in the history."""
    with_tools: bool
    """Whether the tools change what is printed after an answer."""
    tail: tuple[Message, ...] | None
    """What is put behind a given answer; None if such answers cannot be rendered alone."""
    no_thought: str = ""
    """The empty thought that the header of an answer ends with where thinking is off.

    Every answer sampled there follows it, so given answers follow it too, whatever the template
    does with it in the history.
    """

    def after(
        self, new: Sequence[Message], tools: Sequence[Tool] = (), *, opened: bool = True
    ) -> str:
        """What follows an answer's end token: the new messages and the header of the next."""
        text = self.template.render([_ASKED, _stub(new), *new], self._tools(tools), opened=opened)
        return text[self._end_of_stub(text) :]

    def through(
        self, new: Sequence[Message], given: Message, tools: Sequence[Tool] = ()
    ) -> tuple[str, str]:
        """What follows an answer up to the end of another that was not sampled here.

        The second text is the same without that end: a model may go on from there.
        """
        before, used = [_ASKED, _stub(new), *new], self._tools(tools)
        text = self._with_no_thought(self._with_tail([*before, given], used), before, given, used)
        return self._given(text[self._end_of_stub(text) :], given)

    def beginning(
        self, first: Sequence[Message], given: Message, tools: Sequence[Tool]
    ) -> tuple[str, str]:
        """The same from the start of a conversation on."""
        text = self._with_tail([*first, given], tools)
        return self._given(self._with_no_thought(text, first, given, tools), given)

    def _tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        return tools if self.with_tools else ()

    def _end_of_stub(self, text: str) -> int:
        marked = text.find(_MARK)
        end = text.find(self.stop, marked)
        if min(marked, end) < 0:
            raise RenderFailed("the chat template does not print an answer and its end")
        return end + len(self.stop)

    def _with_tail(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        if self.tail is None:
            raise RenderFailed("the chat template prints no answer by itself")
        text = self.template.render([*messages, *self.tail], tools, opened=False)
        before = text.rfind(_TAIL) if self.tail else len(text)
        end = text.rfind(self.stop, 0, before)
        if min(before, end) < 0:
            raise RenderFailed("the chat template does not print an answer and its end")
        return text[: end + len(self.stop)]

    def _with_no_thought(
        self, text: str, before: Sequence[Message], given: Message, tools: Sequence[Tool]
    ) -> str:
        if not self.no_thought or not before or given.get("reasoning_content"):
            return text
        header = self.template.render(before, tools).removesuffix(self.no_thought)
        if not text.startswith(header):
            return text
        return header + self.no_thought + text[len(header) :]

    def _given(self, text: str, given: Message) -> tuple[str, str]:
        open_ended = text[: -len(self.stop)]
        content = self.encoder.guard(given.get("content") or "")
        if content.strip() and not given.get("tool_calls"):
            printed = content if content in open_ended else content.strip()
            at = open_ended.rfind(printed)
            if at >= 0:
                open_ended = open_ended[: at + len(printed)]
        return text, open_ended


def _stub(new: Sequence[Message]) -> Message:
    """An answer that the new messages may follow, with the marker as the last thing it says."""
    results = list(takewhile(lambda message: message["role"] == "tool", new))
    if not results:
        return {"role": "assistant", "content": _MARK}
    calls: list[dict[str, Any]] = [
        {
            "id": message.get("tool_call_id") or f"call{number:05d}",
            "type": "function",
            "function": {"name": message.get("name") or "f", "arguments": {}},
        }
        for number, message in enumerate(results)
    ]
    calls[-1]["function"] = {**calls[-1]["function"], "arguments": {"at": _MARK}}
    return {"role": "assistant", "content": "", "tool_calls": calls}


def find_suffix(template: Template, encoder: Encoder) -> tuple[Suffix | None, str]:
    """The suffixes of a template, and why there are none where it cannot be trusted."""
    try:
        closed = template.render([_ASKED, probes.said(_MARK)], opened=False)
        followed = template.render([_ASKED, probes.said(_MARK), probes.USER], opened=False)
    except RenderFailed as error:
        return None, str(error)
    stop = encoder.first_special(closed.partition(_MARK)[2])
    if stop is None or encoder.first_special(followed.partition(_MARK)[2]) != stop:
        return None, "no token ends an answer whatever follows it"
    for with_tools in (False, True):
        suffix = Suffix(template, encoder, stop, with_tools, None)
        wrong = _differs(suffix)
        if wrong is None:
            tail = _find_tail(suffix)
            header = suffix.after([probes.USER])
            return Suffix(template, encoder, stop, with_tools, tail, _no_thought(header)), "tested"
    return None, wrong or ""


def _differs(suffix: Suffix) -> str | None:
    """What is printed otherwise after a longer history; None if nothing is."""
    refused: RenderFailed | None = None
    compared = 0
    for history in probes.HISTORIES:
        for what, new in probes.FOLLOWING.items():
            try:
                text = suffix.template.render([*history, _stub(new), *new], probes.TOOLS)
                expected = text[suffix._end_of_stub(text) :]
                found = suffix.after(new, probes.TOOLS)
            except RenderFailed as error:
                # It will refuse them in a conversation, too, and then they are not rendered so.
                refused = error
                continue
            if found != expected:
                return f"{what} is printed otherwise after a longer history"
            compared += 1
    return None if compared else str(refused)


def _no_thought(header: str) -> str:
    """The empty thought that a header ends with."""
    before, opening, rest = header.rpartition("<think>")
    thought, closing, _ = rest.partition("</think>")
    return header[len(before) :] if opening and closing and not thought.strip() else ""


def _find_tail(suffix: Suffix) -> tuple[Message, ...] | None:
    """The tail behind which an answer is printed as in the history, with its reasoning if it can.

    An answer without reasoning must not get an empty thought: the history has none there.
    """
    given = probes.said(_MARK)
    usable: list[tuple[int, tuple[Message, ...]]] = []
    for tail in _TAILS:
        tried = Suffix(suffix.template, suffix.encoder, suffix.stop, suffix.with_tools, tail)
        try:
            bare, _ = tried.through([probes.USER], probes.said(_TAIL.lower()), probes.TOOLS)
            thought, _ = tried.through(
                [probes.USER], {**given, "reasoning_content": _THOUGHT}, probes.TOOLS
            )
        except RenderFailed:
            continue  # the template does not take this tail; another may do
        faults = (_THOUGHT not in thought) + ("<think>" in bare) + (_TAIL.lower() not in bare)
        usable.append((faults, tail))
    return min(usable, key=lambda pair: pair[0])[1] if usable else None
