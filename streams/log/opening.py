"""Which store a log lives in: `kafka`, or the path of a file.

Invariant: the caller sees a `Log` and nothing of the store behind it.
"""

import importlib
from pathlib import Path
from typing import cast

from schemas.round_trip import check_round_trip
from streams.log.interface import Log
from streams.settings import KAFKA, Settings


def open_log(settings: Settings, *, create: bool = False) -> Log:
    """The log that the settings name; it connects when it is first used.

    Args:
        settings: Where it is.
        create: Whether a missing file is made; a command that only looks leaves it out.

    Raises:
        RecordsChanged: the packages installed here do not read records back as written.
    """
    check_round_trip()
    # By name: a command on a file must not wait for the Kafka client to load.
    if settings.log == KAFKA:
        return cast(Log, importlib.import_module("streams.log.kafka").KafkaLog(settings))
    store = importlib.import_module("streams.log.sqlite")
    return cast(Log, store.SqliteLog(Path(settings.log), settings, create=create))


def log_name(settings: Settings) -> str:
    """Where the log is, for people."""
    return settings.bootstrap_servers if settings.log == KAFKA else settings.log
