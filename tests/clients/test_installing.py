"""The clients are the ones that are named, or the run fails and says why."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.clients.installing import HERE, LOCK, NoClient, Programs, programs, wanted
from tests.clients.running import Ran, run
from tests.clients.wire import Wire


def named(folder: Path, **changes: str) -> Path:
    """Our packages, changed."""
    shutil.copy(HERE / LOCK, folder / LOCK)
    packages = {"dependencies": {**wanted(), **changes}}
    (folder / "package.json").write_text(json.dumps(packages), "utf-8")
    return folder


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_the_programs_are_the_versions_that_are_named(
    program: str, clients: Programs, tmp_path: Path
) -> None:
    (version,) = [number for name, number in wanted().items() if program in name]

    async def whole() -> Ran:
        command = [str(getattr(clients, program)), "--version"]
        wire = Wire("http://127.0.0.1:9")
        return await run(command, wire, cwd=tmp_path, environment={"HOME": str(tmp_path)})

    assert version in asyncio.run(whole()).assert_ok().stdout


def test_every_package_is_locked_by_its_hash_and_by_no_address() -> None:
    text = (HERE / LOCK).read_text("utf-8")
    root, *packages = json.loads(text)["packages"].values()
    assert root["dependencies"] == wanted()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted().values())
    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert "://" not in text


def test_a_client_that_is_not_to_be_had_is_a_failure_that_says_so(tmp_path: Path) -> None:
    changed = named(tmp_path, **{"@openai/codex": "0.0.1"})
    with pytest.raises(NoClient, match=r"could not install .*@openai/codex 0\.0\.1"):
        programs(changed, tmp_path / "kept")
    assert not (tmp_path / "kept/lock").exists()


def test_without_npm_the_failure_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoClient, match=r"install Node\.js"):
        programs(named(tmp_path), tmp_path / "kept")
