"""Entries, rows of the table and positions in one transaction: all of it, or nothing."""

import asyncio
from pathlib import Path

import pytest

from streams.errors import PositionMoved, TooLarge, WrongTopic
from streams.log.interface import Outgoing, Position
from streams.log.sqlite import SqliteLog, Transaction
from streams.settings import Settings
from tests.log.sqlite_processes import Lock

SETTINGS = Settings()
TURNS, SAMPLES = SETTINGS.turns_topic, SETTINGS.samples_topic
GROUP = ("processor", TURNS)


def sample(value: bytes) -> Outgoing:
    return Outgoing(topic=SAMPLES, key=b"g", value=value)


async def table(log: SqliteLog) -> dict[bytes, bytes]:
    return {key: value async for key, value in log.table_entries()}


def test_a_transaction_changes_topics_table_and_positions_together(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def first() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            letter = Outgoing(topic=SETTINGS.dead_letters_topic, key=b"k", value=b"letter")
            places = await log.transact(
                Transaction(
                    outgoing=[sample(b"0"), letter, sample(b"1")],
                    puts=[(b"a", b"1"), (b"b", b"2"), (b"gone", b""), (b"gone", None)],
                    commits={GROUP: 7},
                    expect_commits={GROUP: None},
                )
            )
            assert places == [
                Position(SAMPLES, 0, 0),
                Position(SETTINGS.dead_letters_topic, 0, 0),
                Position(SAMPLES, 0, 1),
            ]

    async def second() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            assert await table(log) == {b"a": b"1", b"b": b"2"}
            assert (await log.table_get(b"a"), await log.table_get(b"gone")) == (b"1", None)
            assert await log.committed(*GROUP) == {0: 7}
            assert await log.end_positions(SAMPLES) == {0: 2}
            places = await log.transact(
                Transaction(
                    puts=[(b"a", None), (b"b", b"3"), (b"never", None)],
                    commits={GROUP: 9},
                    expect_commits={GROUP: 7},
                )
            )
            assert places == []
            assert await table(log) == {b"b": b"3"}
            assert await log.committed(*GROUP) == {0: 9}

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.parametrize("expected", [None, 6, 8])
def test_of_two_processors_on_one_file_one_is_refused(tmp_path: Path, expected: int | None) -> None:
    async def scenario() -> None:
        path = tmp_path / "log.db"
        async with SqliteLog(path, SETTINGS) as one, SqliteLog(path, SETTINGS) as two:
            await one.transact(Transaction(commits={GROUP: 7}, expect_commits={GROUP: None}))
            late = Transaction(
                outgoing=[sample(b"twice")],
                puts=[(b"a", b"twice")],
                commits={GROUP: 9},
                expect_commits={GROUP: expected},
            )
            text = r"group processor on turnstream.turns stands at 7, expected .*: another process"
            with pytest.raises(PositionMoved, match=text):
                await two.transact(late)
            assert await table(two) == {}
            assert await two.end_positions(SAMPLES) == {0: 0}
            assert await two.committed(*GROUP) == {0: 7}

    asyncio.run(scenario())


def test_a_refused_transaction_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    def step(before: int | None, after: int) -> Transaction:
        value = b"%d" % after
        return Transaction(
            outgoing=[sample(value)],
            puts=[(b"a", value)],
            commits={GROUP: after},
            expect_commits={GROUP: before},
        )

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.commit("other", TURNS, {0: 0})
            lock = Lock(path)
            before = await log.send(sample(b"before"))
            await asyncio.sleep(0.05)  # its transaction is being tried; the rest share the next
            steps = asyncio.gather(
                log.transact(step(None, 3)),
                log.transact(step(None, 4)),
                log.transact(step(3, 5)),
                log.publish(sample(b"after")),
                return_exceptions=True,
            )
            await asyncio.sleep(0.05)
            lock.release()
            first, refused, second, after = await steps
            assert log.transactions == 3
            assert isinstance(refused, PositionMoved)
            assert (await before, after) == (Position(SAMPLES, 0, 0), Position(SAMPLES, 0, 3))
            assert (first, second) == ([Position(SAMPLES, 0, 1)], [Position(SAMPLES, 0, 2)])
            reader = await log.read(SAMPLES, {0: 0})
            values = [e.value for e in await reader.next_batch(5)]
            assert values == [b"before", b"3", b"5", b"after"]
            assert await table(log) == {b"a": b"5"}

    asyncio.run(scenario())


def test_an_entry_that_cannot_be_stored_refuses_the_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            large = sample(bytes(SETTINGS.record_bytes_max + 1))
            with pytest.raises(TooLarge):
                await log.transact(Transaction(outgoing=[sample(b"1"), large], puts=[(b"a", b"1")]))
            elsewhere = Outgoing(topic=SAMPLES, key=b"g", value=b"1", partition=1)
            with pytest.raises(WrongTopic):
                await log.transact(Transaction(outgoing=[elsewhere], puts=[(b"a", b"1")]))
            assert await table(log) == {}
            assert await log.end_positions(SAMPLES) == {0: 0}

    asyncio.run(scenario())


def test_the_whole_table_is_read_in_the_order_of_its_keys(tmp_path: Path) -> None:
    rows = {n.to_bytes(4) + b"\x00" * (n % 3): bytes([n % 256]) * (n % 50) for n in range(3000)}
    rows |= {b"": b"the empty key", b"\xff\xff": bytes(9 << 20)}

    async def scenario() -> None:
        async with SqliteLog(tmp_path / "log.db", SETTINGS) as log:
            await log.transact(Transaction(puts=list(reversed(rows.items()))))
            found = [row async for row in log.table_entries()]
            assert found == sorted(rows.items())

    asyncio.run(scenario())
