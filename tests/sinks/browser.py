"""A page in Debian's Chromium, without a window: opened, clicked on, photographed.

It is driven by the protocol that its developer tools use, over a socket on loopback.

Invariant: the browser is gone when the block is left, and every wait in it ends.
"""

import asyncio
import base64
import itertools
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

SECONDS_MAX = 60.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "--window-size=1400,2100", "about:blank"),
)


class NoBrowser(RuntimeError):
    """There is none, or it does not start; the text says what to do."""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Connected."""
        self._socket = socket
        self._numbers = itertools.count(1)

    async def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(SECONDS_MAX):
            while (told := await self._socket.receive_json()).get("id") != number:
                pass  # events that nobody asked for
        assert "error" not in told, told
        answer: dict[str, Any] = told["result"]
        return answer

    async def open(self, url: str) -> None:
        """Go there; it may still be loading."""
        await self._ask("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """What the script gives."""
        answer = await self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until it gives something true."""
        end_s = time.monotonic() + SECONDS_MAX
        while not await self.evaluate(script):
            if time.monotonic() > end_s:
                raise TimeoutError(f"{script}: {await self.evaluate('document.body.innerText')}")
            await asyncio.sleep(0.2)

    async def photograph(self) -> bytes:
        """As it is now, as PNG."""
        picture = await self._ask("Page.captureScreenshot", format="png")
        return base64.b64decode(picture["data"])


@asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """A tab of a browser of its own, with a profile of its own."""
    program = shutil.which("chromium")
    if program is None:
        raise NoBrowser("there is no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = await asyncio.create_subprocess_exec(
            *(program, f"--user-data-dir={profile}", *FLAGS),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", running)
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = await answer.json()
                address = next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"]
                async with http.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            if running.returncode is None:
                running.kill()
            await running.wait()


async def _port(file: Path, running: asyncio.subprocess.Process) -> int:
    end_s = time.monotonic() + SECONDS_MAX
    while (port := _written(file)) is None:
        if running.returncode is not None or time.monotonic() > end_s:
            raise NoBrowser(f"chromium does not start (exit code {running.returncode})")
        await asyncio.sleep(0.1)
    return port


def _written(file: Path) -> int | None:
    """The port, once all of it is there."""
    first, line, _ = file.read_text("utf-8").partition("\n") if file.exists() else ("", "", "")
    return int(first) if line else None
