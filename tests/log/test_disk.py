"""What the topics are said to cost, by the settings."""

from typing import Any

import pytest

from streams.log.disk import compacted_segment_ms, disk_bytes, segment_ms
from streams.log.topics import topic_specs
from streams.settings import FOR_EVER, Settings

HOUR_MS = 3_600_000


def cost(**fields: Any) -> dict[str, float]:
    """By the last word of a topic's name, at 10 kB a second unless said otherwise."""
    given = {"expected_turns_per_s": 10.0, "expected_turn_bytes": 1000, **fields}
    found = disk_bytes(Settings(**given)).items()
    return {name.removeprefix("turnstream.").split("-")[-1]: size or -1.0 for name, size in found}


def test_what_is_kept_stays_a_segment_longer_since_whole_ones_are_deleted() -> None:
    assert segment_ms(48) == 6 * HOUR_MS
    assert cost(retention_turns_hours=48)["turns"] == pytest.approx(
        10 * 1000 * (48 + 6) * 3600, rel=0.01
    )
    assert cost(retention_turns_hours=FOR_EVER)["turns"] == -1


def test_every_copy_is_counted_and_what_has_no_end_has_no_sum() -> None:
    one, three = ({s.name: s for s in topic_specs(Settings(), n)} for n in (1, 3))
    for name, spec in one.items():
        assert spec.disk_bytes is not None
        assert three[name].disk_bytes == pytest.approx(3 * spec.disk_bytes)
    endless = topic_specs(Settings(retention_samples_hours=FOR_EVER), 1)
    assert [s.name for s in endless if s.disk_bytes is None] == ["turnstream.samples"]


def test_traces_follow_the_share_of_sessions_that_leave_one() -> None:
    off, some, on = (cost(trace_share=share)["traces"] for share in (0.0, 0.1, 1.0))
    assert off < 0.01 * on
    assert some == pytest.approx(0.11 * on, rel=0.02)
    assert on < cost()["samples"]


def test_the_changelog_holds_its_newest_segment_however_soon_sessions_end() -> None:
    short, long = (
        cost(idle_limit_s=limit_s, marker_retention_s=1.0)["changelog"] for limit_s in (1.0, 7201.0)
    )
    assert short > 10 * 1000 * compacted_segment_ms(Settings()) / 1000
    assert long - short == pytest.approx(10 * 1000 * 7200)


def test_the_changelog_holds_markers_as_long_as_they_are_kept() -> None:
    day, week = (cost(marker_retention_s=86_400.0 * days)["changelog"] for days in (1, 7))
    assert week - day == pytest.approx(6 * 86_400 * 10 * 150)


def test_a_log_that_is_kept_for_minutes_is_compacted_within_minutes() -> None:
    assert compacted_segment_ms(Settings()) == HOUR_MS
    assert compacted_segment_ms(Settings(retention_turns_hours=FOR_EVER)) == HOUR_MS
    assert compacted_segment_ms(Settings(retention_turns_hours=0.1)) == 45_000
