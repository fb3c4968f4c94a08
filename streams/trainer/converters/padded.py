"""Plain torch: a padded batch, or sequences packed into one row.

    padded    every sample a row, padded on the right
    packed    samples end to end in one row, `position_ids` from 0 at each, `cu_seqlens` the seams

All columns are by token and full length: the logits at position i - 1 score `input_ids[i]`, with
`logprobs[i]`, `advantages[i]` and `weights[i]`. A sample's first token is never trained, so in a
packed row no token is scored by the end of its neighbour.

    new = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    ratio = (new - logprobs[:, 1:]).exp()
    loss = -(weights * advantages)[:, 1:] * ratio                     summed, over rollouts

Invariant: `weights` is 0 where `loss_mask` is False and sums to the number of rollouts, so that
each counts once, however many samples and tokens it has. (A masked token, one without a logprob,
takes its weight with it.)
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.trainer.converters.rows import (
    Arrays,
    Missing,
    Row,
    advantage_of,
    arrays,
    refusal,
    rows_given,
)
from streams.trainer.converters.tensors import Tensor, tensors

Columns = dict[str, npt.NDArray[Any]]


def padded(
    rows: Iterable[Row], *, pad_id: int = 0, multiple: int = 1, missing: Missing = "mask"
) -> dict[str, Tensor]:
    """`[rows, longest]` tensors, the longest rounded up to a multiple."""
    return tensors(padded_arrays(rows, pad_id=pad_id, multiple=multiple, missing=missing))


def packed(rows: Iterable[Row], *, missing: Missing = "mask") -> dict[str, Tensor]:
    """`[1, tokens]` tensors, and `cu_seqlens`, `[rows + 1]`."""
    return tensors(packed_arrays(rows, missing=missing))


def packs(rows: Iterable[Row], *, tokens_max: int) -> Iterator[tuple[Row, ...]]:
    """Rows in their order, as many as fit into a pack; siblings may come apart."""
    pack: list[Row] = []
    tokens = 0
    for row in rows:
        length = len(row.sample.tokens)
        if length > tokens_max:
            raise refusal(row.sample, f"{length} tokens do not fit into {tokens_max}")
        if tokens + length > tokens_max:
            yield tuple(pack)
            pack, tokens = [], 0
        pack.append(row)
        tokens += length
    if pack:
        yield tuple(pack)


def padded_arrays(
    rows: Iterable[Row], *, pad_id: int = 0, multiple: int = 1, missing: Missing = "mask"
) -> Columns:
    """What `padded` gives, before torch."""
    given = rows_given(rows)
    longest = max(len(row.sample.tokens) for row in given)
    shape = (len(given), -(-longest // multiple) * multiple)
    columns = _unwritten(shape, {**_kinds(given), "attention_mask": np.int64})
    positions = np.arange(longest)
    for at, row in enumerate(given):
        full = arrays(row, missing)
        length = len(full.tokens_T)
        _fill({name: column[at, :length] for name, column in columns.items()}, row, full, positions)
        columns["attention_mask"][at, :length] = 1
        for name, column in columns.items():
            column[at, length:] = pad_id if name == "input_ids" else 0
    return columns


def packed_arrays(rows: Iterable[Row], *, missing: Missing = "mask") -> Columns:
    """What `packed` gives, before torch."""
    given = rows_given(rows)
    lengths = [len(row.sample.tokens) for row in given]
    seams = np.cumsum([0, *lengths], dtype=np.int32)
    columns = _unwritten((1, int(seams[-1])), _kinds(given))
    positions = np.arange(max(lengths))
    for row, start, end in zip(given, seams[:-1], seams[1:], strict=True):
        part = {name: column[0, start:end] for name, column in columns.items()}
        _fill(part, row, arrays(row, missing), positions)
    columns["cu_seqlens"] = seams
    return columns


def _kinds(rows: Iterable[Row]) -> dict[str, Any]:
    """What is in every column; if only some rows have an advantage, the others are refused."""
    kinds = {
        "input_ids": np.int64,
        "position_ids": np.int64,
        "loss_mask": np.bool_,
        "logprobs": np.float32,
        "weights": np.float32,
    }
    scored = any(row.advantage is not None for row in rows)
    return {**kinds, "advantages": np.float32} if scored else kinds


def _unwritten(shape: tuple[int, int], kinds: dict[str, Any]) -> Columns:
    """Columns in one piece of memory: numpy asks for large pages only for large pieces.

    Page by page, the memory of a batch costs more time than what is written into it.
    """
    size = shape[0] * shape[1]
    memory = np.empty(sum(size * np.dtype(kind).itemsize for kind in kinds.values()), np.uint8)
    columns, start = {}, 0
    # The widest first: so each begins where its numbers may stand.
    for name, kind in sorted(kinds.items(), key=lambda item: -np.dtype(item[1]).itemsize):
        end = start + size * np.dtype(kind).itemsize
        columns[name] = memory[start:end].view(kind).reshape(shape)
        start = end
    return columns


def _fill(part: Columns, row: Row, full: Arrays, positions: npt.NDArray[np.int64]) -> None:
    """One row, into its part of every column."""
    part["input_ids"][:] = full.tokens_T
    part["position_ids"][:] = positions[: len(full.tokens_T)]
    part["loss_mask"][:] = full.mask_T
    part["logprobs"][:] = full.logprobs_T
    np.multiply(full.mask_T, np.float32(row.token_weight), out=part["weights"])
    if "advantages" in part:
        np.multiply(full.mask_T, np.float32(advantage_of(row)), out=part["advantages"])
