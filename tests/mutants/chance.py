"""Some of many, by chance and the same again for the same seed: for runs that cannot try all."""

import argparse
import random
import time
from collections.abc import Sequence
from typing import TypeVar

One = TypeVar("One")


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--random` and `--seed`."""
    parser.add_argument("--random", type=int, metavar="N", help="so many of them, by chance")
    parser.add_argument("--seed", default=time.strftime("%F"), help="of chance; else the date")


def drawn(among: Sequence[One], options: argparse.Namespace) -> list[One]:
    """As many as the options say, all if they say nothing."""
    if options.random is None:
        return list(among)
    print(f"drawn with --seed {options.seed}")
    return random.Random(options.seed).sample(among, min(options.random, len(among)))
