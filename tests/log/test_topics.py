"""What the topics have to be, by the numbers of a cluster."""

import dataclasses
from typing import Any

import pytest

from streams.errors import LogError
from streams.log.topics import TopicSpec, TopicState, problems, retention_problem, topic_specs
from streams.settings import Settings


def specs(brokers: int = 3, **fields: Any) -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in topic_specs(Settings(**fields), brokers)}


def state_of(spec: TopicSpec, **configs: str) -> TopicState:
    """A topic exactly as wanted, but for these configs."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicState(spec.name, spec.partitions, spec.replication, spec.configs | named)


def test_copies_and_copies_in_sync_follow_the_number_of_brokers() -> None:
    seen = {
        n: {(s.replication, s.configs["min.insync.replicas"]) for s in specs(n).values()}
        for n in (1, 2, 3, 5)
    }
    assert seen == {1: {(1, "1")}, 2: {(2, "1")}, 3: {(3, "2")}, 5: {(3, "2")}}


def test_changelog_and_control_are_compacted_only_and_rows_stand_beside_their_turns() -> None:
    found = specs(partitions=5)
    changelog = found.pop("turnstream-processor-rows-changelog")
    control = found.pop("turnstream.control")
    for spec in (changelog, control):
        assert spec.configs["cleanup.policy"] == "compact"
        assert "retention.ms" not in spec.configs
        (problem,) = problems(spec, state_of(spec, cleanup_policy="delete"))
        assert "cleanup.policy is delete, wanted compact; kafka-configs.sh --alter" in problem
    assert control.partitions == 1
    assert changelog.partitions == found["turnstream.turns"].partitions == 5
    assert {spec.configs["cleanup.policy"] for spec in found.values()} == {"delete"}


def test_what_holds_an_event_takes_larger_messages_than_the_turns() -> None:
    sizes = {name: int(spec.configs["max.message.bytes"]) for name, spec in specs().items()}
    turns = sizes.pop("turnstream.turns")
    assert turns > Settings().message_bytes_max
    assert min(sizes.values()) > turns + 60_000


@pytest.mark.parametrize(("hours", "good"), [(48, True), (47, False), (-1, True), (168, True)])
def test_turns_are_kept_as_long_as_a_session_may_need_them(hours: int, good: bool) -> None:
    settings = Settings(retention_turns_hours=hours)
    problem = retention_problem(settings)
    assert (problem is None) is good
    if problem:
        assert "TURNSTREAM_RETENTION_TURNS_HOURS=47" in problem
        assert "48 hours" in problem


def test_more_in_sync_than_there_are_copies_is_refused() -> None:
    with pytest.raises(LogError, match="TURNSTREAM_MIN_INSYNC=2, but a topic has 1 copies"):
        specs(1, min_insync=2)


WRONG = {
    "retention_ms": ("604799999", "retention.ms is 604799999, wanted 604800000"),
    "retention_bytes": ("1000", "retention.bytes is 1000, wanted -1"),
    "cleanup_policy": ("compact", "cleanup.policy is compact, wanted delete"),
    "max_message_bytes": ("1048588", "max.message.bytes is 1048588, wanted 8392704"),
    "min_insync_replicas": ("1", "min.insync.replicas is 1, wanted 2"),
    "message_timestamp_type": ("CreateTime", "message.timestamp.type is CreateTime"),
    "unclean_leader_election_enable": ("true", "unclean.leader.election.enable is true"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_config_that_could_lose_an_event_is_wrong(name: str) -> None:
    value, text = WRONG[name]
    spec = specs()["turnstream.turns"]
    (problem,) = problems(spec, state_of(spec, **{name: value}))
    assert text in problem
    assert "kafka-configs.sh --alter" in problem


RIGHT = {
    "retention_ms": ("604800001", "-1"),
    "max_message_bytes": ("9000000",),
    "min_insync_replicas": ("3",),
    "segment_ms": ("1000",),
}


@pytest.mark.parametrize("name", RIGHT)
def test_more_than_wanted_is_fine(name: str) -> None:
    spec = specs()["turnstream.turns"]
    assert [problems(spec, state_of(spec, **{name: value})) for value in RIGHT[name]] == [
        [] for _ in RIGHT[name]
    ]


def test_for_ever_is_more_than_any_time_and_no_time_is_as_much() -> None:
    spec = specs(retention_turns_hours=-1)["turnstream.turns"]
    assert problems(spec, state_of(spec)) == []
    assert len(problems(spec, state_of(spec, retention_ms="604800000"))) == 1


def test_a_partition_count_is_wrong_in_both_directions() -> None:
    spec = specs()["turnstream.turns"]
    for count in (15, 17):
        (problem,) = problems(spec, dataclasses.replace(state_of(spec), partitions=count))
        assert f"{count} partitions, wanted 16; a count is never changed" in problem


def test_fewer_copies_are_wrong_and_more_are_not() -> None:
    spec = specs()["turnstream.turns"]
    (problem,) = problems(spec, dataclasses.replace(state_of(spec), replication=2))
    assert "2 copies, wanted 3" in problem
    assert problems(spec, dataclasses.replace(state_of(spec), replication=4)) == []


def test_a_missing_topic_is_wrong() -> None:
    (problem,) = problems(specs()["turnstream.turns"], None)
    assert "turnstream.turns: missing" in problem
