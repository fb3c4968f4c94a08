"""Sessions written as the text they render to; samples drawn as it, trained tokens in brackets.

One character is one token (its id is `ord`). A message is START, body, END, by role:

    «S»   system message S          <u>   user message u
    {ok}  assistant message ok      (x)   tool message x

A turn is the messages it was sent and the text the model answered. The prompt ends in the
generation marker, which is the assistant's START `{`; the output is the body and the
assistant's END `}`. Marker + output is exactly the message a client replays, so a turn that
replays the history continues it by construction, and whatever breaks a prefix is written down
as drift. The session

    session(
        turn("«S»<u>", "call"),
        turn("«S»<u>{call}(x)", "done"),
    )

has one sample. It trains `call}` and `done}`, everything else is context:

    «S»<u>{[call}](x){[done}]  reward 1

Drift changes the token ids of a prompt and leaves its messages alone: `insert(1)` and
`replace(8)` put the token `!` before or at an index, `cut(7)` keeps the first 7 tokens.
A response of None is a turn without response message (and, unless `output` says otherwise,
without output). Logprobs are digits: "123" is -1.0, -2.0, -3.0; drawn, `.` is 0.0.

Invariant: this module imports nothing of the project, so a drawing depends on the records alone.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Drift = Callable[[str], str]

GENERATE = "{"
END = "}"
ONE_MESSAGE = re.compile(
    r"«(?P<system>[^»]*)»|<(?P<user>[^>]*)>|\{(?P<assistant>[^}]*)\}|\((?P<tool>[^)]*)\)"
)
BLANKS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})
SHARES_MAX = 12
"""Rewards are drawn as a fraction up to this denominator, if that is the exact float."""


# --- writing a session ---------------------------------------------------------------------------


def messages(prompt: str) -> list[Json]:
    """The chat messages that render to this text."""
    found = list(ONE_MESSAGE.finditer(prompt))
    if "".join(match.group() for match in found) != prompt:
        reason = f"not a sequence of messages: {prompt!r}"
        raise ValueError(reason)
    return [{"role": match.lastgroup, "content": match[match.lastgroup or 0]} for match in found]


def ids(text: str) -> list[int]:
    return [ord(token) for token in text]


def unchanged(text: str) -> str:
    return text


def insert(at: int, token: str = "!") -> Drift:
    return lambda text: text[:at] + token + text[at:]


def replace(at: int, token: str = "!") -> Drift:
    return lambda text: text[:at] + token + text[at + 1 :]


def cut(length: int) -> Drift:
    return lambda text: text[:length]


def turn(
    prompt: str,
    response: str | None,
    *,
    drift: Drift = unchanged,
    logprobs: str = "",
    **fields: Any,
) -> Json:
    """One turn event; `fields` are further fields of the event and win over what is derived."""
    event: Json = {
        "type": "turn",
        "session_id": "s",
        "prompt_messages": messages(prompt),
        "prompt_ids": ids(drift(prompt + GENERATE)),
        "output_ids": [] if response is None else ids(response + END),
    }
    if response is not None:
        event["response_message"] = {"role": "assistant", "content": response}
    if logprobs:
        event["logprobs"] = [-float(digit) for digit in logprobs]
    return event | fields


def numbered(
    prompt: str, response: str | None, prompt_ids: list[int], output_ids: list[int]
) -> Json:
    """A turn whose messages are written as usual and whose token ids are plain numbers."""
    return turn(prompt, response, prompt_ids=prompt_ids, output_ids=output_ids)


def session(*turns: Json, reward: float | Json | None = 1.0) -> list[Json]:
    """The turns, numbered t1, t2, ... within their session, then the end of each session."""
    counts: dict[str, int] = {}
    events = []
    for event in turns:
        session_id = event["session_id"]
        counts[session_id] = counts.get(session_id, 0) + 1
        events.append({"turn_id": f"t{counts[session_id]}"} | event)
    return events + [ended(session_id, reward) for session_id in counts]


def ended(session_id: str = "s", reward: float | Json | None = 1.0) -> Json:
    end: Json = {"type": "session_ended", "session_id": session_id, "end_status": "completed"}
    return end if reward is None else end | {"reward": reward}


# --- drawing what came out -----------------------------------------------------------------------


def bracketed(tokens: Sequence[str], runs: Iterable[Sequence[int]], gap: str) -> str:
    """The tokens joined by `gap`, each run in brackets."""
    starts, last = set(), set()
    for start, end in runs:
        starts.add(start)
        last.add(end - 1)
    return gap.join(
        ("[" if at in starts else "") + token + ("]" if at in last else "")
        for at, token in enumerate(tokens)
    )


def drawn(sample: Json) -> str:
    """A sample as characters: `«S»<u>{[ok}]`, blanks made visible."""
    tokens = [chr(token).translate(BLANKS) for token in sample["tokens"]]
    return bracketed(tokens, sample["loss_mask"], "")


def drawn_numbers(sample: Json) -> str:
    """A sample as numbers: `1 2 [3 4] 5 [6]`."""
    return bracketed([str(token) for token in sample["tokens"]], sample["loss_mask"], " ")


def drawn_reward(reward: float | None) -> str:
    """The fraction, if this float is exactly it; else the float as it is."""
    if reward is None:
        return "none"
    fraction = Fraction(reward).limit_denominator(SHARES_MAX)
    return str(fraction) if float(fraction) == reward else repr(reward)


def drawn_samples(samples: Iterable[Json], one: Callable[[Json], str] = drawn) -> str:
    """One line a sample, in the order in which the samples came out."""
    return "\n".join(
        f"{one(sample)}  reward {drawn_reward(sample['reward'])}" for sample in samples
    )


def drawn_logprobs(samples: Iterable[Json]) -> str:
    """One line a sample, one character a token: the digit d for -d, `.` for 0.0."""

    def digit(logprob: float) -> str:
        if logprob == 0:
            return "."
        return str(int(-logprob)) if -logprob in range(1, 10) else f"({logprob})"

    return "\n".join("".join(map(digit, sample["logprobs"])) for sample in samples)


def drawn_trees(trees: dict[str, str]) -> str:
    """The one tree, or each under the name of its session."""
    if len(trees) == 1:
        return "".join(trees.values()).rstrip("\n")
    return "\n".join(f"session {name}\n{tree.rstrip()}" for name, tree in sorted(trees.items()))


def drawn_ledger(closed: Json) -> str:
    """One line a turn: `t2 realign 0/3 merged 3`."""
    lines = []
    for row in closed.get("ledger", []):
        counts = f"{row['turn_id']} {row['attach']} {row['trained']}/{row['generated']}"
        why = [f"{reason} {count}" for reason, count in row.get("untrained", {}).items()]
        lines.append(" ".join([counts, *why]))
    return "\n".join(lines)


def drawn_dead_letters(dead_letters: Iterable[Json]) -> str:
    return "\n".join(f"{letter['turn_id']} {letter['code']}" for letter in dead_letters)
