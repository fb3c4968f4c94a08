"""What a chat template does by itself when a conversation grows: whether it only ever appends.

    turn 1   prompt, answer                     printed as the end of a conversation
    turn 2   prompt, answer, what is new        printed anew: the same tokens first, or not

The gateway keeps recorded tokens and asks a template for new messages only, so most of what is
found here never reaches a prompt of its own. It reaches everybody who prints whole histories:
the chat API of an engine, another gateway, the model's users after training.

Invariant: nothing here changes how a renderer prints; a template that refuses is told as such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streams.adapters.dialects.calls import Message, Tool
from streams.adapters.gateway.rendering import probes
from streams.adapters.gateway.rendering.encoding import RenderFailed
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.rendering.template import KEEP_REASONING, Template

_SHOWN = 3
"""Tokens of either side of a break."""
_DAYS = ("2026-01-01", "2026-01-02")
_THOUGHT = "I looked around first."

Conversation = tuple[Sequence[Tool], list[Message], Message, list[Message]]
STEPS: dict[str, Conversation] = {
    "a tool's result": (
        probes.TOOLS,
        [probes.SYSTEM, probes.USER],
        probes.call(1, reasoning=_THOUGHT),
        [probes.result(1)],
    ),
    "the user's next message": (
        probes.TOOLS,
        [probes.SYSTEM, probes.USER],
        probes.said("A wall.", _THOUGHT),
        [probes.USER_AGAIN],
    ),
    "the user's next message after a tool": (
        probes.TOOLS,
        [probes.SYSTEM, probes.USER, probes.call(1, reasoning=_THOUGHT), probes.result(1)],
        probes.said("A wall.", _THOUGHT),
        [probes.USER_AGAIN],
    ),
    "the user's next message, without tools": (
        (),
        [probes.USER],
        probes.said("A wall.", _THOUGHT),
        [probes.USER_AGAIN],
    ),
}
"""What may come: tools, the messages so far, the answer to them, what follows it."""


@dataclass(frozen=True, slots=True)
class Break:
    """Where a prompt leaves the one before it."""

    after: str
    """What came."""
    turn: int
    """Whose prompt it is, from 1."""
    token: int
    """The first one that differs, from 0."""
    of: int
    """Tokens of the turn before, prompt and answer."""
    prompt: int
    """Of those, its prompt."""
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def inside(self) -> Literal["prompt", "answer"]:
        """Which half of the turn before is left."""
        return "prompt" if self.token < self.prompt else "answer"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of all steps."""

    held: tuple[str, ...]
    broken: tuple[Break, ...]
    refused: Mapping[str, str]
    """The template's words, by step."""
    thinks: bool
    """Whether answers were tried with their reasoning: where the template prints it."""

    @property
    def appends(self) -> bool:
        return bool(self.held) and not self.broken


def grown(renderer: Renderer, template: Template) -> Trial:
    """A template through all steps."""
    held: list[str] = []
    broken: list[Break] = []
    refused: dict[str, str] = {}
    thinks = _prints_reasoning(template)
    for name, (tools, before, answer, new) in STEPS.items():
        given = [message if thinks else _unthought(message) for message in [*before, answer]]
        try:
            prompt = template.render(given[:-1], tools)
            told = template.render(given, tools, opened=False)
            following = template.render([*given, *new], tools)
        except RenderFailed as error:
            refused[name] = str(error)
            continue
        turn = 1 + sum(message["role"] == "assistant" for message in given)
        found = _left(renderer, (prompt, told, following), name, turn)
        if found is None:
            held.append(name)
        else:
            broken.append(found)
    return Trial(tuple(held), tuple(broken), refused, thinks)


def switches_in(text: str) -> dict[str, bool]:
    """The switches by which a template can be told to keep reasoning."""
    return {name: value for name, value in KEEP_REASONING.items() if name in text}


def dated(renderer: Renderer, text: str) -> Break | None:
    """Where a template prints the date, if it does: a prompt of one day against the next."""
    if "strftime_now" not in text:
        return None
    prompts: list[list[int]] = []
    for day in _DAYS:
        template = renderer.printing(text, {"strftime_now": _always(day)})
        try:
            prompts.append(
                renderer.encode_printed(template.render([probes.SYSTEM, probes.USER], probes.TOOLS))
            )
        except RenderFailed:
            return None
    one, other = prompts
    at = _first_difference(one, other)
    if at == len(one):
        return None
    shown = (_pieces(renderer, ids[at:]) for ids in prompts)
    return Break("another day", 2, at, len(one), len(one), *shown)


@dataclass(frozen=True, slots=True)
class Arguments:
    """How the arguments of a call are printed."""

    strings: Literal["the same", "encoded twice", "refused", "not printed"]
    """Given as the text that OpenAI's API has, not as an object."""
    python: tuple[str, ...]
    """Values that are printed as Python spells them, not as JSON does."""


def arguments(renderer: Renderer, text: str) -> Arguments | None:
    """How a template prints the arguments of a call; None if it prints no calls."""
    template = renderer.printing(text)
    try:
        plain = _called(template, {"at": "place 1"})
    except RenderFailed:
        return None
    if "place 1" not in plain:
        return None
    strings: Literal["the same", "encoded twice", "refused", "not printed"]
    try:
        spelled = _called(template, '{"at": "place 1"}')
        strings = "the same" if spelled == plain else "encoded twice"
        if "place 1" not in spelled:
            strings = "not printed"
    except RenderFailed:
        strings = "refused"
    python: list[str] = []
    for value, word in ((False, "False"), (True, "True"), (None, "None")):
        try:
            printed = _called(template, {"at": "place 1", "much": value})
        except RenderFailed:
            continue  # refused, and so not printed as Python
        if printed.count(word) > plain.count(word):
            python.append(word)
    return Arguments(strings, tuple(python))


def _called(template: Template, given: Any) -> str:
    call = probes.call(1)
    function = {"name": "look", "arguments": given}
    call["tool_calls"] = [{**call["tool_calls"][0], "function": function}]
    messages = [probes.SYSTEM, probes.USER, call, probes.result(1)]
    return template.render(messages, probes.TOOLS)


def _prints_reasoning(template: Template) -> bool:
    """Whether answers think here: not where the header of each begins with an empty thought."""
    try:
        told = template.render([probes.USER, probes.said("A wall.", _THOUGHT)], opened=False)
        header = template.render([probes.USER])
    except RenderFailed:
        return False
    return _THOUGHT in told and not header.rstrip().endswith("</think>")


def _unthought(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _left(renderer: Renderer, printed: tuple[str, str, str], after: str, turn: int) -> Break | None:
    """Where the third text leaves the first two, if it does."""
    prompt, told, following = (renderer.encode_printed(text) for text in printed)
    # The header of an answer may hold what no answer in a history has; then it alone counts.
    whole = told if told[: len(prompt)] == prompt else prompt
    at = _first_difference(prompt, following)
    if at == len(prompt):
        at = _first_difference(whole, following)
    if at == len(whole):
        return None
    old, new = _pieces(renderer, whole[at:]), _pieces(renderer, following[at:])
    return Break(after, turn, at, len(whole), len(prompt), old, new)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _pieces(renderer: Renderer, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(renderer.decode([token]) for token in ids[:_SHOWN])


def _always(day: str) -> Any:
    return lambda _: day
