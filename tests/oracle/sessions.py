"""Random sessions: what an agent's calls look like when everything that can go wrong does.

A session is a list of recipes, one per turn; a recipe is a few bytes, and each byte answers one
question (which earlier turn goes on, how its answer is echoed, where its tokens drift, ...).
The answer to 0 is always the dull one: go on with the newest turn, echo it exactly, no drift.
So a failing session shrinks twice: fewer recipes, then more zeros.

    recipe   base turn | kind of turn | echo | new messages | drift | output | response message

Messages and tokens come from tiny alphabets and are written independently of each other, because
the rules route by messages and compare by tokens: equal messages over different tokens, and the
other way round, must both be common.

Invariant: the same recipes give the same session, whatever ran before.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.oracle.prompts import (
    SPELLINGS,
    WORDS,
    Dice,
    Message,
    Past,
    Prompt,
    drawn_prompt,
    drift,
    read_call,
)

Event = dict[str, Any]

THRESHOLDS = (1024, 0, 1, 2, 3, 5, 8)
REWARDS = (1.0, 0.0, -0.5, 0.3, 7.25)
RECIPE_BYTES = 32
TURNS_MAX = 14

OUTPUT_LENGTHS = ((2, 4), (1, 3), (3, 4), (4, 2), (6, 2), (9, 1), (0, 3))
LOGPROBS = (("given", 8), ("absent", 2), ("empty", 2))
RESPONSES = (
    ("plain", 9),
    ("number", 8),
    ("tool call", 3),
    ("null", 2),
    ("another role", 1),
    ("no role", 1),
)


@dataclass(frozen=True)
class Session:
    """One generated session and the threshold it is to be read with."""

    events: list[Event]
    fork_threshold: int


def drawn_response(history: Sequence[Past], prompt: Prompt, dice: Dice) -> Message | None:
    style = dice.weighted(RESPONSES)
    twins = [past.response for past in history if past.messages == prompt.messages]
    if twins and dice.below(2) == 1:
        return twins[0]
    if style == "null":
        return None
    message: Message = {"role": "assistant", "content": dice.one_of(WORDS)}
    if style == "number":
        message["n"] = dice.one_of(dice.one_of(SPELLINGS))
    elif style == "tool call":
        message["tool_calls"] = read_call(message["content"], dice)
    elif style == "another role":
        message["role"] = dice.one_of(("user", "tool"))
    elif style == "no role":
        del message["role"]
    return message


def written_turn(history: list[Past], recipe: bytes) -> Event:
    """The next turn as an event; it joins the history that later recipes choose from."""
    dice = Dice(recipe)
    prompt = drawn_prompt(history, dice)
    drift(prompt, dice)
    output = dice.ids(dice.weighted(OUTPUT_LENGTHS))
    response = drawn_response(history, prompt, dice)
    number = len(history) + 1
    turn: Event = {
        "type": "turn",
        "session_id": "s",
        "turn_id": f"t{number}",
        "prompt_messages": prompt.messages,
        "prompt_ids": prompt.ids,
        "output_ids": output,
        "response_message": response,
    }
    logprobs = dice.weighted(LOGPROBS)
    if logprobs == "given":
        # Exact in float32 and different for every token, so that a shifted or borrowed
        # logprob shows.
        turn["logprobs"] = [-(number * 16 + place) / 64 for place in range(len(output))]
    elif logprobs == "empty":
        turn["logprobs"] = []
    again = any(past.messages == prompt.messages for past in history)
    history.append(
        Past(prompt.messages, prompt.ids, prompt.cuts, output, response, prompt.base, again)
    )
    return turn


def written_session(recipes: Sequence[bytes], fork_threshold: int, reward: float) -> Session:
    history: list[Past] = []
    events = [written_turn(history, recipe) for recipe in recipes]
    end = {"type": "session_ended", "session_id": "s", "end_status": "completed", "reward": reward}
    return Session(events=[*events, end], fork_threshold=fork_threshold)


def sessions() -> st.SearchStrategy[Session]:
    recipe = st.binary(min_size=RECIPE_BYTES, max_size=RECIPE_BYTES)
    return st.builds(
        written_session,
        st.lists(recipe, min_size=1, max_size=TURNS_MAX),
        st.sampled_from(THRESHOLDS),
        st.sampled_from(REWARDS),
    )


def fixed_sessions(count: int, *, seed: int) -> Iterator[Session]:
    """The same sessions on every run, for figures that are to be compared."""
    source = random.Random(seed)
    for _ in range(count):
        recipes = [source.randbytes(RECIPE_BYTES) for _ in range(source.randint(1, TURNS_MAX))]
        yield written_session(recipes, source.choice(THRESHOLDS), source.choice(REWARDS))
