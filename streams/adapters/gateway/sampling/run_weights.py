"""What is known of one run's weights, folded from its records on the control topic.

    nothing ──► paused ──► resumed 1 ──► paused ──► resumed 2     a run's records, in their order
    none        none       version 1     version 1  version 2     the declared one
    update 0    update 0   update 1      update 1   update 2      how often it changed

A `resumed` without a `paused` before it declares a version: engines may change weights without
being stopped. The same version again ends a pause whose update was given up. A version below the
declared one is of a trainer that was replaced, unless its epoch is higher: a run that goes on from
an older checkpoint raises that. A record that is refused for this counts for nothing, so it ends
no pause either.

Invariant: pure; whoever reads the same records has the same state.
"""

import dataclasses

from schemas.control import Paused, Resumed

_APART_MS = 50
"""By which two clocks may differ; an update takes longer."""
_DECLARED_MAX = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """One `resumed` that counted."""

    at_ms: int
    """When the log took it."""
    version: int
    update: int
    """Which change of the version it is, or stays at, from 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunWeights:
    """A run, as its records say."""

    paused: bool = False
    version: int | None = None
    """The declared one; before any, that of the weights that engines start with, if it is set."""
    start_version: int | None = None
    """Of the weights that engines start with; None: not known."""
    run_epoch: int = 0
    cache_flushed: bool | None = None
    """At the last update; None: there was none."""
    updates: int = 0
    """How many `resumed` counted, of those that were read."""
    update: int = 0
    """How many of them changed the version or its epoch."""
    flushes: int = 0
    """At how many of them the cache was emptied."""
    declared: tuple[Declared, ...] = ()
    """The last of them."""

    def update_at(self, at_ms: int, known: "RunWeights") -> int:
        """The update in force when a token came, at that time, when no more was known than this.

        An engine goes on after its update was declared, so a token that came earlier is of the
        weights before, though what was declared since is known now.
        """
        news = self.updates - known.updates
        since = self.declared[-news:] if news else ()
        updates = [each.update for each in since if each.at_ms <= at_ms + _APART_MS]
        return updates[-1] if updates else known.update

    def version_of(self, update: int) -> int | None:
        """The version that this update declared; None: not yet, too long ago, or none at all."""
        if not update:
            return self.start_version
        found = (each.version for each in reversed(self.declared) if each.update == update)
        version = next(found, None)
        return None if version is None or version < 0 else version

    def after(self, record: Paused | Resumed, at_ms: int = 0) -> "RunWeights":
        """The run after one more record, which the log took at that time."""
        if isinstance(record, Paused):
            return dataclasses.replace(self, paused=True)
        if self.refuses(record) is not None:
            return self
        same = (record.run_epoch, record.version) == (self.run_epoch, self.version)
        update = self.update if same else self.update + 1
        declared = Declared(at_ms, record.version, update)
        return dataclasses.replace(
            self,
            paused=False,
            version=record.version,
            run_epoch=record.run_epoch,
            cache_flushed=record.cache_flushed,
            updates=self.updates + 1,
            update=update,
            flushes=self.flushes + record.cache_flushed,
            declared=(*self.declared, declared)[-_DECLARED_MAX:],
        )

    def refuses(self, record: Resumed) -> str | None:
        """Why a `resumed` does not count, if so."""
        if not self.updates or record.run_epoch > self.run_epoch:
            return None
        if record.run_epoch < self.run_epoch:
            return f"`run_epoch` {record.run_epoch} is below {self.run_epoch}, which was declared"
        if self.version is not None and record.version < self.version:
            return (
                f"`version` {record.version} is below {self.version}, which was declared: give a "
                f"higher one, or a `run_epoch` above {self.run_epoch} after going back"
            )
        return None

    def says_already(self, record: Resumed) -> bool:
        """Whether a `resumed` would change nothing: its reply was lost and it is sent again."""
        told = (record.version, record.run_epoch, record.cache_flushed)
        known = (self.version, self.run_epoch, self.cache_flushed)
        return not self.paused and bool(self.updates) and told == known
