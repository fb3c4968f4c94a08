"""`turnstream health`: whether the worker, or the gateway, beside this command does its work.

Made for the health check of a container: it needs no other program there, and finds the service
by the settings that the service itself was given.

Invariant: exit code 0 only if the service itself said that it is healthy.
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
@click.option("--gateway", is_flag=True, help="Ask the gateway instead: can it record calls?")
def health(gateway: bool) -> None:
    """Ask the processor of this machine whether it makes progress.

    Exit code 0 if it does; else 1, and the reason on stderr. The address comes from
    TURNSTREAM_METRICS_HOST and TURNSTREAM_METRICS_PORT, as the service was given them.
    """
    try:
        settings = load_settings()
    except BadSetting as error:
        _unhealthy(str(error))
    told = _asked_gateway(settings) if gateway else _asked_worker(settings)
    click.echo(f"healthy: {told}")


def _asked_worker(settings: Settings) -> str:
    progress = _asked(settings, "/healthz")
    if "partitions" not in progress:
        _unhealthy(f"{_address(settings)}: a gateway is there: ask it with --gateway")
    return (
        f"{progress['partitions']} partitions, {progress['lag']} events behind, "
        f"{progress['sessions_open']} sessions open"
    )


def _asked_gateway(settings: Settings) -> str:
    told = _asked(settings, "/readyz")
    gateway = told.get("gateway", told)  # `up` has both
    if not isinstance(gateway, dict) or gateway.get("service") != "gateway":
        _unhealthy(
            f"{_address(settings)}: another service is there: give the gateway a "
            f"{PREFIX}METRICS_PORT of its own"
        )
    return "log and engine answer" + _admission(gateway.get("admission"))


def _admission(told: object) -> str:
    """How far the trainer's groups were behind, where new sessions are refused for it."""
    groups = told.get("groups", {}) if isinstance(told, dict) else {}
    known = (
        f"; {group}: lag {found['lag']}" if "lag" in found else f"; {group}: {found['unknown']}"
        for group, found in groups.items()
    )
    return "".join(known)


def _address(settings: Settings) -> str:
    host = _THIS_MACHINE.get(settings.metrics_host, settings.metrics_host)
    return f"{host}:{settings.metrics_port}"


def _asked(settings: Settings, path: str) -> dict[str, object]:
    """What the service says of itself, if it is well."""
    port = settings.metrics_port
    if port == 0:
        _unhealthy(f"{PREFIX}METRICS_PORT=0: any port may be the one; give it a fixed one")
    host = _THIS_MACHINE.get(settings.metrics_host, settings.metrics_host)
    where = _address(settings)
    # Straight to the address: a proxy that the environment names has no place here.
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        _unhealthy(f"{where}: no answer: {type(error).__name__}: {error}")
    finally:
        connection.close()
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict) or "trouble" not in told:
        _unhealthy(f"{where}: status {answer.status}, but this is no service of ours")
    if told["trouble"] is not None:
        _unhealthy(f"{where}: {told['trouble']}")
    return told


def _unhealthy(why: str) -> NoReturn:
    click.echo(f"turnstream: {why}", err=True)
    sys.exit(1)
