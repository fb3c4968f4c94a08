"""What `turnstream tail` shows, on every log alike. Each claim has a log of its own."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

from tests.cli.command import ended, turn, turnstream
from tests.cli.places import Place, interrupted, on_a_terminal, running
from tests.harness import linearized

Claim = Callable[[Place], None]


def first_line(tail: subprocess.Popen[bytes], place: Place) -> str:
    """What a tail shows first of sessions that come to be after it was started."""
    assert tail.stdout is not None
    os.set_blocking(tail.stdout.fileno(), False)
    new = linearized([turn("new"), ended("new")])
    line, until_s = b"", time.monotonic() + 30
    while not line:
        # It starts at the end that it finds, so the first ones may come too early for it.
        assert time.monotonic() < until_s
        place.records(*new.samples, *new.closed)
        line = tail.stdout.readline() or b""
    os.set_blocking(tail.stdout.fileno(), True)
    return line.decode()


def records_stand_in_one_line_each_and_whole_as_json(place: Place) -> None:
    place.process(turn("s1"), ended("s1", reward=0.5))
    sample, outcome = place.decoded(place.settings.samples_topic)
    ran = turnstream("tail", "--from-beginning", "--max", "2")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"sample   s1  1/1  4 tokens, 2 trained  reward 0.5  {sample['sample_id'][:8]}\n"
        "closed   s1  completed  1 turns, trained 2 of 2  reward 0.5  1 samples\n"
    )
    whole = turnstream("tail", "--from-beginning", "--max", "2", "--json")
    assert whole.records == [sample, outcome]


def a_later_reward_and_a_session_without_samples_say_so(place: Place) -> None:
    late = {"type": "reward", "session_id": "s1", "reward_id": "r", "reward": 0.25}
    place.process(turn("s1"), ended("s1"), late)
    place.records(*linearized([turn("s2"), ended("s2", end_status="error")]).closed, key=b"s1")
    ran = turnstream("tail", "--from-beginning", "--max", "4")
    _, _, revised, closed = ran.out.splitlines()
    assert revised.startswith("revised  s1  reward 0.25  ")
    assert closed.endswith("trained 0 of 2  reward 1  0 samples, withheld: status")


def an_unreadable_record_is_shown_and_passed_over(place: Place) -> None:
    place.records(b"\xc1", key=b"s1")
    place.process(turn("s1"), ended("s1"))
    ran = turnstream("tail", "--from-beginning", "--max", "2")
    first, second = ran.out.splitlines()
    assert first.startswith(f"unreadable  {place.settings.samples_topic}/")
    assert second.startswith("sample   s1")
    told = turnstream("tail", "--from-beginning", "--max", "1", "--json").records[0]
    assert told["code"] == "undecodable"


def only_what_is_new_is_followed_until_control_c(place: Place) -> None:
    place.process(turn("old"), ended("old"))
    with running("tail") as tail:
        assert " new " in first_line(tail, place)
        ran = interrupted(tail)
    assert (ran.code, ran.err) == (0, "")
    assert " old " not in ran.out


def an_empty_log_is_waited_for(place: Place) -> None:
    assert place.ends(place.settings.samples_topic)
    new = linearized([turn("first"), ended("first")])
    with running("tail", "--from-beginning", "--json", "--max", "2") as tail:
        time.sleep(1.5)
        assert tail.poll() is None
        place.records(*new.samples, *new.closed)
        out, err = tail.communicate(timeout=30)
    assert (tail.returncode, err) == (0, b"")
    assert [json.loads(line)["session_id"] for line in out.splitlines()] == ["first", "first"]


def control_c_ends_a_wait_on_an_empty_log(place: Place) -> None:
    assert place.ends(place.settings.samples_topic)
    for number in (signal.SIGINT, signal.SIGTERM):
        code, out, shown = on_a_terminal("tail", until="records 0", then=number)
        assert (code, out) == (0, b"")
        assert "Traceback" not in shown


def samples_of_another_policy_are_followed_by_name(place: Place) -> None:
    place.feed(turn("s1"), ended("s1"))
    assert turnstream("replay", "--profile", "lossless", "--name", "all").code == 0
    ran = turnstream("tail", "--name", "all", "--from-beginning", "--max", "2", "--json")
    assert [record["policy"] for record in ran.records] == ["lossless", "lossless"]


CLAIMS: list[Claim] = [
    records_stand_in_one_line_each_and_whole_as_json,
    a_later_reward_and_a_session_without_samples_say_so,
    an_unreadable_record_is_shown_and_passed_over,
    only_what_is_new_is_followed_until_control_c,
    an_empty_log_is_waited_for,
    control_c_ends_a_wait_on_an_empty_log,
    samples_of_another_policy_are_followed_by_name,
]
