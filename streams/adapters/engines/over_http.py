"""An engine behind one or several addresses: connections, routing, retries; the wire is given.

    generate ──► home of the session ──► POST ──► events ──► the wire's answer ──► Tokens
                 next address, same id, if the connection failed and nothing had come

The wire knows an engine's paths, fields and words; nothing of it is known here.

Invariant: a request is sent again only after a failed connection, and never after a token of it
was given; no redirect is followed; an answer that stops without a finish is an error, never a
short answer; every wait is bounded.
"""

import asyncio
import base64
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Literal

import aiohttp
import msgspec
from aiohttp import hdrs

from streams.adapters.engines.distribution import Learning
from streams.adapters.engines.interface import (
    EngineAway,
    EngineError,
    Generation,
    KeyRefused,
    Redirected,
    Tokens,
    WrongEngine,
)
from streams.adapters.engines.routing import Replicas, shown, without_password
from streams.adapters.engines.wire import Answer, Wire
from streams.errors import BadSetting
from streams.settings import PREFIX

READ_S = 300.0
"""Between two signs of life of an answer: a queue and a long prompt come before the first."""
_CONNECT_S = 5.0
_QUESTION = aiohttp.ClientTimeout(total=5.0)
_ATTEMPTS = 4
_PAUSE_S = 0.1
"""Times the number of the attempt."""
_DRAIN_S = 0.5
"""For the rest of a finished answer: then its connection can be used again."""
IDLE_S = 3.0
"""Of a connection that is kept. Both servers close theirs after five: a request that meets that
would be taken for a replica that is gone."""
_LINE_BYTES_MAX = 256 * 1024 * 1024
_DETAIL_CHARS_MAX = 500
_PLACES_MAX = 10_000
_OK, _SERVER_ERROR = 200, 500
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_KEY = f"{PREFIX}ENGINE_API_KEY"
_PASSING = {408, 425, 429}
"""Refusals that time mends, besides those that are the server's own fault."""


class _Lost(Exception):
    """The connection could not be made, or broke."""


