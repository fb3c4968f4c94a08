"""What `turnstream dead-letters` does, on every log alike. Each claim has its own sessions."""

import json
import re
from collections.abc import Callable
from typing import Any

import msgpack

from schemas import codec
from tests.cli.command import ended, turn
from tests.cli.stores import Json, Store

Claim = Callable[[Store], None]


def delta(session_id: str, turn_id: str, base: str, ids: int, messages: int = 2) -> Json:
    """A turn on another one, all of whose ids and messages it keeps."""
    return turn(
        session_id,
        turn_id,
        base_turn_id=base,
        kept_messages=messages,
        kept_ids=ids,
        prompt_messages=[{"role": "tool", "content": turn_id}],
        prompt_ids=[9],
    )


def wire(event: Json, **changed: Any) -> tuple[str, bytes]:
    """An event as it travels, with fields that no writer of ours would let pass."""
    fields = msgpack.unpackb(codec.to_msgpack(codec.from_json(json.dumps(event).encode())))
    return event["session_id"], bytes(msgpack.packb(fields | changed))


def listed(store: Store, session_id: str, *options: str) -> list[list[str]]:
    """The columns of a session's letters, without the heading."""
    ran = store.run("dead-letters", "list", "--session", session_id, *options)
    assert (ran.code, ran.err) == (0, "")
    if ran.out.startswith("no dead letters"):
        return []
    return [re.split(r"  +", line) for line in ran.out.splitlines()[1:]]


def position(store: Store, session_id: str) -> str:
    """Where the session's only refused event stood."""
    ((place, *_),) = listed(store, session_id)
    return place


def letters_are_listed_newest_last_with_what_was_wrong(store: Store) -> None:
    store.feed(turn("list"), ("list", b"\xc1"))
    store.feed(delta("list", "t3", "t2", 4))
    first, second = listed(store, "list")
    assert first[1:4] == ["undecodable", "list", "-"]
    assert second[1:] == [
        "unknown_base",
        "list",
        "t3",
        "base turn t2 is not in the session; send it first",
    ]
    assert re.fullmatch(rf"{re.escape(store.settings.turns_topic)}/\d+/\d+", first[0])
    assert listed(store, "list", "--max", "1") == [second]
    assert listed(store, "list", "--code", "undecodable") == [first]
    assert listed(store, "list", "--code", "too_old") == []


def letters_are_json_lines_without_their_payload(store: Store) -> None:
    store.feed(turn("json"), ("json", b"junk"))
    (record,) = store.run("dead-letters", "list", "--session", "json", "--json").records
    assert (record["type"], record["code"]) == ("dead_letter", "undecodable")
    assert "payload" not in record
    assert store.run("dead-letters", "list", "--session", "nobody", "--json").out == ""


def a_letter_is_shown_whole_with_what_to_do(store: Store) -> None:
    store.feed(turn("show"), delta("show", "t3", "t2", 4))
    ran = store.run("dead-letters", "show", position(store, "show"))
    assert (ran.code, ran.err) == (0, "")
    head, _, payload = ran.out.partition("\n\npayload\n")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in head.splitlines())
    assert (facts["code"], facts["session"], facts["turn"]) == ("unknown_base", "show", "t3")
    assert facts["to do"].startswith("Its base turn was not there yet: replay it")
    assert json.loads(payload)["base_turn_id"] == "t2"


def a_payload_that_cannot_be_read_is_shown_in_hex(store: Store) -> None:
    store.feed(turn("hex"), ("hex", b"junk"))
    place = position(store, "hex")
    assert store.run("dead-letters", "show", place).out.endswith("\npayload, in hex\n6a756e6b\n")
    alone = store.run("dead-letters", "show", place, "--payload")
    assert (alone.code, alone.out) == (1, "")
    assert "cannot be shown as JSON" in alone.err


def a_refused_event_can_be_corrected_and_published(store: Store) -> None:
    answer = {"role": "assistant", "content": "\u00e4\u009b"}
    bad = turn("mend", "t2", prompt_ids=[1, 7], response_message=answer)
    store.feed(turn("mend"), wire(bad, logprobs=b"\0\0\0\xbf"))
    ((place, code, *_),) = listed(store, "mend")
    assert code == "length_mismatch"
    line = store.run("dead-letters", "show", place, "--payload").out
    assert line.isascii()
    event = json.loads(line)
    assert (event["output_ids"], event["logprobs"]) == ([3, 4], [-0.5])
    assert event["response_message"] == answer
    store.feed(event | {"logprobs": [-0.5, -0.25]}, ended("mend"))
    assert "total  trained 4 of 4" in store.run("inspect", "mend").out


