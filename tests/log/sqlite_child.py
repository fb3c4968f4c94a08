"""A process that uses an embedded log and says what it did, one line each, for tests to kill.

write PATH NAME COUNT TASKS    acknowledged entries as `offset number`
read PATH COUNT                entries as `offset key number`
hold PATH                      `held`, then the write lock until its input ends
full PATH KIB                  entries until no file may grow beyond KIB, then without a limit
locked-out PATH                what a write says where nothing may be written
"""

import asyncio
import ctypes
import os
import resource
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from streams.errors import LogError
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.settings import Settings

SETTINGS = Settings()
VALUE_BYTES = (10, 9000)
LARGE_BYTES = (100_000, 100_000)
_CAPABILITIES_VERSION_3 = 0x20080522


def say(line: str) -> None:
    """At once and in one piece: the process may be killed right after it."""
    os.write(1, f"{line}\n".encode())


def entry(name: str, number: int, sizes_bytes: tuple[int, int] = VALUE_BYTES) -> Outgoing:
    """Named, numbered, small and large in turns."""
    padding = b"x" * sizes_bytes[number % 2]
    return Outgoing(
        topic=SETTINGS.turns_topic, key=name.encode(), value=b"%d %s" % (number, padding)
    )


async def write(path: Path, name: str, count: int, tasks: int) -> None:
    """Each number is sent in order; what is acknowledged is said."""
    numbers = iter(range(count))
    async with SqliteLog(path, SETTINGS) as log:

        async def one_after_another() -> None:
            for number in numbers:
                sent = await log.send(entry(name, number))
                say(f"{(await sent).offset} {number}")

        await asyncio.gather(*(one_after_another() for _ in range(tasks)))


async def read(path: Path, count: int) -> None:
    """From the start, as they come."""
    async with SqliteLog(path, SETTINGS) as log:
        reader = await log.read(SETTINGS.turns_topic, {0: 0})
        while count > 0:
            batch = await reader.next_batch(10, 100)
            lines = [
                f"{e.position.offset} {(e.key or b'').decode()} {int((e.value or b'').split()[0])}"
                for e in batch
            ]
            say("\n".join(lines) if lines else "nothing came")
            count -= len(batch)


def hold(path: Path) -> None:
    """As a writer that hangs in the middle of a transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()


async def full(path: Path, kib: int) -> None:
    """Publish until it fails, twice more, then with the limit taken away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with SqliteLog(path, SETTINGS) as log:
        number = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, hard))
        refusals = 0
        while refusals < 3:
            try:
                say(f"{(await log.publish(entry('full', number, LARGE_BYTES))).offset} {number}")
                number += 1
            except LogError as error:
                refusals += 1
                say(f"{type(error).__name__}: {error}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for later in range(number, number + 5):
            say(f"{(await log.publish(entry('full', later))).offset} {later}")


async def locked_out(path: Path) -> None:
    """As a user without rights; root has them by a capability that is given up here."""
    if sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
        nothing = (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None).capset(header, nothing) != 0:
            raise OSError("capset")
    async with SqliteLog(path, SETTINGS) as log:
        try:
            await log.publish(entry("out", 0))
        except LogError as error:
            say(f"{type(error).__name__}: {error}")


def main() -> None:
    """One of the above."""
    what, path, *rest = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    scenarios: dict[str, Callable[[], Coroutine[None, None, None]]] = {
        "write": lambda: write(path, rest[0], int(rest[1]), int(rest[2])),
        "read": lambda: read(path, int(rest[0])),
        "full": lambda: full(path, int(rest[0])),
        "locked-out": lambda: locked_out(path),
    }
    if what == "hold":
        hold(path)
    else:
        asyncio.run(scenarios[what]())


if __name__ == "__main__":
    main()
