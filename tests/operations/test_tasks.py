"""What a dump says of tasks and threads, and what it never says."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from streams.operations.tasks import chain, tasks_as_text

SECRET = "the patient's name is Ada"


async def dig(text: str, gate: asyncio.Future[None]) -> None:
    for word in text.split():
        async for _ in deeper(word, gate):
            pass


async def deeper(word: str, gate: asyncio.Future[None]) -> AsyncIterator[str]:
    await asyncio.wait_for(gate, None)
    yield word


async def forward(task: "asyncio.Task[Any]") -> None:
    await task


async def started(*coroutines: Any) -> "list[asyncio.Task[Any]]":
    tasks = [asyncio.create_task(one) for one in coroutines]
    await asyncio.sleep(0)
    return tasks


async def test_a_chain_leads_from_the_first_call_to_what_it_waits_for() -> None:
    gate = asyncio.get_running_loop().create_future()
    (digging,) = await started(dig(SECRET, gate))
    lines = chain(digging)
    assert [line.rpartition(" ")[2] for line in lines[:3]] == ["dig", "deeper", "wait_for"]
    assert __file__ in lines[0]
    assert lines[-1] == "waits for Future"
    gate.set_result(None)
    await digging


class Asked:
    """Is awaited itself, as Faust's agents are."""

    def __init__(self, gate: asyncio.Future[None]) -> None:
        self.gate = gate

    def __await__(self) -> Any:
        return dig(SECRET, self.gate).__await__()


async def test_a_chain_goes_on_behind_an_object_that_is_awaited() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        await Asked(gate)

    (asking,) = await started(ask())
    asking.set_name(f"<{SECRET}>")
    assert any(line.endswith(" dig") for line in chain(asking))
    assert "\ntask unnamed\n" in (text := tasks_as_text(asyncio.get_running_loop()))
    assert SECRET not in text
    gate.set_result(None)
    await asking


async def test_a_task_that_waits_for_tasks_names_them() -> None:
    gate = asyncio.get_running_loop().create_future()
    (digging,) = await started(dig(SECRET, gate))
    (waiting,) = await started(forward(digging))
    assert chain(waiting)[-1] == f"waits for task {digging.get_name()}"

    async def both() -> None:
        await asyncio.gather(waiting, digging)

    (gathering,) = await started(both())
    waits = [f"waits for task {task.get_name()}" for task in (waiting, digging)]
    assert chain(gathering)[-2:] == waits
    gate.set_result(None)
    await gathering


async def test_values_are_not_written() -> None:
    gate = asyncio.get_running_loop().create_future()
    (digging,) = await started(dig(SECRET, gate))
    over = threading.Event()
    threads = [
        threading.Thread(target=over.wait, name=name, daemon=True) for name in (SECRET, None)
    ]
    for thread in threads:
        thread.start()
    text = tasks_as_text(asyncio.get_running_loop())
    assert " dig\n" in text
    assert "thread unnamed\n" in text
    assert f"thread {threads[1].name}\n" in text
    assert not [word for word in ("patient", "Ada", SECRET) if word in text]
    over.set()
    gate.set_result(None)
    await digging


async def test_tasks_that_wait_in_one_place_stand_together_behind_the_rare_ones() -> None:
    gate = asyncio.get_running_loop().create_future()
    many = await started(*(dig(SECRET, gate) for _ in range(200)))
    text = tasks_as_text(asyncio.get_running_loop())
    assert text.startswith("201 tasks, ")
    assert text.count(" dig\n") == 1
    assert "\n200 tasks: " in text
    assert text.index("test_tasks_that_wait") < text.index("\n200 tasks: ")
    gate.set_result(None)
    await asyncio.gather(*many)


def test_the_loops_of_other_threads_are_found() -> None:
    loop = asyncio.new_event_loop()
    gate = loop.create_future()
    thread = threading.Thread(target=loop.run_until_complete, args=(dig(SECRET, gate),), name="own")
    thread.start()
    try:
        for _ in range(500):
            if " dig\n" in (text := tasks_as_text(None)):
                break
            thread.join(0.01)
        assert " dig\n" in text
        assert "\nthread own\n" in text
    finally:
        loop.call_soon_threadsafe(gate.set_result, None)
        thread.join(10)
        loop.close()
