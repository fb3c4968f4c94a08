"""Small direct tests of what the worked cases do not reach: wide nodes, joins, ownership.

Each answers an error planted by `make mutants`; the life of a session has its own file beside
this one.
"""

import json
from itertools import product

import pytest

from schemas import codec
from tests.core.notation import Json, drawn_ledger, drawn_samples, ended, insert, session, turn
from tests.harness import linearized
from tests.oracle.deltas import as_delta, digest, kept_lengths


def paths(samples: list[Json]) -> list[list[str]]:
    """The turns in each sample."""
    return [[span["turn_id"] for span in sample["turns"]] for sample in samples]


def opened(**fields: object) -> Json:
    return {"type": "session_opened", "session_id": "s"} | fields


def codes(dead_letters: list[Json]) -> list[tuple[str | None, str]]:
    return [(letter["turn_id"], letter["code"]) for letter in dead_letters]


# --- a node with many children -------------------------------------------------------------------

MANY = [turn("<u>", f"answer {number}") for number in range(10)]


def test_among_many_children_the_first_match_is_taken() -> None:
    twin = turn("<u>", "answer 0")
    run = linearized(session(*MANY, twin, turn("<u>{answer 0}(x)", "done")), fork_threshold=0)
    assert paths(run.samples)[0] == ["t1", "t12"]
    assert paths(run.samples)[-1] == ["t11"]


def test_a_twin_that_comes_after_many_children_were_searched_is_not_the_first_match() -> None:
    searched = turn("<u>{answer 0}(x)", "one")
    twin = turn("<u>", "answer 0")
    run = linearized(
        session(*MANY, searched, twin, turn("<u>{answer 0}(y)", "two")), fork_threshold=0
    )
    assert paths(run.samples)[:2] == [["t1", "t11"], ["t1", "t13"]]
    assert paths(run.samples)[-1] == ["t12"]


def test_among_many_children_a_rewritten_leaf_is_found_by_its_new_text() -> None:
    run = linearized(
        session(
            *MANY,
            turn("<u>", "k"),
            turn("<u>{k }(x)", "mid"),
            turn("<u>{k }(x){mid}(y)", "done"),
        ),
        fork_threshold=3,
    )
    assert drawn_ledger(run.closed[0]).splitlines()[-3:] == [
        "t11 root 0/2 merged 2",
        "t12 root 4/4",
        "t13 extend 5/5",
    ]


def test_a_leaf_without_response_that_was_merged_is_found_by_its_text() -> None:
    run = linearized(
        session(
            turn("<u>", None, output_ids=[1]),
            turn("<u>{ok}(x)", "mid"),
            turn("<u>{ok}(x){mid}(y)", "done"),
        )
    )
    assert drawn_ledger(run.closed[0]) == "t1 root 0/1 merged 1\nt2 root 4/4\nt3 extend 5/5"


@pytest.mark.parametrize(("continued", "rewritten"), [("ok", "hm"), ("hm", "ok")])
def test_a_continued_answer_does_not_stand_in_the_way_of_merging_the_other(
    continued: str, rewritten: str
) -> None:
    run = linearized(
        session(
            turn("<u>", "ok"),
            turn("<u>", "hm"),
            turn(f"<u>{{{continued}}}(x)", "one"),
            turn(f"<u>{{{rewritten} }}(y)", "two"),
        )
    )
    merged = {row["turn_id"] for row in run.ledger if "merged" in row.get("untrained", {})}
    assert merged == {"t1" if rewritten == "ok" else "t2"}


# --- budgets -------------------------------------------------------------------------------------


def test_a_turn_over_a_budget_leaves_the_tree_as_it_was() -> None:
    turns = session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "mid"))
    run = linearized([opened(budgets={"turns": 1}), *turns])
    assert codes(run.dead_letters) == [("t2", "oversize")]
    assert run.trees["s"].splitlines() == ["system S", "user u", "assistant ok  <- t1 root 3/3"]


