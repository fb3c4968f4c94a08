"""One model call from prompt to durable turn, whatever happens to client, engine or log.

    build prompt ──► engine ──► pieces to the client, as they are sampled
                                  └──► turn published ──ack──► the answer's end
    client goes away   what was sampled is recorded as not delivered
    session ended      likewise, and the client is told
    engine fails       what was sampled is recorded as not trainable; the client gets an error
    log away           the client gets a retryable error; `turn_undelivered` follows

A turn runs in a task of its own, so that a client that hangs up cannot stop its recording.

Invariant: the client sees the end of an answer only after the log has acknowledged the turn, and
everything that was sampled is in the log or said to be missing.
"""

import asyncio
import dataclasses
import time
from collections.abc import Sequence

from schemas.control import DEFAULT_RUN
from streams.adapters.dialects.calls import Answer, Call, CallRefused, Piece, Usage
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.dialects.dialect import AnswerNames, Dialect
from streams.adapters.engines.interface import EngineError, Learns, Sampling
from streams.adapters.gateway.access.minted import Kind, new_turn_id
from streams.adapters.gateway.answers.grammar import Grammar
from streams.adapters.gateway.answers.parsing import AnswerParser, Parsed
from streams.adapters.gateway.parts import Parts
from streams.adapters.gateway.prompting import hung_up, prompt_of
from streams.adapters.gateway.prompts.building import BuiltPrompt
from streams.adapters.gateway.publishing import Done
from streams.adapters.gateway.sampling.experts import JoinedExperts
from streams.adapters.gateway.sampling.generating import Generating
from streams.adapters.gateway.sampling.passage import Passage
from streams.adapters.gateway.sampling.pinning import bends, constraint, drawn
from streams.adapters.gateway.sampling.sampled import Sampled
from streams.adapters.gateway.sampling.straddling import straddles
from streams.adapters.gateway.sampling.weights import StillPaused
from streams.adapters.gateway.sessions.served import ended_refusal
from streams.adapters.gateway.sessions.session import Session
from streams.errors import LogError, TooLarge

_TAIL_IDS = 1024
LOG_AWAY = "the turn could not be made durable in time: try again"


