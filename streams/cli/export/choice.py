"""Which samples and sessions are exported: what a trainer would be given, with its last reward.

    sample s/1   kept until its session's outcome comes
    sample s/2   kept
    sample s/1   again: the same id, dropped
    closed s     lists 1 and 2: both are exported
    closed s     again: the first one counts

Invariant: a session is exported whole or not at all, and once.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from schemas.record import Record
from schemas.samples import Sample, SessionClosed
from streams.cli.export.records import Revisions


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sessions; everything that is None lets all of them through."""

    split: str | None = None
    since_ms: int | None = None
    run_id: str | None = None

    def holds(self, outcome: SessionClosed, logged_ms: int | None) -> bool:
        """A session that names no split is one to train on."""
        if self.split is not None and (outcome.split or "train") != self.split:
            return False
        if self.run_id is not None and outcome.run_id != self.run_id:
            return False
        return self.since_ms is None or (logged_ms is not None and logged_ms >= self.since_ms)


class Choice:
    """What is known of the sessions so far."""

    def __init__(self, wanted: Wanted, revisions: Revisions, *, with_samples: bool) -> None:
        """None yet; without samples, outcomes alone are looked at."""
        self._wanted = wanted
        self._with_samples = with_samples
        self._revisions = revisions
        self._waiting: dict[str, dict[str, Sample]] = {}
        """Samples by session, until its outcome comes."""
        self._closed: set[str] = set()
        self.left_out: Counter[str] = Counter()

    def take(
        self, record: Record, logged_ms: int | None
    ) -> tuple[SessionClosed, list[Sample]] | None:
        """A session that is complete with this record, and wanted."""
        if isinstance(record, Sample):
            self._wait(record)
            return None
        if not isinstance(record, SessionClosed) or record.session_id in self._closed:
            return None
        self._closed.add(record.session_id)
        samples = self._waiting.pop(record.session_id, {})
        if not self._wanted.holds(record, logged_ms):
            return None
        if not self._with_samples:
            return self._last(record), []
        listed = [samples[name] for name in record.sample_ids if name in samples]
        if len(listed) < len(record.sample_ids):
            self.left_out["sessions whose samples are not all there"] += 1
            return None
        self.left_out["samples that no outcome lists"] += len(samples) - len(listed)
        return self._last(record), [self._revised(sample) for sample in listed]

    def finish(self) -> Iterator[str]:
        """What was left out, in words."""
        self.left_out["sessions without an outcome so far"] += len(self._waiting)
        for what, count in self.left_out.items():
            if count:
                yield f"left out {count} {what}"

    def _wait(self, sample: Sample) -> None:
        if self._with_samples and sample.session_id not in self._closed:
            samples = self._waiting.setdefault(sample.session_id, {})
            samples.setdefault(sample.sample_id, sample)

    def _revised(self, sample: Sample) -> Sample:
        last = self._revisions.of_samples.get(sample.sample_id)
        if last is None or last.revision <= sample.revision:
            return sample
        return msgspec.structs.replace(
            sample,
            revision=last.revision,
            reward=last.reward,
            session_reward=last.session_reward,
            reward_payload=last.reward_payload,
            turn_rewards=last.turn_rewards,
        )

    def _last(self, outcome: SessionClosed) -> SessionClosed:
        last = self._revisions.of_sessions.get(outcome.session_id)
        if last is None:
            return outcome
        return msgspec.structs.replace(
            outcome, reward=last.session_reward, reward_payload=last.reward_payload
        )
