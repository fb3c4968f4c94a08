"""How a session ends, expires and is forgotten.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from tests.core.life import (
    NAN,
    T1,
    T2,
    T3,
    end,
    event,
    expired,
    of,
    opened,
    purge,
    reward,
    undelivered,
)
from tests.core.life_claim import Claim

CLOSED = """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        """

ENDING: dict[str, Claim] = {
    **{
        f"{status} trains with the reward given": Claim(
            [T1, end(status, reward=0.5)],
            f"""
            2 sample <u>{{[ok}}], reward 1/2
            2 closed {status}, reward 1/2 | t1 root 3/3
            """,
        )
        for status in ("completed", "truncated", "parse_error", "timeout")
    },
    **{
        f"{status} waits for a reward": Claim(
            [T1, end(status), T2, reward(0.5)],
            f"""
            3 refused late_turn t2
            4 sample <u>{{[ok}}], reward 1/2
            4 closed {status}, refused 1, reward 1/2 | t1 root 3/3
            """,
        )
        for status in ("completed", "truncated", "parse_error")
    },
    "timeout without a reward closes at once": Claim(
        [T1, end("timeout"), reward(0.5)],
        """
        2 closed timeout, withheld no_reward, no reward | t1 root 0/3 no_reward 3
        3 refused late_reward
        """,
    ),
    "timeout trains with the reward known before": Claim(
        [T1, reward(0.5), end("timeout")],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed timeout, reward 1/2 | t1 root 3/3
        """,
    ),
    "timeout that says so waits for a reward": Claim(
        [T1, end("timeout", reward_pending=True), reward(0.5)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed timeout, reward 1/2 | t1 root 3/3
        """,
    ),
    "an opening says for every end that the reward is pending": Claim(
        [opened(reward_pending=True), T1, end("timeout"), reward(0.5)],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed timeout, reward 1/2 | t1 root 3/3
        """,
    ),
    "an end overrules its opening": Claim(
        [opened(reward_pending=True), T1, end(reward_pending=False)],
        "3 closed completed, withheld no_reward, no reward | t1 root 0/3 no_reward 3",
    ),
    **{
        f"{status} closes at once and trains nothing": Claim(
            [T1, end(status)],
            f"2 closed {status}, withheld status, no reward | t1 root 0/3 status 3",
        )
        for status in ("error", "interrupted", "closed", "cancelled", "expired")
    },
    "rejected closes at once and trains nothing": Claim(
        [T1, end("rejected")],
        "2 closed rejected, withheld rejected, no reward | t1 root 0/3 rejected 3",
    ),
    "a status that does not train keeps its reward on the outcome": Claim(
        [T1, end("error", reward=0.5)],
        "2 closed error, withheld status, reward 1/2 | t1 root 0/3 status 3",
    ),
    "not accepted: no sample": Claim(
        [T1, end(accepted=False, reward=1.0)],
        """
        2 closed completed, withheld rejected, not accepted, reward 1 | t1 root 0/3 rejected 3
        """,
    ),
    "not accepted waits like any other whose status trains": Claim(
        [T1, end(accepted=False), reward(1.0)],
        """
        3 closed completed, withheld rejected, not accepted, reward 1 | t1 root 0/3 rejected 3
        """,
    ),
    "a session that is tried again gives no sample": Claim(
        [T1, end("timeout", will_retry=True, reward=1.0)],
        """
        2 closed timeout, withheld rejected, will retry, reward 1 | t1 root 0/3 rejected 3
        """,
    ),
    "of several reasons the first in order is named": Claim(
        [T1, end("error", will_retry=True)],
        "2 closed error, withheld rejected, will retry, no reward | t1 root 0/3 rejected 3",
    ),
    "pending on purpose waits although it has a reward": Claim(
        [T1, end(reward=1.0, reward_pending=True), reward(0.5, "b")],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "pending on purpose falls back on the reward it has": Claim(
        [T1, end(reward=1.0, reward_pending=True), expired(2, "reward_grace")],
        """
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "pending on purpose waits although an earlier reward was final": Claim(
        [T1, reward(1.0, "a"), end(reward_pending=True), reward(0.5, "b")],
        """
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "pending on purpose waits although the status does not train": Claim(
        [T1, end("error", reward_pending=True), reward(0.5)],
        "3 closed error, withheld status, reward 1/2 | t1 root 0/3 status 3",
    ),
    "not pending closes without a reward": Claim(
        [T1, end(reward_pending=False), reward(0.5)],
        """
        2 closed completed, withheld no_reward, no reward | t1 root 0/3 no_reward 3
        3 refused late_reward
        """,
    ),
    "not pending closes with a reward that is not final": Claim(
        [T1, reward(0.5, final=False), end(reward_pending=False)],
        """
        3 sample <u>{[ok}], reward 1/2
        3 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a NaN reward does not leave it waiting": Claim(
        [T1, end(reward=NAN), reward(1.0)],
        """
        2 closed completed, withheld no_reward, reward invalid, no reward | t1 root 0/3 no_reward 3
        3 refused late_reward
        """,
    ),
    "a second end is ignored while the first waits": Claim(
        [T1, end(), end("error", reward=0.25), reward(0.5)],
        """
        3 ignored
        4 sample <u>{[ok}], reward 1/2
        4 closed completed, ignored 1, reward 1/2 | t1 root 3/3
        """,
    ),
    "a second end is ignored after the close": Claim(
        [T1, end(reward=1.0), end("error", reward=0.25)],
        CLOSED + "3 ignored",
    ),
    "session_opened is ignored after the close": Claim(
        [T1, end(reward=1.0), opened(group_id="g"), opened(policy="nonsense")],
        CLOSED
        + """3 ignored
        4 ignored""",
    ),
    "a turn after a pending end is late": Claim(
        [T1, end(), T2, reward(1.0)],
        """
        3 refused late_turn t2
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
    "a turn after the close is late": Claim(
        [T1, end(reward=1.0), T2, T2],
        CLOSED
        + """3 refused late_turn t2
        4 refused late_turn t2""",
    ),
    "a turn that came again after a pending end is no late turn": Claim(
        [T1, end(), T1, reward(1.0)],
        """
        3 ignored
        4 sample <u>{[ok}], reward 1
        4 closed completed, duplicates 1, reward 1 | t1 root 3/3
        """,
    ),
    "a trained turn that comes again after the close is no late turn": Claim(
        [T1, end(reward=1.0), T1],
        CLOSED + "3 ignored",
    ),
    # The marker remembers the turns of samples only; the letter says what to look at.
    "an untrained turn that comes again after the close is no news": Claim(
        [T1, end("error"), T1],
        """
        2 closed error, withheld status, no reward | t1 root 0/3 status 3
        3 ignored
        """,
    ),
    "bytes that cannot be read end nothing": Claim(
        [T1, event("session_ended"), event("session_ended", end_status="fine"), end(reward=1.0)],
        """
        2 refused invalid_field
        3 refused invalid_field
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 2, reward 1 | t1 root 3/3
        """,
    ),
}

EXPIRING: dict[str, Claim] = {
    "the newest offset closes": Claim(
        [T1, T2, expired(2)],
        """
        3 closed expired, withheld status, no reward | t1 root 0/3 status 3; t2 extend 0/5 status 5
        """,
    ),
    "an old offset is ignored": Claim(
        [T1, T2, expired(1), end(reward=1.0)],
        """
        3 ignored
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "an offset that is not there yet is ignored": Claim(
        [T1, expired(2), expired(9)],
        """
        2 ignored
        3 ignored
        end closed completed, withheld no_reward, implied, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "no offset is ignored": Claim(
        [T1, expired(None), end(reward=1.0)],
        """
        2 ignored
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "an expiry that was ignored is no newer event": Claim(
        [T1, expired(0), expired(1)],
        """
        2 ignored
        3 closed expired, withheld status, no reward | t1 root 0/3 status 3
        """,
    ),
    "a duplicate is a newer event": Claim(
        [T1, T1, expired(1), expired(2)],
        """
        2 ignored
        3 ignored
        4 closed expired, withheld status, duplicates 1, no reward | t1 root 0/3 status 3
        """,
    ),
    "a refused turn is a newer event": Claim(
        [T1, T2 | {"base_turn_id": "t9"}, expired(1), expired(2)],
        """
        2 refused unknown_base t2
        3 ignored
        4 closed expired, withheld status, refused 1, no reward | t1 root 0/3 status 3
        """,
    ),
    "bytes that cannot be read are a newer event": Claim(
        [T1, event("turn", turn_id="t2"), expired(1), expired(2)],
        """
        2 refused invalid_field t2
        3 ignored
        4 closed expired, withheld status, refused 1, no reward | t1 root 0/3 status 3
        """,
    ),
    "rewards and reports are newer events": Claim(
        [T1, reward(1.0), expired(1), undelivered("t9"), expired(2), expired(4)],
        """
        3 ignored
        5 ignored
        6 closed expired, withheld status, lost 1, reward 1 | t1 root 0/3 status 3
        """,
    ),
    "another session's events are not": Claim(
        [T1, of("other", T1), expired(1)],
        """
        3 closed expired, withheld status, no reward | t1 root 0/3 status 3
        end other: closed completed, withheld no_reward, implied, no reward | \
t1 root 0/3 no_reward 3
        """,
    ),
    **{
        f"{cause} keeps the status of a session that waits": Claim(
            [T1, end("truncated"), expired(2, cause)],
            "3 closed truncated, withheld no_reward, no reward | t1 root 0/3 no_reward 3",
        )
        for cause in ("idle", "hard_limit", "reward_grace")
    },
    "a session that waits takes the newest reward so far": Claim(
        [T1, end(), reward(0.25, final=False), reward(0.5, final=False), expired(4)],
        """
        5 sample <u>{[ok}], reward 1/2
        5 closed completed, reward 1/2 | t1 root 3/3
        """,
    ),
    "a late turn keeps a waiting session from expiring once": Claim(
        [T1, end(), T2, expired(2), expired(3)],
        """
        3 refused late_turn t2
        4 ignored
        5 closed completed, withheld no_reward, refused 1, no reward | t1 root 0/3 no_reward 3
        """,
    ),
    "after the close it is ignored": Claim(
        [T1, end(reward=1.0), expired(1), expired(2)],
        CLOSED
        + """3 ignored
        4 ignored""",
    ),
}

PURGING: dict[str, Claim] = {
    "a marker below the floor is forgotten": Claim(
        [T1, end(reward=1.0), purge(3), reward(0.5)],
        CLOSED + "4 refused unknown_session",
    ),
    "a marker at the floor is kept": Claim(
        [T1, end(reward=1.0), purge(2), reward(0.5)],
        CLOSED + "4 revised 0, reward 1/2",
    ),
    "a late reward at the floor keeps its marker": Claim(
        [T1, end(reward=1.0), reward(0.5, "b"), purge(3), reward(0.25, "c"), reward(0.5, "b")],
        CLOSED
        + """3 revised 0, reward 1/2
        5 revised 0, reward 1/4
        6 ignored""",
    ),
    "a late reward below the floor goes with its marker": Claim(
        [T1, end(reward=1.0), reward(0.5, "b"), purge(4), reward(0.25, "c")],
        CLOSED
        + """3 revised 0, reward 1/2
        5 refused unknown_session""",
    ),
    "an open session with a row below the floor stops it": Claim(
        [T1, end(reward=1.0), of("open", T3), purge(4), reward(0.5), of("open", end(reward=1.0))],
        CLOSED
        + """4 ignored
        5 revised 0, reward 1/2
        6 open: sample <v>{[hm}], reward 1
        6 open: closed completed, reward 1 | t3 root 3/3""",
    ),
    "an open session with its rows from the floor on does not": Claim(
        [T1, end(reward=1.0), of("open", T3), purge(3), reward(0.5), of("open", end(reward=1.0))],
        CLOSED
        + """5 refused unknown_session
        6 open: sample <v>{[hm}], reward 1
        6 open: closed completed, reward 1 | t3 root 3/3""",
    ),
    "a session that waits is open": Claim(
        [T1, end(), purge(3), reward(1.0)],
        """
        3 ignored
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "what was ignored stays ignored when the log is replayed": Claim(
        [
            *(T1, end(reward=1.0)),
            *(of("open", T3), purge(4), of("open", end(reward=1.0))),
            reward(0.5),
        ],
        CLOSED
        + """4 ignored
        5 open: sample <v>{[hm}], reward 1
        5 open: closed completed, reward 1 | t3 root 3/3
        6 revised 0, reward 1/2""",
    ),
    "a floor above the purge itself is refused, and swallows nothing": Claim(
        [T1, end(reward=1.0), purge(6), of("new", T1), of("new", end(reward=1.0))],
        CLOSED
        + """3 refused invalid_field
        5 new: sample <u>{[ok}], reward 1
        5 new: closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "the largest floor counts": Claim(
        [T1, end(reward=1.0), purge(3), purge(2), reward(0.5)],
        CLOSED + "5 refused unknown_session",
    ),
}
