"""What `turnstream replay` does, on every log alike. Each claim has a log of its own."""

import json
from collections.abc import Callable

from schemas import codec
from schemas.events import SessionExpired, Turn
from tests.cli.command import Ran, ended, turn, turnstream
from tests.cli.places import Json, Place, by_session, linearized_file

Claim = Callable[[Place], None]


def forked(session_id: str) -> list[Json]:
    """Two turns, the second after a drift inside the first's answer, and the end."""
    drifted = turn(
        session_id,
        "t2",
        prompt_messages=[
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "ok"},
            {"role": "tool", "content": "x"},
        ],
        prompt_ids=[1, 2, 3, 9, 9],
        output_ids=[5],
        logprobs=[-1.0],
    )
    return [turn(session_id), drifted, ended(session_id)]


def numbers(ran: Ran) -> dict[str, list[str]]:
    """The rows of the table."""
    rows = [line.rsplit(maxsplit=3) for line in ran.out.split("\n\n")[0].splitlines()[1:]]
    return {label: [before, after, change] for label, before, after, change in rows}


def a_file_is_published_in_order_under_its_sessions(place: Place) -> None:
    events = [turn(f"s{n % 3}", f"t{n}") for n in range(30)]
    ran = turnstream("replay", place.file(*events))
    assert (ran.code, ran.err) == (0, "")
    topic = place.settings.turns_topic
    assert ran.out == f"published 30 events of 3 sessions to {topic}, refused 0\n"
    assert by_session(place.decoded(topic)) == by_session(events)


def a_bad_line_is_named_and_the_rest_is_published(place: Place) -> None:
    bad = turn("s", "t2", logprobs=[0.5])
    ran = turnstream("replay", place.file(turn("s", "t1"), bad, b"no json", turn("s", "t3")))
    assert ran.code == 1
    assert ran.out.startswith("published 2 events of 1 session to ")
    assert ran.out.endswith("refused 2\n")
    first, second = ran.err.splitlines()
    assert first == "line 2: length_mismatch: session s, turn t2: 1 logprobs for 2 output_ids"
    assert second.startswith("line 3: undecodable: ")
    assert [e["turn_id"] for e in place.decoded(place.settings.turns_topic)] == ["t1", "t3"]


def what_names_a_position_is_rewritten(place: Place) -> None:
    place.feed(turn("s", "before"))
    expired = {"type": "session_expired", "session_id": "s", "cause": "idle"}
    ran = turnstream(
        "replay",
        place.file(
            turn("s", "t1", prev=3, position=700),
            expired | {"last_offset": 500, "position": 701},
            {"type": "purge", "floor": 9, "position": 702},
            turn("s", "t2", prev=700, position=703),
            expired | {"last_offset": 700, "position": 704},
            expired | {"last_offset": 703, "position": 705},
        ),
    )
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("refused 0, left out 1 purge\n")
    entries = place.entries(place.settings.turns_topic)
    found = [(e.position.offset, codec.from_msgpack(e.value or b"")) for e in entries]
    assert [event.prev for _, event in found if isinstance(event, Turn)] == [None] * 3
    newest = next(offset for offset, event in found if getattr(event, "turn_id", "") == "t2")
    expiries = [event.last_offset for _, event in found if isinstance(event, SessionExpired)]
    # The last one names the newest event, whatever ignored expiries stand between the two.
    assert expiries == [-1, -1, newest]


def an_expiry_that_named_a_refused_event_names_the_one_before_it(place: Place) -> None:
    expired = {"type": "session_expired", "session_id": "s", "cause": "idle", "last_offset": 2}
    bad = turn("s", "t2", logprobs=[0.5])
    ran = turnstream("replay", place.file(turn("s", "t1"), bad, expired))
    assert ran.code == 1
    entries = place.entries(place.settings.turns_topic)
    last = codec.from_msgpack(entries[-1].value or b"")
    assert isinstance(last, SessionExpired)
    assert last.last_offset == entries[0].position.offset


