"""What `turnstream export` writes, on every log alike. Each claim has a log of its own."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from tests.cli.command import ended, lines, turn, turnstream
from tests.cli.places import Json, Place, by_session
from tests.cli.replay_claims import forked
from tests.harness import linearized
from tests.processor.busy_sessions import busy_log

Claim = Callable[[Place], None]


def late(session_id: str, reward: float, name: str = "r") -> Json:
    return {"type": "reward", "session_id": session_id, "reward_id": name, "reward": reward}


def samples_come_once_with_their_last_reward(place: Place) -> None:
    events = [*forked("s1"), turn("s2"), ended("s2", reward=0.5)]
    place.process(*events, late("s2", 0.25), late("s2", 0.125, "r2"))
    place.process()  # all of it is delivered a second time
    ran = turnstream("export", "samples")
    assert (ran.code, ran.err) == (0, "wrote 2 samples of 2 sessions\n")
    told = by_session(ran.records)
    assert told["s1"] == linearized(events).samples[:1]
    (second,) = told["s2"]
    assert (second["reward"], second["session_reward"]) == (0.125, 0.125)
    assert second["revision"] > 0
    assert second["tokens"] == [1, 2, 3, 4]


def only_what_an_outcome_lists_is_exported(place: Place) -> None:
    given = linearized([*forked("s1"), turn("open"), turn("gone"), ended("gone")], profile="seed")
    (sample,) = (s for s in given.samples if s["session_id"] == "s1")
    unlisted = sample | {"sample_id": "00" * 16}
    (outcome,) = (c for c in given.closed if c["session_id"] == "s1")
    (gone,) = (c for c in given.closed if c["session_id"] == "gone")
    waiting = sample | {"session_id": "open", "sample_id": "11" * 16}
    place.records(sample, unlisted, outcome, waiting, gone, key=b"s1")
    ran = turnstream("export", "samples")
    assert ran.code == 0
    assert ran.records == [sample]
    assert sorted(ran.err.splitlines()) == [
        "left out 1 samples that no outcome lists",
        "left out 1 sessions whose samples are not all there",
        "left out 1 sessions without an outcome so far",
        "wrote 1 samples of 1 sessions",
    ]


def the_first_outcome_of_a_session_counts(place: Place) -> None:
    seed, lossless = (linearized(forked("s"), profile=p) for p in ("seed", "lossless"))
    first, second = [*seed.samples, *seed.closed], [*lossless.samples, *lossless.closed]
    place.records(*first, *second, key=b"s")
    assert turnstream("export", "samples").records == seed.samples
    assert turnstream("export", "sessions").records == seed.closed


def sessions_come_once_with_ledger_and_last_reward(place: Place) -> None:
    place.process(*forked("s1"), turn("s2"), ended("s2", end_status="error"), late("s1", 0.25))
    place.process()
    ran = turnstream("export", "sessions")
    assert (ran.code, ran.err) == (0, "wrote 2 sessions\n")
    told = {record["session_id"]: record for record in ran.records}
    assert told["s1"]["reward"] == 0.25
    assert [row["trained"] for row in told["s1"]["ledger"]] == [0, 1]
    assert told["s2"]["withheld"] == "status"


def events_make_a_dump_that_gives_the_same_samples(place: Place) -> None:
    poison = b"\xc1"
    events = [(key.decode(), value) for key, value in busy_log(4, 200) if value[:1] != poison]
    # Purges speak of one partition; a log may have more.
    place.process(*((key, value) for key, value in events if key))
    ran = turnstream("export", "events")
    assert ran.code == 0
    made = turnstream("linearize", "--open", "skip", given=ran.out.encode())
    assert by_session(made.records) == by_session(place.decoded(place.settings.samples_topic))
    assert made.records
    assert [record["type"] for record in made.records].count("sample_revised") > 0


def an_event_that_cannot_be_read_is_named_and_the_rest_is_dumped(place: Place) -> None:
    place.feed(turn("s", "t1"), ("s", b"\xc1"), ended("s"))
    ran = turnstream("export", "events")
    assert ran.code == 1
    first, last = ran.err.splitlines()
    assert first.startswith(f"{place.settings.turns_topic}/")
    assert last == "wrote 2 events"
    assert [record["type"] for record in ran.records] == ["turn", "session_ended"]
    offsets = [e.position.offset for e in place.entries(place.settings.turns_topic)]
    assert [record["position"] for record in ran.records] == [offsets[0], offsets[2]]


def a_record_that_cannot_be_read_is_named_and_the_rest_is_exported(place: Place) -> None:
    place.process(turn("s"), ended("s"))
    place.records(b"\xc1sample_revised", msgspec.msgpack.encode({"type": "trace"}))
    ran = turnstream("export", "samples")
    assert ran.code == 1
    assert len(ran.records) == 1
    topic = place.settings.samples_topic
    assert [line.startswith(f"{topic}/") for line in ran.err.splitlines()] == [True, True, False]


def a_split_may_be_chosen(place: Place) -> None:
    place.process(
        *(turn("a", split="train"), ended("a"), turn("b", split="eval"), ended("b")),
        *(turn("c"), ended("c")),
    )
    for split, sessions in (("train", {"a", "c"}), ("eval", {"b"})):
        ran = turnstream("export", "sessions", "--split", split)
        assert {record["session_id"] for record in ran.records} == sessions
    assert {r["session_id"] for r in turnstream("export", "sessions").records} == {"a", "b", "c"}
    assert turnstream("export", "samples", "--split", "eval").records == []


def a_time_may_be_chosen(place: Place) -> None:
    old = linearized([turn("old"), ended("old")])
    place.records(*old.samples, *old.closed)
    topic = place.settings.samples_topic
    newest_ms = max(entry.timestamp_ms for entry in place.entries(topic))
    while time.time() * 1000 < newest_ms + 50:
        time.sleep(0.01)
    since = datetime.fromtimestamp((newest_ms + 1) / 1000, UTC).isoformat()
    new = linearized([turn("new"), ended("new")])
    place.records(*new.samples, *new.closed)
    ran = turnstream("export", "samples", "--since", since)
    assert {record["session_id"] for record in ran.records} == {"new"}
    everything = turnstream("export", "samples", "--since", "2020-01-01")
    assert {record["session_id"] for record in everything.records} == {"old", "new"}


def samples_of_another_policy_are_exported_by_name(place: Place) -> None:
    place.process(*forked("s1"))
    assert turnstream("replay", "--profile", "lossless", "--name", "all").code == 0
    named = turnstream("export", "samples", "--name", "all").records
    assert named == linearized(forked("s1"), profile="lossless").samples
    assert len(turnstream("export", "samples").records) == 1


def samples_under_a_name_that_nobody_wrote_are_an_error(place: Place) -> None:
    assert place.ends(place.settings.samples_topic)
    for kind in ("samples", "sessions"):
        ran = turnstream("export", kind, "--name", "nope")
        assert (ran.code, ran.out) == (1, "")
        (line,) = ran.err.splitlines()
        assert line.startswith(f"turnstream: there is no {place.settings.samples_topic}.nope on ")


def an_empty_log_gives_an_empty_export(place: Place) -> None:
    assert place.ends(place.settings.samples_topic)
    for kind, told in (("samples", "0 samples of 0 sessions"), ("sessions", "0 sessions")):
        ran = turnstream("export", kind)
        assert (ran.code, ran.out, ran.err) == (0, "", f"wrote {told}\n")
    ran = turnstream("export", "events")
    assert (ran.code, ran.out, ran.err) == (0, "", "wrote 0 events\n")


def records_of_a_log_and_of_a_file_are_exported_alike(place: Place) -> None:
    events = [*forked("s1"), turn("s2"), ended("s2"), late("s2", 0.5)]
    place.process(*events)
    told = turnstream("tail", "--from-beginning", "--json", "--max", "5").out.encode()
    for kind in ("samples", "sessions"):
        from_log = by_session(turnstream("export", kind).records)
        assert by_session(turnstream("export", kind, "-", given=told).records) == from_log
        from_events = turnstream("export", kind, "-", given=lines(*events)).records
        # A revision is the position of its reward, in a file the number of its line.
        unplaced = [record | {"revision": 0} for record in from_events]
        assert by_session(unplaced) == by_session(
            [record | {"revision": 0} for records in from_log.values() for record in records]
        )


CLAIMS: list[Claim] = [
    samples_come_once_with_their_last_reward,
    only_what_an_outcome_lists_is_exported,
    the_first_outcome_of_a_session_counts,
    sessions_come_once_with_ledger_and_last_reward,
    events_make_a_dump_that_gives_the_same_samples,
    an_event_that_cannot_be_read_is_named_and_the_rest_is_dumped,
    a_record_that_cannot_be_read_is_named_and_the_rest_is_exported,
    a_split_may_be_chosen,
    a_time_may_be_chosen,
    samples_of_another_policy_are_exported_by_name,
    samples_under_a_name_that_nobody_wrote_are_an_error,
    an_empty_log_gives_an_empty_export,
    records_of_a_log_and_of_a_file_are_exported_alike,
]
