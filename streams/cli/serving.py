"""What `up` and `gateway` share: engine, tokenizer and secret by name, and a service's life.

    scripted             the demonstration script, in this process
    scripted:FILE.json   a script of one's own
    http://HOST:PORT     a scripted engine that runs as a process of its own
    sglang:URL           SGLang; several replicas with commas between their URLs
    vllm:URL             vLLM, the same
    local:PATH           a model's folder or GGUF file, computed in this process

Invariant: what was named and cannot be used ends the command before it listens, with exit code 1
and one line that says what to give instead; a signal drains and ends it with 0.
"""

import asyncio
import contextlib
import gc
import importlib
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

from streams.adapters.engines.interface import (
    Engine,
    EngineError,
    KeyRefused,
    Learns,
    Redirected,
    WrongEngine,
)
from streams.adapters.engines.local import LocalEngine
from streams.adapters.engines.over_http import HttpEngine
from streams.adapters.engines.routing import addresses_of, shown
from streams.adapters.engines.scripted import DEMO, ScriptedEngine
from streams.adapters.engines.scripted.remote import RemoteScriptedEngine
from streams.adapters.engines.scripted.script import read_script
from streams.adapters.engines.sglang import sglang_engine
from streams.adapters.engines.vllm import vllm_engine
from streams.adapters.gateway.access.secret import Secrets, secrets_from, secrets_of
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.errors import BadSetting, LogAway, TurnstreamError
from streams.operations.watching import Watch
from streams.settings import KAFKA, PREFIX, Settings

SCRIPTED = "scripted"
LOCAL = "local"
ENGINES = (
    "`scripted`, `scripted:FILE.json`, the URL of a scripted engine's own process, "
    "`sglang:URL[,URL]`, `vllm:URL[,URL]` or `local:PATH` of a model's folder or GGUF file"
)
SERVED: dict[str, Callable[..., HttpEngine]] = {
    "sglang": sglang_engine,
    "vllm": vllm_engine,
}
"""Engines that others serve, by the word before their addresses."""
_SCRIPTED_ELSEWHERE = ("http", "https")
_RETRY_S_MAX = 10.0
_OPEN_FILES_MAX = 65_536
_COLLECT_AFTER = (10_000, 5, 5)
"""New objects, then rounds. A request makes some hundreds that go when it ends."""

tokenizer_option = click.option(
    "--tokenizer",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="tokenizer.json with its chat template, as the model's own folder has them.",
)


def open_renderer(folder: Path) -> Renderer:
    """What turns messages into the ids of that folder's tokenizer.

    Raises:
        BadSetting: there is no such folder, or it cannot be used.
    """
    if not folder.is_dir():
        raise BadSetting(f"--tokenizer {folder}: there is no such folder")
    return Renderer(folder)


def open_engine(name: str, renderer: Renderer, api_key: str | None = None) -> Engine:
    """The engine of that name; nothing is asked of it yet.

    `api_key` opens those that others serve.

    Raises:
        BadSetting: there is no such engine, or no such model.
        BadScript: its script cannot be played.
    """
    check_engine(name)
    kind, _, file = name.partition(":")
    if kind == SCRIPTED:
        script = read_script(Path(file)) if file else DEMO
        return ScriptedEngine(script, renderer.backend, journal_keep=1)
    if kind in _SCRIPTED_ELSEWHERE:
        return RemoteScriptedEngine(name)
    return open_served(name, api_key) if kind in SERVED else open_local(name, renderer)


def check_engine(name: str) -> None:
    """Refuse what names no engine, before anything else is asked of the user.

    Raises:
        BadSetting: there is no such engine.
    """
    if name.partition(":")[0] not in {SCRIPTED, *_SCRIPTED_ELSEWHERE, *SERVED, LOCAL}:
        raise BadSetting(f"--engine {shown(name)}: no such engine: give {ENGINES}")


def open_served(name: str, api_key: str | None = None) -> HttpEngine:
    """The engine of `sglang:...` or `vllm:...`; nothing is asked of it yet.

    Raises:
        BadSetting: its addresses are none.
    """
    kind, _, addresses = name.partition(":")
    try:
        return SERVED[kind](addresses_of(addresses), api_key=api_key)
    except BadSetting as error:
        raise BadSetting(f"--engine {shown(name)}: {error}") from None


def open_local(name: str, renderer: Renderer) -> Engine:
    """The engine of `local:...`, its model loaded.

    Raises:
        BadSetting: there is no such model, or PyTorch is missing.
    """
    path = name.partition(":")[2]
    try:
        if not path:
            raise BadSetting("give the folder of a model, or a GGUF file")
        return LocalEngine(Path(path), renderer.backend)
    except BadSetting as error:
        raise BadSetting(f"--engine {name}: {error}") from None


