"""The scripted engine of another process, through its client."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from streams.adapters.engines.interface import EngineAway, EngineError, Generation, Sampling, Tokens
from streams.adapters.engines.scripted.remote import NotScripted, RemoteScriptedEngine
from tests.adapters.engines.calls import decode, encode
from tests.adapters.engines.test_scripted_process import journal, journal_at_last, running
from tests.kafka.broker import free_port

FAILS: dict[str, Any] = {"message": "out of memory", "retryable": False}


def generation(request_id: str = "r1", **sampling: Any) -> Generation:
    return Generation(
        request_id=request_id,
        routing_key="s1",
        input_ids=np.asarray(encode("How big?"), np.int32),
        sampling=Sampling(**sampling),
    )


@contextlib.asynccontextmanager
async def at(url: str) -> AsyncIterator[RemoteScriptedEngine]:
    engine = RemoteScriptedEngine(url)
    try:
        yield engine
    finally:
        await engine.close()


async def taken(url: str, asked: Generation) -> list[Tokens]:
    async with at(url) as engine:
        return [tokens async for tokens in engine.generate(asked)]


def test_what_comes_is_what_the_engine_journals(tmp_path: Path) -> None:
    script = {"answers": [{"text": "It is 48 MB.", "chunks": [1, 3]}], "weight_version": 7}
    with running(script, tmp_path) as url:
        came = asyncio.run(taken(url, generation(max_new_tokens=100)))
        (entry,) = journal(url)
    ids = [token for tokens in came for token in tokens.ids]
    logprobs = [value for tokens in came for value in tokens.logprobs]
    assert decode(ids) == "It is 48 MB.<|im_end|>"
    assert (ids, logprobs) == (entry["ids"], entry["logprobs"])
    assert len(came) > 2
    assert [tokens.finish for tokens in came][-1] == "stop"
    assert {tokens.weight_version for tokens in came} == {7}


def test_a_pause_holds_or_stops_and_versions_are_kept_to_itself(tmp_path: Path) -> None:
    rule = {"text": "It is 48 MB.", "gap_ms": 30}
    script = {"otherwise": rule, "tells_version": False, "weight_version": 7, "experts": [2, 3]}

    async def story(url: str) -> list[Tokens]:
        asked = dataclasses.replace(generation(), routed_experts=True)
        async with at(url) as engine, aiohttp.ClientSession() as http:
            came: list[Tokens] = []
            async for tokens in engine.generate(asked):
                came.append(tokens)
                if len(came) == 2:
                    await http.post(f"{url}/pause", json={"abort": False})
                    await http.post(f"{url}/weights", json={"version": 8, "abort": False})
                    await asyncio.sleep(0.2)
                    assert len(journal(url)[0]["ids"]) == 2
                    await http.post(f"{url}/resume")
                if len(came) == 4:
                    await http.post(f"{url}/pause", json={})
            return came

    with running(script, tmp_path) as url:
        came = asyncio.run(story(url))
        (entry,) = journal(url)
    assert {(t.weight_version, t.weight_label) for t in came} == {(None, None)}
    assert entry["weight_versions"] == [[7, 2], [8, 2]]
    assert (came[-1].finish, len(entry["ids"])) == ("abort", 4)
    experts = came[-1].routed_experts
    assert experts is not None
    assert (experts.dtype, experts.shape, len(experts.data)) == ("int32", (4, 6), 96)


@pytest.mark.parametrize("after", [0, 2])
def test_a_failure_of_the_engine_is_told_with_its_words(tmp_path: Path, after: int) -> None:
    script = {"answers": [{"text": "It is 48 MB.", "fail": {"after": after, **FAILS}}]}

    came: list[int] = []

    async def work(url: str) -> None:
        async with at(url) as engine:
            async for tokens in engine.generate(generation()):
                came.extend(tokens.ids)

    with (
        running(script, tmp_path) as url,
        pytest.raises(EngineError, match="out of memory") as caught,
    ):
        asyncio.run(work(url))
    assert len(came) == after
    assert not caught.value.retryable


def test_closing_early_ends_the_generation(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        async with at(url) as engine:
            stream = engine.generate(generation())
            await anext(stream)
            await stream.aclose()

    script = {"answers": [{"text": "It is 48 MB.", "chunks": [1], "gap_ms": 300}]}
    with running(script, tmp_path) as url:
        asyncio.run(work(url))
        entry = journal_at_last(url, "closed")
    assert 1 <= len(entry["ids"]) < 5


def test_an_abort_ends_it_with_what_came(tmp_path: Path) -> None:
    async def work(url: str) -> list[Tokens]:
        async with at(url) as engine:
            came = []
            async for tokens in engine.generate(generation()):
                came.append(tokens)
                await engine.abort("r1")
            return came

    script = {"answers": [{"text": "It is 48 MB.", "gap_ms": 300}]}
    with running(script, tmp_path) as url:
        came = asyncio.run(work(url))
    assert came[-1].finish == "abort"


def test_an_answer_that_stops_in_the_middle_is_an_error() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"ids": [1], "logprobs": [-0.5]}\n'
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(half, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(EngineError, match="stops in the middle"):
                await taken(f"http://127.0.0.1:{port}", generation())

    asyncio.run(work())


def test_an_engine_that_is_away_is_not_ready_and_says_so() -> None:
    async def work(url: str) -> None:
        async with at(url) as engine:
            await engine.abort("r1")
            await engine.require_ready()

    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineAway, match=f"{url}: no answer: "):
        asyncio.run(work(url))
    with pytest.raises(EngineError, match=f"scripted engine at {url}: "):
        asyncio.run(taken(url, generation()))


def test_another_server_is_not_taken_for_one(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        async with at(url) as engine:
            await engine.require_ready()

    with running({"otherwise": {"text": "x"}}, tmp_path) as url:
        asyncio.run(work(url))
        with pytest.raises(NotScripted, match="status 404"):
            asyncio.run(work(f"{url}/elsewhere"))
