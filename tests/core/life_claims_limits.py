"""What a session loses: turns that never came, turns too many, what it may not train on.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from dataclasses import replace

from streams.core.policy import PROFILES
from streams.core.state import Rules
from tests.core.life import T1, T2, T3, end, opened, reward, undelivered
from tests.core.life_claim import Claim
from tests.core.notation import Json, insert, turn
from tests.oracle.deltas import digest


def under(**fields: object) -> Rules:
    return Rules(default_policy=replace(PROFILES["seed"], **fields))  # type: ignore[arg-type]


def numbered(event: Json, seq: int, source: str = "a") -> Json:
    return event | {"source": source, "seq": seq}


T4 = turn("<u>{ok}(x){done}(y)", "yes", turn_id="t4")
"""Extends t2."""
DRIFTED = turn("<u>{ok}(x)", "done", turn_id="t2", drift=insert(5))
"""Goes on from t1, but its ids leave those of t1 inside the answer."""
REJECTED = "withheld gap, gaps 1, reward 1 | t1 root 0/3 gap 3; t2 extend 0/5 gap 5"
ALL = """
        {0} sample <u>{{[ok}}](x){{[done}}], reward 1
        {0} closed completed, {1}reward 1 | t1 root 3/3; t2 extend 5/5
        """

GAPS: dict[str, Claim] = {
    "a hole in the numbering rejects the session": Claim(
        [numbered(T1, 1), numbered(T2, 3), end(reward=1.0)],
        f"3 closed completed, {REJECTED}",
    ),
    "a first number that is not 1 is a hole": Claim(
        [numbered(T1, 2), numbered(T2, 3), end(reward=1.0)],
        f"3 closed completed, {REJECTED}",
    ),
    "fewer turns than the end names are a hole": Claim(
        [numbered(T1, 1), numbered(T2, 2), end(reward=1.0, turns={"a": 3})],
        f"3 closed completed, {REJECTED}",
    ),
    "a source that the end names and nobody saw is a hole": Claim(
        [numbered(T1, 1), numbered(T2, 2), end(reward=1.0, turns={"a": 2, "b": 1})],
        f"3 closed completed, {REJECTED}",
    ),
    "a turn that was refused is a hole": Claim(
        [numbered(T1, 1), numbered(T4, 2) | {"base_turn_id": "t9"}, numbered(T2, 3), end(reward=1)],
        """
        2 refused unknown_base t4
        4 closed completed, withheld gap, refused 1, gaps 1, reward 1 | t1 root 0/3 gap 3; \