async def engine_trouble(engine: Engine) -> str | None:
    """Why the engine cannot be used now, if so.

    Raises:
        BadSetting: it is another engine than what is supported, or wants another key; waiting
            will never do.
    """
    try:
        await engine.require_ready()
    except (KeyRefused, Redirected) as error:
        raise BadSetting(str(error)) from None
    except WrongEngine as error:
        raise BadSetting(f"{error}: give {ENGINES}") from None
    except EngineError as error:
        return str(error)
    return None


async def learn_logprobs(engine: Engine, who: str) -> None:
    """Find out whose logprobs an engine gives, and say what does not go with them.

    An engine that cannot tell now is asked again by the first session that depends on it.

    Raises:
        BadSetting: it wants another key.
    """
    if not isinstance(engine, Learns):
        return
    try:
        await engine.learn()
    except KeyRefused as error:
        raise BadSetting(str(error)) from None
    except EngineError as error:
        sys.stderr.write(f"{who}: whose logprobs they are is not known yet: {error}\n")
    if engine.logprobs == "raw":
        sys.stderr.write(
            f"{who}: the logprobs of {engine.name} are raw, not of what was sampled from: sessions "
            "that train at another temperature than 1 are refused; "
            "`turnstream doctor --engine` says what to change\n"
        )


async def wait_for_engine(engine: Engine, who: str) -> None:
    """Return when it answers; that it is away is said once.

    Raises:
        BadSetting: as `engine_trouble`.
    """
    await _until_well(lambda: engine_trouble(engine), who)


async def wait_for_log(settings: Settings, who: str) -> None:
    """Return when the log answers and its topics are right; a file needs no waiting.

    Raises:
        WrongTopic: a topic is missing or wrong; waiting would not mend it.
    """
    if settings.log != KAFKA:
        return
    # By name: a gateway on a file must not wait for the Kafka client to load.
    require_topics = importlib.import_module("streams.log.kafka_topics").require_topics

    async def ask() -> str | None:
        try:
            await require_topics(settings)
        except LogAway as error:
            return str(error)
        return None

    await _until_well(ask, who)


def secret_file(settings: Settings) -> Path:
    """Where the secret of a gateway on an embedded log is kept: beside the log."""
    return Path(settings.log).with_suffix(".secret")


def open_secrets(settings: Settings) -> Secrets:
    """The secrets that the settings give, else those beside the embedded log.

    Raises:
        BadSetting: there are none, or none that can be used.
    """
    name = f"{PREFIX}GATEWAY_SECRET"
    if settings.gateway_secret is not None:
        return secrets_of(settings.gateway_secret, name)
    if settings.log == KAFKA:
        raise BadSetting(
            f"{name}: not set: gateways on Kafka sign with one that they share; "
            "give all of them the same, e.g. what `openssl rand -base64 32` prints"
        )
    return secrets_from(secret_file(settings))


def run_service(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], watch: Watch) -> None:
    """Run until a signal comes, watched; exits the process."""
    spare_what_is_loaded()
    raise_open_files_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_with_signals(work, watch))
    except TurnstreamError as error:
        fail(error)
    sys.exit(0)


def spare_what_is_loaded() -> None:
    """Let the garbage collector pass over what is there for as long as the process is.

    The packages and the tokenizer are 200,000 objects. Looking through them, as Python does
    from time to time, holds every stream up for a tenth of a second and finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def raise_open_files_limit() -> None:
    """As far as the system lets this process: a connection is a file, and shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    sys.stderr.write(f"turnstream: may open {wanted} files, was {soft}\n")


def exit_on_signals() -> None:
    """Until the service has handlers of its own: what is loaded before has nothing to drain."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def fail(error: Exception) -> NoReturn:
    """End the command with one line."""
    click.echo(f"turnstream: {error}", err=True)
    sys.exit(1)


async def _with_signals(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], watch: Watch
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with watch:
        await work(stop)


async def unless_stopped(waiting: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Wait for it or for the signal, whatever comes first; whether it was the former."""
    task, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        for pending in (task, stopped):
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, TurnstreamError):
                await pending


async def _until_well(ask: Callable[[], Coroutine[Any, Any, str | None]], who: str) -> None:
    began, wait_s, told = time.monotonic(), 0.5, False
    while (trouble := await ask()) is not None:
        if not told:
            sys.stderr.write(f"{who}: {trouble}; waiting for it\n")
            told = True
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _RETRY_S_MAX)
    if told:
        sys.stderr.write(f"{who}: it answers after {time.monotonic() - began:.0f} s\n")
