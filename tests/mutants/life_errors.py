"""Errors in the life of a session: duplicates, lateness, rewards, closing, purging."""

from tests.mutants.mutant import in_file

HOLES = ("tests/core/test_holes_life.py", "tests/core/test_holes.py")
REWARD_TESTS = ("tests/core/test_life_claims.py", "tests/core/test_reward_origins.py")
GOLDEN = ("tests/core/test_fine_print.py", "tests/core/test_worked_cases.py")

SESSION = in_file(
    "streams/core/session.py",
    HOLES + GOLDEN,
    {
        "duplicate-turn-taken-as-new": (
            "known = session.tree.turns.get(event.turn_id)",
            "known = None",
        ),
        "turn-after-the-end-accepted": (
            "    if session.ended is not None:\n        raise BadEvent(",
            "    if False:\n        raise BadEvent(",
        ),
        "duplicate-after-the-end-is-late": (
            "    if known is not None:\n",
            "    if known is not None and session.ended is None:\n",
        ),
        "refused-turn-leaves-its-identity": (
            "    identity = _merged_identity(session, event)\n    _check_payload(",
            "    session.identity = identity = _merged_identity(session, event)\n"
            "    _check_payload(",
        ),
        "undelivered-ahead-of-its-turn-forgotten": (
            "recorded.undelivered or event.turn_id in session.undelivered",
            "recorded.undelivered",
        ),
        "expiry-not-guarded-by-the-newest-row": (
            "if event.last_offset != session.newest:",
            "if event.last_offset is None:",
        ),
        "stale-expiry-moves-the-newest-row": (
            "    if effects.row is not None:\n",
            "    if effects is not None:\n",
        ),
        "refused-event-does-not-move-the-newest-row": (
            "    session.rows += 1\n    session.newest = position\n",
            "    session.rows += 1\n    session.newest = position if code in (DUPLICATE, IGNORED) "
            "else session.newest\n",
        ),
        "refused-event-not-counted": (
            "count(session, error.code, position, refused)",
            "session.newest = position",
        ),
        "counts-not-restored": (
            "count(state, row.code, row.position, row.refused_turn)",
            "pass",
        ),
        "replay-at-the-newest-row-applied-again": (
            "position <= state.newest",
            "position < state.newest",
        ),
        "pending-end-closes-at-once": (
            "    if _waits_for_reward(session, event):\n",
            "    if _waits_for_reward(session, event) and session.rewards.has_final:\n",
        ),
        "known-reward-overrules-pending": (
            "    if pending is not None:\n",
            "    if pending is not None and not session.rewards.has_final:\n",
        ),
        "untrained-status-waits-for-a-reward": (
            "return trains and end",
            "return end",
        ),
        "timeout-waits-for-a-reward": (
            'trains and end.end_status != "timeout" and',
            "trains and",
        ),
        "opening-does-not-say-that-a-reward-is-pending": (
            "pending is None and session.opened is not None:",
            "pending is None and session.opened is None:",
        ),
        "kept-timeout-closes-when-restored": (
            "apply(state, _as_kept(row.event),",
            "apply(state, row.event,",
        ),
        "provisional-reward-closes": (
            "event.turn_id is None and event.final:",
            "event.turn_id is None:",
        ),
        "turn-reward-closes": (
            "event.turn_id is None and event.final:",
            "event.final:",
        ),
        "repeated-reward-closes": (
            "if session.rewards.knows(event):",
            "if session.rewards.knows(event) and session.ended is None:",
        ),
        "second-end-replaces-the-first": (
            "if session.ended is not None:\n        return _counted(",
            "if session.ended is not None and event == session.ended:\n        return _counted(",
        ),
        "opening-beats-the-command-line": (
            "event.policy is not None and not rules.forced_policy:\n"
            "        session.policy = session.tree.policy",
            "event.policy is not None:\n        session.policy = session.tree.policy",
        ),
        "any-event-begins-a-session": (
            "if not self_contained and not isinstance(event, SessionOpened | SessionEnded):",
            "if isinstance(event, Turn) and not self_contained:",
        ),
    },
)

