"""The engine that plays a script, in this process.

    generate ──► plan ──► Tokens, Tokens, ...   finish | failure | the caller goes away
                             └ journal

A generation that was stopped (by its rule, by `abort`, by new weights) leaves its rest behind: a
call with the same routing key whose prompt is the old one and the tokens given goes on from
there, under the weights of that time. While it is paused nothing is sampled: what was under way is
stopped, or held like what is new.

Invariant: every generation that was begun ends in the journal, with what was handed over.
"""

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from tokenizers import Tokenizer

from schemas.record import Ids
from streams.adapters.engines.interface import EngineError, Experts, Finish, Generation, Tokens
from streams.adapters.engines.scripted.journal import Journal, Sampled
from streams.adapters.engines.scripted.playing import Plan, Player
from streams.adapters.engines.scripted.script import DEMO, Script
from streams.adapters.engines.scripted.spelling import derived_experts

RESTS_MAX = 1000
"""Stopped generations that nobody continued; the oldest is forgotten."""


@dataclass(slots=True)
class _Running:
    """One generation under way."""

    plan: Plan
    entry: Sampled
    prompt: Ids
    asks_experts: bool
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    why: str | None = None

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.stopped.set()


@dataclass(frozen=True, slots=True)
class _Step:
    """What is given at once: tokens from here to there."""

    start: int
    end: int
    finish: Finish | None
    fails: bool = False


