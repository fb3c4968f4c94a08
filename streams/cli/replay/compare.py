"""The same events under two sets of rules: what each gives, and what differs.

    events ──┬──► the core, under the policy each session has ──► numbers ──┐
             └──► the core, under the policy asked for ──► numbers ─────────┴──► table
                                  └──► samples and outcomes, to stdout or a topic of their own

Invariant: nothing is written into the topics that are read.
"""

import dataclasses
import sys

import click

from schemas.bad_record import BadRecord
from streams.cli.progress import Progress
from streams.cli.replay.closed import ClosedSessions
from streams.cli.replay.run import Run
from streams.cli.replay.source import Arrived, FileSource, Source
from streams.cli.replay.table import MOST, differences_table, rules_name, totals_table
from streams.cli.replay.target import Stdout, Target
from streams.core.state import Rules
from streams.processor.rules import rules_from
from streams.settings import Settings


async def compare(
    source: Source, asked: Rules, settings: Settings, target: Target, *, close_open: bool
) -> int:
    """Run both, send what the asked rules give, print the table; the exit code."""
    closed = ClosedSessions()
    own = _as_the_processor(Rules(), settings, source)
    comparing = Comparing(
        Run(0, own, closed),
        Run(1, _as_the_processor(asked, settings, source), closed),
        target,
        name_refused=isinstance(source, FileSource),
    )
    try:
        await source.each("replay", comparing.take)
        await comparing.finish(close_open=close_open)
        said = await target.finish()
        table = totals_table(comparing.own.totals, comparing.other.totals, rules_name(asked))
        most = differences_table(closed.differing(), closed.most_different(MOST))
    finally:
        closed.close()
    # What a pipe reads is samples alone.
    click.echo(f"{table}\n\n{most}", file=sys.stderr if isinstance(target, Stdout) else sys.stdout)
    if said is not None:
        click.echo(said, err=True)
    return 1 if comparing.unreadable or target.refused else 0


class Comparing:
    """Both runs, side by side."""

    def __init__(self, own: Run, other: Run, target: Target, *, name_refused: bool) -> None:
        """Nothing has run yet; a bad entry of a log is no news, a bad line of a file is."""
        self.own = own
        self.other = other
        self._target = target
        self._name_refused = name_refused
        self.unreadable = 0

    async def take(self, arrived: Arrived, progress: Progress) -> None:
        """One event through both."""
        if self._name_refused and isinstance(arrived.event, BadRecord):
            self.unreadable += 1
            progress.say(f"{arrived.place}: {arrived.event}")
        self.own.feed(arrived)
        effects, key = self.other.feed(arrived)
        if records := effects.records():
            await self._target.emit(records, key)

    async def finish(self, *, close_open: bool) -> None:
        """The sessions that are still open: closed as at the end of a file, or left out."""
        if not close_open:
            self.own.leave_open()
            self.other.leave_open()
            return
        for _ in self.own.finish():
            pass
        for effects, key in self.other.finish():
            await self._target.emit(effects.records(), key)


def _as_the_processor(rules: Rules, settings: Settings, source: Source) -> Rules:
    """The rules with what the processor's settings decide."""
    usual = rules_from(settings)
    aged = None if isinstance(source, FileSource) else usual.turn_age_ms_max
    return dataclasses.replace(
        rules, default_policy=usual.default_policy, limits=usual.limits, turn_age_ms_max=aged
    )
