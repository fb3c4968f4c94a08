"""One call of the control API as steps, whoever takes them: code that blocks or code that awaits.

    Ask   ──► send this, hand back the answer or what went wrong on the way
    float ──► wait so many seconds

Tried again: 503, and 429 while the trainer is too far behind for new sessions, no sooner than
`retry-after` says; and connections that did not come about or broke. What was asked may have been
done then, so a request carries every id that it makes: to the gateway a repeated one is the same.

Invariant: it ends, at the latest one request after its patience is over.
"""

import json
import logging
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from streams.core.plain_values import plain, plain_reward
from streams.errors import TurnstreamError

logger = logging.getLogger("turnstream.client")

_WAIT_S = (0.25, 5.0)
_SILENCE_S = 2.0
"""A gateway's restart is not worth a word; what takes longer is said once."""
_OK = 200
_AGAIN = {429, 503}
_DETAIL_CHARS_MAX = 500
ROUTED_BY = "turnstream-session"
"""The header that a router reads where the key of the control API stands in the usual one."""


class ControlRefused(TurnstreamError):
    """The gateway does not do what it was asked; trying again would not help."""

    def __init__(self, url: str, status: int, detail: str) -> None:
        """The status is HTTP's."""
        super().__init__(f"{url}: status {status}: {detail}")
        self.status = status
        self.detail = detail


class GatewayAway(TurnstreamError):
    """No answer in time, or none that says that it is durable; it may have been done or not."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to send."""

    url: str
    body: dict[str, Any] | None
    """None only looks."""
    session_key: str | None = None
    """Of the session it is about: a router before several gateways finds the session's by it."""

    @property
    def words(self) -> dict[str, Any]:
        """As `httpx` is told."""
        headers = {} if self.session_key is None else {ROUTED_BY: self.session_key}
        if self.body is None:
            return {"method": "GET", "url": self.url, "headers": headers}
        # What JSON does not have, numbers of numpy among it, is sent in JSON's own types.
        text = json.dumps(self.body, default=plain, ensure_ascii=False, allow_nan=False)
        headers["content-type"] = "application/json"
        return {"method": "POST", "url": self.url, "content": text, "headers": headers}


Outcome = httpx.Response | httpx.TransportError | None
Steps = Generator[Ask | float, Outcome, dict[str, Any]]


def steps_of(ask: Ask, patience_s: float) -> Steps:
    """Ask until there is an answer; it is what the steps return.

    Raises:
        ControlRefused: it was refused.
        GatewayAway: the patience is over.
    """
    began_s = time.monotonic()
    until_s = began_s + patience_s
    wait_s, most_s = _WAIT_S
    told = False
    while True:
        outcome = yield ask
        if isinstance(outcome, httpx.Response) and outcome.status_code not in _AGAIN:
            return _read(ask, outcome)
        assert outcome is not None, "an Ask is answered"
        pause_s = max(wait_s, _asked_to_wait_s(outcome))
        if time.monotonic() + pause_s > until_s:
            raise GatewayAway(f"{ask.url}: {_trouble(outcome)}; tried for {patience_s:g} s")
        if not told and time.monotonic() + pause_s - began_s > _SILENCE_S:
            told = True
            logger.warning("%s: %s; trying for %g s", ask.url, _trouble(outcome), patience_s)
        yield pause_s
        wait_s = min(2 * wait_s, most_s)


def checked_reward(reward: float | Mapping[str, Any]) -> float | dict[str, Any]:
    """The reward as it is sent.

    Raises:
        ValueError: its score is no finite number.
    """
    given = plain_reward(reward)
    score = given.get("score") if isinstance(given, dict) else given
    truth = reward.get("score") if isinstance(reward, Mapping) else reward
    try:
        is_number = isinstance(score, int | float) and math.isfinite(score)
    except OverflowError:
        is_number = False
    if not is_number or isinstance(truth, bool | np.bool_):
        raise ValueError(f"reward {reward!r}: give a finite number, or a mapping with `score`")
    return given if isinstance(given, dict) else float(given)


def _read(ask: Ask, response: httpx.Response) -> dict[str, Any]:
    try:
        told = response.json()
    except ValueError:
        told = None
    if not isinstance(told, dict):
        detail = f"no gateway's answer: {response.text[:_DETAIL_CHARS_MAX]!r}"
        raise ControlRefused(ask.url, response.status_code, detail)
    if response.status_code != _OK:
        detail = str(told.get("error", told))[:_DETAIL_CHARS_MAX]
        raise ControlRefused(ask.url, response.status_code, detail)
    return told


def _trouble(outcome: httpx.Response | httpx.TransportError) -> str:
    if isinstance(outcome, httpx.Response):
        return f"status {outcome.status_code}: {outcome.text[:_DETAIL_CHARS_MAX]}"
    return f"{type(outcome).__name__}: {outcome}"


def _asked_to_wait_s(outcome: httpx.Response | httpx.TransportError) -> float:
    if not isinstance(outcome, httpx.Response):
        return 0.0
    try:
        return max(0.0, float(outcome.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0  # a date; no gateway sends one