TWINS = in_file(
    "streams/core/twins.py",
    HOLES + GOLDEN,
    {
        "forked-turn-id-accepted": ("    if differing:\n", "    if len(differing) > 4:\n"),
        "twin-with-another-prompt-accepted": (
            '"prompt": prompt_equal,',
            '"prompt": True,',
        ),
        "twin-with-another-output-accepted": (
            '"output_ids": event.output_ids.tobytes() == read(',
            '"output_ids": True or read(',
        ),
        "twin-with-other-logprobs-accepted": (
            "np.array_equal(told, event.logprobs)",
            "told.size == event.logprobs.size",
        ),
        "twin-without-logprobs-accepted": (
            '"logprobs": (told is None) == (event.logprobs is None)\n',
            '"logprobs": True\n',
        ),
        "twin-with-another-response-accepted": (
            '"response_message": digest == (known.response.digest if known.response else None),',
            '"response_message": True,',
        ),
    },
)

REWARDS = in_file(
    "streams/core/rewards.py",
    (*HOLES, *REWARD_TESTS),
    {
        "no-reward-becomes-zero": (
            "    value: float | None = None\n",
            "    value: float | None = 0.0\n",
        ),
        "repeated-reward-id-replaces": (
            "self._ids(reward.origin).add(reward.reward_id)",
            "pass",
        ),
        "default-reward-beats-the-given-one": (
            "        if self.value is None:\n            self.value, self.default",
            "        if default is not None:\n            self.value, self.default",
        ),
        "first-reward-stays": (
            "reward.origin) >= before",
            "reward.origin) > before",
        ),
        "judged-reward-replaces-a-given-one": (
            'return number is not None, origin == "given"',
            "return number is not None, True",
        ),
        "given-nan-replaces-a-judged-number": (
            'return number is not None, origin == "given"',
            'return origin == "given", number is not None',
        ),
        "judged-reward-of-a-turn-forgets-its-origin": (
            '"judged" if turn_id in self.judged_turns else "given"',
            '"given"',
        ),
        "default-taken-for-a-reward": (
            "known = not self.default and (",
            "known = (",
        ),
        "final-reward-forgotten-by-a-provisional-one": (
            "self.has_final = self.has_final or reward.final",
            "self.has_final = reward.final",
        ),
        "turn-reward-ends-the-waiting": (
            "        if reward.turn_id is None:\n            self.has_final",
            "        if True:\n            self.has_final",
        ),
        "reward-that-is-no-number-not-told": (
            "self.invalid, self.default = number is None, False",
            "self.invalid, self.default = False, False",
        ),
    },
)

STATE = in_file(
    "streams/core/state.py",
    HOLES,
    {
        "late-reward-written-into-the-marker": (
            "rewards=marker.rewards.copy(),",
            "rewards=marker.rewards,",
        ),
    },
)