def test_tokens_that_turns_share_count_once_against_the_budget() -> None:
    turns = session(
        turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "mid"), turn("«S»<u>{ok}(x){mid}(y)", "done")
    )
    stored = len("«S»<u>{ok}(x){mid}(y){done}")
    enough = linearized([opened(budgets={"tokens": stored}), *turns])
    assert codes(enough.dead_letters) == []
    short = linearized([opened(budgets={"tokens": stored - 1}), *turns])
    assert codes(short.dead_letters) == [("t3", "oversize")]


# --- joining a delta -----------------------------------------------------------------------------

BASE, NEXT, END = session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done"))
MESSAGES_MOST, IDS_MOST = 3, len("«S»<u>{ok}")


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
def test_however_much_a_delta_keeps_it_is_the_same_turn(profile: str) -> None:
    full = linearized([BASE, NEXT, END], profile=profile)
    assert kept_lengths(BASE, NEXT) == (MESSAGES_MOST, IDS_MOST)
    for messages, ids in product(range(MESSAGES_MOST + 1), range(IDS_MOST + 1)):
        short = linearized([BASE, as_delta(NEXT, BASE, messages, ids), END], profile=profile)
        assert short.dead_letters == []
        assert short.samples == full.samples
        assert short.trees == full.trees


FIRST, SECOND, AFTER = (
    turn("<u>", "ok", turn_id="first"),
    turn("<u>", "ok", turn_id="second"),
    turn("<u>{ok}(x)", "done", turn_id="after"),
)
IN_A_PROMPT = turn("<u>{ok}(y)", "hm", turn_id="first")
"""The same answer as context, before any turn gave it."""


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
@pytest.mark.parametrize("before", [FIRST, IN_A_PROMPT], ids=["a turn", "context"])
@pytest.mark.parametrize("others", [0, 10])
def test_a_delta_that_keeps_an_answer_goes_on_from_the_turn_it_names(
    profile: str, before: Json, others: int
) -> None:
    said = [turn("<u>", f"answer {n}", turn_id=f"other {n}") for n in range(others)]
    delta = as_delta(AFTER, SECOND, *kept_lengths(SECOND, AFTER))
    later = turn("<u>{ok}(x){done}(z)", "bye", turn_id="later")
    on_it = as_delta(later, AFTER, *kept_lengths(AFTER, later))
    run = linearized(session(before, *said, SECOND, delta, on_it), profile=profile)
    assert run.dead_letters == []
    assert ["second", "after", "later"] in paths(run.samples)
    assert ["first"] in paths(run.samples)


@pytest.mark.parametrize("profile", ["seed", "slime", "lossless"])
def test_the_copy_that_nobody_got_does_not_train(profile: str) -> None:
    delta = as_delta(AFTER, SECOND, *kept_lengths(SECOND, AFTER))
    lost = {"type": "turn_undelivered", "session_id": "s", "turn_id": "first"}
    *turns, end = session(FIRST, SECOND, delta)
    run = linearized([*turns, lost, end], profile=profile)
    assert paths(run.samples) == [["second", "after"]]
    assert drawn_ledger(run.closed[0]).splitlines() == [
        "first root 0/3 undelivered 3",
        "second root 3/3",
        "after extend 5/5",
    ]


def test_a_delta_on_a_rewritten_answer_finds_its_message_like_any_prompt() -> None:
    """Its place holds the rewritten message; what it said goes on below a node of its own."""
    short, rewrite = turn("<u>", "k", turn_id="short"), turn("<u>{k }(y)", "mid", turn_id="rewrite")
    again = turn("<u>{k}(x)", "done", turn_id="again")
    delta = as_delta(again, short, *kept_lengths(short, again))
    whole = linearized(session(short, rewrite, again), profile="seed")
    run = linearized(session(short, rewrite, delta), profile="seed")
    assert (run.samples, run.trees) == (whole.samples, whole.trees)
    assert "short root 0/2 merged 2" in drawn_ledger(run.closed[0])


