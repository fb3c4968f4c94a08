"""What each topic has to be, what that costs on disk, and whether it is so.

    topic          partitions   kept             key
    turns          16           7 days           session
    samples        16           7 days           group, else session
    traces         16           7 days           session
    dead-letters   16           30 days          topic/partition/offset
    trained        1            30 days          run
    control        1            last of a key    kind, epoch and run
    changelog      as turns     last of a key    row or marker

The log's own clock stamps every entry: with the producers' clocks one that runs ahead is refused
by the broker, and one that runs behind has its turns deleted early.

Invariant: a partition count never changes, since a session would move while it is open; changelog
and control are compacted and nothing else, since deleting by age would drop rows of open sessions,
and the weights of a run that has not changed them for long.
"""

from dataclasses import dataclass

from streams.errors import LogError
from streams.settings import FOR_EVER, FRAMING_BYTES, Settings

_HOUR_MS = 3_600_000
_SEGMENT_SHARE = 8
_SEGMENT_MS = _HOUR_MS
"""Of a compacted topic: what is younger is not compacted yet."""
_TRACE_SHARE_MOST = 0.1
_DEAD_LETTER_SHARE = 0.01
_STEP_BYTES_PER_S = 100.0
_ROW_OVERHEAD = 2.0

_AT_LEAST = {"max.message.bytes", "min.insync.replicas", "retention.ms"}
_NOT_CHECKED = {"segment.ms", "segment.bytes", "min.cleanable.dirty.ratio"}
"""Housekeeping: another value costs disk or time, never an entry."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How one topic has to be."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]
    disk_bytes: float | None
    """Estimate over all copies, from the expected rate; None: grows without an end."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """How one topic is."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]


def topic_specs(settings: Settings, brokers: int) -> list[TopicSpec]:
    """Every topic, for a cluster of so many brokers."""
    copies = settings.replication or min(3, brokers)
    rate = settings.expected_turns_per_s * settings.expected_turn_bytes
    traces = min(_TRACE_SHARE_MOST, settings.trace_share * 2)
    many = settings.partitions
    kept = [
        (settings.turns_topic, many, settings.retention_turns_hours, rate),
        (settings.samples_topic, many, settings.retention_samples_hours, rate),
        (settings.traces_topic, many, settings.retention_traces_hours, rate * traces),
        (
            settings.dead_letters_topic,
            many,
            settings.retention_dead_letters_hours,
            rate * _DEAD_LETTER_SHARE,
        ),
        (settings.trained_topic, 1, settings.retention_trained_hours, _STEP_BYTES_PER_S),
    ]
    specs = [
        TopicSpec(
            name=name,
            partitions=partitions,
            replication=copies,
            configs=_kept(settings, copies, hours, event=name == settings.turns_topic),
            disk_bytes=None if hours == FOR_EVER else hours * 3600 * per_s * copies,
        )
        for name, partitions, hours, per_s in kept
    ]
    # Rows live as long as their session, at most until it expires; then they are compacted.
    rows = rate * min(settings.idle_limit_s, settings.hard_limit_s) * _ROW_OVERHEAD
    compacted = [
        (settings.control_topic, 1, _STEP_BYTES_PER_S * _SEGMENT_MS / 1000),
        (settings.changelog_topic, many, rows),
    ]
    return [
        *specs,
        *(
            TopicSpec(
                name=name,
                partitions=partitions,
                replication=copies,
                configs=_compacted(settings, copies),
                disk_bytes=size_bytes * copies,
            )
            for name, partitions, size_bytes in compacted
        ),
    ]


def retention_problem(settings: Settings) -> str | None:
    """Why the turns would be gone while a session may still need them; None if they are not."""
    hours = settings.retention_turns_hours
    needed_s = settings.hard_limit_s + settings.key_lifetime_s
    if hours == FOR_EVER or hours * 3600 >= needed_s:
        return None
    return (
        f"TURNSTREAM_RETENTION_TURNS_HOURS={hours} is shorter than hard limit + key lifetime "
        f"({needed_s / 3600:g} hours): the turns of a living session would be deleted"
    )


def problems(spec: TopicSpec, state: TopicState | None) -> list[str]:
    """What is wrong with a topic, and what to do about it; empty if nothing is."""
    if state is None:
        return [f"{spec.name}: missing; create it with `turnstream topics`"]
    found = []
    if state.partitions != spec.partitions:
        found.append(
            f"{spec.name}: {state.partitions} partitions, wanted {spec.partitions}; a count is "
            "never changed, since sessions would move: set TURNSTREAM_PARTITIONS to it, or take "
            "another TURNSTREAM_TOPIC_PREFIX"
        )
    if state.replication < spec.replication:
        found.append(
            f"{spec.name}: {state.replication} copies, wanted {spec.replication}; reassign the "
            "replicas with kafka-reassign-partitions.sh, or set TURNSTREAM_REPLICATION"
        )
    for name, wanted in spec.configs.items():
        value = state.configs.get(name, "(not told)")
        if name not in _NOT_CHECKED and not _good(name, value, wanted):
            found.append(
                f"{spec.name}: {name} is {value}, wanted {wanted}; kafka-configs.sh --alter "
                f"--entity-type topics --entity-name {spec.name} --add-config {name}={wanted}"
            )
    return found


def _good(name: str, value: str, wanted: str) -> bool:
    if name not in _AT_LEAST or value == wanted:
        return value == wanted
    try:
        has, needs = int(value), int(wanted)
    except ValueError:
        return False
    for_ever = name == "retention.ms"
    if for_ever and FOR_EVER in (has, needs):
        return has == FOR_EVER
    return has >= needs


def _shared(settings: Settings, copies: int, *, event: bool) -> dict[str, str]:
    insync = settings.min_insync or (2 if copies >= 3 else 1)  # noqa: PLR2004  # one may be away
    if insync > copies:
        raise LogError(f"TURNSTREAM_MIN_INSYNC={insync}, but a topic has {copies} copies")
    largest = settings.message_bytes_max if event else settings.record_bytes_max
    return {
        "max.message.bytes": str(largest + FRAMING_BYTES),
        "min.insync.replicas": str(insync),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }


def _kept(settings: Settings, copies: int, hours: int, *, event: bool) -> dict[str, str]:
    ms = FOR_EVER if hours == FOR_EVER else hours * _HOUR_MS
    # Only whole segments are deleted, so one is closed before an eighth of the time is over.
    segment_ms = _HOUR_MS * 24 if ms == FOR_EVER else max(_HOUR_MS, ms // _SEGMENT_SHARE)
    return _shared(settings, copies, event=event) | {
        "cleanup.policy": "delete",
        "retention.ms": str(ms),
        "retention.bytes": "-1",
        "segment.ms": str(segment_ms),
    }


def _compacted(settings: Settings, copies: int) -> dict[str, str]:
    # The newest segment is never compacted: a small one keeps recovery short.
    return _shared(settings, copies, event=False) | {
        "cleanup.policy": "compact",
        "segment.bytes": str(128 << 20),
        "segment.ms": str(_SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
