"""Which dead letters go back into the log: each is tried on its session first.

The session is rebuilt from the processor's table and the events are applied to it by the same
core that the processor runs, in the order they once stood in the log. A turn whose base is a
letter itself waits for it:

    t5 on t4   unknown_base     ┐
    t4 on t3   unknown_base     ├─ t3, t4, t5
    t3         invalid_field    ┘  (mended reader)

Invariant: what would only be refused again stays where it is, so that replaying a second time
adds nothing. An event goes in once, however many letters it has; asked for although it is late, it
comes back late, and then it does not go in again.
"""

import enum
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.bad_record import BadRecord
from schemas.events import Event
from streams.cli.dead_letters.letters import LATE, Letter, event_of
from streams.cli.dead_letters.letters import Event as Refused
from streams.core.effects import Effects
from streams.core.session import apply
from streams.core.state import Rules, State
from streams.processor.arrivals import read_event
from streams.processor.lookup import Known

_AFTER_EVERYTHING = 1 << 62
"""A position behind whatever the session has."""
_FAILURE = "core_failure"
_CLOSED_BEFORE = {*LATE, _FAILURE}
"""Only a session that had ended gives these."""
_MAY_HELP = {"unknown_base", "unknown_session"}
"""Another letter may bring what is missing."""


class Fate(enum.Enum):
    """What becomes of a letter."""

    GOES_IN = "goes in"
    LATE = "late"
    KNOWN = "left out"
    HELD_BACK = "held back"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A letter, what becomes of it, and why."""

    letter: Letter
    fate: Fate
    why: str
    waits: bool = False
    """What it lacks may come with another letter."""


def judge(
    letters: Sequence[Letter],
    known: Mapping[str, Known],
    rules: Rules,
    now_ms: int,
    *,
    late: bool,
    came_back: Collection[Refused] = (),
) -> list[Verdict]:
    """What becomes of each letter; those that go in stand in the order they have to be sent.

    Args:
        letters: By position, one each.
        known: What the table holds of their sessions.
        rules: The processor's.
        now_ms: When they would be logged.
        late: Whether those that can no longer train go in all the same.
        came_back: Events that did so before, and were refused again.
    """
    trial = _Trial(known, rules, now_ms, came_back)
    done: list[Verdict] = []
    waiting = list(letters)
    while waiting:
        verdicts = [trial.verdict(letter, late=late) for letter in waiting]
        done += [verdict for verdict in verdicts if not verdict.waits]
        behind = [verdict for verdict in verdicts if verdict.waits]
        if not any(verdict.fate in (Fate.GOES_IN, Fate.LATE) for verdict in verdicts):
            return done + behind
        waiting = [verdict.letter for verdict in behind]
    return done


class _Trial:
    """The sessions as they would be, letter by letter."""

    def __init__(
        self,
        known: Mapping[str, Known],
        rules: Rules,
        now_ms: int,
        came_back: Collection[Refused],
    ) -> None:
        self._known = known
        self._rules = rules
        self._now_ms = now_ms
        self._states: dict[str, State] = {s: at.state.live(s) for s, at in known.items()}
        self._places: Iterator[int] = itertools.count(_AFTER_EVERYTHING)
        self._broken: set[str] = set()
        self._came_back = came_back
        self._first: dict[tuple[str, bytes], Letter] = {}
        """The letter that stands for all of the same event."""

    def verdict(self, letter: Letter, *, late: bool) -> Verdict:
        record = letter.record
        if record.payload is None:
            why = "its bytes were too large to be kept; publish it again from where it came"
            return Verdict(letter, Fate.HELD_BACK, why)
        if record.session_id is None:
            return Verdict(letter, Fate.HELD_BACK, "it names no session, so nobody can take it")
        first = self._first.setdefault((record.session_id, record.payload), letter)
        if first is not letter:
            return Verdict(letter, Fate.KNOWN, f"the same event as {first.position}")
        return self._read(letter, record.session_id, record.payload, late=late)

    def _read(self, letter: Letter, session_id: str, payload: bytes, *, late: bool) -> Verdict:
        event = read_event(session_id.encode(), payload)
        if isinstance(event, BadRecord):
            why = f"still {event.code}: {event.detail}"
            return Verdict(letter, Fate.HELD_BACK, why)
        if session_id in self._broken:
            return Verdict(letter, Fate.HELD_BACK, "a letter before it fails in the core")
        if self._states[session_id] is None and self._was_closed(letter):
            return self._begun_anew(letter, event, late=late)
        return self._applied(letter, event, late=late)

    def _applied(self, letter: Letter, event: Event, *, late: bool) -> Verdict:
        session_id = letter.record.session_id or ""
        before = self._states[session_id]
        after, effects = apply(before, event, next(self._places), self._rules, self._now_ms)
        # A close goes in although it leaves a sample out as too large.
        refused = [r for r in effects.refusals if effects.marker is None or r.code == _FAILURE]
        if refused:
            refusal = refused[0]
            if effects.marker is not None:
                self._broken.add(session_id)
            why = f"{refusal.code}: {refusal.detail}"
            if refusal.code in LATE:
                if event_of(letter.record) in self._came_back:
                    return Verdict(letter, Fate.KNOWN, f"it came back already: {why}")
                return _late(letter, why, late=late)
            return Verdict(letter, Fate.HELD_BACK, why, waits=refusal.code in _MAY_HELP)
        self._states[session_id] = after
        if effects.ignored:
            return Verdict(letter, Fate.KNOWN, "the session has it already, or no use for it")
        return Verdict(letter, Fate.GOES_IN, _what_it_does(effects, begins=before is None))

    def _was_closed(self, letter: Letter) -> bool:
        """Whether the session has closed and been forgotten, as far as can be known."""
        known = self._known[letter.record.session_id or ""]
        here = letter.position.partition == known.partition
        purged = here and letter.position.offset < known.state.floor
        return purged or letter.record.code in _CLOSED_BEFORE

    def _begun_anew(self, letter: Letter, event: Event, *, late: bool) -> Verdict:
        why = "its session has closed and is forgotten: it would begin anew, with a second outcome"
        if late:
            tried = self._applied(letter, event, late=late)
            if tried.fate is not Fate.GOES_IN:
                return tried
        return _late(letter, why, late=late)


def _late(letter: Letter, why: str, *, late: bool) -> Verdict:
    if late:
        return Verdict(letter, Fate.LATE, why)
    return Verdict(letter, Fate.HELD_BACK, f"it is late: {why}; --late replays it all the same")


def _what_it_does(effects: Effects, *, begins: bool) -> str:
    if effects.marker is not None:
        samples = f"{len(effects.samples)} sample" + ("s" if len(effects.samples) != 1 else "")
        return f"closes its session with {samples}"
    if effects.revisions:
        return f"after the close: revises {len(effects.revisions)} of its samples"
    return "begins its session" if begins else "its session takes it"
