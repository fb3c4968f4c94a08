"""What an operator may do to a topic while all is running: let it take less."""

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams.log.topics import topic_specs
from streams.settings import Settings


async def limit_topic(settings: Settings, topic: str, bytes_max: int) -> None:
    """Lower what the broker takes from now on, or a moment later."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    try:
        # What is not named falls back to the broker's default.
        (spec,) = (spec for spec in topic_specs(settings, 1) if spec.name == topic)
        configs = spec.configs | {"max.message.bytes": str(bytes_max)}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
    finally:
        await admin.close()
