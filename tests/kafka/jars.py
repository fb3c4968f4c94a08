"""The broker's jars: fetched once by Maven, checked by their hashes, kept beside the packages.

Invariant: `broker_jars()` returns a folder that holds exactly the jars of `jars.sha256`, or
raises with what to do.
"""

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "tools/broker/pom.xml"
SUMS = ROOT / "tools/broker/jars.sha256"
FETCH_SECONDS_MAX = 400
ARCHIVE = "classes.jsa"
"""Java's archive of loaded classes, beside the jars."""


class NoBroker(RuntimeError):
    """The broker cannot be had or does not come up; the text says why."""


def broker_jars() -> Path:
    """The folder with the jars; fetched if this checkout has none yet, or other ones."""
    kept = ROOT / ".venv/broker-libs"
    stamp = kept / "sums"
    if _read(stamp) == SUMS.read_bytes():
        return kept
    with one_at_a_time():
        if _read(stamp) != SUMS.read_bytes():
            _fetch(kept)
            stamp.write_bytes(SUMS.read_bytes())
    return kept


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two runs in one checkout prepare the broker once."""
    path = ROOT / ".venv/broker-libs.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sums_of(folder: Path) -> str:
    """One line a jar, as `sha256sum` prints it."""
    jars = sorted(folder.glob("*.jar"))
    return "".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars)


def java() -> str:
    """The path of Java."""
    return _program("java", "Java 17 or newer")


def java_command(jars: Path, heap_mb: int, archive_to: Path | None = None) -> list[str]:
    """Java with the jars, up to the name of the class to run."""
    shared = f"-XX:SharedArchiveFile={jars / ARCHIVE}"
    return [
        java(),
        f"-Xms{min(128, heap_mb)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        shared if archive_to is None else f"-XX:ArchiveClassesAtExit={archive_to}",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={ROOT / 'tools/broker/log4j2.properties'}",
        "-cp",
        f"{jars}/*",
    ]


def _fetch(kept: Path) -> None:
    java()
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="broker-libs.") as text:
        folder = Path(text) / "libs"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        command = [_program("mvn", "Maven"), "-q", "-B", "-C", "-f", str(POM), *goal]
        try:
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS_MAX,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            detail = f"Maven did not fetch the broker's jars in {FETCH_SECONDS_MAX} s"
            raise NoBroker(detail) from None
        if run.returncode:
            raise NoBroker(f"Maven cannot fetch the broker's jars:\n{run.stdout}{run.stderr}")
        if sums_of(folder) != SUMS.read_text(encoding="utf-8"):
            raise NoBroker(f"the fetched jars are not those of {SUMS.relative_to(ROOT)}")
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)


def _program(name: str, title: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise NoBroker(f"no `{name}` here: install {title}; `tools/need-java` says how")
    return path


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
