"""`turnstream up`: the whole pipeline in one process over one folder.

    agent ──► gateway ──► DIR/turnstream.db ──► processor ──► samples, in the same file
                 └► engine

Invariant: everything it keeps is in the folder, and the next start goes on from there.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import click

from streams.adapters.client import AsyncSession, ControlRefused, GatewayAway, Turnstream
from streams.adapters.engines.interface import Engine
from streams.adapters.engines.scripted import TOKENIZER, ScriptedEngine
from streams.adapters.gateway.access.secret import Secrets
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.adapters.what_to_set import exported, for_claude_code, for_codex
from streams.cli.serving import (
    ENGINES,
    SCRIPTED,
    check_engine,
    engine_trouble,
    exit_on_signals,
    fail,
    learn_logprobs,
    open_engine,
    open_renderer,
    open_secrets,
    run_service,
    secret_file,
    tokenizer_option,
)
from streams.cli.up.sinks import SinkProcesses
from streams.errors import BadSetting, TurnstreamError
from streams.log.default_log import UP_FILE, UP_FOLDER
from streams.log.sqlite import SqliteLog
from streams.operations.pages import both, serve_pages
from streams.operations.watching import Watch
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.health import pulse, worker_pages
from streams.settings import PREFIX, Settings, load_settings

LOCK = "turnstream.lock"
_CONTROL_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line asked for, loaded."""

    settings: Settings
    secrets: Secrets
    engine: Engine
    renderer: Renderer
    notes: list[tuple[str, str]]
    """What it is, for people, line by line."""


@click.command()
@click.option("--engine", metavar="ENGINE", help=f"What samples: {ENGINES}.")
@tokenizer_option
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(UP_FOLDER),
    show_default=True,
    help="Where everything is kept.",
)
@click.option("--port", type=click.IntRange(0, 65_535), help="0 takes a free one.  [default: 8080]")
def up(engine: str | None, tokenizer: Path | None, data: Path, port: int | None) -> None:
    """Run gateway and processor over one folder, and open a session to try it with.

    An agent needs nothing but the variables that are printed: it may speak OpenAI's Chat
    Completions or Responses, or Anthropic's Messages. Without --engine a scripted one answers, so
    that everything can be tried without a model. Other settings come from TURNSTREAM_* variables.
    Ctrl-C or SIGTERM drains and exits 0.
    """
    exit_on_signals()
    try:
        chosen = _chosen(engine, tokenizer, data, port)
        with alone(data):
            watch = Watch("turnstream up", chosen.settings)
            run_service(lambda stop: _run(chosen, stop, watch), watch)
    except TurnstreamError as error:
        fail(error)


@contextlib.contextmanager
def alone(data: Path) -> Iterator[None]:
    """Hold the folder: of two processors on one log, one would end the other.

    Raises:
        BadSetting: somebody else holds it.
    """
    with (data / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadSetting(
                f"--data {data}: another `turnstream up` works there; end it, or name another"
            ) from None
        yield


def _chosen(engine: str | None, tokenizer: Path | None, data: Path, port: int | None) -> Chosen:
    settings = _settings(data, port)
    folder, found = _tokenizer(engine, tokenizer)
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"--data {data}: {error}") from error
    renderer = open_renderer(folder)
    opened = open_engine(engine or SCRIPTED, renderer, settings.engine_api_key)
    what = opened.name
    if isinstance(opened, ScriptedEngine):
        what += ": answers from a script, not from a model"
    if engine is None:
        what += "; --engine names another"
    notes = [("engine", what), ("tokenizer", f"{folder}{found}"), ("log", settings.log)]
    return Chosen(settings, open_secrets(settings), opened, renderer, notes)


def _settings(data: Path, port: int | None) -> Settings:
    settings = load_settings()
    changed: dict[str, object] = {"log": str(data / UP_FILE)}
    if port is not None:
        changed["gateway_port"] = port
    return dataclasses.replace(settings, **changed)  # type: ignore[arg-type]  # by their names


def _tokenizer(engine: str | None, given: Path | None) -> tuple[Path, str]:
    """The folder, and where it comes from if it was not named."""
    if given is not None:
        return given, ""
    if engine is None or engine.partition(":")[0] == SCRIPTED:
        return TOKENIZER, ", which comes with the package; --tokenizer names another"
    check_engine(engine)
    raise BadSetting("--tokenizer is needed: give the folder of the engine's own model")


