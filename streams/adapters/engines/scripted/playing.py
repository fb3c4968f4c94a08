"""Which answer a call gets, as tokens, before the first of them is given.

Invariant: what is planned obeys the request: its length, its stop tokens, its stop strings.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from schemas.record import Ids
from streams.adapters.engines.interface import EngineError, Finish, Generation, Sampling
from streams.adapters.engines.scripted.demo import demo_answer
from streams.adapters.engines.scripted.script import BadScript, Rule, Script
from streams.adapters.engines.scripted.spelling import (
    decoded,
    derived_logprobs,
    drifted,
    encoded,
    written,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One answer to be given."""

    rule: Rule
    name: str
    """For the journal."""
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    stop_reason: str | None


class Player:
    """A script being played: it knows which rules are used up."""

    def __init__(self, script: Script, tokenizer: Tokenizer | None) -> None:
        """Without a tokenizer only ids can be given.

        Raises:
            BadScript: it needs a tokenizer, or its end token is none.
        """
        if script.needs_text and tokenizer is None:
            raise BadScript("the script holds text: give the scripted engine a tokenizer")
        self._script = script
        self._tokenizer = tokenizer
        self._left = [rule.times for rule in script.answers]
        self._end = self._end_token()

    def plan(self, generation: Generation, call: int) -> Plan:
        """The answer to a call.

        Raises:
            EngineError: no rule fits it.
        """
        prompt = _Prompt(generation, call, self._tokenizer)
        rule, name = self._choose(prompt)
        ids = self._tokens(rule, prompt)
        logprobs = rule.logprobs if rule.logprobs is not None else derived_logprobs(ids)
        if len(logprobs) != len(ids):
            message = f"{name}: {len(ids)} tokens and {len(logprobs)} logprobs"
            raise EngineError(f"scripted engine: {message}", retryable=False)
        count, finish, reason = self._cut(rule, ids, generation.sampling)
        return Plan(
            rule=rule,
            name=name,
            ids=tuple(ids[:count]),
            logprobs=logprobs[:count],
            finish=finish,
            stop_reason=reason,
        )

    def _choose(self, prompt: "_Prompt") -> tuple[Rule, str]:
        for number, rule in enumerate(self._script.answers):
            left = self._left[number]
            if left == 0 or not prompt.fits(rule):
                continue
            self._left[number] = None if left is None else left - 1
            return rule, f"answers[{number}]"
        if self._script.otherwise is None:
            message = f"call {prompt.call} of {prompt.routing_key}: no answer left that fits it"
            raise EngineError(f"scripted engine: {message}", retryable=False)
        return self._script.otherwise, "otherwise"

    def _tokens(self, rule: Rule, prompt: "_Prompt") -> list[int]:
        ids = self._spelled(rule, prompt) if rule.ids is None else list(rule.ids)
        if rule.drift:
            ids = drifted(self._speller, ids, rule.drift)
        return ids if self._end is None or not rule.ended else [*ids, self._end]

    def _spelled(self, rule: Rule, prompt: "_Prompt") -> list[int]:
        if rule.pieces is not None:
            return [token for piece in rule.pieces for token in encoded(self._speller, piece)]
        message = demo_answer(prompt.text) if rule.demo else rule.message
        return encoded(self._speller, rule.text or "" if message is None else written(message))

    @property
    def _speller(self) -> Tokenizer:
        assert self._tokenizer is not None, "a script with text was taken without a tokenizer"
        return self._tokenizer

    def _end_token(self) -> int | None:
        if self._tokenizer is None or not any(rule.ended for rule in self._script.rules):
            return None
        found = self._tokenizer.token_to_id(self._script.end_token)
        if found is None:
            raise BadScript(f"end token {self._script.end_token}: the tokenizer has none such")
        return found

    def _cut(
        self, rule: Rule, ids: Sequence[int], sampling: Sampling
    ) -> tuple[int, Finish, str | None]:
        """How many tokens are given, and why: what comes first, else the first in this order."""
        ends: list[tuple[int, Finish, str | None]] = []
        stops = [count for count, token in enumerate(ids, 1) if token in sampling.stop_ids]
        ends += [(count, "stop", str(ids[count - 1])) for count in stops[:1]]
        if self._tokenizer is not None:
            complete = [(self._complete(ids, text), text) for text in sampling.stop]
            ends += [(count, "stop", text) for count, text in complete if count]
        ends.append((len(ids), "stop", None))
        limits = (sampling.max_new_tokens, rule.length)
        ends += [(count, "length", None) for count in limits if count is not None]
        return min(ends, key=lambda end: end[0])

    def _complete(self, ids: Sequence[int], text: str) -> int:
        """The number of tokens that first spell the text; 0 if they never do."""
        tokenizer = self._speller
        if text not in decoded(tokenizer, ids):
            return 0
        counts = range(len(ids) + 1)
        return bisect_left(counts, True, key=lambda count: text in decoded(tokenizer, ids[:count]))


class _Prompt:
    """A call as conditions see it."""

    def __init__(self, generation: Generation, call: int, tokenizer: Tokenizer | None) -> None:
        self.call = call
        self.routing_key = generation.routing_key
        self._ids = generation.input_ids
        self._tokenizer = tokenizer
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            assert self._tokenizer is not None
            self._text = decoded(self._tokenizer, self._ids.tolist())
        return self._text

    def fits(self, rule: Rule) -> bool:
        return (
            rule.call in (None, self.call)
            and rule.routing_key in (None, self.routing_key)
            and (rule.prompt_ids is None or _stands_in(rule.prompt_ids, self._ids))
            and (rule.contains is None or rule.contains in self.text)
        )


def _stands_in(wanted: tuple[int, ...], ids: Ids) -> bool:
    if not wanted:
        return True
    if len(wanted) > len(ids):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(wanted))
    return bool((windows == np.asarray(wanted, ids.dtype)).all(axis=1).any())
