"""Which files are logs: one is made with care, and no other file is touched."""

import asyncio
import hashlib
import sqlite3
from pathlib import Path

import pytest

from streams.errors import LogError, WrongLog
from streams.log.interface import Outgoing
from streams.log.sqlite import SqliteLog
from streams.log.sqlite_file import APPLICATION_ID, PAGE_BYTES, SCHEMA_VERSION, LogFile
from streams.settings import Settings

SETTINGS = Settings()
ENTRY = Outgoing(topic=SETTINGS.turns_topic, key=b"s", value=b"v")


def publish(path: Path) -> int:
    async def scenario() -> int:
        async with SqliteLog(path, SETTINGS) as log:
            return (await log.publish(ENTRY)).offset

    return asyncio.run(scenario())


def end(path: Path, *, create: bool = True) -> int:
    async def scenario() -> int:
        async with SqliteLog(path, SETTINGS, create=create) as log:
            return (await log.end_positions(SETTINGS.turns_topic))[0]

    return asyncio.run(scenario())


def pragma(path: Path, name: str) -> object:
    connection = sqlite3.connect(path)
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    connection.close()
    return value


def test_a_new_log_is_for_its_owner_alone_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "data" / "log.db"

    async def scenario() -> dict[str, int]:
        async with SqliteLog(path, SETTINGS) as log:
            await log.publish(ENTRY)
            return {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}

    assert asyncio.run(scenario()) == {"log.db": 0o600, "log.db-wal": 0o600, "log.db-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["log.db"]
    found = {name: pragma(path, name) for name in ("application_id", "user_version", "page_size")}
    wanted = {"application_id": APPLICATION_ID, "user_version": SCHEMA_VERSION}
    assert found == wanted | {"page_size": PAGE_BYTES}
    assert (pragma(path, "journal_mode"), pragma(path, "auto_vacuum")) == ("wal", 2)


def test_of_missing_folders_only_the_last_is_made(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "log.db"
    with pytest.raises(LogError, match=rf"{path} cannot be made: No such file.*: {path.parent}"):
        publish(path)
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_only_made_by_who_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with pytest.raises(WrongLog, match=rf"end of turnstream.turns: there is no log at {path}"):
        end(path, create=False)
    assert list(tmp_path.iterdir()) == []
    assert end(path) == 0
    assert end(path, create=False) == 0


def test_a_log_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "a name with spaces, ? and #.db"
    assert [publish(path) for _ in range(3)] == [0, 1, 2]


def test_a_file_that_was_begun_by_a_process_killed_early_becomes_a_log(tmp_path: Path) -> None:
    empty, begun = tmp_path / "empty.db", tmp_path / "begun.db"
    empty.touch()
    connection = sqlite3.connect(begun)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert begun.stat().st_size > 0
    assert [publish(empty), publish(begun)] == [0, 0]


def other_application(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (place INTEGER PRIMARY KEY)")
    connection.close()


def other_version(path: Path) -> None:
    publish(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()


def no_database(path: Path) -> None:
    path.write_text("Dear diary, today I have to write more than a hundred bytes. " * 9)


def damaged(path: Path) -> None:
    publish(path)
    data = bytearray(path.read_bytes())
    data[100 : 3 * PAGE_BYTES] = b"\xa5" * (3 * PAGE_BYTES - 100)  # behind the header
    path.write_bytes(data)


OTHERS = {
    "another application's": (other_application, "belongs to another application"),
    "another version's": (other_version, "is a log of version 2, and this .* reads version 1"),
    "no database": (no_database, "is no SQLite file"),
    "damaged": (damaged, "is damaged; go on from a copy"),
    "a folder": (Path.mkdir, "is a folder; name a file"),
}


@pytest.mark.parametrize(("make", "said"), OTHERS.values(), ids=OTHERS)
def test_a_file_that_is_no_log_is_refused_and_left_as_it_is(
    tmp_path: Path, make: object, said: str
) -> None:
    path = tmp_path / "other.db"
    assert callable(make)
    make(path)
    before = None if path.is_dir() else hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(WrongLog, match=rf"publish to turnstream.turns: {path} {said}"):
        publish(path)
    with pytest.raises(WrongLog, match=rf"end of turnstream.turns: {path} {said}"):
        end(path)
    assert before is None or hashlib.sha256(path.read_bytes()).digest() == before


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            await log.publish(ENTRY)
            path.rename(tmp_path / "elsewhere.db")
            if replaced:
                path.touch()
            for _ in range(2):
                with pytest.raises(WrongLog, match="was removed or replaced while it was in use"):
                    await log.publish(ENTRY)
                with pytest.raises(WrongLog, match="was removed or replaced while it was in use"):
                    await log.end_positions(SETTINGS.turns_topic)

    asyncio.run(scenario())
    assert path.exists() == replaced


def test_a_file_put_in_the_place_of_a_log_in_use_keeps_what_it_holds(tmp_path: Path) -> None:
    path, other = tmp_path / "log.db", tmp_path / "other.db"
    aside = tmp_path / "log.db-wal.of-the-old-file"
    assert [publish(other) for _ in range(3)] == [0, 1, 2]

    async def scenario() -> None:
        async with SqliteLog(path, SETTINGS) as log:
            for _ in range(50):
                await log.publish(ENTRY)
            other.replace(path)
            with pytest.raises(WrongLog, match=rf"replaced while it was in use.* is in {aside}$"):
                await log.publish(ENTRY)
            # Also while those who had the old file still run.
            assert (await asyncio.to_thread(end, path)) == 3
            with pytest.raises(WrongLog, match="was removed or replaced while it was in use"):
                await log.end_positions(SETTINGS.turns_topic)
            assert (await asyncio.to_thread(publish, path)) == 3

    asyncio.run(scenario())
    assert end(path) == 4
    assert aside.stat().st_size > 0


def test_only_who_writes_makes_a_log_of_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(WrongLog, match=rf"{path} holds no log yet"):
        end(path, create=False)
    assert (path.stat().st_size, list(tmp_path.iterdir())) == (0, [path])


def test_a_connection_syncs_every_commit_and_never_checkpoints_by_itself(tmp_path: Path) -> None:
    connection = LogFile(tmp_path / "log.db", create=True, busy_s=1).open()
    wanted = {"synchronous": 2, "wal_autocheckpoint": 0, "journal_mode": "wal"}
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}
    connection.close()
    assert found == wanted


def test_many_may_open_a_new_log_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def scenario() -> None:
        logs = [SqliteLog(path, SETTINGS) for _ in range(8)]
        found = await asyncio.gather(*(log.publish(ENTRY) for log in logs))
        assert sorted(place.offset for place in found) == list(range(8))
        await asyncio.gather(*(log.close() for log in logs))

    asyncio.run(scenario())
