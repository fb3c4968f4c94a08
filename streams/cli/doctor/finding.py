"""What one look of `turnstream doctor` found, and how findings are printed.

Nothing of ours is imported here: the doctor has to speak where the rest cannot be loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    name: str
    state: State
    detail: str
    change: str = ""
    """What to do about it; nothing if all is well."""


def ok(name: str, detail: str) -> Finding:
    """It works."""
    return Finding(name, "ok", detail)


def note(name: str, detail: str, change: str = "") -> Finding:
    """It works, and there is something to know."""
    return Finding(name, "note", detail, change)


def failed(name: str, detail: str, change: str) -> Finding:
    """It does not work."""
    return Finding(name, "FAIL", detail, change)


def table(findings: Sequence[Finding]) -> str:
    """The findings, what to change under each."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.state:<4}  {finding.name:<{width}}  {finding.detail}")
        if finding.change:
            lines.append(f"{'':<{6 + width}}  -> {finding.change}")
    wrong = sum(finding.state == "FAIL" for finding in findings)
    lines.append("all is well" if not wrong else f"{wrong} of {len(findings)} failed")
    return "\n".join(lines)