@pytest.mark.parametrize("field", ["kept_messages", "kept_ids"])
def test_a_delta_that_keeps_more_than_its_base_has_is_refused(field: str) -> None:
    delta = as_delta(NEXT, BASE, MESSAGES_MOST, IDS_MOST)
    too_much = delta | {field: delta[field] + 1}
    del too_much["prompt_digest"]
    run = linearized([BASE, too_much, END])
    assert codes(run.dead_letters) == [("t2", "invalid_field")]


def test_a_delta_whose_digest_is_another_prompts_is_refused() -> None:
    delta = as_delta(NEXT, BASE, MESSAGES_MOST, IDS_MOST)
    run = linearized([BASE, delta | {"prompt_digest": digest([1, 2, 3])}, END])
    assert codes(run.dead_letters) == [("t2", "digest_mismatch")]


def test_a_delta_is_joined_to_its_base_and_compared_with_the_turn_above() -> None:
    # By its messages t3 goes on from `ok`, by its ids from `hm`, which is as long.
    first = turn("«S»<u>", "ok", prompt_digest=digest([ord(t) for t in "«S»<u>{"]))
    other = turn("«S»<u>", "hm", prompt_digest=first["prompt_digest"])
    mixed = turn("«S»<u>{ok}(x)", "done", prompt_ids=[ord(t) for t in "«S»<u>{hm}(x){"])
    t1, t2, t3, end = session(first, other, mixed)
    full = linearized([t1, t2, t3, end])
    short = linearized([t1, t2, as_delta(t3, t2, 2, len("«S»<u>{hm}")), end])
    assert short.dead_letters == []
    assert short.samples == full.samples
    assert drawn_ledger(short.closed[0]) == ("t1 root 0/3 realigned 3\nt2 root 3/3\nt3 realign 5/5")


def test_a_digest_is_checked_over_the_ids_as_they_are_behind_a_divergence() -> None:
    # `ok}` of t1 drifts in t2, which asks for no check; t3 repeats t2.
    t1, t2, t3, end = session(
        turn("<u>", "ok"),
        turn("<u>{ok}(x)", "mid", drift=insert(5)),
        turn("<u>{ok}(x){mid}(y)", "done", drift=insert(5)),
    )
    checked = [event | {"prompt_digest": digest(event["prompt_ids"])} for event in (t1, t3)]
    run = linearized([checked[0], t2, checked[1], end])
    assert codes(run.dead_letters) == []
    assert [row["attach"] for row in run.ledger] == ["root", "realign", "extend"]


def test_a_long_path_is_read_back_whole_though_it_came_in_many_pieces() -> None:
    prompts = ["<u>"]
    for number in range(50):
        prompts.append(f"{prompts[-1]}{{a{number}}}(x)")
    run = linearized(session(*(turn(prompt, f"a{n}") for n, prompt in enumerate(prompts))))
    assert ["".join(map(chr, sample["tokens"])) for sample in run.samples] == [
        f"{prompts[-1]}{{a50}}"
    ]


# --- who owns, what trains -----------------------------------------------------------------------


def test_the_first_leaf_depth_first_owns_a_turn_even_if_it_came_last() -> None:
    # t4 rewrites t2 and so takes its place in the tree, left of t3.
    run = linearized(
        session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ok"),
            turn("«S»<u>{call}(y)", "ay"),
            turn("«S»<u>{call}(x){ok }(z)", "az"),
        )
    )
    assert drawn_samples(run.samples) == (
        "«S»<u>{[call}](x){ok·}(z){[az}]  reward 1/2\n«S»<u>{call}(y){[ay}]  reward 1/2"
    )


def test_an_undelivered_leaf_does_not_own_what_it_hangs_from() -> None:
    run = linearized(
        session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "ax", delivered=False),
            turn("«S»<u>{ok}(y)", "ay"),
        )
    )
    assert drawn_samples(run.samples) == "«S»<u>{[ok}](y){[ay}]  reward 1"
    assert drawn_ledger(run.closed[0]) == (
        "t1 root 3/3\nt2 extend 0/3 undelivered 3\nt3 extend 3/3"
    )


