"""The lives of one trainer: started, hurt, started again, and what they trained in all.

    life 1   step 1  step 2 ✓  step 3  †
    life 2             after 2 ──► step 3  step 4 ✓ ...     what was trained after ✓ never was

Invariant: a step counts as trained if no later life began before it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from streams.settings import Settings
from tests.chaos.workers import Worker
from tests.under_fire.training import LOG_AWAY

LAST_SECONDS_MAX = 180.0


class Life(Worker):
    """A process of the trainer."""

    module = "tests.under_fire.training"

    def doom(self, where: str = "") -> None:
        """Let it kill itself when it comes there."""
        self.expected_to_end = True
        (self.folder / "die").write_text(where, encoding="utf-8")


@dataclasses.dataclass
class History:
    """What the journal says."""

    steps: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    """The sample ids that the weights have seen in the end."""
    epochs: dict[int, int] = dataclasses.field(default_factory=dict)
    """Of the life that trained a step."""
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    """What each sample held when it was handed out last, by its id."""
    worth: dict[int, list[list[Any]]] = dataclasses.field(default_factory=dict)
    """Of each step's rollouts: group, session, reward, advantage."""
    handed_out: int = 0
    """Batches, those that were lost with a life included."""
    updates: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """By the last life."""


class Lives:
    """A trainer that is always started again."""

    def __init__(self, folder: Path, settings: Settings, spec: dict[str, Any]) -> None:
        """Nothing runs yet."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._journal = folder / "journal.jsonl"
        self._journal.touch()
        files = {"journal": str(self._journal), "checkpoint": str(folder / "checkpoint.json")}
        (folder / "spec.json").write_text(
            json.dumps({"settings": dataclasses.asdict(settings), **files, **spec}), "utf-8"
        )
        self.started: list[Life] = []
        self.unexpected: list[str] = []
        self.log_away = 0
        """Lives that ended since the log was away."""

    @property
    def now(self) -> Life:
        """The one that lives."""
        self.supervise()
        return self.started[-1]

    def supervise(self) -> None:
        """Start the next life if the last one is over."""
        if self.started:
            last = self.started[-1]
            if last.alive:
                return
            if last.exit_code == LOG_AWAY:
                self.log_away += 1
            elif not last.expected_to_end:
                self.unexpected.append(f"{last.name} exit {last.exit_code}: {last.said(3):.600}")
        self._start(last=False)

    def _start(self, *, last: bool) -> Life:
        name = f"life{len(self.started) + 1}"
        environ = {"UNDER_FIRE_SPEC": str(self._folder / "spec.json")}
        environ["UNDER_FIRE_UNTIL_END"] = "yes" if last else ""
        life = Life(name, self._folder / name, environ)
        self.started.append(life)
        return life

    async def finish(self) -> bool:
        """Kill it once more; its last life trains up to the end of the log."""
        self.started[-1].kill()
        life = self._start(last=True)
        life.expected_to_end = True
        if await life.ended(LAST_SECONDS_MAX) and life.exit_code == 0:
            return True
        self.unexpected.append(f"the last life, exit {life.exit_code}: {life.said(5)}")
        return False

    def history(self) -> History:
        """All of it so far; a line that is being written is left out."""
        found, epoch = History(), 0
        for text in self._journal.read_text("utf-8").split("\n")[:-1]:
            line = json.loads(text)
            if "life" in line:
                epoch = line["life"]
                found.steps = {n: ids for n, ids in found.steps.items() if n <= line["after"]}
                found.worth = {n: found.worth[n] for n in found.steps}
            elif "step" in line:
                found.handed_out += 1
                found.steps[line["step"]], found.epochs[line["step"]] = line["ids"], epoch
                found.digests |= zip(line["ids"], line["digests"], strict=True)
                found.worth[line["step"]] = line["worth"]
            elif "updated" in line:
                found.updates += 1
            else:
                found.dropped = line["dropped"]
        return found

    def close(self) -> None:
        for life in self.started:
            life.close()
