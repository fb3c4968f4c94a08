"""Large sessions by shape, in delta form, as their adapters would write them.

    path        every turn goes on from the one before
    drifting    the same, but each echo changes the last token of the answer
    children    every turn goes on from the first, with another tool result
    retries     the same prompt again and again, every answer another
    foreign     every prompt echoes another answer that nobody sampled
    subagents   many conversations side by side, their turns interleaved

Tokens are numbered so that no two runs look alike; the digest of a prompt is always sent.

Invariant: writing n turns costs time in proportion to n, so that a reader may be measured.
"""

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.record import Octets

SUBAGENT_TURNS = 3


def message(role: str, content: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"role": role, "content": content}).encode())


def as_bytes(ids: list[int]) -> bytes:
    return np.array(ids, "<i4").tobytes()


@dataclass(frozen=True)
class Written:
    """A turn that was written, and what a later one needs to go on from it."""

    turn: Turn
    messages: int
    ids: int
    prompt_hash: Any
    """Over the prompt; the output is not in it yet."""


@dataclass
class Author:
    """Writes turns one by one."""

    turns: list[Turn] = field(default_factory=list)

    def start(self, *prompt: msgspec.Raw, answer: str = "ok") -> Written:
        """A turn with its whole prompt: one token a message, then the generation marker."""
        return self._write(None, prompt, [*range(1, len(prompt) + 1), 0], answer=answer)

    def go_on(self, base: Written, news: str, *, drift: bool = False) -> Written:
        """The base's prompt and answer, then a tool message; drift changes the last token."""
        ids = [9, 5, 6] if drift else [5, 6]
        return self._write(base, (message("tool", news),), ids, drop=int(drift))

    def _write(
        self,
        base: Written | None,
        prompt: tuple[msgspec.Raw, ...],
        ids: list[int],
        *,
        drop: int = 0,
        answer: str = "ok",
    ) -> Written:
        """The next turn: all of its base but the last `drop` tokens, then this."""
        number = len(self.turns) + 1
        running = blake2b(digest_size=16)
        kept_messages = kept_ids = 0
        if base is not None:
            kept_messages, kept_ids = base.messages, base.ids - drop
            output = base.turn.output_ids.tolist()
            running = base.prompt_hash.copy()
            running.update(as_bytes(output[: len(output) - drop]))
        running.update(as_bytes(ids))
        turn = Turn(
            session_id="s",
            turn_id=f"t{number}",
            prompt_messages=prompt,
            prompt_ids=np.array(ids, np.int32),
            output_ids=np.array([100 + number, 7], np.int32),
            response_message=message("assistant", answer),
            base_turn_id=base.turn.turn_id if base is not None else None,
            kept_messages=kept_messages or None,
            kept_ids=kept_ids or None,
            prompt_digest=Octets(running.digest()),
        )
        self.turns.append(turn)
        whole = kept_ids + len(ids) + turn.output_ids.size
        return Written(turn, kept_messages + len(prompt) + 1, whole, running)


def path(count: int, *, drift: bool = False) -> list[Turn]:
    author = Author()
    written = author.start(message("user", "u"))
    for number in range(1, count):
        written = author.go_on(written, f"x{number}", drift=drift)
    return author.turns


def drifting(count: int) -> list[Turn]:
    return path(count, drift=True)


def children(count: int) -> list[Turn]:
    author = Author()
    first = author.start(message("user", "u"))
    for number in range(1, count):
        author.go_on(first, f"x{number}")
    return author.turns


def retries(count: int) -> list[Turn]:
    author = Author()
    for number in range(count):
        author.start(message("user", "u"), answer=f"answer {number}")
    return author.turns


def foreign(count: int) -> list[Turn]:
    author = Author()
    for number in range(count):
        echo = message("assistant", f"echo {number}")
        author.start(message("user", "u"), echo, message("tool", "x"))
    return author.turns


def subagents(count: int) -> list[Turn]:
    """So many turns, by a third as many agents, each agent's turn after everyone's before."""
    author = Author()
    agents = count // SUBAGENT_TURNS
    newest = [
        author.start(message("system", f"agent {number}"), message("user", "u"))
        for number in range(agents)
    ]
    for step in range(1, SUBAGENT_TURNS):
        newest = [author.go_on(written, f"x{step}") for written in newest]
    return author.turns


SHAPES = {
    "path": path,
    "drifting": drifting,
    "children": children,
    "retries": retries,
    "foreign": foreign,
    "subagents": subagents,
}