t2 extend 0/5 gap 5
        """,
    ),
    "it is judged at the close: a late number fills it": Claim(
        [numbered(T2, 2), numbered(T1, 1), end(reward=1.0)],
        """
        3 sample <u>{ok}(x){[done}], reward 1/2 of 1
        3 sample <u>{[ok}], reward 1/2 of 1
        3 closed completed, reward 1 | t2 root 5/5; t1 root 3/3
        """,
    ),
    "an undelivered turn fills its number": Claim(
        [numbered(T1, 1), undelivered("t9", source="a", seq=2), numbered(T2, 3), end(reward=1.0)],
        ALL.format(4, "lost 1, "),
    ),
    "also while the session waits": Claim(
        [numbered(T1, 1), numbered(T2, 3), end(), undelivered(source="a", seq=2), reward(1.0)],
        ALL.format(5, ""),
    ),
    "turns without a number are not checked": Claim(
        [T1, numbered(T2, 1), end(reward=1.0)], ALL.format(3, "")
    ),
    "sources count apart": Claim(
        [numbered(T1, 1), numbered(T2, 1, "b"), end(reward=1.0, turns={"a": 1, "b": 1})],
        ALL.format(3, ""),
    ),
    "an end that names fewer than came is no hole": Claim(
        [numbered(T1, 1), numbered(T2, 2), end(reward=1.0, turns={"a": 1})],
        ALL.format(3, ""),
    ),
    "under `ignore` everything trains and the holes are counted": Claim(
        [numbered(T1, 1), numbered(T2, 5), end(reward=1.0)],
        ALL.format(3, "gaps 3, "),
        under(gaps="ignore"),
    ),
    "under `prefix` what came before the hole trains": Claim(
        [numbered(T1, 1), numbered(T2, 2), numbered(T4, 4), end(reward=1.0)],
        """
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, gaps 1, reward 1 | t1 root 3/3; t2 extend 5/5; t4 extend 0/4 gap 4
        """,
        under(gaps="prefix"),
    ),
    "under `prefix` what came behind the hole masks nothing before it": Claim(
        [numbered(T1, 1), numbered(DRIFTED, 3), end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1
        3 closed completed, gaps 1, reward 1 | t1 root 3/3; t2 realign 0/5 gap 5
        """,
        under(gaps="prefix"),
    ),
    "under `prefix` turns that are missing at the end cost nothing": Claim(
        [numbered(T1, 1), numbered(T2, 2), end(reward=1.0, turns={"a": 4})],
        ALL.format(3, "gaps 2, "),
        under(gaps="prefix"),
    ),
    "under `prefix` a missing first turn costs all": Claim(
        [numbered(T1, 2), numbered(T2, 3), end(reward=1.0)],
        "3 closed completed, gaps 1, reward 1 | t1 root 0/3 gap 3; t2 extend 0/5 gap 5",
        under(gaps="prefix"),
    ),
    "under `prefix` a hole in one source ends the prefix for all": Claim(
        [numbered(T1, 1), numbered(T3, 2, "b"), T2, end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1
        4 closed completed, gaps 1, reward 1 | t1 root 3/3; t3 root 0/3 gap 3; t2 extend 0/5 gap 5
        """,
        under(gaps="prefix"),
    ),
    "no reward is named before a gap": Claim(
        [numbered(T1, 2), end()],
        "end closed completed, withheld no_reward, gaps 1, no reward | t1 root 0/3 no_reward 3",
    ),
}

LONG = turn("<" + "v" * 40 + ">", "hm", turn_id="t3")
TWO_SAMPLES = """
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t3 root 0/3 oversize 3
        4 refused oversize t3
        """


def refused_second(budgets: Json) -> Claim:
    return Claim(
        [opened(budgets=budgets), T1, T2, end(reward=1.0)],
        """
        3 refused oversize t2
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3; t2 root 0/5 oversize 5
        """,
    )


def both_fit(budgets: Json) -> Claim:
    return Claim([opened(budgets=budgets), T1, T2, end(reward=1.0)], ALL.format(4, ""))


BUDGETS: dict[str, Claim] = {
    # t1: 2 nodes, 4 + 3 tokens; t2 adds (x) and its answer: 2 nodes, 4 + 5 tokens.
    "a turn too many is oversize": refused_second({"turns": 1}),
    "as many turns as allowed are not": both_fit({"turns": 2}),
    "a node too many is oversize": refused_second({"nodes": 3}),
    "as many nodes as allowed are not": both_fit({"nodes": 4}),
    "a token too many is oversize": refused_second({"tokens": 15}),
    "as many tokens as allowed are not: shared ones count once": both_fit({"tokens": 16}),
    "a byte too many is oversize": refused_second({"bytes": 150}),
    "every budget holds at once": refused_second({"turns": 9, "nodes": 9, "tokens": 15}),
    "the session goes on after an oversize turn": Claim(
        [opened(budgets={"tokens": 14}), T1, T2, T3, end(reward=1.0)],
        """
        3 refused oversize t2
        5 sample <u>{[ok}], reward 1/2 of 1
        5 sample <v>{[hm}], reward 1/2 of 1
        5 closed completed, refused 1, reward 1 | t1 root 3/3; t3 root 3/3; t2 root 0/5 oversize 5
        """,
    ),
    "an opening over its metadata budget is oversize": Claim(
        [opened(budgets={"metadata_bytes": 8}, metadata="1234567"), reward(1.0)],
        """
        1 refused oversize
        2 refused unknown_session
        """,
    ),
    "metadata as long as allowed is not": Claim(
        [opened(budgets={"metadata_bytes": 9}, metadata="1234567"), end("error")],
        "2 closed error, withheld status, no reward |",
    ),
    "an unknown budget is a bad event": Claim(
        [opened(budgets={"naps": 1}), T1, end(reward=1.0)],
        """
        1 refused invalid_field
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "an oversize sample is left out before the reward is split": Claim(
        [opened(budgets={"sample_bytes": 400}), T1, LONG, end(reward=1.0)],
        TWO_SAMPLES,
    ),
    "the other way round too": Claim(
        [opened(budgets={"sample_bytes": 400}), LONG, T1, end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t3 root 0/3 oversize 3; t1 root 3/3
        4 refused oversize t3
        """,
    ),
    "a session may lose every sample to its size": Claim(
        [opened(budgets={"sample_bytes": 20}), T1, end(reward=1.0), reward(0.5)],
        """
        3 closed completed, reward 1 | t1 root 0/3 oversize 3
        3 refused oversize t1
        4 refused late_reward
        """,
    ),
}

EVAL: dict[str, Claim] = {
    "an outcome and no samples": Claim(
        [T1 | {"split": "eval"}, end(reward=1.0)],
        "2 closed completed, withheld eval, reward 1 | t1 root 0/3 eval 3",
    ),
    "also without a reward, for which it waits": Claim(
        [opened(split="eval"), T1, end(), reward(0.5)],
        "4 closed completed, withheld eval, reward 1/2 | t1 root 0/3 eval 3",
    ),
    "eval is named before status": Claim(
        [opened(split="eval"), T1, end("error")],
        "3 closed error, withheld eval, no reward | t1 root 0/3 eval 3",
    ),
    "rejected is named before eval": Claim(
        [opened(split="eval"), T1, end("rejected")],
        "3 closed rejected, withheld rejected, no reward | t1 root 0/3 rejected 3",
    ),
    "a later reward is refused: there is nothing to revise": Claim(
        [opened(split="eval"), T1, end(reward=1.0), reward(0.5)],
        """
        3 closed completed, withheld eval, reward 1 | t1 root 0/3 eval 3
        4 refused late_reward
        """,
    ),
    "a policy may ask for the samples": Claim(
        [opened(split="eval"), T1, end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        """,
        under(eval_samples=True),
    ),
}

DELTA = T2 | {"base_turn_id": "t1", "kept_messages": 2, "kept_ids": 7}
DELTA |= {"prompt_messages": T2["prompt_messages"][2:], "prompt_ids": T2["prompt_ids"][7:]}


def then_whole(bad: Json, code: str) -> Claim:
    """The bad turn is refused and leaves no trace: the right one is taken afterwards."""
    return Claim(
        [T1, bad, T2, end(reward=1.0)],
        f"""
        2 refused {code} {bad["turn_id"]}
        4 sample <u>{{[ok}}](x){{[done}}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    )


def twice(again: Json) -> Claim:
    return Claim(
        [T1, T2, again, end(reward=1.0)],
        "\n        3 ignored" + ALL.format(4, "duplicates 1, "),
    )


REFUSED: dict[str, Claim] = {
    "the same turn again is a duplicate": twice(T2),
    "the same turn told as a delta is a duplicate": twice(DELTA),
    "the same turn with another time or number is a duplicate": twice(
        T2 | {"started_ms": 5, "model": "m", "source": "b"}
    ),
    "one turn id, other prompt ids": then_whole(
        T1 | {"prompt_ids": [1, *T1["prompt_ids"][1:]]}, "forked_turn_id"
    ),
    "one turn id, a longer prompt": then_whole(
        T1 | {"prompt_ids": [*T1["prompt_ids"], 1]}, "forked_turn_id"
    ),
    "one turn id, other output ids": then_whole(T1 | {"output_ids": [1, 2, 3]}, "forked_turn_id"),
    "one turn id, a shorter output": then_whole(
        T1 | {"output_ids": T1["output_ids"][:2]}, "forked_turn_id"
    ),
    "one turn id, logprobs where there were none": then_whole(
        T1 | {"logprobs": [-1.0, -1.0, -1.0]}, "forked_turn_id"
    ),
    "one turn id, another response": then_whole(
        T1 | {"response_message": {"role": "assistant", "content": "no"}}, "forked_turn_id"
    ),
    "one turn id, no response": then_whole(T1 | {"response_message": None}, "forked_turn_id"),
    "an unknown base": then_whole(DELTA | {"base_turn_id": "t9"}, "unknown_base"),
    "itself as base": then_whole(DELTA | {"base_turn_id": "t2"}, "unknown_base"),
    "more messages kept than the base has": then_whole(
        DELTA | {"kept_messages": 3}, "invalid_field"
    ),
    "more ids kept than the base has": then_whole(DELTA | {"kept_ids": 8}, "invalid_field"),
    "a delta without any message": then_whole(
        DELTA | {"kept_messages": 0, "prompt_messages": []}, "invalid_field"
    ),
    "a digest that does not match a whole prompt": then_whole(
        T2 | {"prompt_digest": "00" * 16}, "digest_mismatch"
    ),
    "a digest that does not match a joined prompt": then_whole(
        DELTA | {"prompt_digest": digest(T1["prompt_ids"])}, "digest_mismatch"
    ),
    "a duplicate with a digest that is not its prompt's": then_whole(
        T1 | {"prompt_digest": "00" * 16}, "digest_mismatch"
    ),
    "a message that is no object": then_whole(T2 | {"prompt_messages": ["u"]}, "invalid_field"),
    "a response that is no object": then_whole(T2 | {"response_message": "ok"}, "invalid_field"),
    "logprobs that do not fit": then_whole(T2 | {"logprobs": [-1.0]}, "length_mismatch"),
    "a delta with the right digest is taken": Claim(
        [T1, DELTA | {"prompt_digest": digest(T2["prompt_ids"])}, end(reward=1.0)],
        ALL.format(3, ""),
    ),
}
