"""The core over a file: what `linearize` prints and `inspect` draws come from here.

Invariant: every event is applied in file order, whatever partitions it was dumped from; every
refusal names its line.
"""

from collections.abc import Iterator
from typing import BinaryIO

from schemas.bad_record import BadRecord
from schemas.dead_letters import DeadLetter
from schemas.record import Octets
from streams.cli.event_lines import EventLine, read_events
from streams.core.effects import Effects
from streams.core.partition import Partition
from streams.core.state import OpenSession, Rules


def run_file(
    stream: BinaryIO, rules: Rules, *, close_open: bool = True, session_id: str | None = None
) -> Iterator[tuple[OpenSession | None, Effects, list[DeadLetter]]]:
    """Each event's effects with the session they came from and its dead letters."""
    partition = Partition(rules=rules)
    for line in read_events(stream):
        event = line.event
        told = getattr(event, "session_id", None)
        if session_id is not None and told not in (session_id, None):
            continue
        before = partition.sessions.get(told or "")
        if isinstance(event, BadRecord):
            effects = partition.refuse(event, line.position)
        else:
            effects = partition.feed(event, line.position)
            before = before or partition.sessions.get(told or "")
        open_before = before if isinstance(before, OpenSession) else None
        yield open_before, effects, [_letter(line, error) for error in effects.refusals]
    if close_open:
        still_open = dict(partition.sessions)
        for effects in partition.finish():
            state = still_open[effects.outcome.session_id] if effects.outcome else None
            letters = [_letter(None, error) for error in effects.refusals]
            yield state if isinstance(state, OpenSession) else None, effects, letters


def _letter(line: EventLine | None, error: BadRecord) -> DeadLetter:
    return DeadLetter(
        code=error.code,
        detail=error.detail,
        session_id=error.session_id,
        turn_id=error.turn_id,
        line=line.number if line is not None else None,
        offset=line.named if line is not None and line.named != line.number else None,
        payload=Octets(line.text) if line is not None else None,
    )
