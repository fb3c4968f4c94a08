"""`turnstream health`: whether the worker beside this command makes progress.

Made for the health check of a container: it needs no other program there, and finds the worker by
the settings that the worker itself was given.

Invariant: exit code 0 only if the worker itself said that it is healthy.
"""

import http.client
import json
import sys
from typing import NoReturn

import click

from streams.errors import BadSetting
from streams.settings import PREFIX, Settings, load_settings

_SECONDS_MAX = 4.0
_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""A server that listens on every address is asked on loopback."""


@click.command()
def health() -> None:
    """Ask the processor of this machine whether it makes progress.

    Exit code 0 if it does; else 1, and the reason on stderr. The address comes from
    TURNSTREAM_METRICS_HOST and TURNSTREAM_METRICS_PORT, as the processor was given them.
    """
    try:
        settings = load_settings()
    except BadSetting as error:
        _unhealthy(str(error))
    if settings.metrics_port == 0:
        _unhealthy(f"{PREFIX}METRICS_PORT=0: any port may be the worker's; give it a fixed one")
    host = _THIS_MACHINE.get(settings.metrics_host, settings.metrics_host)
    progress = _asked(host, settings)
    if progress["trouble"] is not None:
        _unhealthy(f"{host}:{settings.metrics_port}: {progress['trouble']}")
    click.echo(
        f"healthy: {progress['partitions']} partitions, {progress['lag']} events behind, "
        f"{progress['sessions_open']} sessions open"
    )


def _asked(host: str, settings: Settings) -> dict[str, object]:
    """What the worker says of itself."""
    where = f"{host}:{settings.metrics_port}"
    # Straight to the address: a proxy that the environment names has no place here.
    connection = http.client.HTTPConnection(host, settings.metrics_port, timeout=_SECONDS_MAX)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        _unhealthy(f"{where}: no answer: {type(error).__name__}: {error}")
    finally:
        connection.close()
    try:
        progress = json.loads(body)
    except ValueError:
        progress = None
    if not isinstance(progress, dict) or "trouble" not in progress:
        _unhealthy(f"{where}: status {answer.status}, but this is no worker's answer")
    return progress


def _unhealthy(why: str) -> NoReturn:
    click.echo(f"turnstream: {why}", err=True)
    sys.exit(1)
