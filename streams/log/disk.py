"""What every topic costs on disk at the most, by the turns that are expected.

    kept        what comes while it is kept, and during one segment more: whole ones are deleted
    changelog   the newest segment, which is not compacted; rows of sessions that are open; markers
                as long as they are kept; and removals, which outlive what they remove by a segment

What is counted is what is written, before compression. A turn's bytes are those of its event and
of its share of what opens, rewards and ends its session.

Invariant: an estimate from settings alone; no log is asked.
"""

from collections.abc import Iterator

from streams.settings import FOR_EVER, Settings

HOUR_MS = 3_600_000
_SEGMENT_SHARE = 8
_SAMPLES_SHARE = 1.0
_TRACES_SHARE = 0.6
"""Of a session's samples and outcome: the messages without their tokens."""
_FAILURES = 0.01
"""Sessions that leave a trace whatever the share; and events that become dead letters."""
_ROW_BYTES = 200
"""What a row of the table takes beside the event, and its removal, of a turn."""
_MARKER_BYTES = 150
"""Of a closed session, of each of its turns."""
_TRAINED_BYTES = 20
"""Of the record of an optimizer step."""
_UPDATE_BYTES_PER_S = 100.0
_FILES_BYTES = 16_384
"""Of a segment beside its entries: its indexes, and what blocks of the disk round up."""


def segment_ms(hours: float) -> int:
    """When a segment is closed of a topic that is kept for so long.

    Only whole ones are deleted, so one is closed before an eighth of the time is over.
    """
    return 24 * HOUR_MS if hours == FOR_EVER else round(hours * HOUR_MS / _SEGMENT_SHARE)


def compacted_segment_ms(settings: Settings) -> int:
    """When a segment of a compacted topic is closed: what is younger is not compacted yet."""
    return min(HOUR_MS, segment_ms(settings.retention_turns_hours))


def disk_bytes(settings: Settings) -> dict[str, float | None]:
    """By topic, of one copy; None: it grows without an end."""
    return {**dict(_kept(settings)), **dict(_compacted(settings))}


def _kept(settings: Settings) -> Iterator[tuple[str, float | None]]:
    turns = settings.expected_turns_per_s
    rate = turns * settings.expected_turn_bytes
    traced = min(1.0, settings.traced_share + _FAILURES) if settings.traced_share else 0.0
    many = settings.partitions
    for topic, partitions, hours, per_s in (
        (settings.turns_topic, many, settings.retention_turns_hours, rate),
        (settings.samples_topic, many, settings.retention_samples_hours, rate * _SAMPLES_SHARE),
        (
            settings.traces_topic,
            many,
            settings.retention_traces_hours,
            rate * _TRACES_SHARE * traced,
        ),
        (
            settings.dead_letters_topic,
            many,
            settings.retention_dead_letters_hours,
            rate * _FAILURES,
        ),
        (settings.trained_topic, 1, settings.retention_trained_hours, turns * _TRAINED_BYTES),
    ):
        seconds = hours * 3600 + segment_ms(hours) / 1000
        files = partitions * (_SEGMENT_SHARE + 2) * _FILES_BYTES
        yield topic, None if hours == FOR_EVER else per_s * seconds + files


def _compacted(settings: Settings) -> Iterator[tuple[str, float]]:
    turns = settings.expected_turns_per_s
    rate = turns * settings.expected_turn_bytes
    segment_s = compacted_segment_ms(settings) / 1000
    # The newest segment, and the one before it until the cleaner has come.
    files = 3 * _FILES_BYTES
    yield settings.control_topic, 2 * _UPDATE_BYTES_PER_S * segment_s + files
    open_s = min(settings.idle_limit_s, settings.hard_limit_s)
    rows = rate * (segment_s + open_s) + turns * _ROW_BYTES * 3 * segment_s
    markers = turns * _MARKER_BYTES * settings.marker_retention_s
    yield settings.changelog_topic, rows + markers + settings.partitions * files
