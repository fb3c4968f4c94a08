"""The events of a session's life in short, and a run of the core as a transcript.

One line a consequence, behind the position of the event it follows from (`end`: the end of the
file). Samples are drawn as in `notation`; a `|` divides an outcome from its ledger:

    2 sample <u>{[ok}], reward 1/2
    2 closed completed, reward 1/2 | t1 root 3/3
    3 revised 0, reward 1
    4 refused late_turn t2
    5 ignored

What an outcome says beside status and reward stands between them only if it is not the default:
`withheld no_reward`, `implied`, `not accepted`, `will retry`, `reward invalid`, counts.

Invariant: every run is sound (`golden.unsound`), a revision is its position, and every record
has passed through its JSON line.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import codec
from schemas.events import Event
from streams.core.effects import EVENT_ROW, Effects
from streams.core.partition import Partition
from streams.core.session import Row, restore
from streams.core.state import ClosedSession, OpenSession, Rules
from tests.core.golden import unsound
from tests.core.notation import Json, drawn, drawn_ledger, drawn_reward, turn

SESSION = "s"

# --- events --------------------------------------------------------------------------------------

T1 = turn("<u>", "ok", turn_id="t1")
T2 = turn("<u>{ok}(x)", "done", turn_id="t2")
"""Extends t1."""
T3 = turn("<v>", "hm", turn_id="t3")
"""Hangs from another root than t1, so it is another sample."""
NAN = float("nan")


def event(kind: str, **fields: Any) -> Json:
    return {"type": kind, "session_id": SESSION} | fields


def opened(**fields: Any) -> Json:
    return event("session_opened", **fields)


def end(status: str = "completed", **fields: Any) -> Json:
    return event("session_ended", end_status=status, **fields)


def reward(value: float | Json, reward_id: str | None = None, **fields: Any) -> Json:
    given = {} if reward_id is None else {"reward_id": reward_id}
    return event("reward", reward=value, **given, **fields)


def judged(value: float | Json, reward_id: str = "judge", **fields: Any) -> Json:
    return reward(value, reward_id, origin="judged", **fields)


def undelivered(turn_id: str | None = None, **fields: Any) -> Json:
    return event("turn_undelivered", **({} if turn_id is None else {"turn_id": turn_id}), **fields)


def expired(last_offset: int | None, cause: str = "idle") -> Json:
    given = {} if last_offset is None else {"last_offset": last_offset}
    return event("session_expired", cause=cause, **given)


def purge(floor: int) -> Json:
    return {"type": "purge", "floor": floor}


def of(session_id: str, event: Json) -> Json:
    """The same event of another session."""
    return event | {"session_id": session_id}


# --- what came of them ---------------------------------------------------------------------------


@dataclass
class Run:
    """The records of a run in their JSON form, and its transcript."""

    samples: list[Json] = field(default_factory=list)
    closed: list[Json] = field(default_factory=list)
    revised: list[Json] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def add(self, place: int | str, effects: Effects) -> None:
        for record in effects.records():
            fields: Json = json.loads(codec.to_json(record))
            getattr(self, KINDS[fields["type"]]).append(fields)
            self._line(place, fields["session_id"], self._drawn(place, fields))
        for error in effects.refusals:
            turn_id = f" {error.turn_id}" if error.turn_id else ""
            self._line(place, error.session_id or SESSION, f"refused {error.code}{turn_id}")
        if effects.ignored:
            self.lines.append(f"{place} ignored")

    def _line(self, place: int | str, session_id: str, text: str) -> None:
        whose = "" if session_id == SESSION else f"{session_id}: "
        self.lines.append(f"{place} {whose}{text}")

    def _drawn(self, place: int | str, fields: Json) -> str:
        if fields["type"] == "sample":
            return ", ".join([f"sample {drawn(fields)}", *worth(fields)])
        if fields["type"] == "session_closed":
            ledger = "; ".join(drawn_ledger(fields).splitlines())
            return f"{', '.join(said(fields))} | {ledger}".rstrip()
        index = next(s["index"] for s in self.samples if s["sample_id"] == fields["sample_id"])
        assert fields["revision"] == place, "a revision is the position of its reward"
        return ", ".join([f"revised {index}", *worth(fields)])

    @property
    def transcript(self) -> str:
        problems = unsound(self)
        assert problems == [], "; ".join(problems)
        return "\n".join(self.lines)


KINDS = {"sample": "samples", "session_closed": "closed", "sample_revised": "revised"}


def worth(fields: Json) -> list[str]:
    share, whole = drawn_reward(fields["reward"]), drawn_reward(fields["session_reward"])
    parts = [f"reward {share}" + ("" if share == whole else f" of {whole}")]
    if payload := fields.get("reward_payload"):
        parts.append(f"payload {json.dumps(payload)}")
    if turns := fields.get("turn_rewards"):
        parts.append("turns " + " ".join(f"{k}={drawn_reward(v)}" for k, v in turns.items()))
    return parts


def said(closed: Json) -> list[str]:
    parts = [f"closed {closed['end_status']}"]
    if "withheld" in closed:
        parts.append(f"withheld {closed['withheld']}")
    parts += [text for name, text in FLAGS.items() if name in closed]
    parts += [f"{name} {closed[name]}" for name in COUNTS if name in closed]
    value = closed.get("reward")
    return [*parts, "no reward" if value is None else f"reward {drawn_reward(value)}"]


FLAGS = {
    "implied_end": "implied",
    "accepted": "not accepted",
    "will_retry": "will retry",
    "reward_invalid": "reward invalid",
}
"""Each is written only when it is not the default."""
COUNTS = ("duplicates", "ignored", "refused", "gaps", "lost")


# --- running -------------------------------------------------------------------------------------


def read(event: Json) -> Event | codec.BadRecord:
    try:
        record = codec.from_json(json.dumps(event).encode())
    except codec.BadRecord as error:
        return error
    assert isinstance(record, Event), f"{event['type']} is no event"
    return record


def feed(partition: Partition, event: Event | codec.BadRecord, position: int) -> Effects:
    if isinstance(event, codec.BadRecord):
        return partition.refuse(event, position)
    return partition.feed(event, position)


def ran(events: Iterable[Json], rules: Rules | None = None) -> Run:
    """Every event once, in order, from position 1; then the end of the file."""
    run = Run()
    partition = Partition(rules=rules or Rules())
    for position, given in enumerate(events, 1):
        run.add(position, feed(partition, read(given), position))
    for effects in partition.finish():
        run.add("end", effects)
    return run


def ran_with_replays(events: Sequence[Json], rules: Rules | None = None) -> Run:
    """After every event the whole log up to it is delivered again, as after a restart.

    A replayed event may send again what it sent, under the same keys and with the same bytes,
    and nothing else; the run holds what was sent the first time.
    """
    run = Run()
    partition = Partition(rules=rules or Rules())
    log = list(enumerate(map(read, events), 1))
    sent: dict[int, list[bytes]] = {}
    for position, given in log:
        effects = feed(partition, given, position)
        sent[position] = [codec.to_json(record) for record in effects.records()]
        run.add(position, effects)
        for again, replayed in log[:position]:
            records = feed(partition, replayed, again).records()
            extra = [codec.to_json(record) for record in records]
            assert [r for r in extra if r not in sent[again]] == [], f"{again} sent something new"
    for effects in partition.finish():
        run.add("end", effects)
    return run


def ran_with_restarts(events: Iterable[Json], rules: Rules | None = None) -> Run:
    """Before every event a new worker takes over: it has the rows, the markers and the floor."""
    run = Run()
    rules = rules or Rules()
    partition = Partition(rules=rules)
    rows: dict[str, list[Row]] = {}
    for position, given in enumerate(map(read, events), 1):
        partition = restarted(partition, rows)
        effects = feed(partition, given, position)
        run.add(position, effects)
        if effects.row is not None:
            kept = None if isinstance(given, codec.BadRecord) or effects.row != EVENT_ROW else given
            code = None if kept is not None else effects.row
            row = Row(position, kept, code, effects.refused_turn)
            rows.setdefault(given.session_id or "", []).append(row)  # type: ignore[union-attr]
    for effects in restarted(partition, rows).finish():
        run.add("end", effects)
    return run


def restarted(old: Partition, rows: dict[str, list[Row]]) -> Partition:
    """The partition rebuilt: open sessions from the bytes of their rows, closed ones as kept."""
    fresh = Partition(rules=old.rules)
    fresh.floor = old.floor
    for session_id, state in old.sessions.items():
        if isinstance(state, ClosedSession):
            fresh.sessions[session_id] = state
            continue
        stored = [row._replace(event=reread(row.event)) for row in rows[session_id]]
        rebuilt = restore(stored, old.rules, session_id)
        assert isinstance(rebuilt, OpenSession), f"{session_id} is open and has rows"
        fresh.sessions[session_id] = rebuilt
    return fresh


def reread(event: Event | None) -> Event | None:
    """What a row's bytes read back to."""
    if event is None:
        return None
    record = codec.from_msgpack(codec.to_msgpack(event))
    assert isinstance(record, Event)
    return record
