"""How a call is sampled: as the session pins it, whatever the client asks for.

A trainer assumes one distribution, so in a train session the client's wishes are ignored and
counted; an eval session grants them where the run has not pinned the value. What cuts the
distribution (a schema, a forced call, a truncating sampler) is told as a constraint, and such
turns do not train by default.

Invariant: a turn that is told without a constraint was drawn from the whole distribution; a train
session is not sampled where the engine's logprobs are of another distribution.
"""

from dataclasses import replace
from typing import Any, Literal

import msgspec

from schemas.events import Sampling as Pins
from streams.adapters.dialects.calls import Call, CallRefused
from streams.adapters.engines.interface import Engine, Sampling

_PINNED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_WHOLE = ("frequency_penalty", "presence_penalty", "repetition_penalty", "temperature")
"""What changes the logprobs of every token, so that raw ones are of another distribution."""


def drawn(
    call: Call, pins: Pins | None, engine: Engine, *, trains: bool
) -> tuple[Sampling, list[str]]:
    """The sampling of a call without its lengths, and which wishes of the client are ignored.

    Raises:
        CallRefused: what would be recorded could not train, though it should.
    """
    pinned = {name: getattr(pins, name) for name in _PINNED if pins is not None}
    pinned = {name: value for name, value in pinned.items() if value is not None}
    sampling = replace(Sampling(stop=call.stop, json_schema=_schema(call)), **pinned)
    wishes: dict[str, Any] = {n: v for n, v in call.sampling.items() if n in (*_PINNED, "seed")}
    if trains:
        _refuse_raw(pins, engine.logprobs)
    else:
        granted = {n: v for n, v in wishes.items() if n not in pinned}
        whole = {n: int(v) for n, v in granted.items() if n in {"top_k", "seed"}}
        sampling = replace(sampling, **{**granted, **whole})
    ignored = [n for n, v in wishes.items() if n != "seed" and v != getattr(sampling, n)]
    if call.tool_choice not in ("auto", "none"):
        if engine.forces_calls:
            sampling = replace(sampling, tool_choice=call.tool_choice)
        else:
            ignored.append("tool_choice")
    if not call.parallel_tool_calls:
        ignored.append("parallel_tool_calls")
    return sampling, ignored


def constraint(call: Call, sampling: Sampling) -> str | None:
    """What cuts the sampled distribution, if anything does."""
    if call.response_schema is not None:
        return "response_schema"
    if sampling.tool_choice is not None:
        return "tool_choice"
    if sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0:
        return "truncating sampler"
    return None


def bends(pins: Pins | None) -> list[str]:
    """What a session pins that raw logprobs do not follow."""
    plain = Sampling()
    pinned = {name: getattr(pins, name) for name in _WHOLE if pins is not None}
    return [n for n, value in pinned.items() if value is not None and value != getattr(plain, n)]


def _refuse_raw(pins: Pins | None, logprobs: Literal["processed", "raw"]) -> None:
    bent = bends(pins)
    if logprobs == "raw" and bent:
        raise CallRefused(
            409,
            f"this engine's logprobs are of temperature 1 without penalties, and the session pins"
            f" {', '.join(bent)}: it cannot train on them; open one with split eval, or unpin;"
            " `turnstream doctor --engine` says how to start the engine so that it can",
            kind="sampling_refused",
            code="raw_logprobs",
        )


def _schema(call: Call) -> str | None:
    if call.response_schema is None:
        return None
    if call.response_schema is True:
        return '{"type":"object"}'
    return msgspec.json.encode(call.response_schema).decode()
