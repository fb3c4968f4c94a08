"""The broker of the compose file, from its own environment, without its image.

The image turns its variables into `server.properties` and formats the volume by a class that lies
in the broker's own jar, so the same class does it here.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.compose.compose_file import Service
from tests.compose.stand_in import BASE_ENVIRONMENT, replaced
from tests.kafka.broker import START_SECONDS_MAX, Broker
from tests.kafka.jars import NoBroker, broker_jars, java_command

SET_UP = "kafka.docker.KafkaDockerWrapper"


class ComposeBroker(Broker):
    """A broker with the settings of a compose service and no others."""

    def __init__(self, service: Service, table: Mapping[str, str], folder: Path, port: int) -> None:
        """Formatted, not yet started; `port` is where a client finds it first."""
        heap = re.search(r"-Xmx(\d+)g", service.environment["KAFKA_HEAP_OPTS"])
        assert heap is not None
        super().__init__(folder, port=port, heap_mb=int(heap[1]) * 1024)
        self._set_up = folder / "set-up"
        self._set_up.mkdir(parents=True)
        for name in ("default", "mounted", "final"):
            (self._set_up / name).mkdir()
        (self._set_up / "final/server.properties").touch()
        given = {key: replaced(value, table) for key, value in service.environment.items()}
        options = [
            word
            for name in ("default", "mounted", "final")
            for word in (f"--{name}-configs-dir", str(self._set_up / name))
        ]
        run = subprocess.run(
            [*java_command(broker_jars(), 128), SET_UP, "setup", *options],
            env=BASE_ENVIRONMENT | given,
            check=False,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
        )
        if run.returncode:
            raise NoBroker(
                f"the image's set-up ended with {run.returncode}:\n{run.stdout}{run.stderr}"
            )

    def _written_properties(self) -> Path:
        return self._set_up / "final/server.properties"