def a_dump_of_several_partitions_is_published_in_its_order(place: Place) -> None:
    events = [turn("s", f"t{n}") for n in range(4)]
    places = [(0, 7), (2, 9), (0, 8), (2, 10)]
    expired = {"type": "session_expired", "session_id": "s", "cause": "idle", "last_offset": 10}
    dump = [
        event | {"position": position, "partition": partition}
        for event, (partition, position) in zip([*events, expired], [*places, (2, 11)], strict=True)
    ]
    for _ in range(2):  # what was published before is not of this dump
        ran = turnstream("replay", place.file(*dump))
        assert (ran.code, ran.err) == (0, "")
    entries = place.entries(place.settings.turns_topic)
    found = [(e.position.offset, codec.from_msgpack(e.value or b"")) for e in entries][-5:]
    assert [event.turn_id for _, event in found if isinstance(event, Turn)] == [
        *("t0", "t1", "t2", "t3")
    ]
    (expiry,) = [event for _, event in found if isinstance(event, SessionExpired)]
    assert expiry.last_offset == found[-2][0]


def a_log_is_copied_with_every_session_in_order(place: Place) -> None:
    other = place.other()
    events = [turn(f"s{n % 5}", f"t{n}") for n in range(100)]
    place.feed(*events, settings=other)
    ran = turnstream("replay", "--from", place.settings.log, "--from-prefix", other.topic_prefix)
    assert (ran.code, ran.err) == (0, "")
    topic = place.settings.turns_topic
    assert ran.out == f"published 100 events of 5 sessions to {topic}, refused 0\n"
    assert by_session(place.decoded(topic)) == by_session(events)


def an_entry_that_cannot_be_read_is_named_and_the_rest_is_copied(place: Place) -> None:
    other = place.other()
    place.feed(turn("s", "t1"), ("s", b"\xc1"), turn("s", "t2"), settings=other)
    ran = turnstream("replay", "--from-prefix", other.topic_prefix)
    assert ran.code == 1
    (line,) = ran.err.splitlines()
    assert line.startswith(f"{other.turns_topic}/")
    assert ": undecodable: session s: not MessagePack" in line
    assert [e["turn_id"] for e in place.decoded(place.settings.turns_topic)] == ["t1", "t2"]


def an_empty_log_is_copied_without_a_word_of_trouble(place: Place) -> None:
    assert place.ends(place.other().turns_topic)
    ran = turnstream("replay", "--from-prefix", place.other().topic_prefix)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("published 0 events of 0 sessions")


def a_log_is_not_copied_into_itself(place: Place) -> None:
    place.feed(turn("s"))
    for options in (["--from", place.settings.log], ["--from-prefix", place.settings.topic_prefix]):
        ran = turnstream("replay", *options)
        assert (ran.code, ran.out) == (2, "")
        assert f"{place.settings.turns_topic} is the very topic that would be written" in ran.err
    assert sum(place.ends(place.settings.turns_topic).values()) == 1


def another_policy_is_compared_without_writing_anything(place: Place) -> None:
    place.feed(*forked("s1"), turn("s2"), ended("s2", reward=0.5), turn("open"))
    before = place.ends(place.settings.turns_topic), place.ends(place.settings.samples_topic)
    ran = turnstream("replay", "--profile", "lossless")
    assert ran.code == 0
    assert ran.err == (
        "the samples were not kept: --stdout prints them, --name NAME writes them to a topic\n"
    )
    assert numbers(ran) == {
        "sessions": ["2", "2", "0"],
        "samples": ["2", "3", "+1"],
        "tokens forwarded": ["10", "14", "+4"],
        "sampled tokens": ["5", "5", "0"],
        "trained": ["3", "5", "+2"],
        "untrained: realigned": ["2", "0", "-2"],
        "reward on samples": ["1.5", "2.5", "+1"],
        "events refused": ["0", "0", "0"],
        "still open, left out": ["1", "1", "0"],
    }
    assert ran.out.split("\n\n")[1].splitlines() == [
        "1 session differs  samples   tokens  trained  reward",
        "  s1                1 -> 2  6 -> 10   1 -> 3  1 -> 2",
    ]
    after = place.ends(place.settings.turns_topic), place.ends(place.settings.samples_topic)
    assert after == before


