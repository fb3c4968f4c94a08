"""Whether a new session may begin: not while the trainer is too far behind with the samples.

    open ──► how far is the group of its run behind? ──► at most the limit, or not known: admitted
             asked when the last answer is a second old      above it: refused, to be tried again

Sessions that are open go on, and so do those of split eval: nothing of them waits for a trainer,
and a trainer may wait for them. Each run has a group of its own where the setting says so.

Invariant: no call of a session asks here; whatever the log does, an opening waits for its answer
no longer than `WAIT_S`, and is refused only if the log said that the group is too far behind.
"""

import asyncio
import time
from dataclasses import dataclass

from schemas.events import SessionOpened
from streams.adapters.gateway.metrics import Metrics
from streams.errors import TurnstreamError
from streams.log.interface import Log
from streams.settings import PREFIX, Settings

ASK_AGAIN_S = 1.0
WAIT_S = 2.0
RETRY_AFTER_S = 5
"""Told to whoever is refused: a trainer catches up in steps, not in milliseconds."""
GROUPS_MAX = 64
"""Each is a connection to the broker; the groups of further runs are not asked for."""
UNUSED_S = 60.0
"""Since a session was last opened for a group: then it makes room for another."""


class TrainerBehind(TurnstreamError):
    """A new session that has to wait; the text says for what."""


@dataclass(slots=True)
class Look:
    """What is known of one group, and since when."""

    asking: "asyncio.Task[None] | None" = None
    began_s: float = -ASK_AGAIN_S
    lag: int | None = None
    """Records behind; None: the log cannot say."""
    trouble: str | None = "not asked yet"
    """Why it cannot."""


class Admission:
    """Lets new sessions in, run by run."""

    def __init__(self, settings: Settings, log: Log, metrics: Metrics) -> None:
        """Nothing is asked before the first session; never, if no limit is set."""
        self._limit = settings.admission_lag_max
        self._group_of = settings.trainer_group_of
        self._topic = settings.samples_topic
        self._log = log
        self._metrics = metrics
        self._looks: dict[str, Look] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.invited: set[str] = set()
        """Sessions that are let in whatever the trainer does."""

    async def check(self, opened: SessionOpened) -> None:
        """Return if the session may begin.

        Raises:
            TrainerBehind: it has to wait.
        """
        if self._limit is None or opened.split == "eval" or opened.session_id in self.invited:
            return
        group = self._group_of(opened.run_id)
        look = await self._looked(group)
        if look is None or look.lag is None:
            self._metrics.count("admitted_lag_unknown")
        elif look.lag > self._limit:
            self._metrics.count("sessions_refused")
            self._metrics.count_run(opened.run_id, "sessions_refused")
            raise TrainerBehind(
                f"the trainer's group {group} is {look.lag} records behind on {self._topic}, "
                f"the limit is {PREFIX}ADMISSION_LAG_MAX={self._limit}: try again when it has "
                "caught up; sessions that are open go on"
            )

    @property
    def told(self) -> dict[str, object] | None:
        """For health checks: how far each group was behind, or why that is not known."""
        if self._limit is None:
            return None
        groups = {
            group: {"lag": look.lag} if look.lag is not None else {"unknown": look.trouble}
            for group, look in self._looks.items()
        }
        return {"lag_max": self._limit, "groups": groups}

    @property
    def gauges(self) -> dict[str, float]:
        """For metrics: the lag by group, and the groups whose lag is not known."""
        found: dict[str, float] = {}
        for group, look in self._looks.items():
            found[f"admission_unknown:{group}"] = float(look.lag is None)
            if look.lag is not None:
                found[f"admission_lag:{group}"] = float(look.lag)
        return found

    async def close(self) -> None:
        """Ask no further."""
        asking = [look.asking for look in self._looks.values() if look.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, *self._leaving, return_exceptions=True)

    async def _looked(self, group: str) -> Look | None:
        """What is known of the group, asked for anew if that is old; None: it is not asked for."""
        look = self._looks.get(group)
        if look is None:
            if len(self._looks) >= GROUPS_MAX and not self._made_room():
                return None
            look = self._looks[group] = Look()
        now_s = time.monotonic()
        if look.asking is None and now_s - look.began_s >= ASK_AGAIN_S:
            look.began_s = now_s
            look.asking = asyncio.create_task(self._ask(group, look))
        if look.asking is not None:
            # Of those who come while a log does not answer, only the first has to wait.
            left_s = look.began_s + WAIT_S - now_s
            done, _ = await asyncio.wait({look.asking}, timeout=max(0.0, left_s))
            if not done:
                look.lag, look.trouble = None, f"the log did not answer in {WAIT_S:g} s"
        return look

    def _made_room(self) -> bool:
        """Whether a group was let go that nobody has asked for lately."""
        group, look = min(self._looks.items(), key=lambda item: item[1].began_s)
        if look.asking is not None or time.monotonic() - look.began_s < UNUSED_S:
            return False
        del self._looks[group]
        leaving = asyncio.create_task(self._log.let_go(group))  # an opening does not wait for it
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return True

    async def _ask(self, group: str, look: Look) -> None:
        try:
            if await self._log.committed(group, self._topic):
                behind = sum((await self._log.lag(group, self._topic)).values())
                look.lag, look.trouble = behind, None
            else:
                look.lag, look.trouble = None, "no such group: it never committed"
        except TurnstreamError as error:
            look.lag, look.trouble = None, str(error)
            self._metrics.say("admission", None, None, f"group {group}: {error}")
        finally:
            look.asking = None
