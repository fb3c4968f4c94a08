"""The gateway as a process, before the mock engine: embedded log with durable acks, uvloop."""

import sys
from pathlib import Path

import uvloop

from benchmarks.gateway_child import serve_until_told
from benchmarks.gateway_engine import MockEngine
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.cli.serving import spare_what_is_loaded
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.drift import qwen3

SECRET = b"for the benchmark only"


async def main() -> None:
    address, path = sys.argv[1:]
    settings = Settings(gateway_port=0)
    renderer = Renderer(qwen3.tokenizer_folder())
    async with (
        MockEngine(address) as engine,
        SqliteLog(Path(path), settings) as log,
        Gateway(settings, log, engine, renderer, (SECRET,)) as gateway,
    ):
        spare_what_is_loaded()
        port = int(gateway.base_url.rpartition(":")[2])
        await serve_until_told(port, control_key=gateway.keys.control_key)


if __name__ == "__main__":
    uvloop.run(main())
