"""Samples and sessions as Parquet, in row groups of bounded size.

Invariant: memory holds one row group at most.
"""

import importlib
from typing import Any, BinaryIO, cast

import click
import numpy as np
import numpy.typing as npt

from schemas.samples import Sample, SessionClosed
from streams.cli.export.columns import Column, Row, sample_columns, session_columns

ROWS_MAX = 1024
BYTES_MAX = 64 << 20
"""Of one row group, before compression."""

_LEDGER_ROW_BYTES = 100
_TOKEN_BYTES = 9
"""An id, a logprob and a place in the mask."""


class ParquetFile:
    """Takes sessions; writes a row group whenever enough have come."""

    def __init__(self, stream: BinaryIO, *, sessions: bool) -> None:
        """Outcomes, or else samples."""
        self._arrow = _loaded("pyarrow")
        self._columns = session_columns(self._arrow) if sessions else sample_columns(self._arrow)
        self._schema = self._arrow.schema([(c.name, c.kind) for c in self._columns])
        writer = _loaded("pyarrow.parquet").ParquetWriter
        self._file = writer(stream, self._schema, compression="zstd")
        self._sessions = sessions
        self._rows: list[Row] = []
        self._bytes = 0

    def write(self, outcome: SessionClosed, samples: list[Sample]) -> None:
        """One session."""
        if self._sessions:
            self._add(Row(outcome, None), len(outcome.ledger) * _LEDGER_ROW_BYTES)
            return
        for sample in samples:
            channels = (sample.channels or {}).values()
            size = sum(len(channel.data or b"") for channel in channels)
            self._add(Row(outcome, sample), size + sample.tokens.size * _TOKEN_BYTES)

    def close(self) -> None:
        """The last row group, and the foot of the file."""
        self._flush()
        self._file.close()

    def _add(self, row: Row, size: int) -> None:
        self._rows.append(row)
        self._bytes += size + len(bytes(row.outcome.metadata))
        if len(self._rows) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            arrays = [self._array(column) for column in self._columns]
            self._file.write_table(self._arrow.table(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0

    def _array(self, column: Column) -> Any:
        values = [column.value(row) for row in self._rows]
        if not column.flat:
            return self._arrow.array(values, column.kind)
        arrays = cast("list[npt.NDArray[Any]]", values)
        offsets = np.cumsum([0, *(array.size for array in arrays)], dtype=np.int32)
        joined = self._arrow.array(np.concatenate(arrays), column.kind.value_type)
        return self._arrow.ListArray.from_arrays(offsets, joined, type=column.kind)


def _loaded(name: str) -> Any:
    # By name: it is large, and only this format needs it.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        advice = "install it with `pip install turnstream[export]`"
        raise click.ClickException(f"Parquet needs pyarrow: {advice} ({error})") from None
