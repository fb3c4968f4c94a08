"""Worked cases 1.x (where a turn hangs) and 3.x (rewrites and mixes): samples and trees.

Golden by hand. The numbers in the names are those of the test; a claim follows each.
`ok}` is 3 tokens, `call}` and `done}` are 5.
"""

from tests.core.golden import Case
from tests.core.notation import insert, replace, session, turn

WHERE_A_TURN_HANGS = {
    "1.1 one turn is one chain and one sample": Case(
        events=session(turn("«S»<u>", "ok")),
        samples="«S»<u>{[ok}]  reward 1",
        tree="""
            system S
            user u
            assistant ok  <- t1 root 3/3
            """,
    ),
    "1.2 a turn that replays the history extends it": Case(
        events=session(turn("«S»<u>", "call"), turn("«S»<u>{call}(x)", "done")),
        samples="«S»<u>{[call}](x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant call  <- t1 root 5/5
            tool x
            assistant done  <- t2 extend 5/5
            """,
    ),
    "1.3 another system prompt is another root": Case(
        events=session(turn("«A»<u>", "one"), turn("«B»<u>", "two")),
        samples="""
            «A»<u>{[one}]  reward 1/2 | 1
            «B»<u>{[two}]  reward 1/2 | 1
            """,
        tree="""
            ├─ system A
            │  user u
            │  assistant one  <- t1 root 4/4
            └─ system B
               user u
               assistant two  <- t2 root 4/4
            """,
    ),
    "1.4 two users share their system message": Case(
        events=session(turn("«S»<A>", "one"), turn("«S»<B>", "two")),
        samples="""
            «S»<A>{[one}]  reward 1/2 | 1
            «S»<B>{[two}]  reward 1/2 | 1
            """,
        tree="""
            system S
            ├─ user A
            │  assistant one  <- t1 root 4/4
            └─ user B
               assistant two  <- t2 root 4/4
            """,
    ),
    "1.5 two answers to one prompt are siblings": Case(
        events=session(turn("«S»<u>", "one"), turn("«S»<u>", "two")),
        samples="""
            «S»<u>{[one}]  reward 1/2 | 1
            «S»<u>{[two}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant one  <- t1 root 4/4
            └─ assistant two  <- t2 root 4/4
            """,
    ),
    "1.6 a shared answer trains on the first branch only": Case(
        events=session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ax"),
            turn("«S»<u>{call}(y)", "ay"),
        ),
        samples="""
            «S»<u>{[call}](x){[ax}]  reward 1/2 | 1
            «S»<u>{call}(y){[ay}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            assistant call  <- t1 root 5/5
            ├─ tool x
            │  assistant ax  <- t2 extend 3/3
            └─ tool y
               assistant ay  <- t3 extend 3/3
            """,
    ),
    "1.7 token ids play no part in where a turn hangs": Case(
        events=session(turn("«S»<u>", "one"), turn("«S»<u>", "two", drift=replace(1))),
        samples="""
            «S»<u>{[one}]  reward 1/2 | 1
            «!»<u>{[two}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant one  <- t1 root 4/4
            └─ assistant two  <- t2 root 4/4
            """,
    ),
    "1.8 two tool messages are two nodes": Case(
        events=session(turn("«S»<u>", "call"), turn("«S»<u>{call}(x)(y)", "done")),
        samples="«S»<u>{[call}](x)(y){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant call  <- t1 root 5/5
            tool x
            tool y
            assistant done  <- t2 extend 5/5
            """,
    ),
    "1.9 sessions do not see each other": Case(
        events=session(
            turn("«S»<u>", "one", session_id="a"),
            turn("«S»<u>", "two", session_id="b"),
            turn("«S»<u>{one}(x)", "more", session_id="a"),
        ),
        samples="""
            «S»<u>{[one}](x){[more}]  reward 1
            «S»<u>{[two}]  reward 1
            """,
        tree="""
            session a
            system S
            user u
            assistant one  <- t1 root 4/4
            tool x
            assistant more  <- t2 extend 5/5
            session b
            system S
            user u
            assistant two  <- t1 root 4/4
            """,
    ),
    "1.10 a turn without message and output is a leaf and no sample": Case(
        events=session(turn("«S»<u>", None, finish_reason="length")),
        samples="",
        tree="""
            system S
            user u
            assistant ∅  <- t1 root 0/0
            """,
    ),
}

REWRITES_AND_MIXES = {
    "3.1 a rewritten short answer absorbs the turn": Case(
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }(x)", "done")),
        samples="«S»<u>{ok·}(x){[done}]  reward 1",
        tree="""
            system S
            user u
            assistant ok·  <- t1 merged
            tool x
            assistant done  <- t2 root 5/5
            """,
        ledger="""
            t1 root 0/3 merged 3
            t2 root 5/5
            """,
    ),
    "3.2 at threshold 1 no answer is short, the rewrite forks": Case(
        threshold=1,
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }(x)", "done")),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok·}(x){[done}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant ok  <- t1 root 3/3
            └─ assistant ok·
               tool x
               assistant done  <- t2 root 5/5
            """,
    ),
    "3.3 at threshold 0 merging is off, the rewrite forks": Case(
        threshold=0,
        events=session(turn("«S»<u>", "ok"), turn("«S»<u>{ok }(x)", "done")),
        samples="""
            «S»<u>{[ok}]  reward 1/2 | 1
            «S»<u>{ok·}(x){[done}]  reward 1/2 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant ok  <- t1 root 3/3
            └─ assistant ok·
               tool x
               assistant done  <- t2 root 5/5
            """,
    ),
    "3.4 a rewrite of one of two answers is ambiguous and forks": Case(
        events=session(
            turn("«S»<u>", "aa"),
            turn("«S»<u>", "bb"),
            turn("«S»<u>{cc}(x)", "done"),
        ),
        samples="""
            «S»<u>{[aa}]  reward 1/3 | 1
            «S»<u>{[bb}]  reward 1/3 | 1
            «S»<u>{cc}(x){[done}]  reward 1/3 | 1
            """,
        tree="""
            system S
            user u
            ├─ assistant aa  <- t1 root 3/3
            ├─ assistant bb  <- t2 root 3/3
            └─ assistant cc
               tool x
               assistant done  <- t3 root 5/5
            """,
    ),
    "3.5 after a merge the rewritten text is the one that matches": Case(
        events=session(
            turn("«S»<u>", "ok"),
            turn("«S»<u>{ok }(x)", "done"),
            turn("«S»<u>{ok }(x){done}(y)", "end"),
        ),
        samples="«S»<u>{ok·}(x){[done}](y){[end}]  reward 1",
        tree="""
            system S
            user u
            assistant ok·  <- t1 merged
            tool x
            assistant done  <- t2 root 5/5
            tool y
            assistant end  <- t3 extend 4/4
            """,
    ),
    "3.6 a branch with drift gives its segments before the next branch": Case(
        events=session(
            turn("«S»<u>", "call"),
            turn("«S»<u>{call}(x)", "ax", drift=insert(1)),
            turn("«S»<u>{call}(y)", "ay"),
        ),
        samples="""
            «S»<u>{[call}]  reward 1/3 | 1
            «!S»<u>{call}(x){[ax}]  reward 1/3 | 1
            «S»<u>{call}(y){[ay}]  reward 1/3 | 1
            """,
        tree="""
            system S
            user u
            assistant call  <- t1 root 5/5
            ├─ tool x
            │  assistant ax  <- t2 fork 3/3
            └─ tool y
               assistant ay  <- t3 extend 3/3
            """,
    ),
    "3.7 of three branches the first trains what they share": Case(
        events=session(
            turn("«S»<u>", "a1"),
            turn("«S»<u>{a1}(x)", "a2"),
            turn("«S»<u>{a1}(x){a2}(p)", "e1"),
            turn("«S»<u>{a1}(x){a2}(q)", "e2"),
            turn("«S»<u>{a1}(x){a2}(r)", "e3"),
        ),
        samples="""
            «S»<u>{[a1}](x){[a2}](p){[e1}]  reward 1/3 | 1
            «S»<u>{a1}(x){a2}(q){[e2}]  reward 1/3 | 1
            «S»<u>{a1}(x){a2}(r){[e3}]  reward 1/3 | 1
            """,
        tree="""
            system S
            user u
            assistant a1  <- t1 root 3/3
            tool x
            assistant a2  <- t2 extend 3/3
            ├─ tool p
            │  assistant e1  <- t3 extend 3/3
            ├─ tool q
            │  assistant e2  <- t4 extend 3/3
            └─ tool r
               assistant e3  <- t5 extend 3/3
            """,
    ),
    # t3's own tool text drifts, which t3 cannot see: H of t2 ends before it. t4 renders that
    # text plainly and leaves t3's tokens at index 18, before t3's response: fork. t6 replaces
    # the END of t4's echo, index 30, inside t4's response [28, 31): realign.
    "3.8 a mix: drift in new tool text forks the next turn, a realign and a branch": Case(
        events=session(
            turn("«S»<u>", "a1"),
            turn("«S»<u>{a1}(x)", "a2"),
            turn("«S»<u>{a1}(x){a2}(y)", "a3", drift=insert(18)),
            turn("«S»<u>{a1}(x){a2}(y){a3}(z)", "a4"),
            turn("«S»<u>{a1}(w)", "b2"),
            turn("«S»<u>{a1}(x){a2}(y){a3}(z){a4}(v)", "a6", drift=replace(30)),
        ),
        samples="""
            «S»<u>{[a1}](x){[a2}](!y){[a3}]  reward 1/3 | 1
            «S»<u>{a1}(x){a2}(y){a3}(z){a4!(v){[a6}]  reward 1/3 | 1
            «S»<u>{a1}(w){[b2}]  reward 1/3 | 1
            """,
        tree="""
            system S
            user u
            assistant a1  <- t1 root 3/3
            ├─ tool x
            │  assistant a2  <- t2 extend 3/3
            │  tool y
            │  assistant a3  <- t3 extend 3/3
            │  tool z
            │  assistant a4  <- t4 fork 0/3
            │  tool v
            │  assistant a6  <- t6 realign 3/3
            └─ tool w
               assistant b2  <- t5 extend 3/3
            """,
    ),
}
