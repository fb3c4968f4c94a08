"""Which log is meant where the caller names none.

    argument                             subscribe("run.db"), Recorder(settings), --log
    TURNSTREAM_LOG                       `kafka`, or a file
    TURNSTREAM_BOOTSTRAP_SERVERS         Kafka
    turnstream.db, turnstream-data/turnstream.db
                                         what `turnstream up` made in this folder

`gateway`, `processor` and `topics` are services of a deployment and do not look for a file: on the
file of a running `up`, a second processor would end the first.

Invariant: Kafka is never asked unless somebody named it.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from streams.errors import BadSetting
from streams.settings import KAFKA, PREFIX, Settings, settings_from

UP_FOLDER = "turnstream-data"
UP_FILE = "turnstream.db"


def find_log(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process, with the log that they name or that `up` made here.

    Raises:
        BadSetting: no log is named and none is here.
    """
    settings = settings_from(environ)
    if environ.get(f"{PREFIX}LOG"):
        return settings
    if environ.get(f"{PREFIX}BOOTSTRAP_SERVERS"):
        return dataclasses.replace(settings, log=KAFKA)
    for path in (Path(UP_FILE), Path(UP_FOLDER) / UP_FILE):
        if path.is_file():
            return dataclasses.replace(settings, log=str(path))
    raise BadSetting(
        f"no log is named and `turnstream up` has made none in this folder: set {PREFIX}LOG to the "
        f"path of its {UP_FILE}, or {PREFIX}BOOTSTRAP_SERVERS to host:port of Kafka"
    )
