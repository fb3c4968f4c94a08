"""`turnstream judge`: reward functions of your own, for sessions that ended without a reward.

Invariant: each verdict is one line on stdout; what a judger failed at is one on stderr.
"""

import importlib
import math
import sys
from pathlib import Path

import click

from streams.adapters.judgers.consumer import JudgingConsumer, told
from streams.adapters.judgers.judging import TIMEOUT_S, Judging, Named, Verdict
from streams.cli.on_the_log import log_option, run_on_the_log, stop_event
from streams.core.drawing import visible
from streams.log.opening import open_log
from streams.operations.watching import Watch
from streams.settings import Settings


@click.command()
@click.argument("functions", metavar="MODULE:FUNCTION[=WEIGHT]...", nargs=-1, required=True)
@log_option
@click.option(
    "--name", default="judge", show_default=True, help="Rewards of one name are the same reward."
)
@click.option("--timeout", "timeout_s", type=float, default=TIMEOUT_S, show_default=True)
@click.option("--once", is_flag=True, help="Judge what waits now, then exit.")
def judge(
    functions: tuple[str, ...], log: str | None, name: str, timeout_s: float, once: bool
) -> None:
    """Judge sessions that have ended and wait for their reward.

    One that ran into its time limit waits only if it was opened with `reward_pending`.

    A function gets a `streams.adapters.judgers.judging.Case` and answers with a number, a mapping
    with `score`, or None to reject. Several are added up by their weights. Modules are looked for
    in this folder too. Settings come from TURNSTREAM_* variables.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        judging = Judging(*map(_named, functions), timeout_s=timeout_s)
    except ValueError as error:
        raise click.ClickException(str(error)) from None

    async def work(settings: Settings) -> int:
        stop = stop_event()
        async with open_log(settings) as opened:
            consumer = JudgingConsumer(settings, opened, judging, name, _say)
            with Watch("turnstream judge", settings) as watch:
                if not once:
                    watch.ready(consumer.pulse)
                await consumer.run(stop, once=once)
        return 1 if once and consumer.counts["failed"] else 0

    run_on_the_log(work, log)


def _named(text: str) -> Named:
    place, _, weight = text.partition("=")
    module, _, function = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.ClickException(f"{place}: {error}; give MODULE:FUNCTION") from None
    if not callable(found):
        raise click.ClickException(f"{place} is a {type(found).__name__}, no function")
    try:
        number = float(weight or 1.0)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise click.ClickException(f"{text}: the weight is no number")
    return Named(found, function, number)


def _say(session_id: str, verdict: Verdict) -> None:
    click.echo(visible(told(session_id, verdict), most=None), err=verdict.error is not None)
