"""Errors in what trains, who owns it, and how samples and ledger are written."""

from tests.mutants.mutant import in_file

GOLDEN = (
    "tests/core/test_fine_print.py",
    "tests/core/test_worked_cases.py",
    "tests/core/test_recorded_cases.py",
)
HOLES = ("tests/core/test_holes.py",)

OWNERS = in_file(
    "streams/core/linearize.py",
    GOLDEN + HOLES,
    {
        "samples-in-the-order-of-time": (
            "    for leaf in kept:\n",
            "    for leaf in sorted(kept, key=lambda turn: turn.order):\n",
        ),
        "children-visited-last-first": (
            "unvisited += node.children[::-1]",
            "unvisited += node.children",
        ),
        "owned-by-the-rightmost-leaf": (
            "heir.setdefault(turn.above.order, turn)",
            "heir[turn.above.order] = turn",
        ),
        "owned-by-the-earliest-follower": (
            "    for turn in kept:\n",
            "    for turn in sorted(kept, key=lambda turn: turn.order):\n",
        ),
        "shared-turn-trains-on-every-branch": (
            " and heir[above.order] is owned[-1]:",
            ":",
        ),
        "mask-of-a-demoted-follower-sticks": (
            "            heir.get(turn.order),\n",
            "            next((t for t in tree.turns.values() if t.above is turn and t.merged and "
            't.attach == "realign"), heir.get(turn.order)),\n',
        ),
        "realign-on-another-branch-masks": (
            "            heir.get(turn.order),\n",
            '            next((t for t in kept if t.above is turn and t.attach == "realign"), '
            "heir.get(turn.order)),\n",
        ),
        "realigned-turn-trains": (
            'if heir is not None and heir.attach == "realign":',
            "if False:",
        ),
        "extended-turn-is-masked-too": (
            'if heir is not None and heir.attach == "realign":',
            'if heir is not None and heir.attach != "fork":',
        ),
        "merged-turn-counted-as-realigned": (
            'return "merged" if turn.merged and',
            'return "realigned" if turn.merged and',
        ),
        "fork-does-not-cut": (
            'if i == 0 or turn.attach in ("fork", "root")]',
            "if i == 0]",
        ),
        "segment-without-a-trained-token-emitted": (
            "if any(fate.trained for fate in mine):",
            "if mine:",
        ),
    },
)

REASONS = in_file(
    "streams/core/linearize.py",
    HOLES,
    {
        "undelivered-leaf-keeps-ownership": (
            'dropped[turn.order] = "undelivered"',
            "pass",
        ),
        "extended-turn-counts-as-undelivered": (
            "if turn.undelivered and not turn.extended and not policy.train_undelivered:",
            "if turn.undelivered and not policy.train_undelivered:",
        ),
        "session-reason-behind-the-turns-own": (
            "withheld or _own_reason(turn, policy)",
            "_own_reason(turn, policy) or withheld",
        ),
        "auxiliary-before-constrained": (
            "    if not policy.train_constrained and",
            '    if not policy.train_auxiliary and event.request_class == "auxiliary":\n'
            '        return "auxiliary"\n'
            "    if not policy.train_constrained and",
        ),
        "undelivered-behind-not-trainable": (
            "    if turn.undelivered and not turn.extended and not policy.train_undelivered:\n",
            "    if not event.trainable:\n"
            '        return "not_trainable"\n'
            "    if turn.undelivered and not turn.extended and not policy.train_undelivered:\n",
        ),
        "forced-tokens-train": (
            "    if turn.event.untrained_runs:\n",
            "    if turn.event.untrained_runs and turn.merged:\n",
        ),
        "forced-tokens-of-a-merged-turn-counted-as-merged": (
            "_count(fate, dropped, total(free))",
            "fate.untrained = {dropped: turn.generated}",
        ),
        "first-token-that-differs-trains": (
            "intact = heir.shared if",
            "intact = heir.shared + 1 if",
        ),
        "oldest-retry-stays": (
            "ends.remove(max(ends, key=_age(copies)))",
            "ends.remove(min(ends, key=_age(copies)))",
        ),
        "oversize-tokens-counted-as-trained": (
            "            fate.trained = []\n",
            "",
        ),
    },
)