def test_an_undelivered_turn_that_was_extended_counts_as_delivered() -> None:
    run = linearized(session(turn("«S»<u>", "ok", delivered=False), turn("«S»<u>{ok}(x)", "done")))
    assert drawn_samples(run.samples) == "«S»<u>{[ok}](x){[done}]  reward 1"


def test_a_turn_reported_undelivered_before_it_arrives_is_undelivered() -> None:
    report = {"type": "turn_undelivered", "session_id": "s", "turn_id": "t2"}
    t1, t2, end = session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done"))
    run = linearized([t1, report, t2, end])
    assert drawn_ledger(run.closed[0]) == "t1 root 3/3\nt2 extend 0/5 undelivered 5"


EVERY_REASON_OF_A_TURN: Json = {
    "delivered": False,
    "trainable": False,
    "sampling": {"constraint": "json"},
    "request_class": "auxiliary",
    "ill_formed": True,
    "untrained_runs": [[0, 3, "forced"]],
}
IN_ORDER = {
    "undelivered": "delivered",
    "not_trainable": "trainable",
    "constrained": "sampling",
    "auxiliary": "request_class",
    "ill_formed": "ill_formed",
    "forced": "untrained_runs",
}


@pytest.mark.parametrize("reason", IN_ORDER)
def test_a_turn_is_counted_under_the_first_reason_that_holds(reason: str) -> None:
    names = list(IN_ORDER.values())
    fields = {name: EVERY_REASON_OF_A_TURN[name] for name in names[names.index(IN_ORDER[reason]) :]}
    run = linearized(session(turn("«S»<u>", "ok", **fields)), train_ill_formed=False)
    assert drawn_ledger(run.closed[0]) == f"t1 root 0/3 {reason} 3"


def test_a_reason_of_the_whole_session_comes_before_one_of_the_turn() -> None:
    run = linearized(session(turn("«S»<u>", "ok", **EVERY_REASON_OF_A_TURN), reward=None))
    assert drawn_ledger(run.closed[0]) == "t1 root 0/3 no_reward 3"


def test_forced_tokens_do_not_train() -> None:
    run = linearized(session(turn("«S»<u>", "okay", untrained_runs=[[1, 3, "repaired"]])))
    assert drawn_samples(run.samples) == "«S»<u>{[o]ka[y}]  reward 1"
    assert drawn_ledger(run.closed[0]) == "t1 root 3/5 forced 2"


def test_forced_tokens_of_a_merged_turn_stay_forced() -> None:
    run = linearized(
        session(
            turn("«S»<u>", "okay", untrained_runs=[[1, 3, "repaired"]]),
            turn("«S»<u>{okay }(x)", "done"),
        )
    )
    assert drawn_ledger(run.closed[0]) == "t1 root 0/5 forced 2 merged 3\nt2 root 5/5"


def test_realign_may_mask_from_the_divergence_on() -> None:
    # `okay}` is [7, 12); the echo leaves it at 9.
    t1, t2, end = session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=insert(9)))
    run = linearized([t1, t2, end], realign_masks="from_divergence")
    assert drawn_samples(run.samples) == "«S»<u>{[ok]!ay}(x){[done}]  reward 1"
    assert drawn_ledger(run.closed[0]) == "t1 root 2/5 realigned 3\nt2 realign 5/5"
    assert [(span["start"], span["end"]) for span in run.samples[0]["turns"]] == [(7, 9), (17, 22)]


def test_of_retries_that_nobody_continued_the_newest_stays() -> None:
    run = linearized(
        session(turn("«S»<u>", "one"), turn("«S»<u>", "two"), turn("«S»<u>", "six")),
        drop_retry_orphans=True,
    )
    assert drawn_samples(run.samples) == "«S»<u>{[six}]  reward 1"
    assert [row["untrained"] for row in run.ledger[:2]] == [{"retry_orphan": 4}] * 2


