"""Errors in groups, their endings, and what their rollouts are worth."""

from tests.mutants.mutant import in_file

GROUPS = ("tests/core/test_groups.py", "tests/core/test_groups_oracle.py")
WORTH = ("tests/core/test_advantages.py",)

OPEN = in_file(
    "streams/core/open_group.py",
    GROUPS,
    {
        "lower-attempt-wins": (
            "before.attempt >= attempt",
            "before.attempt <= attempt",
        ),
        "same-attempt-replaces": ("before.attempt >= attempt", "before.attempt > attempt"),
        "a-retry-fills-its-slot": ("if outcome.will_retry or (", "if ("),
        "second-outcome-counts": (
            "        if session_id in self.closed:\n            return",
            "        if False:\n            return",
        ),
        "unlisted-samples-are-released": (
            "[waiting[name] for name in outcome.sample_ids if name in waiting]",
            "list(waiting.values())",
        ),
        "missing-samples-do-not-matter": (
            "if len(rollout.samples) < len(outcome.sample_ids):",
            "if False:",
        ),
        "fence-bars-its-own-version": ("newest <= self.version)", "newest < self.version)"),
        "fence-lets-the-unknown-through": ("if not unknown and (newest", "if (newest"),
        "fence-bars-the-unknown-that-trains": (
            'rules.unknown_version == "stale" and ',
            "",
        ),
        "fence-bars-its-own-epoch": (
            "outcome.run_epoch < self.epoch",
            "outcome.run_epoch <= self.epoch",
        ),
        "fence-bars-the-unnamed-for-ever": (
            "return place[1] < self.ends.get(place[0], 0)",
            "return True",
        ),
        "successor-keeps-the-old-place": (
            "            del self.slots[slot]  # its successor stands where its outcome came\n",
            "",
        ),
        "each-session-is-slot-zero": (
            "session_id if outcome.rollout_index is None else outcome.rollout_index",
            "outcome.rollout_index or 0",
        ),
    },
)

ENDINGS = in_file(
    "streams/core/groups.py",
    GROUPS,
    {
        "complete-by-what-counts": (
            "len(group.slots) >= group.size:",
            "group.counting() >= group.size:",
        ),
        "kept-by-slots": ("group.counting() >= keep else", "len(group.slots) >= keep else"),
        "timeout-at-the-limit": ("group.begun_ms < before_ms", "group.begun_ms <= before_ms"),
        "timeout-from-the-last-record": ("group.begun_ms < before_ms", "group.last[1] < before_ms"),
        "partial-groups-always": (
            "if least is None or group.counting() < least:",
            "if least is None:",
        ),
        "a-late-attempt-opens-the-group-again": (
            "elif (record.group_id or record.session_id) in self.closed:",
            "elif False:",
        ),
        "eval-trains": ('(record.split or "train") != rules.split', "False"),
        "other-runs-train": ("record.run_id != rules.run_id", "False"),
        "failures-in-the-baseline": (
            "tuple(f.rollout for f in filled if f.dropped is None)",
            "tuple(f.rollout for f in filled)",
        ),
        "floor-of-the-newest": ("return min((group.first[1]", "return max((group.first[1]"),
        "limits-take-the-newest": (
            "oldest = next(iter(self._open.values()))",
            "oldest = list(self._open.values())[-1]",
        ),
        "later-reward-for-all-of-the-group": (
            "if filled.rollout.session_id == late.session_id:",
            "if filled.rollout.session_id != late.session_id:",
        ),
    },
)

ROLLOUTS = in_file(
    "streams/core/rollouts.py",
    GROUPS + WORTH,
    {
        "any-revision-wins": ("late.revision > sample.revision", "True"),
        "newest-version-is-the-oldest": (
            "return min(self._versions(), default=None)",
            "return max(self._versions(), default=None)",
        ),
        "unknown-versions-are-forgotten": ("return known < self.trained", "return False"),
        "no-versions-are-unknown-in-every-run": (
            "return self.run_has_versions and bool(self.samples)",
            "return bool(self.samples)",
        ),
        "rejected-is-in-the-baseline": ("if not outcome.accepted:", "if False:"),
        "no-reward-is-zero": (
            'return "no_reward" if outcome.reward is None else None',
            "return None",
        ),
        "a-gap-is-outside": (
            '"core_failure", "no_reward"})',
            '"core_failure", "no_reward", "gap"})',
        ),
    },
)

ADVANTAGES = in_file(
    "streams/core/advantages.py",
    WORTH,
    {
        "unknown-weights-are-never-stale": (
            'if unknown == "stale" and rollout.has_unknown_version:',
            "if False:",
        ),
        "unknown-weights-never-train": (
            'if unknown == "stale" and rollout.has_unknown_version:',
            "if rollout.has_unknown_version:",
        ),
        "stale-at-the-limit": ("version - oldest > most", "version - oldest >= most"),
        "baseline-over-samples": (
            "rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]",
            "rewards = [r.reward for r in rollouts for _ in r.samples if r.reward is not None]",
        ),
        "stale-after-the-baseline": ("    group = group.without(stale)\n", ""),
        "one-alone-is-its-reward": ("if count <= 1:", "if count < 1:"),
        "deviation-of-the-population": ("/ (count - 1))", "/ count)"),
        "leave-none-out": ("(total - reward) / (count - 1)", "total / count"),
        "overlong-by-what-trains": (
            "sample.tokens.size > most for",
            "sample.trained > most for",
        ),
        "overlong-at-the-limit": (
            "sample.tokens.size > most for",
            "sample.tokens.size >= most for",
        ),
        "zero-signal-of-two": ("len(set(rewards)) <= 1", "len(set(rewards)) <= 2"),
    },
)

GROUP_ERRORS = OPEN + ENDINGS + ROLLOUTS + ADVANTAGES
