"""Whether an engine gives what a turn is recorded from: its ids, its logprobs, its versions.

    URL ──► which engine it is ──► some short answers at each address ──► rows of the table

Invariant: it samples a few hundred tokens at most, and changes nothing.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from streams.adapters.engines.interface import (
    EngineAway,
    EngineError,
    KeyRefused,
    Redirected,
    WrongEngine,
)
from streams.adapters.engines.routing import addresses_of, shown
from streams.cli.doctor.engine_checks import ADVICE, KEY, check
from streams.cli.doctor.finding import Finding, failed, note
from streams.cli.serving import SERVED, open_renderer
from streams.errors import BadSetting
from streams.settings import load_settings

_PROMPT = tuple(range(100, 116))
"""Ids that every vocabulary has; what they say does not matter."""
_TEXT = "Once upon a time there was"
_START = "start it, or name another address"
_WAIT = "wait until it has loaded; if a proxy says so, see that it reaches the engine"
_ITSELF = "redirects are not followed: name the address where the engine itself answers"


def findings(*, tokenizer: Path | None, log: str | None, engine: str | None) -> list[Finding]:
    """Of the engine that was named, if one was."""
    if engine is None:
        return []
    if engine.partition(":")[0] not in {*SERVED, "http", "https"}:
        return [note("engine", f"{shown(engine)}: nothing to try, it is not served by others")]
    try:
        api_key = load_settings().engine_api_key
    except BadSetting:
        api_key = None  # The row of the settings tells.
    try:
        return asyncio.run(_all(engine, _prompt(tokenizer), api_key))
    except BadSetting as error:
        return [failed("engine", str(error), "give URL, `sglang:URL` or `vllm:URL`")]


async def _all(name: str, prompt: Sequence[int], api_key: str | None) -> list[Finding]:
    found: list[Finding] = []
    kind, _, rest = name.partition(":")
    several = addresses_of(rest if kind in SERVED else name)
    for address in several:
        kinds = [kind] if kind in SERVED else list(SERVED)
        rows = await _one(address, kinds, prompt, api_key)
        if len(several) > 1:
            place = shown(address).partition("//")[2]
            rows = [
                Finding(f"{row.name} of {place}", row.state, row.detail, row.change) for row in rows
            ]
        found += rows
    return found


async def _one(
    address: str, kinds: Sequence[str], prompt: Sequence[int], api_key: str | None
) -> list[Finding]:
    """The rows of one address."""
    wrong: list[str] = []
    for kind in kinds:
        engine = SERVED[kind]([address], api_key=api_key)
        try:
            await engine.require_ready()
            return await check(engine, prompt, ADVICE[kind])
        except Redirected as error:
            return [failed("engine", str(error), _ITSELF)]
        except WrongEngine as error:
            wrong.append(str(error))
        except KeyRefused as error:
            return [failed("engine", str(error), KEY)]
        except EngineAway as error:
            return [failed("engine", str(error), _START)]
        except EngineError as error:
            return [failed("engine", str(error), _WAIT)]
        finally:
            await engine.close()
    neither = f"{shown(address)}: neither SGLang nor vLLM answers there"
    what = wrong[0] if len(wrong) == 1 else neither
    return [failed("engine", what, "name the address of the engine's own server")]


def _prompt(tokenizer: Path | None) -> Sequence[int]:
    if tokenizer is None:
        return _PROMPT
    try:
        return tuple(open_renderer(tokenizer).backend.encode(_TEXT, add_special_tokens=False).ids)
    except BadSetting:
        return _PROMPT  # The tokenizer's own rows tell.