# --- what a sample says --------------------------------------------------------------------------

TWO_SEGMENTS = session(
    turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "a longer answer", drift=insert(1))
)


def test_an_oversize_sample_is_left_out_before_the_reward_is_split() -> None:
    first = linearized(TWO_SEGMENTS).samples[0]
    exact = len(codec.to_msgpack(codec.from_json(json.dumps(first).encode())))
    run = linearized([opened(budgets={"sample_bytes": exact}), *TWO_SEGMENTS])
    assert drawn_samples(run.samples) == "«S»<u>{[ok}]  reward 1"
    assert [(sample["index"], sample["count"]) for sample in run.samples] == [(0, 1)]
    assert drawn_ledger(run.closed[0]) == "t1 root 3/3\nt2 fork 0/16 oversize 16"
    assert codes(run.dead_letters) == [("t2", "oversize")]
    assert run.closed[0]["trained"] == 3


def test_the_reward_is_split_over_samples_and_not_over_branches() -> None:
    run = linearized(TWO_SEGMENTS)
    assert [sample["reward"] for sample in run.samples] == [0.5, 0.5]


def test_samples_of_one_branch_have_different_ids_and_changed_rules_give_others() -> None:
    run = linearized(TWO_SEGMENTS, drop_retry_orphans=True)
    plain = linearized(TWO_SEGMENTS)
    names = {sample["sample_id"] for sample in run.samples + plain.samples}
    assert len(names) == 4


def test_the_samples_of_two_branches_from_one_turn_have_different_ids() -> None:
    run = linearized(
        session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "ax"), turn("«S»<u>{ok}(y)", "ay"))
    )
    assert paths(run.samples) == [["t1", "t2"], ["t1", "t3"]]
    assert len({sample["sample_id"] for sample in run.samples}) == 2


def test_a_branch_counts_the_tool_calls_of_its_own_turns_only() -> None:
    call = {"role": "assistant", "content": "ok", "tool_calls": [{"function": {"name": "f"}}]}
    start = turn("«S»<u>", "ok", response_message=call)
    below = [*start["prompt_messages"], call]
    run = linearized(
        session(
            start,
            turn(
                "«S»<u>{ok}(x)",
                "ax",
                prompt_messages=[*below, {"role": "tool", "content": "x"}],
            ),
            turn(
                "«S»<u>{ok}(y)",
                "ay",
                prompt_messages=[*below, {"role": "tool", "content": "y"}],
            ),
        )
    )
    assert [sample.get("tool_turns", 0) for sample in run.samples] == [1, 0]
    assert [sample["use_tool"] for sample in run.samples] == [True, True]


def test_weight_versions_stand_over_trained_tokens_only() -> None:
    run = linearized(
        session(
            turn(
                "«S»<u>",
                "okay",
                weight_versions=[[7, 2], [8, 3]],
                untrained_runs=[[0, 1, "forced"], [4, 5, "forced"]],
            )
        )
    )
    assert run.samples[0]["weight_versions"] == [[7, 8, 9], [8, 9, 11]]


def test_a_turn_without_versions_is_unknown_beside_one_that_has_them() -> None:
    without = turn("«S»<u>", "okay")
    known = turn("«S»<u>{okay}(x)", "yes", weight_versions=[[4, 4]])
    (sample,) = linearized(session(without, known)).samples
    runs = [(version, end - start) for version, start, end in sample["weight_versions"]]
    assert runs == [(-1, 5), (4, 4)]
    (sample,) = linearized(session(without)).samples
    assert "weight_versions" not in sample


@pytest.mark.parametrize("end_status", ["completed", "error"])
def test_an_end_alone_is_a_session(end_status: str) -> None:
    run = linearized([ended() | {"end_status": end_status}])
    assert [closed["end_status"] for closed in run.closed] == [end_status]
    assert run.samples == []
