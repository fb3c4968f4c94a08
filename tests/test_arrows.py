"""Which room may import which, and what a pure room may import at all.

    cli -> {adapters, processor, trainer, sinks, viewer} -> log -> core -> schemas

Arrows point inward, the five shells do not know each other, and `core` and `adapters.dialects`
are pure: what they compute depends on their arguments alone. The imports are read from the
source, so an import inside a function or behind a condition counts like any other. Inside the
gateway a call walks through the rooms in one order, and each imports only those before it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

INNER = {
    *("schemas", "streams.errors", "streams.settings", "streams.core", "streams.log"),
    "streams.operations",
}
SHELLS = {
    "streams.adapters",
    "streams.adapters.dialects",
    "streams.processor",
    "streams.trainer",
    "streams.sinks",
    "streams.viewer",
}
PURE = {"schemas", "streams.errors", "streams.core"}
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "streams": set(),  # the package's own __init__; every folder in it is a room by name
    "streams.errors": {"schemas"},
    "streams.settings": PURE | {"streams.settings_checks"},
    "streams.settings_checks": PURE | {"streams.settings"},
    "streams.core": PURE,
    "streams.log": INNER - {"streams.operations"},
    "streams.operations": {"streams.errors", "streams.settings"},
    "streams.adapters": INNER | {"streams.adapters.dialects"},
    "streams.adapters.dialects": PURE,
    "streams.processor": INNER,
    "streams.trainer": INNER,
    "streams.sinks": INNER,
    "streams.viewer": INNER,
    "streams.cli": INNER | SHELLS | {"streams.settings_checks"},
}

GATEWAY = "streams.adapters.gateway."
GATEWAY_ORDER = [
    *("metrics", "following", "access", "history", "rendering", "answers", "prompts"),
    *("sessions", "sampling", "publishing", "parts", "prompting", "turns", "api", "server"),
]

PURE_ROOMS = {"streams.core", "streams.adapters.dialects"}
PURE_PACKAGES = {"numpy", "msgspec", "msgpack"}
IMPURE_STDLIB = {
    # clocks and chance
    *("time", "datetime", "random", "secrets", "uuid"),
    # the world outside
    *("os", "io", "pathlib", "shutil", "tempfile", "glob", "subprocess", "socket", "ssl", "select"),
    *("http", "urllib", "sqlite3", "logging", "signal"),
    # other threads of control, and imports this test cannot see
    *("asyncio", "threading", "multiprocessing", "concurrent", "importlib"),
}


def room_of(module: str) -> str | None:
    """The innermost room that holds the module; None for what is in none."""
    if module == "streams":
        return module
    rooms = MAY_IMPORT.keys() - {"streams"}
    holding = [room for room in rooms if f"{module}.".startswith(f"{room}.")]
    return max(holding, key=len, default=None)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported: `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def complaint(here: str, room: str, name: str) -> str | None:
    """Why the module `here` in its room may not import `name`; None if it may."""
    target, package = room_of(name), name.partition(".")[0]
    if name.startswith("."):
        return "is relative"
    if target is not None:
        allowed = target == room or target in MAY_IMPORT[room]
        wrong = not allowed or out_of_order(here, name)
        return f"breaks the arrows: {room} -> {target}" if wrong else None
    if package == "streams":
        return "is in no room"
    if room in PURE_ROOMS:
        stdlib = package in sys.stdlib_module_names and package not in IMPURE_STDLIB
        return None if stdlib or package in PURE_PACKAGES else f"is not pure enough for {room}"
    if package == "faust" and not here.startswith("streams.processor.faust"):
        return "belongs to streams/processor/faust*.py alone"
    return None


def out_of_order(here: str, name: str) -> bool:
    """Whether a module of the gateway imports a room that comes after its own."""
    if not (here.startswith(GATEWAY) and name.startswith(GATEWAY)):
        return False
    own, other = (
        GATEWAY_ORDER.index(one.removeprefix(GATEWAY).partition(".")[0]) for one in (here, name)
    )
    return other > own


def wrong_imports(here: str, source: str) -> list[str]:
    room = room_of(here)
    if room is None:
        return [f"{here} is in no room"]
    tree = ast.parse(source)
    found = ((line, name, complaint(here, room, name)) for line, name in imported(tree))
    return [f"{here}:{line}: {name} {why}" for line, name, why in found if why]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    paths = [path for room in ("schemas", "streams") for path in (ROOT / room).rglob("*.py")]
    return {dotted(path): path for path in paths}


def test_every_import_follows_the_arrows() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    wrong = [line for name, text in sources.items() for line in wrong_imports(name, text)]
    assert not wrong, "\n".join(wrong)


def test_the_walk_sees_the_rooms_that_are_there() -> None:
    rooms = {room_of(name) for name in modules()}
    assert {"schemas", "streams.core", "streams.cli"} <= rooms


WRONG = {
    "core knows no shell": ("streams.core.tree", "import streams.log.kafka"),
    "core reads no settings": ("streams.core.policy", "from streams import settings"),
    "schemas know nothing of ours": ("schemas.events", "from streams.core import tree"),
    "the log knows no shell": ("streams.log.kafka", "from streams.processor import embedded"),
    "shells do not know each other": ("streams.sinks.jsonl", "import streams.trainer"),
    "nothing reaches outward to the commands": ("streams.log", "from streams.cli import main"),
    "dialects know no gateway": (
        "streams.adapters.dialects.anthropic",
        "from streams.adapters.gateway.access import keys",
    ),
    "a prompt knows nothing of the call it is for": (
        "streams.adapters.gateway.prompts.building",
        "from streams.adapters.gateway.turns import RunningTurn",
    ),
    "what is recorded knows no template": (
        "streams.adapters.gateway.history.tree",
        "from streams.adapters.gateway.rendering import encoding",
    ),
    "core has no clock": ("streams.core.session", "import time"),
    "core has no event loop": ("streams.core.session", "from asyncio import sleep"),
    "core has no chance": ("streams.core.session", "import numpy, random"),
    "core does not log": ("streams.core.session", "def f():\n    import logging"),
    "core opens no file": ("streams.core.policy", "from os.path import join"),
    "core takes no further package": ("streams.core.delta", "import orjson"),
    "dialects do no input or output": ("streams.adapters.dialects.openai_chat", "import aiohttp"),
    "faust stays in its module": ("streams.processor.embedded", "from faust import App"),
    "faust stays out of other shells": ("streams.cli.main", "import faust.types"),
    "imports are absolute": ("streams.core.tree", "from . import messages"),
    "a new folder needs a room": ("streams.extra.thing", ""),
    "what is in no room is not imported": ("streams.cli.main", "from streams import extra"),
}


@pytest.mark.parametrize(("here", "source"), WRONG.values(), ids=WRONG)
def test_a_wrong_import_is_reported(here: str, source: str) -> None:
    assert len(wrong_imports(here, source)) == 1


RIGHT = {
    "core builds on schemas and errors": (
        "streams.core.session",
        "import hashlib\nimport msgpack\nimport numpy as np\n"
        "from schemas import codec\nfrom streams import errors\nfrom streams.core import tree",
    ),
    "faust in its own module": ("streams.processor.faust_app", "import faust"),
    "faust's neighbours": ("streams.processor.faust_recovery", "from faust import types"),
    "a shell reaches inward": ("streams.trainer.batches", "from streams.log import kafka"),
    "the gateway uses dialects": (
        "streams.adapters.gateway.api.app",
        "from streams.adapters.dialects import anthropic",
    ),
    "a prompt is rendered": (
        "streams.adapters.gateway.prompts.building",
        "from streams.adapters.gateway.rendering import encoding",
    ),
    "the commands wire everything": ("streams.cli.main", "from streams.viewer import page"),
}


@pytest.mark.parametrize(("here", "source"), RIGHT.values(), ids=RIGHT)
def test_a_right_import_passes(here: str, source: str) -> None:
    assert wrong_imports(here, source) == []
