"""A session of model calls as events, and what a profile made of it as one line of text.

    t2 fork: given [t1] / given [t2]; 40 of 40 trained
    |        |                        |
    |        |                        the ledger's sums, then each reason with its tokens
    |        the samples, parted by " / ": what it is given, what it trains
    how each turn after the first attached

A bracket names the turn whose sampled ids and logprobs stand there, all of them and unchanged.
Anything else that trains is written out as ids, so that it can equal no expectation.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.drift.qwen3 import Message
from tests.harness import Linearized, linearized

PROFILES = ("seed", "slime", "lossless")
REWARD = 1.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One model call: what it was given, what it sampled, what the server made of it."""

    messages: Sequence[Message]
    prompt: list[int]
    sampled: list[int]
    response: Message
    finish: str = "stop"

    @property
    def held(self) -> list[int]:
        """The sequence that a later prompt has to begin with to extend this call."""
        return self.prompt + self.sampled


def run(calls: Sequence[Call], *, profile: str, fork_threshold: int | None = None) -> Linearized:
    turns = [_turn(number, call) for number, call in enumerate(calls, 1)]
    end = {
        "type": "session_ended",
        "session_id": "s",
        "end_status": "completed",
        "reward": REWARD,
    }
    result = linearized([*turns, end], profile=profile, fork_threshold=fork_threshold)
    assert result.dead_letters == []
    return result


def story(calls: Sequence[Call], result: Linearized) -> str:
    """What became of the calls, as the line drawn above."""
    (closed,) = result.closed
    first, *later = closed["ledger"]
    assert first["attach"] == "root"
    attached = ", ".join(f"{row['turn_id']} {row['attach']}" for row in later)
    drawn = " / ".join(_drawn(calls, sample) for sample in result.samples)
    return f"{attached}: {drawn}; {_sums(closed['ledger'])}"


def trained_ids(result: Linearized) -> Counter[int]:
    """How often each id trains, over all samples of the session."""
    return Counter(
        token
        for sample in result.samples
        for start, end in sample["loss_mask"]
        for token in sample["tokens"][start:end]
    )


def sampled_ids(calls: Sequence[Call]) -> Counter[int]:
    """How often each id was sampled, over all calls."""
    return Counter(token for call in calls for token in call.sampled)


def first_difference(held: Sequence[int], prompt: Sequence[int]) -> int:
    """The length of the prefix that both share."""
    pairs = zip(held, prompt, strict=False)
    differing = (place for place, (old, new) in enumerate(pairs) if old != new)
    return next(differing, min(len(held), len(prompt)))


def _turn(number: int, call: Call) -> dict[str, Any]:
    return {
        "type": "turn",
        "session_id": "s",
        "turn_id": f"t{number}",
        "prompt_messages": list(call.messages),
        "prompt_ids": call.prompt,
        "output_ids": call.sampled,
        "logprobs": _logprobs(number, call),
        "response_message": call.response,
        "finish_reason": call.finish,
    }


def _logprobs(number: int, call: Call) -> list[float]:
    # They tell turns and places apart, and have few enough digits to survive float32 as text.
    return [round(-number - place / 1000, 3) for place in range(len(call.sampled))]


def _drawn(calls: Sequence[Call], sample: dict[str, Any]) -> str:
    words: list[str] = []
    seen = 0
    for start, end in sample["loss_mask"]:
        words += ["given"] * (start > seen)
        words.append(_trained(calls, sample["tokens"][start:end], sample["logprobs"][start:end]))
        seen = end
    words += ["given"] * (len(sample["tokens"]) > seen)
    return " ".join(words)


def _trained(calls: Sequence[Call], ids: list[int], logprobs: list[float]) -> str:
    for number, call in enumerate(calls, 1):
        if ids == call.sampled and logprobs == _logprobs(number, call):
            return f"[t{number}]"
    return str(ids)


def _sums(ledger: Sequence[dict[str, Any]]) -> str:
    generated = sum(row["generated"] for row in ledger)
    trained = sum(row["trained"] for row in ledger)
    lost: Counter[str] = Counter()
    for row in ledger:
        lost.update(row.get("untrained", {}))
    return ", ".join(
        [f"{trained} of {generated} trained", *(f"{n} {reason}" for reason, n in lost.items())]
    )
