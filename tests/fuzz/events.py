"""Events as a careless or hostile producer sends them, among those of sessions that do well.

Sessions live and end, so that what is open stays bounded however long it goes on. Of all events
about a fifth are wrong in some way: other bytes, other fields, another key or partition.

Invariant: the same seed gives the same events.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack

from schemas import codec
from streams.log.keys import event_key
from streams.log.partitioner import partition_of

SIDE_BY_SIDE = 40
_TURNS_MAX = 12
_LARGE_BYTES = 300_000
_STATUSES = ("completed", "completed", "truncated", "timeout", "error", "rejected", "cancelled")
_NAMES = ("s", "\x1f" * 40, "😀" * 40, "x" * 190)
_VALUES: tuple[Any, ...] = (
    None, True, -1, 2**62, 1e308, float("nan"), "", "\x00", "x" * 3000, b"\xff" * 7,
    [], [[]] * 50, {}, {"a": {"b": []}},
)  # fmt: skip

Json = dict[str, Any]


class Fuzzed(NamedTuple):
    """One entry for the turns topic."""

    key: bytes | None
    value: bytes | None
    partition: int


class Events:
    """An endless supply of them."""

    def __init__(self, seed: int, partitions: int) -> None:
        """Nothing was sent yet."""
        self._choices = random.Random(seed)
        self._partitions = partitions
        self._turns: dict[str, int] = {}
        """Sessions that live, with how many turns they had."""
        self._ended: list[str] = []
        self._begun = 0
        self.ends: dict[int, int] = dict.fromkeys(range(partitions), 0)
        """About where each partition ends, for floors."""

    def __iter__(self) -> Iterator[Fuzzed]:
        """One after the other."""
        while True:
            fuzzed = self._next()
            self.ends[fuzzed.partition] += 1
            yield fuzzed

    def _next(self) -> Fuzzed:
        choices = self._choices
        if choices.random() < 0.01:
            return self._purge()
        session_id = self._session()
        event = self._event(session_id)
        value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
        key: bytes | None = event_key(session_id)
        home = partition = partition_of(event_key(session_id), self._partitions)
        wrong = choices.random()
        if wrong < 0.02:
            partition = choices.randrange(self._partitions)
        elif wrong < 0.03:
            key = choices.choice((None, b"", b"\xff\xfe", b"another", b"k" * 5000))
            partition = choices.choice((home, choices.randrange(self._partitions)))
        elif wrong < 0.16:
            return Fuzzed(key, self._spoiled(value), home)
        return Fuzzed(key, value, partition)

    def _session(self) -> str:
        """Mostly one that lives; at times one that has ended, or a new one."""
        choices = self._choices
        if self._ended and choices.random() < 0.05:
            return choices.choice(self._ended)
        if len(self._turns) < SIDE_BY_SIDE:
            self._begun += 1
            session_id = f"s{self._begun}"
            self._turns[session_id] = 0
            return session_id
        return choices.choice(list(self._turns))

    def _event(self, session_id: str) -> Json:
        choices, known = self._choices, self._turns.get(session_id, 0)
        makers: dict[str, Callable[[], Json]] = {
            "turn": lambda: self._turn(session_id, known),
            "again": lambda: self._turn(session_id, choices.randrange(known + 1)),
            "orphan": lambda: self._turn(session_id, known) | {"base_turn_id": "nobody"},
            "reward": lambda: self._reward(known),
            "session_ended": self._ending,
            "session_expired": lambda: {"last_offset": choices.randrange(1000), "cause": "idle"},
            "session_opened": lambda: {"group_id": f"g{choices.randrange(9)}"},
            "turn_undelivered": lambda: {"turn_id": f"t{choices.randrange(known + 1)}"},
        }
        weights = (50, 4, 3, 15, 8 if known < _TURNS_MAX else 60, 2, 3, 3)
        kind = choices.choices(list(makers), weights)[0]
        if kind == "turn" and session_id in self._turns:
            self._turns[session_id] = known + 1
        if kind == "session_ended" and self._turns.pop(session_id, None) is not None:
            self._ended = [*self._ended[-200:], session_id]
        name = "turn" if kind in {"again", "orphan"} else kind
        return {"type": name, "session_id": session_id} | makers[kind]()

    def _turn(self, session_id: str, number: int) -> Json:
        """Each turn continues the one before; at times on a branch of its own."""
        choices = self._choices
        ids = [1, *(100 + k for k in range(number))]
        text = "x" * (_LARGE_BYTES if choices.random() < 0.002 else 50)
        output = [100 + number, *range(choices.randrange(20))]
        messages = [{"role": "user", "content": f"{session_id} {number % 3}"}]
        return {
            "turn_id": f"{choices.choice(_NAMES) if choices.random() < 0.02 else 't'}{number}",
            "prompt_messages": messages,
            "prompt_ids": ids,
            "output_ids": output,
            "logprobs": [-0.5] * len(output),
            "response_message": {"role": "assistant", "content": text},
        }

    def _reward(self, known: int) -> Json:
        choices = self._choices
        event: Json = {"reward": choices.random(), "final": choices.random() < 0.5}
        event |= {"reward_id": f"{choices.choice(_NAMES)}{choices.randrange(4)}"}
        return event | ({"turn_id": f"t{choices.randrange(known + 1)}"} if known % 3 == 0 else {})

    def _ending(self) -> Json:
        choices = self._choices
        return {
            "end_status": choices.choice(_STATUSES),
            "reward": choices.choice((None, 1.0, 0.5)),
            "reward_pending": choices.choice((False, False, True)),
        }

    def _spoiled(self, value: bytes) -> bytes | None:
        """The bytes of an event, broken in one of several ways."""
        choices = self._choices
        ways: tuple[Callable[[bytes], bytes | None], ...] = (
            lambda whole: whole[: choices.randrange(len(whole))],
            self._with_other_bytes,
            lambda _: choices.randbytes(choices.randrange(200)),
            lambda _: b"\x91" * choices.randrange(1, 20_000),
            lambda _: None,
            self._with_another_field,
            self._with_another_field,
        )
        return choices.choice(ways)(value)

    def _with_other_bytes(self, value: bytes) -> bytes:
        broken = bytearray(value)
        for _ in range(self._choices.randrange(1, 4)):
            broken[self._choices.randrange(len(broken))] = self._choices.randrange(256)
        return bytes(broken)

    def _with_another_field(self, value: bytes) -> bytes:
        choices, fields = self._choices, msgpack.unpackb(value)
        name = choices.choice(list(fields))
        if "logprobs" in fields and choices.random() < 0.2:
            fields["logprobs"] += bytes(4)
        elif choices.random() < 0.5:
            fields[name] = choices.choice(_VALUES)
        else:
            del fields[name]
        return bytes(msgpack.packb(fields))

    def _purge(self) -> Fuzzed:
        choices = self._choices
        partition = choices.randrange(self._partitions)
        floor = max(0, self.ends[partition] - choices.choice((-1000, 0, 10, 100, 1000, 10_000)))
        event = {"type": "purge", "floor": floor}
        value = codec.to_msgpack(codec.from_json(json.dumps(event).encode()))
        return Fuzzed(None, value, partition)
