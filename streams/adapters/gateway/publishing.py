"""A turn becomes an event of the log: on the deepest base the log has, checked as a reader would.

    handed over ──► seq given, history knows it ──ack──► others may build on it
                                                 └lost─► `turn_undelivered` follows when it can

A turn whose publication failed stays in the history: the client may have seen all of its text and
go on from it, and the ids that were sampled are the best that can stand for that text. The next
turn is then published on the deepest base that the log has, with the lost turn's ids as context;
should the log have it after all, the next turn extends it there.

Invariant: an event that a reader would refuse is never published, so that no later turn hangs on
one that was refused; `seq` has no hole that is not filled.
"""

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

import msgspec

from schemas import codec
from schemas.events import Channel, Event, Sampling, Turn, TurnUndelivered
from schemas.record import NOT_GIVEN, Octets, json_text
from streams.adapters.dialects.calls import Call, Message
from streams.adapters.engines.interface import Sampling as Drawn
from streams.adapters.gateway.access.minted import new_turn_id
from streams.adapters.gateway.history.keeping import Part, part_of
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.prompts.building import BuiltPrompt, raw_prompt
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.sampling.channels import Channels
from streams.adapters.gateway.sampling.sampled import Sampled
from streams.adapters.gateway.sessions.session import Session
from streams.errors import LogError, TooLarge
from streams.log.interface import Log, Outgoing, Position
from streams.log.keys import event_key
from streams.settings import Settings

_REPAIR_WAIT_S = (0.2, 5.0)
"""Between two tries to say what the log has to be told, at first and at most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What is known of a turn when nothing more is sampled."""

    turn_id: str
    call: Call
    prompt: BuiltPrompt
    sampled: Sampled
    response: Message | None
    drawn: Drawn
    constraint: str | None
    ill_formed: bool = False
    trainable: bool = True
    delivered: bool = True
    renderer: Renderer
    logprobs: Any
    started_ms: int
    finished_ms: int
    prev: int | None
    """Where the newest acknowledged turn of the session stood when this one was asked."""


