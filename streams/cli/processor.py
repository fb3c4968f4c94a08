"""`turnstream processor`: one worker of the Kafka deployment, or the one of an embedded log."""

import importlib
from pathlib import Path

import click

from streams.cli.on_the_log import chosen_settings, log_option, run_on_the_log, stop_event
from streams.errors import BadSetting
from streams.log.sqlite import SqliteLog
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.health import serve
from streams.processor.signals import end_on_signals
from streams.settings import KAFKA, Settings


@click.command()
@log_option
def processor(log: str | None) -> None:
    """Grow session trees from the turns topic and emit samples.

    On Kafka start as many as there are partitions at most; they share the work and any of them
    may die at any moment. An embedded log has one. Settings come from TURNSTREAM_* variables.
    SIGTERM drains and exits 0; exit code 70 is an unexpected failure, 76 that the broker does
    not show the topics: start it again.
    """
    try:
        settings = chosen_settings(log)
    except BadSetting as error:
        raise click.ClickException(str(error)) from None
    if settings.log == KAFKA:
        end_on_signals()  # Faust takes seconds to load
        # By name: the embedded processor must not wait for Faust to load.
        kafka = importlib.import_module("streams.log.kafka").KafkaLog
        require_topics = importlib.import_module("streams.log.kafka_topics").require_topics
        run = importlib.import_module("streams.processor.faust_run").run
        run(settings, kafka, require_topics)
    else:
        run_on_the_log(_embedded, log)


async def _embedded(settings: Settings) -> int:
    async with SqliteLog(Path(settings.log), settings) as log:
        embedded = EmbeddedProcessor(settings, log)
        health = await serve(settings, embedded.counts, embedded.look)
        try:
            await embedded.run(stop_event())
        finally:
            await health.cleanup()
    return 0
