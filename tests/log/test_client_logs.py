"""The client's log lines during an outage: said once, then counted."""

import logging
from collections.abc import Iterator

import pytest

from streams.log.client_logs import CLIENT, calm_client_logs, silence_client_logs


@pytest.fixture
def client() -> Iterator[logging.Logger]:
    """A logger below aiokafka's; what the test changes above it is put back."""
    above = logging.getLogger(CLIENT)
    kept = above.handlers, above.propagate, above.level
    above.setLevel(logging.NOTSET)  # a command that ran in this process may have silenced it
    yield logging.getLogger(f"{CLIENT}.conn")
    above.handlers, above.propagate, above.level = kept
    logging.getLogger(f"{CLIENT}.conn").setLevel(logging.NOTSET)


def away(logger: logging.Logger, port: int) -> None:
    logger.error("Unable to connect to %s", port)


def test_a_repeated_line_is_printed_once(
    client: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    calm_client_logs(every_s=60)
    for port in range(100):
        away(client, port)
    client.warning("something else")
    assert caplog.messages == ["Unable to connect to 0", "something else"]


def test_what_was_held_back_is_counted_in_the_next_line(
    client: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    calm_client_logs(every_s=60)
    for port in range(5):
        away(client, port)
    calm = logging.getLogger(CLIENT).handlers[0]
    calm._every_s = 0  # type: ignore[attr-defined]  # the time is over
    away(client, 5)
    assert caplog.messages[-1] == "Unable to connect to 5 (4 more since the last)"


def test_a_command_prints_none_of_it(
    client: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    silence_client_logs()
    away(client, 1)
    assert caplog.messages == []
