"""A session as text a person can read: source turns, tree, samples, ledger.

    tree      one line a message; indented only where the conversation branches
    samples   trained tokens in [brackets], context outside
    ledger    a line a turn: how it attached, what trains, why the rest does not

Blanks in message text are visible, because a blank is often the whole difference:
space `·`, newline `⏎`, tab `⇥`.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from schemas.samples import LedgerRow, Sample, SessionClosed
from streams.core.messages import Message
from streams.core.recorded import Node, RecordedTurn
from streams.core.tree import Tree

Spell = Callable[[int], str]
"""A token id as text."""

_TEXT_MOST = 60
_LINE_MOST = 96
_NEWLINE = "⏎"
_VISIBLE = str.maketrans({" ": "·", "\n": _NEWLINE, "\t": "⇥", "\r": "␍"})


def draw_session(
    tree: Tree, outcome: SessionClosed, samples: Sequence[Sample], spell: Spell | None = None
) -> str:
    """Everything about one closed session."""
    parts = [
        ("turns", draw_turns(tree)),
        ("tree", draw_tree(tree, outcome.ledger)),
        ("samples", "\n".join(draw_sample(sample, spell) for sample in samples) or "none"),
        ("ledger", draw_ledger(outcome)),
    ]
    title = f"session {outcome.session_id}  {outcome.end_status}  policy {outcome.policy}"
    bodies = [f"{name}\n{_indented(body)}" for name, body in parts]
    return "\n\n".join([title, *bodies])


def draw_turns(tree: Tree) -> str:
    """The source turns in order of arrival."""
    lines = []
    for turn in tree.turns.values():
        event = turn.event
        base = f" on {escaped(event.base_turn_id)}" if event.base_turn_id else ""
        finish = f" {escaped(event.finish_reason)}" if event.finish_reason else ""
        lines.append(
            f"{escaped(event.turn_id)}{base}: {turn.prompt_messages} messages, "
            f"{turn.prompt_len} prompt + {turn.generated} sampled tokens{finish}"
        )
    return "\n".join(lines) or "none"


def draw_tree(tree: Tree, ledger: Iterable[LedgerRow] = ()) -> str:
    """The message tree; generated messages point at their turn."""
    rows = {row.turn_id: row for row in ledger}
    lines: list[str] = []
    undrawn: list[tuple[Node, str, str]] = [(tree.root, "", "")]
    while undrawn:
        node, first, rest = undrawn.pop()
        if node.parent is not None:
            lines.append(first + _node_line(node, rows))
        below = [(child, rest, rest) for child in node.children]
        if len(below) > 1:
            below = [(child, rest + "├─ ", rest + "│  ") for child in node.children]
            below[-1] = (node.children[-1], rest + "└─ ", rest + "   ")
        undrawn.extend(reversed(below))
    return "\n".join(lines) or "empty"


def draw_sample(sample: Sample, spell: Spell | None = None) -> str:
    """One sample: its reward, then its tokens with trained runs in brackets."""
    reward = "none" if sample.reward is None else f"{sample.reward:g}"
    head = f"sample {sample.index + 1} of {sample.count}  {sample.sample_id}  reward {reward}"
    tokens = draw_tokens(sample, spell)
    if spell is None:
        tokens = "\n".join(textwrap.wrap(tokens, _LINE_MOST, break_on_hyphens=False))
    return f"{head}\n{tokens.replace(_NEWLINE, _NEWLINE + chr(10))}"


def draw_tokens(sample: Sample, spell: Spell | None = None) -> str:
    """The tokens alone; without a spelling they stand as ids."""
    words = [str(token) if spell is None else spell(token) for token in sample.tokens.tolist()]
    glue = " " if spell is None else ""
    pieces, done = [], 0
    for start, end in sample.loss_mask:
        pieces += [glue.join(words[done:start]), f"[{glue.join(words[start:end])}]"]
        done = end
    pieces.append(glue.join(words[done:]))
    return glue.join(piece for piece in pieces if piece)


def draw_ledger(outcome: SessionClosed) -> str:
    """What became of every sampled token, turn by turn."""
    lines = [
        f"{escaped(row.turn_id)}  {row.attach}  "
        f"trained {row.trained} of {row.generated}{_reasons(row)}"
        for row in outcome.ledger
    ]
    why = f"  withheld: {outcome.withheld}" if outcome.withheld else ""
    reward = "none" if outcome.reward is None else f"{outcome.reward:g}"
    lines.append(f"total  trained {outcome.trained} of {outcome.generated}  reward {reward}{why}")
    return "\n".join(lines)


def visible(text: str, most: int | None = _TEXT_MOST) -> str:
    """Text on one line with its blanks shown, cut in the middle if long.

    What would steer a terminal is spelled out: text of a session is not ours to trust.
    """
    shown = text if most is None else text.translate(_VISIBLE)
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in shown)
    if most is not None and len(shown) > most:
        half = most // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    return shown


def escaped(text: str) -> str:
    """An id or a word that a producer chose, on one line, with nothing that steers a terminal."""
    return visible(text, most=None)


def _node_line(node: Node, rows: dict[str, LedgerRow]) -> str:
    line = f"{escaped(node.role or '?')} {_message_text(node.message)}"
    if node.turn is not None:
        return f"{line}  <- {_turn_mark(node.turn, rows)}"
    if node.merged is not None:
        return f"{line}  <- {escaped(node.merged.event.turn_id)} merged"
    return line


def _turn_mark(turn: RecordedTurn, rows: dict[str, LedgerRow]) -> str:
    row = rows.get(turn.event.turn_id)
    trained = str(row.trained) if row is not None else "?"
    return f"{escaped(turn.event.turn_id)} {turn.attach} {trained}/{turn.generated}"


def _message_text(message: Message | None) -> str:
    if message is None:
        return "∅"
    value = msgspec.json.decode(message.text)
    content = value.get("content")
    text = content if isinstance(content, str) else _compact(content) if content else ""
    calls = value.get("tool_calls")
    names = [_call_text(call) for call in calls] if isinstance(calls, list) else []
    return " ".join([*([visible(text)] if text or not names else []), *names])


def _call_text(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, dict) else {}
    name = function.get("name", "?") if isinstance(function, dict) else "?"
    arguments = function.get("arguments", {}) if isinstance(function, dict) else {}
    text = arguments if isinstance(arguments, str) else _compact(arguments)
    return f"{escaped(str(name))}({visible(text)})"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _reasons(row: LedgerRow) -> str:
    if not row.untrained:
        return ""
    return "; untrained: " + ", ".join(f"{why} {n}" for why, n in row.untrained.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
