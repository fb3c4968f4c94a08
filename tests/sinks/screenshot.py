"""`make screenshot`: sessions with tools from the log to trackio's page, as a picture.

    events ──► processor ──► traces ──► turnstream sink trackio ──► trackio show ──► Chromium

Invariant: the picture is taken only once the page shows the tool's call and its result.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.settings import Settings
from tests.cli.command import turnstream
from tests.cli.stores import Embedded
from tests.kafka.broker import free_port
from tests.sinks.browser import page
from tests.sinks.scenes import tool_session
from tests.sinks.trackio_place import INSTALLED, PROJECT, SECONDS_MAX, installed, variables

STEPS = 3
PICTURE = Path("trackio.png")


def filled(folder: Path) -> Path:
    """Trackio's folder, with some sessions that a processor has closed."""
    settings = Settings(log=str(folder / "log.db"), trace_share=1.0)
    events = [
        tool_session(f"{step}-{n}", question="How big is it?", run_id="example", step=step)
        for step in range(STEPS)
        for n in range(4)
    ]
    Embedded(settings, folder).feed(*(event for one in events for event in one))
    command = ("sink", "trackio", "--log", settings.log, "--traces", "4", "--once")
    ran = turnstream(*command, given=b"", **variables(folder / "tio"))
    assert ran.code == 0, ran.err
    return folder / "tio"


@contextmanager
def shown(folder: Path) -> Iterator[str]:
    """`trackio show`: where its page is."""
    said = folder / "said"
    environment = {"PYTHONPATH": str(installed()), "TRACKIO_DIR": str(folder)}
    environment |= {"GRADIO_SERVER_PORT": str(free_port()), "BROWSER": "true"}
    with said.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, INSTALLED / "bin/trackio", "show", "--project", PROJECT],
            env=os.environ | environment,
            stdout=output,
            stderr=output,
        )
    try:
        until_s = time.monotonic() + SECONDS_MAX
        while not (found := re.search(r"launched at: (http://[\d.:]+)", said.read_text("utf-8"))):
            assert running.poll() is None, said.read_text("utf-8")
            assert time.monotonic() < until_s, said.read_text("utf-8")
            time.sleep(0.2)
        yield found[1]
    finally:
        running.kill()
        running.wait()


async def photographed(url: str) -> bytes:
    """The page of traces, one of them opened."""
    async with page() as tab:
        await tab.open(f"{url}/traces?project={PROJECT}")
        await tab.until("document.querySelectorAll('tr[aria-expanded]').length > 1")
        await tab.evaluate("document.querySelector('tr[aria-expanded]').click()")
        await tab.until("document.querySelector('details') !== null")
        await tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        for text in ("How big is it?", '"cmd": "du"', "48M", "48 MB."):
            await tab.until(f"document.body.innerText.includes({text!r})")
        await asyncio.sleep(1.0)  # it is drawn, too
        return await tab.photograph()


def main() -> None:
    """Take it."""
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with tempfile.TemporaryDirectory() as folder, shown(filled(Path(folder))) as url:
        picture.write_bytes(asyncio.run(photographed(url)))
    sys.stdout.write(f"{picture}: trackio's page with a session that called tools\n")


if __name__ == "__main__":
    main()
