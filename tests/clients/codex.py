"""Codex, headless: what `what_to_set` says, and what makes it quiet.

Invariant: an agent's home and work folder are its own and begin empty.
"""

import json
from pathlib import Path

from streams.adapters.what_to_set import for_codex, for_sdks
from tests.clients.running import BASE_URL, Ran, run
from tests.clients.wire import Wire

MODEL = "scripted"
QUIET = ["--disable", "apps", "--disable", "plugins", "--disable", "remote_plugin"]
QUIET += ["-c", "analytics.enabled=false"]


class Codex:
    """One agent in a home of its own."""

    def __init__(
        self, program: Path, folder: Path, wire: Wire, key: str, *, base_url: str = BASE_URL
    ) -> None:
        """Nothing runs yet."""
        self._program = program
        self._home = folder / "home"
        self._base_url = base_url
        self.work = folder / "work"
        self.wire = wire
        self._key = key
        self.thread: str | None = None
        self._home.mkdir(parents=True)
        self.work.mkdir()

    async def ask(self, prompt: str, *, window: int = 200_000) -> Ran:
        """Give it a prompt and wait for its end; a second one resumes the first."""
        command = [str(self._program), "exec", *for_codex(self._base_url, MODEL, window), *QUIET]
        command += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
        command += ["resume", self.thread, prompt] if self.thread else [prompt]
        ran = await run(
            command,
            self.wire,
            cwd=self.work,
            environment={"HOME": str(self._home), **for_sdks(self._base_url, self._key)},
        )
        for line in ran.stdout.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            self.thread = event.get("thread_id", self.thread)
        return ran