async def _run(chosen: Chosen, stop: asyncio.Event, watch: Watch) -> None:
    settings, engine = chosen.settings, chosen.engine
    async with SqliteLog(Path(settings.log), settings) as log:
        processor = EmbeddedProcessor(settings, log)
        over = asyncio.Event()
        working: asyncio.Task[None] | None = None
        sinks = SinkProcesses(settings)
        try:
            await log.end_positions(settings.turns_topic)  # a file that is no log says so now
            trouble = await engine_trouble(engine)
            if trouble is not None:
                raise BadSetting(f"{trouble}; start it first")
            await learn_logprobs(engine, "turnstream up")
            async with Gateway(settings, log, engine, chosen.renderer, chosen.secrets) as gateway:
                pages = both(worker_pages(processor.counts, processor.look), gateway.pages)
                health = await serve_pages(settings, pages, "turnstream up")
                working = asyncio.create_task(processor.run(over))
                sinks.start()
                watch.ready(lambda: _pulse(gateway, processor))
                try:
                    await _until(stop, working, gateway, chosen)
                finally:
                    await health.cleanup()
        finally:
            # Last: what the gateway published while it drained is worked on, too.
            over.set()
            await engine.close()
            try:
                if working is not None:
                    await working
            finally:
                await sinks.end()  # and they write what came of it


def _pulse(gateway: Gateway, processor: EmbeddedProcessor) -> int | None:
    parts = (gateway.api.pulse(), pulse(processor.counts, processor.look))
    moving = [part for part in parts if part is not None]
    return sum(moving) if moving else None


async def _until(
    stop: asyncio.Event, working: asyncio.Task[None], gateway: Gateway, chosen: Chosen
) -> None:
    # A URL for agents elsewhere may not lead back here.
    control = Turnstream(gateway.local_url, gateway.keys.control_key, patience_s=_CONTROL_S)
    session_id = f"try-{uuid.uuid4().hex[:12]}"
    gateway.admission.invited.add(session_id)  # whoever starts it sees how it works
    session = await control.session(session_id=session_id).__aenter__()
    click.echo(told(gateway, session, chosen))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        await _end_untried(session)


async def _end_untried(session: AsyncSession) -> None:
    """One that was used stays open: its key is good at the next start, too."""
    with contextlib.suppress(ControlRefused, GatewayAway):  # then it expires by itself
        if (await session.state()).get("calls") == 0:
            await session.end("cancelled")


def told(gateway: Gateway, session: AsyncSession, chosen: Chosen) -> str:
    """What to do with it, ready to be pasted."""
    key, url, log = gateway.keys.control_key, gateway.base_url, shlex.quote(chosen.settings.log)
    kept = secret_file(chosen.settings)
    where = f"derived from {kept}, which only its owner reads"
    if chosen.settings.gateway_control_key is not None:
        where = f"from {PREFIX}GATEWAY_CONTROL_KEY"
    elif chosen.settings.gateway_secret is not None:
        where = f"derived from {PREFIX}GATEWAY_SECRET"
    here = [("listens on", gateway.local_url)] if gateway.local_url != url else []
    settings, model = chosen.settings, chosen.settings.gateway_model
    window, answer = settings.gateway_context_tokens, settings.gateway_max_new_tokens
    claude_code = for_claude_code(model, window, answer)
    codex = for_codex(url, model, window)
    notes = "\n".join(f"  {name:<10} {text}" for name, text in [*here, *chosen.notes])
    return f"""turnstream is up on {url}
{notes}

session {session.session_id} is open for trying it; for an OpenAI or Anthropic SDK:
{indent(exported(session.env), "  ")}
for Claude Code also:
{indent(exported(claude_code), "  ")}
for Codex with the same key:
  codex exec {shlex.join(codex)} ...

end it with a reward, and read its samples:
  curl {url}/control/sessions/{session.session_id}/end \\
    -H 'authorization: Bearer {key}' -d '{{"reward": 1}}'
  turnstream tail --log {log} --from-beginning

sessions of your own, from Python: streams.adapters.client.Turnstream(url, control_key)
  control key {key}
              {where}

Ctrl-C stops it; the data stays."""
