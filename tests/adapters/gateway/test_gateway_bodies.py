"""How bodies come in: packed, slow, or more of them than one session, or all, may hold."""

import asyncio
import gc
import gzip
import itertools
import json
import os
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.adapters.dialects.calls import CallRefused
from streams.adapters.engines.scripted import Rule
from streams.adapters.gateway.access.under_way import RequestLimits
from streams.adapters.gateway.api import json_size
from streams.adapters.gateway.api.json_size import count_objects, has_more_objects, values_at_most
from streams.settings import Settings
from tests.adapters.gateway.agents import user
from tests.adapters.gateway.agents_kinds import Talker
from tests.adapters.gateway.faults_apis import Wire, answered, for_each_api
from tests.adapters.gateway.test_gateway_faults_refusals import paths
from tests.adapters.gateway.world import World, played, until
from tests.soak.memory import own_bytes

ANY = Rule(text="Yes.", times=None)
SLOW = Rule(text="Yes.", times=None, delay_ms=500)


def bare_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def two_members(body: bytes) -> bytes:
    return gzip.compress(body[:5]) + gzip.compress(body[5:])


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": ("x-gzip", two_members),
    "deflate": ("deflate", zlib.compress),
    "deflate without a head": ("Deflate", bare_deflate),
    "brotli": ("br", lambda body: bytes(cramjam.brotli.compress(body))),
    "zstd": ("zstd", lambda body: bytes(cramjam.zstd.compress(body))),
    "nothing": ("identity", bytes),
}


@for_each_api(otherwise=ANY)
async def test_a_packed_body_is_unpacked(world: World, wire: Wire, talker: Talker) -> None:
    body = json.dumps(wire.asked(talker, "Hi")).encode()
    for encoding, pack in PACKERS.values():
        for path in paths(wire):
            packed = {"path": path, "content_encoding": encoding}
            status, told, _ = await answered(world, wire, pack(body), talker.agent.key, **packed)
            assert status == 200, (encoding, told)


@for_each_api(otherwise=ANY, gateway_body_bytes_max=100_000)
async def test_what_unpacks_to_too_much_is_413(world: World, wire: Wire, talker: Talker) -> None:
    body = json.dumps(wire.asked(talker, "x" * 100_000)).encode()
    for encoding, pack in PACKERS.values():
        packed = {"content_encoding": encoding}
        status, told, headers = await answered(world, wire, pack(body), talker.agent.key, **packed)
        assert (status, headers["x-should-retry"]) == (413, "false")
        assert "at most 100000 bytes" in wire.refusal(told).message


@for_each_api(otherwise=ANY)
async def test_what_is_packed_otherwise_or_not_to_its_end_is_refused(
    world: World, wire: Wire, talker: Talker
) -> None:
    body = json.dumps(wire.asked(talker, "Hi")).encode()
    for encoding in ("compress", "gzip, gzip", "x" * 200):
        status, told, headers = await answered(
            world, wire, body, talker.agent.key, content_encoding=encoding
        )
        assert (status, headers["x-should-retry"]) == (415, "false")
        assert "send one of br, deflate, gzip, x-gzip, zstd" in wire.refusal(told).message
    for name, (encoding, pack) in PACKERS.items():
        if name == "nothing":
            continue
        for broken in (pack(body)[:-6], b"", b"garbage"):
            status, told, _ = await answered(
                world, wire, broken, talker.agent.key, content_encoding=encoding
            )
            assert (status, wire.refusal(told).kind) == (400, "invalid_request_error"), name


