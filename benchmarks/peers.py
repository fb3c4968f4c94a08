"""Packages of others, as published, each in an environment of its own below ours.

    benchmarks/<name>_requirements.txt    every package with its version and its hashes
    .venv/<name>                          made from it once, and anew when it has changed

Invariant: nothing is installed that is not named there with its hash. PyTorch is gigabytes: peers
take the one that `make test-train` fetches, by PYTHONPATH.
"""

import subprocess
import sys
from pathlib import Path

INSTALL_S_MAX = 300.0


def environment(name: str, folder: Path | None = None) -> Path:
    """The Python of the environment; made if it is not there or was made from other versions."""
    requirements = Path(__file__).with_name(f"{name}_requirements.txt")
    folder = folder or Path(sys.prefix) / name
    python, made = folder / "bin" / "python", folder / "made-from.txt"
    wanted = requirements.read_text()
    if made.is_file() and made.read_text() == wanted:
        return python
    uv = str(Path(sys.executable).parent / "uv")
    install = ["--quiet", "--no-deps", "--python", str(python), "--require-hashes"]
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", *install, "-r", str(requirements)],
    ):
        subprocess.run(command, check=True, timeout=INSTALL_S_MAX)
    made.write_text(wanted)
    return python
