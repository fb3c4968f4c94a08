"""The turns of one session, written so that it is known how each of them attaches.

    first     a system prompt nobody else has            root
    go on     the base's prompt and answer, then news    extend
    drift     the same, but the answer's echo differs    realign (lossless: fork)
    rerender  the same, but the prompt's start differs   fork
    again     the base's own prompt, another answer      as the base attached

A turn is written whole or as a delta of its base, which must make no difference.

Invariant: messages are never repeated by accident, so only the drawn base can be the one above.
"""

from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import msgspec
import numpy as np

from schemas.events import Turn
from schemas.record import Ids, Octets
from schemas.samples import Attach

VOCABULARY = 150_000


def message(role: str, content: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"role": role, "content": content}))


def digest(ids: Ids) -> Octets:
    return Octets(blake2b(ids.astype("<i4").tobytes(), digest_size=16).digest())


@dataclass(frozen=True)
class Past:
    """A turn that was written: what later ones build on."""

    turn: Turn
    messages: tuple[msgspec.Raw, ...]
    prompt: Ids
    attach: Attach
    """How it was meant to attach."""

    @property
    def answer(self) -> msgspec.Raw:
        return self.turn.response_message

    @property
    def end(self) -> int:
        return self.prompt.size + self.turn.output_ids.size


class Author:
    """Writes the turns of one session, from its dice alone."""

    def __init__(self, session_id: str, dice: Random, *, lossless: bool = False) -> None:
        self.session_id = session_id
        self.dice = dice
        self.past: list[Past] = []
        self._lossless = lossless
        self._ids = np.random.default_rng(dice.getrandbits(63))
        self._numbered = dice.random() < 0.5
        self._seq = 0
        self._messages = 0

    @property
    def last_seq(self) -> dict[str, int] | None:
        """What an end event says of the numbering, if turns are numbered."""
        return {"a1": self._seq} if self._numbered and self._seq else None

    def skip_number(self) -> None:
        """A turn that never arrives."""
        self._seq += 1

    def first(self, tokens: int | None = None) -> Past:
        """Another conversation: the first turn, a sub-agent, a compacted history."""
        messages = (self._message("system"), self._message("user"))
        return self._write(messages, self.ids(tokens or self.dice.randint(20, 120)), "root")

    def go_on(self, base: Past) -> Past:
        """The base's conversation, one tool result further."""
        prompt = np.concatenate([base.prompt, base.turn.output_ids, self._news()])
        return self._write(self._grown(base), prompt, "extend", base, base.end)

    def drift(self, base: Past) -> Past:
        """The client echoes the answer with another last token."""
        kept = base.end - 1
        echo = np.array([self._other(base.turn.output_ids[-1])], np.int32)
        whole = np.concatenate([base.prompt, base.turn.output_ids[:-1], echo, self._news()])
        attach: Attach = "fork" if self._lossless else "realign"
        return self._write(self._grown(base), whole, attach, base, kept)

    def rerender(self, base: Past) -> Past:
        """The template renders the same messages differently from their first token on."""
        prompt = np.concatenate([base.prompt, base.turn.output_ids, self._news()])
        prompt[0] = self._other(prompt[0])
        return self._write(self._grown(base), prompt, "fork")

    def again(self, base: Past) -> Past:
        """The same request once more, answered otherwise."""
        return self._write(base.messages, base.prompt, base.attach)

    def unsent(self, base: Past) -> Turn:
        """A turn that goes on and is not remembered: the makings of a bad event."""
        past, seq = list(self.past), self._seq
        turn = self.go_on(base).turn
        self.past, self._seq = past, seq
        return msgspec.structs.replace(turn, source=None, seq=None)

    def ids(self, count: int) -> Ids:
        return self._ids.integers(0, VOCABULARY, count, dtype=np.int32)

    def _news(self) -> Ids:
        return self.ids(self.dice.randint(3, 60))

    def _other(self, token: np.int32) -> int:
        return (int(token) + 1) % VOCABULARY

    def _grown(self, base: Past) -> tuple[msgspec.Raw, ...]:
        return (*base.messages, base.answer, self._message("tool"))

    def _message(self, role: str) -> msgspec.Raw:
        self._messages += 1
        return message(role, f"{role} {self._messages} {self.dice.getrandbits(64):x}")

    def _write(
        self,
        messages: tuple[msgspec.Raw, ...],
        prompt: Ids,
        attach: Attach,
        base: Past | None = None,
        kept: int = 0,
    ) -> Past:
        dice = self.dice
        if self._numbered:
            self._seq += 1
        output = self.ids(dice.randint(2, 80))
        logprobs = None
        if dice.random() < 0.9:
            logprobs = -self._ids.random(output.size, np.float32)
        turn = Turn(
            session_id=self.session_id,
            turn_id=f"t{len(self.past) + 1}",
            prompt_messages=messages,
            prompt_ids=prompt,
            output_ids=output,
            logprobs=logprobs,
            response_message=self._message("assistant"),
            source="a1" if self._numbered else None,
            seq=self._seq if self._numbered else None,
            weight_versions=[(dice.randint(1, 9), output.size)] if dice.random() < 0.5 else None,
            finish_reason=dice.choice(("stop", "length", "tool_calls")),
            prompt_digest=digest(prompt) if dice.random() < 0.8 else None,
        )
        past = Past(turn, messages, prompt, attach)
        if base is not None and (dice.random() < 0.7 or prompt.size > 4000):
            kept_messages = len(base.messages) + 1
            turn = msgspec.structs.replace(
                turn,
                base_turn_id=base.turn.turn_id,
                kept_messages=kept_messages,
                kept_ids=kept,
                prompt_messages=messages[kept_messages:],
                prompt_ids=prompt[kept:],
            )
            past = Past(turn, messages, prompt, attach)
        self.past.append(past)
        return past
