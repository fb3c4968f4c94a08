"""What the writer of the embedded log is asked to do, and how the answer comes back.

Invariant: a job is settled once, in the event loop, after its transaction is durable or failed;
giving up the wait for it does not take it back.
"""

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from streams.errors import LogAway, LogError
from streams.log.interface import Outgoing, Position
from streams.log.sqlite_transaction import Pen

OVERHEAD_BYTES = 256
"""Of a job beside what it holds, so that many empty ones count too."""

Answer = TypeVar("Answer")


class Job(Protocol):
    """Something that becomes part of a transaction."""

    size_bytes: int
    deadline_s: float
    """By the loop's clock."""
    failures: int
    """How many failed transactions were known when it was handed over."""

    @property
    def what(self) -> str:
        """For errors."""
        ...

    def write(self, pen: Pen) -> object:
        """In the writer's thread, within the transaction."""
        ...

    def settle(self, answer: object) -> None:
        """In the loop: what `write` gave, or the error that took it back."""
        ...


class _Awaited:
    """What both kinds share: a future, its bound, and its errors told."""

    __slots__ = ("_future", "_path", "_seconds", "deadline_s", "failures", "size_bytes")

    def __init__(self, size_bytes: int, path: Path, seconds: float) -> None:
        """The clock runs from here, not from the first await."""
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = loop.create_future()
        self._path = path
        self._seconds = seconds
        self.size_bytes = size_bytes + OVERHEAD_BYTES
        self.deadline_s = loop.time() + seconds
        self.failures = 0

    @property
    def what(self) -> str:
        raise NotImplementedError

    def settle(self, answer: object) -> None:
        """In the loop."""
        if self._future.done():
            return
        if isinstance(answer, LogError):
            self._future.set_exception(answer)
            self._future.exception()  # seen, also for callers that never look
        else:
            self._future.set_result(answer)

    async def _settled(self) -> None:
        """Wait, bounded; shielded, since a second await may still learn the answer."""
        if self._future.done():
            return
        try:
            async with asyncio.timeout_at(self.deadline_s):
                await asyncio.shield(self._future)
        except TimeoutError:
            detail = f"not written to {self._path} in {self._seconds:g} s; it may still be stored"
            raise LogAway(f"{self.what}: {detail}") from None
        except LogError:
            pass  # told by `_answer`, under the name of what was asked

    def _answer(self) -> Any:
        try:
            return self._future.result()
        except LogError as error:
            raise type(error)(f"{self.what}: {error}") from error


class Sent(_Awaited):
    """An entry on its way; awaiting it gives its position once it is durable."""

    __slots__ = ("_outgoing",)

    def __init__(self, outgoing: Outgoing, path: Path, seconds: float) -> None:
        """It is not handed over yet."""
        size_bytes = len(outgoing.key or b"") + len(outgoing.value or b"")
        super().__init__(size_bytes, path, seconds)
        self._outgoing = outgoing

    def __await__(self) -> Generator[Any, None, Position]:
        """Wait for the transaction, bounded."""
        return self._position().__await__()

    async def _position(self) -> Position:
        await self._settled()
        return self.settled_position()

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back once it is durable or has failed."""
        self._future.add_done_callback(lambda _: call())

    def settled_position(self) -> Position:
        """The position, once settled."""
        return Position(self._outgoing.topic, 0, self._answer())

    @property
    def what(self) -> str:
        """For errors."""
        return f"publish to {self._outgoing}"

    def write(self, pen: Pen) -> int:
        """Give it its position."""
        return pen.append(self._outgoing)


class Work(_Awaited, Generic[Answer]):
    """Any other change."""

    __slots__ = ("_call", "_what")

    def __init__(
        self, what: str, call: Callable[[Pen], Answer], size_bytes: int, path: Path, seconds: float
    ) -> None:
        """The call raises a `LogError` only before its first change."""
        super().__init__(size_bytes, path, seconds)
        self._call = call
        self._what = what

    async def answer(self) -> Answer:
        """What the call gave, once it is durable."""
        await self._settled()
        answer: Answer = self._answer()
        return answer

    @property
    def what(self) -> str:
        """For errors."""
        return self._what

    def write(self, pen: Pen) -> Answer:
        """Do it."""
        return self._call(pen)