async def slowly(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await asyncio.sleep(30)


@for_each_api(otherwise=ANY, gateway_body_timeout_s=0.3)
async def test_a_body_that_does_not_come_in_time_is_408(
    world: World, wire: Wire, talker: Talker
) -> None:
    url, key = world.gateway.base_url + wire.path, {"authorization": f"Bearer {talker.agent.key}"}
    headers = {**wire.headers, **key}
    async with world.http.post(url, data=slowly(b'{"model"'), headers=headers) as reply:
        assert reply.status == 408
        assert "0.3 s" in wire.refusal(await reply.json()).message
    await talker.ask(user("Hi"))


@for_each_api(otherwise=ANY, gateway_messages_max=3)
async def test_a_request_of_too_many_messages_is_413(
    world: World, wire: Wire, talker: Talker
) -> None:
    answer = {"role": "assistant", "content": "No."}
    asked = wire.asked(talker, "1", answer, "2", answer)
    for path in paths(wire):
        status, told, headers = await answered(world, wire, asked, talker.agent.key, path=path)
        assert (status, headers["x-should-retry"]) == (413, "false")
        assert "4 messages, at most 3" in wire.refusal(told).message


@for_each_api(otherwise=ANY, gateway_json_objects_max=50, gateway_json_values_max=500)
async def test_a_body_of_too_many_parts_is_413(world: World, wire: Wire, talker: Talker) -> None:
    key = talker.agent.key
    many = {"model": "m", "messages": [{}] * 60, "input": [{}] * 60, "max_tokens": 9}
    for path in paths(wire):
        status, told, _ = await answered(world, wire, many, key, path=path)
        assert (status, "50 messages, parts" in wire.refusal(told).message) == (413, True)
        flat = {"model": "m", "messages": [0] * 600, "input": [0] * 600}
        status, told, _ = await answered(world, wire, flat, key, path=path)
        assert (status, "500 JSON values" in wire.refusal(told).message) == (413, True)
    text = wire.asked(talker, '{"a"' * 60)
    assert (await answered(world, wire, text, key))[0] == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('"\\{}[],aé'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\{,a'), inner),
)


def objects_in(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(objects_in, value.values()))
    return sum(map(objects_in, value)) if isinstance(value, list) else 0


def values_in(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(1 + values_in(each) for each in inner)


@given(JSON, st.integers(1, 40))
def test_objects_and_values_are_counted_as_they_are(value: Any, piece: int) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_PIECE", piece)
        objects = count_objects(body)
    assert objects == objects_in(value)
    assert has_more_objects(body, objects - 1)
    assert not has_more_objects(body, objects)
    assert values_at_most(body) >= values_in(value)


@played(otherwise=SLOW)
async def test_long_bodies_that_come_at_once_are_read_in_turn(world: World) -> None:
    """One in each round of the event loop, or streams wait for all of them."""
    agent = await world.open()
    begun: list[int] = []

    async def watch() -> None:
        while True:
            begun.append(world.gateway.api.in_flight)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(agent.send([user("word " * 10_000)]) for _ in range(20)))
    watching.cancel()
    assert max(begun) > 1
    assert max(after - before for before, after in itertools.pairwise(begun)) == 1


@played(otherwise=ANY)
async def test_a_body_that_is_refused_is_let_go_without_the_garbage_collector(
    world: World,
) -> None:
    agent = await world.open()
    most = world.settings.gateway_body_bytes_max
    spaces = bytes(cramjam.brotli.compress(b" " * 2 * most))
    bombs = {"br": spaces, "gzip": gzip.compress(b"," * most)}
    url = f"{world.gateway.base_url}/v1/chat/completions"
    gc.collect()
    gc.disable()
    try:
        before = own_bytes(os.getpid())
        for encoding, bomb in [*bombs.items()] * 10:
            headers = {"authorization": f"Bearer {agent.key}", "content-encoding": encoding}
            async with world.http.post(url, data=bomb, headers=headers) as reply:
                assert reply.status == 413
        assert own_bytes(os.getpid()) - before < 4 * most
    finally:
        gc.enable()


@for_each_api(otherwise=SLOW, gateway_session_calls_max=3)
async def test_one_call_too_many_of_a_session_is_429_and_others_are_served(
    world: World, wire: Wire, talker: Talker
) -> None:
    key, other = talker.agent.key, await world.open()
    asked = wire.asked(talker, "Hi")
    calls = [asyncio.create_task(answered(world, wire, asked, key)) for _ in range(5)]
    assert (await other.ask(user("Hi")))["content"] == "Yes."
    replies = await asyncio.gather(*calls)
    assert sorted(status for status, _, _ in replies) == [200, 200, 200, 429, 429]
    for status, told, headers in replies:
        if status == 429:
            assert headers["retry-after"] == "1"
            assert "3 calls" in wire.refusal(told).message
    assert (await answered(world, wire, asked, key))[0] == 200


@for_each_api(otherwise=SLOW, gateway_session_body_bytes_max=30_000)
async def test_bodies_of_one_session_under_way_are_bounded(
    world: World, wire: Wire, talker: Talker
) -> None:
    key = talker.agent.key
    asked = wire.asked(talker, "x" * 20_000)
    replies = await asyncio.gather(*(answered(world, wire, asked, key) for _ in range(3)))
    assert sorted(status for status, _, _ in replies) == [200, 429, 429]
    assert (await answered(world, wire, asked, key))[0] == 200


@played(otherwise=SLOW, gateway_total_body_bytes_max=30_000)
async def test_bodies_of_all_sessions_under_way_are_bounded(world: World) -> None:
    agents = [await world.open() for _ in range(3)]
    asked = [{"model": "m", "messages": [user("x" * 20_000)]} for _ in agents]
    url = f"{world.gateway.base_url}/v1/chat/completions"

    async def status(body: Any, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        async with world.http.post(url, json=body, headers=headers) as reply:
            return reply.status

    statuses = await asyncio.gather(
        *(status(body, agent.key) for body, agent in zip(asked, agents, strict=True))
    )
    assert sorted(statuses) == [200, 503, 503]


@played(Rule(text="Yes.", times=None, delay_ms=30_000), gateway_session_calls_max=2)
async def test_who_hangs_up_gives_back_what_the_call_held(world: World) -> None:
    agent = await world.open()
    for number in (1, 2, 3):
        calls = [asyncio.create_task(agent.send([user("Hi")])) for _ in range(2)]
        await world.asked(2 * number)
        assert world.gateway.limits.bytes > 0
        for call in calls:
            call.cancel()

        async def given_back() -> bool:
            return world.gateway.limits.bytes == 0

        await until(given_back)


@played(otherwise=ANY)
async def test_who_hangs_up_while_its_body_is_unpacked_holds_it_until_that_ends(
    world: World,
) -> None:
    agent, bomb = await world.open(), gzip.compress(b" " * 30_000_000)
    port = int(world.gateway.base_url.rpartition(":")[2])
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {agent.key}\r\n"
    head += f"content-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + bomb)

        async def begun() -> bool:
            return world.gateway.limits.bytes >= len(bomb)

        await until(begun)
        writer.transport.abort()
    assert world.gateway.limits.bytes > 0

    async def given_back() -> bool:
        return world.gateway.limits.bytes == 0

    await until(given_back)


def test_what_is_refused_takes_nothing() -> None:
    limits = RequestLimits(Settings(gateway_session_calls_max=1, gateway_session_body_bytes_max=10))
    use = limits.begin("s")
    with pytest.raises(CallRefused, match="as many as it may"):
        limits.begin("s")
    use.take(7)
    with pytest.raises(CallRefused, match="hold 10 bytes"):
        use.take(4)
    limits.begin("other").release()
    assert limits.bytes == 7
    use.release()
    assert limits.bytes == 0
    limits.begin("s").release()
