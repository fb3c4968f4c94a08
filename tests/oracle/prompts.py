"""Random prompts: how the next call looks, given the calls before it.

    continue    the base's messages, its answer echoed, then news
    retry       the base's prompt again; step back: that of the turn before it
    fork        part of the base's messages, then news
    subagent    another system message; compact: the history replaced by a summary

Then the tokens may drift against the turn that the prompt continues, in a chosen region.

Invariant: a choice of 0 is the dull one, so a failing session shrinks to a readable one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Message = dict[str, Any]
Choice = TypeVar("Choice")

TOKENS = 6

# Rows of values that are equal by number for `slime` and different texts for `seed`, and two
# rows of near misses that are different for both.
SPELLINGS: tuple[tuple[Any, ...], ...] = (
    (1, 1.0, True),
    (0, False, -0.0, 0.0),
    (100, 100.0),
    (10**22, 1e22),
    (2**53 + 1, 2.0**53),
    (None, False, "", "0"),
)
WORDS = ("a", "b", "c", "naïve 你好")

KINDS = (
    ("continue", 22),
    ("retry", 4),
    ("step back", 7),
    ("fork", 3),
    ("subagent", 2),
    ("compact", 2),
)
ECHOES = (
    ("exact", 10),
    ("rewritten", 6),
    ("respelled", 5),
    ("reordered", 1),
    ("left out", 1),
    ("followed by a foreign one", 2),
)
DRIFTS = (
    ("none", 20),
    ("prompt region", 2),
    ("first token of the response", 3),
    ("last token of the response", 3),
    ("inside the response", 3),
    ("earlier response", 5),
    ("cut at the response", 3),
    ("cut inside the response", 2),
    ("cut anywhere", 2),
    ("nothing new", 1),
    ("inserted", 1),
)


class Dice:
    """Answers from a recipe, 0 once it is used up."""

    def __init__(self, recipe: bytes) -> None:
        self._bytes: Iterator[int] = iter(recipe)

    def below(self, count: int) -> int:
        return next(self._bytes, 0) % count

    def one_of(self, options: Sequence[Choice]) -> Choice:
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[Choice, int]]) -> Choice:
        roll = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            roll -= weight
            if roll < 0:
                return option
        raise AssertionError(options)

    def ids(self, count: int) -> list[int]:
        return [1 + self.below(TOKENS) for _ in range(count)]


@dataclass
class Past:
    """A turn already written; `cuts[i]` is where message i began in its tokens."""

    messages: list[Message]
    ids: list[int]
    cuts: list[int]
    output: list[int]
    response: Message | None
    base: "Past | None"
    again: bool
    """Its messages are those of an earlier prompt: it has siblings."""

    @property
    def held(self) -> list[int]:
        return self.ids + self.output

    def span(self) -> range:
        """Places of the sampled tokens."""
        return range(len(self.ids), len(self.ids) + len(self.output))


@dataclass
class Prompt:
    """A prompt while it is being written; `base` is the turn whose answer it echoes last."""

    base: Past | None = None
    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)

    def add(self, message: Message, ids: Sequence[int]) -> None:
        self.cuts.append(len(self.ids))
        self.messages.append(message)
        self.ids += ids


def opening(dice: Dice, *, system: str) -> Prompt:
    prompt = Prompt()
    prompt.add({"role": "system", "content": system}, dice.ids(1))
    prompt.add({"role": "user", "content": dice.one_of(WORDS)}, dice.ids(2))
    return prompt


def rewound(past: Past, count: int) -> Prompt:
    """The first `count` messages of an earlier prompt, with their tokens."""
    end = past.cuts[count] if count < len(past.cuts) else len(past.ids)
    return Prompt(past.base, past.messages[:count], past.ids[:end], past.cuts[:count])


def other_spelling(number: Any, dice: Dice) -> Any:
    for row in SPELLINGS:
        if any(value == number and type(value) is type(number) for value in row):
            return dice.one_of(row)
    raise AssertionError(number)


def respelled(message: Message, dice: Dice) -> Message:
    """Another spelling of the message's number; a message without one is left as it is."""
    if "n" in message:
        return message | {"n": other_spelling(message["n"], dice)}
    if "tool_calls" in message:
        return message | {"tool_calls": read_call(message["content"], dice)}
    return message


def read_call(path: str, dice: Dice) -> list[Any]:
    """A number deep inside a message: one row of spellings, so that respelling can hit it."""
    arguments = {"path": path, "lines": [dice.one_of(SPELLINGS[0])]}
    return [{"function": {"name": "read", "arguments": arguments}}]


