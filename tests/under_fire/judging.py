"""What came of a run, held against what has to be.

    turns topic ──► pure core ──► samples and outcomes, byte by byte: lost 0, wrong 0
                            └──► samples of complete groups = what the trainer's weights have seen,
                                 with a reward of their session and the advantage that follows
    turns topic  ⊆  engine's journal: prompt, ids, logprobs, versions, joins
    seen by a client to its end  ⊆  turns topic, once, and all of it trains
    last reward that a gateway acknowledged  =  the session's newest one

Invariant: nothing here asks the parts that were hurt; it reads topics and journals.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from schemas import codec
from schemas.events import Event, Turn
from schemas.samples import Sample, SampleRevised, SessionClosed
from schemas.trained import Trained
from streams.log.interface import Entry
from streams.log.kafka import KafkaLog
from tests.adapters.gateway.updates import Joined
from tests.adapters.gateway.updates import recorded as words_of
from tests.chaos.arena import Arena
from tests.chaos.comparison import Verdict
from tests.chaos.oracle import Expected
from tests.failover.judging import Fate, judged, outcome_from
from tests.failover.processes import Engine
from tests.failover.talking import Walker
from tests.kafka.entries import everything
from tests.under_fire.lives import History
from tests.under_fire.training import digest_of

UNWANTED = {"fenced", "samples_missing", "buffer_full", "timeout", "overtaken", "unreadable"}
"""Reasons for which a trainer left something out, none of which there was."""

GRPO_EPSILON, NEARLY = 1e-6, 1e-9


@dataclass
class Judgement:
    """The differences, and what was counted on the way."""

    verdict: Verdict
    fate: Fate = field(default_factory=Fate)
    trained: list[str] = field(default_factory=list)
    """What is wrong with what was trained."""
    samples_trained: int = 0
    continued: int = 0
    """Turns that a weight update stopped and that went on."""
    versions: int = 0

    @property
    def wrong(self) -> list[str]:
        different = [f"{name}: {found[:5]}" for name, found in self.verdict.differences.items()]
        return [*different, *self.fate.wrong, *self.trained]


async def judge(
    arena: Arena,
    engine: Engine,
    walkers: Sequence[Walker],
    rewards: Mapping[str, float],
    history: History,
) -> Judgement:
    """Everything, when nothing runs any more but the broker."""
    found = Judgement(await arena.judged())
    async with KafkaLog(arena.settings) as log:
        turns = await everything(log, arena.settings.turns_topic)
        trained = await everything(log, arena.settings.trained_topic)
    _sessions(found, arena, engine, walkers, turns)
    found.fate.wrong += reward_faults(arena.oracle.expected, rewards)
    found.trained = training_faults(arena.oracle.expected, history)
    found.trained += commit_faults(trained, history)
    found.trained += content_faults(arena.oracle.expected, history)
    found.trained += worth_faults(arena.oracle.expected, history)
    found.samples_trained = sum(map(len, history.steps.values()))
    return found


def _sessions(
    found: Judgement,
    arena: Arena,
    engine: Engine,
    walkers: Sequence[Walker],
    turns: Iterable[Entry],
) -> None:
    events: defaultdict[str, list[Event]] = defaultdict(list)
    for entry in turns:
        record = codec.from_msgpack(entry.value or b"")
        if isinstance(record, Event):
            events[getattr(record, "session_id", "")].append(record)
    records = defaultdict(list)
    for made in arena.found.records:
        records[made.session_id].append(made)
    sampled, versions = engine.joined_by_session(), set()
    for one in walkers:
        name = one.session_id
        outcome = outcome_from(events[name], records[name], name)
        own = sampled.get(name, [])
        seen = [asked.number for asked in one.asked]
        found.fate.add(judged(outcome, Counter(turn.generated for turn in own), seen))
        found.fate.wrong += version_faults(outcome.turns, outcome.prompts, own)
        found.continued += sum(bool(turn.continued_at) for turn in outcome.turns.values())
        versions |= {v for turn in own for v, _ in turn.versions}
    found.versions = len(versions)


def version_faults(
    turns: Mapping[str, Turn], prompts: Mapping[str, Sequence[int]], sampled: Iterable[Joined]
) -> list[str]:
    """Turns that were delivered and whose versions or joins are not where the engine says."""
    words = Counter(turn.words for turn in sampled)
    return [
        f"{turn.session_id}: turn {name}: versions {turn.weight_versions}, "
        f"joins {turn.continued_at}, and the engine says otherwise"
        for name, turn in turns.items()
        if turn.part_of is None and turn.delivered and not words[words_of(turn, prompts[name])]
    ]


def reward_faults(expected: Expected, given: Mapping[str, float]) -> list[str]:
    """Sessions whose newest reward is not the last one that their agent was told is recorded."""
    newest: dict[str, tuple[int, float | None]] = {}
    for name, revision, reward in _rewards(expected):
        if revision >= newest.get(name, (revision, None))[0]:
            newest[name] = revision, reward
    last = {name: reward for name, (_, reward) in newest.items()}
    return [
        f"{name}: reward {reward:g} was acknowledged, and its newest is {last.get(name)}"
        for name, reward in given.items()
        if last.get(name) != reward
    ]


def worth_faults(expected: Expected, history: History) -> list[str]:
    """Rollouts with a reward that their session never had, or an advantage that is not GRPO's."""
    possible: defaultdict[str, set[float | None]] = defaultdict(set)
    for name, _, reward in _rewards(expected):
        possible[name].add(reward)
    faults: list[str] = []
    for step, told in history.worth.items():
        groups: defaultdict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for group, name, reward, advantage in told:
            groups[group].append((name, reward, advantage))
            if reward not in possible[name]:
                faults.append(f"step {step}: {name}: trained with a reward of {reward}")
        for rollouts in groups.values():
            rewards = [reward for _, reward, _ in rollouts]
            mean, deviation = fmean(rewards), stdev(rewards) if len(rewards) > 1 else 0.0
            faults += [
                f"step {step}: {name}: an advantage of {advantage} by rewards {rewards}"
                for name, reward, advantage in rollouts
                if abs(advantage - (reward - mean) / (deviation + GRPO_EPSILON)) > NEARLY
            ]
    return faults if history.worth else ["no step told what its rollouts were worth"]