AFTER_CLOSE = in_file(
    "streams/core/after_close.py",
    (*HOLES, *REWARD_TESTS),
    {
        "judged-reward-after-a-given-one-is-a-bad-event": (
            'if event.origin == "judged" and not book.would_count(reward):',
            "if False:",
        ),
        "late-reward-forgets-the-ones-before": (
            "        return state.rewards\n",
            "        return state.marker.rewards.copy()\n",
        ),
        "replayed-late-reward-over-the-newest-book": (
            "book = state.marker.rewards.copy()",
            "book = state.rewards.copy()",
        ),
        "replayed-late-reward-meets-itself": (
            "if at < position:",
            "if at <= position:",
        ),
        "late-share-over-the-revised-samples": (
            "share(book.value, len(marker.samples), marker.reward_share)",
            "share(book.value, len(turn_ids), marker.reward_share)",
        ),
        "turn-reward-revises-every-sample": (
            "    revised = state.sizes.samples_of(event.turn_id)\n    if not",
            "    revised = state.sizes.samples_of(None)\n    if not",
        ),
        "turn-after-the-close-passes-silently": (
            'raise BadEvent("late_turn", "the session is closed; the turn cannot train")',
            "return state, NOTHING",
        ),
        "redelivered-turn-after-the-close-is-late": (
            "if isinstance(event, Turn) and event.turn_id not in state.turn_ids:",
            "if isinstance(event, Turn):",
        ),
        "replay-at-the-close-applied-again": (
            "if position <= marker.closed_at:",
            "if position < marker.closed_at:",
        ),
        "replay-below-the-close-taken-for-late": (
            "if position <= marker.closed_at:",
            "if position < 0:",
        ),
        "late-reward-without-samples-passes-silently": (
            "    if not revised:\n",
            "    if not revised and marker.samples:\n",
        ),
    },
)

CLOSING = in_file(
    "streams/core/closing.py",
    HOLES + GOLDEN,
    {
        "eval-before-rejected": (
            '    if status == "rejected" or',
            '    if session.identity.get("split") == "eval" and not policy.eval_samples:\n'
            '        return "eval"\n'
            '    if status == "rejected" or',
        ),
        "status-before-eval": (
            '    if session.identity.get("split") == "eval" and not policy.eval_samples:\n',
            "    if status not in policy.train_statuses:\n"
            '        return "status"\n'
            '    if session.identity.get("split") == "eval" and not policy.eval_samples:\n',
        ),
        "no-reward-before-status": (
            "    if status not in policy.train_statuses:\n",
            "    if policy.require_reward and session.rewards.value is None:\n"
            '        return "no_reward"\n'
            "    if status not in policy.train_statuses:\n",
        ),
        "gap-before-no-reward": (
            "    if policy.require_reward and session.rewards.value is None:\n",
            '    if gaps and policy.gaps == "reject":\n'
            '        return "gap"\n'
            "    if policy.require_reward and session.rewards.value is None:\n",
        ),
        "gap-not-rejected": (
            'if gaps and policy.gaps == "reject":',
            'if gaps and policy.gaps == "prefix":',
        ),
        "retried-session-trains": (
            "(ended.will_retry or not ended.accepted)",
            "(not ended.accepted)",
        ),
        "sample-of-exactly-the-limit-left-out": (
            "if planned.encoded_bytes > limits.sample_bytes:",
            "if planned.encoded_bytes >= limits.sample_bytes:",
        ),
        "oversize-sample-missing-from-the-ledger": (
            "            leave_out(segment)\n            continue\n",
            "            continue\n",
        ),
    },
)

GAPS = in_file(
    "streams/core/gaps.py",
    HOLES,
    {
        "turns-named-at-the-end-not-missed": (
            "last = dict(named or {})",
            "last = {source: 0 for source in named or {}}",
        ),
    },
)

PARTITION = in_file(
    "streams/core/partition.py",
    (*HOLES, "tests/core/test_life_claims.py"),
    {
        "purge-takes-a-marker-with-a-late-reward-above": (
            "isinstance(state, OpenSession) or state.newest >= floor",
            "isinstance(state, OpenSession) or state.marker.closed_at >= floor",
        ),
        "purge-takes-a-marker-at-the-floor": (
            "isinstance(state, OpenSession) or state.newest >= floor",
            "isinstance(state, OpenSession) or state.newest > floor",
        ),
        "purge-looks-at-the-newest-row-of-an-open-session": (
            "        return state.first < floor\n",
            "        return state.newest < floor\n",
        ),
        "replayed-purge-forgets-who-was-open": (
            "return state.marker.closed_at > position and state.marker.first < floor",
            "return False",
        ),
        "event-below-the-floor-processed": (
            "if position < self.floor:",
            "if position < 0:",
        ),
    },
)

