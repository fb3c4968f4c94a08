"""`python -m streams.adapters.engines.scripted`: the scripted engine as a process of its own.

It says its address on the first line of its output and runs until it is asked to stop.
"""

import asyncio
import signal
import sys
from pathlib import Path

import click
from aiohttp import web
from tokenizers import Tokenizer

from streams.adapters.engines.scripted.engine import ScriptedEngine
from streams.adapters.engines.scripted.script import DEMO, BadScript, read_script
from streams.adapters.engines.scripted.server import application
from streams.errors import TurnstreamError

HOST = "127.0.0.1"
SHUTDOWN_S = 1.0


@click.command()
@click.option("--script", type=click.Path(path_type=Path), help="JSON file; without it, the demo.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="tokenizer.json or its folder.")
@click.option("--journal", type=click.Path(path_type=Path), help="File for a line a generation.")
@click.option("--journal-keep", type=int, help="Generations kept in memory; without it, all.")
@click.option("--port", default=0, show_default=True, help="0: any that is free.")
def main(
    script: Path | None,
    tokenizer: Path | None,
    journal: Path | None,
    journal_keep: int | None,
    port: int,
) -> None:
    """Answer generation requests from a script."""
    try:
        engine = ScriptedEngine(
            read_script(script) if script else DEMO,
            _loaded(tokenizer) if tokenizer else None,
            journal_path=journal,
            journal_keep=journal_keep,
        )
        asyncio.run(_serve(engine, port))
    except (TurnstreamError, OSError) as error:
        click.echo(f"scripted engine: {error}", err=True)
        sys.exit(1)


def _loaded(path: Path) -> Tokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise BadScript(f"{file}: not a tokenizer: {error}") from error


async def _serve(engine: ScriptedEngine, port: int) -> None:
    # A client that goes away ends its request at once, not at the next token.
    runner = web.AppRunner(
        application(engine),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, HOST, port)
    await site.start()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"http://{HOST}:{runner.addresses[0][1]}", flush=True)
    await stop.wait()
    await engine.close()
    await runner.cleanup()


if __name__ == "__main__":
    main()
