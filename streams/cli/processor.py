"""`turnstream processor`: one worker of the Kafka deployment."""

import click

from streams.log.kafka import KafkaLog
from streams.log.kafka_topics import require_topics
from streams.processor.faust_run import run
from streams.settings import load_settings


@click.command()
def processor() -> None:
    """Grow session trees from the turns topic and emit samples.

    Start as many as there are partitions at most; they share the work and any of them may die
    at any moment. Settings come from TURNSTREAM_* variables. SIGTERM drains and exits 0; exit
    code 70 is an unexpected failure, 76 that the broker does not show the topics: start it again.
    """
    run(load_settings(), KafkaLog, require_topics)
