"""What must follow from any order of a session's events, told without the core.

A second telling of the contract, small enough to be read beside it: a session is a handful of
plain values, an event is one letter, a consequence is one tuple. It knows no tokens and no tree;
it says when a session closes, as what, with which reward, and what happens afterwards.

    T  turn t1                          R  final reward, id b
    D  turn t1 again (a duplicate)      q  the same reward again, id b
    L  turn t2 (late, behind an end)    Q  another final reward, id c (late, behind a close)
    E  end with a reward                r  a reward that is not final, id a
    P  end with its reward pending      X  expiry that names an old offset
                                        N  expiry that names the newest offset

A letter names its event, not its role: D before T is the turn, and T then the duplicate.

Invariant: imports nothing of the project.
"""

from dataclasses import dataclass, field

LETTERS = "TDLEPRqQrXN"
TURNS = {"T": "t1", "D": "t1", "L": "t2"}
REWARDS = {"r": ("a", 0.25), "R": ("b", 0.5), "q": ("b", 0.5), "Q": ("c", 0.75)}
END_REWARD = 1.0
GENERATED = {"t1": 3, "t2": 5}

Fact = tuple[object, ...]


@dataclass
class Model:
    """One session; each method returns what follows."""

    turns: list[str] = field(default_factory=list)
    """In order of arrival."""
    seen: set[str] = field(default_factory=set)
    """Ids of rewards."""
    value: float | None = None
    started: bool = False
    sealed: bool = False
    closed: bool = False
    newest: int = 0
    """Position of the newest row; what only asks, or asks too late, leaves none."""
    samples: list[str] = field(default_factory=list)
    """Each by the id of its last turn."""
    duplicates: int = 0
    ignored: int = 0
    refused: int = 0

    def step(self, letter: str, position: int, last_offset: int | None = None) -> list[Fact]:
        if self.closed:
            return self._late(letter, position)
        if not self.started:
            if letter not in "TDLEP":
                return [("refused", "unknown_session")]
            self.started = True
        if letter in TURNS:
            return self._turn(TURNS[letter], position)
        if letter in REWARDS:
            return self._reward(letter, position)
        if letter in "EP":
            return self._end(letter, position)
        return self._expiry(last_offset)

    def finish(self) -> list[Fact]:
        """The end of the file."""
        if not self.started or self.closed:
            return []
        return self._close("completed", implied=not self.sealed)

    def _expiry(self, last_offset: int | None) -> list[Fact]:
        if last_offset != self.newest:
            return [("ignored",)]
        return self._close("completed" if self.sealed else "expired")

    def _turn(self, turn_id: str, position: int) -> list[Fact]:
        self.newest = position
        if turn_id in self.turns:
            self.duplicates += 1
            return [("ignored",)]
        if self.sealed:
            self.refused += 1
            return [("refused", "late_turn")]
        self.turns.append(turn_id)
        return []

    def _reward(self, letter: str, position: int) -> list[Fact]:
        reward_id, value = REWARDS[letter]
        self.newest = position
        if reward_id in self.seen:
            self.duplicates += 1
            return [("ignored",)]
        self.seen.add(reward_id)
        self.value = value
        if self.sealed and letter != "r":
            return self._close("completed")
        return []

    def _end(self, letter: str, position: int) -> list[Fact]:
        self.newest = position
        if self.sealed:
            self.ignored += 1
            return [("ignored",)]
        self.sealed = True
        if letter == "P":
            return []
        self.seen.add("end")
        self.value = END_REWARD
        return self._close("completed")

    def _close(self, status: str, *, implied: bool = False) -> list[Fact]:
        self.closed = True
        withheld = None
        if status == "expired":
            withheld = "status"
        elif self.value is None:
            withheld = "no_reward"
        if withheld is None and self.turns:
            # t2 extends t1, if t1 was there; else each is a branch, in order of arrival.
            self.samples = ["t2"] if self.turns == ["t1", "t2"] else list(self.turns)
        ledger = tuple((turn_id, GENERATED[turn_id], withheld) for turn_id in self.turns)
        counts = (self.duplicates, self.ignored, self.refused)
        outcome = ("closed", status, withheld, implied, self.value, ledger, counts)
        share = self.value / len(self.samples) if self.samples and self.value is not None else None
        return [*(("sample", last, share, self.value) for last in self.samples), outcome]

    def _late(self, letter: str, position: int) -> list[Fact]:
        if letter in TURNS:
            known = TURNS[letter] in self.turns
            return [("ignored",) if known else ("refused", "late_turn")]
        if letter not in REWARDS:
            return [("ignored",)]
        reward_id, value = REWARDS[letter]
        if reward_id in self.seen:
            return [("ignored",)]
        if not self.samples:
            return [("refused", "late_reward")]
        self.seen.add(reward_id)
        self.value = value
        share = value / len(self.samples)
        return [("revised", last, share, value, position) for last in self.samples]