def _rewards(expected: Expected) -> Iterator[tuple[str, int, float | None]]:
    """Session, revision, reward: all that the core gives, an outcome's as revision -1."""
    for copies in (*expected.outcomes.values(), *expected.revisions.values()):
        for _, value in copies:
            told = codec.from_msgpack(value)
            if isinstance(told, SessionClosed):
                yield told.session_id, -1, told.reward
            else:
                assert isinstance(told, SampleRevised)
                yield told.session_id, told.revision, told.session_reward


def training_faults(expected: Expected, history: History) -> list[str]:
    """The weights have seen each sample of a complete group once, and nothing else."""
    groups: defaultdict[str, dict[int, SessionClosed]] = defaultdict(dict)
    for copies in expected.outcomes.values():
        for _, value in copies:
            outcome = codec.from_msgpack(value)
            assert isinstance(outcome, SessionClosed)
            groups[outcome.group_id or ""][outcome.rollout_index or 0] = outcome
    wanted = {
        sample_id
        for slots in groups.values()
        if len(slots) == next(iter(slots.values())).group_size
        for outcome in slots.values()
        for sample_id in outcome.sample_ids
    }
    seen = Counter(sample_id for ids in history.steps.values() for sample_id in ids)
    missing, foreign = wanted - seen.keys(), seen.keys() - wanted
    twice = [sample_id for sample_id, count in seen.items() if count > 1]
    unwanted = {reason: n for reason, n in history.dropped.items() if reason in UNWANTED and n}
    faults = {
        "never trained": sorted(missing),
        "trained and not expected": sorted(foreign),
        "trained twice": sorted(twice),
        "left out by the trainer": [f"{reason} {n}" for reason, n in unwanted.items()],
    }
    told = [f"{what}: {len(ids)}, e.g. {ids[:3]}" for what, ids in faults.items() if ids]
    return told if wanted else [*told, "no group was complete"]


def content_faults(expected: Expected, history: History) -> list[str]:
    """Samples that reached the training loop with something else in them than the core gives."""
    wanted: dict[str, str] = {}
    for copies in expected.samples.values():
        for _, value in copies:
            sample = codec.from_msgpack(value)
            assert isinstance(sample, Sample)
            wanted[sample.sample_id] = digest_of(sample)
    other = [name for name, digest in history.digests.items() if wanted.get(name) != digest]
    return [f"trained with other content: {len(other)}, e.g. {other[:3]}"] if other else []


def commit_faults(entries: Iterable[Entry], history: History) -> list[str]:
    """Of every step that counts the log has a record, with its samples."""
    newest: dict[tuple[int, int], Trained] = {}
    for entry in entries:
        record = codec.from_msgpack(entry.value or b"")
        assert isinstance(record, Trained)
        newest[record.run_epoch or 0, record.step] = record
    return [
        f"step {step} of epoch {history.epochs[step]}: the log has no such record of it"
        for step, ids in history.steps.items()
        if (told := newest.get((history.epochs[step], step))) is None
        or list(told.sample_ids) != ids
    ]
