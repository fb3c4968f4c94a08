"""The readable record of a closed session, made from its tree, its samples and its outcome.

Which sessions leave one is decided by their id, so every worker decides alike; failures and
eval sessions always do.

Invariant: a trace never decides anything; leaving it out changes no sample. What it takes beside
ids and numbers is bounded before it is encoded, whatever a producer wrote into the session.
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
"""All texts and version runs together, in the order in which they are wanted: messages, tools,
final message, metadata, reward, those of samples and turns, raw prompts. What does not fit is left
out."""
_WORDS_CHARS_MAX = 200
"""Of what an engine or a harness calls something."""
_CHAR_BYTES_MAX = 4
_RUN_BYTES = 19
"""Of a version and its number of tokens at most, encoded."""
_VERSION_RUNS_MAX = 1_000
_FAILURES = frozenset({"error", "interrupted", "closed", "cancelled", "expired"})
_ROOT = -1
_OF_THE_OUTCOME = (
    *("end_status", "reward", "reward_invalid", "accepted"),
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


class _Room:
    """What is left of `TRACE_BYTES_MAX`."""

    def __init__(self) -> None:
        self._bytes = TRACE_BYTES_MAX

    def takes(self, size: int) -> bool:
        """Whether so many bytes fit; then they are taken."""
        if size > self._bytes:
            return False
        self._bytes -= size
        return True

    def payload(self, text: msgspec.Raw | None) -> msgspec.Raw:
        """The payload, if it is given and fits."""
        return text if text and self.takes(len(bytes(text))) else NOT_GIVEN

    def words(self, text: str | None) -> str | None:
        """As much of a text as a person reads, if it fits."""
        cut = text and text[:_WORDS_CHARS_MAX]
        return cut if cut is None or self.takes(_CHAR_BYTES_MAX * len(cut)) else None

    def runs(self, runs: list[tuple[int, int]] | None) -> list[tuple[int, int]] | None:
        """Runs of versions, if a person could read them and they fit."""
        if runs is None or len(runs) > _VERSION_RUNS_MAX:
            return None
        return runs if self.takes(_RUN_BYTES * len(runs)) else None


def trace_of(session: OpenSession, outcome: SessionClosed, samples: Samples) -> Trace:
    """The session as a person reads it."""
    room = _Room()
    nodes, parents = _in_order(session.tree.root)
    texts = [node.message.text if node.message is not None else b"null" for node in nodes]
    left_out = 0
    if not room.takes(sum(map(len, texts))):
        left_out, nodes, texts, parents = len(texts), [], [], []
    turns = session.tree.turns.values()
    tools = room.payload(next((turn.event.tools for turn in turns if turn.event.tools), None))
    final_message = room.payload(outcome.final_message)
    metadata = room.payload(outcome.metadata)
    reward_payload = room.payload(outcome.reward_payload)
    generate_ms, tool_ms = _phases(turns)
    return Trace(
        session_id=session.session_id,
        **{name: getattr(outcome, name) for name in (*IDENTITY_FIELDS, *_OF_THE_OUTCOME)},
        messages=msgspec.Raw(b"[" + b",".join(texts) + b"]"),
        parents=parents,
        samples=_samples(session, samples, room),
        turns=_turns(session, outcome, {id(node): index for index, node in enumerate(nodes)}, room),
        tools=tools,
        final_message=final_message,
        metadata=metadata,
        reward_payload=reward_payload,
        tool_turns=sum(turn.calls_tool and turn.event.part_of is None for turn in turns),
        generate_ms=generate_ms,
        tool_ms=tool_ms,
        reward_ms=session.rewards.judged_ms,
        messages_left_out=left_out,
        untrained=_untrained(outcome),
    )


def _turns(
    session: OpenSession, outcome: SessionClosed, places: dict[int, int], room: _Room
) -> list[TraceTurn]:
    turns = list(session.tree.turns.values())
    words = [
        (
            room.words(turn.event.agent_id),
            room.words(turn.event.finish_reason),
            room.runs(turn.event.weight_versions),
        )
        for turn in turns
    ]
    raw = sum(len(turn.event.raw_prompt or "") for turn in turns if turn.above is None)
    fit = room.takes(raw * _CHAR_BYTES_MAX)
    # The ledger goes on with turns that were refused; they have no node.
    return [
        TraceTurn(
            turn_id=turn.event.turn_id,
            message=None if turn.merged else places.get(id(turn.node)),
            attach=turn.attach,
            request_class=turn.event.request_class,
            agent_id=agent_id,
            part_of=turn.event.part_of,
            ill_formed=turn.event.ill_formed,
            finish_reason=finish_reason,
            reward=session.rewards.of_turns.get(turn.event.turn_id),
            prompt_len=turn.prompt_len,
            response_len=turn.generated,
            trained=row.trained,
            weight_versions=versions,
            started_ms=turn.event.started_ms,
            finished_ms=turn.event.finished_ms,
            raw_prompt=turn.event.raw_prompt if fit and turn.above is None else None,
        )
        for turn, row, (agent_id, finish_reason, versions) in zip(
            turns, outcome.ledger, words, strict=False
        )
    ]


def _samples(session: OpenSession, samples: Samples, room: _Room) -> list[TraceSample]:
    """The numbers of the samples; of those that there would have been, if none may train."""
    if samples:
        return [
            _sample(planned.segment, room, sample_id=planned.sample_id, reward=samples.reward)
            for planned in samples.planned
        ]
    would_be, _ = linearize(session.tree, None)
    return [_sample(segment, room) for segment in would_be]


def _sample(
    segment: Segment, room: _Room, *, sample_id: str | None = None, reward: float | None = None
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
        weight_versions=room.runs(_lengths(version_runs(segment))) or None,
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
