"""What each policy field beyond the three profiles changes, and which reason is named first.

Golden transcripts, written by hand from the contract; the notation is that of `life`.
"""

from tests.core.life import T1, T2, end, opened, reward, undelivered
from tests.core.life_claim import Claim
from tests.core.life_claims_limits import numbered, under
from tests.core.notation import Json, replace, turn

SAMPLE = """
        {0} sample <u>{{[ok}}], reward 1
        {0} closed completed, reward 1 | t1 root 3/3
        """
OKAY = turn("<u>", "okay", turn_id="t1")
DRIFTED = turn("<u>{okay}(x)", "done", turn_id="t2", drift=replace(6))
"""Echoes `ok!y}` where `okay}` was sampled."""
REWRITTEN = turn("<u>{ok }(x)", "done", turn_id="t2")


def trains(event: Json, **fields: object) -> Claim:
    return Claim([event, end(reward=1.0)], SAMPLE.format(2), under(**fields))


def masked(event: Json, reason: str, **fields: object) -> Claim:
    golden = f"2 closed completed, reward 1 | t1 root 0/3 {reason} 3"
    return Claim([event, end(reward=1.0)], golden, under(**fields))


CONSTRAINED = T1 | {"sampling": {"temperature": 1.0, "constraint": "json_schema"}}
FORCED = T1 | {"untrained_runs": [[1, 2, "repaired"]]}

FIELDS: dict[str, Claim] = {
    "an undelivered turn trains if the policy says so": Claim(
        [T1, undelivered("t1"), end(reward=1.0)], SAMPLE.format(3), under(train_undelivered=True)
    ),
    "a turn that is not trainable never trains": masked(
        T1 | {"trainable": False},
        "not_trainable",
        **{"train_undelivered": True, "train_constrained": True, "train_auxiliary": True},
    ),
    "a constrained turn does not train": masked(CONSTRAINED, "constrained"),
    "a constrained turn trains if the policy says so": trains(CONSTRAINED, train_constrained=True),
    "sampling without a constraint is none": trains(T1 | {"sampling": {"temperature": 0.5}}),
    "an auxiliary call does not train": masked(T1 | {"request_class": "auxiliary"}, "auxiliary"),
    "an auxiliary call trains if the policy says so": trains(
        T1 | {"request_class": "auxiliary"}, train_auxiliary=True
    ),
    **{
        f"a {kind} call trains": trains(T1 | {"request_class": kind})
        for kind in ("main", "subagent", "compaction")
    },
    "an ill-formed turn trains": trains(T1 | {"ill_formed": True}),
    "an ill-formed turn does not train if the policy says so": masked(
        T1 | {"ill_formed": True}, "ill_formed", train_ill_formed=False
    ),
    "forced tokens do not train, their neighbours do": Claim(
        [FORCED, T2, end(reward=1.0)],
        """
        3 sample <u>{[o]k[}](x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 2/3 forced 1; t2 extend 5/5
        """,
    ),
    "a masked turn leaves its neighbours as they were": Claim(
        [T1, T2 | {"trainable": False}, end(reward=1.0)],
        """
        3 sample <u>{[ok}](x){done}, reward 1
        3 closed completed, reward 1 | t1 root 3/3; t2 extend 0/5 not_trainable 5
        """,
    ),
    "realign masks the whole response": Claim(
        [OKAY, DRIFTED, end(reward=1.0)],
        """
        3 sample <u>{ok!y}(x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 0/5 realigned 5; t2 realign 5/5
        """,
    ),
    "realign may mask only from the divergence on": Claim(
        [OKAY, DRIFTED, end(reward=1.0)],
        """
        3 sample <u>{[ok]!y}(x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 2/5 realigned 3; t2 realign 5/5
        """,
        under(realign_masks="from_divergence"),
    ),
    "forced tokens before the divergence stay forced": Claim(
        [OKAY | {"untrained_runs": [[1, 3, "repaired"]]}, DRIFTED, end(reward=1.0)],
        """
        3 sample <u>{[o]k!y}(x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 1/5 forced 2 realigned 2; t2 realign 5/5
        """,
        under(realign_masks="from_divergence"),
    ),
    "a session without a reward trains if the policy says so": Claim(
        [T1, end()],
        """
        end sample <u>{[ok}], reward none
        end closed completed, no reward | t1 root 3/3
        """,
        under(require_reward=False),
    ),
    "its samples take a later reward": Claim(
        [T1, end(reward_pending=False), reward(1.0)],
        """
        2 sample <u>{[ok}], reward none
        2 closed completed, no reward | t1 root 3/3
        3 revised 0, reward 1
        """,
        under(require_reward=False),
    ),
    "a status trains if the policy says so": Claim(
        [T1, end("error", reward=1.0)],
        """
        2 sample <u>{[ok}], reward 1
        2 closed error, reward 1 | t1 root 3/3
        """,
        under(train_statuses=frozenset({"error"})),
    ),
    "and then waits for its reward": Claim(
        [T1, end("error"), reward(1.0)],
        """
        3 sample <u>{[ok}], reward 1
        3 closed error, reward 1 | t1 root 3/3
        """,
        under(train_statuses=frozenset({"error"})),
    ),
    "a status does not train if the policy does not name it": Claim(
        [T1, end("completed")],
        "2 closed completed, withheld status, no reward | t1 root 0/3 status 3",
        under(train_statuses=frozenset({"error"})),
    ),
    "rejected never trains": Claim(
        [T1, end("rejected", reward=1.0)],
        "2 closed rejected, withheld rejected, reward 1 | t1 root 0/3 rejected 3",
        under(train_statuses=frozenset({"rejected"})),
    ),
}

