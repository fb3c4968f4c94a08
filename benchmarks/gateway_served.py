"""The gateway as a process, before the mock engine: embedded log with durable acks, uvloop.

The engine is what `--engine sglang:URL` and `--engine vllm:URL` make.
"""

import sys
from pathlib import Path

import uvloop

from benchmarks.gateway_child import serve_until_told
from streams.adapters.engines.sglang import sglang_engine
from streams.adapters.engines.vllm import vllm_engine
from streams.adapters.gateway.rendering.renderer import Renderer
from streams.adapters.gateway.server import Gateway
from streams.cli.serving import spare_what_is_loaded
from streams.log.sqlite import SqliteLog
from streams.settings import Settings
from tests.drift import qwen3

SECRET = b"for the benchmark only"
ENGINES = {"sglang": sglang_engine, "vllm": vllm_engine}
CONTEXT_TOKENS = 262_144


async def main() -> None:
    kind, address, path = sys.argv[1:]
    settings = Settings(gateway_port=0, gateway_context_tokens=CONTEXT_TOKENS)
    renderer = Renderer(qwen3.tokenizer_folder())
    engine = ENGINES[kind]([address])
    async with (
        SqliteLog(Path(path), settings) as log,
        Gateway(settings, log, engine, renderer, (SECRET,)) as gateway,
    ):
        spare_what_is_loaded()
        port = int(gateway.base_url.rpartition(":")[2])
        await serve_until_told(port, control_key=gateway.keys.control_key)
    await engine.close()


if __name__ == "__main__":
    uvloop.run(main())
