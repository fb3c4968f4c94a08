"""A compose file as the services it asks for, read as compose reads it.

    text ──► YAML 1.2, anchors and merges ──► ${variables} in values ──► Service

Only what this project's file uses is understood.

Invariant: what is not understood is an error, never passed over.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
KEYS = {
    "build",
    "cap_add",
    "cap_drop",
    "command",
    "depends_on",
    "environment",
    "healthcheck",
    "image",
    "init",
    "logging",
    "mem_limit",
    "platform",
    "ports",
    "profiles",
    "pull_policy",
    "read_only",
    "restart",
    "scale",
    "security_opt",
    "stop_grace_period",
    "tmpfs",
    "volumes",
}

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?:(?P<colon>:?)(?P<how>[-+?])(?P<word>[^{}$]*))?\})?"
)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_STOP_GRACE_S = 10.0


class BadCompose(ValueError):
    """The file asks for something that compose, or this reader, does not understand."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How the engine finds out whether a container is healthy."""

    command: list[str]
    interval_s: float = 30.0
    timeout_s: float = 30.0
    retries: int = 3
    start_period_s: float = 0.0
    """Failures in this time are forgiven."""
    start_interval_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """One service, its variables filled in."""

    name: str
    image: str
    built: bool
    """Its image is made of the Dockerfile here, by this service or another: one of ours."""
    command: list[str]
    environment: dict[str, str]
    depends_on: dict[str, str]
    """By service: what has to be true of it first."""
    health: HealthCheck | None
    stop_grace_s: float
    profiles: list[str] = field(default_factory=list)
    """Started only where one of them is asked for; none: always."""
    options: dict[str, Any] = field(default_factory=dict)
    """All that was written, for what has no field here."""


def read_services(text: str, environ: Mapping[str, str]) -> dict[str, Service]:
    """The services by name, with the variables of that environment."""
    asked = _interpolated(plain(text)["services"], environ)
    ours = {options["image"] for options in asked.values() if "build" in options}
    return {name: _service(name, options, ours) for name, options in asked.items()}


def plain(text: str) -> dict[str, Any]:
    """The file as data, its variables untouched."""
    # The pure loader reads YAML 1.2, where `no` is a word and `12:30` is no number.
    loaded = YAML(typ="safe", pure=True).load(text)
    assert isinstance(loaded, dict)
    return loaded


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """The text with its `${variables}` filled in."""

    def value(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name = match["bare"] or match["name"]
        if name is None:
            raise BadCompose(f"{text!r}: `$` that begins no variable; a plain one is `$$`")
        given = environ.get(name)
        word = match["word"] or ""
        counts = given is not None and not (match["colon"] and given == "")
        match match["how"]:
            case "-":
                return given if counts and given is not None else word
            case "+":
                return word if counts else ""
            case "?" if not counts:
                raise BadCompose(f"{name} is required: {word}")
        return given or ""

    return _VARIABLE.sub(value, text)


def seconds(duration: str) -> float:
    """`1m30s` as a number."""
    match = _DURATION.fullmatch(duration)
    if not match or not duration:
        raise BadCompose(f"{duration!r} is no duration")
    hours, minutes, whole, milli = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + whole + milli / 1000


def _interpolated(data: Any, environ: Mapping[str, str]) -> Any:
    match data:
        case str():
            return interpolate(data, environ)
        case list():
            return [_interpolated(item, environ) for item in data]
        case dict():
            return {key: _interpolated(value, environ) for key, value in data.items()}
    return data


def _service(name: str, options: dict[str, Any], ours: set[str]) -> Service:
    unknown = set(options) - KEYS
    if unknown:
        raise BadCompose(f"{name}: {', '.join(sorted(unknown))}: not understood")
    needs = options.get("depends_on", {})
    check = options.get("healthcheck")
    grace = options.get("stop_grace_period")
    return Service(
        name=name,
        image=options["image"],
        built=options["image"] in ours,
        command=options.get("command", []),
        environment={key: str(value) for key, value in options.get("environment", {}).items()},
        depends_on={other: need["condition"] for other, need in needs.items()},
        health=None if check is None else _health(name, check),
        stop_grace_s=_STOP_GRACE_S if grace is None else seconds(grace),
        profiles=options.get("profiles", []),
        options=options,
    )


def _health(name: str, check: dict[str, Any]) -> HealthCheck:
    kind, *words = check["test"]
    if kind not in {"CMD", "CMD-SHELL"}:
        raise BadCompose(f"{name}: a health check begins with CMD or CMD-SHELL, not {kind!r}")
    times = {
        f"{key}_s": seconds(value)
        for key, value in check.items()
        if key in {"interval", "timeout", "start_period", "start_interval"}
    }
    unknown = set(check) - {"test", "retries", *(key.removesuffix("_s") for key in times)}
    if unknown:
        raise BadCompose(f"{name}: healthcheck: {', '.join(sorted(unknown))}: not understood")
    command = words if kind == "CMD" else ["/bin/sh", "-c", *words]
    return HealthCheck(command, retries=check.get("retries", 3), **times)
