"""The `turnstream` command."""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

# By name and not imported: an offline command must not wait for the Kafka client to load.
COMMANDS = {
    "demo": "streams.cli.demo.command",
    "up": "streams.cli.up.command",
    "linearize": "streams.cli.linearize",
    "inspect": "streams.cli.inspect.command",
    "topics": "streams.cli.topics",
    "replay": "streams.cli.replay.command",
    "export": "streams.cli.export.command",
    "tail": "streams.cli.tail",
    "dead-letters": "streams.cli.dead_letters.command",
    "gateway": "streams.cli.gateway",
    "processor": "streams.cli.processor",
    "judge": "streams.cli.judge",
    "sink": "streams.cli.sink",
    "health": "streams.cli.health",
    "doctor": "streams.cli.doctor.command",
}


class Commands(click.Group):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The function that has the command's name, in the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


UNCHECKED = frozenset({"doctor", "health"})
"""Commands that handle no records; the doctor makes the check itself, as one of its findings."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnstream", prog_name="turnstream")
@click.pass_context
def cli(context: click.Context) -> None:
    """Record agent turns exactly as sampled; turn them into training samples."""
    if context.invoked_subcommand in UNCHECKED:
        return
    round_trip: Any = importlib.import_module("schemas.round_trip")
    try:
        round_trip.check_round_trip()
    except round_trip.RecordsChanged as error:
        sys.exit(f"turnstream: {error}")


def _as_control_c(_: int, frame: FrameType | None) -> None:
    """SIGTERM ends a command as tidily; those that run until told to stop have their own way."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell's background command ignores Ctrl-C
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def main() -> None:
    """Run the command; a broken stream is no error worth a traceback."""
    if sys.stdin is None or sys.stdout is None:
        sys.exit("turnstream: standard input and output must be open")
    # Or each command with a tokenizer would begin with a word on what else could be installed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    signal.signal(signal.SIGTERM, _as_control_c)
    try:
        cli()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"turnstream: {error}")


if __name__ == "__main__":
    main()