def a_turn_whose_base_came_later_goes_in_by_a_replay(store: Store) -> None:
    store.feed(turn("base"), delta("base", "t3", "t2", 7, 4), delta("base", "t2", "t1", 4))
    place = position(store, "base")
    tried = store.run("dead-letters", "replay", place, "--dry-run")
    assert tried.code == 0
    assert tried.out == (
        f"{place}  unknown_base  session base, turn t3: would be replayed: its session takes it\n"
        "dry run: replayed 1, left out 0, held back 0\n"
    )
    before = store.ends(store.settings.turns_topic)
    ran = store.run("dead-letters", "replay", place)
    assert ran.code == 0
    assert ran.out.endswith("replayed 1, left out 0, held back 0\n")
    assert store.ends(store.settings.turns_topic) == before + 1
    store.feed(ended("base"))
    assert "t3  extend  trained 2 of 2\n" in store.run("inspect", "base").out
    # Nothing is deleted.
    assert position(store, "base") == place


def a_dry_run_publishes_nothing(store: Store) -> None:
    store.feed(delta("dry", "t2", "t1", 4), turn("dry"))
    before = store.ends(store.settings.turns_topic)
    assert store.run("dead-letters", "replay", "--session", "dry", "--dry-run").code == 0
    assert store.ends(store.settings.turns_topic) == before


def a_second_replay_adds_nothing(store: Store) -> None:
    store.feed(turn("twice"), delta("twice", "t3", "t2", 7, 4), delta("twice", "t2", "t1", 4))
    assert store.run("dead-letters", "replay", "--session", "twice").code == 0
    store.feed()
    before = store.ends(store.settings.turns_topic)
    ran = store.run("dead-letters", "replay", "--session", "twice")
    assert ran.code == 0
    assert "turn t3: left out: the session has it already" in ran.out
    assert ran.out.endswith("replayed 0, left out 1, held back 0\n")
    assert store.ends(store.settings.turns_topic) == before


def the_same_turn_replayed_twice_at_once_counts_once(store: Store) -> None:
    # As by two operators: the second does not see what the first has just published.
    late = delta("two-operators", "t2", "t1", 4)
    store.feed(late, turn("two-operators"))
    store.feed(late, late, ended("two-operators"))
    drawn = store.run("inspect", "two-operators").out
    assert "total  trained 4 of 4" in drawn
    assert len(re.findall(r"^  t2  ", drawn, re.MULTILINE)) == 1


def letters_that_need_each_other_go_in_by_need(store: Store) -> None:
    chain = [
        delta("chain", f"t{n + 1}", f"t{n}", ids=1 + 3 * n, messages=2 * n) for n in range(1, 5)
    ]
    # Each before its base, and t1, which they all hang on, at last.
    store.feed(
        turn("chain", "other", prompt_messages=[{"role": "user", "content": "else"}]),
        *reversed(chain),
        turn("chain", "t1"),
    )
    assert [row[3] for row in listed(store, "chain")] == ["t5", "t4", "t3", "t2"]
    ran = store.run("dead-letters", "replay", "--session", "chain")
    assert ran.code == 0
    order = re.findall(r"turn (t\d): replayed to", ran.out)
    assert order == ["t2", "t3", "t4", "t5"]
    store.feed(ended("chain"))
    assert "t5  extend  trained 2 of 2\n" in store.run("inspect", "chain").out


def what_would_be_refused_again_is_held_back(store: Store) -> None:
    store.feed(turn("again"), ("again", b"junk"), delta("again", "t3", "t2", 7))
    before = store.ends(store.settings.turns_topic)
    ran = store.run("dead-letters", "replay", "--session", "again")
    assert ran.code == 1
    assert "session again: held back: still undecodable: not MessagePack" in ran.out
    assert "turn t3: held back: unknown_base: base turn t2 is not in the session" in ran.out
    assert ran.out.endswith("replayed 0, left out 0, held back 2\n")
    assert store.ends(store.settings.turns_topic) == before


