"""A further samples topic on Kafka, made like the one there is.

Invariant: a topic that exists is left as it is.
"""

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from streams.errors import LogError
from streams.log.kafka_calls import answered, started, stopped
from streams.log.security import client_options
from streams.log.topics import topic_specs
from streams.settings import Settings


async def is_there(settings: Settings, topic: str) -> bool:
    """Whether the brokers know the topic."""
    seconds = settings.request_timeout_s
    admin = AIOKafkaAdminClient(**client_options(settings))
    await started("topics", admin, settings, seconds)
    try:
        return topic in await answered("topics", admin.list_topics, settings, seconds)
    finally:
        await stopped(admin, seconds)


async def create_like_samples(settings: Settings, topic: str) -> None:
    """Create the topic unless it is there."""
    seconds = settings.request_timeout_s
    admin = AIOKafkaAdminClient(**client_options(settings))
    await started("topics", admin, settings, seconds)
    try:
        cluster = await answered("brokers", admin.describe_cluster, settings, seconds)
        specs = topic_specs(settings, len(cluster["brokers"]))
        spec = next(spec for spec in specs if spec.name == settings.samples_topic)
        new = NewTopic(topic, spec.partitions, spec.replication, topic_configs=spec.configs)
        response = await answered(
            f"create {topic}", lambda: admin.create_topics([new]), settings, seconds
        )
        for _, code, text in response.topic_errors:
            error: type[KafkaError] = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise LogError(f"create {topic}: {error.__name__}: {text}")
    finally:
        await stopped(admin, seconds)
