"""A Dockerfile as its stages, and what one of them tells a container."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Stage:
    """One `FROM` and what follows it, behind what the stage that it names has done."""

    base: str
    """The image that the first of them stands on."""
    instructions: list[tuple[str, str]]
    name: str = ""

    def all(self, name: str) -> list[str]:
        """What stands behind every instruction of that name."""
        return [text for found, text in self.instructions if found == name]

    def last(self, name: str) -> str:
        """The one that counts."""
        return self.all(name)[-1]

    @property
    def entrypoint(self) -> list[str]:
        """The words before a service's command."""
        words = json.loads(self.last("ENTRYPOINT"))
        assert isinstance(words, list)
        return words

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """The variables of a container, given those of the base image."""
        made = dict(base)
        for text in self.all("ENV"):
            for pair in shlex.split(text):
                name, _, value = pair.partition("=")
                made[name] = re.sub(r"\$(\w+)", lambda match: made[match[1]], value)
        return made


def read_stages(text: str) -> list[Stage]:
    """The stages in order; the last is the image."""
    stages: list[Stage] = []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, *named = rest.split()
            under = next((stage for stage in stages if stage.name == base), Stage(base, []))
            stages.append(Stage(under.base, [*under.instructions], named[-1] if named else ""))
        else:
            stages[-1].instructions.append((name, rest.strip()))
    return stages
