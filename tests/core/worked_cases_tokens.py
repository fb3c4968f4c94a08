"""Worked cases 2.x (drift, logprobs, rewards) and 4.x (edges): samples and logprobs.

Golden by hand. 2.12 and 4.4 are about the end of a session and stand in the test module.
Indices of the prompt `«S»<u>{ok}(x){`: the first prompt is [0, 7), `ok}` is [7, 10).
"""

from tests.core.golden import Case
from tests.core.notation import insert, replace, session, turn

DRIFT_LOGPROBS_REWARDS = {
    "2.1 a turn's logprobs and its session's reward stand on the sample": Case(
        events=session(turn("«S»<u>", "ok", logprobs="123")),
        samples="«S»<u>{[ok}]  reward 1",
        logprobs=".......123",
    ),
    "2.2 between two turns' logprobs the new prompt has zeros": Case(
        events=session(
            turn("«S»<u>", "ok", logprobs="123"),
            turn("«S»<u>{ok}(x)", "done", logprobs="45678"),
        ),
        samples="«S»<u>{[ok}](x){[done}]  reward 1",
        logprobs=".......123....45678",
    ),
    "2.3 drift inside the first prompt forks and loses nothing": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done", drift=insert(1))),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «!S»<u>{ok}(x){[done}]  reward 1/2 | 1
            """,
        ledger="""
            t1 root 3/3
            t2 fork 5/5
            """,
    ),
    "2.4 drift inside the last response realigns and untrains all of it": Case(
        events=session(
            turn("«S»<u>", "ok", logprobs="123"),
            turn("«S»<u>{ok}(x)", "done", drift=replace(9), logprobs="45678"),
        ),
        samples="«S»<u>{ok!(x){[done}]  reward 1",
        logprobs="..............45678",
        ledger="""
            t1 root 0/3 realigned 3
            t2 realign 5/5
            """,
    ),
    "2.5 at threshold 1 that drift forks": Case(
        threshold=1,
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done", drift=replace(9))),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok!(x){[done}]  reward 1/2 | 1
            """,
    ),
    "2.6 at threshold 0 that drift forks": Case(
        threshold=0,
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done", drift=replace(9))),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok!(x){[done}]  reward 1/2 | 1
            """,
    ),
    "2.7 drift inside an earlier response always forks": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "mid"),
            turn("«S»<u>{ok}(x){mid}(y)", "done", drift=replace(8)),
        ),
        samples="""
            «S»<u>{[ok}](x){[mid}]  reward 1/2 | 1
            «S»<u>{o!}(x){mid}(y){[done}]  reward 1/2 | 1
            """,
    ),
    "2.8 two segments: seed splits the reward, slime repeats it": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok}(x)", "done", drift=insert(4))),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<!u>{ok}(x){[done}]  reward 1/2 | 1
            """,
    ),
    "2.9 two leaves: seed splits the reward, slime repeats it": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<v>", "hm")),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<v>{[hm}]  reward 1/2 | 1
            """,
    ),
    "2.10 shared context has no logprobs on the second branch": Case(
        events=session(
            turn("«S»<u>", "call", logprobs="12345"),
            turn("«S»<u>{call}(x)", "ax", logprobs="678"),
            turn("«S»<u>{call}(y)", "ay", logprobs="789"),
        ),
        samples="""
            «S»<u>{[call}](x){[ax}]  reward 1/2 | 1
            «S»<u>{call}(y){[ay}]  reward 1/2 | 1
            """,
        logprobs="""
            .......12345....678
            ................789
            """,
    ),
    "2.11 an assistant message nobody sampled is context": Case(
        events=session(
            turn("«S»<u>", "one"),
            turn("«S»<u>{one}(x)", "two"),
            turn("«S»<u>{one}(x){two}(y){note}(z)", "three"),
        ),
        samples="«S»<u>{[one}](x){[two}](y){note}(z){[three}]  reward 1",
        tree="""
            system S
            user u
            assistant one  <- t1 root 4/4
            tool x
            assistant two  <- t2 extend 4/4
            tool y
            assistant note
            tool z
            assistant three  <- t3 extend 6/6
            """,
    ),
}

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
WRITE = {"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}

EDGES = {
    "4.1 tools never decide where a turn hangs": Case(
        events=session(
            turn("«S»<u>", "call", tools=[SEARCH]),
            turn("«S»<u>{call}(x)", "done", tools=[WRITE, SEARCH]),
        ),
        samples="«S»<u>{[call}](x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant call  <- t1 root 5/5
            tool x
            assistant done  <- t2 extend 5/5
            """,
    ),
    "4.2 too few logprobs: the turn is refused and changes nothing": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok}(x)", "done", logprobs="123"),
            turn("«S»<u>{ok}(x)", "end", logprobs="4567"),
        ),
        samples="«S»<u>{[ok}](x){[end}]  reward 1",
        logprobs="..............4567",
        tree="""
            system S
            user u
            assistant ok  <- t1 root 3/3
            tool x
            assistant end  <- t3 extend 4/4
            """,
        ledger="""
            t1 root 3/3
            t3 extend 4/4
            """,
        dead_letters="t2 length_mismatch",
    ),
    "4.3 a turn without prompt messages is refused and not counted": Case(
        events=session(turn("", "ok"), turn("«S»<u>", "done")),
        samples="«S»<u>{[done}]  reward 1",
        ledger="t2 root 5/5",
        dead_letters="t1 invalid_field",
    ),
    "4.3 a session of only such turns has an empty ledger": Case(
        events=session(turn("", "ok")),
        samples="",
        ledger="",
        dead_letters="t1 invalid_field",
    ),
    "4.5 a turn without logprobs trains with zeros": Case(
        events=session(
            turn("«S»<u>", "ok", logprobs="123"),
            turn("«S»<u>{ok}(x)", "done"),
        ),
        samples="«S»<u>{[ok}](x){[done}]  reward 1",
        logprobs=".......123.........",
    ),
    # `okay}` is [7, 12); the echo leaves it at index 9, so the drifted tail is 3 tokens.
    "4.6 seed: a drifted tail of threshold tokens forks": Case(
        profiles=("seed",),
        threshold=3,
        events=session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=replace(9))),
        samples="""
            «S»<u>{[okay}]  reward 1/2
            «S»<u>{ok!y}(x){[done}]  reward 1/2
            """,
    ),
    "4.6 seed: a drifted tail of threshold - 1 tokens realigns": Case(
        profiles=("seed",),
        threshold=4,
        events=session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=replace(9))),
        samples="«S»<u>{ok!y}(x){[done}]  reward 1",
    ),
    # slime looks at the new output instead: `done}` is 5 tokens.
    "4.6 slime: a new output of threshold tokens forks": Case(
        profiles=("slime",),
        threshold=5,
        events=session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=replace(9))),
        samples="""
            «S»<u>{[okay}]  reward 1
            «S»<u>{ok!y}(x){[done}]  reward 1
            """,
    ),
    "4.6 slime: a new output of threshold - 1 tokens realigns": Case(
        profiles=("slime",),
        threshold=6,
        events=session(turn("«S»<u>", "okay"), turn("«S»<u>{okay}(x)", "done", drift=replace(9))),
        samples="«S»<u>{ok!y}(x){[done}]  reward 1",
    ),
}
