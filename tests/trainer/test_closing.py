"""A subscription that is closed while somebody waits for it, or asked after its end."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streams.settings import Settings
from streams.trainer import subscribe, subscribe_async
from tests.trainer.publishing import publish
from tests.trainer.scenes import RUN, SECONDS_MAX, group, names, wait_for

HALF = group("half", 1, 1)[:2]
"""A group that is never complete."""


def feeds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "turnstream-trainer"]


def test_a_loop_that_waits_ends_when_another_thread_closes(settings: Settings) -> None:
    publish(settings, [*group("a", 1), *HALF])
    batches = subscribe(settings, run_id=RUN, batch_groups=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [names(batch) for batch in batches])
        wait_for(lambda: batches.status.open_groups == 1 and not batches.status.ready_groups)
        batches.close()
        assert waiting.result(SECONDS_MAX) == [["a-0"]]
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)


def test_a_loop_that_awaits_ends_when_another_task_closes(settings: Settings) -> None:
    publish(settings, HALF)

    async def loop() -> list[Any]:
        batches = subscribe_async(settings, run_id=RUN, batch_groups=1)

        async def consume() -> list[Any]:
            return [batch async for batch in batches]

        waiting = asyncio.create_task(consume())
        while not batches.status.open_groups:  # noqa: ASYNC110  # bounded by the timeout below
            await asyncio.sleep(0.01)
        await batches.close()
        return await waiting

    async def bounded() -> list[Any]:
        async with asyncio.timeout(SECONDS_MAX):
            return await loop()

    assert asyncio.run(bounded()) == []


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.02])
def test_no_thread_is_left_of_one_that_was_cancelled_while_it_began(
    settings: Settings, after_s: float
) -> None:
    publish(settings, HALF)

    async def loop() -> None:
        async with subscribe_async(settings, run_id=RUN, batch_groups=1) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(after_s)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    asyncio.run(loop())
    wait_for(lambda: not feeds())


def test_a_commit_after_the_end_says_so(settings: Settings) -> None:
    publish(settings, group("a", 1))
    with subscribe(settings, run_id=RUN, batch_groups=1) as batches:
        next(batches)
    with pytest.raises(RuntimeError, match="the subscription is closed"):
        batches.commit(1, 1)

    async def loop() -> None:
        async with subscribe_async(settings, run_id=RUN, batch_groups=1) as later:
            await anext(later)
        with pytest.raises(RuntimeError, match="the subscription is closed"):
            await later.commit(1, 1)

    asyncio.run(loop())