def add_echo(prompt: Prompt, past: Past, dice: Dice) -> None:
    """What the client sends back of the last answer; the tokens are as sampled for now."""
    style = dice.weighted(ECHOES)
    if past.again and dice.below(2) == 1:
        # Answers with siblings are where the profiles' merge rules part.
        style = "rewritten"
    message = past.response if past.response is not None else {"role": "assistant", "content": ""}
    if style == "rewritten":
        message = {"role": "assistant", "content": dice.one_of(WORDS) + " "}
    elif style == "respelled":
        message = respelled(message, dice)
    elif style == "reordered":
        message = dict(reversed(message.items()))
    if style == "left out":
        prompt.ids += past.output
    else:
        prompt.add(message, past.output)
    if style == "followed by a foreign one":
        prompt.add({"role": "assistant", "content": dice.one_of(WORDS)}, dice.ids(1))


def add_news(prompt: Prompt, dice: Dice) -> None:
    """Up to two tool results or user messages; none at all leaves the echo as the last message."""
    for _ in range(dice.weighted(((1, 6), (2, 2), (0, 2)))):
        message: Message = {"role": dice.one_of(("user", "tool")), "content": dice.one_of(WORDS)}
        if dice.below(3) == 1:
            message["n"] = dice.one_of(dice.one_of(SPELLINGS))
        prompt.add(message, dice.ids(1 + dice.below(2)))


def continued(past: Past, dice: Dice) -> Prompt:
    prompt = rewound(past, len(past.messages))
    prompt.base = past
    if dice.below(8) == 1:
        place = dice.below(len(prompt.messages))
        prompt.messages[place] = respelled(prompt.messages[place], dice)
    add_echo(prompt, past, dice)
    add_news(prompt, dice)
    return prompt


def compacted(past: Past, dice: Dice) -> Prompt:
    """The history replaced by a summary under the same system message."""
    prompt = rewound(past, 1)
    prompt.base = None
    prompt.add({"role": "user", "content": f"summary {dice.one_of(WORDS)}"}, dice.ids(2))
    return prompt


def drawn_prompt(history: Sequence[Past], dice: Dice) -> Prompt:
    """The next prompt before its tokens drift."""
    if not history:
        return opening(dice, system="main")
    past = history[-1 - dice.weighted(((0, 6), (1, 2), (2, 2), (3, 1))) % len(history)]
    kind = dice.weighted(KINDS)
    if kind == "continue":
        return continued(past, dice)
    if kind == "subagent":
        return opening(dice, system=dice.one_of(("helper", "searcher")))
    if kind == "compact":
        return compacted(past, dice)
    if kind == "fork":
        prompt = rewound(past, 1 + dice.below(len(past.messages)))
        add_news(prompt, dice)
        return prompt
    again = past if kind == "retry" else past.base or past
    return rewound(again, len(again.messages))


def place_of_drift(style: str, prompt: Prompt, past: Past, dice: Dice) -> int | None:
    """Where the tokens change or end; None if this prompt has no such place."""
    span = past.span()
    earlier = past.base.span() if past.base is not None else range(0)
    places = {
        "prompt region": range(len(past.ids)),
        "first token of the response": span[:1],
        "last token of the response": span[-1:],
        "inside the response": span[1:-1],
        "earlier response": earlier,
        "cut at the response": range(len(past.ids), len(past.ids) + 1),
        "cut inside the response": span[1:],
        "cut anywhere": range(len(prompt.ids)),
        "nothing new": range(len(past.held), len(past.held) + 1),
        "inserted": range(len(prompt.ids)),
    }[style]
    return dice.one_of(places) if len(places) > 0 else None


def drift(prompt: Prompt, dice: Dice) -> None:
    """Breaks the prompt's tokens against the turn it continues, in one of the known regions."""
    style = dice.weighted(DRIFTS)
    if style == "none" or prompt.base is None:
        return
    place = place_of_drift(style, prompt, prompt.base, dice)
    if place is None or place > len(prompt.ids):
        return
    if style.startswith("cut") or style == "nothing new":
        del prompt.ids[place:]
    elif style == "inserted":
        prompt.ids.insert(place, 1 + dice.below(TOKENS))
    elif place < len(prompt.ids):
        prompt.ids[place] = 1 + prompt.ids[place] % TOKENS
