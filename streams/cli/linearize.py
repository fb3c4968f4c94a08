"""`turnstream linearize`: events in, samples and outcomes out, no broker."""

import sys
from typing import BinaryIO

import click
import msgspec

from schemas import codec
from schemas.dead_letters import DeadLetter
from schemas.record import Record
from streams.cli.offline import run_file
from streams.cli.policy_options import chosen_rules, policy_options
from streams.core import packing
from streams.core.effects import Effects


@click.command()
@click.argument("file", type=click.File("rb"), default="-")
@policy_options
@click.option(
    "--open",
    "at_end",
    type=click.Choice(["close", "skip"]),
    default="close",
    show_default=True,
    help="A session that is not closed at the end of the file: close it (as completed, unless it "
    "said otherwise), or leave it out, also if it ended and waits for its reward.",
)
@click.option(
    "--packed",
    is_flag=True,
    help="Each session's samples as one `packed` line: what several begin with stands once.",
)
@click.option(
    "--dead-letters",
    type=click.File("wb", lazy=False),
    metavar="FILE",
    help="Write dead letters here, with the untouched line as hex, instead of to stderr.",
)
def linearize(
    file: BinaryIO,
    profile: str | None,
    fork_threshold: int | None,
    default_reward: float | None,
    at_end: str,
    packed: bool,
    dead_letters: BinaryIO | None,
) -> None:
    """Turn events into training samples.

    FILE holds one event a line as JSON (- or nothing: standard input). Samples come out as JSON
    lines, each session's in order, followed by its `session_closed`: what trained, what did not,
    and why. A line that cannot be used becomes a `dead_letter` line on stderr; the rest is still
    done and the exit code is 1.
    """
    rules = chosen_rules(profile, fork_threshold, default_reward)
    out = sys.stdout.buffer
    refused = False
    for _, effects, letters in run_file(file, rules, close_open=at_end == "close"):
        for record in _packed(effects) if packed else effects.records():
            out.write(codec.to_json(record) + b"\n")
        for letter in letters:
            refused = True
            _write_letter(letter, dead_letters)
    out.flush()
    if refused:
        sys.exit(1)


def _packed(effects: Effects) -> list[Record]:
    samples = [packing.packed(effects.samples)] if effects.samples else []
    return [*samples, *effects.records()[len(effects.samples) :]]


def _write_letter(letter: DeadLetter, file: BinaryIO | None) -> None:
    if file is not None:
        file.write(codec.to_json(letter) + b"\n")
        return
    line = codec.to_json(msgspec.structs.replace(letter, payload=None))
    sys.stderr.buffer.write(line + b"\n")
    sys.stderr.buffer.flush()
