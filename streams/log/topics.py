"""What each topic has to be, and whether it is so.

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
from streams.log.disk import HOUR_MS, compacted_segment_ms, disk_bytes, segment_ms
from streams.settings import FOR_EVER, FRAMING_BYTES, Settings

_AT_LEAST = {"max.message.bytes", "min.insync.replicas", "retention.ms"}
_NOT_CHECKED = {
    "segment.ms",
    "segment.bytes",
    "min.cleanable.dirty.ratio",
    "delete.retention.ms",
}
"""Housekeeping: another value costs disk or time, never an entry."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How one topic has to be."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]
    disk_bytes: float | None
    """The most, over all copies, at the expected rate; None: grows without an end."""


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
    many, cost = settings.partitions, disk_bytes(settings)
    kept = [
        (settings.turns_topic, many, settings.retention_turns_hours),
        (settings.samples_topic, many, settings.retention_samples_hours),
        (settings.traces_topic, many, settings.retention_traces_hours),
        (settings.dead_letters_topic, many, settings.retention_dead_letters_hours),
        (settings.trained_topic, 1, settings.retention_trained_hours),
    ]
    planned = [
        (name, partitions, _kept(settings, copies, hours, event=name == settings.turns_topic))
        for name, partitions, hours in kept
    ]
    planned += [
        (name, partitions, _compacted(settings, copies))
        for name, partitions in ((settings.control_topic, 1), (settings.changelog_topic, many))
    ]
    return [
        TopicSpec(
            name=name,
            partitions=partitions,
            replication=copies,
            configs=configs,
            disk_bytes=None if (each := cost[name]) is None else each * copies,
        )
        for name, partitions, configs in planned
    ]


def retention_problem(settings: Settings) -> str | None:
    """Why the turns would be gone while a session may still need them; None if they are not."""
    hours = settings.retention_turns_hours
    needed_s = settings.hard_limit_s + settings.key_lifetime_s
    if hours == FOR_EVER or hours * 3600 >= needed_s:
        return None
    return (
        f"TURNSTREAM_RETENTION_TURNS_HOURS={hours:g} is shorter than hard limit + key lifetime "
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


def _kept(settings: Settings, copies: int, hours: float, *, event: bool) -> dict[str, str]:
    ms = FOR_EVER if hours == FOR_EVER else round(hours * HOUR_MS)
    return _shared(settings, copies, event=event) | {
        "cleanup.policy": "delete",
        "retention.ms": str(ms),
        "retention.bytes": "-1",
        "segment.ms": str(segment_ms(hours)),
    }


def _compacted(settings: Settings, copies: int) -> dict[str, str]:
    # The newest segment is never compacted: a small one keeps recovery short.
    young_ms = compacted_segment_ms(settings)
    return _shared(settings, copies, event=False) | {
        "cleanup.policy": "compact",
        "segment.bytes": str(128 << 20),
        "segment.ms": str(young_ms),
        "min.cleanable.dirty.ratio": "0.2",
        # Time for whoever reads a table from its beginning to meet what was removed meanwhile.
        "delete.retention.ms": str(young_ms),
    }
