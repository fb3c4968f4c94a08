"""The `turnstream` command."""

import os
import sys

import click

from streams.cli.inspect import inspect
from streams.cli.linearize import linearize


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnstream", prog_name="turnstream")
def cli() -> None:
    """Record agent turns exactly as sampled; turn them into training samples."""


cli.add_command(linearize)
cli.add_command(inspect)


def main() -> None:
    """Run the command; a reader that went away is no error worth a traceback."""
    try:
        cli()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
