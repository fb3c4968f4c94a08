"""`turnstream doctor --engine` sees each fault of an engine and says what to change."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from streams.cli.doctor import engine as doctor_engine
from streams.cli.doctor.engine_checks import ADVICE, check
from streams.cli.doctor.finding import Finding
from tests.adapters.engines.standins.kinds import EACH, KINDS, Kind, Stand, stand, tried
from tests.adapters.engines.standins.model import VOCABULARY, SmallModel
from tests.adapters.engines.standins.serving import StandIn, standing
from tests.adapters.engines.standins.sglang import StandInSglang
from tests.adapters.engines.standins.vllm import StandInVllm
from tests.cli.test_doctor import doctor, rows
from tests.kafka.broker import free_port

ROWS = ["engine", "ids", "logprobs", "logprobs of", "cut tails", "stop token", "abort"]
ROWS += ["weight version", "routed experts"]


async def findings(at: Stand, kind: Kind) -> dict[str, Finding]:
    at.model.gap_s = at.model.gap_s or 0.002
    found = await check(at.engine, tuple(range(100, 116)), ADVICE[kind.name])
    return {finding.name: finding for finding in found}


@EACH
def test_where_all_is_well_every_row_says_so(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.server.faults.experts = (3, 2)
        found = await findings(at, kind)
        assert list(found) == ROWS
        assert {finding.state for finding in found.values()} == {"ok"}
        assert found["weight version"].detail == "7"
        assert found["ids"].detail == "16 in, the same 16 computed, 8 out"

    tried(kind, story)


FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a token before the prompt": ({"adds_token": True}, "ids", "FAIL", "computed 17"),
    "one logprob too few": ({"drops_logprob": True}, "logprobs", "FAIL", "logprobs for"),
    "logprobs of other tokens": ({"others_logprobs": True}, "logprobs", "FAIL", "or of others"),
    "no logprob": ({"null_logprob": True}, "logprobs", "FAIL", "no logprob for token"),
    "the stop token is cut off": ({"trims_stop": True}, "stop token", "FAIL", "cut off: 0 ids"),
    "no abort": ({"ignores_abort": True}, "abort", "FAIL", "to all 512 tokens"),
    "no version": ({"no_version": True}, "weight version", "note", "'default' is no whole number"),
    "no experts": ({}, "routed experts", "note", "none are told"),
    "experts that do not fit": (
        {"experts": (3, 2), "experts_short": True},
        "routed experts",
        "FAIL",
        "routed experts",
    ),
    "refusals": ({"refuses": 500}, "answer", "FAIL", "status 500"),
    "a break": ({"breaks_after": 2}, "answer", "FAIL", "SGLang at|vLLM at"),
}


@EACH
@pytest.mark.parametrize(("faults", "row", "state", "says"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(
    kind: Kind, faults: dict[str, Any], row: str, state: str, says: str
) -> None:
    async def story(at: Stand) -> None:
        for name, value in faults.items():
            setattr(at.server.faults, name, value)
        found = await findings(at, kind)
        assert found[row].state == state
        assert any(part in found[row].detail for part in says.split("|"))
        assert found[row].change
        failed = {finding.name for finding in found.values() if finding.state == "FAIL"}
        assert failed == ({row} if state == "FAIL" else set())

    tried(kind, story)


@EACH
def test_raw_logprobs_are_told_from_those_of_the_distribution(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.told = "raw"
        found = await findings(at, kind)
        assert found["logprobs of"].state == "FAIL"
        assert found["logprobs of"].detail.startswith("raw, ")
        assert found["logprobs of"].change == ADVICE[kind.name].raw

    tried(kind, story)


@EACH
def test_answers_that_end_at_once_are_told_from_none(kind: Kind) -> None:
    async def story(at: Stand) -> None:
        at.model.ends = frozenset(range(VOCABULARY))
        found = await findings(at, kind)
        assert (found["abort"].state, found["abort"].change) == ("note", "run it again")
        at.server.faults.trims_stop = True
        found = await findings(at, kind)
        assert list(found) == ["engine", "ids"]
        assert (found["ids"].state, found["ids"].detail) == ("FAIL", "no id came")

    tried(kind, story)


def test_logprobs_that_do_not_count_the_cut_are_noted() -> None:
    async def story(at: Stand) -> None:
        at.model.told = "tempered"
        found = await findings(at, KINDS["sglang"])
        assert found["logprobs of"].state == "ok"
        assert found["cut tails"].state == "note"
        assert "leave top_p" in found["cut tails"].change

    tried(KINDS["sglang"], story)


def test_a_server_without_the_endpoint_says_how_to_start_it() -> None:
    async def work() -> dict[str, Finding]:
        kind = Kind("vllm", lambda m: StandInVllm(m, scale_out=False), KINDS["vllm"].engine)
        async with stand(kind) as at:
            return await findings(at, kind)

    found = asyncio.run(work())
    assert found["answer"].state == "FAIL"
    assert "--enable-scale-out" in found["answer"].change


def looked_at(engine: str) -> dict[str, Finding]:
    """What the command would print of it."""
    found = doctor_engine.findings(tokenizer=None, log=None, engine=engine)
    return {finding.name: finding for finding in found}


@contextmanager
def serving(*servers: StandIn) -> Iterator[tuple[str, ...]]:
    """Stand-ins in a thread of their own, for a command that is a process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    stack = AsyncExitStack()
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(
            stack.enter_async_context(standing(*servers)), loop
        )
        yield entered.result(30)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def slow() -> SmallModel:
    model = SmallModel()
    model.gap_s = 0.002
    return model


