"""What every command on the log shares: settings from the environment, errors as one line.

Invariant: a broker that is away, a wrong setting or a wrong topic ends a command with exit code
1 and a text that names it, never with a traceback.
"""

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from streams.errors import BadSetting, LogError
from streams.log.client_logs import silence_client_logs
from streams.log.default_log import find_log
from streams.settings import Settings, load_settings

log_option = click.option(
    "--log",
    metavar="LOG",
    help="`kafka`, or the file of an embedded log; else TURNSTREAM_LOG, else the log of `up` here.",
)


def chosen_settings(log: str | None) -> Settings:
    """The settings of this process, with the log that the command line names."""
    settings = load_settings()
    return settings if log is None else dataclasses.replace(settings, log=log)


def found_settings(log: str | None) -> Settings:
    """As `chosen_settings`; where no log is named, that of a `turnstream up` in this folder.

    Raises:
        BadSetting: there is none either.
    """
    return find_log() if log is None else chosen_settings(log)


def run_on_the_log(
    work: Callable[[Settings], Coroutine[Any, Any, int]],
    log: str | None = None,
    settings_of: Callable[[str | None], Settings] = found_settings,
) -> None:
    """Run the work and exit with the code it gives."""
    silence_client_logs()
    try:
        code = asyncio.run(work(settings_of(log)))
    except (BadSetting, LogError) as error:
        click.echo(f"turnstream: {error}", err=True)
        code = 1
    sys.exit(code)


def stop_event() -> asyncio.Event:
    """Set by Ctrl-C or SIGTERM, for commands that run until they are told to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
