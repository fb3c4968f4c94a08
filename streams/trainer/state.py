"""What goes into the trainer's own checkpoint: where to read on, and what is done already.

    positions    by partition, the oldest record that was not trained or dropped for good
    delivered    digests of groups that were, so that they are not taken again from there on
    dropped      digests of groups that were given up
    version      of the weights it is saved with; newer samples of this life are of no use to them
    fences       the same for restores before this one, the newest `FENCES_MAX` of those that count
    versioned    runs that have weight versions, the newest `RUNS_MAX`

Plain values only, so it can be saved as JSON or by any framework; no tokens.

Invariant: under a megabyte.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streams.core.closed_groups import DIGEST_BYTES, ClosedGroups
from streams.core.open_group import Fence
from streams.core.rollouts import Place

FORMAT = 1
NOWHERE = (-1, -1)
AHEAD = 2**63
"""The offset of a group whose records are known to come, and not yet where."""
FENCES_MAX = 32
"""A session that outlives so many restores of its run, each to newer weights than the one before,
is older than any limit lets it be."""

RUNS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One checkpoint's part."""

    topic: str
    run_id: str | None
    run_epoch: int
    version: int | None
    step: int | None
    next_batch: int
    fences: tuple[Fence, ...] = ()
    positions: dict[int, int] = field(default_factory=dict)
    delivered: bytes = b""
    dropped: bytes = b""
    versioned: tuple[str, ...] = ()

    def restored(self, epochs_seen: int, ends: Mapping[int, int]) -> tuple[int, tuple[Fence, ...]]:
        """The epoch of a life that goes on from here, and all fences it has to keep."""
        epoch = max(self.run_epoch, epochs_seen) + 1
        if self.version is None:
            return epoch, self.fences
        # What an older fence of no lower version bars, the new one bars too.
        kept = [fence for fence in self.fences if fence.version < self.version]
        return epoch, (*kept, Fence(epoch, self.version, dict(ends)))[-FENCES_MAX:]


def to_dict(state: State) -> dict[str, Any]:
    """As plain values."""
    return {
        "format": FORMAT,
        "topic": state.topic,
        "run_id": state.run_id,
        "run_epoch": state.run_epoch,
        "version": state.version,
        "step": state.step,
        "next_batch": state.next_batch,
        "fences": [[f.epoch, f.version, _named(f.ends)] for f in state.fences],
        "positions": _named(state.positions),
        "delivered": spelled(state.delivered),
        "dropped": spelled(state.dropped),
        "versioned": list(state.versioned),
    }


def from_dict(values: Mapping[str, Any]) -> State:
    """What `to_dict` made.

    Raises:
        ValueError: something else.
    """
    if values.get("format") != FORMAT:
        detail = f"a state of format {values.get('format')!r}; this program reads {FORMAT}"
        raise ValueError(detail)
    try:
        return State(
            topic=str(values["topic"]),
            run_id=values["run_id"],
            run_epoch=int(values["run_epoch"]),
            version=values["version"],
            step=values["step"],
            next_batch=int(values["next_batch"]),
            fences=tuple(
                Fence(int(epoch), int(version), _numbered(ends))
                for epoch, version, ends in values["fences"]
            ),
            positions=_numbered(values["positions"]),
            delivered=read(values["delivered"]),
            dropped=read(values["dropped"]),
            versioned=tuple(map(str, values.get("versioned", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a state of a subscription: {error!r}") from None


def _named(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): at for partition, at in positions.items()}


def _numbered(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(at) for partition, at in positions.items()}


def remember(closed: ClosedGroups, names: bytes, *, delivered: bool, last: Place = NOWHERE) -> None:
    """Take over digests that stand in a row."""
    for start in range(0, len(names) - DIGEST_BYTES + 1, DIGEST_BYTES):
        closed.add_digest(names[start : start + DIGEST_BYTES], last, delivered=delivered)


def spelled(names: bytes) -> str:
    """Digests as text."""
    return base64.b64encode(names).decode()


def read(text: str) -> bytes:
    """The digests in a text; what is not one of ours holds none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
