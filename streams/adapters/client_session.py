"""What is asked of a gateway for one open session, as steps for code that blocks or awaits.

Invariant: a reward carries an id of its own, so that a repeated request is the same reward; an end
is said once, and in the same words however often it is sent.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from schemas.events import EndStatus
from streams.adapters.client_steps import Ask, ControlRefused, Steps, checked_reward, steps_of
from streams.adapters.client_weights import ControlCalls
from streams.adapters.judgers.asking import case_for, end_of
from streams.adapters.judgers.judging import Case, Verdict
from streams.adapters.time_limit import WALL_MS, reason_of
from streams.adapters.what_to_set import for_sdks
from streams.core.content import message_from

LEAVING_S = 10.0
"""Patience for the end of a session whose block failed: somebody waits for that failure."""
REASON_CHARS_MAX = 1000
_CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
_STATUSES = get_args(EndStatus)
_CONFLICT = 409

Reward = float | Mapping[str, Any]


class KnownSession:
    """An open session; whoever blocks or awaits takes its steps."""

    def __init__(
        self, gateway: ControlCalls, opened: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> None:
        """What the gateway told of it, and what it was asked for."""
        self._gateway = gateway
        self.session_id: str = opened["session_id"]
        self.key: str = opened["key"]
        """Opens this session's model calls and nothing else."""
        self.base_url: str = opened["base_url"]
        """For an OpenAI client, with the key."""
        self.base_url_with_key: str = opened["base_url_with_key"]
        """For an agent that cannot be given a key."""
        self.metadata: Mapping[str, Any] = fields.get("metadata") or {}
        """What it was opened with; judgers find the ground truth in it."""
        self.ended = False
        """Whether `end` was called."""
        self._limit_ms: int | None = (fields.get("budgets") or {}).get(WALL_MS)
        self._opened_s = time.monotonic()

    @property
    def env(self) -> dict[str, str]:
        """The variables that an agent needs."""
        return for_sdks(self.base_url.removesuffix("/v1"), self.key)

    @property
    def timed_out(self) -> bool:
        """Whether it has taken longer than its limit; its calls are refused then."""
        used_ms = (time.monotonic() - self._opened_s) * 1000
        return self._limit_ms is not None and used_ms > self._limit_ms

    def _ask(self, what: str, body: Mapping[str, Any] | None = None) -> Ask:
        return self._gateway.ask(f"/control/sessions/{self.session_id}{what}", body, self.key)

    def _looking(self) -> Steps:
        ask = self._ask("")
        return steps_of(ask, self._gateway.patience_s)

    def _rewarding(
        self,
        score: Reward,
        turn_id: str | None,
        final: bool,
        reward_id: str | None = None,
        **judged: Any,
    ) -> Steps:
        body = {
            # Ours, so that a repeated request is the same reward.
            "reward_id": reward_id or uuid.uuid4().hex,
            "reward": checked_reward(score),
            "final": final,
            **judged,
        }
        if turn_id is not None:
            body["turn_id"] = turn_id
        ask = self._ask("/rewards", body)
        return steps_of(ask, self._gateway.patience_s)

    def _ending(
        self, status: str, fields: Mapping[str, Any], patience_s: float | None = None
    ) -> Steps:
        if status not in _STATUSES:
            raise ValueError(f"{status!r}: a session ends as one of {', '.join(_STATUSES)}")
        body = {name: value for name, value in fields.items() if value is not None}
        if "reward" in body:
            body["reward"] = checked_reward(body["reward"])
        if "final_message" in body:
            body["final_message"] = message_from(body["final_message"])
        body["end_status"] = status
        ask = self._ask("/end", body)
        return steps_of(ask, patience_s or self._gateway.patience_s)

    def _case(self, messages: Sequence[Any], tools: Sequence[Any], known: dict[str, Any]) -> Case:
        turns = known.get("calls", 0)
        return case_for(self.session_id, messages, tools, turns=turns, metadata=self.metadata)

    def _judged(self, verdict: Verdict) -> Steps:
        if verdict.reward is not None:
            took_ms = verdict.judged_ms
            return self._rewarding(verdict.reward, None, True, origin="judged", judged_ms=took_ms)
        return self._ending(*end_of(verdict))

    def _leaving(self, error: BaseException | None) -> Steps | None:
        """How the session ends by the end of its block; None if it has ended before."""
        if self.ended:
            return None
        if self._limit_ms is not None and self.timed_out:
            return self._ending("timeout", {"reason": reason_of(self._limit_ms)})
        if error is None:
            return self._ending("completed", {})
        reason = {
            "stage": "agent",
            "type": type(error).__name__,
            "message": str(error)[:REASON_CHARS_MAX],
        }
        status = "cancelled" if isinstance(error, _CANCELLED) else "error"
        patience_s = min(LEAVING_S, self._gateway.patience_s)
        return self._ending(status, {"reason": reason}, patience_s)

    def _not_ended(self, failure: Exception, error: BaseException | None) -> None:
        """Say it where the caller looks: by itself, or on what the block raised."""
        conflict = isinstance(failure, ControlRefused) and failure.status == _CONFLICT
        if conflict and self._limit_ms is not None:
            return  # its time was up a moment ago: the gateway has ended it
        if error is None:
            raise failure
        error.add_note(f"and its session could not be ended: {failure}")
