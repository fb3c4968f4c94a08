"""What a script says: which call gets which answer, and how it comes.

    {"answers": [
        {"contains": "How big", "message": {"content": "Let me look.", "tool_calls": [...]}},
        {"routing_key": "s1", "text": "It is big.", "chunks": [1, 3], "gap_ms": 20},
        {"text": "half an ans", "fail": {"after": 3, "message": "out of memory"}}],
     "otherwise": {"text": "I have nothing to say."}}

A call gets the first rule that is not used up and whose every condition it meets; a rule without
conditions fits any call, so a plain list of answers is given in its order.

Invariant: a script that was read can be played: each rule says exactly one answer.
"""

from pathlib import Path
from typing import Any

import msgspec

from streams.errors import TurnstreamError

END_TOKEN = "<|im_end|>"


class BadScript(TurnstreamError):
    """A script that cannot be played; the text names the file and the rule."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine breaks."""

    after: int = 0
    """Tokens that come before."""
    message: str = "the script says so"
    retryable: bool = True


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One answer, and for which call it is."""

    call: int | None = None
    """The n-th call of the engine, from 0."""
    routing_key: str | None = None
    contains: str | None = None
    """Stands in the text of the prompt."""
    prompt_ids: tuple[int, ...] | None = None
    """Stand in the prompt, one after the other."""
    times: int | None = 1
    """How often it is used; None: always."""

    ids: tuple[int, ...] | None = None
    """The answer's tokens, exactly."""
    text: str | None = None
    message: dict[str, Any] | None = None
    """An assistant message, written as Qwen3 writes it."""
    pieces: tuple[str, ...] | None = None
    """A text whose parts are encoded each by itself: tokens that no tokenizer would choose."""
    demo: bool = False
    """An agent's answer to whatever is asked: a call of its first tool, then a text."""

    end: bool = True
    """Whether the end token follows; exact ids hold their own."""
    drift: int = 0
    """Every n-th token is spelled with others that read the same; 0: none."""
    logprobs: tuple[float, ...] | None = None
    """One for each token, else they follow from token and place."""
    weight_version: int | None = None
    """Of this answer, else the engine's at the time."""
    weight_label: str | None = None

    chunks: tuple[int, ...] = (1,)
    """How many tokens come at once, over and over."""
    finish_apart: bool = False
    """The end comes by itself, without a token."""
    delay_ms: float = 0
    """Before the first."""
    gap_ms: float = 0
    """Before each of the others."""
    length: int | None = None
    """Tokens after which it ends as cut by length."""
    abort_after: int | None = None
    """Tokens after which it is stopped, as for a weight update; the next call with the same
    routing key that goes on from there gets the rest."""
    fail: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether the end token has to be added."""
        return self.end and self.ids is None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All answers of an engine."""

    answers: tuple[Rule, ...] = ()
    otherwise: Rule | None = None
    """For a call that no rule fits; without it such a call fails."""
    weight_version: int | None = 0
    weight_label: str | None = None
    tells_version: bool = True
    """False: callers are told neither version nor label; the journal has both."""
    labels_only: bool = False
    """Callers are told the label alone, as by an engine whose labels are no integers."""
    experts: tuple[int, int] | None = None
    """Layers and choices of the experts that callers are told of, if they ask."""
    end_token: str = END_TOKEN

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be played."""
        for number, rule in enumerate(self.answers):
            _check(rule, f"answers[{number}]")
        if self.otherwise is not None:
            _check(self.otherwise, "otherwise")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.answers if self.otherwise is None else (*self.answers, self.otherwise)

    @property
    def needs_text(self) -> bool:
        """Whether it cannot be played without a tokenizer."""
        return any(rule.ids is None or rule.contains or rule.drift for rule in self.rules)


def read_script(path: Path) -> Script:
    """The script in a JSON file.

    Raises:
        BadScript: it cannot be read or played.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except (OSError, msgspec.DecodeError) as error:
        raise BadScript(f"{path}: {error}") from error


def _check(rule: Rule, where: str) -> None:
    given = [rule.ids, rule.text, rule.message, rule.pieces, rule.demo or None]
    if sum(answer is not None for answer in given) != 1:
        raise ValueError(f"{where}: give one of ids, text, message, pieces, demo")
    if not rule.chunks or min(rule.chunks) < 1:
        raise ValueError(f"{where}: chunks are counts of tokens, at least 1")
    if rule.ids is not None and rule.logprobs is not None and len(rule.ids) != len(rule.logprobs):
        raise ValueError(f"{where}: {len(rule.ids)} ids and {len(rule.logprobs)} logprobs")
    counts = (rule.length, rule.abort_after, rule.fail.after if rule.fail else None, rule.drift)
    if any(count is not None and count < 0 for count in counts):
        raise ValueError(f"{where}: counts are at least 0")


DEMO = Script(otherwise=Rule(demo=True, gap_ms=5), weight_label="scripted")
"""Answers any agent, so that everything can be tried without a model."""
