"""CPU time, held memory and wire bytes; each side is measured in the same way.

- CPU time of this process only, so that neighbours on the machine count little.
- Rounds go through all contenders in turn and the best round of each counts: noise only slows.
- The collector stays on as in a real process. What was there before is frozen out of its sight
  first, so that it looks at the measured session only. Freeing a session is not measured.
"""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle
from time import process_time

import msgspec

from benchmarks import baseline
from benchmarks.contenders import Contender, Session
from schemas.codec import from_msgpack
from schemas.events import Event, Turn
from streams.core.partition import Partition


def turns_per_cpu_second(
    contenders: Sequence[Contender], sessions: Sequence[Session], *, rounds: int, cpu_s: float
) -> dict[str, float]:
    """The best of some rounds for each contender; a round takes `cpu_s` or a little longer."""
    best = dict.fromkeys((contender.name for contender in contenders), 0.0)
    for _ in range(rounds):
        for contender in contenders:
            speed = _one_round(contender, sessions, cpu_s)
            best[contender.name] = max(best[contender.name], speed)
    return best


def _one_round(contender: Contender, sessions: Sequence[Session], cpu_s: float) -> float:
    spent_s, turns = 0.0, 0
    prepared = [(contender.prepare(session), len(session.calls)) for session in sessions]
    gc.collect()
    gc.freeze()
    for given, count in cycle(prepared):
        started_s = process_time()
        held = contender.run(given)
        spent_s += process_time() - started_s
        turns += count
        del held
        gc.collect()
        if spent_s >= cpu_s:
            break
    gc.unfreeze()
    return turns / spent_s


def held_bytes(build: Callable[[], object]) -> int:
    """Memory that what `build` returns keeps alive."""
    gc.collect()
    tracemalloc.start()
    held = build()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held
    return size


def open_core_session(session: Session) -> Callable[[], Partition]:
    """The core with the session still open, fed from wire bytes that are not kept."""
    wire = session.wire[:-1]

    def build() -> Partition:
        partition = Partition()
        for position, data in enumerate(wire, 1):
            event = from_msgpack(data)
            assert isinstance(event, Event)
            partition.feed(event, position)
        return partition

    return build


def open_baseline_session(session: Session) -> Callable[[], baseline.Session]:
    """The baseline with the session still open, each request decoded, recorded and let go."""

    def build() -> baseline.Session:
        held = baseline.Session()
        for call in session.calls:
            held.record(baseline.decoded(call))
        return held

    return build


def wire_bytes(session: Session) -> dict[str, int]:
    """What a session's events take on the wire before compression, by what it is spent on."""
    turns = [event for event in session.events if isinstance(event, Turn)]
    messages = [
        bytes(text) for turn in turns for text in (*turn.prompt_messages, turn.response_message)
    ]
    sizes = {
        "ids": sum(turn.prompt_ids.nbytes + turn.output_ids.nbytes for turn in turns),
        "logprobs": sum(turn.logprobs.nbytes for turn in turns if turn.logprobs is not None),
        "message_text": sum(len(msgspec.json.decode(text)["content"]) for text in messages),
    }
    sizes["message_json"] = sum(map(len, messages)) - sizes["message_text"]
    total = sum(map(len, session.wire))
    return {**sizes, "everything_else": total - sum(sizes.values()), "total": total}
