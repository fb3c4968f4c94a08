"""`turnstream processor`: one worker of the Kafka deployment, or the one of an embedded log.

Invariant: whatever ends it is one line on stderr; the exit code says whether to start it again.
"""

import importlib
import sys
import traceback
from pathlib import Path

import click

from streams.cli.on_the_log import chosen_settings, log_option, run_on_the_log, stop_event
from streams.core.drawing import visible
from streams.errors import BadSetting, TurnstreamError, WrongTopic
from streams.log.sqlite import SqliteLog
from streams.operations.watching import Watch
from streams.processor.embedded import EmbeddedProcessor
from streams.processor.health import pulse, serve
from streams.processor.signals import end_on_signals
from streams.settings import KAFKA, Settings

WHO = "turnstream processor"
_FAILED = 1
_UNEXPECTED = 70
_NO_TOPICS = 76


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
    end_on_signals()  # until there is something to drain; Faust takes seconds to load
    if settings.log == KAFKA:
        # By name: the embedded processor must not wait for Faust to load.
        kafka = importlib.import_module("streams.log.kafka").KafkaLog
        require_topics = importlib.import_module("streams.log.kafka_topics").require_topics
        run = importlib.import_module("streams.processor.faust_run").run
        try:
            run(settings, kafka, require_topics)
        except TurnstreamError as error:
            _tell(str(error))
            sys.exit(_NO_TOPICS if isinstance(error, WrongTopic) else _FAILED)
    else:
        run_on_the_log(_embedded, log)


async def _embedded(settings: Settings) -> int:
    stop = stop_event()
    async with SqliteLog(Path(settings.log), settings) as log:
        embedded = EmbeddedProcessor(settings, log)
        health = await serve(settings, embedded.counts, embedded.look)
        try:
            with Watch(WHO, settings) as watch:
                watch.ready(lambda: pulse(embedded.counts, embedded.look))
                await embedded.run(stop)
        except TurnstreamError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            _tell(f"{settings.log}: unexpected failure: {detail}")
            return _UNEXPECTED
        finally:
            await health.cleanup()
    return 0


def _tell(text: str) -> None:
    line = "; ".join(text.splitlines())
    click.echo(f"{WHO}: {visible(line, most=None)}", err=True)
