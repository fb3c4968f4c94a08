"""The stand-in believes nothing: every way a service can fail is a failure of the test."""

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compose.compose_file import read_services
from tests.compose.dockerfile import Stage
from tests.compose.stand_in import Failed, StandIn, replaced

SHELL = Stage("none", [("ENTRYPOINT", '["/bin/sh", "-c"]'), ("STOPSIGNAL", "SIGTERM")])
WAITS = "while :; do sleep 0.1; done"
"""Lives until a signal comes, and leaves no child behind for long."""

UNUSED: Mapping[str, str] = {"nowhere": "nowhere"}


def stack(folder: Path, text: str) -> StandIn:
    lines = "services:\n" + text
    return StandIn(read_services(lines, {}), SHELL, folder, lambda _: UNUSED)


def one(command: str, check: str = "exit 0", start_period: str = "0s") -> str:
    """A service `one` that is asked after every 50 ms."""
    return f"""
  one:
    image: one
    build: .
    command: ["{command}"]
    healthcheck:
      test: [CMD-SHELL, "{check}"]
      interval: 50ms
      retries: 3
      timeout: 300ms
      start_period: {start_period}
      start_interval: 50ms
    stop_grace_period: 500ms
"""


def two(condition: str, command: str) -> str:
    """A service `two` that waits for `one`."""
    return f"""
  two:
    image: two
    build: .
    command: ["{command}"]
    depends_on: {{one: {{condition: {condition}}}}}
"""


def test_a_service_starts_when_what_it_waits_for_is_healthy(tmp_path: Path) -> None:
    slow = one(f"sleep 0.3; touch ready; {WAITS}", "test -e ready", start_period="1h")
    waiting = two("service_healthy", "test -e ../one-1/ready")
    with stack(tmp_path, slow + waiting) as running:
        running.up({})
        running.containers["two"][0].completed()


def test_a_service_starts_when_what_it_waits_for_is_done(tmp_path: Path) -> None:
    first = "\n  one: {image: one, build: ., command: ['sleep 0.3; touch done']}\n"
    waiting = two("service_completed_successfully", "test -e ../one-1/done")
    with stack(tmp_path, waiting + first) as running:
        running.up({})
        running.containers["two"][0].completed()


def test_a_service_is_not_started_when_what_it_waits_for_failed(tmp_path: Path) -> None:
    first = "\n  one: {image: one, build: ., command: ['echo oh no; exit 3']}\n"
    waiting = two("service_completed_successfully", "exit 0")
    with stack(tmp_path, first + waiting) as running:
        with pytest.raises(Failed, match="one-1 ended with 3: oh no"):
            running.up({})
        assert "two" not in running.containers


def test_a_condition_on_health_needs_a_health_check(tmp_path: Path) -> None:
    first = f"\n  one: {{image: one, build: ., command: ['{WAITS}']}}\n"
    with (
        stack(tmp_path, first + two("service_healthy", "exit 0")) as running,
        pytest.raises(Failed, match="one-1 has no health check"),
    ):
        running.up({})


SICK = {
    "the check says no": (WAITS, "echo not well; exit 1", "one-1 is unhealthy: (not well\n){3}"),
    "the check hangs": (WAITS, "exec sleep 60", "one-1 is unhealthy"),
    "the check is no command": (WAITS, "no-such-command", "one-1 is unhealthy: .*not found"),
    "the service ends": ("echo good bye", "exit 1", "one-1 ended with 0: good bye"),
    "the service is no command": ("no-such-command", "exit 1", "one-1 ended with 127"),
}


@pytest.mark.parametrize(("command", "check", "told"), SICK.values(), ids=SICK)
def test_a_service_that_is_not_healthy_fails(
    tmp_path: Path, command: str, check: str, told: str
) -> None:
    with (
        stack(tmp_path, one(command, check)) as running,
        pytest.raises(Failed, match=f"(?s){told}"),
    ):
        running.up({})


@pytest.mark.parametrize("start_period", ["0s", "1h"])
def test_only_failures_while_a_service_starts_are_forgiven(
    tmp_path: Path, start_period: str
) -> None:
    well_at_the_fifth = "echo x >> looks; test $$(wc -l < looks) -ge 5"
    with stack(tmp_path, one(WAITS, well_at_the_fifth, start_period)) as running:
        if start_period == "1h":
            running.up({})
        else:
            with pytest.raises(Failed, match="one-1 is unhealthy"):
                running.up({})
        looks = (tmp_path / "one-1/looks").read_text().count("x")
    assert looks == (5 if start_period == "1h" else 3)


STUBBORN = {
    "it does not listen": ("trap '' TERM; " + WAITS, "does not stop in 0.5 s"),
    "it ends badly": ("trap 'exit 70' TERM; " + WAITS, "ended with 70 when told to stop"),
    "it is struck down": (WAITS, f"ended with -{signal.SIGTERM:d} when told to stop"),
}


@pytest.mark.parametrize(("command", "told"), STUBBORN.values(), ids=STUBBORN)
def test_a_service_that_does_not_stop_well_fails(tmp_path: Path, command: str, told: str) -> None:
    with stack(tmp_path, one(command)) as running:
        running.up({})
        with pytest.raises(Failed, match=told):
            running.down()


def test_nothing_outlives_the_stand_in(tmp_path: Path) -> None:
    with stack(tmp_path, one("trap '' TERM; " + WAITS)) as running:
        running.up({"one": 2})
    assert [container.process.poll() for container in running.containers["one"]] == [-9, -9]


def test_replacements_do_not_meet_each_other() -> None:
    table = {"a:1": "b:1", "b:1": "c:1", "xa:1": "d:1"}
    assert replaced("a:1,b:1,xa:1,e:1", table) == "b:1,c:1,d:1,e:1"
