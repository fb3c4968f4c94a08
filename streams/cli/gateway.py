"""`turnstream gateway`: one gateway of a deployment, on the log that the settings name.

Any number of them may run beside each other: with one secret they recognise each other's keys,
and what a session recorded is in the log.

Invariant: it listens only when log and engine answer; it takes no new call before it stops.
"""

import asyncio
from pathlib import Path

import click

from streams.adapters.engines.interface import Engine
from streams.adapters.gateway.access.keys import KeyRing
from streams.adapters.gateway.access.secret import Secrets
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.cli.on_the_log import chosen_settings, log_option
from streams.cli.serving import (
    ENGINES,
    exit_on_signals,
    fail,
    learn_logprobs,
    open_engine,
    open_renderer,
    open_secrets,
    run_service,
    tokenizer_option,
    unless_stopped,
    wait_for_engine,
    wait_for_log,
)
from streams.errors import BadSetting, TurnstreamError
from streams.log.client_logs import calm_client_logs
from streams.log.opening import log_name, open_log
from streams.operations.pages import served_pages
from streams.operations.watching import Watch
from streams.settings import Settings

WHO = "turnstream gateway"


@click.command()
@log_option
@click.option("--engine", metavar="ENGINE", help=f"What samples: {ENGINES}.")
@tokenizer_option
@click.option(
    "--print-control-key", is_flag=True, help="Print the key of the control API, and do no more."
)
@click.option(
    "--check", "only_check", is_flag=True, help="Check settings and tokenizer, and do no more."
)
def gateway(
    log: str | None,
    engine: str | None,
    tokenizer: Path | None,
    print_control_key: bool,
    only_check: bool,
) -> None:
    """Record the model calls of agents that speak OpenAI Chat Completions.

    Sessions are opened with the control API, under /control. Settings come from TURNSTREAM_*
    variables. A log or an engine that is away is waited for; SIGTERM drains and exits 0; exit
    code 1 is what waiting would not mend: a setting, a topic, a port in use.
    """
    exit_on_signals()
    try:
        settings = chosen_settings(log)
        secrets = open_secrets(settings)
        if print_control_key:
            click.echo(KeyRing(secrets, settings.gateway_control_key).control_key)
            return
        if engine is None:
            raise BadSetting(f"--engine is needed: give {ENGINES}")
        if tokenizer is None:
            raise BadSetting("--tokenizer is needed: give the folder of the engine's own model")
        renderer = open_renderer(tokenizer)
        opened = open_engine(engine, renderer, settings.engine_api_key)
    except TurnstreamError as error:
        fail(error)
    if only_check:
        click.echo(f"{WHO}: engine {opened.name}, prompts {renderer.fingerprint}")
        return
    calm_client_logs()
    watch = Watch(WHO, settings)
    run_service(lambda stop: _run(settings, secrets, opened, renderer, stop, watch), watch)


async def _run(
    settings: Settings,
    secrets: Secrets,
    engine: Engine,
    renderer: Renderer,
    stop: asyncio.Event,
    watch: Watch,
) -> None:
    try:
        if not await unless_stopped(wait_for_log(settings, WHO), stop):
            return
        if not await unless_stopped(wait_for_engine(engine, WHO), stop):
            return
        if not await unless_stopped(learn_logprobs(engine, WHO), stop):
            return
        async with open_log(settings, create=True) as log:
            await log.end_positions(settings.turns_topic)  # a file that is no log says so now
            async with (
                Gateway(settings, log, engine, renderer, secrets) as running,
                served_pages(settings, running.pages, WHO),
            ):
                watch.ready(running.api.pulse)
                here = f" at {running.local_url}" if running.local_url != running.base_url else ""
                click.echo(
                    f"{WHO}: {running.base_url}{here}, engine {engine.name}, "
                    f"log {log_name(settings)}, "
                    f"prompts {renderer.fingerprint}"
                )
                await stop.wait()
    finally:
        await engine.close()
