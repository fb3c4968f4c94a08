"""A log in memory whose acknowledgements come when the test says, in any order.

It is harsher than Kafka: of the writes under way at a crash any subset may have arrived, in any
order, also within one partition.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from typing import Any

from streams.errors import TooLarge
from streams.log.interface import Outgoing, Position


class Sent:
    """A write under way."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_settled(self, call: Callable[[], None]) -> None:
        self.future.add_done_callback(lambda _: call())

    def settled_position(self) -> Position:
        return self.future.result()

    def __await__(self) -> Generator[Any, None, Position]:
        return self.future.__await__()


class MemoryLog:
    """Topics as lists, and the writes that have not arrived yet."""

    def __init__(self, choices: random.Random, bytes_max: Mapping[str, int] | None = None) -> None:
        """`bytes_max`: by topic, of a value; larger ones are refused, as a broker does."""
        self._choices = choices
        self._bytes_max = bytes_max or {}
        self._under_way: list[tuple[Outgoing, Sent]] = []
        self.topics: dict[str, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)

    async def send(self, outgoing: Outgoing) -> Sent:
        sent = Sent()
        self._under_way.append((outgoing, sent))
        return sent

    async def deliver(self, most: int | None = None) -> None:
        """Let some writes arrive, in any order, and whoever waits for them go on."""
        self._choices.shuffle(self._under_way)
        count = len(self._under_way) if most is None else min(most, len(self._under_way))
        for outgoing, sent in [self._under_way.pop() for _ in range(count)]:
            size = len(outgoing.value or b"")
            if size > self._bytes_max.get(outgoing.topic, size):
                sent.future.set_exception(TooLarge(size, None))
            else:
                sent.future.set_result(self._arrive(outgoing))
        await settle()

    def crash(self) -> None:
        """The writer is gone; some of what it sent arrives all the same."""
        for outgoing, _ in self._under_way:
            size = len(outgoing.value or b"")
            fits = size <= self._bytes_max.get(outgoing.topic, size)
            if fits and self._choices.random() < 0.5:
                self._arrive(outgoing)
        self._under_way.clear()

    @property
    def quiet(self) -> bool:
        return not self._under_way

    def _arrive(self, outgoing: Outgoing) -> Position:
        entries = self.topics[outgoing.topic]
        entries.append((outgoing.key, outgoing.value))
        return Position(outgoing.topic, outgoing.partition or 0, len(entries) - 1)


async def settle() -> None:
    """Give every task that can go on the chance to."""
    for _ in range(20):
        await asyncio.sleep(0)
