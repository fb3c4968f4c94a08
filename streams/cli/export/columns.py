"""The columns of a Parquet export, by the names of the contract.

Per-token data stands in lists of equal length; the loss mask is spelled out. What is open-ended
in the contract (metadata, payloads, sampling) is JSON text. A missing value is null.

Invariant: a column means what the field of the same name means in the contract.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.record import IDENTITY_FIELDS
from schemas.samples import LedgerRow, Sample, SessionClosed, TurnSpan

_TEXT_IDENTITY = {"run_id", "task_id", "group_id", "split"}


class Row(NamedTuple):
    """What a row is made from."""

    outcome: SessionClosed
    sample: Sample | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type and what stands in it."""

    name: str
    kind: Any
    """A type of pyarrow."""
    value: Callable[[Any], object]
    """From a row."""
    flat: bool = False
    """Values are arrays, one element a token."""


class Kinds:
    """The types of pyarrow that occur, by what they are for."""

    def __init__(self, pa: Any) -> None:
        """`pa` is the module, which is loaded only when it is needed."""
        self.text, self.whole, self.number, self.flag = (
            pa.string(),
            pa.int64(),
            pa.float64(),
            pa.bool_(),
        )
        self.names = pa.list_(self.text)
        self.ids_T = pa.list_(pa.int32())
        self.flags_T = pa.list_(self.flag)
        self.floats_T = pa.list_(pa.float32())
        bounds = [("start", self.whole), ("end", self.whole)]
        self.runs = pa.list_(pa.struct(bounds))
        self.versions = pa.list_(pa.struct([("version", self.whole), *bounds]))
        told = [("attach", self.text), ("sampling", self.text)]
        self.turns = pa.list_(pa.struct([("turn_id", self.text), *bounds, *told]))
        self.channels = pa.list_(
            pa.struct(
                [
                    ("name", self.text),
                    ("dtype", self.text),
                    ("shape", pa.list_(self.whole)),
                    ("data", pa.binary()),
                    ("blob", self.text),
                ]
            )
        )
        self.ledger = pa.list_(
            pa.struct(
                [
                    ("turn_id", self.text),
                    ("attach", self.text),
                    ("generated", self.whole),
                    ("trained", self.whole),
                    ("untrained", pa.map_(self.text, self.whole)),
                ]
            )
        )


def sample_columns(pa: Any) -> list[Column]:
    """One row a sample, with its session's metadata."""
    kinds = Kinds(pa)

    def of(kind: Any, *names: str) -> list[Column]:
        return [Column(name, kind, attrgetter(f"sample.{name}")) for name in names]

    def made(name: str, kind: Any, make: Callable[[Any], object]) -> Column:
        return Column(name, kind, lambda row: make(row.sample))

    return [
        *of(kinds.text, "sample_id", "session_id"),
        *(column for name in IDENTITY_FIELDS for column in of(_identity(kinds, name), name)),
        *of(kinds.whole, "index", "count"),
        Column("tokens", kinds.ids_T, attrgetter("sample.tokens"), flat=True),
        *of(kinds.whole, "prompt_len"),
        Column("loss_mask", kinds.flags_T, lambda row: _mask(row.sample), flat=True),
        Column("logprobs", kinds.floats_T, attrgetter("sample.logprobs"), flat=True),
        made("logprobs_missing", kinds.runs, lambda s: _runs(s.logprobs_missing)),
        *of(kinds.number, "reward", "session_reward"),
        made("reward_payload", kinds.text, lambda s: _text(s.reward_payload)),
        made("turn_rewards", kinds.text, lambda s: _json(s.turn_rewards)),
        made("weight_versions", kinds.versions, _versions),
        made("weight_version_min", kinds.whole, lambda s: min(_version_numbers(s), default=None)),
        made("weight_version_max", kinds.whole, lambda s: max(_version_numbers(s), default=None)),
        made("turns", kinds.turns, lambda s: [_turn(span) for span in s.turns]),
        made("channels", kinds.channels, _channels),
        *of(kinds.text, "end_status"),
        *of(kinds.flag, "truncated", "use_tool", "ill_formed"),
        *of(kinds.whole, "tool_turns", "generated", "trained"),
        *of(kinds.text, "policy"),
        *of(kinds.whole, "revision"),
        Column("metadata", kinds.text, lambda row: _text(row.outcome.metadata)),
    ]


def session_columns(pa: Any) -> list[Column]:
    """One row a session, its ledger a list."""
    kinds = Kinds(pa)

    def of(kind: Any, *names: str) -> list[Column]:
        return [Column(name, kind, attrgetter(f"outcome.{name}")) for name in names]

    def made(name: str, kind: Any, make: Callable[[Any], object]) -> Column:
        field = attrgetter(f"outcome.{name}")
        return Column(name, kind, lambda row: make(field(row)))

    return [
        *of(kinds.text, "session_id"),
        *(column for name in IDENTITY_FIELDS for column in of(_identity(kinds, name), name)),
        *of(kinds.text, "end_status", "policy", "withheld", "finish_reason"),
        *of(kinds.names, "sample_ids"),
        *of(kinds.whole, "turns", "generated", "trained"),
        made("ledger", kinds.ledger, lambda ledger: [_ledger_row(row) for row in ledger]),
        *of(kinds.number, "reward"),
        *of(kinds.flag, "reward_invalid", "accepted", "will_retry", "implied_end"),
        *of(kinds.whole, "duplicates", "ignored", "refused", "gaps"),
        made("reason", kinds.text, _json),
        *(made(n, kinds.text, _text) for n in ("reward_payload", "metadata", "final_message")),
    ]


def _identity(kinds: Kinds, name: str) -> Any:
    return kinds.text if name in _TEXT_IDENTITY else kinds.whole


def _mask(sample: Sample) -> npt.NDArray[np.bool_]:
    mask_T = np.zeros(sample.tokens.size, np.bool_)
    for start, end in sample.loss_mask:
        mask_T[start:end] = True
    return mask_T


def _runs(runs: Sequence[tuple[int, int]] | None) -> list[dict[str, int]] | None:
    return None if runs is None else [{"start": start, "end": end} for start, end in runs]


def _versions(sample: Sample) -> list[dict[str, int]] | None:
    if sample.weight_versions is None:
        return None
    return [{"version": v, "start": start, "end": end} for v, start, end in sample.weight_versions]


def _version_numbers(sample: Sample) -> list[int]:
    return [version for version, _, _ in sample.weight_versions or ()]


def _turn(span: TurnSpan) -> dict[str, object]:
    fields = {name: getattr(span, name) for name in ("turn_id", "start", "end", "attach")}
    return fields | {"sampling": _json(span.sampling)}


def _channels(sample: Sample) -> list[dict[str, object]] | None:
    if sample.channels is None:
        return None
    names = ("dtype", "shape", "data", "blob")
    return [
        {"name": name} | {field: getattr(channel, field) for field in names}
        for name, channel in sample.channels.items()
    ]


def _ledger_row(row: LedgerRow) -> dict[str, object]:
    fields = {name: getattr(row, name) for name in ("turn_id", "attach", "generated", "trained")}
    return fields | {"untrained": list(row.untrained.items())}


def _text(raw: msgspec.Raw) -> str | None:
    return bytes(raw).decode() or None


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
