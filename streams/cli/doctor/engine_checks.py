"""What is tried on an engine, and what each outcome means.

Whose logprobs they are shows when one token is asked for often, at two temperatures, out of the
two likeliest; where the cut counts the two sum up to one.

Invariant: every answer is short, every wait is bounded, and what fails says what to change.
"""

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from streams.adapters.engines.distribution import SAME, TEMPERATURES, draw
from streams.adapters.engines.interface import (
    Engine,
    EngineError,
    Generation,
    KeyRefused,
    NoLogprobs,
    Sampling,
    Tokens,
)
from streams.cli.doctor.finding import Finding, failed, note, ok
from streams.settings import PREFIX

_ANSWER_S = 30.0
_TOKENS = 8
_LONG = 512
"""Tokens of an answer that is to be aborted."""
_ABORTS = 3

KEY = f"put its --api-key into the environment as {PREFIX}ENGINE_API_KEY"


@dataclass(frozen=True)
class Advice:
    """What to change in one kind of engine."""

    answer: str
    ids: str
    logprobs: str
    raw: str
    stop: str
    abort: str
    version: str
    experts: str


ADVICE = {
    "sglang": Advice(
        answer="read its own log",
        ids="talk to the server itself, not to what renders or changes prompts",
        logprobs="update SGLang: /generate with return_logprob has one for each id",
        raw="start it without SGLANG_RETURN_ORIGINAL_LOGPROB",
        stop="update SGLang: /generate with no_stop_trim keeps it",
        abort="let /abort_request be reached: no --admin-api-key, and no router before it",
        version="start it with --weight-version 0 and give each update the next whole number",
        experts="for a mixture of experts: start it with --enable-return-routed-experts",
    ),
    "vllm": Advice(
        answer="start it with --enable-scale-out: that is what takes ids and gives ids",
        ids="talk to the server itself, not to what renders or changes prompts",
        logprobs="update vLLM: /inference/v1/generate has one for each id",
        raw="start it with --logprobs-mode processed_logprobs",
        stop="update vLLM: /inference/v1/generate keeps it",
        abort="start it with --enable-scale-out: that has /inference/v1/abort_requests",
        version="give each update the next whole number as its weight_version",
        experts="for a mixture of experts: start it with --enable-return-routed-experts",
    ),
}