def test_the_command_prints_a_table_and_fails_with_it(tmp_path: Path) -> None:
    server = StandInSglang(slow())
    server.faults.trims_stop = True
    with serving(server) as (url,):
        ran = doctor("--log", tmp_path / "new.db", "--engine", url)
    assert (ran.code, ran.err) == (1, "")
    assert set(ROWS) <= rows(ran).keys()
    assert {name for name, state in rows(ran).items() if state == "FAIL"} == {"stop token"}
    assert f"-> {ADVICE['sglang'].stop}" in ran.out


def test_which_engine_answers_is_found_out() -> None:
    with serving(StandInSglang(slow()), StandInVllm(slow())) as urls:
        for url, name in zip(urls, ("SGLang", "vLLM"), strict=True):
            found = looked_at(url)
            assert list(found) == ROWS
            assert found["engine"].detail == f"{name} at {url}"
            assert {finding.state for finding in found.values()} == {"ok", "note"}


def test_every_replica_is_looked_at() -> None:
    good, bad = StandInSglang(slow()), StandInSglang(slow())
    bad.faults.trims_stop = True
    with serving(good, bad) as urls:
        found = looked_at(f"sglang:{urls[0]},{urls[1]}")
    places = [url.partition("//")[2] for url in urls]
    assert found[f"stop token of {places[0]}"].state == "ok"
    assert found[f"stop token of {places[1]}"].state == "FAIL"


NOT_THERE = {
    "nobody": ("http://127.0.0.1:{port}", "no answer", "start it"),
    "nobody of that kind": ("vllm:http://127.0.0.1:{port}", "no answer", "start it"),
    "no address": ("sglang:here", "no address", "give URL"),
}


@pytest.mark.parametrize(("engine", "says", "change"), NOT_THERE.values(), ids=NOT_THERE)
def test_an_engine_that_is_not_there_is_found(engine: str, says: str, change: str) -> None:
    found = looked_at(engine.format(port=free_port()))["engine"]
    assert found.state == "FAIL"
    assert says in found.detail
    assert found.change.startswith(change)


def test_another_server_is_found() -> None:
    with serving(StandInVllm(slow())) as (url,):
        found = looked_at(f"sglang:{url}")["engine"]
    assert found.state == "FAIL"
    assert "this is no SGLang" in found.detail


def test_where_neither_answers_that_is_said() -> None:
    class Nothing(StandIn):
        def routes(self) -> list[web.RouteDef]:
            return []

    with serving(Nothing(slow())) as (url,):
        found = looked_at(url)["engine"]
    assert found.state == "FAIL"
    assert "neither SGLang nor vLLM answers there" in found.detail


