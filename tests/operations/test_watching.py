"""Dumps on a signal, the stall watchdog, and where neither can be had."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.errors import BadSetting
from streams.operations.watching import KEPT, Watch
from streams.settings import Settings

PATIENCE_S = 30.0
STALL_S = 0.2


@pytest.fixture(autouse=True)
def signal_as_before() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, handler)


def watch(folder: Path, stall_after_s: float = 0.0) -> Watch:
    settings = Settings(dump_folder=str(folder), stall_after_s=stall_after_s)
    return Watch("turnstream test", settings)


def dumps(folder: Path, named: str = "turnstream-test-*.txt") -> list[Path]:
    return sorted(folder.glob(named))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - a thread makes it hold
            await asyncio.sleep(0.02)


async def test_a_signal_writes_a_dump_and_the_work_goes_on(tmp_path: Path) -> None:
    with watch(tmp_path / "new" / "folder"):
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: len(dumps(tmp_path / "new" / "folder")) == count)  # noqa: B023
    text = dumps(tmp_path / "new" / "folder")[0].read_text()
    assert f"turnstream test, process {os.getpid()}, " in text
    assert "test_a_signal_writes_a_dump_and_the_work_goes_on" in text
    assert all(path.stat().st_mode & 0o077 == 0 for path in dumps(tmp_path / "new" / "folder"))


async def test_a_loop_that_stands_still_is_dumped_too(tmp_path: Path) -> None:
    def stuck_here() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        until_s = time.monotonic() + PATIENCE_S
        while not dumps(tmp_path) and time.monotonic() < until_s:
            time.sleep(0.02)

    with watch(tmp_path):
        stuck_here()
    (path,) = dumps(tmp_path)
    assert "stuck_here" in path.read_text()


async def test_what_cannot_be_written_is_one_line_and_the_next_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "file"
    said = ""

    def told() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "no task dump: FileExistsError" in said

    with watch(folder):
        folder.rmdir()
        folder.write_text("not a folder")
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(told)
        folder.unlink()
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: len(dumps(folder)) == 1)
    assert len(said.splitlines()) == 1


async def test_a_full_disk_leaves_no_part_of_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with watch(tmp_path) as watching:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        try:
            watching._dump("as the test asked")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "no task dump: OSError: " in capsys.readouterr().err
        assert dumps(tmp_path, "*") == []
        watching._dump("as the test asked")
    assert len(dumps(tmp_path, "*")) == len(dumps(tmp_path)) == 1


UNUSABLE = {
    "a file": ("{there}/file", "File exists"),
    "below a file": ("{there}/file/dumps", "Not a directory"),
    "not to be made": ("/proc/dumps", "No such file or directory"),
    "not to be written to": ("/proc", "No such file or directory"),
}


@pytest.mark.parametrize(("folder", "why"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_folder_that_cannot_be_used_is_refused_at_the_start(
    folder: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    before = signal.getsignal(signal.SIGUSR1)
    told = f"^TURNSTREAM_DUMP_FOLDER={folder.format(there=tmp_path)}: .*{why}"
    with pytest.raises(BadSetting, match=told), watch(Path(folder.format(there=tmp_path))):
        pass
    assert signal.getsignal(signal.SIGUSR1) == before


def test_without_any_folder_the_service_runs_and_says_so(tmp_path: Path) -> None:
    code = """
import asyncio, os, tempfile
from streams.operations.watching import Watch
from streams.settings import Settings
tempfile._candidate_tempdir_list = lambda: ["/proc"]
async def serve():
    with Watch("turnstream test", Settings()) as watch:
        watch.ready(lambda: None)
        print("goes on")
asyncio.run(serve())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "goes on\n"
    assert ran.stderr.startswith("turnstream test: no task dumps: ")
    assert ran.stderr.endswith("; set TURNSTREAM_DUMP_FOLDER\n")


async def test_the_watchdog_dumps_while_nothing_moves_and_stops_when_it_does(
    tmp_path: Path,
) -> None:
    moved = 0

    def moving() -> int:
        nonlocal moved
        moved += 1
        return moved

    with watch(tmp_path, STALL_S) as watching:
        watching.ready(lambda: 7)
        await until(lambda: len(dumps(tmp_path)) >= 3)
        watching.ready(moving)
        await until(lambda: moved >= 2)  # it was looked at since
        count = len(dumps(tmp_path))
        before = moved
        await until(lambda: moved >= before + 12)  # three times what a stall takes
        assert len(dumps(tmp_path)) == count
        watching.ready(lambda: 8)
        await until(lambda: len(dumps(tmp_path)) > count)
    assert "no progress for 0.2 s" in dumps(tmp_path)[0].read_text()


@pytest.mark.parametrize("stall_after_s", [0.0, STALL_S], ids=["off", "on"])
async def test_who_has_nothing_to_do_does_not_stall_and_off_is_off(
    tmp_path: Path, stall_after_s: float
) -> None:
    looks = 0

    def idle() -> int | None:
        nonlocal looks
        looks += 1
        return None if looks % 2 else 7

    with watch(tmp_path, stall_after_s) as watching:
        watching.ready(idle if stall_after_s else lambda: 7)
        await asyncio.sleep(4 * STALL_S)
    assert dumps(tmp_path) == []


async def test_only_the_newest_dumps_are_kept(tmp_path: Path) -> None:
    with watch(tmp_path) as watching:
        for _ in range(KEPT + 3):
            watching._dump("as the test asked")
    assert len(dumps(tmp_path)) == KEPT
    assert dumps(tmp_path)[0].stem.endswith("-0004")


def test_in_another_thread_the_service_runs_unwatched_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, done = signal.getsignal(signal.SIGUSR1), []

    def serve() -> None:
        with watch(tmp_path, STALL_S) as watching:
            watching.ready(lambda: 7)
            time.sleep(4 * STALL_S)
            done.append(True)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(PATIENCE_S)
    assert done == [True]
    assert signal.getsignal(signal.SIGUSR1) == before
    assert dumps(tmp_path) == []
    assert "turnstream test: no task dumps and no watchdog" in capsys.readouterr().err


def test_the_ready_line_says_what_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def served() -> None:
        for stall_after_s in (0.0, 30.0):
            with watch(tmp_path, stall_after_s) as watching:
                watching.ready(lambda: None)

    asyncio.run(served())
    ready = f"turnstream test: SIGUSR1 writes a task dump to {tmp_path}; stall watchdog"
    assert capsys.readouterr().err.splitlines() == [f"{ready} off", f"{ready} after 30 s"]
