"""Errors in how a turn is placed, compared, classified and stored."""

from tests.mutants.mutant import in_file

GOLDEN = (
    "tests/core/test_thresholds.py",
    "tests/core/test_fine_print.py",
    "tests/core/test_worked_cases.py",
)
HOLES = ("tests/core/test_holes.py",)
RECORDED = ("tests/core/test_recorded_cases.py",)
DELTAS = ("tests/core/test_properties.py",)

ROUTING = in_file(
    "streams/core/routing.py",
    GOLDEN + RECORDED,
    {
        "last-match-for-first-in-a-scan": (
            "for child in node.children:\n            held = child.message",
            "for child in reversed(node.children):\n            held = child.message",
        ),
        "no-response-matches-any-replay": (
            "if child.replayable and held is not None and held.same_as(message):",
            "if held is None or (child.replayable and held.same_as(message)):",
        ),
        "merge-rules-swapped": (
            'if policy.merge == "only_assistant_child" and',
            'if policy.merge == "only_eligible_leaf" and',
        ),
        "slime-merges-beside-another-answer": (
            "and node.assistants != 1:",
            "and node.assistants < 1:",
        ),
        "merge-onto-a-continued-answer": (
            "return leaf.turn is not None and not leaf.children",
            "return leaf.turn is not None",
        ),
        "merge-onto-a-foreign-answer": (
            "rewrites = rewritten_leaf(node, policy)",
            "rewrites = rewritten_leaf(node, policy) or next("
            '(c for c in node.children if c.role == "assistant" and c.turn is None), None)',
        ),
        "merge-of-any-role": (
            'if rest and rest[0].role == "assistant":',
            "if rest:",
        ),
        "merge-among-several-short-leaves": (
            "return leaves[0] if len(leaves) == 1 else None",
            "return leaves[0] if leaves else None",
        ),
    },
)

INDEX = in_file(
    "streams/core/routing.py",
    HOLES,
    {
        "continued-answer-ahead-blocks-the-merge": (
            "        leaves.popleft()\n",
            "        break\n",
        ),
        "continued-answer-behind-blocks-the-merge": (
            "        leaves.pop()\n",
            "        break\n",
        ),
        "last-match-for-first-in-the-index": (
            "node.index.setdefault(child.message.digest, child)",
            "node.index[child.message.digest] = child",
        ),
    },
)

DELTA_ROUTING = in_file(
    "streams/core/routing.py",
    HOLES + DELTAS,
    {
        "twin-that-came-first-beats-the-named-base": (
            "if answer.turn is base and answer.replayable:",
            "if node.children[0] is answer and answer.turn is base and answer.replayable:",
        ),
        "rewritten-base-kept-by-its-place": (
            "if answer.turn is base and answer.replayable:",
            "if answer.replayable:",
        ),
        "named-base-looked-up-by-its-message": (
            "if answer.turn is base and answer.replayable:",
            "if False:",
        ),
        "answer-of-the-base-not-kept": (
            "kept > base.prompt_messages",
            "kept > base.prompt_messages + 1",
        ),
        "answer-of-the-base-kept-unasked": (
            "kept > base.prompt_messages",
            "kept >= base.prompt_messages",
        ),
        "kept-messages-one-too-few": (
            "while node.depth > depth:",
            "while node.depth >= depth and node.parent:",
        ),
    },
)

CLASSES = in_file(
    "streams/core/tree.py",
    GOLDEN + RECORDED,
    {
        "merge-at-the-threshold": (
            "if turn.generated >= self.policy.fork_threshold_tokens:",
            "if turn.generated > self.policy.fork_threshold_tokens:",
        ),
        "both-realign-gates-inclusive": (
            "gate < policy.fork_threshold_tokens",
            "gate <= policy.fork_threshold_tokens",
        ),
        "seed-realigns-at-the-threshold": (
            "gate = above.end - shared",
            "gate = above.end - shared - 1",
        ),
        "slime-realigns-at-the-threshold": (
            "gate = turn.output_ids.size",
            "gate = turn.output_ids.size - 1",
        ),
        "realign-gates-swapped": (
            'if policy.realign_gate == "drifted_tail":',
            'if policy.realign_gate == "incoming_output":',
        ),
        "realign-one-token-inside-the-prompt": (
            "shared >= above.prompt_len",
            "shared >= above.prompt_len - 1",
        ),
        "no-realign-where-the-response-starts": (
            "shared >= above.prompt_len",
            "shared > above.prompt_len",
        ),
        "extend-by-a-shorter-prompt": (
            "if shared == above.end:",
            "if shared == min(above.end, turn.prompt_ids.size + (turn.kept_ids or 0)):",
        ),
        "classified-before-its-own-merge": (
            "above = place.node.nearest_turn",
            "above = (place.rewrites or place.node).nearest_turn",
        ),
        "classified-against-the-turn-before-in-time": (
            "above = place.node.nearest_turn",
            "above = place.node.nearest_turn and next(reversed(self.turns.values()))",
        ),
        "response-of-another-role-matches": (
            'replayable = response is not None and response.role == "assistant"',
            "replayable = response is not None",
        ),
        "demoted-turn-stays-generated": (
            "node.merged, node.turn = node.turn, None",
            "node.merged = node.turn",
        ),
        "merged-leaf-keeps-its-old-text": (
            "node.message, node.replayable = rest[0], True",
            "node.replayable = True",
        ),
    },
)