class Publisher:
    """Hands a gateway's events to the log."""

    def __init__(self, settings: Settings, log: Log, source: str, metrics: Metrics) -> None:
        """`source` names this start of this process."""
        self._settings = settings
        self._log = log
        self._metrics = metrics
        self._channels = Channels(settings, metrics)
        self.source = source
        self._owing: dict[str, Session] = {}
        """Sessions of which the log has to be told something."""
        self._repair: asyncio.Task[None] | None = None
        self._log_is_back = asyncio.Event()
        self._saying = asyncio.Lock()

    @property
    def repairing(self) -> int:
        """Turns that did not reach their client, which the log has still to be told."""
        return sum(len(session.unsaid) for session in self._owing.values())

    async def turn(self, session: Session, done: Done) -> Position:
        """Publish a turn; returns when it is durable.

        Raises:
            BadRecord: a reader would refuse it; nothing was handed over, no number is used.
            LogError: it may be there or not; a `turn_undelivered` follows by itself.
            TooLarge: it does not fit; likewise.
        """
        channels = await self._channels.of(done.sampled)
        event = self._event(session, done, channels)
        return await self._hand_over(session, self._channels.fitting(event))

    async def part(self, session: Session, event: Turn, part: Part) -> None:
        """Publish what the client kept of an answer, and that it has no other of it.

        Raises:
            LogError: as for a whole turn.
        """
        kept = part_of(event, part, turn_id=new_turn_id())
        self.undelivered(session, event.turn_id)
        try:
            await self._hand_over(session, msgspec.structs.replace(kept, **self._number(session)))
        except BaseException:
            session.history.forget(kept.turn_id, event.turn_id)  # whoever tries again tells it anew
            raise

    def _number(self, session: Session) -> dict[str, Any]:
        return {"source": self.source, "seq": session.sources.get(self.source, 0) + 1}

    async def _hand_over(self, session: Session, event: Turn) -> Position:
        assert event.seq is not None, "a gateway numbers its turns"
        value = codec.to_msgpack(event)
        codec.from_msgpack(value)  # every check of a reader's
        session.history.record(event)
        session.number(self.source, event.seq)
        if not event.delivered:
            self._metrics.count("undelivered")
            session.undelivered.add(event.turn_id)
        try:
            position = await self._publish(session.session_id, value, event.turn_id)
        except BaseException:
            self._owe(session, event.turn_id, event.seq)
            raise
        session.history.acknowledge(event.turn_id, position.offset)
        session.stands(position.offset)
        session.met(position.offset, int(time.time() * 1000))
        if event.tools_digest is not None:
            session.tools_sent.add(event.tools_digest)
        return position

    async def event(self, session_id: str, event: Event) -> Position:
        """Publish any other event of a session."""
        return await self._publish(session_id, codec.to_msgpack(event), None)

    def undelivered(self, session: Session, turn_id: str) -> None:
        """Say that the client never got a turn that is published, as soon as the log takes it."""
        if turn_id not in session.undelivered:
            self._owe(session, turn_id, None)

    def lost(self, session: Session, turn_id: str) -> None:
        """Say that a turn was sampled and cannot be recorded."""
        if turn_id not in session.undelivered:
            seq = session.sources.get(self.source, 0) + 1
            session.number(self.source, seq)
            self._owe(session, turn_id, seq)

    async def say_all(self, session: Session) -> None:
        """Tell the log now what it has still to be told of a session.

        Raises:
            LogError: not now.
        """
        async with self._saying:  # or the repair and an end would say the same twice
            for turn_id, event in list(session.unsaid.items()):
                try:
                    await self.event(session.session_id, event)
                except TooLarge as error:  # trying again would hold up all other sessions
                    self._metrics.say("unsaid", session.session_id, turn_id, str(error))
                session.unsaid.pop(turn_id, None)
            if not session.unsaid:
                self._owing.pop(session.session_id, None)

    async def close(self, seconds: float) -> None:
        """Say what is left, bounded, and let go."""
        repair = self._repair
        if repair is not None:
            await asyncio.wait({repair}, timeout=seconds)
            repair.cancel()
            await asyncio.wait({repair})
        if self._owing:
            self._metrics.say("unsaid", None, None, f"{self.repairing} turns not delivered")

    async def _publish(self, session_id: str, value: bytes, turn_id: str | None) -> Position:
        position = await self._log.publish(
            Outgoing(
                topic=self._settings.turns_topic,
                key=event_key(session_id),
                value=value,
                session_id=session_id,
                turn_id=turn_id,
            )
        )
        self._log_is_back.set()
        return position

    def _owe(self, session: Session, turn_id: str, seq: int | None) -> None:
        self._metrics.count("undelivered", turn_id not in session.undelivered)
        session.undelivered.add(turn_id)
        session.unsaid[turn_id] = TurnUndelivered(
            session_id=session.session_id,
            turn_id=turn_id,
            source=None if seq is None else self.source,
            seq=seq,
        )
        self._owing[session.session_id] = session
        if self._repair is None or self._repair.done():
            self._repair = asyncio.create_task(self._say_until_said())

    async def _say_until_said(self) -> None:
        """One task for all: a log that was away is not met by a crowd."""
        wait_s, most_s = _REPAIR_WAIT_S
        while self._owing:
            self._log_is_back.clear()
            try:
                for session in list(self._owing.values()):
                    await self.say_all(session)
            except LogError:
                self._metrics.count("repairs_put_off")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._log_is_back.wait(), wait_s)
                wait_s = min(2 * wait_s, most_s)

    def _event(self, session: Session, done: Done, channels: dict[str, Channel] | None) -> Turn:
        prompt, sampled, drawn = done.prompt.published(), done.sampled, done.drawn
        aside = session.work.aside(done.call)
        new_tools = prompt.tools_digest not in session.tools_sent and done.call.tools
        return Turn(
            session_id=session.session_id,
            turn_id=done.turn_id,
            **self._number(session),
            prev=done.prev,
            request_class="auxiliary" if aside else done.call.request_class,
            class_by_shape=aside,
            agent_id=done.call.agent_id,
            model=done.call.model,
            prompt_messages=tuple(json_text(message) for message in prompt.suffix_messages),
            prompt_ids=prompt.suffix_ids,
            output_ids=sampled.output_ids,
            logprobs=sampled.output_logprobs,
            response_message=json_text(done.response) if done.response else NOT_GIVEN,
            weight_versions=sampled.weight_versions,
            weight_label=sampled.weight_label,
            continued_at=sampled.continued_at,
            cache_flushed=sampled.cache_flushed,
            finish_reason=sampled.finish,
            sampling=_told(drawn, done.constraint, done.logprobs),
            ill_formed=done.ill_formed,
            trainable=done.trainable,
            delivered=done.delivered,
            tools=json_text(list(done.call.tools)) if new_tools else NOT_GIVEN,
            tools_digest=prompt.tools_digest,
            fingerprint=done.renderer.fingerprint,
            prompt_built=prompt.built,
            channels=channels,
            raw_prompt=raw_prompt(done.prompt, done.renderer, self._settings),
            started_ms=done.started_ms,
            finished_ms=done.finished_ms,
            base_turn_id=prompt.base_turn_id,
            kept_messages=prompt.kept_messages if prompt.base else None,
            kept_ids=prompt.kept_ids if prompt.base else None,
            prompt_digest=Octets(prompt.prompt_digest),
        )


def _told(drawn: Drawn, constraint: str | None, logprobs: Any) -> Sampling:
    """How it was sampled; what is switched off is left out."""
    return Sampling(
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        top_k=drawn.top_k if drawn.top_k > 0 else None,
        min_p=drawn.min_p or None,
        frequency_penalty=drawn.frequency_penalty or None,
        presence_penalty=drawn.presence_penalty or None,
        repetition_penalty=None if drawn.repetition_penalty == 1.0 else drawn.repetition_penalty,
        constraint=constraint,
        logprobs=logprobs,
    )
