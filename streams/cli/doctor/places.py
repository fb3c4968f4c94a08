"""Whether the log can be used and the ports are free.

Invariant: a log is looked at, never created; a port is free again after the look.
"""

import asyncio
import http.client
import importlib
import json
import os
import socket
from pathlib import Path

from streams.cli.doctor.finding import Finding, failed, note, ok
from streams.cli.on_the_log import chosen_settings
from streams.errors import BadSetting, LogError
from streams.log.client_logs import silence_client_logs
from streams.log.default_log import find_log
from streams.log.sqlite import SqliteLog
from streams.settings import KAFKA, PREFIX, Settings

_ASK_S = 2.0
_OURS = {"gateway": ("draining", "a gateway"), "metrics": ("trouble", "a service")}
"""What the health page behind a port of ours holds, and who serves it."""


def findings(*, tokenizer: Path | None, log: str | None, engine: str | None) -> list[Finding]:
    """Of the places that the settings name."""
    try:
        settings = chosen_settings(log)
    except BadSetting as error:
        return [failed("settings", str(error), "change or unset that variable")]
    silence_client_logs()
    return [_log(log, settings), *(_port(settings, whose) for whose in _OURS)]


def _log(named: str | None, settings: Settings) -> Finding:
    """The configured log; without one nothing is wrong yet, and Kafka is not asked."""
    if named is None:
        try:
            settings = find_log()
        except BadSetting as error:
            return note("log", "none is named, and none is in this folder", str(error))
    return asyncio.run(_kafka(settings)) if settings.log == KAFKA else _file(settings)


async def _kafka(settings: Settings) -> Finding:
    # By name: a look at a file must not wait for the Kafka client to load.
    check_topics = importlib.import_module("streams.log.kafka_topics").check_topics
    try:
        report = await check_topics(settings)
    except LogError as error:
        change = "start the broker, set TURNSTREAM_BOOTSTRAP_SERVERS, or pass --log FILE"
        return failed("log", str(error), change)
    if report.problems:
        return failed(
            "log", "; ".join(report.problems), "turnstream topics creates what is missing"
        )
    where = f"kafka at {settings.bootstrap_servers}, brokers: {report.brokers}"
    return ok("log", f"{where}, {len(report.specs)} topics as they have to be")


def _file(settings: Settings) -> Finding:
    path = Path(settings.log)
    if path.exists():
        try:
            asyncio.run(_look(path, settings))
        except LogError as error:
            return failed("log", str(error), "name another file with --log")
        return ok("log", f"{path} is a log of this version")
    folder = path.parent
    there = folder if folder.is_dir() else folder.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ok("log", f"{path} is not there yet and can be made")
    return failed(
        "log", f"{path} cannot be made", f"make {folder}, or name another file with --log"
    )


async def _look(path: Path, settings: Settings) -> None:
    async with SqliteLog(path, settings, create=False) as log:
        await log.end_positions(settings.turns_topic)


def _port(settings: Settings, whose: str) -> Finding:
    """Free, or taken by ourselves."""
    sign, who = _OURS[whose]
    host, port = getattr(settings, f"{whose}_host"), getattr(settings, f"{whose}_port")
    name, variable = f"{whose} port", f"{PREFIX}{whose.upper()}_PORT"
    if port == 0:
        return ok(name, "any that is free")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        if _is_ours(host, port, sign):
            return note(name, f"{host}:{port} has {who} of ours")
        return failed(name, f"{host}:{port}: {error.strerror}", f"set {variable} to another")
    return ok(name, f"{host}:{port} is free")


def _is_ours(host: str, port: int, sign: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=_ASK_S)
    try:
        connection.request("GET", "/healthz")
        told = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(told, dict) and sign in told
