"""One session of a log, found and put together for a person.

    open         rows of the processor's table; samples as they would be if it ended now
    closed       the marker says where its events stand; they run through the core once more
    events gone  the samples and the outcome as they were sent, if those are still there

Invariant: what is told of a closed session comes from its events or from what was sent, and
says so where the two differ.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from schemas import codec
from schemas.bad_record import BadRecord
from schemas.samples import Sample, SampleRevised, SessionClosed
from streams.core.assembly import sample_id
from streams.core.effects import Effects
from streams.core.limits import DEFAULT_LIMITS
from streams.core.partition import Partition
from streams.core.policy import PROFILES
from streams.core.session import finish
from streams.core.state import Marker, OpenSession, Rules
from streams.core.tree import Tree
from streams.log.interface import Entry, Log, Position
from streams.log.keys import event_key
from streams.log.partitioner import partition_of
from streams.processor.arrivals import read_event
from streams.processor.lookup import Known, bounds, each_entry, look_up
from streams.processor.rules import rules_from
from streams.settings import Settings


@dataclass(slots=True, kw_only=True)
class Story:
    """What is to be told of a session."""

    session_id: str
    partition: int
    behind: int
    """Events of its partition that the processor has still to read."""
    first: int | None = None
    """Where its events stand: from here,"""
    last: int | None = None
    """to here; the close, or the newest row of an open session. None: nothing is known of it."""
    first_ms: int | None = None
    """When the log took its first event; None: not known any more."""
    last_ms: int | None = None
    still_open: OpenSession | None = None
    tree: Tree | None = None
    """None: its events are gone, or some of them."""
    outcome: SessionClosed | None = None
    """Of an open session: as if it ended now. None: gone as well."""
    samples: Sequence[Sample] = ()
    revisions: list[SampleRevised] = field(default_factory=list)
    reward_to_come: bool = False
    """Its samples are drawn although they lack the reward they need."""
    log_start: int = 0
    """The oldest event that its partition still has."""
    sent_ids: list[str] | None = None
    """The samples that were sent, where the rules chosen here give others."""


async def find_session(
    log: Log, settings: Settings, rules: Rules, session_id: str, *, search: bool = False
) -> Story | None:
    """The session as the log tells it; None if there is nothing of it where was looked.

    Args:
        log: Where to look.
        settings: Of the deployment: topics, default rules.
        rules: What the command line asks for.
        session_id: Which one.
        search: Look through its partition and all samples if the table has nothing of it.
    """
    usual = rules_from(settings)
    rules = dataclasses.replace(
        rules,
        default_policy=usual.default_policy,
        limits=usual.limits,
        turn_age_ms_max=usual.turn_age_ms_max,
    )
    known = (await look_up(log, settings, rules, [session_id]))[session_id]
    marker = known.state.marker(session_id) if session_id in known.state.markers else None
    if marker is not None:
        return await _closed(log, settings, rules, known, marker)
    session = known.state.live(session_id)
    if isinstance(session, OpenSession):
        story = Story(session_id=session_id, partition=known.partition, behind=known.behind)
        rows = known.state.rows[session_id]
        story.first, story.last = min(rows), max(rows)
        story.first_ms, story.last_ms = rows[story.first].logged_ms, rows[story.last].logged_ms
        _as_if_ended(story, session, rules)
        return story
    return await _searched(log, settings, rules, known, session_id) if search else None


async def _closed(
    log: Log, settings: Settings, rules: Rules, known: Known, marker: Marker
) -> Story:
    session_id, partition = marker.session_id, known.partition
    start, _ = (await bounds(log, settings.turns_topic))[partition]
    listed = [sample_id for sample_id, _ in marker.samples]
    story = Story(session_id=session_id, partition=partition, behind=known.behind)
    if start > marker.first:
        story.log_start = start
        await _read_sent(log, settings, story, marker.key.encode())
        story.samples = [sample for sample in story.samples if sample.sample_id in listed]
    else:
        place = (marker.first, marker.closed_at + 1)
        entries = await _entries(log, settings, partition, place, session_id)
        # Late rewards are kept beside the marker; behind the close nothing else has to be read.
        entries += [
            Entry(
                Position(settings.turns_topic, partition, offset),
                row.logged_ms,
                event_key(session_id),
                row.value,
            )
            for offset, row in sorted(known.state.rows.get(session_id, {}).items())
        ]
        session = _run(story, entries, rules)
        if session is not None:
            # Only rules that were not the processor's leave a closed session open.
            _take(story, session, finish(session, rules))
        if listed != [sample.sample_id for sample in story.samples]:
            story.sent_ids = listed
    story.first, story.last = marker.first, marker.closed_at
    story.last_ms = known.state.markers[session_id].closed_ms
    return story


async def _searched(
    log: Log, settings: Settings, rules: Rules, known: Known, session_id: str
) -> Story | None:
    """A session that the table does not know: forgotten, or not yet read."""
    story = Story(session_id=session_id, partition=known.partition, behind=known.behind)
    place = (await bounds(log, settings.turns_topic))[known.partition]
    entries = await _entries(log, settings, known.partition, place, session_id)
    if entries:
        story.log_start = place[0]
        story.first, story.last = entries[0].position.offset, entries[-1].position.offset
        story.last_ms = entries[-1].timestamp_ms
        session = _run(story, entries, rules)
        if session is not None:
            _as_if_ended(story, session, rules)
    if story.outcome is None:
        # Its beginning is gone, so its events tell nothing.
        await _read_sent(log, settings, story, None)
    return story if story.outcome is not None or story.samples else None


def _run(story: Story, entries: Sequence[Entry], rules: Rules) -> OpenSession | None:
    """The events once more through the core; the session, if they leave it open."""
    partition = Partition(rules=rules)
    for entry in entries:
        before = partition.sessions.get(story.session_id)
        event = read_event(entry.key, entry.value)
        if isinstance(event, BadRecord):
            effects = partition.refuse(event, entry.position.offset)
        else:
            effects = partition.feed(event, entry.position.offset, entry.timestamp_ms)
        _take(story, before if isinstance(before, OpenSession) else None, effects)
    story.first_ms = entries[0].timestamp_ms if entries else None
    session = partition.sessions.get(story.session_id)
    return session if isinstance(session, OpenSession) else None


def _take(story: Story, session: OpenSession | None, effects: Effects) -> None:
    story.revisions += effects.revisions
    if effects.outcome is None or story.outcome is not None:
        return
    # A session that its first event closed never had a turn.
    story.tree = session.tree if session else Tree(PROFILES["seed"], DEFAULT_LIMITS)
    story.outcome, story.samples = effects.outcome, effects.samples


def _as_if_ended(story: Story, session: OpenSession, rules: Rules) -> None:
    """What the session would give now; a reward that it lacks is taken as still to come."""
    label = session.policy.label
    story.still_open = session
    story.reward_to_come = (
        session.rewards.value is None
        and rules.default_reward is None
        and session.policy.require_reward
    )
    if story.reward_to_come:
        session.policy = dataclasses.replace(session.policy, require_reward=False)
    _take(story, session, finish(session, rules))
    assert story.outcome is not None, "finishing closes"
    # Under the names that the session's own rules give them.
    story.samples = [
        msgspec.structs.replace(
            sample,
            policy=label,
            sample_id=sample_id(sample.session_id, label, sample.turns[-1].turn_id),
        )
        for sample in story.samples
    ]
    ids = [sample.sample_id for sample in story.samples]
    story.outcome = msgspec.structs.replace(story.outcome, policy=label, sample_ids=ids)


async def _read_sent(log: Log, settings: Settings, story: Story, key: bytes | None) -> None:
    """What was sent of the session; without its key every partition has to be read."""
    ranges = await bounds(log, settings.samples_topic)
    if key is not None:
        home = partition_of(key, len(ranges))
        ranges = {home: ranges[home]}
    samples: dict[str, Sample] = {}
    revisions: dict[tuple[int, str], SampleRevised] = {}

    def take(entry: Entry) -> None:
        if key is not None and entry.key != key:
            return
        try:
            record = codec.from_msgpack(entry.value or b"")
        except BadRecord:
            return  # whatever it is, it is not what the processor sent
        if getattr(record, "session_id", None) != story.session_id:
            return
        match record:
            case Sample():
                samples.setdefault(record.sample_id, record)
            case SampleRevised():
                revisions.setdefault((record.revision, record.sample_id), record)
            case SessionClosed() if story.outcome is None:
                story.outcome, story.last_ms = record, entry.timestamp_ms

    await each_entry(log, settings, settings.samples_topic, ranges, take)
    story.samples = sorted(samples.values(), key=lambda sample: sample.index)
    story.revisions = [revisions[place] for place in sorted(revisions)]


async def _entries(
    log: Log, settings: Settings, partition: int, place: tuple[int, int], session_id: str
) -> list[Entry]:
    """The session's entries between two positions of its partition."""
    key = event_key(session_id)
    found: list[Entry] = []

    def take(entry: Entry) -> None:
        if entry.key == key or (entry.key is None and _names(entry, session_id)):
            found.append(entry)

    await each_entry(log, settings, settings.turns_topic, {partition: place}, take)
    return found


def _names(entry: Entry, session_id: str) -> bool:
    """Whether an entry that was sent without a key is the session's."""
    return getattr(read_event(None, entry.value), "session_id", None) == session_id
