"""What a worked case is: events, and the text that must come out of them in each profile.

A golden text holds for both profiles unless it says otherwise, in one of two ways:

    «S»<u>{[ok}]  reward 1/2 | 1          the reward under seed | under slime
    ByProfile(seed="...", slime="...")    the texts differ

Besides the golden text every case is held to what is true of any session: see `unsound`.

Invariant: golden texts are worked out by hand from the rules; nothing here computes one.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc
from typing import NamedTuple, Protocol

from schemas.codec import from_json
from schemas.events import Event
from tests.core.notation import (
    Json,
    drawn,
    drawn_dead_letters,
    drawn_ledger,
    drawn_logprobs,
    drawn_samples,
    drawn_trees,
)
from tests.harness import linearized

PROFILES = ("seed", "slime")
TWO_REWARDS = re.compile(r"reward (\S+) \| (\S+)$", re.MULTILINE)


class ByProfile(NamedTuple):
    seed: str
    slime: str


Golden = str | ByProfile


@dataclass(frozen=True, kw_only=True)
class Case:
    events: list[Json]
    samples: Golden
    """One line a sample, `tokens with [trained] runs  reward r`; empty = no sample at all."""
    logprobs: str | None = None
    tree: Golden | None = None
    ledger: Golden | None = None
    dead_letters: str = ""
    """One line a refused event: `t2 length_mismatch`."""
    threshold: int | None = None
    """None = the default of the profile, 1024."""
    profiles: tuple[str, ...] = PROFILES
    draw: Callable[[Json], str] = drawn

    def expected(self, profile: str) -> str:
        parts = {
            "samples": self.samples,
            "logprobs": self.logprobs,
            "tree": self.tree,
            "ledger": self.ledger,
            "dead letters": self.dead_letters,
        }
        return as_text(
            {part: column(text, profile) for part, text in parts.items() if text is not None}
        )

    def actual(self, profile: str) -> str:
        """The same parts as `expected`, from a run; and what is unsound, if anything is."""
        run = linearized(self.events, profile=profile, fork_threshold=self.threshold)
        parts = {"samples": drawn_samples(run.samples, self.draw)}
        if self.logprobs is not None:
            parts["logprobs"] = drawn_logprobs(run.samples)
        if self.tree is not None:
            parts["tree"] = drawn_trees(run.trees)
        if self.ledger is not None:
            parts["ledger"] = "\n".join(map(drawn_ledger, run.closed))
        parts["dead letters"] = drawn_dead_letters(run.dead_letters)
        problems = unsound(run)
        return as_text(parts | ({"unsound": "\n".join(problems)} if problems else {}))


class Run(Protocol):
    """What a run of the core gives, each record in its JSON-lines form."""

    @property
    def samples(self) -> list[Json]: ...
    @property
    def closed(self) -> list[Json]: ...


def column(golden: Golden, profile: str) -> str:
    text = golden if isinstance(golden, str) else getattr(golden, profile)
    return TWO_REWARDS.sub(rf"reward \{1 + PROFILES.index(profile)}", cleandoc(text))


def as_text(parts: dict[str, str]) -> str:
    return "\n".join(f"{part}:\n{text}".rstrip() for part, text in parts.items())


def decoded(event: Json) -> Event:
    """The event as a reader gets it: through its JSON line, so nothing of the dict is shared."""
    record = from_json(json.dumps(event).encode())
    assert isinstance(record, Event), f"{event['type']} is no event"
    return record


def by_case_and_profile(cases: dict[str, Case]) -> dict[str, tuple[Case, str]]:
    return {
        f"{name} [{profile}]": (case, profile)
        for name, case in cases.items()
        for profile in case.profiles
    }


def unsound(run: Run) -> list[str]:
    """What must hold for every session whatever the rules, and does not."""
    problems = [f"sample {at}: {it}" for at, s in enumerate(run.samples) for it in flaws(s)]
    for closed in run.closed:
        name = closed["session_id"]
        own = [sample for sample in run.samples if sample["session_id"] == name]
        rows = closed.get("ledger", [])
        if [sample["index"] for sample in own] != list(range(len(own))):
            problems.append(f"{name}: samples are not in the order of their index")
        if any(sample["count"] != len(own) for sample in own):
            problems.append(f"{name}: count is not the number of samples")
        if closed.get("sample_ids", []) != [sample["sample_id"] for sample in own]:
            problems.append(f"{name}: the outcome does not list its samples")
        if sum(map(trained, own)) != sum(row["trained"] for row in rows):
            problems.append(f"{name}: the ledger's trained tokens are not the samples'")
        if any(r["generated"] != r["trained"] + sum(r.get("untrained", {}).values()) for r in rows):
            problems.append(f"{name}: a ledger row does not add up")
    if len({closed["session_id"] for closed in run.closed}) != len(run.closed):
        problems.append("a session is closed twice")
    return problems


def trained(sample: Json) -> int:
    return sum(end - start for start, end in sample["loss_mask"])


def flaws(sample: Json) -> list[str]:
    """Lengths agree, something trains, runs are sorted, maximal and inside the tokens."""
    runs, length = sample["loss_mask"], len(sample["tokens"])
    if not runs:
        return ["nothing trains"]
    found = []
    edges = [edge for run in runs for edge in run]
    if edges != sorted(set(edges)) or edges[0] < 0 or edges[-1] > length:
        found.append(f"runs {runs} over {length} tokens")
    if sample["prompt_len"] != edges[0]:
        found.append(f"prompt_len {sample['prompt_len']}, first trained token {edges[0]}")
    if len(sample["logprobs"]) != length:
        found.append(f"{len(sample['logprobs'])} logprobs, {length} tokens")
    inside = {at for start, end in runs for at in range(start, end)}
    if any(logprob for at, logprob in enumerate(sample["logprobs"]) if at not in inside):
        found.append("a logprob on a token that does not train")
    return found