WIDE = in_file(
    "streams/core/tree.py",
    HOLES,
    {
        "last-match-for-first-in-a-grown-index": (
            "parent.index.setdefault(message.digest, node)",
            "parent.index[message.digest] = node",
        ),
        "leaf-without-response-matches-nothing-after-a-merge": (
            "node.message, node.replayable = rest[0], True",
            "node.message = rest[0]",
        ),
        "index-not-renewed-by-a-merge": (
            "            node.index = None\n",
            "",
        ),
        "over-budget-turn-mounted-all-the-same": (
            "        self._check_budget(len(place.rest) + 1, added, size)\n"
            "\n"
            "        node = self._mount(place, response)\n",
            "        node = self._mount(place, response)\n"
            "        self._check_budget(len(place.rest) + 1, added, size)\n",
        ),
        "shared-tokens-counted-again": (
            "self.tokens += added",
            "self.tokens += tokens.prompt_len + turn.output_ids.size",
        ),
    },
)

JOINS = in_file(
    "streams/core/tree.py",
    HOLES + DELTAS,
    {
        "digest-not-checked": (
            "if running.digest() != turn.prompt_digest:",
            "if not turn.prompt_digest:",
        ),
        "digest-state-of-another-branch": (
            "_known_hash(above if tokens.from_above else base, tokens.at)",
            "_known_hash(above or base, tokens.at)",
        ),
        "digest-state-from-behind-a-divergence": (
            "        same = min(same, held.shared)\n",
            "",
        ),
        "kept-messages-one-too-many-pass": (
            "(turn.kept_messages or 0) > messages",
            "(turn.kept_messages or 0) > messages + 1",
        ),
        "kept-ids-one-too-many-pass": (
            "(turn.kept_ids or 0) > base.end",
            "(turn.kept_ids or 0) > base.end + 1",
        ),
        "all-messages-kept-refused": (
            "(turn.kept_messages or 0) > messages",
            "(turn.kept_messages or 0) >= messages",
        ),
        "all-ids-kept-refused": (
            "(turn.kept_ids or 0) > base.end",
            "(turn.kept_ids or 0) >= base.end",
        ),
        "kept-ids-one-too-few": (
            "kept = (turn.kept_ids or 0) if base is not None else 0",
            "kept = max((turn.kept_ids or 0) - 1, 0) if base is not None else 0",
        ),
        "delta-joined-to-the-turn-above": (
            "rest = read(base.block, same, kept) + suffix",
            "rest = read(above.block, same, kept) + suffix",
        ),
    },
)

BLOCKS = in_file(
    "streams/core/delta.py",
    GOLDEN + DELTAS,
    {
        "block-grown-although-not-at-its-tip": (
            "if block is None or block.end != at:",
            "if block is None:",
        ),
        "difference-found-one-token-late": (
            "return int((ours != theirs).argmax())",
            "return int((ours != theirs).argmax()) + 1",
        ),
    },
)

LONG = in_file(
    "streams/core/delta.py",
    HOLES,
    {
        "pieces-lost-when-joined": (
            'block.pieces = [b"".join(block.pieces)]',
            'block.pieces = [b"".join(block.pieces[1:])]',
        ),
    },
)

MESSAGES = in_file(
    "streams/core/messages.py",
    ("tests/core/test_fine_print.py", *RECORDED),
    {
        "identities-swapped": (
            'identity == "equal_values":',
            'identity == "canonical_text":',
        ),
        "true-is-not-one": (
            "elif isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):",
            "elif isinstance(value, float) and value.is_integer():",
        ),
        "one-point-zero-is-not-one": (
            "elif isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):",
            "elif isinstance(value, bool):",
        ),
        "numbers-inside-lists-spelled-as-they-came": (
            "if isinstance(value, dict | list):",
            "if isinstance(value, dict):",
        ),
        "order-of-keys-matters": (
            'msgspec.json.Encoder(order="deterministic")',
            "msgspec.json.Encoder()",
        ),
    },
)

TREE = (
    *ROUTING,
    *INDEX,
    *DELTA_ROUTING,
    *CLASSES,
    *WIDE,
    *JOINS,
    *BLOCKS,
    *LONG,
    *MESSAGES,
)
