"""What `turnstream inspect SESSION` shows, on every log alike. Each claim has its own session."""

import re
from collections.abc import Callable

from tests.cli.command import ended, turn
from tests.cli.stores import Json, Store, example

Claim = Callable[[Store], None]
NAMED = {"role": "us\x1b[1mer", "content": "u"}


def forked(session_id: str) -> list[Json]:
    """One turn that two others continue differently: two samples."""
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "ok"}
    branches = [
        turn(
            session_id,
            name,
            prompt_messages=[user, answer, {"role": "tool", "content": name}],
            prompt_ids=[1, 2, 3, 4, token],
        )
        for name, token in (("x", 5), ("y", 6))
    ]
    return [turn(session_id), *branches]


def a_closed_session_is_drawn_as_its_file_is(store: Store) -> None:
    store.feed(*example("like-a-file"))
    ran = store.run("inspect", "like-a-file")
    assert (ran.code, ran.err) == (0, "")
    title, closed, place, *_ = ran.out.splitlines()
    assert title == "session like-a-file  completed  policy seed"
    assert re.fullmatch(r"closed \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ s ago", closed)
    topic = store.settings.turns_topic
    assert re.search(rf": {re.escape(topic)}/\d+, events \d+ to \d+$", place)
    assert ran.out.rstrip().endswith(store.drawn_from_file(*example("like-a-file")))


def nothing_a_producer_wrote_steers_the_terminal(store: Store) -> None:
    evil = "t\x1b[2J\u202e\n  total  trained 1"
    first = turn("steering", evil, finish_reason="\x1b]0;owned\x07", prompt_messages=[NAMED])
    second = turn(
        "steering",
        "t2",
        base_turn_id=evil,
        kept_messages=2,
        kept_ids=4,
        prompt_messages=[],
        prompt_ids=[5],
    )
    store.feed(first, second, ended("steering"))
    for options in ((), ("--token", "2")):
        ran = store.run("inspect", "steering", *options)
        assert ran.code == 0, ran.err
        assert all(line.isprintable() for line in ran.out.splitlines())
        assert r"t\u{1b}[2J\u{202e}\u{a}  total  trained 1" in ran.out
        assert "\n  total  trained 1\n" not in ran.out


def an_open_session_is_drawn_from_the_table_and_says_so(store: Store) -> None:
    *turns, _ = example("still-open")
    store.feed(*turns)
    ran = store.run("inspect", "still-open")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("session still-open  open  policy seed\nbegan ")
    assert "it has not ended" in ran.out
    assert "\nturns so far\n  t1: 2 messages, 24 prompt + 22 sampled tokens stop\n" in ran.out
    assert "<- t4 realign 6/6\n" in ran.out
    guess = "if it ended now as completed, its reward still to come"
    assert f"\nsamples, {guess}\n  sample 1 of 1  " in ran.out
    assert f"\nledger, {guess}\n" in ran.out
    assert "total  trained 33 of 54  reward none" in ran.out


def an_open_session_gives_the_sample_ids_it_will_have(store: Store) -> None:
    *turns, end = example("same-ids")
    store.feed(*turns)
    before = re.findall(r"sample 1 of 1  (\w+)", store.run("inspect", "same-ids").out)
    store.feed(end)
    after = re.findall(r"sample 1 of 1  (\w+)", store.run("inspect", "same-ids").out)
    assert before == after != []


def a_session_that_waits_for_its_reward_says_so(store: Store) -> None:
    store.feed(turn("sealed"), ended("sealed", reward=None, reward_pending=True))
    ran = store.run("inspect", "sealed")
    assert ran.out.startswith("session sealed  open, waits for its reward  policy seed\n")
    assert "it ended as completed and waits for its reward, 60 min at most" in ran.out


def a_reward_so_far_counts_in_an_open_session(store: Store) -> None:
    store.feed(
        turn("so-far"),
        {"type": "reward", "session_id": "so-far", "reward_id": "r", "reward": 0.5},
    )
    drawn = store.run("inspect", "so-far").out
    assert "samples, if it ended now as completed\n" in drawn
    assert "total  trained 2 of 2  reward 0.5" in drawn


def late_rewards_are_told_after_the_close(store: Store) -> None:
    first, second = (
        {"type": "reward", "session_id": "rewarded", "reward_id": f"r{n}", "reward": reward}
        for n, reward in enumerate((0.5, 0.25))
    )
    store.feed(*forked("rewarded"), ended("rewarded"), first, second)
    drawn = store.run("inspect", "rewarded").out
    assert "sample 1 of 2  " in drawn
    late = drawn.partition("\nlate rewards\n")[2]
    assert re.sub(r"at \d+", "at N", late).rstrip() == (
        "  at N  session 0.5\n"
        "    sample 1 of 2: reward 0.25\n"
        "    sample 2 of 2: reward 0.25\n"
        "  at N  session 0.25\n"
        "    sample 1 of 2: reward 0.125\n"
        "    sample 2 of 2: reward 0.125"
    )


