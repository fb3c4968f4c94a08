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
from collections.abc import Iterable, Sequence

from schemas.control import DEFAULT_RUN
from streams.adapters.dialects.calls import Answer, Call, CallRefused, Piece, Usage
from streams.adapters.dialects.common import ContextOverflow
from streams.adapters.dialects.dialect import AnswerNames, Dialect
from streams.adapters.engines.interface import Engine, EngineError, Learns, Sampling
from streams.adapters.gateway.experts import JoinedExperts
from streams.adapters.gateway.generating import Generating
from streams.adapters.gateway.grammar import Grammar
from streams.adapters.gateway.keeping import Part
from streams.adapters.gateway.limits import FairGate
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.minted import Kind, Minter, new_turn_id
from streams.adapters.gateway.near_misses import UnknownAnswers
from streams.adapters.gateway.parsing import AnswerParser, Parsed
from streams.adapters.gateway.passage import Passage
from streams.adapters.gateway.pinning import bends, constraint, drawn
from streams.adapters.gateway.prompts import BuiltPrompt, NotGiven, build
from streams.adapters.gateway.publishing import Done, Publisher
from streams.adapters.gateway.rendering import Renderer
from streams.adapters.gateway.sampled import Sampled
from streams.adapters.gateway.session import Session
from streams.adapters.gateway.sessions import Sessions, ended_refusal
from streams.adapters.gateway.straddling import straddles
from streams.adapters.gateway.weights import StillPaused, Weights
from streams.errors import LogError, TooLarge
from streams.settings import Settings

_TAIL_IDS = 1024
_LET_END_S = 10.0
LOG_AWAY = "the turn could not be made durable in time: try again"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every turn of a gateway works with."""

    settings: Settings
    engine: Engine
    renderer: Renderer
    grammar: Grammar
    minter: Minter
    sessions: Sessions
    publisher: Publisher
    gate: FairGate
    weights: Weights
    metrics: Metrics
    unknown_answers: UnknownAnswers


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
        self.stop(_hung_up())
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
            prompt = await self._prompt()
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

    async def _prompt(self) -> BuiltPrompt:
        parts, session = self._parts, self._session
        await self._let_end(turn_id for turn_id, turn in session.running.items() if turn.gone)
        prompt = await self._built()
        if prompt.part is not None and await self._keep(prompt, prompt.part):
            prompt = build(self.call, session.history, parts.renderer)
        self._supersede(prompt)
        parts.unknown_answers.look(session.session_id, prompt)
        return prompt

    async def _built(self) -> BuiltPrompt:
        """The prompt; an answer that is not known is looked for in the log before it is foreign.

        It may be still under way here, or another gateway's.
        """
        session, parts = self._session, self._parts
        try:
            prompt = build(self.call, session.history, parts.renderer)
            missing = prompt.missing
            if not prompt.foreign:
                return prompt
        except NotGiven as error:
            missing = error.missing
            if not missing:
                raise
        await self._let_end(missing)
        await parts.sessions.read_on(session)
        if session.ended is not None:
            raise ended_refusal()
        return build(self.call, session.history, parts.renderer)

    async def _let_end(self, turn_ids: Iterable[str]) -> None:
        """Turns that the client has gone on without: what they sampled is recorded first."""
        running = self._session.running
        over = [running[turn_id] for turn_id in turn_ids if turn_id in running]
        for turn in over:
            turn.stop(_hung_up())
        if over:
            await asyncio.wait({turn.task for turn in over}, timeout=_LET_END_S)

    async def _keep(self, prompt: BuiltPrompt, part: Part) -> bool:
        """Whether the client goes on from a part of an answer, which is recorded now."""
        assert prompt.base is not None, "what is cut has a base"
        base, parts, session = prompt.base, self._parts, self._session
        whole = part.length >= base.end - base.prompt_len
        if whole or part.length <= 0 or base.position is None or not base.is_leaf:
            return False
        event = await parts.sessions.turn_at(session, base.position)
        if event is None:
            return False
        if session.history.part(base.place, part.message) is None:
            await parts.publisher.part(session, event, part)
        return True

    def _supersede(self, prompt: BuiltPrompt) -> None:
        """Of several answers to one request, the client goes on from one: it has no other.

        A request was sent again because its first answer never came. Which answer came is known
        when one is extended; the others count as not delivered unless they are extended too.
        """
        base, session = prompt.base, self._session
        if base is None:
            return
        for twin in session.history.superseded(base):
            self._parts.publisher.undelivered(session, twin.turn_id)

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


def _hung_up() -> CallRefused:
    return CallRefused(499, "the client hung up")


def _engine_refusal(error: EngineError) -> CallRefused:
    if isinstance(error, StillPaused):
        return CallRefused(503, str(error), kind="paused")
    status = 503 if error.retryable else 502
    return CallRefused(status, f"the engine failed: {error}", kind="engine_error")
