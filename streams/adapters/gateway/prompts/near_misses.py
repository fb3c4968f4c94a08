"""Answers that came back and are not known: counted, and said where one nearly was.

    recorded at that place   content "Yes."
    came back                content "Yes."  reasoning_content "..."      differs: reasoning_content

Such a message is context that somebody else wrote, and the turn before it trains on another
branch. Mostly a client changed it; the names of what differs tell which one and how.

Invariant: names only are said, once a turn; what was said in a conversation goes nowhere but to the
file that a setting asks for, which never grows beyond `FILE_BYTES_MAX`.
"""

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from streams.adapters.dialects.calls import Message
from streams.adapters.gateway.history.tree import Node, RecordedTurn
from streams.adapters.gateway.metrics import Metrics
from streams.adapters.gateway.prompts.building import BuiltPrompt
from streams.settings import Settings

FILE_NAME = "near-misses.jsonl"
FILE_BYTES_MAX = 1_048_576
_TEXT_CHARS_MAX = 2_000
"""Of each side of a miss."""
_ANSWERS_MAX = 16
"""Compared at one place, the newest."""
_KEYS_MAX, _KEY_CHARS_MAX = 10, 60
_TOLD_MAX = 1_000


class UnknownAnswers:
    """What one gateway says of them."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Nothing is written before there is something to write."""
        folder = settings.gateway_near_miss_folder
        self._file = None if folder is None else Path(folder) / FILE_NAME
        self._metrics = metrics
        self._told: OrderedDict[str, None] = OrderedDict()
        """Turns that were missed nearly, the newest."""

    def look(self, session_id: str, prompt: BuiltPrompt) -> None:
        """Count those of a request, and say it if the first of them nearly was an answer."""
        for name, unknown in (("foreign", prompt.foreign), ("lost", prompt.missing)):
            if unknown:
                self._metrics.count(f"unknown_answers:{name}", len(unknown))
        # Where an answer of another place stands in the prompt, the first may be that one.
        if prompt.foreign and not prompt.lent and prompt.rest[0]["role"] == "assistant":
            self._compare(session_id, prompt.node, prompt.rest[0])

    def _compare(self, session_id: str, place: Node, came: Message) -> None:
        turns = place.answers.turns[-_ANSWERS_MAX:] if place.answers else []
        answers = [(turn, turn.node.message) for turn in turns if turn.node and turn.node.message]
        if not answers:
            return
        turn, recorded = min(answers, key=lambda answer: len(differing(came, answer[1])))
        if turn.turn_id in self._told or not _something_the_same(came, recorded):
            return
        self._told[turn.turn_id] = None
        if len(self._told) > _TOLD_MAX:
            self._told.popitem(last=False)
        self._metrics.count("near_misses")
        keys = differing(came, recorded)
        detail = f"its answer came back with other {', '.join(keys)}: taken for another message"
        self._metrics.say("near_miss", session_id, turn.turn_id, detail)
        if self._file is not None:
            self._write(self._file, session_id, turn, keys, {"recorded": recorded, "came": came})

    def _write(
        self,
        file: Path,
        session_id: str,
        turn: RecordedTurn,
        keys: list[str],
        sides: dict[str, Message],
    ) -> None:
        told: dict[str, Any] = {"session": session_id, "turn": turn.turn_id, "keys": keys}
        told |= {name: json.dumps(side)[:_TEXT_CHARS_MAX] for name, side in sides.items()}
        line = json.dumps(told).encode() + b"\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # It holds what was said: for nobody but whoever runs the gateway.
            opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(opened, "ab") as lines:
                if lines.tell() + len(line) <= FILE_BYTES_MAX:
                    lines.write(line)
        except OSError as error:
            self._metrics.say("near_miss", session_id, turn.turn_id, f"not written: {error}")


def differing(came: Message, recorded: Message) -> list[str]:
    """The names of the fields that are not the same, empty ones being none."""
    names = [name for name in {**recorded, **came} if _of(came, name) != _of(recorded, name)]
    return sorted(name[:_KEY_CHARS_MAX] for name in names)[:_KEYS_MAX]


def _something_the_same(came: Message, recorded: Message) -> bool:
    """Else somebody wrote another message on purpose, as agents do that rewrite their history."""
    ours = (name for name in recorded if name != "role" and _of(recorded, name) is not None)
    return any(_of(came, name) == _of(recorded, name) for name in ours)


def _of(message: Message, name: str) -> Any:
    value = message.get(name)
    return (value.strip() if isinstance(value, str) else value) or None
