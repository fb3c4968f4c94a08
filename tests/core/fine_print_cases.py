"""The fine print that decides cases, points 1 to 6: drain, merge and message identity by role.

Golden by hand. Where a point is stated in numbers the case has exactly those numbers
(`numbered` turns, drawn as `1 2 [3 4]`).
"""

from tests.core.golden import ByProfile, Case
from tests.core.notation import drawn_numbers, insert, numbered, replace, session, turn

T1_REALIGNED = (
    numbered("<u>", "a", [1, 2], [3, 4]),
    numbered("<u>{a}(x)", "b", [1, 2, 3, 9, 5], [6]),
)

DRAIN_AND_MERGE = {
    "point_01_a_realigned_turn_is_context_while_its_follower_stands": Case(
        draw=drawn_numbers,
        events=session(*T1_REALIGNED),
        samples="1 2 3 9 5 [6]  reward 1",
        ledger="""
            t1 root 0/2 realigned 2
            t2 realign 1/1
            """,
    ),
    "point_01_training_is_decided_at_the_drain": Case(
        draw=drawn_numbers,
        events=session(
            *T1_REALIGNED, numbered("<u>{a}(x){b }(y)", "c", [1, 2, 3, 4, 5, 6, 7], [8])
        ),
        samples="1 2 [3 4] 5 6 7 [8]  reward 1",
        tree="""
            user u
            assistant a  <- t1 root 2/2
            tool x
            assistant b·  <- t2 merged
            tool y
            assistant c  <- t3 extend 1/1
            """,
        ledger="""
            t1 root 2/2
            t2 realign 0/1 merged 1
            t3 extend 1/1
            """,
    ),
    # Against t2, which t3 itself demotes, t3 would realign over it and take t1 down too.
    "point_02_a_turn_is_classified_after_its_own_merge": Case(
        events=session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ok"),
            turn("«S»<u>{call}(x){ok }(y)", "done"),
        ),
        samples="«S»<u>{[call}](x){ok·}(y){[done}]  reward 1",
        ledger="""
            t1 root 5/5
            t2 extend 0/3 merged 3
            t3 extend 5/5
            """,
    ),
    # `call}` is [7, 12). Against t2 the divergence at 11 lies before the last response: fork.
    "point_02_after_the_merge_the_ancestor_above_is_realigned": Case(
        events=session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ok"),
            turn("«S»<u>{call}(x){ok }(y)", "done", drift=replace(11)),
        ),
        samples="«S»<u>{call!(x){ok·}(y){[done}]  reward 1",
        ledger="""
            t1 root 0/5 realigned 5
            t2 extend 0/3 merged 3
            t3 realign 5/5
            """,
    ),
    # Branch x: t2 has no logprobs. Branch y: t1 is not owned, t3 is realigned at index 17.
    "point_03_logprobs_are_zero_wherever_nothing_trains_or_none_was_given": Case(
        events=session(
            turn("«S»<u>", "ok", logprobs="123"),
            turn("«S»<u>{ok}(x)", "ax"),
            turn("«S»<u>{ok}(y)", "mid", logprobs="4567"),
            turn("«S»<u>{ok}(y){mid}(z)", "end", drift=replace(17), logprobs="6789"),
        ),
        samples="""
            «S»<u>{[ok}](x){[ax}]  reward 1/2 | 1
            «S»<u>{ok}(y){mid!(z){[end}]  reward 1/2 | 1
            """,
        logprobs="""
            .......123.......
            ......................6789
            """,
    ),
    "point_03_samples_are_ordered_by_leaf_then_segment_never_by_time": Case(
        events=session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ax"),
            turn("«S»<u>{call}(y)", "ay"),
            turn("«S»<u>{call}(x){ax}(z)", "az", drift=insert(1)),
        ),
        samples="""
            «S»<u>{[call}](x){[ax}]  reward 1/3 | 1
            «!S»<u>{call}(x){ax}(z){[az}]  reward 1/3 | 1
            «S»<u>{call}(y){[ay}]  reward 1/3 | 1
            """,
    ),
    "point_03_a_segment_without_a_trained_token_is_not_emitted": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", None, drift=insert(1))),
        samples="«S»<u>{[ok}]  reward 1",
    ),
    # Three leaves; five segments: x t1 | t2, y t1 | t3, z t1 + t4. Two of them train.
    "point_04_seed_divides_by_the_emitted_samples": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", None, drift=insert(1)),
            turn("«S»<u>{ok}(y)", "ay", drift=insert(1)),
            turn("«S»<u>{ok}(z)", None),
        ),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «!S»<u>{ok}(y){[ay}]  reward 1/2 | 1
            """,
    ),
    "point_05_a_response_under_another_role_hangs_as_assistant_and_never_matches": Case(
        events=session(
            turn("«S»<u>", "ok", response_message={"role": "user", "content": "ok"}),
            turn("«S»<u><ok>(x)", "done"),
        ),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u><ok>(x){[done}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant ok  <- t1 root 3/3
            └─ user ok
               tool x
               assistant done  <- t2 root 5/5
            """,
    ),
    "point_05_a_response_under_another_role_is_no_assistant_message_either": Case(
        threshold=0,
        events=session(
            turn("«S»<u>", "ok", response_message={"role": "tool", "content": "ok"}),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok}(x){[done}]  reward 1/2 | 1
            """,
    ),
    "point_05_a_response_without_role_never_matches": Case(
        threshold=0,
        events=session(
            turn("«S»<u>", "ok", response_message={"content": "ok"}),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok}(x){[done}]  reward 1/2 | 1
            """,
    ),
    "point_05_no_response_is_not_the_empty_response": Case(
        threshold=0,
        events=session(
            turn("«S»<u>", None, output_ids=[ord("}")]),
            turn("«S»<u>{}(x)", "done"),
        ),
        samples="""
            «S»<u>{[}]  reward 1/2 | 1
            «S»<u>{}(x){[done}]  reward 1/2 | 1
            """,
        ledger="""
            t1 root 1/1
            t2 root 5/5
            """,
    ),
    "point_06_a_leaf_without_response_message_can_be_merged": Case(
        events=session(
            turn("«S»<u>", None, output_ids=[ord("o"), ord("}")]),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="«S»<u>{ok}(x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant ok  <- t1 merged
            tool x
            assistant done  <- t2 root 5/5
            """,
    ),
    "point_06_a_leaf_without_response_message_counts_as_an_assistant_child": Case(
        events=session(
            turn("«S»<u>", None, output_ids=[ord("o"), ord("}")]),
            turn("«S»<u>", "hm"),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="""
            «S»<u>{[o}]  reward 1/3 | 1
            «S»<u>{[hm}]  reward 1/3 | 1
            «S»<u>{ok}(x){[done}]  reward 1/3 | 1
            """,
    ),
    "point_06_a_foreign_sibling_blocks_the_merge_only_in_slime": Case(
        events=session(
            turn("«S»<u>{note}(x)", "one"),
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok }(y)", "done"),
        ),
        samples=ByProfile(
            seed="""
                «S»<u>{note}(x){[one}]  reward 1/2
                «S»<u>{ok·}(y){[done}]  reward 1/2
                """,
            slime="""
                «S»<u>{note}(x){[one}]  reward 1
                «S»<u>{[ok}]  reward 1
                «S»<u>{ok·}(y){[done}]  reward 1
                """,
        ),
    ),
    "point_06_a_demoted_sibling_blocks_the_merge_only_in_slime": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok }(x)", "one"),
            turn("«S»<u>", "hm"),
            turn("«S»<u>{hm }(y)", "two"),
        ),
        samples=ByProfile(
            seed="""
                «S»<u>{ok·}(x){[one}]  reward 1/2
                «S»<u>{hm·}(y){[two}]  reward 1/2
                """,
            slime="""
                «S»<u>{ok·}(x){[one}]  reward 1
                «S»<u>{[hm}]  reward 1
                «S»<u>{hm·}(y){[two}]  reward 1
                """,
        ),
        tree=ByProfile(
            seed="""
                system S
                user u
                ├─ assistant ok·  <- t1 merged
                │  tool x
                │  assistant one  <- t2 root 4/4
                └─ assistant hm·  <- t3 merged
                   tool y
                   assistant two  <- t4 root 4/4
                """,
            slime="""
                system S
                user u
                ├─ assistant ok·  <- t1 merged
                │  tool x
                │  assistant one  <- t2 root 4/4
                ├─ assistant hm  <- t3 root 3/3
                └─ assistant hm·
                   tool y
                   assistant two  <- t4 root 4/4
                """,
        ),
    ),
    "point_06_a_rewrite_that_ends_the_prompt_merges_too": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }", "more")),
        samples="«S»<u>{ok·}{[more}]  reward 1",
        tree="""
            system S
            user u
            assistant ok·  <- t1 merged
            assistant more  <- t2 root 5/5
            """,
    ),
    "point_06_after_a_merge_the_rest_is_mounted": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }{hm}(x)", "done")),
        samples="«S»<u>{ok·}{hm}(x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant ok·  <- t1 merged
            assistant hm
            tool x
            assistant done  <- t2 root 5/5
            """,
    ),
    "point_06_a_rewritten_answer_that_was_continued_is_no_leaf_and_forks": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "mid"),
            turn("«S»<u>{ok }(x){mid }(y)", "done"),
        ),
        samples="""
            «S»<u>{[ok}](x){[mid}]  reward 1/2 | 1
            «S»<u>{ok·}(x){mid·}(y){[done}]  reward 1/2 | 1
            """,
    ),
    "point_06_a_leaf_of_3_a_leaf_of_1_and_a_rewrite_at_threshold_3": Case(
        draw=drawn_numbers,
        threshold=3,
        events=session(
            numbered("<u>", "a", [1, 2], [3, 4, 5]),
            numbered("<u>", "b", [1, 2], [6]),
            numbered("<u>{c}(x)", "d", [1, 2, 7, 8], [9]),
        ),
        samples=ByProfile(
            seed="""
                1 2 [3 4 5]  reward 1/2
                1 2 7 8 [9]  reward 1/2
                """,
            slime="""
                1 2 [3 4 5]  reward 1
                1 2 [6]  reward 1
                1 2 7 8 [9]  reward 1
                """,
        ),
    ),
}
