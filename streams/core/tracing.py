"""The readable record of a closed session, made from its tree, its samples and its outcome.

Which sessions leave one is decided by their id, so every worker decides alike; failures and
eval sessions always do.

Invariant: a trace never decides anything; leaving it out changes no sample.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from schemas.record import COUNT_MAX, IDENTITY_FIELDS, NOT_GIVEN
from schemas.samples import SessionClosed
from schemas.traces import Trace, TraceSample, TraceTurn
from streams.core.assembly import Samples, trained_runs, version_runs
from streams.core.linearize import Segment, linearize
from streams.core.recorded import Node, RecordedTurn
from streams.core.spans import total
from streams.core.state import OpenSession

TRACE_BYTES_MAX = 4_000_000
"""Messages, tools, final message and raw prompts together; what does not fit is left out whole."""
_CHAR_BYTES_MAX = 4
_VERSION_RUNS_MAX = 1_000
_FAILURES = frozenset({"error", "interrupted", "closed", "cancelled", "expired"})
_ROOT = -1
_OF_THE_OUTCOME = (
    *("end_status", "metadata", "reward", "reward_payload", "reward_invalid", "accepted"),
    *("will_retry", "withheld", "reason", "finish_reason", "policy", "generated", "trained"),
    "gaps",
)


def leaves_trace(outcome: SessionClosed, share: float) -> bool:
    """Whether this session is among the share that leaves a trace."""
    if share <= 0:
        return False
    if outcome.end_status in _FAILURES or outcome.split == "eval":
        return True
    place = int.from_bytes(blake2b(outcome.session_id.encode(), digest_size=8).digest())
    return place < share * 2**64


def trace_of(session: OpenSession, outcome: SessionClosed, samples: Samples) -> Trace:
    """The session as a person reads it."""
    nodes, parents = _in_order(session.tree.root)
    texts = [node.message.text if node.message is not None else b"null" for node in nodes]
    left_out, room = 0, TRACE_BYTES_MAX
    if sum(map(len, texts)) > room:
        left_out, nodes, texts, parents = len(texts), [], [], []
    room -= sum(map(len, texts))
    turns = session.tree.turns.values()
    tools, room = _fitting(
        next((turn.event.tools for turn in turns if turn.event.tools), None), room
    )
    final_message, room = _fitting(outcome.final_message, room)
    generate_ms, tool_ms = _phases(turns)
    return Trace(
        session_id=session.session_id,
        **{name: getattr(outcome, name) for name in (*IDENTITY_FIELDS, *_OF_THE_OUTCOME)},
        messages=msgspec.Raw(b"[" + b",".join(texts) + b"]"),
        parents=parents,
        turns=_turns(session, outcome, {id(node): index for index, node in enumerate(nodes)}, room),
        samples=_samples(session, samples),
        tools=tools,
        final_message=final_message,
        tool_turns=sum(turn.calls_tool and turn.event.part_of is None for turn in turns),
        generate_ms=generate_ms,
        tool_ms=tool_ms,
        reward_ms=session.rewards.judged_ms,
        messages_left_out=left_out,
        untrained=_untrained(outcome),
    )


def _fitting(text: msgspec.Raw | None, room: int) -> tuple[msgspec.Raw, int]:
    size = len(bytes(text or NOT_GIVEN))
    return (text or NOT_GIVEN, room - size) if size <= room else (NOT_GIVEN, room)


def _turns(
    session: OpenSession, outcome: SessionClosed, places: dict[int, int], room: int
) -> list[TraceTurn]:
    turns = session.tree.turns.values()
    raw = sum(len(turn.event.raw_prompt or "") for turn in turns if turn.above is None)
    fit = raw * _CHAR_BYTES_MAX <= room
    # The ledger goes on with turns that were refused; they have no node.
    return [
        TraceTurn(
            turn_id=turn.event.turn_id,
            message=None if turn.merged else places.get(id(turn.node)),
            attach=turn.attach,
            request_class=turn.event.request_class,
            agent_id=turn.event.agent_id,
            part_of=turn.event.part_of,
            ill_formed=turn.event.ill_formed,
            finish_reason=turn.event.finish_reason,
            reward=session.rewards.of_turns.get(turn.event.turn_id),
            prompt_len=turn.prompt_len,
            response_len=turn.generated,
            trained=row.trained,
            weight_versions=_few(turn.event.weight_versions),
            started_ms=turn.event.started_ms,
            finished_ms=turn.event.finished_ms,
            raw_prompt=turn.event.raw_prompt if fit and turn.above is None else None,
        )
        for turn, row in zip(turns, outcome.ledger, strict=False)
    ]


def _samples(session: OpenSession, samples: Samples) -> list[TraceSample]:
    """The numbers of the samples; of those that there would have been, if none may train."""
    if samples:
        return [
            _sample(planned.segment, sample_id=planned.sample_id, reward=samples.reward)
            for planned in samples.planned
        ]
    would_be, _ = linearize(session.tree, None)
    return [_sample(segment) for segment in would_be]


def _sample(
    segment: Segment, *, sample_id: str | None = None, reward: float | None = None
) -> TraceSample:
    runs = trained_runs(segment)
    prompt_len = runs[0][0]
    return TraceSample(
        turn_id=segment.last.event.turn_id,
        prompt_len=prompt_len,
        response_len=segment.last.end - prompt_len,
        trained=total(runs),
        sample_id=sample_id,
        reward=reward,
        weight_versions=_few(_lengths(version_runs(segment))) or None,
    )


def _lengths(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """How many trained tokens each version has in a row, whatever stands between them."""
    lengths: list[tuple[int, int]] = []
    for version, start, end in runs:
        if lengths and lengths[-1][0] == version:
            lengths[-1] = (version, lengths[-1][1] + end - start)
        else:
            lengths.append((version, end - start))
    return lengths


def _few(runs: list[tuple[int, int]] | None) -> list[tuple[int, int]] | None:
    """Runs of versions, if a person could read them."""
    return runs if runs is None or len(runs) <= _VERSION_RUNS_MAX else None


def _untrained(outcome: SessionClosed) -> dict[str, int]:
    untrained: dict[str, int] = {}
    for row in outcome.ledger:
        for reason, tokens in row.untrained.items():
            untrained[reason] = untrained.get(reason, 0) + tokens
    return untrained


def _phases(turns: Iterable[RecordedTurn]) -> tuple[int | None, int | None]:
    """Milliseconds of model calls, and of what ran between them; a step without tokens ran."""
    calls: list[int] = []
    steps: list[int] = []
    waits: dict[int, int] = {}
    for turn in turns:
        began, over = turn.event.started_ms, turn.event.finished_ms
        if began is None or turn.event.part_of is not None:
            continue
        if over is not None:
            (calls if turn.generated else steps).append(max(over - began, 0))
        above = turn.above
        if above is None or above.event.finished_ms is None:
            continue
        if above.generated and turn.generated:
            wait = max(began - above.event.finished_ms, 0)
            waits[above.order] = min(wait, waits.get(above.order, wait))
    return _summed(calls), _summed([*steps, *waits.values()])


def _summed(took: list[int]) -> int | None:
    return min(sum(took), COUNT_MAX) if took else None


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
