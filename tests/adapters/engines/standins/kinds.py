"""Each engine that is spoken to over HTTP, with the server that stands in for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from streams.adapters.engines.interface import Engine, Generation, Sampling
from streams.adapters.engines.over_http import HttpEngine
from streams.adapters.engines.sglang import sglang_engine
from streams.adapters.engines.vllm import vllm_engine
from tests.adapters.engines.standins.model import SmallModel
from tests.adapters.engines.standins.serving import StandIn, standing
from tests.adapters.engines.standins.sglang import StandInSglang
from tests.adapters.engines.standins.vllm import StandInVllm

SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Kind:
    """One way of speaking."""

    name: str
    """As `--engine` has it."""
    server: Callable[[Engine], StandIn]
    engine: Callable[..., HttpEngine]


KINDS = {
    "sglang": Kind("sglang", StandInSglang, sglang_engine),
    "sglang incremental": Kind(
        "sglang", lambda model: StandInSglang(model, incremental=True), sglang_engine
    ),
    "vllm": Kind("vllm", StandInVllm, vllm_engine),
}
EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@dataclass
class Stand:
    """Servers, their models, and the engine over all of them."""

    models: list[SmallModel]
    servers: list[Any]
    urls: tuple[str, ...]
    engine: HttpEngine

    @property
    def model(self) -> SmallModel:
        return self.models[0]

    @property
    def server(self) -> Any:
        return self.servers[0]

    def home(self, key: str = "s1") -> int:
        """Which server a session belongs to."""
        return self.urls.index(self.engine.replicas.order(key)[0])


@contextlib.asynccontextmanager
async def stand(kind: Kind, replicas: int = 1, **options: Any) -> AsyncIterator[Stand]:
    models = [SmallModel() for _ in range(replicas)]
    servers = [kind.server(model) for model in models]
    async with standing(*servers) as urls:
        engine = kind.engine(urls, **options)
        try:
            yield Stand(models, servers, urls, engine)
        finally:
            await engine.close()


def tried(
    kind: Kind, story: Callable[[Stand], Awaitable[None]], replicas: int = 1, **options: Any
) -> None:
    """Run a story; it is bounded and leaves no task behind."""

    async def whole() -> None:
        async with asyncio.timeout(SECONDS_MAX), stand(kind, replicas, **options) as made:
            await story(made)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(whole())


def asks(
    prompt: Sequence[int] = (3, 1, 4, 1, 5),
    *,
    request_id: str = "r1",
    key: str = "s1",
    routed_experts: bool = False,
    echo: bool = False,
    **sampling: Any,
) -> Generation:
    return Generation(
        request_id=request_id,
        routing_key=key,
        input_ids=np.asarray(prompt, np.int32),
        sampling=Sampling(**{"max_new_tokens": 6, "seed": 1, **sampling}),
        routed_experts=routed_experts,
        echo=echo,
    )
