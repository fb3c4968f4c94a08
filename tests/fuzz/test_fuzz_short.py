"""The short form of `make fuzz`."""

from pathlib import Path

from tests.fuzz.run import fuzz

SEED = 2
SECONDS = 20


def test_fuzzed_events_and_purges_cost_themselves_only(tmp_path: Path) -> None:
    report = fuzz(tmp_path, SECONDS, SEED)
    assert report.problems == []
    assert report.sent > 1000
    assert set(report.codes) >= {
        "undecodable",
        "invalid_field",
        "length_mismatch",
        "unknown_base",
        "unknown_session",
        "late_turn",
        "wrong_partition",
    }
