"""The prompt of a call under way: what has to end, be read or be recorded before it is built.

    turns that the client left     end first, so that what they sampled is known
    an answer that is not known    is looked for in the log before it is foreign
    a part of an answer            is recorded as a turn of its own and gone on from
    twins of the answer            count as not delivered: the client has this one

A long stretch is rendered in a thread; nothing is rendered before it is known what is foreign.

Invariant: no answer counts as foreign that this gateway or the log could still tell of.
"""

import asyncio
import functools
from collections.abc import Iterable

from streams.adapters.dialects.calls import Call, CallRefused
from streams.adapters.gateway.history.keeping import Part
from streams.adapters.gateway.parts import Parts
from streams.adapters.gateway.prompts.building import Building, BuiltPrompt, NotGiven
from streams.adapters.gateway.sessions.served import ended_refusal
from streams.adapters.gateway.sessions.session import Session

_LET_END_S = 10.0


async def prompt_of(call: Call, session: Session, parts: Parts) -> BuiltPrompt:
    """Built on the turn that the call goes on from, once all of that turn is known."""
    await _let_end(session, (turn_id for turn_id, turn in session.running.items() if turn.gone))
    prompt = await _rendered(await _known(call, session, parts), session, parts)
    if prompt.part is not None and await _kept(prompt, prompt.part, session, parts):
        prompt = await _rendered(await _looked_up(call, session, parts), session, parts)
    _supersede(prompt, session, parts)
    parts.unknown_answers.look(session.session_id, prompt)
    return prompt


async def count_of(call: Call, session: Session, parts: Parts) -> int:
    """How many tokens the prompt has, as far as its answers are known here."""
    try:
        building = await _looked_up(call, session, parts)
    except NotGiven as error:
        if not error.missing:
            raise
        await parts.sessions.read_on(session)  # another gateway may have given it
        building = await _looked_up(call, session, parts)
    return len((await _rendered(building, session, parts)).ids)


async def _looked_up(call: Call, session: Session, parts: Parts) -> Building:
    await parts.loop_turns.next(session.session_id)
    return Building(call, session.history, parts.renderer)


async def _rendered(building: Building, session: Session, parts: Parts) -> BuiltPrompt:
    prompt = building.again()
    if prompt is not None:
        return prompt
    window = parts.settings.gateway_context_tokens
    for rendering in building.renderings():
        compose = functools.partial(rendering.compose, window)
        if rendering.is_long:
            composed = await parts.loop_turns.beside(session.session_id, compose)
        else:
            composed = compose()
        if composed is not None:
            return building.prompt(rendering, composed)
    raise AssertionError("a whole prompt is rendered or refused")


async def _known(call: Call, session: Session, parts: Parts) -> Building:
    """What a prompt goes on from; an unknown answer is looked for in the log first.

    It may be still under way here, or another gateway's.
    """
    try:
        building = await _looked_up(call, session, parts)
        missing = building.missing
        if not building.foreign:
            return building
    except NotGiven as error:
        missing = error.missing
        if not missing:
            raise
    await _let_end(session, missing)
    await parts.sessions.read_on(session)
    if session.ended is not None:
        raise ended_refusal()
    return await _looked_up(call, session, parts)


async def _let_end(session: Session, turn_ids: Iterable[str]) -> None:
    """Turns that the client has gone on without: what they sampled is recorded first."""
    running = session.running
    over = [running[turn_id] for turn_id in turn_ids if turn_id in running]
    for turn in over:
        turn.stop(hung_up())
    if over:
        await asyncio.wait({turn.task for turn in over}, timeout=_LET_END_S)


async def _kept(prompt: BuiltPrompt, part: Part, session: Session, parts: Parts) -> bool:
    """Whether the client goes on from a part of an answer, which is recorded now."""
    assert prompt.base is not None, "what is cut has a base"
    base = prompt.base
    whole = part.length >= base.end - base.prompt_len
    if whole or part.length <= 0 or base.position is None or not base.is_leaf:
        return False
    event = await parts.sessions.turn_at(session, base.position)
    if event is None:
        return False
    if session.history.part(base.place, part.message) is None:
        await parts.publisher.part(session, event, part)
    return True


def _supersede(prompt: BuiltPrompt, session: Session, parts: Parts) -> None:
    """Of several answers to one request, the client goes on from one: it has no other.

    A request was sent again because its first answer never came. Which answer came is known
    when one is extended; the others count as not delivered unless they are extended too.
    """
    if prompt.base is None:
        return
    for twin in session.history.superseded(prompt.base):
        parts.publisher.undelivered(session, twin.turn_id)


def hung_up() -> CallRefused:
    """For a turn that nobody waits for."""
    return CallRefused(499, "the client hung up")