@dataclass
class _Heard:
    """One whole answer."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chunks: list[Tokens] = field(default_factory=list)

    @property
    def last(self) -> Tokens:
        return self.chunks[-1]

    def add(self, tokens: Tokens) -> None:
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.chunks.append(tokens)


class _Asking:
    """An engine and what is asked of it."""

    def __init__(self, engine: Engine, prompt: Sequence[int]) -> None:
        self.engine = engine
        self.prompt = tuple(prompt)

    async def hear(
        self,
        sampling: Sampling,
        *,
        experts: bool = False,
        abort: bool = False,
        echo: bool = False,
    ) -> _Heard:
        """One answer to the end.

        Raises:
            EngineError: it fails, or takes too long.
        """
        asked = Generation(
            request_id=uuid.uuid4().hex,
            routing_key="doctor",
            input_ids=np.asarray(self.prompt, np.int32),
            sampling=sampling,
            routed_experts=experts,
            echo=echo,
        )
        heard = _Heard()
        stream = cast("AsyncGenerator[Tokens, None]", self.engine.generate(asked))
        try:
            async with asyncio.timeout(_ANSWER_S), contextlib.aclosing(stream):
                async for tokens in stream:
                    heard.add(tokens)
                    if abort and len(heard.chunks) == 1:
                        await self.engine.abort(asked.request_id)
        except TimeoutError:
            raise EngineError(f"{self.engine.name}: no end after {_ANSWER_S:.0f} s") from None
        return heard


async def check(engine: Engine, prompt: Sequence[int], advice: Advice) -> list[Finding]:
    """All that is tried, in order; without an answer the rest is not."""
    asking = _Asking(engine, prompt)
    found = [ok("engine", engine.name)]
    greedy = Sampling(temperature=0.0, max_new_tokens=_TOKENS)
    try:
        heard = await asking.hear(greedy, echo=True)
    except NoLogprobs as error:
        return [*found, failed("logprobs", str(error), advice.logprobs)]
    except KeyRefused as error:
        return [*found, failed("key", str(error), KEY)]
    except EngineError as error:
        return [*found, failed("answer", str(error), advice.answer)]
    found.append(_ids(asking.prompt, heard, advice))
    if not heard.ids:
        return found
    found.append(_count(heard, advice))
    tries: dict[str, Callable[[], Awaitable[list[Finding]]]] = {
        "logprobs of": lambda: _distribution(asking, advice),
        "stop token": lambda: _stop(asking, heard, advice),
        "abort": lambda: _abort(asking, advice),
        "weight version": lambda: _version(heard, advice),
        "routed experts": lambda: _experts(asking, advice),
    }
    for name, trying in tries.items():
        try:
            found += await trying()
        except EngineError as error:
            found.append(failed(name, str(error), advice.answer))
    return found


def _ids(prompt: tuple[int, ...], heard: _Heard, advice: Advice) -> Finding:
    told = [tokens.prompt_ids for tokens in heard.chunks if tokens.prompt_ids is not None]
    if not heard.ids:
        return failed("ids", "no id came", advice.answer)
    if not told:
        return note("ids", "ids go in and come out; which prompt was computed is not told")
    if told[0] != prompt:
        what = f"{len(prompt)} went in, the engine computed {len(told[0])}, from {told[0][:3]} on"
        return failed("ids", what, advice.ids)
    return ok("ids", f"{len(prompt)} in, the same {len(prompt)} computed, {len(heard.ids)} out")


def _count(heard: _Heard, advice: Advice) -> Finding:
    if len(heard.logprobs) != len(heard.ids):
        what = f"{len(heard.logprobs)} for {len(heard.ids)} ids"
        return failed("logprobs", what, advice.logprobs)
    if not all(-math.inf < logprob <= 0 for logprob in heard.logprobs):
        return failed("logprobs", "one is above 0 or no number", advice.logprobs)
    return ok("logprobs", "one for each id")


async def _distribution(asking: _Asking, advice: Advice) -> list[Finding]:
    """Whose logprobs they are."""

    async def ask(sampling: Sampling) -> tuple[list[int], list[float]]:
        heard = await asking.hear(sampling)
        return heard.ids, heard.logprobs

    seen = await draw(ask)
    name, token = "logprobs of", seen.token
    if token is None:
        return [note(name, "no token was drawn at both temperatures", "run it again")]
    cool, warm = TEMPERATURES
    shown = f"token {token} has {seen.cool[token]:.3f} at {cool}, {seen.warm[token]:.3f} at {warm}"
    if seen.whose is None:
        what = f"cannot be told, nearly all of the probability is on one: {shown}"
        return [note(name, what, "run it with --tokenizer FOLDER, which asks another prompt")]
    if seen.whose == "raw":
        return [failed(name, f"raw, not of what was sampled from: {shown}", advice.raw)]
    return [ok(name, f"what was sampled from: {shown}"), *_cuts(seen.warm)]


def _cuts(drawn: Mapping[int, float]) -> list[Finding]:
    """Whether the two that were left share everything."""
    if len(drawn) != 2:  # noqa: PLR2004
        return []
    whole = sum(math.exp(logprob) for logprob in drawn.values())
    if abs(whole - 1) < SAME:
        return [ok("cut tails", "top_p, top_k and min_p are in the logprobs")]
    what = f"not in the logprobs: with top_k 2 the two sum up to {whole:.2f}"
    return [note("cut tails", what, "leave top_p, top_k and min_p alone in sessions that train")]


async def _stop(asking: _Asking, heard: _Heard, advice: Advice) -> list[Finding]:
    name, token = "stop token", heard.ids[0]
    again = await asking.hear(Sampling(temperature=0.0, max_new_tokens=_TOKENS, stop_ids=(token,)))
    if again.last.finish != "stop":
        what = f"it did not stop at {token}, its first token before"
        return [note(name, what, "run it again; answers at temperature 0 differ")]
    if token not in again.ids:
        return [failed(name, f"cut off: {len(again.ids)} ids, without {token}", advice.stop)]
    return [ok(name, "included")]


async def _abort(asking: _Asking, advice: Advice) -> list[Finding]:
    name = "abort"
    for seed in range(_ABORTS):
        heard = await asking.hear(Sampling(max_new_tokens=_LONG, seed=seed), abort=True)
        if heard.last.finish == "abort":
            return [ok(name, f"ends an answer, here after {len(heard.ids)} tokens")]
        if heard.last.finish == "length":
            return [failed(name, f"it sampled on, to all {_LONG} tokens", advice.abort)]
    return [note(name, f"{_ABORTS} answers ended by themselves before it", "run it again")]


async def _version(heard: _Heard, advice: Advice) -> list[Finding]:
    name, label = "weight version", heard.last.weight_label
    runs = heard.last.weight_runs or ((heard.last.weight_version, 0),)
    version = runs[-1][0]
    if version is not None:
        return [ok(name, str(version))]
    if label is not None:
        what = f"the label {label!r} is no whole number: tokens may be of unknown weights (-1)"
        return [note(name, what, advice.version)]
    what = "none is reported: with declared updates all tokens are of unknown weights (-1)"
    return [note(name, what, advice.version)]


async def _experts(asking: _Asking, advice: Advice) -> list[Finding]:
    name = "routed experts"
    heard = await asking.hear(Sampling(max_new_tokens=_TOKENS, seed=0), experts=True)
    experts = heard.last.routed_experts
    if heard.last.experts_wrong is not None:
        return [failed(name, heard.last.experts_wrong, advice.experts)]
    if experts is None:
        return [note(name, "none are told", advice.experts)]
    return [ok(name, f"{experts.dtype} of shape {list(experts.shape)}, a row for each token")]
