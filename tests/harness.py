"""How tests drive the core: events in their JSON-lines form in, records in the same form out."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import codec
from schemas.events import Event
from streams.core.drawing import draw_tree
from streams.core.partition import Partition
from streams.core.policy import PROFILES, Policy
from streams.core.state import OpenSession

Json = dict[str, Any]


@dataclass
class Linearized:
    """Everything a run gave, in order, by kind."""

    samples: list[Json] = field(default_factory=list)
    closed: list[Json] = field(default_factory=list)
    revised: list[Json] = field(default_factory=list)
    dead_letters: list[Json] = field(default_factory=list)
    trees: dict[str, str] = field(default_factory=dict)
    """Each session's tree, drawn as it stood when it closed."""

    @property
    def ledger(self) -> list[Json]:
        """The ledger of the only session."""
        (outcome,) = self.closed
        rows: list[Json] = outcome["ledger"]
        return rows


def policy_of(profile: str, fork_threshold: int | None, **fields: Any) -> Policy:
    """A profile with some fields changed."""
    if fork_threshold is not None:
        fields["fork_threshold_tokens"] = fork_threshold
    return dataclasses.replace(PROFILES[profile], **fields)


def linearized(
    events: Sequence[Json],
    *,
    profile: str = "seed",
    fork_threshold: int | None = None,
    default_reward: float | None = None,
    **policy_fields: Any,
) -> Linearized:
    """What the core makes of these events; an event's position is its place, from 1."""
    policy = policy_of(profile, fork_threshold, **policy_fields)
    partition = Partition(forced_policy=policy, default_reward=default_reward)
    run = Linearized()
    for position, event in enumerate(events, 1):
        try:
            record = codec.from_json(json.dumps(event).encode())
        except codec.BadRecord as error:
            _collect(run, partition.refuse(error, position))
            continue
        assert isinstance(record, Event), f"{event['type']} is no event"
        before = partition.sessions.get(event.get("session_id", ""))
        effects = partition.feed(record, position)
        if effects.outcome is not None and isinstance(before, OpenSession):
            run.trees[before.session_id] = draw_tree(before.tree, effects.outcome.ledger)
        _collect(run, effects)
    still_open = {k: v for k, v in partition.sessions.items() if isinstance(v, OpenSession)}
    for effects in partition.finish():
        assert effects.outcome is not None
        session = still_open[effects.outcome.session_id]
        run.trees[session.session_id] = draw_tree(session.tree, effects.outcome.ledger)
        _collect(run, effects)
    return run


def _collect(run: Linearized, effects: Any) -> None:
    lists = {"sample": run.samples, "session_closed": run.closed, "sample_revised": run.revised}
    for record in effects.records():
        line = json.loads(codec.to_json(record))
        lists[line["type"]].append(line)
    for error in effects.refusals:
        run.dead_letters.append(
            {
                "code": error.code,
                "detail": error.detail,
                "session_id": error.session_id,
                "turn_id": error.turn_id,
            }
        )
