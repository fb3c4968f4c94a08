"""Whether what runs here is this project with the packages it asks for.

`schemas` and `streams` are names that others use, too: one more package of that name, earlier on
the path, and half of the project is somebody else's.

Invariant: nothing of ours is imported but what cannot be in the way.
"""

import importlib.util
import json
import platform
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from streams.cli.doctor.finding import Finding, failed, ok

DISTRIBUTION = "turnstream"
PINNED = ("faust-streaming", "mode-streaming")
"""Their insides are leaned on."""
_REINSTALL = f"install {DISTRIBUTION} again into an environment of its own"


def installation() -> list[Finding]:
    """Python, packages, and whose modules are found."""
    try:
        ours = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return [failed("packages", f"{DISTRIBUTION} is not installed", _REINSTALL)]
    found = [_python(ours), _packages(ours)]
    return [*found, *(_whose(name, _root(ours)) for name in ("schemas", "streams"))]


def _python(ours: metadata.Distribution) -> Finding:
    here, wanted = platform.python_version(), ours.metadata["Requires-Python"] or ""
    if not SpecifierSet(wanted).contains(here, prereleases=True):
        return failed("python", f"this is {here}", f"run it with Python {wanted}")
    return ok("python", here)


def _packages(ours: metadata.Distribution) -> Finding:
    asked = [Requirement(text) for text in ours.requires or ()]
    needed = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = [f"{each} is asked for, {_version(each.name)}" for each in needed if not _there(each)]
    if wrong:
        return failed("packages", "; ".join(wrong), "make venv, or " + _REINSTALL)
    pins = ", ".join(f"{name} {metadata.version(name)}" for name in PINNED)
    return ok("packages", f"{len(needed)} as asked for; pinned: {pins}")


def _there(asked: Requirement) -> bool:
    try:
        return asked.specifier.contains(metadata.version(asked.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _version(name: str) -> str:
    try:
        return f"{metadata.version(name)} is installed"
    except metadata.PackageNotFoundError:
        return "none is installed"


def _root(ours: metadata.Distribution) -> Path:
    """Where our packages lie: among the others, or in the checkout of an editable install."""
    direct = json.loads(ours.read_text("direct_url.json") or "{}")
    if direct.get("dir_info", {}).get("editable"):
        return Path(url2pathname(urlsplit(direct["url"]).path))
    return Path(str(ours.locate_file("")))


def _whose(name: str, root: Path) -> Finding:
    spec = importlib.util.find_spec(name)
    place = Path(spec.origin).parent if spec and spec.origin else None
    if place is None or place.resolve() != (root / name).resolve():
        where = "in no file" if place is None else f"in {place}"
        change = f"take {where.removeprefix('in ')} off the path (PYTHONPATH, the current folder)"
        return failed(name, f"found {where}, ours is in {root / name}", change)
    others = set(metadata.packages_distributions().get(name, ())) - {DISTRIBUTION}
    if others:
        other = ", ".join(sorted(others))
        return failed(name, f"{other} installs a package of the same name", f"uninstall {other}")
    return ok(name, str(place))
