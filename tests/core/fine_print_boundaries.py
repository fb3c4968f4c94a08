"""The fine print, points 8 to 12: boundaries, emptiness, duplicates and aborts, as drawings.

Golden by hand. In the numbered cases t1 is [1, 2] -> [3, 4], so H is 1 2 3 4 and the last
response starts at 2.
"""

from tests.core.golden import ByProfile, Case
from tests.core.notation import drawn_numbers, insert, numbered, session, turn

T1 = numbered("<u>", "a", [1, 2], [3, 4])


def then(
    prompt_ids: list[int], *, samples: str, ledger: str | None = None, threshold: int | None = None
) -> Case:
    """The case of t1 followed by a turn with this prompt and the output [6]."""
    return Case(
        draw=drawn_numbers,
        events=session(T1, numbered("<u>{a}(x)", "b", prompt_ids, [6])),
        samples=samples,
        ledger=ledger,
        threshold=threshold,
    )


BOUNDARIES = {
    "point_08_a_divergence_where_the_response_starts_lies_inside_it": then(
        [1, 2, 9, 9, 5],
        samples="1 2 9 9 5 [6]  reward 1",
        ledger="""
            t1 root 0/2 realigned 2
            t2 realign 1/1
            """,
    ),
    "point_08_a_divergence_one_token_earlier_forks": then(
        [1, 9, 3, 4, 5],
        samples="""
            1 2 [3 4]  reward 1/2 | 1
            1 9 3 4 5 [6]  reward 1/2 | 1
            """,
    ),
    "point_08_a_prompt_cut_where_the_response_starts_realigns": then(
        [1, 2],
        samples="1 2 [6]  reward 1",
        ledger="""
            t1 root 0/2 realigned 2
            t2 realign 1/1
            """,
    ),
    "point_08_a_prompt_cut_one_token_earlier_forks": then(
        [1],
        samples="""
            1 2 [3 4]  reward 1/2 | 1
            1 [6]  reward 1/2 | 1
            """,
    ),
    "point_08_a_prompt_equal_to_the_held_tokens_extends": then(
        [1, 2, 3, 4],
        samples="1 2 [3 4 6]  reward 1",
        ledger="""
            t1 root 2/2
            t2 extend 1/1
            """,
    ),
    # The missing tail is 1 token and the new output is 1 token: both gates are exclusive.
    "point_08_a_shorter_prompt_still_needs_the_gate": then(
        [1, 2, 3],
        threshold=1,
        samples="""
            1 2 [3 4]  reward 1/2 | 1
            1 2 3 [6]  reward 1/2 | 1
            """,
    ),
    "point_08_a_shorter_prompt_that_passes_the_gate_realigns": then(
        [1, 2, 3],
        threshold=2,
        samples="1 2 3 [6]  reward 1",
    ),
    # slime: 0 < 1 lets the empty output realign over [6]. seed: a tail of 1 is not < 1, so t3
    # is a segment of its own, and an empty one.
    "point_08_slime_at_threshold_1_realigns_only_for_an_empty_output": Case(
        draw=drawn_numbers,
        threshold=1,
        events=session(
            T1,
            numbered("<u>{a}(x)", "b", [1, 2, 3, 4, 5], [6]),
            numbered("<u>{a}(x){b}(y)", None, [1, 2, 3, 4, 5, 9, 7], []),
        ),
        samples=ByProfile(
            seed="1 2 [3 4] 5 [6]  reward 1",
            slime="1 2 [3 4] 5 9 7  reward 1",
        ),
        ledger=ByProfile(
            seed="""
                t1 root 2/2
                t2 extend 1/1
                t3 fork 0/0
                """,
            slime="""
                t1 root 2/2
                t2 extend 0/1 realigned 1
                t3 realign 0/0
                """,
        ),
    ),
}

EMPTINESS_AND_DUPLICATES = {
    "point_09_a_later_leaf_keeps_the_segment_of_its_own_last_turn": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "ax"),
            turn("«S»<u>{ok}(y)", "ay", drift=insert(1)),
        ),
        samples="""
            «S»<u>{[ok}](x){[ax}]  reward 1/2 | 1
            «!S»<u>{ok}(y){[ay}]  reward 1/2 | 1
            """,
    ),
    "point_09_but_not_if_that_output_is_empty": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "ax"),
            turn("«S»<u>{ok}(y)", None, drift=insert(1)),
            turn("«S»<u>{ok}(z)", None),
        ),
        samples="«S»<u>{[ok}](x){[ax}]  reward 1",
    ),
    "point_10_an_empty_list_of_logprobs_means_none_given": Case(
        events=session(turn("«S»<u>", "ok") | {"logprobs": []}),
        samples="«S»<u>{[ok}]  reward 1",
        logprobs="..........",
    ),
    "point_10_one_logprob_without_output_is_an_error": Case(
        events=session(turn("«S»<u>", None, logprobs="1"), turn("«S»<u>", "ok")),
        samples="«S»<u>{[ok}]  reward 1",
        ledger="t2 root 3/3",
        dead_letters="t1 length_mismatch",
    ),
    "point_10_empty_prompt_messages_win_over_a_length_mismatch": Case(
        events=session(turn("", "ok", logprobs="1"), turn("«S»<u>", "ok")),
        samples="«S»<u>{[ok}]  reward 1",
        ledger="t2 root 3/3",
        dead_letters="t1 invalid_field",
    ),
    "point_11_the_same_turn_id_again_changes_nothing": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>", "ok", turn_id="t1"),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="«S»<u>{[ok}](x){[done}]  reward 1",
        ledger="""
            t1 root 3/3
            t3 extend 5/5
            """,
    ),
    "point_11_equal_content_under_a_new_id_is_a_sibling_and_the_first_is_extended": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done")),
        samples="""
            «S»<u>{[ok}](x){[done}]  reward 1/2 | 1
            «S»<u>{[ok}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant ok  <- t1 root 3/3
            │  tool x
            │  assistant done  <- t3 extend 5/5
            └─ assistant ok  <- t2 root 3/3
            """,
    ),
    "point_11_one_turn_id_with_two_contents_is_refused": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>", "hm", turn_id="t1")),
        samples="«S»<u>{[ok}]  reward 1",
        dead_letters="t1 forked_turn_id",
    ),
    "point_12_an_aborted_turn_trains": Case(
        events=session(turn("«S»<u>", "ok", finish_reason="abort"), turn("«S»<u>{ok}(x)", "done")),
        samples="«S»<u>{[ok}](x){[done}]  reward 1",
    ),
    "point_12_unless_whoever_recorded_it_says_it_is_not_trainable": Case(
        events=session(
            turn("«S»<u>", "ok", finish_reason="abort", trainable=False),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="«S»<u>{ok}(x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant ok  <- t1 root 0/3
            tool x
            assistant done  <- t2 extend 5/5
            """,
        ledger="""
            t1 root 0/3 not_trainable 3
            t2 extend 5/5
            """,
    ),
}
