"""Source of damaged shards with `errors="fill"`: lost records are replaced by rows of fill values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Collection, RowNumbers, pick_rows, row_numbers
from dask_tfrecord.arrays.sources import Outputs, RecordSource, describe_rows, fill, parts
from dask_tfrecord.columns.blocks import Block, concatenate, take_rows
from dask_tfrecord.columns.column_plan import ColumnPlan, SchemaPlan
from dask_tfrecord.columns.user_blocks import conform
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature, default_array
from dask_tfrecord.records.damage import ShardReport
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["FilledSource", "fillers"]


@dataclass(frozen=True, slots=True, eq=False)
class FilledSource:
    """Rows of intact records, with filled rows in place of lost ones.

    Attributes
    ----------
    source : RecordSource
        Source of the intact records.
    collection : Collection
        Collection with lost records included, for planning chunks.
    fillers : mapping of str to Block
        Fill value of each column, as a block of one row.
    lost : int64 array
        Numbers of the filled rows, ascending, among all rows.
    rows : range or int64 array
        Numbers of the rows of this source among all rows.
    token : str
        Identity of the attributes above.
    """

    source: RecordSource
    collection: Collection
    fillers: Mapping[str, Block]
    lost: NDArray[np.int64]
    rows: RowNumbers
    token: str

    @classmethod
    def from_reports(
        cls, source: RecordSource, reports: Sequence[ShardReport], fill_values: Mapping[str, Any] | None
    ) -> FilledSource:
        """Insert rows for lost records: as many as are known, else one per damaged range of bytes."""
        intact = source.collection
        lost, rows = [], 0
        starts = [0]
        for start, report in zip(intact.starts[:-1].tolist(), reports, strict=True):
            before = np.append(0, np.cumsum(report.counts))
            gap_indices = np.searchsorted(report.starts, [gap.start for gap in report.lost])
            for gap, index in zip(report.lost, gap_indices.tolist(), strict=True):
                number = 1 if gap.records is None else gap.records
                lost.append(np.arange(number) + (start + int(before[index]) + rows))
                rows += number
            starts.append(start + report.records + rows)
        collection = replace(intact, starts=np.array(starts, np.int64))
        numbers = np.concatenate([np.zeros(0, np.int64), *lost])
        return cls._create(source, collection, fillers(source.plan, fill_values), numbers, range(starts[-1]))

    @classmethod
    def _create(
        cls,
        source: RecordSource,
        collection: Collection,
        filling: Mapping[str, Block],
        lost: NDArray[np.int64],
        rows: RowNumbers,
    ) -> FilledSource:
        values = {name: np.asarray(block).tolist() for name, block in filling.items()}
        return cls(source, collection, filling, lost, rows, tokenize(source, values, lost, rows))

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def plan(self) -> SchemaPlan:
        """Plan that decodes records to columns."""
        return self.source.plan

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.source.schema

    @property
    def nrows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions."""
        return self.source.origin

    def select(self, key: Any) -> FilledSource:
        """Return a source of the selected rows."""
        return self._create(self.source, self.collection, self.fillers, self.lost, pick_rows(self.rows, key))

    def sizes_only(self) -> FilledSource:
        """Return a source of the same rows whose ragged values are not decoded."""
        return self._create(self.source.sizes_only(), self.collection, self.fillers, self.lost, self.rows)

    def describe(self, key: Any) -> str:
        """Return the files and rows as text, for errors; row numbers include filled rows."""
        return describe_rows(self.collection, pick_rows(self.rows, key), "row")

    def with_memory_limit(self, nbytes: int) -> FilledSource:
        """Limit the memory of blocks of intact records."""
        return replace(self, source=self.source.with_memory_limit(nbytes))

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Return the borders unchanged."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read the intact records among some rows and fill the others."""
        rows = row_numbers(pick_rows(self.rows, key))
        lost_before = np.searchsorted(self.lost, rows)
        is_intact = np.ones(len(rows), bool)
        inside = lost_before < len(self.lost)
        is_intact[inside] = self.lost[lost_before[inside]] != rows[inside]
        records = (rows - lost_before)[is_intact]
        if is_intact.all():
            return self.source.read(names, records, out)
        blocks = self.source.read(names, records)
        order = np.full(len(rows), len(records))
        order[is_intact] = np.arange(len(records))
        filled = {name: take_rows(concatenate([block, self.fillers[name]]), order) for name, block in blocks.items()}
        return fill(filled, out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span."""
        return (self.read(names, key, into) for key, into in parts(spans, out))


def fillers(plan: SchemaPlan, fill_values: Mapping[str, Any] | None) -> dict[str, Block]:
    """Return a block of one row per column: its fill value, else the default value of its feature, or no items.

    Raises
    ------
    SchemaError
        If a column has neither, or its feature cannot represent the value.
    """
    given = dict(fill_values or {})
    for name in given:
        if name not in plan.plans:
            raise UnknownFeatureError(f"fill_values: no column {name!r}{near_misses(name, tuple(plan.plans))}")
    return {
        name: _row(name, column.feature, given[name] if name in given else _default(name, column))
        for name, column in plan.plans.items()
    }


def _default(name: str, column: ColumnPlan) -> Any:
    if column.unit == "item":
        return []  # defaults are those of items, and a lost record has none
    value = getattr(column.parsed, "default_value", None)
    if value is None or name != column.source:
        raise SchemaError(
            f"column {name!r}: errors='fill' needs a value for lost records, and {column.parsed} has no "
            f"default_value; give fill_values={{{name!r}: ...}}, or errors='skip'"
        )
    return value


def _row(name: str, feature: Feature, value: Any) -> Block:
    owner = f"fill_values: column {name!r}"
    if feature.ragged_rank or feature.own_shapes:
        return conform(feature, [value], owner)
    shape = (1, *feature.block_shape)
    try:
        if feature.block_dtype.kind in "OT":
            row = np.broadcast_to(np.asarray(value, object), shape)
        else:
            row = default_array(value, feature.block_dtype, shape)
            exact = np.asarray(value)
            if feature.block_dtype.kind in "iub" and (row != exact).any():
                raise SchemaError(f"{owner}: {value!r:.100} does not fit into {feature.block_dtype}")
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{owner}: {value!r:.100} is not a value of {feature} ({error})") from error
    return conform(feature, row, owner)
