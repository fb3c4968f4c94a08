"""Claude Code, headless: what `what_to_set` says, and what makes it quiet.

Invariant: an agent's home and work folder are its own and begin empty.
"""

import uuid
from pathlib import Path

from streams.adapters.what_to_set import for_claude_code, for_sdks
from tests.clients.running import BASE_URL, Ran, run
from tests.clients.wire import Wire

MODEL = "scripted"
ANSWER_TOKENS = 2_048
QUIET = {
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "IS_SANDBOX": "1",  # as root it refuses to skip its questions otherwise
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
}


class ClaudeCode:
    """One agent in a home of its own."""

    def __init__(self, program: Path, folder: Path, wire: Wire, key: str) -> None:
        """Nothing runs yet."""
        self._program = program
        self._home = folder / "home"
        self.work = folder / "work"
        self.wire = wire
        self._key = key
        self.session = str(uuid.uuid4())
        self._asked = False
        self._home.mkdir(parents=True)
        self.work.mkdir()

    async def ask(
        self,
        prompt: str,
        *options: str,
        window: int = 200_000,
        base_url: str = BASE_URL,
    ) -> Ran:
        """Give it a prompt and wait for its end; a second one resumes the first."""
        which = ["--resume", self.session] if self._asked else ["--session-id", self.session]
        self._asked = True
        command = [str(self._program), "-p", prompt, *which]
        command += ["--output-format", "json", "--dangerously-skip-permissions", *options]
        return await run(
            command,
            self.wire,
            cwd=self.work,
            environment={
                "HOME": str(self._home),
                **for_sdks(base_url, self._key),
                **for_claude_code(MODEL, window, ANSWER_TOKENS),
                **QUIET,
            },
        )
