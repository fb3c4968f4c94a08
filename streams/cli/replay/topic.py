"""Where samples of another policy go: a topic of their own beside the log's samples.

    turnstream.samples            what the processor wrote
    turnstream.samples.lossless   what `replay --profile lossless --name lossless` wrote

Invariant: such a topic holds the samples of one run. Of two outcomes a reader takes the first, so
a second run into it would go unseen.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from streams.errors import WrongTopic
from streams.log.interface import Log
from streams.log.opening import log_name
from streams.settings import KAFKA, Settings

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")

Command = TypeVar("Command", bound=Callable[..., Any])


def name_option(text: str) -> Callable[[Command], Command]:
    """Add `--name`."""
    return click.option("--name", metavar="NAME", callback=_checked, help=text)


def named_topic(settings: Settings, name: str | None) -> str:
    """The topic of that name; without one the log's own samples."""
    return settings.samples_topic if name is None else f"{settings.samples_topic}.{name}"


async def prepare_topic(log: Log, settings: Settings, topic: str) -> None:
    """Create it where topics have to be created.

    Raises:
        WrongTopic: it holds something already.
    """
    if settings.log == KAFKA:
        # By name: a command on a file must not wait for the Kafka client to load.
        kafka = importlib.import_module("streams.cli.replay.topic_kafka")
        await kafka.create_like_samples(settings, topic)
    held = sum((await log.end_positions(topic)).values())
    if held:
        raise WrongTopic(f"{topic} holds {held} records already; take another --name")


async def require_topic(log: Log, settings: Settings, topic: str) -> None:
    """Make sure that somebody has written it.

    Raises:
        WrongTopic: there is none; on a file a topic is there once it holds something.
    """
    if settings.log == KAFKA:
        kafka = importlib.import_module("streams.cli.replay.topic_kafka")
        found = await kafka.is_there(settings, topic)
    else:
        found = sum((await log.end_positions(topic)).values()) > 0
    if not found:
        detail = "`turnstream replay --profile PROFILE --name NAME` writes it"
        raise WrongTopic(f"there is no {topic} on {log_name(settings)}; {detail}")


def _checked(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise click.BadParameter("1 to 40 letters, digits, dashes or underscores")
    return name