class RunningTurn:
    """One call under way, from the moment it is made."""

    def __init__(self, parts: Parts, session: Session, call: Call, dialect: Dialect) -> None:
        """`dialect` says how its ids begin."""
        self._parts = parts
        self._session = session
        self.session_id = session.session_id
        self.run_id = session.run_id or DEFAULT_RUN
        self.call = call
        self.turn_id = new_turn_id()
        self._dialect = dialect
        self.names = AnswerNames(
            id=self._mint(Kind.ANSWER, dialect.ANSWER_PREFIX),
            carrier=self._mint(Kind.REASONING, "rs_"),
            created_s=int(time.time()),
            model=call.model,
        )
        self.out: asyncio.Queue[Piece | Answer | CallRefused] = asyncio.Queue()
        self.gone = False
        self._stopped: CallRefused | None = None
        self._published = False
        self._asked: tuple[BuiltPrompt, Sampling] | None = None
        self._passage = Passage(parts.gate, parts.weights, self.session_id, self.run_id)
        experts = JoinedExperts() if parts.settings.gateway_routed_experts else None
        self.sampled = self._sampled = Sampled(ids_max=parts.renderer.ids_max, experts=experts)
        self._generating = Generating(
            parts.engine, session.session_id, self._sampled, self._feed, self._passage
        )
        self._parser: AnswerParser | None = None
        self._started_ms = int(time.time() * 1000)
        self._prev = session.prev
        session.running[self.turn_id] = self
        self.task = asyncio.create_task(self._run())

    def _mint(self, kind: Kind, prefix: str, index: int = 0) -> str:
        minter, session_id = self._parts.minter, self._session.session_id
        return minter.mint(kind, session_id, self.turn_id, index=index, prefix=prefix)

    def client_gone(self) -> None:
        """The client hung up, or what it got cannot be sent: record that."""
        self.gone = True
        self.stop(hung_up())
        if self._published:
            self._parts.publisher.undelivered(self._session, self.turn_id)

    def stop(self, why: CallRefused) -> None:
        """Sample no further; what there is is recorded as not delivered."""
        self._stopped = self._stopped or why
        self._passage.give_up()
        self._generating.stop()

    async def _run(self) -> None:
        """Do it all; the outcome is in `out`, and nothing is raised."""
        session, metrics = self._session, self._parts.metrics
        try:
            if not await self._passage.passed() and self._stopped is not None:
                raise self._stopped
            self.out.put_nowait(await self._answered())
        except CallRefused as refusal:
            self.out.put_nowait(refusal)
        except EngineError as error:
            metrics.count("paused_out" if isinstance(error, StillPaused) else "engine_errors")
            self.out.put_nowait(_engine_refusal(error))
        except TooLarge as error:
            self.out.put_nowait(CallRefused(413, f"the turn is too large to record: {error}"))
        except LogError as error:
            metrics.count("log_errors")
            metrics.say("log", session.session_id, self.turn_id, str(error))
            self.out.put_nowait(CallRefused(503, LOG_AWAY, kind="log_unavailable"))
        except Exception as error:  # the client must get an answer, and the others go on
            metrics.failure(session.session_id, self.turn_id, error)
            await self._salvage()
            self.out.put_nowait(CallRefused(500, "the gateway failed", kind="server_error"))
        finally:
            self._passage.leave()
            session.running.pop(self.turn_id, None)

    async def _salvage(self) -> None:
        """Something failed that should not: what was sampled is recorded, or said to be lost."""
        if self._published or not self._sampled.ids:
            return
        try:
            if self._asked is not None:
                await self._record(*self._asked, None, trainable=False)
        except LogError:
            pass  # the publisher owes it now
        except Exception as error:
            what = type(error).__name__
            self._parts.metrics.say("unrecordable", self.session_id, self.turn_id, what)
        if not self._published:
            self._parts.publisher.lost(self._session, self.turn_id)

    async def _answered(self) -> Answer:
        parts = self._parts
        with parts.metrics.stage("prompt"):
            prompt = await prompt_of(self.call, self._session, parts)
        parts.metrics.prompt(prompt.built, len(prompt.ids))
        engine = parts.engine
        if self._session.trains and bends(self._session.pins) and isinstance(engine, Learns):
            await engine.learn()
        sampling = self._sampling(prompt)
        if sampling is None:
            return self._full(prompt)
        if self._stopped is not None:
            raise self._stopped  # nothing was sampled
        self._asked = (prompt, sampling)
        parser = self._parser = AnswerParser(
            parts.grammar,
            self.call,
            mint=lambda n: self._mint(Kind.TOOL_CALL, self._dialect.CALL_PREFIX, n),
            prompt_tail_ids=_tail(prompt, parts.grammar),
        )
        try:
            with parts.metrics.stage("engine"):
                await self._generating.run(prompt.ids, sampling)
        except EngineError:
            if self._sampled.ids:
                await self._record(prompt, sampling, parser.finish("abort"), trainable=False)
            raise
        finally:
            parts.metrics.count("continued", self._generating.continued)
        cut_short = self._stopped if self._sampled.finish == "abort" else None
        parsed = parser.finish(self._sampled.finish or "abort")
        for piece in parsed.pieces if cut_short is None else ():
            self.out.put_nowait(piece)
        with parts.metrics.stage("publish"):
            delivered = not self.gone and cut_short is None
            parts.sessions.doubt(self._session)
            await self._record(prompt, sampling, parsed, delivered=delivered)
            await self._check_in_time()
        if cut_short is not None:
            raise cut_short
        return self._answer(prompt, parsed)

    async def _check_in_time(self) -> None:
        """Refuse a turn that the log took behind its session's end: it does not count."""
        parts, session = self._parts, self._session
        try:
            late = await parts.sessions.came_late(session, self.turn_id)
        except LogError:
            parts.publisher.undelivered(session, self.turn_id)
            raise
        if late:
            parts.metrics.count("late_turns")
            raise ended_refusal()

    def _feed(self, ids: Sequence[int]) -> bool:
        assert self._parser is not None, "nothing is sampled before there is a parser"
        for piece in self._parser.feed(ids):
            self.out.put_nowait(piece)
        vocabulary, stop = self._parts.grammar.vocabulary, self.call.stop
        return self._parser.stopped or straddles(vocabulary, self._sampled, stop)

    def _sampling(self, prompt: BuiltPrompt) -> Sampling | None:
        """How it is sampled; None if the session has used up its context."""
        parts, session = self._parts, self._session
        sampling, ignored = drawn(self.call, session.pins, parts.engine, trains=session.trains)
        for name in ignored:
            parts.metrics.count(f"ignored_sampling:{name}")
        window = parts.settings.gateway_context_tokens
        budget = session.budget("context_tokens")
        budget = window if budget is None else budget
        left = min(window, budget) - len(prompt.ids)
        if left <= 0 and budget < window:
            return None
        if left <= 0:
            raise ContextOverflow(len(prompt.ids), window)
        asked = self.call.max_tokens or parts.settings.gateway_max_new_tokens
        return dataclasses.replace(
            sampling,
            max_new_tokens=min(left, asked),
            stop_ids=tuple(sorted(parts.grammar.stop_ids)),
        )

    async def _record(
        self,
        prompt: BuiltPrompt,
        sampling: Sampling,
        parsed: Parsed | None,
        *,
        trainable: bool = True,
        delivered: bool = True,
    ) -> None:
        parts = self._parts
        done = Done(
            turn_id=self.turn_id,
            call=self.call,
            prompt=prompt,
            sampled=self._sampled,
            response=parsed.response_message if parsed else None,
            drawn=sampling,
            constraint=constraint(self.call, sampling),
            ill_formed=parsed is not None and parsed.ill_formed,
            trainable=trainable,
            delivered=delivered and trainable,
            renderer=parts.renderer,
            logprobs=parts.engine.logprobs,
            started_ms=self._started_ms,
            finished_ms=int(time.time() * 1000),
            prev=self._prev,
        )
        await parts.publisher.turn(self._session, done)
        self._published = True
        parts.metrics.count("turns")
        parts.metrics.tokens(self._session.run_id, len(prompt.ids), len(self._sampled.ids))
        if self.gone:  # while the log was asked
            parts.publisher.undelivered(self._session, self.turn_id)

    def _answer(self, prompt: BuiltPrompt, parsed: Parsed) -> Answer:
        return Answer(
            id=self.names.id,
            carrier=self.names.carrier,
            model=self.names.model,
            created_s=self.names.created_s,
            reasoning=parsed.reasoning,
            text=parsed.text,
            tool_calls=parsed.tool_calls,
            finish_reason=parsed.finish_reason,
            ill_formed=parsed.ill_formed,
            stop_string=parsed.stop_string,
            usage=Usage(
                prompt=len(prompt.ids),
                output=len(self._sampled.ids),
                reasoning=parsed.reasoning_tokens,
                reused=prompt.kept_ids,
            ),
        )

    def _full(self, prompt: BuiltPrompt) -> Answer:
        """The context is used up: an empty answer, cut by length, without asking the engine."""
        self._parts.metrics.count("context_full")
        self._session.unrecorded += 1
        return Answer(
            id=self.names.id,
            carrier=self.names.carrier,
            model=self.names.model,
            created_s=self.names.created_s,
            finish_reason="length",
            usage=Usage(prompt=len(prompt.ids), output=0, reused=prompt.kept_ids),
        )


def _tail(prompt: BuiltPrompt, grammar: Grammar) -> list[int]:
    """The end of the prompt, back to where the last message ended."""
    for length in (_TAIL_IDS, len(prompt.ids)):  # mostly near, and a prompt may be long
        tail: list[int] = prompt.ids[-length:].tolist()
        for behind, token in enumerate(reversed(tail)):
            if token in grammar.stop_ids:
                return tail[len(tail) - behind :]
    return tail


def _engine_refusal(error: EngineError) -> CallRefused:
    if isinstance(error, StillPaused):
        return CallRefused(503, str(error), kind="paused")
    status = 503 if error.retryable else 502
    return CallRefused(status, f"the engine failed: {error}", kind="engine_error")
