"""What the soak calls too much, and that its sessions are what their fates say."""

from collections import Counter

import pytest

from schemas import codec
from schemas.events import Event
from schemas.samples import SampleRevised, SessionClosed
from streams.core.partition import Partition
from tests.soak.arena import Came, differences
from tests.soak.load import entries, fate_of, small_session
from tests.soak.memory import MARKER_BYTES_MAX, SLACK, Course, Memory, Wave, broken_bounds

MB = 1_000_000
START = Memory(held=50 * MB, own=60 * MB)
MARKERS = 10_000
WAVE = Wave(
    closed=Memory(held=60 * MB, own=70 * MB), markers=MARKERS, purged=Memory(50 * MB, 70 * MB)
)
ALLOWED = MARKERS * MARKER_BYTES_MAX
HELD_MOST = Memory(START.held + ALLOWED + SLACK.held, START.own)
OWN_MOST = Memory(START.held, START.own + ALLOWED + SLACK.own)
TOO_MUCH = {
    "held with markers": WAVE._replace(closed=HELD_MOST._replace(held=HELD_MOST.held + 1)),
    "own with markers": WAVE._replace(closed=OWN_MOST._replace(own=OWN_MOST.own + 1)),
    "held after the purge": WAVE._replace(purged=Memory(START.held + SLACK.held + 1, START.own)),
    "own after the purge": WAVE._replace(purged=OWN_MOST._replace(own=OWN_MOST.own + 1)),
}


def course(*waves: Wave) -> Course:
    return Course("w1", START, waves, peak_own=80 * MB)


def test_a_worker_may_keep_a_kilobyte_for_every_session_it_remembers() -> None:
    just_so = WAVE._replace(closed=Memory(HELD_MOST.held, OWN_MOST.own))
    assert broken_bounds(course(WAVE, just_so)) == []


@pytest.mark.parametrize(("what", "wave"), TOO_MUCH.items(), ids=TOO_MUCH)
def test_one_byte_over_a_bound_is_named(what: str, wave: Wave) -> None:
    (line,) = broken_bounds(course(WAVE, wave))
    assert line.startswith(f"w1: wave 2, {what} ")


def in_the_core(seed: int, sessions: int) -> Came:
    """What the pure core sends for these sessions; those that never end are left open."""
    came, revisions = Came(Counter(), Counter(), Counter(), 0), 0
    partition = Partition()
    for offset, (_, value) in enumerate(entries(seed, range(sessions))):
        event = codec.from_msgpack(value)
        assert isinstance(event, Event)
        effects = partition.feed(event, offset)
        assert not effects.refusals
        came.samples.update(sample.sample_id for sample in effects.samples)
        for record in effects.records():
            revisions += isinstance(record, SampleRevised)
            if isinstance(record, SessionClosed):
                came.outcomes[record.session_id] += 1
                came.statuses[record.end_status] += 1
    return came._replace(revisions=revisions)


def expired(came: Came, seed: int, sessions: int) -> Came:
    silent = [n for n in range(sessions) if fate_of(n) == "expires"]
    outcomes = came.outcomes + Counter(small_session(seed, n).session_id for n in silent)
    return came._replace(outcomes=outcomes, statuses=came.statuses + Counter(expired=len(silent)))


def test_every_session_closes_by_itself_but_those_that_have_to_expire() -> None:
    came = in_the_core(3, 400)
    assert differences(came, [(3, 400)]) == [
        "sessions without an outcome: 4 and not 0",
        "expired sessions: 0 and not 4",
    ]
    assert differences(expired(came, 3, 400), [(3, 400)]) == []


def test_an_outcome_that_came_twice_is_found() -> None:
    came = expired(in_the_core(3, 100), 3, 100)
    came.outcomes[small_session(3, 7).session_id] += 1
    assert differences(came, [(3, 100)]) == ["sessions with several outcomes: 1 and not 0"]