class ScriptedEngine:
    """Gives the answers of a script."""

    def __init__(
        self,
        script: Script = DEMO,
        tokenizer: Tokenizer | None = None,
        *,
        journal_path: Path | None = None,
        journal_keep: int | None = None,
    ) -> None:
        """Play a script from its start.

        Args:
            script: the answers.
            tokenizer: what spells them; not needed if all are ids.
            journal_path: a file that gets a line of JSON for each generation.
            journal_keep: how many stay in memory, the newest; None: all.

        Raises:
            BadScript: it needs a tokenizer, or another one.
        """
        self._player = Player(script, tokenizer)
        self._script = script
        self._going = asyncio.Event()
        self._going.set()
        self.journal = Journal(journal_path, journal_keep)
        self._version = script.weight_version
        self._label = script.weight_label
        self._running: dict[str, _Running] = {}
        self._rests: OrderedDict[tuple[str, bytes], Plan] = OrderedDict()

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        return "processed"

    @property
    def forces_calls(self) -> bool:
        return False

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """Play the answer; closing the iterator early is journalled.

        Raises:
            EngineError: the script says so, or has no answer.
        """
        entry = self.journal.begin(generation)
        running: _Running | None = None
        try:
            running = self._begin(generation, entry)
            for step in _steps(running.plan):
                await _pause(running, step.start)
                await self._held(running)
                tokens = self._tokens(running, step)
                entry.add(tokens, self._version_of(running) if tokens.ids else None)
                if tokens.finish:
                    entry.outcome = "finished"  # now: who has seen the end asks for no more
                    yield tokens
                    break
                yield tokens
        except EngineError as error:
            entry.outcome, entry.error = "failed", str(error)
            raise
        finally:
            if self._running.get(generation.request_id) is running:
                self._running.pop(generation.request_id, None)
            self.journal.end(entry)

    async def abort(self, request_id: str) -> None:
        """Stop a generation: it ends with finish `abort`."""
        if request_id in self._running:
            self._running[request_id].stop("aborted by the caller")

    def pause(self, *, abort: bool = True) -> None:
        """Sample nothing until `resume`; what is under way is stopped or held."""
        self._going.clear()
        for running in self._running.values() if abort else ():
            running.stop("paused")

    def resume(self) -> None:
        """Sample again."""
        self._going.set()

    def update_weights(self, version: int, label: str | None = None, *, abort: bool = True) -> None:
        """From now on tokens are of other weights; what is under way is stopped or goes on."""
        self._version, self._label = version, label
        for running in self._running.values() if abort else ():
            running.stop(f"weights {version}")

    async def require_ready(self) -> None:
        """It always is."""

    async def close(self) -> None:
        """Stop what is under way."""
        for running in self._running.values():
            running.stop("the engine is closed")

    def _begin(self, generation: Generation, entry: Sampled) -> _Running:
        prompt = np.ascontiguousarray(generation.input_ids, np.int32)
        rest = self._rests.pop((generation.routing_key, prompt.tobytes()), None)
        if rest is None:
            plan = self._player.plan(generation, entry.call)
        else:
            plan = _limited(rest, generation.sampling.max_new_tokens)
        entry.rule = plan.name
        running = _Running(plan, entry, prompt, generation.routed_experts)
        self._running[generation.request_id] = running
        return running

    def _tokens(self, running: _Running, step: _Step) -> Tokens:
        plan, rule = running.plan, running.plan.rule
        version = self._version_of(running)
        label = self._label if rule.weight_label is None else rule.weight_label
        running.entry.weight_label = label
        if not self._script.tells_version:
            version = label = None
        if self._script.labels_only:
            version = None
        if running.why:
            step = _Step(step.start, step.start, "abort")
        elif step.fails and rule.fail:
            message = f"scripted engine: {rule.fail.message}"
            raise EngineError(message, retryable=rule.fail.retryable)
        if step.finish == "abort":
            self._leave_rest(running, step.end)
        reason = {"abort": running.why or "the script", None: None}
        return Tokens(
            ids=plan.ids[step.start : step.end],
            logprobs=plan.logprobs[step.start : step.end],
            weight_version=version if step.end > step.start else None,
            weight_label=label,
            finish=step.finish,
            stop_reason=reason.get(step.finish, plan.stop_reason),
            routed_experts=self._experts(running, step.end) if step.finish else None,
        )

    def _version_of(self, running: _Running) -> int | None:
        rule = running.plan.rule
        return self._version if rule.weight_version is None else rule.weight_version

    def _experts(self, running: _Running, given: int) -> Experts | None:
        if not running.asks_experts or self._script.experts is None:
            return None
        before = [*running.prompt[-1:].tolist(), *running.plan.ids[:given]][:given]
        return derived_experts(before, *self._script.experts)

    async def _held(self, running: _Running) -> None:
        if self._going.is_set():
            return
        going, stopped = (
            asyncio.create_task(event.wait()) for event in (self._going, running.stopped)
        )
        try:
            await asyncio.wait({going, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            stopped.cancel()
            await asyncio.wait({going, stopped})

    def _leave_rest(self, running: _Running, given: int) -> None:
        plan, key = running.plan, running.entry.routing_key
        so_far = np.concatenate([running.prompt, np.asarray(plan.ids[:given], np.int32)])
        rule = msgspec.structs.replace(
            plan.rule, abort_after=None, fail=None, weight_version=None, weight_label=None
        )
        self._rests[key, so_far.tobytes()] = replace(
            plan, rule=rule, name="rest", ids=plan.ids[given:], logprobs=plan.logprobs[given:]
        )
        if len(self._rests) > RESTS_MAX:
            self._rests.popitem(last=False)


def _steps(plan: Plan) -> Iterator[_Step]:
    """The answer in the parts that its rule says."""
    rule = plan.rule
    goal, finish = len(plan.ids), plan.finish
    if rule.abort_after is not None and rule.abort_after < goal:
        goal, finish = rule.abort_after, "abort"
    fails = rule.fail is not None and rule.fail.after <= goal
    goal = rule.fail.after if rule.fail and fails else goal
    apart = rule.finish_apart or fails or not goal
    start = 0
    sizes = itertools.cycle(rule.chunks)
    while start < goal:
        end = min(start + next(sizes), goal)
        yield _Step(start, end, finish if end == goal and not apart else None)
        start = end
    if apart:
        yield _Step(goal, goal, None if fails else finish, fails=fails)


def _limited(plan: Plan, tokens_max: int) -> Plan:
    if len(plan.ids) <= tokens_max:
        return plan
    ids, logprobs = plan.ids[:tokens_max], plan.logprobs[:tokens_max]
    return replace(plan, ids=ids, logprobs=logprobs, finish="length", stop_reason=None)


async def _pause(running: _Running, start: int) -> None:
    rule = running.plan.rule
    wait_ms = rule.gap_ms if start else rule.delay_ms
    if wait_ms <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running.stopped.wait(), wait_ms / 1000)
