"""The options that choose the rules, shared by every command that linearizes."""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from streams.core.policy import DEFAULT_PROFILE, PROFILES, Policy, policy_from
from streams.core.state import Rules
from streams.errors import BadPolicy

Command = TypeVar("Command", bound=Callable[..., Any])


def policy_options(command: Command) -> Command:
    """Add `--profile`, `--fork-threshold` and `--default-reward`."""
    for option in (
        click.option(
            "--default-reward",
            type=float,
            metavar="R",
            help="Reward for sessions that have none. Without it they give no sample.",
        ),
        click.option(
            "--fork-threshold",
            type=click.IntRange(min=0),
            metavar="N",
            help="Below N tokens a profile realigns drift inside the last response instead of "
            "forking, and merges a rewritten answer; what is counted depends on the profile. "
            "0 switches both off.",
        ),
        click.option(
            "--profile",
            metavar="NAME|FILE.toml",
            help=f"The rules: {', '.join(PROFILES)} (default: what each session asks for, else "
            f"{DEFAULT_PROFILE}), or a TOML file with `base`, `name` and the fields that differ.",
        ),
    ):
        command = option(command)
    return command


def chosen_rules(
    profile: str | None, fork_threshold: int | None, default_reward: float | None
) -> Rules:
    """What the command line asks for; what it leaves open, sessions may choose."""
    if default_reward is not None and not math.isfinite(default_reward):
        raise click.UsageError(f"--default-reward {default_reward}: give a finite number")
    try:
        policy = _named(profile) if profile is not None else None
    except BadPolicy as error:
        raise click.UsageError(f"--profile {profile}: {error}") from None
    return Rules(
        forced_policy=policy,
        fork_threshold_tokens=fork_threshold,
        default_reward=default_reward,
    )


def _named(profile: str) -> Policy:
    if not profile.endswith(".toml"):
        return policy_from(profile)
    try:
        return policy_from(tomllib.loads(Path(profile).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BadPolicy(str(error)) from None