PREFIX = in_file(
    "streams/core/linearize.py",
    ("tests/core/test_holes_life.py", "tests/core/test_life_claims.py"),
    {
        "turn-behind-the-hole-trains": (
            '"gap" if turn.order >= turns else None',
            '"gap" if turn.order > turns else None',
        ),
        "rewrite-behind-the-hole-untrains": (
            '"merged" if turn.merged and turn.merged_by < prefix else None',
            '"merged" if turn.merged else None',
        ),
        "turn-rewritten-behind-the-hole-does-not-stand": (
            "node.merged.merged_by >= prefix:",
            "node.merged.merged_by > prefix:",
        ),
    },
)

ASSEMBLY = in_file(
    "streams/core/assembly.py",
    GOLDEN + HOLES,
    {
        "logprobs-kept-where-nothing-trains": (
            '    return np.frombuffer(b"".join(pieces), _FLOAT32)\n',
            '    logprobs = np.frombuffer(b"".join(pieces), _FLOAT32).copy()\n'
            "    for turn, end in _sampled_ends(segment.turns()):\n"
            "        if turn.event.logprobs is not None:\n"
            "            sampled = turn.event.logprobs[: end - turn.prompt_len]\n"
            "            logprobs[turn.prompt_len : end] = sampled\n"
            "    return logprobs\n",
        ),
        "missing-logprobs-not-told": (
            "if fate.turn.event.logprobs is None for run in fate.trained",
            "if fate is None for run in fate.trained",
        ),
        "logprobs-shifted-by-one": (
            "given[start - at : end - at]",
            "np.roll(given, 1)[start - at : end - at]",
        ),
        "prompt-len-of-the-first-turn": (
            '"prompt_len": runs[0][0],',
            '"prompt_len": segment.turns()[0].prompt_len,',
        ),
        "prompt-len-of-the-last-turn": (
            '"prompt_len": runs[0][0],',
            '"prompt_len": segment.last.prompt_len,',
        ),
        "sampled-span-ends-with-its-turn": (
            "ends = [following.shared for following in turns[1:]]",
            "ends = [turn.end for turn in turns[:-1]]",
        ),
        "versions-over-untrained-tokens": (
            "low = run[0] if run[0] > at else at",
            "low = at",
        ),
        "a-turn-without-versions-has-no-run": (
            "[(UNKNOWN_VERSION, start, end) for start, end in fate.trained]",
            "[]",
        ),
        "tool-turns-of-the-context-counted": (
            "fate.turn.calls_tool for fate in segment.owned",
            "turn.calls_tool for turn in segment.turns()",
        ),
    },
)

SHARES = in_file(
    "streams/core/closing.py",
    GOLDEN + HOLES,
    {
        "reward-split-over-leaves": (
            "share(session.rewards.value, len(chosen), session.policy.reward_share)",
            "share(session.rewards.value, len({id(p.segment.leaf) for p in chosen}), "
            "session.policy.reward_share)",
        ),
        "reward-split-over-all-segments": (
            "share(session.rewards.value, len(chosen), session.policy.reward_share)",
            "share(session.rewards.value, sum(turn.attach in ('root', 'fork') and not turn.merged "
            "for turn in session.tree.turns.values()), session.policy.reward_share)",
        ),
        "oversize-left-out-after-the-split": (
            "share(session.rewards.value, len(chosen), session.policy.reward_share)",
            "share(session.rewards.value, len(segments), session.policy.reward_share)",
        ),
        "sample-id-of-the-first-turn": (
            "session.policy.label, segment.last.event.turn_id",
            "session.policy.label, segment.turns()[0].event.turn_id",
        ),
        "sample-id-without-the-changed-rules": (
            "session.policy.label, segment.last.event.turn_id",
            "session.policy.profile, segment.last.event.turn_id",
        ),
    },
)

SHARE_RULES = in_file(
    "streams/core/rewards.py",
    GOLDEN,
    {
        "share-rules-swapped": (
            'if rule == "split" else value',
            'if rule == "full" else value',
        ),
    },
)

SAMPLES = (*OWNERS, *REASONS, *PREFIX, *ASSEMBLY, *SHARES, *SHARE_RULES)
