"""What the scripted engine sampled, in its own words, for tests to hold against the log.

Invariant: an entry says what left the engine, token by token, also when the caller went away.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from schemas.record import Ids
from streams.adapters.engines.interface import Experts, Finish, Generation, Tokens

Outcome = Literal["running", "finished", "failed", "closed"]
"""closed: the caller went away before the end."""


@dataclass(slots=True, kw_only=True)
class Sampled:
    """One generation."""

    call: int
    """Its number among all calls, from 0."""
    request_id: str
    routing_key: str
    input_ids: Ids
    rule: str = ""
    """Which answer of the script it got; `rest`: it went on from one that was stopped."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[tuple[int, int]] = field(default_factory=list)
    """Runs `[version, tokens]`."""
    weight_label: str | None = None
    finish: Finish | None = None
    stop_reason: str | None = None
    outcome: Outcome = "running"
    error: str | None = None
    taken: int = 0
    """How many tokens the caller was handed."""
    experts: Experts | None = None
    """Of all its tokens, if the caller was told."""

    def add(self, tokens: Tokens, version: int | None) -> None:
        """Tokens on their way to the caller, of weights that it may not be told."""
        self.ids += tokens.ids
        self.logprobs += tokens.logprobs
        self.taken += len(tokens.ids)
        self.finish, self.stop_reason = tokens.finish, tokens.stop_reason
        self.experts = tokens.routed_experts
        if version is None or not tokens.ids:
            return
        if self.weight_versions and self.weight_versions[-1][0] == version:
            _, count = self.weight_versions.pop()
            self.weight_versions.append((version, count + len(tokens.ids)))
        else:
            self.weight_versions.append((version, len(tokens.ids)))

    def as_line(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"input_ids": self.input_ids.tolist()}


class Journal:
    """All generations, in memory and, if asked for, as JSON lines in a file."""

    def __init__(self, path: Path | None, keep: int | None) -> None:
        """Keep the newest so many in memory; None: all."""
        self._entries: deque[Sampled] = deque(maxlen=keep)
        self._path = path
        self._calls = 0
        if path:
            path.touch()

    def begin(self, generation: Generation) -> Sampled:
        entry = Sampled(
            call=self._calls,
            request_id=generation.request_id,
            routing_key=generation.routing_key,
            input_ids=generation.input_ids,
        )
        self._calls += 1
        self._entries.append(entry)
        return entry

    def end(self, entry: Sampled) -> None:
        """It is over; without an end or a failure it was the caller who went."""
        entry.outcome = "closed" if entry.outcome == "running" else entry.outcome
        if self._path:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(entry.as_line()) + b"\n")

    def __iter__(self) -> Iterator[Sampled]:
        """In the order of the calls."""
        return iter(list(self._entries))

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._entries)

    def of(self, routing_key: str) -> list[Sampled]:
        """Those of one session."""
        return [entry for entry in self if entry.routing_key == routing_key]