def after_the_close_a_replay_is_late_and_has_to_be_asked_for(store: Store) -> None:
    store.feed(delta("late", "t2", "t1", 4), turn("late"), ended("late"))
    place = position(store, "late")
    ran = store.run("dead-letters", "replay", place)
    assert ran.code == 1
    assert "turn t2: held back: it is late: late_turn: the session is closed" in ran.out
    assert "; --late replays it all the same\n" in ran.out
    forced = store.run("dead-letters", "replay", place, "--late")
    assert forced.code == 0
    assert "late_turn: the session is closed; the turn cannot train" in forced.out
    store.feed()
    assert [row[1] for row in listed(store, "late")] == ["unknown_session", "late_turn"]


def what_came_back_late_does_not_go_in_again(store: Store) -> None:
    store.feed(turn("back"), ended("back"), turn("back", "t2"), turn("back", "t3"))
    again = ("dead-letters", "replay", "--session", "back", "--late")
    assert store.run(*again).out.endswith("replayed 2, left out 0, held back 0\n")
    store.feed()
    assert len(listed(store, "back")) == 4
    before = store.ends(store.settings.turns_topic)
    ran = store.run(*again)
    assert ran.code == 0
    assert ran.out.endswith("replayed 0, left out 4, held back 0\n")
    assert ran.out.count("turn t2: left out: it came back already: late_turn: ") == 1
    place, *_ = listed(store, "back")[0]
    assert store.run("dead-letters", "replay", place, "--late").out.endswith(
        "left out 1, held back 0\n"
    )
    assert store.ends(store.settings.turns_topic) == before


def a_turn_for_a_session_that_waits_for_its_reward_is_late_too(store: Store) -> None:
    store.feed(
        delta("sealed-late", "t2", "t1", 4),
        turn("sealed-late"),
        ended("sealed-late", reward=None, reward_pending=True),
    )
    ran = store.run("dead-letters", "replay", "--session", "sealed-late")
    assert ran.code == 1
    assert "held back: it is late: late_turn: the session has ended" in ran.out


def a_reward_that_came_before_its_session_revises_after_the_close(store: Store) -> None:
    reward = {"type": "reward", "session_id": "early", "reward_id": "r", "reward": 0.5}
    store.feed(reward, turn("early"), ended("early"))
    ran = store.run("dead-letters", "replay", "--session", "early")
    assert ran.code == 0
    assert ": after the close: revises 1 of its samples\n" in ran.out
    store.feed()
    assert "session 0.5\n    sample 1 of 1: reward 0.5" in store.run("inspect", "early").out


def a_reward_without_a_sample_to_change_is_late(store: Store) -> None:
    reward = {"type": "reward", "session_id": "no-sample", "reward_id": "r", "reward": 0.5}
    store.feed(turn("no-sample"), ended("no-sample", end_status="error"), reward)
    ran = store.run("dead-letters", "replay", "--code", "late_reward", "--dry-run")
    assert ran.code == 1
    assert "session no-sample: held back: it is late: late_reward: " in ran.out


def a_position_without_a_letter_is_named(store: Store) -> None:
    place = f"{store.settings.turns_topic}/0/123456789"
    for command in (["show", place], ["replay", place]):
        ran = store.run("dead-letters", *command)
        assert (ran.code, ran.out) == (1, "")
        (line,) = ran.err.splitlines()
        assert line.startswith("turnstream: no dead letter on ")
        assert line.endswith(f" at {place}")
    nobody = store.run("dead-letters", "replay", "--session", "nobody")
    assert (nobody.code, nobody.out) == (1, "")
    assert nobody.err.endswith(" of session nobody\n")


CLAIMS: list[Claim] = [
    letters_are_listed_newest_last_with_what_was_wrong,
    letters_are_json_lines_without_their_payload,
    a_letter_is_shown_whole_with_what_to_do,
    a_payload_that_cannot_be_read_is_shown_in_hex,
    a_refused_event_can_be_corrected_and_published,
    a_turn_whose_base_came_later_goes_in_by_a_replay,
    a_dry_run_publishes_nothing,
    a_second_replay_adds_nothing,
    the_same_turn_replayed_twice_at_once_counts_once,
    letters_that_need_each_other_go_in_by_need,
    what_would_be_refused_again_is_held_back,
    after_the_close_a_replay_is_late_and_has_to_be_asked_for,
    what_came_back_late_does_not_go_in_again,
    a_turn_for_a_session_that_waits_for_its_reward_is_late_too,
    a_reward_that_came_before_its_session_revises_after_the_close,
    a_reward_without_a_sample_to_change_is_late,
    a_position_without_a_letter_is_named,
]
