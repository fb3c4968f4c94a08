"""A question to a broker, asked again while the fault may pass, for a bounded time.

Invariant: nothing here waits longer than it was told to, and what ends a wait names what was
asked, of whom, and the last thing that went wrong.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokafka.conn import create_conn
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)

from streams.errors import LogAway, LogError, WrongTopic
from streams.log.security import client_options
from streams.settings import Settings

Answer = TypeVar("Answer")

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MOST_S = 1.0


async def answered(
    what: str,
    ask: Callable[[], Awaitable[Answer]],
    settings: Settings,
    seconds: float,
    until_s: float | None = None,
) -> Answer:
    """The answer, or `LogAway` after so many seconds; what cannot pass is raised at once.

    Some of the seconds may have gone by already: then `until_s`, on the loop's clock, is the end.
    """
    fault: Exception | None = None
    backoff_s = _BACKOFF_FIRST_S
    clock = asyncio.get_running_loop().time
    # A broker that comes back does not know its topics at first, however long it was away.
    missing_s: float | None = None
    patience_s = min(seconds, settings.request_timeout_s)
    try:
        async with asyncio.timeout_at(clock() + seconds if until_s is None else until_s):
            while True:
                try:
                    return await ask()
                except (KafkaError, OSError) as error:
                    fault = error
                    if not may_pass(error):
                        raise LogError(f"{what}: {told(error)}") from error
                if not isinstance(fault, UnknownTopicOrPartitionError):
                    missing_s = None
                elif missing_s is None:
                    missing_s = clock()
                elif clock() - missing_s > patience_s:
                    break
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MOST_S)
    except TimeoutError:
        pass  # what the last try failed with says more
    if isinstance(fault, UnknownTopicOrPartitionError):
        detail = f"{what}: there is no such topic; create it with `turnstream topics`"
        raise WrongTopic(detail) from fault
    raise _away(what, settings, seconds, fault) from fault


def _away(what: str, settings: Settings, seconds: float, fault: Exception | None) -> LogAway:
    last = f": {told(fault)}" if fault is not None else ""
    return LogAway(f"{what}: no answer from {settings.bootstrap_servers} in {seconds:.3g} s{last}")


def may_pass(error: Exception) -> bool:
    """Whether asking again can help."""
    return isinstance(error, OSError | KafkaTimeoutError) or bool(getattr(error, "retriable", True))


def told(error: Exception) -> str:
    """The error in words, its class included."""
    name, text = type(error).__name__, str(error)
    return (text if name in text else f"{name}: {text}")[:400]


class Connected:
    """A client of aiokafka, started by whoever needs it first and shared by all."""

    def __init__(self, make: Callable[[], Any], settings: Settings) -> None:
        """`make` is called when the client is needed, inside the event loop."""
        self._make = make
        self._settings = settings
        self._starting = asyncio.Lock()
        self.now: Any = None
        """The client, if it is started."""

    async def client(self, what: str, seconds: float) -> Any:
        """The client, started; those who wait for another's attempt wait no longer than theirs."""
        if self.now is not None:
            return self.now
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + seconds
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._starting.acquire()
        except TimeoutError:
            raise _away(what, self._settings, seconds, None) from None
        try:
            if self.now is None:
                made = self._make()
                until_s = max(clock() + 0.1, deadline_s)
                await started(what, made, self._settings, seconds, until_s)
                self.now = made
            return self.now
        finally:
            self._starting.release()

    async def close(self, seconds: float) -> None:
        """Stop the client, if there is one; the next need starts another."""
        async with self._starting:
            client, self.now = self.now, None
            if client is not None:
                await stopped(client, seconds)


async def started(
    what: str, client: Any, settings: Settings, seconds: float, until_s: float | None = None
) -> None:
    """Start a client of aiokafka; a failed one is left stopped, so that it does not leak."""

    async def start() -> None:
        try:
            await client.start()
        except KafkaConnectionError:
            await _refused(settings)
            raise

    try:
        await answered(what, start, settings, seconds, until_s)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.close(), seconds)
    except (KafkaError, OSError):
        return  # it was on its way out, and nothing can be done about it


async def _refused(settings: Settings) -> None:
    """Raise if a broker is there but turns us away: aiokafka only logs that, and goes on."""
    options = client_options(settings)
    del options["bootstrap_servers"], options["metadata_max_age_ms"]
    host, _, port = settings.bootstrap_servers.split(",")[0].strip().rpartition(":")
    try:
        connection = await create_conn(host, int(port), **options)
    except KafkaError as error:
        if not may_pass(error):
            raise LogError(f"{host}:{port} refuses {_who(settings)}: {told(error)}") from error
    except OSError as error:
        if type(error).__module__ == "ssl":
            raise LogError(f"{host}:{port}: TLS failed: {error}") from error
    else:
        connection.close()


def _who(settings: Settings) -> str:
    return f"user {settings.sasl_username} by {settings.sasl_mechanism}"