def what_another_policy_gives_is_what_linearize_gives(place: Place) -> None:
    late = {"type": "reward", "session_id": "s1", "reward_id": "r", "reward": 0.25}
    place.feed(*forked("s1"), late, turn("open"))
    dump = place.folder / "dump.jsonl"
    assert turnstream("export", "events", "--to", dump).code == 0
    ran = turnstream("replay", "--profile", "lossless", "--stdout")
    assert ran.code == 0
    assert ran.records == linearized_file(dump, "--profile", "lossless", "--open", "skip")
    assert "reward on samples" in ran.err
    assert "0.25" in ran.err


def another_policy_writes_to_a_topic_of_its_own(place: Place) -> None:
    place.feed(*forked("s1"), turn("s2", group_id="g"), ended("s2"))
    before = place.ends(place.settings.turns_topic), place.ends(place.settings.samples_topic)
    ran = turnstream("replay", "--fork-threshold", "0", "--name", "no-drift")
    topic = f"{place.settings.samples_topic}.no-drift"
    assert (ran.code, ran.err) == (0, f"wrote 5 records to {topic}\n")
    assert "as recorded  under fork threshold 0" in ran.out
    printed = turnstream("replay", "--fork-threshold", "0", "--stdout").records
    written = place.decoded(topic)
    assert by_session(written) == by_session(printed)
    keys = {
        json.loads(codec.to_json(codec.from_msgpack(e.value or b"")))["session_id"]: e.key
        for e in place.entries(topic)
    }
    assert keys == {"s1": b"s1", "s2": b"g"}
    after = place.ends(place.settings.turns_topic), place.ends(place.settings.samples_topic)
    assert after == before


def a_name_is_used_once(place: Place) -> None:
    place.feed(*forked("s1"))
    assert turnstream("replay", "--profile", "lossless", "--name", "all").code == 0
    ran = turnstream("replay", "--profile", "slime", "--name", "all")
    assert (ran.code, ran.out) == (1, "")
    topic = f"{place.settings.samples_topic}.all"
    assert ran.err == f"turnstream: {topic} holds 3 records already; take another --name\n"
    assert len(place.entries(topic)) == 3


def another_log_is_compared_and_kept_here(place: Place) -> None:
    other = place.other()
    place.feed(*forked("s1"), settings=other)
    ran = turnstream(
        "replay", "--from-prefix", other.topic_prefix, "--profile", "lossless", "--name", "there"
    )
    assert ran.code == 0
    assert numbers(ran)["samples"] == ["1", "2", "+1"]
    assert len(place.entries(f"{place.settings.samples_topic}.there")) == 3


def a_default_reward_alone_is_another_policy(place: Place) -> None:
    place.feed(turn("s1"), ended("s1", reward=None, reward_pending=False))
    ran = turnstream("replay", "--default-reward", "-1")
    assert ran.code == 0
    assert "under default reward -1" in ran.out
    assert numbers(ran)["untrained: no_reward"] == ["2", "0", "-2"]
    assert numbers(ran)["reward on samples"] == ["0", "-1", "-1"]


def an_empty_log_has_nothing_that_differs(place: Place) -> None:
    assert place.ends(place.settings.turns_topic)
    ran = turnstream("replay", "--profile", "slime")
    assert ran.code == 0
    assert numbers(ran)["sessions"] == ["0", "0", "0"]
    assert ran.out.endswith("\n\nno session differs\n")


CLAIMS: list[Claim] = [
    a_file_is_published_in_order_under_its_sessions,
    a_bad_line_is_named_and_the_rest_is_published,
    what_names_a_position_is_rewritten,
    an_expiry_that_named_a_refused_event_names_the_one_before_it,
    a_dump_of_several_partitions_is_published_in_its_order,
    a_log_is_copied_with_every_session_in_order,
    an_entry_that_cannot_be_read_is_named_and_the_rest_is_copied,
    an_empty_log_is_copied_without_a_word_of_trouble,
    a_log_is_not_copied_into_itself,
    another_policy_is_compared_without_writing_anything,
    what_another_policy_gives_is_what_linearize_gives,
    another_policy_writes_to_a_topic_of_its_own,
    a_name_is_used_once,
    another_log_is_compared_and_kept_here,
    a_default_reward_alone_is_another_policy,
    an_empty_log_has_nothing_that_differs,
]
