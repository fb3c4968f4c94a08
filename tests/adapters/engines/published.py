"""Files out of published wheels, by range, without the rest of the wheel.

    uv ──► the wheel's address and digest ──► its end: the table of a zip ──► one range a file

A wheel of vLLM has hundreds of megabytes; its definitions have some kilobytes. Nothing is
installed or imported: code is read with `ast`, templates are text. They are kept below the
environment, and checked on every reading.

`published.sha256` names versions, files and digests; for other versions it is made anew with
`python -m tests.adapters.engines.published sglang==X vllm==Y trl==Z`.

Invariant: what is read has the digest that is written there, whatever the registry served.
"""

import ast
import functools
import hashlib
import io
import os
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECONDS_MAX = 60.0
KEPT = Path(sys.prefix) / "published"
PINS = Path(__file__).with_suffix(".sha256")
_AHEAD = 1 << 18
"""One range for the table of the zip, and for neighbours in it."""


class Wheel:
    """The version that is pinned, and what is read of it."""

    def __init__(self, name: str, pins: Path = PINS) -> None:
        self.name = name
        self.files: dict[str, str] = {}
        for line in pins.read_text().splitlines():
            digest, _, place = line.partition("  ")
            folder, _, path = place.partition("/")
            if folder.rpartition("-")[0] == name:
                self.version = folder.rpartition("-")[2]
                self.files[path] = digest

    def module(self, path: str) -> ast.Module:
        """A file of it, parsed."""
        return ast.parse(self.text(path))

    def text(self, path: str) -> str:
        """A file of it; fetched once."""
        kept = KEPT / f"{self.name}-{self.version}" / path
        if not kept.is_file() or _digest(kept.read_bytes()) != self.files[path]:
            self._fetch()
        return kept.read_text(encoding="utf-8")

    def _fetch(self) -> None:
        folder = KEPT / f"{self.name}-{self.version}"
        for path, content in contents(self.name, self.version, self.files).items():
            found = _digest(content)
            assert found == self.files[path], f"{self.name} {self.version}: {path} is {found}"
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(content)
            part.replace(target)


def contents(name: str, version: str, paths: Iterable[str]) -> dict[str, bytes]:
    """Files of a wheel, as the registry has them."""
    remote = io.BufferedReader(_Remote(_address(name, version)), _AHEAD)
    with zipfile.ZipFile(remote) as wheel:
        return {path: wheel.read(path) for path in paths}


def _address(name: str, version: str) -> str:
    """Where the registry that is set up here has it."""
    asked = ["pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", "-"]
    platform = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_34"]
    ran = subprocess.run(
        [Path(sys.executable).parent / "uv", *asked, *platform],
        input=f"{name}=={version}\n",
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (package,) = tomllib.loads(ran.stdout)["packages"]
    return str(package["wheels"][0]["url"])


class _Remote(io.RawIOBase):
    """A file that is read by ranges."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._at = 0
        with self._open(method="HEAD") as reply:
            self._size = int(reply.headers["content-length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        with self._open(headers={"range": f"bytes={self._at}-{end - 1}"}) as reply:
            assert reply.status == 206, f"{self._address}: no ranges"
            content = reply.read()
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _open(self, **request: Any) -> Any:
        made = urllib.request.Request(self._address, **request)
        return urllib.request.urlopen(made, timeout=SECONDS_MAX)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def class_of(module: ast.Module, name: str) -> ast.ClassDef:
    """The class of that name, at the top of a module."""
    (found,) = [
        node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return found


def fields_of(module: ast.Module, name: str) -> set[str]:
    """The annotated names of a class and of those of its bases that stand in the same module."""
    found = class_of(module, name)
    own = {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    here = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    bases = {base.id for base in found.bases if isinstance(base, ast.Name)} & here
    return own.union(*(fields_of(module, base) for base in bases))


@functools.cache
def strings_of(text: str) -> frozenset[str]:
    """Every string that a module holds, as a whole."""
    return frozenset(
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def renewed(*pins: str, of: Path = PINS) -> str:
    """The pins of other versions, for the same files."""
    lines = []
    for pin in pins:
        name, _, version = pin.partition("==")
        for path, content in contents(name, version, Wheel(name, of).files).items():
            lines.append(f"{_digest(content)}  {name}-{version}/{path}\n")
    return "".join(lines)


if __name__ == "__main__":
    PINS.write_text(renewed(*sys.argv[1:]))
