"""The one line about a subscription, and the bar on a terminal."""

import sys

import pytest

from streams.trainer.status import Line, Status

BUSY = Status(
    lag=1204,
    staleness=(0, 3),
    buffered_bytes=310_400_000,
    open_groups=12,
    filled=19,
    wanted=32,
    dropped={"stale": 9, "timeout": 5, "late": 0},
    waited_s={"groups": 30.2, "samples": 11.0, "trainer": 99.0},
)


def test_the_status_is_one_line() -> None:
    assert str(BUSY) == (
        "lag 1,204 · stale 0-3 · buffered 310 MB, 12 groups open"
        " · dropped 14 (stale 9, timeout 5) · waited 41 s (groups 30, samples 11)"
    )
    assert str(Status()) == "lag 0 · stale ? · buffered 0 MB, 0 groups open · dropped 0"


def test_the_bar_says_how_full_the_next_batch_is() -> None:
    assert BUSY.bar == "[#######-----] 19 of 32 rollouts"
    assert Status(filled=50, wanted=32, unit="groups").bar == "[############] 32 of 32 groups"


def test_the_line_is_drawn_over_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line(True)
    assert line.due()
    line.show(BUSY)
    assert not line.due()
    line.clear()
    line.clear()
    drawn = capsys.readouterr().err
    assert drawn.startswith("\r\x1b[K[#######-----] 19 of 32 rollouts · lag 1,204")
    assert drawn.endswith("\r\x1b[K")
    assert "\n" not in drawn


def test_nothing_is_drawn_where_nobody_looks() -> None:
    assert not sys.stderr.isatty()
    assert not Line(None).due()
