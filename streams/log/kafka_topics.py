"""Topics on a real cluster: read as they are, compared with the plan, created where missing.

Invariant: what exists is never changed, only reported.
"""

from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streams.errors import LogError, WrongTopic
from streams.log.kafka_calls import answered, started, stopped
from streams.log.security import client_options
from streams.log.topics import TopicSpec, TopicState, problems, retention_problem, topic_specs
from streams.settings import Settings

_UNKNOWN_TOPIC = 3


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What was found, and after a creation what is there now."""

    brokers: int
    specs: list[TopicSpec]
    created: list[str]
    problems: list[str]


async def check_topics(settings: Settings) -> TopicReport:
    """Compare; change nothing."""
    return await _report(settings, create=False)


async def create_topics(settings: Settings) -> TopicReport:
    """Create what is missing, then compare. Nothing is created where something is wrong."""
    return await _report(settings, create=True)


async def require_topics(settings: Settings) -> None:
    """Raise `WrongTopic` with everything that is wrong."""
    report = await check_topics(settings)
    if report.problems:
        raise WrongTopic("\n".join(report.problems))


async def _report(settings: Settings, *, create: bool) -> TopicReport:
    admin = AIOKafkaAdminClient(**client_options(settings))
    await started("topics", admin, settings, settings.request_timeout_s)
    try:
        cluster = await _ask(settings, "brokers", admin.describe_cluster)
        brokers = len(cluster["brokers"])
        specs = topic_specs(settings, brokers)
        states = await _states(admin, settings, specs)
        found = _problems(settings, specs, states)
        wrong = [
            spec for spec in specs if spec.name in states and problems(spec, states[spec.name])
        ]
        missing = [spec for spec in specs if spec.name not in states]
        if not create or not missing or wrong or retention_problem(settings):
            return TopicReport(brokers, specs, [], found)
        await _create(admin, settings, missing)
        states = await _until_there(admin, settings, specs)
        created = [spec.name for spec in missing]
        return TopicReport(brokers, specs, created, _problems(settings, specs, states))
    finally:
        await stopped(admin, settings.request_timeout_s)


def _problems(
    settings: Settings, specs: list[TopicSpec], states: dict[str, TopicState]
) -> list[str]:
    retention = retention_problem(settings)
    found = [text for spec in specs for text in problems(spec, states.get(spec.name))]
    return [*([retention] if retention else []), *found]


async def _states(admin: Any, settings: Settings, specs: list[TopicSpec]) -> dict[str, TopicState]:
    """The topics that exist."""
    names = [spec.name for spec in specs]
    described = await _ask(settings, "topics", lambda: admin.describe_topics(names))
    there = [topic for topic in described if topic["error_code"] != _UNKNOWN_TOPIC]
    if not there:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic["topic"]) for topic in there]
    told = await _ask(settings, "settings of topics", lambda: admin.describe_configs(resources))
    configs = {
        name: {entry[0]: entry[1] for entry in entries}
        for response in told
        for _, _, _, name, entries in response.resources
    }
    return {
        topic["topic"]: TopicState(
            name=topic["topic"],
            partitions=len(topic["partitions"]),
            replication=min((len(part["replicas"]) for part in topic["partitions"]), default=0),
            configs=configs.get(topic["topic"], {}),
        )
        for topic in there
    }


async def _until_there(
    admin: Any, settings: Settings, specs: list[TopicSpec]
) -> dict[str, TopicState]:
    """Creation is answered before every broker knows of it."""

    async def ask() -> dict[str, TopicState]:
        states = await _states(admin, settings, specs)
        if any(
            spec.name not in states or states[spec.name].partitions != spec.partitions
            for spec in specs
        ):
            raise OSError("the new topics are not there yet")
        return states

    states: dict[str, TopicState] = await _ask(settings, "new topics", ask)
    return states


async def _create(admin: Any, settings: Settings, specs: list[TopicSpec]) -> None:
    new = [
        NewTopic(spec.name, spec.partitions, spec.replication, topic_configs=spec.configs)
        for spec in specs
    ]
    response = await _ask(settings, "create topics", lambda: admin.create_topics(new))
    for name, code, text in response.topic_errors:
        error: type[KafkaError] = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise LogError(f"create {name}: {error.__name__}: {text}")


async def _ask(settings: Settings, what: str, ask: Any) -> Any:
    return await answered(what, ask, settings, settings.request_timeout_s)