class Proxy(StandIn):
    """Answers for an engine, whatever is asked."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(slow())
        self._status, self._headers = status, headers

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer_for_it)]

    async def _answer_for_it(self, _: web.Request) -> web.Response:
        return web.Response(status=self._status, headers=self._headers, text="<html>")


ELSEWHERE = "https://me:of-the-proxy@127.0.0.1:9/login"
PROXIES: dict[str, tuple[Proxy, str, str]] = {
    "its engine is away": (Proxy(502), "status 502 for /", "wait until"),
    "a redirect to nowhere": (
        Proxy(302, Location=ELSEWHERE),
        "a redirect to https://127.0.0.1:9/login",
        "redirects are not followed",
    ),
    "a redirect in a circle": (Proxy(308, Location="/"), "status 308 for /", "redirects are not"),
}


@pytest.mark.parametrize("named", ["{url}", "sglang:{url}", "vllm:{url}"])
@pytest.mark.parametrize(("proxy", "says", "change"), PROXIES.values(), ids=PROXIES)
def test_what_a_proxy_answers_for_the_engine_is_said(
    proxy: Proxy, says: str, change: str, named: str
) -> None:
    with serving(proxy) as (url,):
        (found,) = looked_at(named.format(url=url)).values()
    assert found.detail.startswith(f"{url}: status ")
    assert says in found.detail
    assert (found.state, found.change[: len(change)]) == ("FAIL", change)


@EACH
def test_a_call_that_is_redirected_says_where_to(kind: Kind) -> None:
    async def work(url: str) -> list[Finding]:
        engine = kind.engine([url])
        try:
            return await check(engine, (1, 2), ADVICE[kind.name])
        finally:
            await engine.close()

    with serving(Proxy(307, Location=ELSEWHERE)) as (url,):
        found = asyncio.run(work(url))
    assert found[-1].state == "FAIL"
    assert "status 307: a redirect to https://127.0.0.1:9/login" in found[-1].detail


def test_a_scripted_engine_has_nothing_to_try_and_none_has_no_row() -> None:
    assert looked_at("scripted")["engine"].state == "note"
    assert doctor_engine.findings(tokenizer=None, log=None, engine=None) == []


KEY = "sk-of-the-engine"


@pytest.mark.parametrize("named", [True, False], ids=["named", "found out"])
@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_an_engine_with_a_key_is_opened_by_the_setting(
    kind: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = KINDS[kind].server(slow())
    server.api_key = KEY
    with serving(server) as (url,):
        engine = f"{kind}:{url}" if named else url
        refused = [row for row in looked_at(engine).values() if row.state == "FAIL"]
        monkeypatch.setenv("TURNSTREAM_ENGINE_API_KEY", KEY)
        assert list(looked_at(engine)) == ROWS
    (row,) = refused
    assert "status 401" in row.detail
    assert "TURNSTREAM_ENGINE_API_KEY" in row.change
    assert KEY not in row.detail + row.change


def test_the_command_never_prints_the_key(tmp_path: Path) -> None:
    server = StandInVllm(slow())
    server.api_key = "another"
    with serving(server) as (url,):
        ran = doctor("--log", tmp_path / "a.db", "--engine", url, TURNSTREAM_ENGINE_API_KEY=KEY)
    assert (ran.code, rows(ran)["key"]) == (1, "FAIL")
    assert "TURNSTREAM_ENGINE_API_KEY is not the --api-key that it was started with" in ran.out
    assert KEY not in ran.out + ran.err


def test_a_password_in_an_address_is_in_no_row() -> None:
    one, two = StandInSglang(slow()), StandInSglang(slow())
    for server in (one, two):
        server.basic = "me:of-the-proxy"
    with serving(one, two) as urls:
        both = ",".join(url.replace("//", "//me:of-the-proxy@") for url in urls)
        found = looked_at(f"sglang:{both}")
        refused = looked_at(both.replace("me:", "you:"))
    places = [url.partition("//")[2] for url in urls]
    assert [found[f"ids of {place}"].state for place in places] == ["ok", "ok"]
    assert [refused[f"engine of {place}"].state for place in places] == ["FAIL", "FAIL"]
    rows_ = [*found.values(), *refused.values(), *looked_at("http://me:of-the-proxy@[").values()]
    assert not any("of-the-proxy" in f"{row.name} {row.detail} {row.change}" for row in rows_)
