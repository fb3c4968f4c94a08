"""The sinks beside `turnstream up`, each a process of its own.

They share no lock of the interpreter with the gateway, so they cannot hold a model call up, and
what ends one of them ends nothing else. A process reads on its standard input that `up` is over,
however that came about, writes what is left and ends.

Invariant: no sink outlives `up` by more than it needs to write.
"""

import asyncio
import os
import subprocess
import sys
import threading

from streams.settings import PREFIX, Settings
from streams.settings_checks import sinks_of

_END_S = 60.0


class SinkProcesses:
    """As the settings name them."""

    def __init__(self, settings: Settings) -> None:
        """None runs yet."""
        self._settings = settings
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = False

    def start(self) -> None:
        """Start them; one that cannot work says so itself."""
        for name in dict.fromkeys(sinks_of(self._settings.sinks)):
            command = (sys.executable, "-m", "streams.cli.main", "sink", name)
            process = subprocess.Popen(
                (*command, "--log", self._settings.log, "--until-stdin-ends"),
                env=os.environ | {f"{PREFIX}METRICS_PORT": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for `up`, which ends them behind its last trace
            )
            self._running[name] = process
            threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    async def end(self) -> None:
        """Have them write what is left, bounded."""
        self._ending = True
        for process in self._running.values():
            assert process.stdin is not None, "asked for above"
            process.stdin.close()
        for name, process in self._running.items():
            try:
                await asyncio.to_thread(process.wait, _END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                sys.stderr.write(f"turnstream up: sink {name} did not end in {_END_S:g} s\n")

    def _watch(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        if not self._ending:
            sys.stderr.write(
                f"turnstream up: sink {name} has ended with {code}; everything else goes on\n"
            )
