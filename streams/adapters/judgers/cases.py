"""A session as its judger sees it, read from the tree that its events grew.

Payloads are on the log as whatever text was given, so they are read by the tolerant reader.

Invariant: the messages are those of the branch that the newest turn ends, in the recorded form.
"""

from typing import Any

import msgspec

from streams.adapters.judgers.judging import Case
from streams.core.content import Message, final_message_from
from streams.core.plain_values import plain_json
from streams.core.recorded import Node
from streams.core.state import OpenSession


def case_of(session: OpenSession) -> Case:
    """What to judge; the session has said how it ended."""
    assert session.ended is not None, "only a session that has ended is judged"
    turns = list(session.tree.turns.values())
    messages = _branch(turns[-1].node) if turns else []
    given = session.ended.final_message
    # Logs hold whatever was given for one before gateways refused what is no message.
    final = final_message_from(plain_json(given)) if given else None
    metadata = plain_json(session.metadata) if session.metadata else {}
    tools: Any = []
    for turn in turns:
        if turn.event.tools:
            tools = plain_json(turn.event.tools)
    return Case(
        session_id=session.session_id,
        messages=messages,
        tools=tools if isinstance(tools, list) else [tools],
        final_message=final or (messages[-1] if messages else None),
        turns=len(turns) - session.tree.parts,
        metadata=metadata if isinstance(metadata, dict) else {"metadata": metadata},
        end_status=session.ended.end_status,
    )


def _branch(leaf: Node) -> list[Message]:
    messages: list[Message] = []
    node: Node | None = leaf
    while node is not None:
        if node.message is not None:
            messages.append(msgspec.json.decode(node.message.text))
        node = node.parent
    messages.reverse()
    return messages
