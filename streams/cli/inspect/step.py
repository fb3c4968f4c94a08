"""`turnstream inspect --step`: from a training step back to its samples and tokens."""

import sys
from dataclasses import dataclass

import click

from streams.cli.inspect.step_on_log import SeveralRuns, Step, find_step
from streams.cli.inspect.step_text import draw_step, draw_token
from streams.core.drawing import Spell, escaped
from streams.log.opening import log_name, open_log
from streams.settings import Settings


@dataclass(frozen=True, slots=True)
class StepLook:
    """What the command line asks to see of a step."""

    step: int
    run_id: str | None
    top: str | None
    token: int | None
    index: int
    spell: Spell | None


async def inspect_step(settings: Settings, look: StepLook) -> int:
    """Print it; the exit code."""
    try:
        async with open_log(settings) as log:
            step = await find_step(log, settings, look.step, look.run_id)
    except SeveralRuns as several:
        return _complain(f"step {look.step} is told of by the runs {several}: name one with --run")
    if step is None:
        of_run = f" of run {look.run_id}" if look.run_id else ""
        where = f"{settings.trained_topic} on {log_name(settings)}"
        return _complain(f"step {look.step}{of_run}: no trainer has told of it in {where}")
    if look.token is not None:
        return _tell(step, look, look.token)
    if look.top is not None and not any(look.top in s for s in step.statistics.values()):
        known = sorted({name for found in step.statistics.values() for name in found})
        has = f"it has {', '.join(known)}" if known else "it has no statistics"
        return _complain(f"step {look.step} has no statistic {look.top}: {has}")
    print_drawing(draw_step(step, look.top, look.spell))
    return 0


def _tell(step: Step, look: StepLook, token: int) -> int:
    if look.index > len(step.sample_ids):
        return _complain(f"step {step.step} has {len(step.sample_ids)} samples")
    sample = step.samples.get(step.sample_ids[look.index - 1])
    if sample is None:
        return _complain(f"sample {look.index} of step {step.step} is no longer in the log")
    if token >= sample.tokens.size:
        return _complain(f"sample {look.index} has {sample.tokens.size} tokens, from 0")
    print_drawing(draw_token(step, sample, token, look.spell))
    return 0


def _complain(text: str) -> int:
    click.echo(f"turnstream: {escaped(text)}", err=True)
    return 1


def print_drawing(text: str) -> None:
    """On stdout, with nothing that steers a terminal, whoever wrote that part of it."""
    lines = (escaped(line) for line in text.split("\n"))
    sys.stdout.buffer.write("\n".join(lines).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