def sessions_of_a_log_do_not_mix(store: Store) -> None:
    pairs = zip(example("mixed-a"), example("mixed-b"), strict=True)
    store.feed(*(event for pair in pairs for event in pair))
    for name in ("mixed-a", "mixed-b"):
        ran = store.run("inspect", name)
        assert ran.out.rstrip().endswith(store.drawn_from_file(*example(name)))


def under_other_rules_the_difference_to_what_was_sent_is_named(store: Store) -> None:
    store.feed(*example("other-rules"))
    (sent,) = re.findall(r"sample 1 of 1  (\w+)", store.run("inspect", "other-rules").out)
    ran = store.run("inspect", "other-rules", "--profile", "lossless")
    assert ran.code == 0
    assert ran.out.startswith("session other-rules  completed  policy lossless\n")
    told = f"samples under the rules chosen here; 1 sent to the trainer: {sent}\n"
    assert told in ran.out
    assert "sample 2 of 2  " in ran.out


def an_open_session_can_be_seen_under_other_rules(store: Store) -> None:
    store.feed(*example("open-rules")[:-1])
    drawn = store.run("inspect", "open-rules", "--profile", "lossless").out
    assert drawn.startswith("session open-rules  open  policy lossless\n")
    assert "sample 2 of 2  " in drawn


def a_token_of_a_closed_session_tells_its_story(store: Store) -> None:
    store.feed(*example("story"))
    ran = store.run("inspect", "story", "--token", "81")
    assert ran.code == 0
    assert ran.out.endswith(
        "session story, sample 1 of 1, policy seed\n"
        "sampled by turn t3 (extend), token 1\n"
        "weight version 7\n"
        "does not train: realigned\n"
    )
    beyond = store.run("inspect", "story", "--token", "999")
    assert (beyond.code, beyond.out) == (1, "")
    assert beyond.err == "turnstream: session story: sample 1 has 124 tokens, from 0\n"


def a_token_of_an_open_session_is_told_as_if_it_ended(store: Store) -> None:
    store.feed(*example("open-story")[:-1])
    ran = store.run("inspect", "open-story", "--token", "24")
    assert ran.code == 0
    assert ran.out.startswith(
        "session open-story is open; if it ended now as completed, its reward still to come:\n"
    )
    assert (
        "sampled by turn t1 (root), token 0\nweight version 7\ntrains, logprob -0.13\n" in ran.out
    )


def refused_events_point_to_the_dead_letters(store: Store) -> None:
    store.feed(turn("with-junk"), ("with-junk", b"junk"))
    told = "refused 1: see `turnstream dead-letters list --session with-junk`\n"
    assert told in store.run("inspect", "with-junk").out
    store.feed(ended("with-junk"))
    assert told in store.run("inspect", "with-junk").out


def a_session_closed_by_its_first_event_is_drawn(store: Store) -> None:
    store.feed(ended("at-once", end_status="error", reward=None))
    drawn = store.run("inspect", "at-once").out
    assert drawn.startswith("session at-once  error  policy seed\n")
    assert "turns\n  none" in drawn


def an_unknown_session_says_where_was_looked(store: Store) -> None:
    store.feed(turn("somebody"))
    ran = store.run("inspect", "nobody")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("turnstream: session nobody is not known: looked in the processor's ")
    assert line.endswith(
        "a session that closed more than 2 days ago is forgotten there: try --search"
    )
    searched = store.run("inspect", "nobody", "--search")
    assert (searched.code, searched.out) == (1, "")
    topics = f"{store.settings.turns_topic} and {store.settings.samples_topic}"
    assert topics in searched.err


CLAIMS: list[Claim] = [
    a_closed_session_is_drawn_as_its_file_is,
    nothing_a_producer_wrote_steers_the_terminal,
    an_open_session_is_drawn_from_the_table_and_says_so,
    an_open_session_gives_the_sample_ids_it_will_have,
    a_session_that_waits_for_its_reward_says_so,
    a_reward_so_far_counts_in_an_open_session,
    late_rewards_are_told_after_the_close,
    sessions_of_a_log_do_not_mix,
    under_other_rules_the_difference_to_what_was_sent_is_named,
    an_open_session_can_be_seen_under_other_rules,
    a_token_of_a_closed_session_tells_its_story,
    a_token_of_an_open_session_is_told_as_if_it_ended,
    refused_events_point_to_the_dead_letters,
    a_session_closed_by_its_first_event_is_drawn,
    an_unknown_session_says_where_was_looked,
]
