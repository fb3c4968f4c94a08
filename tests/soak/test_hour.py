"""What the hour of soak calls too much, too little and lost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from schemas.samples import SessionClosed
from streams.cli.topics import table as topics_table
from streams.log.kafka_topics import TopicReport
from streams.log.topics import topic_specs
from streams.settings import Settings
from tests.soak.disk import Topic, faults, on_disk, said_in
from tests.soak.flat import BROKER, GROWTH_MAX, Course, Look, courses, enough
from tests.soak.outcomes import Outcomes, differences

MB = 1_000_000
LOOKS = 120


def course(own: Callable[[float], float], name: str = "gateway a") -> Course:
    """Of a process whose bytes follow from the part of the hour that is over."""
    looks = [Look(n / LOOKS, {name: round(own(n / LOOKS))}) for n in range(LOOKS + 1)]
    assert enough(looks)
    (found,) = courses(looks, minutes=60)
    return found


def test_a_process_that_fills_up_in_its_warm_up_and_then_wavers_is_flat() -> None:
    dice = Random(1)
    found = course(lambda at: 60 * MB + 40 * MB * min(1, at * 4) + dice.uniform(-2, 2) * MB)
    assert found.flat
    assert abs(found.early - 100 * MB) < 2 * MB


def test_one_look_that_is_far_off_decides_nothing() -> None:
    assert course(lambda at: 100 * MB if at < 1 else 900 * MB).flat


@pytest.mark.parametrize(
    ("name", "level_mb", "allowed"),
    [("gateway a", 50, GROWTH_MAX), ("gateway a", 400, GROWTH_MAX), (BROKER, 400, 20 * MB)],
)
def test_a_process_that_grows_steadily_is_not_flat(
    name: str, level_mb: int, allowed: float
) -> None:
    # From the middle of the early sixth to that of the late one 7/12 of the run go by.
    for share, flat in ((0.9, True), (1.15, False)):
        grows = share * allowed * 12 / 7
        found = course(partial(_line, level_mb * MB, grows), name)
        assert found.flat is flat
        assert found.per_minute == pytest.approx(grows / 60, rel=0.01)


def test_two_kilobytes_a_session_are_a_leak_however_large_the_process_is() -> None:
    leaked = 3600 * 2000
    assert not course(partial(_line, 300 * MB, leaked)).flat


def _line(level: float, grows: float, at: float) -> float:
    return level + grows * at


def test_a_sixth_that_was_hardly_looked_at_is_not_enough() -> None:
    assert not enough([Look(n / 10, {}) for n in range(11)])


def test_what_the_command_says_of_disk_is_read_from_its_own_table() -> None:
    settings = Settings(retention_turns_hours=48)
    specs = topic_specs(settings, 1)
    said = said_in(topics_table(TopicReport(1, specs, [specs[0].name], []), settings))
    assert said == {spec.name: pytest.approx(spec.disk_bytes, rel=0.01) for spec in specs}


def test_a_topic_with_more_than_was_said_is_named_and_half_of_all_is_too_little() -> None:
    small, large = Topic("small", 100, 110, 110), Topic("large", 9900, 4890, 3000)
    assert faults([small, large]) == []
    assert faults([small._replace(written=111), large]) == ["small holds more than was said"]
    assert faults([small, large._replace(on_disk=10_900)]) == ["large holds more than was said"]
    assert faults([small, large._replace(written=4880)]) == ["all topics hold 50% of what was said"]


def test_disk_is_what_the_files_of_all_partitions_take_and_of_no_other_topic(
    tmp_path: Path,
) -> None:
    for name in ("p.turns-0", "p.turns-11", "p.turns-more-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00.log").write_bytes(bytes(100_000))
        with (tmp_path / name / "00.index").open("wb") as sparse:
            sparse.truncate(10 * MB)
    assert 200_000 <= on_disk(tmp_path, "p.turns") < 400_000


def closed(session_id: str, **fields: object) -> SessionClosed:
    outcome = {"sample_ids": [f"{session_id}-1"], "end_status": "completed", "policy": "seed"}
    counts = {"turns": 1, "generated": 1, "trained": 1, "ledger": []}
    return SessionClosed(session_id=session_id, **{**outcome, **counts, **fields})  # type: ignore[arg-type]


def test_what_is_lost_doubled_or_made_up_is_named() -> None:
    came = Outcomes()
    came.take(closed("a"))
    came.take(closed("b", end_status="expired", sample_ids=[]))
    assert differences({"a", "b"}, {"b"}, came, ["a-1"]) == []
    came.take(closed("a"))
    came.take(closed("d"))
    assert differences({"a", "b", "c"}, set(), came, ["a-1", "a-1", "x-1"]) == [
        "sessions without an outcome: 1, e.g. c",
        "outcomes of unknown sessions: 1, e.g. d",
        "sessions with several outcomes: 1, e.g. a",
        "expired although they were ended, or the other way: 1, e.g. b",
        "samples that were not trained: 1, e.g. d-1",
        "samples that were trained and are of no outcome: 1, e.g. x-1",
        "samples that were trained twice: 1, e.g. a-1",
    ]


def test_who_leaves_a_trace_is_known_without_the_traces() -> None:
    came = Outcomes(trace_share=0.25)
    for number in range(400):
        came.take(closed(f"s{number}"))
    came.take(closed("failed", end_status="expired", sample_ids=[]))
    assert "failed" in came.traced
    assert 70 < len(came.traced) < 130
    assert not Outcomes().traced