# One turn with every reason of its own; each row takes the first away.
OWN_REASONS: list[tuple[str, Json]] = [
    ("undelivered", {"delivered": False}),
    ("not_trainable", {"trainable": False}),
    ("constrained", {"sampling": {"constraint": "schema"}}),
    ("auxiliary", {"request_class": "auxiliary"}),
    ("ill_formed", {"ill_formed": True}),
    ("forced", {"untrained_runs": [[0, 3, "forced"]]}),
]


def with_reasons(first: int) -> Json:
    event = T1
    for _, fields in OWN_REASONS[first:]:
        event = event | fields
    return event


RETRIED = turn("<u>", "no", turn_id="t0")
PRECEDENCE: dict[str, Claim] = {
    **{
        f"{reason} before those behind it": masked(
            with_reasons(first), reason, train_ill_formed=False
        )
        for first, (reason, _) in enumerate(OWN_REASONS)
    },
    "a gap before undelivered": Claim(
        [numbered(T1, 2) | {"delivered": False}, end(reward=1.0)],
        "2 closed completed, withheld gap, gaps 1, reward 1 | t1 root 0/3 gap 3",
    ),
    "no reward before a gap": Claim(
        [numbered(T1, 2), end(reward_pending=False)],
        "2 closed completed, withheld no_reward, gaps 1, no reward | t1 root 0/3 no_reward 3",
    ),
    "a status before no reward": Claim(
        [T1, end("error")],
        "2 closed error, withheld status, no reward | t1 root 0/3 status 3",
    ),
    "eval before a status": Claim(
        [T1 | {"split": "eval"}, end("error")],
        "2 closed error, withheld eval, no reward | t1 root 0/3 eval 3",
    ),
    "rejected before eval": Claim(
        [T1 | {"split": "eval"}, end("error", accepted=False)],
        "2 closed error, withheld rejected, not accepted, no reward | t1 root 0/3 rejected 3",
    ),
    "forced before a retry orphan, token by token": Claim(
        [FORCED, RETRIED, end(reward=1.0)],
        """
        3 sample <u>{[no}], reward 1
        3 closed completed, reward 1 | t1 root 0/3 forced 1 retry_orphan 2; t0 root 3/3
        """,
        under(drop_retry_orphans=True),
    ),
    "forced before merged, token by token": Claim(
        [FORCED, REWRITTEN, end(reward=1.0)],
        """
        3 sample <u>{ok·}(x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 0/3 forced 1 merged 2; t2 root 5/5
        """,
    ),
    "forced before realigned, token by token": Claim(
        [OKAY | {"untrained_runs": [[0, 2, "forced"]]}, DRIFTED, end(reward=1.0)],
        """
        3 sample <u>{ok!y}(x){[done}], reward 1
        3 closed completed, reward 1 | t1 root 0/5 forced 2 realigned 3; t2 realign 5/5
        """,
    ),
    "oversize last, token by token": Claim(
        [opened(budgets={"sample_bytes": 1}), FORCED, end(reward=1.0)],
        """
        3 closed completed, reward 1 | t1 root 0/3 forced 1 oversize 2
        3 refused oversize t1
        """,
    ),
}
