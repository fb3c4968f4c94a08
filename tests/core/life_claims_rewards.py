"""What a session is worth when it closes: rewards before the end, pending, repeated, none.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from streams.core.policy import PROFILES
from streams.core.state import Rules
from tests.core.life import NAN, T1, T3, end, expired, judged, opened, reward
from tests.core.life_claim import Claim

SLIME = Rules(default_policy=PROFILES["slime"])
DEFAULT = Rules(default_reward=0.25)
PAYLOAD = {"score": 1, "tests": [True, 2]}

REWARDS: dict[str, Claim] = {
    "one before the end closes at the end": Claim(
        [T1, reward(0.5), end()],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "the end waits for one": Claim(
        [T1, end(), reward(0.5)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "another id replaces": Claim(
        [T1, reward(0.25, "a"), reward(0.5, "b"), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a repeat of an id changes nothing, whatever it says": Claim(
        [T1, reward(0.5, "a"), reward(0.25, "a"), reward(0.5, "a"), end()],
        """
        3 ignored
        4 ignored
        5 sample <u>{[ok}], reward 1/2
        5 closed completed, duplicates 2, reward 1/2 | t1 root 3/3
        """,
    ),
    "an old id again does not come back": Claim(
        [T1, reward(0.25, "a"), reward(0.5, "b"), reward(0.25, "a"), end()],
        """
        4 ignored
        5 sample <u>{[ok}], reward 1/2
        5 closed completed, duplicates 1, reward 1/2 | t1 root 3/3
        """,
    ),
    "without an id each event is its own": Claim(
        [T1, reward(0.25), reward(0.5), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "one before the first turn counts once the session is open": Claim(
        [opened(), reward(0.5), T1, end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "that of the end replaces an earlier one": Claim(
        [T1, reward(0.25, "a"), end(reward=0.5)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "that of the end has the id `end`": Claim(
        [T1, reward(0.5, "end"), end(reward=0.25)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "one that is not final does not close": Claim(
        [T1, end(), reward(0.25, "a", final=False), reward(0.5, "b")],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "one that is not final leaves the end waiting": Claim(
        [T1, reward(0.25, "a", final=False), end(), reward(0.5, "b")],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "one that is not final counts if none follows": Claim(
        [T1, end(), reward(0.25, "a", final=False), reward(0.5, "b", final=False)],
        """
        end sample <u>{[ok}], reward 1/2
        end closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "once one was final the end does not wait, and the newest counts": Claim(
        [T1, reward(0.25, "a"), reward(0.5, "b", final=False), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "sent twice, then again, then the final one: the last value, once": Claim(
        [
            T1,
            reward(0.1, "a", final=False),
            reward(0.2, "b", final=False),
            reward(0.1, "a", final=False),
            reward(0.2, "b", final=False),
            end(),
            reward(0.5, "c"),
        ],
        """
        4 ignored
        5 ignored
        7 sample <u>{[ok}], reward 1/2
        7 closed completed, duplicates 2, reward 1/2 | t1 root 3/3
        """,
    ),
    "seed splits it over the samples": Claim(
        [T1, T3, end(reward=0.5)],
        """
        3 sample <u>{[ok}], reward 1/4 of 1/2
        3 sample <v>{[hm}], reward 1/4 of 1/2
        3 closed completed, reward 1/2 | t1 root 3/3; t3 root 3/3
        """,
    ),
    "slime gives it whole to each": Claim(
        [T1, T3, end(reward=0.5)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 sample <v>{[hm}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3; t3 root 3/3
        """,
        SLIME,
    ),
    "a payload counts by its score and is passed whole": Claim(
        [T1, reward(PAYLOAD, "a"), end()],
        """
        3 sample <u>{[ok}], reward 1, payload {"score": 1, "tests": [true, 2]}
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "a number replaces a payload": Claim(
        [T1, reward(PAYLOAD, "a"), end(reward=0.5)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a payload without a score is a bad event": Claim(
        [T1, reward({"points": 1}, "a"), reward(0.5, "a"), end()],
        """
        2 refused invalid_field
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, refused 1, reward 1/2 | t1 root 3/3
        """,
    ),
    "zero is a reward": Claim(
        [T1, end(reward=0.0)],
        """
        2 sample <u>{[ok}], reward 0
        2 closed completed, reward 0 | t1 root 3/3
        """,
    ),
}

NO_REWARD: dict[str, Claim] = {
    "no sample, and never 0.0": Claim(
        [T1, end()],
        "end closed completed, withheld no_reward, no reward | t1 root 0/3 no_reward 3",
    ),
    "a session that just stops has none": Claim(
        [T1],
        "end closed completed, withheld no_reward, implied, no reward | t1 root 0/3 no_reward 3",
    ),
    "NaN is none, and says so": Claim(
        [T1, end(reward=NAN)],
        """
        2 closed completed, withheld no_reward, reward invalid, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "a NaN score is none, and says so": Claim(
        [T1, reward({"score": NAN}, "a"), end()],
        """
        3 closed completed, withheld no_reward, reward invalid, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "infinity closes what waits, with none": Claim(
        [T1, end(), reward(float("inf"), "a")],
        """
        3 closed completed, withheld no_reward, reward invalid, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "a number replaces NaN": Claim(
        [T1, reward(NAN, "a"), reward(0.5, "b"), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "NaN replaces no number": Claim(
        [T1, reward(0.5, "a"), reward(NAN, "b"), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a default stands in for one that never came": Claim(
        [T1, end()],
        """
        end sample <u>{[ok}], reward 1/4
        end closed completed, reward 1/4 | t1 root 3/3
        """,
        DEFAULT,
    ),
    "a default gives way to any that came": Claim(
        [T1, end(), reward(0.5, final=False), expired(3, "reward_grace")],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
        DEFAULT,
    ),
    "a default does not end the waiting": Claim(
        [T1, end(), reward(0.5, "a")],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
        DEFAULT,
    ),
    "a default makes no status train": Claim(
        [T1, end("error")],
        "2 closed error, withheld status, reward 1/4 | t1 root 0/3 status 3",
        DEFAULT,
    ),
    "a default is revised by the first that comes, whatever its id": Claim(
        [T1, end(), expired(2), reward(0.5, "default")],
        """
        3 sample <u>{[ok}], reward 1/4
        3 closed completed, reward 1/4 | t1 root 3/3
        4 revised 0, reward 1/2
        """,
        DEFAULT,
    ),
    "a default in place of NaN still says that NaN came": Claim(
        [T1, end(reward=NAN)],
        """
        2 sample <u>{[ok}], reward 1/4
        2 closed completed, reward invalid, reward 1/4 | t1 root 3/3
        """,
        DEFAULT,
    ),
}

ORIGINS: dict[str, Claim] = {
    "a judged one replaces none that was given": Claim(
        [T1, reward(0.5, "a"), judged(0.75), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a given one replaces a judged one": Claim(
        [T1, judged(PAYLOAD), reward(0.5, "a"), end()],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "among judged ones the later counts": Claim(
        [T1, judged(0.25), judged(0.75, "again"), end()],
        """
        4 sample <u>{[ok}], reward 3/4
        4 closed completed, reward 3/4 | t1 root 3/3
        """,
    ),
    "a judged one of the end replaces none that was given": Claim(
        [T1, reward(0.5, "a"), end(reward=0.75, reward_origin="judged")],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a judged number replaces a given NaN": Claim(
        [T1, reward(NAN, "a"), judged(0.75), end()],
        """
        4 sample <u>{[ok}], reward 3/4
        4 closed completed, reward 3/4 | t1 root 3/3
        """,
    ),
    "a given NaN replaces no judged number": Claim(
        [T1, judged(0.75), reward(NAN, "a"), end()],
        """
        4 sample <u>{[ok}], reward 3/4
        4 closed completed, reward 3/4 | t1 root 3/3
        """,
    ),
    "a judged one closes what waits, and what was given counts": Claim(
        [T1, reward(0.5, "a", final=False), end(), judged(0.75)],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a judged one that is not final closes nothing; an expiry takes it": Claim(
        [T1, end(), judged(0.75, final=False), expired(3, "reward_grace")],
        """
        4 sample <u>{[ok}], reward 3/4
        4 closed completed, reward 3/4 | t1 root 3/3
        """,
    ),
    "an expiry takes the given one, also if a judged one came later": Claim(
        [T1, end(), reward(0.5, "a", final=False), judged(0.75, final=False), expired(4)],
        """
        5 sample <u>{[ok}], reward 1/2
        5 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "after the close a judged one revises nothing that was given": Claim(
        [T1, end(), reward(0.5, "a"), judged(0.75), judged(NAN, "b")],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        4 ignored
        5 ignored
        """,
    ),
    "after the close a given one revises what was judged, then nothing judged does": Claim(
        [T1, end(), judged(0.75), reward(0.5, "a"), judged(0.25, "b"), reward(1.0, "c")],
        """
        3 sample <u>{[ok}], reward 3/4
        3 closed completed, reward 3/4 | t1 root 3/3
        4 revised 0, reward 1/2
        5 ignored
        6 revised 0, reward 1
        """,
    ),
    "a judged one replaces a default, also after the close": Claim(
        [T1, end(), expired(2), judged(0.75), reward(0.5, "a")],
        """
        3 sample <u>{[ok}], reward 1/4
        3 closed completed, reward 1/4 | t1 root 3/3
        4 revised 0, reward 3/4
        5 revised 0, reward 1/2
        """,
        DEFAULT,
    ),
    "the same per turn": Claim(
        [
            T1 | {"reward": 0.25, "reward_origin": "judged"},
            reward(0.5, "a", turn_id="t1"),
            judged(0.75, turn_id="t1"),
            end(reward=1.0),
            judged(1.0, "b", turn_id="t1"),
        ],
        """
        4 sample <u>{[ok}], reward 1, turns t1=1/2
        4 closed completed, reward 1 | t1 root 3/3
        5 ignored
        """,
    ),
    "among judged ones of a turn the later counts": Claim(
        [T1, judged(0.25, turn_id="t1"), judged(0.5, "b", turn_id="t1"), end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1, turns t1=1/2
        4 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "a turn's NaN takes its number away no more": Claim(
        [T1 | {"reward": 0.25}, reward(NAN, "a", turn_id="t1"), end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1, turns t1=1/4
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "an origin that is neither is a bad event": Claim(
        [T1, reward(0.5, "a", origin="rumoured"), end(reward=1.0)],
        """
        2 refused invalid_field
        3 sample <u>{[ok}], reward 1
        3 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
}