UNREADABLE = in_file(
    "streams/core/session.py",
    (*HOLES, "tests/core/test_life_claims.py"),
    {
        "unreadable-event-not-counted": ("    count(state, error.code, position)\n", ""),
    },
)

BUDGET_TESTS = ("tests/core/test_budgets.py",)

BUDGETS = (
    *in_file(
        "streams/core/session.py",
        BUDGET_TESTS,
        {
            "refused-turn-leaves-a-gap": (
                "session.numbering.add(refused.source, refused.seq)",
                "pass",
            ),
            "refused-turn-not-restored": (
                "count(state, row.code, row.position, row.refused_turn)",
                "count(state, row.code, row.position)",
            ),
            "refused-turn-again-is-refused-again": (
                "if event.turn_id in session.refused_turns.named:",
                "if False:",
            ),
            "rewards-without-a-budget": ("if total > limits.rewards:", "if False:"),
            "reward-ids-without-a-budget": (
                "if not fits(records, limits.record_bytes):",
                "if False:",
            ),
            "events-without-a-budget": (
                "if not session.full or _may_close(session, event):",
                "if True:",
            ),
            "kept-events-without-a-budget": ("if total > most:", "if False:"),
            "first-turn-over-a-budget-begins-no-session": (
                "if session is None or (state is None and refused is None):",
                "if session is None or state is None:",
            ),
            "full-session-never-ends": (
                "if not session.full or _may_close(session, event):",
                "if not session.full:",
            ),
        },
    ),
    *in_file(
        "streams/core/refused_turns.py",
        BUDGET_TESTS,
        {
            "turn-on-a-refused-one-is-unknown-base": (
                "if base in self.named or self.unnamed:",
                "if False:",
            ),
            "refused-turn-counts-no-tokens": (
                "generated=generated,",
                "generated=0,",
            ),
        },
    ),
    *in_file(
        "streams/core/closing.py",
        BUDGET_TESTS,
        {
            "record-sent-however-large": ("        if size > limit:\n", "        if False:\n"),
            "totals-keep-the-ids": ("marker, samples=[], other_turns=[],", "marker,"),
            "turns-named-again-without-a-budget": ("elif repeated > names_left:", "elif False:"),
            "outcome-measured-without-its-ledger": (
                "if not size or len(codec.to_msgpack(outcome)) <= limit:",
                "if not size or sum(sizes.values()) <= limit:",
            ),
        },
    ),
    *in_file(
        "streams/core/record_budget.py",
        BUDGET_TESTS,
        {
            "ids-counted-by-characters": (
                "return len(msgspec.json.encode(name)) + 1",
                "return len(name) + 3",
            ),
        },
    ),
    *in_file(
        "streams/core/event_bytes.py",
        BUDGET_TESTS,
        {
            "constraint-not-counted": (
                "if turn.sampling is not None and turn.sampling.constraint is not None:",
                "if False:",
            ),
            "prompt-not-counted": ("        size += len(bytes(message))\n", "        pass\n"),
        },
    ),
    *in_file(
        "streams/core/state.py",
        BUDGET_TESTS,
        {
            "reward-of-a-turn-counted-again": ("if turn_id in self._turns:", "if False:"),
            "rewards-of-turns-take-nothing": (
                "turn_rewards_bytes(rewarded) + self._reward_bytes[index]",
                "turn_rewards_bytes(rewarded)",
            ),
        },
    ),
    *in_file(
        "streams/core/after_close.py",
        BUDGET_TESTS,
        {
            "refused-late-reward-changes-the-marker": ("    book = book.copy()\n", ""),
            "revisions-without-a-budget": ("if total > limits.sample_bytes_total:", "if False:"),
        },
    ),
)

LIFE = (
    *(*SESSION, *UNREADABLE, *BUDGETS, *TWINS, *REWARDS, *STATE),
    *(*AFTER_CLOSE, *CLOSING, *GAPS, *PARTITION),
)
