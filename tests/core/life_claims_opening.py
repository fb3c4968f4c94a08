"""What starts a session, who it says it is, and which of its turns the client never got.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from tests.core.life import T1, T2, T3, end, event, expired, of, opened, reward, undelivered
from tests.core.life_claim import Claim
from tests.core.notation import turn

TRAINED = "t1 root 3/3"
LOST = "t1 root 0/3 undelivered 3"

OPENING: dict[str, Claim] = {
    "a turn with its whole prompt starts a session": Claim(
        [T1, end(reward=1.0)],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "session_opened starts a session, also one without a turn": Claim(
        [opened()],
        "end closed completed, withheld no_reward, implied, no reward |",
    ),
    "session_ended starts a session and may close it": Claim(
        [end("error")],
        "1 closed error, withheld status, no reward |",
    ),
    "session_ended starts a session and may leave it waiting": Claim(
        [end(), reward(1.0)],
        "2 closed completed, reward 1 |",
    ),
    "anything else about an unknown session is refused": Claim(
        [
            reward(1.0, "a"),
            undelivered("t1"),
            expired(1),
            T2 | {"base_turn_id": "t1", "kept_messages": 2, "kept_ids": 7},
        ],
        """
        1 refused unknown_session
        2 refused unknown_session t1
        3 refused unknown_session
        4 refused unknown_session t2
        """,
    ),
    "what came before the start is not remembered": Claim(
        [reward(0.5, "a"), T1, reward(1.0, "a"), end()],
        """
        1 refused unknown_session
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "a refused event starts nothing": Claim(
        [opened(policy="nonsense"), opened(budgets={"naps": 1}), T1 | {"v": 2}, reward(1.0)],
        """
        1 refused invalid_field
        2 refused invalid_field
        3 refused unknown_version t1
        4 refused unknown_session
        """,
    ),
    "sessions do not touch each other": Claim(
        [T1, of("other", T1), of("other", end(reward=0.5)), reward(1.0), of("other", T2), end()],
        """
        3 other: sample <u>{[ok}], reward 1/2
        3 other: closed completed, reward 1/2 | t1 root 3/3
        5 other: refused late_turn t2
        6 sample <u>{[ok}], reward 1
        6 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "session_opened may come after the first turn": Claim(
        [T1, opened(group_id="g"), end(reward=1.0)],
        """
        3 sample <u>{[ok}], reward 1
        3 closed completed, reward 1 | t1 root 3/3
        """,
    ),
    "the same session_opened again changes nothing": Claim(
        [opened(group_id="g"), opened(group_id="g"), T1, end(reward=1.0)],
        """
        2 ignored
        4 sample <u>{[ok}], reward 1
        4 closed completed, duplicates 1, reward 1 | t1 root 3/3
        """,
    ),
    "another session_opened is a bad event": Claim(
        [opened(group_id="g"), opened(group_id="g", step=1), T1, end(reward=1.0)],
        """
        2 refused invalid_field
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
    "a session_opened with fewer fields is another one": Claim(
        [opened(group_id="g", metadata={"a": 1}), opened(group_id="g"), T1, end(reward=1.0)],
        """
        2 refused invalid_field
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
    "a turn that contradicts the identity is refused whole": Claim(
        [opened(group_id="g"), T1 | {"group_id": "h"}, T1, T2 | {"group_id": "g"}, end(reward=1.0)],
        """
        2 refused invalid_field t1
        5 sample <u>{[ok}](x){[done}], reward 1
        5 closed completed, refused 1, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "an end that contradicts the identity ends nothing": Claim(
        [T1 | {"attempt": 0}, end(reward=1.0, attempt=1), T2, end(reward=0.5, attempt=0)],
        """
        2 refused invalid_field
        4 sample <u>{[ok}](x){[done}], reward 1/2
        4 closed completed, refused 1, reward 1/2 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "an opening that contradicts the identity opens nothing": Claim(
        [T1 | {"step": 1}, opened(step=2, run_id="r"), T2 | {"run_id": "q"}, end(reward=1.0)],
        """
        2 refused invalid_field
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "of a refused turn no identity is kept": Claim(
        [T1, T2 | {"base_turn_id": "t9", "group_id": "g"}, T2 | {"group_id": "h"}, end(reward=1.0)],
        """
        2 refused unknown_base t2
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "a session that began by a turn keeps its policy": Claim(
        [T1, opened(policy="slime"), opened(policy="seed"), end(reward=1.0)],
        """
        2 refused invalid_field
        4 sample <u>{[ok}], reward 1
        4 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
}

TWIN = turn("<u>", "no", turn_id="twin")
AFTER_TWIN = turn("<u>{no}(x)", "done", turn_id="t2")
OTHER_TOOL = turn("<u>{ok}(y)", "well", turn_id="t4")

UNDELIVERED: dict[str, Claim] = {
    "a turn reported undelivered does not train": Claim(
        [T1, undelivered("t1"), end(reward=1.0)],
        f"3 closed completed, reward 1 | {LOST}",
    ),
    "a turn may be reported undelivered before it comes": Claim(
        [opened(), undelivered("t1"), T1, end(reward=1.0)],
        f"4 closed completed, reward 1 | {LOST}",
    ),
    "a turn may say itself that it was not delivered": Claim(
        [T1 | {"delivered": False}, end(reward=1.0)],
        f"2 closed completed, reward 1 | {LOST}",
    ),
    "a turn may be reported undelivered while its session waits": Claim(
        [T1, end(), undelivered("t1"), reward(1.0)],
        f"4 closed completed, reward 1 | {LOST}",
    ),
    "after the close the report is ignored": Claim(
        [T1, end(reward=1.0), undelivered("t1")],
        """
        2 sample <u>{[ok}], reward 1
        2 closed completed, reward 1 | t1 root 3/3
        3 ignored
        """,
    ),
    "an unknown turn id is no error": Claim(
        [T1, undelivered("t9"), undelivered(), end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1
        4 closed completed, lost 1, reward 1 | t1 root 3/3
        """,
    ),
    "a turn that a later one extends was delivered": Claim(
        [T1, undelivered("t1"), T2, end(reward=1.0)],
        """
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "also when the report comes after the later one": Claim(
        [T1, T2, undelivered("t1"), end(reward=1.0)],
        """
        4 sample <u>{[ok}](x){[done}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "also when the turn itself said it was not": Claim(
        [T1 | {"delivered": False}, T2, end(reward=1.0)],
        """
        3 sample <u>{[ok}](x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 3/3; t2 extend 5/5
        """,
    ),
    "of two twins the one that went on trains": Claim(
        [T1, TWIN, AFTER_TWIN, undelivered("t1"), end(reward=1.0)],
        """
        5 sample <u>{[no}](x){[done}], reward 1
        5 closed completed, reward 1 | t1 root 0/3 undelivered 3; twin root 3/3; t2 extend 5/5
        """,
    ),
    "an undelivered leaf does not keep what it hangs from": Claim(
        [T1, T2, OTHER_TOOL, undelivered("t2"), end(reward=1.0)],
        """
        5 sample <u>{[ok}](y){[well}], reward 1
        5 closed completed, reward 1 | t1 root 3/3; t2 extend 0/5 undelivered 5; t4 extend 5/5
        """,
    ),
    "when every leaf is undelivered the last delivered turn still trains": Claim(
        [T1, T2, undelivered("t2"), end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t2 extend 0/5 undelivered 5
        """,
    ),
    "the reward is split over the samples that are left": Claim(
        [T1, T3, undelivered("t3"), end(reward=1.0)],
        """
        4 sample <u>{[ok}], reward 1
        4 closed completed, reward 1 | t1 root 3/3; t3 root 0/3 undelivered 3
        """,
    ),
    "a bad report is refused": Claim(
        [T1, event("turn_undelivered", turn_id="t1", seq=0), end(reward=1.0)],
        """
        2 refused invalid_field t1
        3 sample <u>{[ok}], reward 1
        3 closed completed, refused 1, reward 1 | t1 root 3/3
        """,
    ),
}
