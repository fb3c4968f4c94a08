"""A local model on SGLang's wire, that takes other weights from a folder.

`python -m tests.train.served MODEL PORT` makes the model first if its folder has none, and serves
it on every address, as a container's own process does.
"""

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from streams.adapters.engines.local import LocalEngine
from tests.adapters.engines.standins.serving import standing
from tests.adapters.engines.standins.sglang import StandInSglang
from tests.train.models import small_model


class Served(StandInSglang):
    """The engine, and the versions that it was given."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine, incremental=True)
        self.engine = engine
        self.loaded: list[str] = []

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.post("/update_weights_from_disk", self._update)]

    async def _update(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.loaded.append(asked["weight_version"])
        await self.engine.replace_weights(Path(asked["model_path"]), int(asked["weight_version"]))
        print(f"weights of version {asked['weight_version']}", flush=True)
        return web.json_response({"success": True, "message": "", "num_paused_requests": 0})


async def _serve(model: Path, port: int) -> None:
    server = Served(LocalEngine(model, seed=1))
    async with standing(server, host="0.0.0.0", port=port):
        print("serving", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """The model of that folder, until a signal comes."""
    model, port = Path(sys.argv[1]), int(sys.argv[2])
    if not (model / "config.json").exists():
        small_model(model, seed=1)
    asyncio.run(_serve(model, port))


if __name__ == "__main__":
    main()
