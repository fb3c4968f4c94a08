"""What aiokafka says while a broker is away: several lines every 100 ms, for as long as it lasts.

Invariant: nothing it says for the first time is lost; what it repeats is counted, not printed.
"""

import logging
import time

CLIENT = "aiokafka"
CALM = "turnstream.kafka"


def calm_client_logs(every_s: float = 30.0) -> None:
    """For services: each kind of line at most once in so many seconds, under `turnstream.kafka`."""
    logger = logging.getLogger(CLIENT)
    logger.handlers = [_Calm(every_s)]
    logger.propagate = False


def silence_client_logs() -> None:
    """For commands, which say themselves what went wrong."""
    logging.getLogger(CLIENT).setLevel(logging.CRITICAL + 1)


class _Calm(logging.Handler):
    """Hands on the first line of its kind; then counts until the time is over."""

    def __init__(self, every_s: float) -> None:
        super().__init__(logging.WARNING)
        self._every_s = every_s
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, record.lineno, record.levelname)
        said_s, repeats = self._said.get(kind, (float("-inf"), 0))
        now_s = time.monotonic()
        if now_s - said_s < self._every_s:
            self._said[kind] = (said_s, repeats + 1)
            return
        self._said[kind] = (now_s, 0)
        again = f" ({repeats} more since the last)" if repeats else ""
        logging.getLogger(CALM).log(record.levelno, "%s%s", record.getMessage(), again)
