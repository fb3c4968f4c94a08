"""Writers of an embedded log killed, starved and locked out: nothing acknowledged is lost."""

import random
import sqlite3
import time
from pathlib import Path

import pytest

from tests.log.sqlite_processes import Child, acknowledged, stored

KILLS = 20


def test_what_was_acknowledged_before_a_kill_stands_at_its_place_without_a_hole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    chance = random.Random(5)
    known: dict[int, tuple[str, int]] = {}
    for life in range(KILLS):
        name = f"life{life}"
        with Child("write", path, name, 1_000_000, chance.choice([1, 4, 32])) as child:
            child.wait_for_lines(1)  # from now on at any moment
            time.sleep(chance.random() * 0.08)
            known |= {at: (name, n) for at, n in acknowledged(child.kill()).items()}
    entries = stored(path)
    assert known.items() <= dict(enumerate(entries)).items()
    for life in range(KILLS):
        numbers = [number for name, number in entries if name == f"life{life}"]
        assert numbers == list(range(len(numbers)))
    assert len(known) > 3 * KILLS
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_killed_writer_does_not_disturb_another(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child("write", path, "stays", 3000, 8) as stays:
        stays.wait_for_lines(1)
        with Child("write", path, "dies", 1_000_000, 8) as dies:
            dies.wait_for_lines(40)
            killed = acknowledged(dies.kill())
        known = acknowledged(stays.finish())
    entries = stored(path)
    assert sorted(known.values()) == list(range(3000))
    assert all(entries[at] == ("stays", number) for at, number in known.items())
    assert all(entries[at] == ("dies", number) for at, number in killed.items())


@pytest.mark.parametrize("kib", [3000, 12_000], ids=["the write-ahead log", "the database"])
def test_where_files_may_grow_no_more_it_is_said_and_later_writing_goes_on(
    tmp_path: Path, kib: int
) -> None:
    path = tmp_path / "log.db"
    with Child("full", path, kib) as child:
        lines = child.finish()
    refused = [line for line in lines if line.startswith("Log")]
    assert len(refused) == 3
    assert all(f"{path} cannot be read or written" in line for line in refused)
    assert all("publish to turnstream.turns: " in line for line in refused)
    known = acknowledged([line for line in lines if line not in refused])
    assert len(known) > 20
    assert [number for _, number in stored(path)] == list(range(len(known)))


@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
def test_a_folder_without_write_permission_is_said(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "log.db"
    if there:
        with Child("write", path, "before", 3, 1) as child:
            child.finish()
        path.chmod(0o400)
    folder.chmod(0o500)
    with Child("locked-out", path) as child:
        (line,) = child.finish()
    folder.chmod(0o700)
    said = "cannot be opened or written: file and folder have to be writable"
    assert line.startswith("LogError: publish to turnstream.turns: " + str(path))
    assert (said if there else f"cannot be made: Permission denied: {folder}") in line
    if there:
        assert stored(path) == [("before", number) for number in range(3)]
    else:
        assert list(folder.iterdir()) == []
