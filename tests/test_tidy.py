"""Sizes that keep a module readable, and nothing in the tree that only one machine knows.

A file that has to carry an exception does not belong here: the bounds have none.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

FORBIDDEN = {
    # Not after a word or a dot: `https://host/home/page` and `./work/` are no machine's.
    "a path of one machine": re.compile(
        r"(?<![\w.])/(work|farm|root|Users/\w+|home/\w+|opt/wheels|tmp/[a-z]\w+)(/|\b)"
    ),
    "a registry's host": re.compile(
        r"pypi\.org|pythonhosted\.org|registry\.npmjs|repo1?\.maven|(deb|archive)\.(debian|ubuntu)\."
        r"|\bartifactory\b|\bdevpi\b"
    ),
}


def kept_files() -> list[Path]:
    """What git keeps or would keep: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def modules() -> list[Path]:
    rooms = ("schemas", "streams", "tests", "benchmarks")
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


def long_functions(source: str) -> list[str]:
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    sizes = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    return [f"{name}: {lines} lines" for name, lines in sizes.items() if lines > FUNCTION_LINES_MAX]


def leftovers(text: str) -> list[str]:
    """What the text holds that it must not: line number and what it is."""
    return [
        f"{number}: {what}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_no_module_is_longer_than_one_can_hold_in_mind() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path.name: n for path, n in sizes.items() if n > MODULE_LINES_MAX} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    found = {path.name: long_functions(path.read_text(encoding="utf-8")) for path in modules()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_nothing_kept_names_a_machine_or_a_registry() -> None:
    # Undecodable bytes are replaced, so that binary files are read too.
    found = {path: leftovers(path.read_text("utf-8", errors="replace")) for path in kept_files()}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}


def test_the_walk_sees_this_very_file() -> None:
    assert Path(__file__) in kept_files()
    assert Path(__file__) in modules()


def test_a_function_of_71_lines_is_reported_and_one_of_70_is_not() -> None:
    assert long_functions("def f():\n" + "    x = 1\n" * 70) == ["f: 71 lines"]
    assert long_functions("def f():\n" + "    x = 1\n" * 69) == []


@pytest.mark.parametrize(
    "parts", [("/ro", "ot/x"), ("'/ho", "me/ada'"), ("https://py", "pi.org/a")]
)
def test_a_leftover_is_reported(parts: tuple[str, str]) -> None:
    # Written in two parts, so that this file does not report itself.
    assert len(leftovers("fine\n" + "".join(parts))) == 1


def test_ordinary_addresses_and_folders_pass() -> None:
    assert leftovers("https://example.org/home/page ./work/x ~/data /etc/hosts /tmp") == []
