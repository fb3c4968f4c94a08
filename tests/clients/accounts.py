"""What became of every sampled token, for each client: the table of `make test-clients`.

What was delivered is read from the recording of the wire and from nothing else:

    the end of the answer passed, and the client went on with it or was done     all of it
    the stream broke, and a later request holds calls of it                      up to the last
    no later request holds anything of it, though its thread goes on             nothing

A later request holds something of a turn if it names an id of it or, for what has no id, says its
words.

Invariant: `sampled` is the engine's own journal, `delivered` the wire's, `trained` the ledger's.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.events import Turn
from streams.adapters.engines.scripted import ScriptedEngine
from streams.adapters.gateway.access.minted import Kind
from tests.clients.scene import Seen
from tests.clients.wire import Exchange

ENDS = {"message_stop", "response.completed", "response.incomplete"}
HEAD = (
    "client",
    "sessions",
    "turns",
    "sampled tokens",
    "delivered",
    "trained",
    "untrained, why",
    "samples",
    "forks",
    "trained / delivered",
)


@dataclass
class Account:
    """Sums over sessions."""

    sessions: int = 0
    turns: int = 0
    sampled: int = 0
    delivered: int = 0
    trained: int = 0
    untrained: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    forks: int = 0

    def add(self, other: "Account") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self, client: str) -> list[str]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.untrained.items()))
        counts = [self.sessions, self.turns, self.sampled, self.delivered, self.trained]
        share = f"{100 * self.trained / self.delivered:.4g} %" if self.delivered else "-"
        return [
            client,
            *(f"{count:,}" for count in counts),
            reasons or "0",
            f"{self.samples:,}",
            f"{self.forks:,}",
            share,
        ]


def account(seen: Seen, engine: ScriptedEngine) -> Account:
    """Of one session."""
    closed = seen.outcome.closed
    return Account(
        sessions=1,
        turns=len(set(seen.wholes().values())),
        sampled=sum(len(entry.ids) for entry in engine.journal.of(closed.session_id)),
        delivered=sum(delivered(seen).values()),
        trained=sum(row.trained for row in closed.ledger),
        untrained=untrained(seen),
        samples=len(seen.outcome.samples),
        forks=sum(row.attach == "fork" for row in closed.ledger),
    )


def untrained(seen: Seen) -> Counter[str]:
    """Why sampled tokens do not train."""
    found: Counter[str] = Counter()
    for row in seen.outcome.closed.ledger:
        found.update({str(reason): count for reason, count in row.untrained.items()})
    return found


def delivered(seen: Seen) -> dict[str, int]:
    """How many tokens of each turn reached the client and were not dropped by it."""
    found: dict[str, int] = {}
    exchanges = seen.wire.calls
    for place, exchange in enumerate(exchanges):
        turn_id = seen.turn_of(exchange)
        turn = seen.outcome.turns.get(turn_id or "")
        if turn_id is None or turn is None:
            continue  # nothing was sampled
        later = exchanges[place + 1 :]
        back = any(turn_id in seen.named_in(one) or _said_in(exchange, one) for one in later)
        goes_on = any(thread(one) == thread(exchange) for one in later)
        if exchange.ended and _last_event(exchange) in ENDS:
            found[turn_id] = len(turn.output_ids) if back or not goes_on else 0
        else:
            found[turn_id] = _kept(seen, turn, later) if back else 0
    return found


def thread(exchange: Exchange) -> tuple[str, ...]:
    """Which of a session's conversations a request belongs to, as its client says."""
    headers = {name.lower(): value for name, value in exchange.headers.items()}
    about = msgspec.json.decode(headers.get("x-codex-turn-metadata", "{}"))
    kind = headers.get("x-claude-code-request-class") or about.get("request_kind") or ""
    agent = headers.get("x-claude-code-agent-id") or headers.get("thread-id") or ""
    # Each compaction is a conversation of its own: its summary goes on as a user's words.
    return (agent, f"{kind} {exchange.number}") if kind == "compaction" else (agent,)


def table(rows: Iterable[list[str]]) -> str:
    """As the README shows it."""
    lines = [list(HEAD), ["---", *["---:"] * (len(HEAD) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _said_in(exchange: Exchange, later: Exchange) -> bool:
    """Whether an assistant message of the later request is the answer's words, whole."""
    request = later.request
    messages = request.get("messages") or request.get("input") or ()
    return bool(exchange.text.strip()) and any(
        message.get("role") == "assistant" and _words(message["content"]) == exchange.text
        for message in messages
    )


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content)


def _kept(seen: Seen, turn: Turn, later: list[Exchange]) -> int:
    """The tokens up to the end of the last call that came back, or of the turn if that is it."""
    ids = [minted for one in later for minted in seen.minter.find(one.body.decode())]
    calls = [m.index for m in ids if m.turn_id == turn.turn_id and m.kind == Kind.TOOL_CALL]
    output = turn.output_ids.tolist()
    ends = [place for place, token in enumerate(output, 1) if token == seen.call_end]
    kept = ends[max(calls)] if calls else 0
    return len(output) if output[kept:] == [seen.turn_end] else kept


def _last_event(exchange: Exchange) -> str:
    events = exchange.events
    return str(events[-1].get("type")) if events else ""
