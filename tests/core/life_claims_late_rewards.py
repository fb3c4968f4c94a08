"""Rewards that come late, are corrected, or belong to one turn.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from streams.core.policy import PROFILES
from streams.core.state import Rules
from tests.core.life import NAN, T1, T2, T3, end, expired, opened, reward
from tests.core.life_claim import Claim

SLIME = Rules(default_policy=PROFILES["slime"])
PAYLOAD = {"score": 1, "tests": [True, 2]}

LATE_REWARDS: dict[str, Claim] = {
    "it revises the sample at its position": Claim(
        [T1, end(reward=1.0), T2, reward(0.5, "b")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 refused late_turn t2
        4 revised 0, reward 1/2
        """,
    ),
    "another id corrects it": Claim(
        [T1, end(reward=1.0), reward(0.5, "b"), reward(0.25, "c")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 revised 0, reward 1/2
        4 revised 0, reward 1/4
        """,
    ),
    "a repeat of an id changes nothing": Claim(
        [T1, reward(1.0, "a"), end(), reward(0.5, "b"), reward(0.25, "b"), reward(0.25, "a")],
        """
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        4 revised 0, reward 1/2
        5 ignored
        6 ignored
        """,
    ),
    "that of the end is a known id": Claim(
        [T1, end(reward=1.0), reward(0.5, "end")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 ignored
        """,
    ),
    "without an id each event is its own": Claim(
        [T1, end(reward=1.0), reward(0.5), reward(0.5)],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 revised 0, reward 1/2
        4 revised 0, reward 1/2
        """,
    ),
    "seed splits it like the first": Claim(
        [T1, T3, end(reward=1.0), reward(0.5, "b")],
        """
        3 sample <u>{[ok}], reward 1/2 of 1
        3 sample <v>{[hm}], reward 1/2 of 1
        3 closed completed, reward 1 | t1 root 3/3; t3 root 3/3
        4 revised 0, reward 1/4 of 1/2
        4 revised 1, reward 1/4 of 1/2
        """,
    ),
    "slime gives it whole to each": Claim(
        [T1, T3, end(reward=1.0), reward(0.5, "b")],
        """
        3 sample <u>{[ok}], reward 1
        3 sample <v>{[hm}], reward 1
        3 closed completed, reward 1 | t1 root 3/3; t3 root 3/3
        4 revised 0, reward 1/2
        4 revised 1, reward 1/2
        """,
        SLIME,
    ),
    "a payload comes whole, and goes with the next number": Claim(
        [T1, end(reward=0.5), reward(PAYLOAD, "b"), reward(0.25, "c")],
        """
        2 sample <u>{[ok}], reward 1/2
        2 closed completed, reward 1/2 | t1 root 3/3
        3 revised 0, reward 1, payload {"score": 1, "tests": [true, 2]}
        4 revised 0, reward 1/4
        """,
    ),
    "after a close without samples it is refused": Claim(
        [T1, end("error"), reward(0.5, "b"), reward(0.5, "b")],
        """
        2 closed error, withheld status, no reward | t1 root 0/3 status 3
        3 refused late_reward
        4 refused late_reward
        """,
    ),
    "after an expiry too": Claim(
        [T1, end(), expired(2), reward(0.5, "b")],
        """
        3 closed completed, withheld no_reward, no reward | t1 root 0/3 no_reward 3
        4 refused late_reward
        """,
    ),
    "one that is no number is refused, and the samples keep what they have": Claim(
        [T1, end(reward=1.0), reward(NAN, "b"), reward(0.5, "c")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 refused invalid_field
        4 revised 0, reward 1/2
        """,
    ),
}

TURN_REWARDS: dict[str, Claim] = {
    "it stands beside the session's": Claim(
        [T1 | {"reward": 0.25}, T2, reward(0.5, "a", turn_id="t2"), end(reward=1.0)],
        """
        4 sample <u>{[ok}](x){[done}], reward 1, turns t1=1/4 t2=1/2
        4 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "it may come before its turn": Claim(
        [opened(), reward(0.25, "a", turn_id="t1"), T1, end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1, turns t1=1/4
        4 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "it is no session reward": Claim(
        [T1, reward(0.25, "a", turn_id="t1"), end(), reward(0.5, "b", turn_id="t1")],
        """
        end closed completed, withheld no_reward, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "another id replaces that of the turn itself": Claim(
        [T1 | {"reward": 0.25}, reward(0.5, "a", turn_id="t1"), end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1, turns t1=1/2
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "a repeat of an id changes nothing": Claim(
        [T1, reward(0.5, "a", turn_id="t1"), reward(0.25, "a", turn_id="t1"), end(reward=1.0)],
        """
        3 ignored
        4 sample <u>{[ok}], reward 1, turns t1=1/2
        4 closed completed, duplicates 1, reward 1 | t1 root 3/3
        """,
    ),
    "an id is an id of the session, not of a turn": Claim(
        [T1, T2, reward(0.5, "a", turn_id="t1"), reward(0.25, "a", turn_id="t2"), end(reward=1.0)],
        """
        4 ignored
        5 sample <u>{[ok}](x){[done}], reward 1, turns t1=1/2
        5 closed completed, duplicates 1, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "late it revises only the samples with that turn": Claim(
        [T1, T3, end(reward=1.0), reward(0.25, "a", turn_id="t3")],
        """
        3 sample <u>{[ok}], reward 1/2 of 1
        3 sample <v>{[hm}], reward 1/2 of 1
        3 closed completed, reward 1 | t1 root 3/3; t3 root 3/3
        4 revised 1, reward 1/2 of 1, turns t3=1/4
        """,
    ),
    "a late session reward keeps the late ones of the turns": Claim(
        [T1, T3, end(reward=1.0), reward(0.25, "a", turn_id="t3"), reward(0.5, "b")],
        """
        3 sample <u>{[ok}], reward 1/2 of 1
        3 sample <v>{[hm}], reward 1/2 of 1
        3 closed completed, reward 1 | t1 root 3/3; t3 root 3/3
        4 revised 1, reward 1/2 of 1, turns t3=1/4
        5 revised 0, reward 1/4 of 1/2
        5 revised 1, reward 1/4 of 1/2, turns t3=1/4
        """,
    ),
    "late for a turn in no sample it is refused": Claim(
        [T1, end(reward=1.0), reward(0.25, "a", turn_id="t9")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 refused late_reward t9
        """,
    ),
    "one that is no number is none, and costs the turn nothing": Claim(
        [T1 | {"reward": NAN}, T2 | {"reward": {"score": NAN}}, end(reward=1.0)],
        """
        3 sample <u>{[ok}](x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "an id that looks like one of ours is another id": Claim(
        [T1 | {"reward": 0.25}, reward(0.5, "turn:t1", turn_id="t1"), end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1, turns t1=1/2
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
}