class HttpEngine:
    """An engine at addresses."""

    def __init__(
        self,
        wire: Wire,
        addresses: Sequence[str],
        *,
        read_s: float = READ_S,
        api_key: str | None = None,
    ) -> None:
        """Nothing is asked yet; `api_key` is what the engine was started with, if it was.

        Raises:
            BadSetting: there is a password in an address too, and a request has room for one.
        """
        self._read_s = read_s
        found = dict(map(without_password, addresses))
        passwords = {at: _basic(*told) for at, told in found.items() if told is not None}
        if api_key is not None and passwords:
            both = f"{', '.join(passwords)}: user and password in the address, and {_KEY} too"
            raise BadSetting(f"{both}; an engine is sent one of them")
        key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._entry = dict.fromkeys(found, key) | passwords
        """By address: what opens it."""
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=read_s)
        self.wire = wire
        self.replicas = Replicas(tuple(found))
        self._api_key = api_key
        self._learning = Learning(self._at, self.replicas.addresses)
        self._client: aiohttp.ClientSession | None = None
        self._places: OrderedDict[str, str] = OrderedDict()

    @property
    def name(self) -> str:
        return f"{self.wire.kind} at {', '.join(self.replicas.addresses)}"

    @property
    def logprobs(self) -> Literal["processed", "raw"]:
        """Raw if those of one replica are; assumed to be processed until they were asked."""
        return self._learning.logprobs

    @property
    def learned(self) -> bool:
        """Whether every replica was asked."""
        return self._learning.learned

    async def learn(self) -> None:
        """Ask replicas that were not asked yet whose logprobs they give.

        Raises:
            KeyRefused: one wants another key.
            EngineError: none of them answers.
        """
        await self._learning.learn()

    @property
    def forces_calls(self) -> bool:
        return False

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """Tokens as they come.

        Raises:
            EngineError: the engine says so, is away, or stops in the middle.
        """
        body = msgspec.json.encode(self.wire.body(generation))
        order = self.replicas.order(generation.routing_key)
        given = False
        for attempt, address in enumerate(itertools.islice(itertools.cycle(order), _ATTEMPTS)):
            await asyncio.sleep(_PAUSE_S * attempt)
            self._remember(generation.request_id, address)
            last = attempt == _ATTEMPTS - 1
            try:
                async with contextlib.aclosing(self._once(address, generation, body)) as stream:
                    async for tokens in stream:
                        given = True
                        yield tokens
                self._places.pop(generation.request_id, None)
                return
            except _Lost as error:
                self.replicas.failed(address)
                if given or last:
                    raise self._error(address, str(error)) from error.__cause__
            except EngineError as error:
                if given or last or not attempt or not self.wire.is_twin(str(error)):
                    raise
                # What a broken connection left behind is in the way of the same request.
                await self.abort(generation.request_id)

    def replica_of(self, request_id: str) -> str | None:
        return self._places.get(request_id)

    async def abort(self, request_id: str) -> None:
        """Stop a generation; an engine that is away has none."""
        address = self._places.get(request_id)
        if address is None:
            return
        body = msgspec.json.encode(self.wire.abort_body(request_id))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._http.post(
                address + self.wire.abort_path,
                data=body,
                headers=_JSON | self._entry[address],
                timeout=_QUESTION,
                allow_redirects=False,
            ):
                pass

    async def require_ready(self) -> None:
        """Return if any of it answers.

        Raises:
            WrongEngine: somebody else answers at one of the addresses.
            KeyRefused: it answers, but not to us.
            EngineError: no address answers, or none yet: what the first of them does.
        """
        asked = await asyncio.gather(*map(self._trouble, self.replicas.addresses))
        troubles = [trouble for trouble in asked if trouble is not None]
        if len(troubles) == len(asked):
            raise troubles[0]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Made when it is first used: it belongs to the event loop that runs then.
        if self._client is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
            self._client = aiohttp.ClientSession(connector=connector)
        return self._client

    async def _once(
        self, address: str, generation: Generation, body: bytes
    ) -> AsyncGenerator[Tokens, None]:
        answer = self.wire.answer(generation)
        headers = _JSON | self._entry[address] | self.wire.headers(generation)
        url = address + self.wire.generate_path
        try:
            async with self._http.post(
                url,
                data=body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                self.replicas.answered(address)
                if response.status != _OK:
                    raise await self._refusal(address, response)
                async for event in _events(response.content):
                    tokens = self._read(address, answer, event)
                    if tokens is None:
                        continue
                    if tokens.finish is not None:
                        await _drain(response)
                        yield tokens
                        return
                    yield tokens
        except aiohttp.SocketTimeoutError as error:
            self.replicas.failed(address)  # or the next calls would wait as long
            raise self._error(address, f"no sign of life for {self._read_s:g} s") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Lost(f"{type(error).__name__}: {error}") from error
        raise self._error(address, "the answer stops in the middle")

    def _read(self, address: str, answer: Answer, event: bytes) -> Tokens | None:
        try:
            return answer.tokens(event)
        except msgspec.DecodeError as error:
            raise self._error(address, f"cannot be understood: {error}", retryable=False) from error
        except EngineError as error:
            what = f"{self.wire.kind} at {address}: {error}"
            raise type(error)(what, retryable=error.retryable) from error

    async def _refusal(self, address: str, response: aiohttp.ClientResponse) -> EngineError:
        text = (await response.content.read(_DETAIL_CHARS_MAX)).decode(errors="replace")
        status = response.status
        if hdrs.LOCATION in response.headers:
            text = _redirect(response)
        if status == _UNAUTHORIZED or (
            status == _FORBIDDEN and not self.wire.is_switched_off(text)
        ):
            return self._no_entry(address, status, text)
        return self._error(address, f"status {status}: {text}", retryable=is_passing(status))

    async def _trouble(self, address: str) -> EngineError | None:
        """Why an address cannot be asked now, if so."""
        for path, field in self.wire.signs.items():
            try:
                async with self._http.get(
                    address + path,
                    headers=self._entry[address],
                    timeout=_QUESTION,
                    allow_redirects=False,
                ) as response:
                    body = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                return EngineAway(f"{address}: no answer: {type(error).__name__}: {error}")
            status = f"{address}: status {response.status} for {path}"
            if is_passing(response.status):
                return EngineError(status)
            if response.status in (_UNAUTHORIZED, _FORBIDDEN):
                text = body[:_DETAIL_CHARS_MAX].decode(errors="replace")
                raise self._no_entry(address, response.status, text)
            if hdrs.LOCATION in response.headers:
                raise Redirected(f"{status}, {_redirect(response)}")
            if response.status != _OK or (field is not None and not _has(body, field)):
                raise WrongEngine(f"{status}, this is no {self.wire.kind}")
        return None

    def _remember(self, request_id: str, address: str) -> None:
        self._places[request_id] = address
        self._places.move_to_end(request_id)
        if len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)

    def _no_entry(self, address: str, status: int, text: str) -> KeyRefused:
        told = f"{self.wire.kind} at {address}: status {status}: {text}"
        if self._api_key is None:
            return KeyRefused(f"{told}: set {_KEY} to the --api-key that it was started with")
        return KeyRefused(f"{told}: {_KEY} is not the --api-key that it was started with")

    async def _at(self, address: str, generation: Generation) -> AsyncGenerator[Tokens, None]:
        """An answer of one replica, asked once."""
        body = msgspec.json.encode(self.wire.body(generation))
        try:
            async with contextlib.aclosing(self._once(address, generation, body)) as stream:
                async for tokens in stream:
                    yield tokens
        except _Lost as error:
            raise self._error(address, str(error)) from error.__cause__

    def _error(self, address: str, what: str, *, retryable: bool = True) -> EngineError:
        return EngineError(f"{self.wire.kind} at {address}: {what}", retryable=retryable)


_JSON = {"content-type": "application/json"}


def _basic(user: str, password: str) -> dict[str, str]:
    told = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {told}"}


def _redirect(response: aiohttp.ClientResponse) -> str:
    """Where it leads; it is not followed, for the key would stay behind and a POST become a GET."""
    return f"a redirect to {shown(response.headers[hdrs.LOCATION])[:_DETAIL_CHARS_MAX]}"


def is_passing(status: int) -> bool:
    """Whether a request with that status may succeed later."""
    return status >= _SERVER_ERROR or status in _PASSING


def _has(body: bytes, field: str) -> bool:
    with contextlib.suppress(msgspec.DecodeError):
        return field in msgspec.json.decode(body, type=dict[str, Any])
    return False


async def _drain(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_DRAIN_S):
            await response.content.read()


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event; both engines write one line of JSON."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > _LINE_BYTES_MAX:
                raise EngineError(f"a line of more than {_LINE_BYTES_MAX} bytes", retryable=False)
            continue
        *whole, tail = rest.split(b"\n")
        rest = tail
        for line in whole:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield bytes(data)
