"""`turnstream replay`: a dump or a log once more, into a log or under another policy.

    replay FILE                         file -> log
    replay --from LOG                   log -> log
    replay [FILE | --from LOG] --profile lossless [--stdout | --name lossless]
                                        through the core, and what differs

Invariant: a log is never replayed into itself.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import BinaryIO

import click

from streams.cli.on_the_log import chosen_settings, found_settings, log_option, run_on_the_log
from streams.cli.policy_options import chosen_rules, policy_options
from streams.cli.replay.compare import compare
from streams.cli.replay.copying import copy_events
from streams.cli.replay.source import FileSource, LogSource, Source
from streams.cli.replay.target import Nowhere, Stdout, Target, Topic
from streams.cli.replay.topic import name_option, named_topic, prepare_topic
from streams.core.state import Rules
from streams.log.opening import open_log
from streams.settings import KAFKA, Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says, beside the rules."""

    file: BinaryIO | None
    from_log: str | None
    from_prefix: str | None
    name: str | None
    to_stdout: bool
    at_end: str | None

    @property
    def from_another(self) -> bool:
        """Whether another log is to be read."""
        return self.from_log is not None or self.from_prefix is not None


@click.command()
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--from", "from_log", metavar="LOG", help="Read this log: `kafka`, or a file's path.")
@click.option("--from-prefix", metavar="PREFIX", help="Its topic prefix, if it is another one.")
@log_option
@policy_options
@name_option("Under another policy: write to the topic <samples>.NAME of the log.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Under another policy: JSON lines.")
@click.option(
    "--open",
    "at_end",
    type=click.Choice(["close", "skip"]),
    help="Under another policy, a session that has not closed at the end: close it as completed "
    "(the default for a file), or leave it out (the default for a log).",
)
def replay(
    file: BinaryIO | None,
    from_log: str | None,
    from_prefix: str | None,
    log: str | None,
    profile: str | None,
    fork_threshold: int | None,
    default_reward: float | None,
    name: str | None,
    to_stdout: bool,
    at_end: str | None,
) -> None:
    """Feed the events of FILE, or of another log, through again.

    Without a policy they are published to the turns of the log, each session in order. FILE holds
    one event a line as JSON (- for standard input). What cannot be used is reported on stderr,
    the rest is still published, and the exit code is 1.

    With --profile, --fork-threshold or --default-reward nothing is published to the turns: the
    events of FILE, of the other log or else of the log itself run through the rules twice, as
    recorded and as given, and a table tells what differs. --stdout or --name keeps the samples.

    Settings come from TURNSTREAM_* variables.
    """
    rules = chosen_rules(profile, fork_threshold, default_reward)
    asked = Asked(
        file=file,
        from_log=from_log,
        from_prefix=from_prefix,
        name=name,
        to_stdout=to_stdout,
        at_end=at_end,
    )
    another_policy = any(given is not None for given in (profile, fork_threshold, default_reward))
    _check(asked, another_policy=another_policy)

    async def work(settings: Settings) -> int:
        if another_policy:
            return await _compare(asked, rules, settings)
        return await _copy(asked, settings)

    # The rules run on a file or on the log of --from without another log.
    needed = not another_policy or name is not None or (file is None and from_log is None)
    run_on_the_log(work, log, found_settings if needed else chosen_settings)


def _check(asked: Asked, *, another_policy: bool) -> None:
    if asked.file is not None and asked.from_another:
        raise click.UsageError("give FILE or --from, not both")
    if another_policy:
        if asked.to_stdout and asked.name is not None:
            raise click.UsageError("give --stdout or --name, not both")
        return
    if asked.to_stdout or asked.name is not None or asked.at_end is not None:
        options = "--stdout, --name and --open go with another policy"
        raise click.UsageError(f"{options}: give --profile, --fork-threshold or --default-reward")
    if asked.file is None and not asked.from_another:
        raise click.UsageError("give FILE, or the log to read with --from")


async def _copy(asked: Asked, settings: Settings) -> int:
    if asked.file is not None:
        return await copy_events(FileSource(asked.file), settings)
    other = _other(asked, settings)
    if _same_log(other, settings) and other.topic_prefix == settings.topic_prefix:
        raise click.UsageError(f"{other.turns_topic} is the very topic that would be written to")
    async with open_log(other) as log:
        return await copy_events(LogSource(log, other), settings)


async def _compare(asked: Asked, rules: Rules, settings: Settings) -> int:
    close_open = (asked.at_end or ("close" if asked.file is not None else "skip")) == "close"
    other = _other(asked, settings)
    # Only what is used is opened: a file of events needs no log, and no wait for its client.
    async with contextlib.AsyncExitStack() as stack:
        source: Source
        if asked.file is not None:
            source = FileSource(asked.file)
        else:
            log = await stack.enter_async_context(open_log(other))
            source = LogSource(log, other, as_processor=True)
        target: Target = Stdout() if asked.to_stdout else Nowhere()
        if asked.name is not None:
            topic = named_topic(settings, asked.name)
            if topic == other.turns_topic and _same_log(other, settings):
                raise click.UsageError(f"--name {asked.name}: {topic} is the topic that is read")
            log = await stack.enter_async_context(open_log(settings, create=True))
            await prepare_topic(log, settings, topic)
            target = Topic(log, topic)
        return await compare(source, rules, other, target, close_open=close_open)


def _other(asked: Asked, settings: Settings) -> Settings:
    """The settings of the log that is read."""
    return dataclasses.replace(
        settings,
        log=asked.from_log if asked.from_log is not None else settings.log,
        topic_prefix=settings.topic_prefix if asked.from_prefix is None else asked.from_prefix,
    )


def _same_log(one: Settings, other: Settings) -> bool:
    if KAFKA in (one.log, other.log):
        return one.log == other.log
    with contextlib.suppress(OSError):  # one that is not there yet is no file's second name
        return Path(one.log).samefile(other.log)
    return Path(one.log).resolve() == Path(other.log).resolve()
