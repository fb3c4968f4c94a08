"""The clients' programs: fetched once by npm, checked by the hashes of the lock, kept in `.venv`.

Both are native programs inside a package for this platform, so node runs only to fetch them and
no script of a package is run.

Invariant: `programs()` returns the versions of `package.json`, or raises with what to do.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
KEPT = ROOT / ".venv/clients"
LOCK = "package-lock.json"
FETCH_SECONDS_MAX = 240
VERSION_SECONDS_MAX = 30
MACHINES = {"x86_64": ("x64", "x86_64"), "aarch64": ("arm64", "aarch64")}


class NoClient(RuntimeError):
    """A client cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are."""

    claude: Path
    codex: Path


def wanted(named: Path = HERE) -> dict[str, str]:
    """The version of each package."""
    return dict(json.loads((named / "package.json").read_text("utf-8"))["dependencies"])


def programs(named: Path = HERE, kept: Path = KEPT) -> Programs:
    """Both, as the folder `named` names them; fetched if `kept` has none yet, or other ones.

    Raises:
        NoClient: one cannot be installed or is not what it should be.
    """
    found = _places(kept / "node_modules")
    stamp, versions = kept / "lock", wanted(named)
    with _one_at_a_time(kept):
        if _read(stamp) != (named / LOCK).read_bytes():
            _fetch(named, kept)
            _say_version(found.claude, versions["@anthropic-ai/claude-code"])
            _say_version(found.codex, versions["@openai/codex"])
            stamp.write_bytes((named / LOCK).read_bytes())
    return found


def _places(modules: Path) -> Programs:
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in MACHINES:
        raise NoClient(f"the clients run on Linux, x86_64 or aarch64; this is {machine}")
    short, long = MACHINES[machine]
    return Programs(
        claude=modules / f"@anthropic-ai/claude-code-linux-{short}/claude",
        codex=modules / f"@openai/codex-linux-{short}/vendor/{long}-unknown-linux-musl/bin/codex",
    )


def _fetch(named: Path, kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoClient("the clients come from npm, which is not on the path: install Node.js")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in ("package.json", LOCK):
        shutil.copy(named / name, kept / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    # A home of its own: nothing is read from or left in the user's, but how npm reaches its
    # registry.
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "npm_config_cache": f"{home}/cache"}
        config = Path.home() / ".npmrc"
        if config.exists():
            environment.setdefault("npm_config_userconfig", str(config))
        try:
            ran = subprocess.run(
                command,
                cwd=kept,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoClient(f"npm ci did not end in {FETCH_SECONDS_MAX} s") from error
    if ran.returncode:
        names = ", ".join(f"{name} {version}" for name, version in wanted(named).items())
        raise NoClient(f"npm could not install {names}:\n{ran.stderr or ran.stdout}")


def _say_version(program: Path, version: str) -> None:
    """Run it once."""
    if not program.exists():
        raise NoClient(f"npm installed no {program}: has the package for this platform moved?")
    try:
        ran = subprocess.run(
            [program, "--version"],
            env={"HOME": str(program.parent), "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoClient(f"{program} does not run: {error}") from error
    if version not in ran.stdout:
        raise NoClient(f"{program} is not {version}: it says {ran.stdout or ran.stderr!r}")


@contextlib.contextmanager
def _one_at_a_time(kept: Path) -> Iterator[None]:
    path = kept.with_suffix(".lock")
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
