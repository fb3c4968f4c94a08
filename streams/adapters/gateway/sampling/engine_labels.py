"""Which declared update an engine was seen to take, by the labels that it reports.

    update declared        1                2              3
    labels reported   base │ step-1  step-1 │ step-1       │ step-3
    is it the update?   -  │  yes           │ not seen     │  yes

An engine whose labels are integers reports its versions itself and needs none of this. Of another
one a declared version is believed only if its label changed with that update: the replica was seen
under another label while the update before was in force, and this label was never seen earlier. A
label that stays, returns, or is the engine's word for "no version was given" proves nothing: the
engine may have been restarted with the weights that it starts with, or the update never reached it.

A label that first comes while the run is paused belongs to the update that ends the pause.

Invariant: pure; the answer follows from the sightings, in whatever order they are reported, but
for those that were forgotten.
"""

from dataclasses import dataclass
from itertools import islice

from streams.adapters.engines.wire import UNSET_LABEL

_LABELS_MAX = 1_000
_UPDATES_MAX = 16
"""So many updates back sightings are kept; an answer lasts through fewer."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where some tokens came from, and what their run had declared by then."""

    replica: str | None
    update: int
    """How many updates were declared; 0: none yet."""
    paused: bool = False


class EngineLabels:
    """The labels of one replica, as the sessions of one run saw them."""

    def __init__(self) -> None:
        """No label was seen."""
        self._first: dict[str, int] = {}
        """By label: the update that was in force when it was first seen."""
        self._seen: dict[int, set[str]] = {}
        """By update: every label that was seen while it was in force."""

    def add(self, label: str, update: int, *, paused: bool) -> None:
        """The label was seen while this update was in force."""
        known = self._first.get(label)
        if paused and (known is None or known > update):
            update += 1
        self._first[label] = update if known is None else min(known, update)
        self._seen.setdefault(update, set()).add(label)
        if len(self._first) > _LABELS_MAX:  # never the first: it may be what the engine starts with
            del self._first[next(islice(self._first, 1, None))]
        if len(self._seen) > _UPDATES_MAX:
            del self._seen[min(self._seen)]

    def update_of(self, label: str | None, update: int, *, paused: bool) -> int | None:
        """The update that tokens with this label are of; None: no update was seen to be.

        Args:
            label: what the engine reported with them, if anything.
            update: the one in force when they came.
            paused: whether the run was paused then.
        """
        if label is None:
            return None if paused or update else 0
        first = self._first.get(label)
        if paused and first == update + 1:
            update = first
        if not update:
            return 0
        new = {each for each in self._seen.get(update, ()) if self._first.get(each) == update}
        before = self._seen.get(update - 1, set()) - {label}
        seen_to_change = new - {UNSET_LABEL} == {label} and bool(before)
        return update if seen_to_change else None
