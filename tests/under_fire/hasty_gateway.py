"""A gateway built wrong on purpose: a client sees the end of a turn before the log has it.

    python -m tests.under_fire.hasty_gateway gateway ...      otherwise as `turnstream gateway`

Killed in between, it loses what a client has seen; the harness has to say so.
"""

import asyncio
from typing import Any

from streams.adapters.gateway.publishing import Done, Publisher
from streams.adapters.gateway.sessions.session import Session
from streams.cli.main import main
from streams.log.interface import Position

HASTE_S = 4.0
RECORDED_S = 0.05
"""Until the turn is in the gateway's own history, from which the next one goes on."""
_later: set[asyncio.Task[Any]] = set()
_publish, _turn = Publisher._publish, Publisher.turn


async def _publish_later(self: Publisher, session_id: str, value: bytes, turn_id: Any) -> Any:
    if turn_id is not None:
        await asyncio.sleep(HASTE_S)
    return await _publish(self, session_id, value, turn_id)


async def _answer_first(self: Publisher, session: Session, done: Done) -> Position:
    task = asyncio.create_task(_turn(self, session, done))
    _later.add(task)
    task.add_done_callback(_later.discard)
    await asyncio.sleep(RECORDED_S)
    return Position("", 0, 0)  # nobody has it yet


Publisher._publish = _publish_later  # type: ignore[method-assign]
Publisher.turn = _answer_first  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
