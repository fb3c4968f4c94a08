"""Whether the prompts that began a session's conversations are what a template prints today.

A gateway keeps such a prompt as text beside its turn. Printed once more from the recorded messages
it has to be the same text; if it is not, the template or the renderer has changed since, and the
model would now be served, or trained on, with other prompts than it sampled from.

Invariant: what was not kept is not judged.
"""

from pathlib import Path
from typing import Any

import msgspec

from streams.adapters.gateway.rendering.encoding import RenderFailed
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.core.drawing import escaped, visible
from streams.core.recorded import Node, RecordedTurn
from streams.core.tree import Tree
from streams.errors import BadSetting

_SHOWN = 40


def check_raw_prompts(tree: Tree, folder: Path) -> tuple[list[str], bool]:
    """A line for each prompt that was kept, and whether all are the same."""
    kept = [turn for turn in tree.turns.values() if turn.event.raw_prompt is not None]
    if not kept:
        return [], True
    try:
        renderer = Renderer(folder)
    except BadSetting:
        return [], True  # a tokenizer alone: it can spell tokens, and has no template
    tools = {t.event.tools_digest: t.event.tools for t in tree.turns.values() if t.event.tools}
    lines, same = [], True
    for turn in kept:
        given = tools.get(turn.event.tools_digest)
        trouble = _difference(turn, given, renderer)
        lines.append(f"{escaped(turn.event.turn_id)}  {trouble or 'as this template prints it'}")
        same = same and trouble is None
    return lines, same


def _difference(turn: RecordedTurn, given: msgspec.Raw | None, renderer: Renderer) -> str | None:
    was = turn.event.raw_prompt or ""
    try:
        tools = msgspec.json.decode(given) if given else []
    except ValueError as error:
        return f"its tools cannot be read: {error}"
    try:
        now = renderer.decode(renderer.full(_messages(turn.node.parent), tools))
    except RenderFailed as error:
        return f"this template cannot print it: {error}"
    if now == was:
        return None
    at = next((i for i, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(was), len(now)) if at is None else at
    shown = (visible(text[at : at + _SHOWN], most=None) for text in (was, now))
    return "differs from character {}: it was `{}`, this template prints `{}`".format(at, *shown)


def _messages(node: Node | None) -> list[Any]:
    messages: list[Any] = []
    while node is not None:
        if node.message is not None:
            messages.append(msgspec.json.decode(node.message.text))
        node = node.parent
    return messages[::-1]
