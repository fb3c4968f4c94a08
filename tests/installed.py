"""The wheel in an environment that holds nothing but what it asks for; no step needs a network.

Packages are shared with this environment by links, each by itself, so that one the wheel does not
ask for is not there.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The command's standard output; its standard error is shown when it fails."""
    # Under `make test` a make that we start would take itself for a part of that one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel, by the command of `make wheel`."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (built,) = folder.glob("*.whl")
    return built


def install_wheel(wheel: Path, env: Path) -> Path:
    """Make an environment with the wheel and nothing else; where packages go in it."""
    venv.create(env, symlinks=True)
    python = env / "bin/python"
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run(python, "-I", "-c", ask, cwd=env).strip())


def share(package: str, site_packages: Path) -> None:
    """Make one installed package importable there, and none of its neighbours."""
    files = metadata.files(package) or []
    for top in {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}:
        (site_packages / top).symlink_to(Path(str(metadata.distribution(package).locate_file(top))))


def needed(package: str, found: set[str]) -> set[str]:
    """What a package asks for, and those in turn; no extras."""
    for requirement in map(Requirement, metadata.requires(package) or ()):
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name not in found and (marker is None or marker.evaluate({"extra": ""})):
            found.add(name)
            needed(name, found)
    return found
