"""The README says only what is there."""

import re
from pathlib import Path

from streams.adapters.what_to_set import for_claude_code, for_codex, for_sdks
from streams.cli.main import COMMANDS
from streams.cli.settings_table import settings_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_settings_table_is_the_one_the_settings_give() -> None:
    assert settings_table() in README


def test_every_command_it_names_is_there_and_every_command_is_named() -> None:
    assert set(re.findall(r"`turnstream ([a-z-]+)", README)) == set(COMMANDS)


def test_it_says_where_the_command_is_before_it_is_used() -> None:
    told, used = README.index("export PATH=$PWD/.venv/bin:$PATH"), README.index("\nturnstream ")
    assert told < used


def test_every_target_it_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+(?:-[a-z]+)?)(?=[`\s])", README)) <= targets


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_what_to_set_for_each_client_is_what_its_tests_set() -> None:
    sdks, claude = for_sdks("http://gateway", "key"), for_claude_code("any", 1, 1)
    for name in {*sdks, *claude}:
        assert f"`{name}" in README
    for word in re.findall(r"[a-z_]+(?= ?=)", " ".join(for_codex("http://gateway", "any", 1))):
        assert word in README or word in {"model", "model_provider", "name", "turnstream"}
