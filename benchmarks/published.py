"""Calls as the events an adapter publishes: delta form, every prompt guarded by its digest.

A turn is based on its agent's call before it and keeps what the two have in common; the first
turn of an agent is self-contained.

Invariant: the kept part and the suffix join to exactly the call's prompt and messages.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from operator import eq

import msgspec
import numpy as np

from benchmarks.workloads import Call
from schemas.events import Event, Sampling, SessionEnded, SessionOpened, Turn
from schemas.record import Ids, Octets, json_text

SOURCE = "gateway-1-1760000000000"
SAMPLING = Sampling(temperature=1.0, top_p=1.0, logprobs="processed")
WEIGHT_VERSION = 17
TURN_MS = 4_000


def events_of(calls: Sequence[Call], session_id: str) -> list[Event]:
    """A whole session: opened, its turns, ended with a reward."""
    return [opened(session_id), *turns_of(calls, session_id), ended(calls, session_id)]


def opened(session_id: str) -> SessionOpened:
    """The event that tells which rollout the session is."""
    return SessionOpened(
        session_id=session_id,
        run_id="run-1",
        run_epoch=0,
        task_id="task-1",
        group_id="group-1",
        group_size=8,
        rollout_index=0,
        attempt=0,
        split="train",
        step=1,
        metadata=json_text({"repository": "example", "difficulty": 3}),
    )


def ended(calls: Sequence[Call], session_id: str) -> SessionEnded:
    """The event that closes the session."""
    return SessionEnded(
        session_id=session_id,
        end_status="completed",
        reward=1.0,
        turns={SOURCE: len(calls)},
    )


def turns_of(calls: Sequence[Call], session_id: str) -> list[Event]:
    """One turn event a call."""
    return [_turn(call, session_id, seq) for seq, call in enumerate(calls, 1)]


def _turn(call: Call, session_id: str, seq: int) -> Turn:
    base = call.grown_from
    kept_ids = kept_messages = 0
    if base is not None:
        kept_ids = _common(np.concatenate((base.prompt_T, base.output_T)), call.prompt_T)
        told = (*base.messages, base.response)
        kept_messages = sum(takewhile(bool, map(eq, told, call.messages)))
    suffix_T = call.prompt_T[kept_ids:].copy()
    suffix_T.flags.writeable = False
    return Turn(
        session_id=session_id,
        turn_id=call.turn_id,
        prompt_messages=tuple(msgspec.Raw(text) for text in call.messages[kept_messages:]),
        prompt_ids=suffix_T,
        output_ids=call.output_T,
        logprobs=call.logprobs_T,
        response_message=msgspec.Raw(call.response),
        source=SOURCE,
        seq=seq,
        prev=seq,
        request_class=call.request_class,
        agent_id=call.agent_id,
        model="example-model",
        weight_versions=[(WEIGHT_VERSION, call.output_T.size)],
        finish_reason="tool_calls",
        sampling=SAMPLING,
        prompt_built="render" if base is None else "bridge",
        started_ms=1_760_000_000_000 + TURN_MS * seq,
        finished_ms=1_760_000_000_000 + TURN_MS * (seq + 1),
        base_turn_id=base.turn_id if base is not None else None,
        kept_messages=kept_messages if base is not None else None,
        kept_ids=kept_ids if base is not None else None,
        prompt_digest=Octets(blake2b(call.prompt_T.tobytes(), digest_size=16).digest()),
    )


def _common(held_T: Ids, prompt_T: Ids) -> int:
    size = min(held_T.size, prompt_T.size)
    differs = held_T[:size] != prompt_T[:size]
    return int(differs.argmax()) if differs.any() else size
