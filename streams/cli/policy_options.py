"""The options that choose the rules, shared by every command that linearizes."""

import dataclasses
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from streams.core.policy import DEFAULT_PROFILE, PROFILES, Policy, policy_from
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
            type=int,
            metavar="N",
            help="Drift of fewer than N tokens inside the last response is realigned instead of "
            "forked, and a rewritten answer of fewer than N tokens is merged. 0 switches both off.",
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


def chosen_policy(profile: str | None, fork_threshold: int | None) -> Policy | None:
    """The policy the command line forces, or none if sessions may choose."""
    if profile is None and fork_threshold is None:
        return None
    try:
        policy = _named(profile or DEFAULT_PROFILE)
    except BadPolicy as error:
        raise click.UsageError(f"--profile {profile}: {error}") from None
    if fork_threshold is not None:
        policy = dataclasses.replace(policy, fork_threshold_tokens=fork_threshold)
    return policy


def finite_reward(reward: float | None) -> float | None:
    """The default reward, unless it is no number."""
    if reward is not None and not math.isfinite(reward):
        raise click.UsageError(f"--default-reward {reward}: give a finite number")
    return reward


def _named(profile: str) -> Policy:
    if not profile.endswith(".toml"):
        return policy_from(profile)
    try:
        return policy_from(tomllib.loads(Path(profile).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BadPolicy(str(error)) from None
