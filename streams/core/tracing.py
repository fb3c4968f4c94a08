"""The readable record of a closed session, made from its tree and its outcome.

Which sessions leave one is decided by their id, so every worker decides alike; failures and
eval sessions always do.

Invariant: a trace never decides anything; leaving it out changes no sample.
"""

from hashlib import blake2b

import msgspec

from schemas.record import IDENTITY_FIELDS, NOT_GIVEN
from schemas.samples import SessionClosed
from schemas.traces import Trace, TraceTurn
from streams.core.recorded import Node
from streams.core.state import OpenSession

TRACE_BYTES_MAX = 4_000_000
"""Messages, tools and raw prompts together; what does not fit is left out whole."""
_CHAR_BYTES_MAX = 4
_VERSION_RUNS_MAX = 1_000
_FAILURES = frozenset({"error", "interrupted", "closed", "cancelled", "expired"})
_ROOT = -1


def leaves_trace(outcome: SessionClosed, share: float) -> bool:
    """Whether this session is among the share that leaves a trace."""
    if share <= 0:
        return False
    if outcome.end_status in _FAILURES or outcome.split == "eval":
        return True
    place = int.from_bytes(blake2b(outcome.session_id.encode(), digest_size=8).digest())
    return place < share * 2**64


def trace_of(session: OpenSession, outcome: SessionClosed) -> Trace:
    """The session as a person reads it."""
    nodes, parents = _in_order(session.tree.root)
    texts = [node.message.text if node.message is not None else b"null" for node in nodes]
    left_out, room = 0, TRACE_BYTES_MAX
    if sum(map(len, texts)) > room:
        left_out, nodes, texts, parents = len(texts), [], [], []
    room -= sum(map(len, texts))
    tools = next(
        (turn.event.tools for turn in session.tree.turns.values() if turn.event.tools), NOT_GIVEN
    )
    if len(bytes(tools)) > room:
        tools = NOT_GIVEN
    room -= len(bytes(tools))
    untrained: dict[str, int] = {}
    for row in outcome.ledger:
        for reason, tokens in row.untrained.items():
            untrained[reason] = untrained.get(reason, 0) + tokens
    turns = session.tree.turns.values()
    return Trace(
        session_id=session.session_id,
        **{name: getattr(outcome, name) for name in IDENTITY_FIELDS},
        end_status=outcome.end_status,
        messages=msgspec.Raw(b"[" + b",".join(texts) + b"]"),
        parents=parents,
        turns=_turns(session, {id(node): index for index, node in enumerate(nodes)}, room),
        metadata=outcome.metadata,
        tools=tools,
        reward=outcome.reward,
        reward_payload=outcome.reward_payload,
        reason=outcome.reason,
        tool_turns=sum(turn.calls_tool for turn in turns),
        generated=outcome.generated,
        trained=outcome.trained,
        messages_left_out=left_out,
        untrained=untrained,
    )


def _turns(session: OpenSession, places: dict[int, int], room: int) -> list[TraceTurn]:
    prompts = [turn for turn in session.tree.turns.values() if turn.above is None]
    fit = sum(len(turn.event.raw_prompt or "") for turn in prompts) * _CHAR_BYTES_MAX <= room
    return [
        TraceTurn(
            turn_id=turn.event.turn_id,
            message=None if turn.merged else places.get(id(turn.node)),
            finish_reason=turn.event.finish_reason,
            reward=session.rewards.of_turns.get(turn.event.turn_id),
            prompt_len=turn.prompt_len,
            response_len=turn.generated,
            weight_versions=_few(turn.event.weight_versions),
            started_ms=turn.event.started_ms,
            finished_ms=turn.event.finished_ms,
            raw_prompt=turn.event.raw_prompt if fit and turn.above is None else None,
        )
        for turn in session.tree.turns.values()
    ]


def _few(runs: list[tuple[int, int]] | None) -> list[tuple[int, int]] | None:
    """Runs of versions, if a person could read them."""
    return runs if runs is None or len(runs) <= _VERSION_RUNS_MAX else None


def _in_order(root: Node) -> tuple[list[Node], list[int]]:
    nodes: list[Node] = []
    parents: list[int] = []
    unvisited = [(child, _ROOT) for child in reversed(root.children)]
    while unvisited:
        node, parent = unvisited.pop()
        parents.append(parent)
        nodes.append(node)
        unvisited += [(child, len(nodes) - 1) for child in reversed(node.children)]
    return nodes, parents
