"""What came of the sessions, read while the run goes on: retention takes it soon.

Invariant: every record of the samples topic is counted once, from its beginning.
"""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from schemas import codec
from schemas.samples import SessionClosed
from streams.core.tracing import leaves_trace
from streams.log.interface import Log

_WAIT_S = 0.5


@dataclass
class Outcomes:
    """By session."""

    trace_share: float = 0.0
    closed: Counter[str] = field(default_factory=Counter)
    expired: set[str] = field(default_factory=set)
    samples: set[str] = field(default_factory=set)
    """Those that outcomes list: what a trainer has to see."""
    traced: set[str] = field(default_factory=set)
    """Sessions that leave a trace: what a sink has to see."""

    async def follow(self, log: Log, topic: str) -> None:
        """Until cancelled."""
        reader = await log.read(topic, await log.start_positions(topic))
        try:
            while True:
                for entry in await reader.next_batch(_WAIT_S):
                    record = codec.from_msgpack(entry.value or b"")
                    if isinstance(record, SessionClosed):
                        self.take(record)
        finally:
            await reader.close()

    def take(self, outcome: SessionClosed) -> None:
        self.closed[outcome.session_id] += 1
        self.samples.update(outcome.sample_ids)
        if outcome.end_status == "expired":
            self.expired.add(outcome.session_id)
        if leaves_trace(outcome, self.trace_share):
            self.traced.add(outcome.session_id)


def differences(
    begun: Set[str], silent: Set[str], came: Outcomes, trained: Iterable[str]
) -> list[str]:
    """What was lost, doubled or made up on the way, with an example each."""
    seen = Counter(trained)
    found = {
        "sessions without an outcome": begun - came.closed.keys(),
        "outcomes of unknown sessions": came.closed.keys() - begun,
        "sessions with several outcomes": {name for name, n in came.closed.items() if n > 1},
        "expired although they were ended, or the other way": silent ^ came.expired,
        "samples that were not trained": came.samples - seen.keys(),
        "samples that were trained and are of no outcome": seen.keys() - came.samples,
        "samples that were trained twice": {name for name, n in seen.items() if n > 1},
    }
    return [f"{what}: {len(names)}, e.g. {min(names)}" for what, names in found.items() if names]
