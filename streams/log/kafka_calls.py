"""A question to a broker, asked again while the fault may pass, for a bounded time.

Invariant: nothing here waits longer than it was told to, and what ends a wait names what was
asked, of whom, and the last thing that went wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)

from streams.errors import LogAway, LogError, WrongTopic
from streams.log.security import client_options
from streams.settings import Settings

Answer = TypeVar("Answer")

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MOST_S = 1.0


async def answered(
    what: str, ask: Callable[[], Awaitable[Answer]], settings: Settings, seconds: float
) -> Answer:
    """The answer, or `LogAway` after so many seconds; what cannot pass is raised at once."""
    fault: Exception | None = None
    backoff_s = _BACKOFF_FIRST_S
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await ask()
                except (KafkaError, OSError) as error:
                    fault = error
                    if not may_pass(error):
                        raise LogError(f"{what}: {told(error)}") from error
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MOST_S)
    except TimeoutError:
        if isinstance(fault, UnknownTopicOrPartitionError):
            detail = f"{what}: there is no such topic; create it with `turnstream topics`"
            raise WrongTopic(detail) from fault
        last = f": {told(fault)}" if fault is not None else ""
        detail = f"{what}: no answer from {settings.bootstrap_servers} in {seconds:g} s{last}"
        raise LogAway(detail) from fault


def may_pass(error: Exception) -> bool:
    """Whether asking again can help."""
    return isinstance(error, OSError | KafkaTimeoutError) or bool(getattr(error, "retriable", True))


def told(error: Exception) -> str:
    """The error in words: aiokafka's text repeats its number and class."""
    text = str(error) or getattr(error, "description", "") or repr(error)
    return f"{type(error).__name__}: {text}"[:400]


async def started(what: str, client: Any, settings: Settings) -> None:
    """Start a client of aiokafka, once; a failed one is left stopped, so that it does not leak."""

    async def start() -> None:
        try:
            await client.start()
        except KafkaConnectionError:
            await _refused(settings)
            raise

    try:
        await answered(what, start, settings, settings.request_timeout_s)
    except BaseException:
        await stopped(client, settings.request_timeout_s)
        raise


async def stopped(client: Any, seconds: float) -> None:
    """Stop a client; one that cannot finish in time is dropped with what it still held."""
    stop = getattr(client, "stop", None) or client.close
    try:
        async with asyncio.timeout(seconds):
            await stop()
    except TimeoutError:
        # An idempotent producer retries for ever, also after `stop` was given up, and would
        # deliver behind its successor. aiokafka has no public way to drop it.
        sender = getattr(client, "_sender", None)
        if sender is not None and sender.sender_task is not None:
            sender.sender_task.cancel()
        connection = getattr(client, "client", None) or getattr(client, "_client", None)
        if connection is not None:
            await connection.close()
    except (KafkaError, OSError):
        return  # it was on its way out, and nothing can be done about it


async def _refused(settings: Settings) -> None:
    """Raise if a broker is there but turns us away: aiokafka only logs that, and goes on."""
    options = client_options(settings)
    del options["bootstrap_servers"], options["metadata_max_age_ms"]
    host, _, port = settings.bootstrap_servers.split(",")[0].strip().rpartition(":")
    try:
        connection = await create_conn(host, int(port), **options)
    except (
        AuthenticationFailedError,
        AuthenticationMethodNotSupported,
        UnsupportedSaslMechanismError,
    ) as error:
        raise LogError(f"{host}:{port} refuses {_who(settings)}: {told(error)}") from error
    except OSError as error:
        if type(error).__module__ == "ssl":
            raise LogError(f"{host}:{port}: TLS failed: {error}") from error
    except KafkaError:
        return
    else:
        connection.close()


def _who(settings: Settings) -> str:
    return f"user {settings.sasl_username} by {settings.sasl_mechanism}"
