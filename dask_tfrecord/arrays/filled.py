"""Rows of shards of which some records are lost: in their places stand rows of values that were given for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.plan import Collection, Rows, pick_rows, row_numbers
from dask_tfrecord.arrays.source import Out, RecordSource, fill, parts
from dask_tfrecord.columns.blocks import Block, concatenate, take_rows
from dask_tfrecord.columns.conform import conform
from dask_tfrecord.columns.recipes import Parser, Recipe
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature, default_array
from dask_tfrecord.records.damage import ShardReport
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["FilledSource", "fillers"]


@dataclass(frozen=True, slots=True, eq=False)
class FilledSource:
    """Rows of the records that hold, and filled rows between them.

    Attributes
    ----------
    source : RecordSource
        The records that hold.
    collection : Collection
        As if all records held: for cutting rows into chunks, not for reading.
    fillers : mapping of str to Block
        One row of each column.
    lost : int64 array
        Numbers of the filled rows, ascending, among all rows.
    rows : range or int64 array
        Of all rows, those that are rows here.
    token : str
        Names all of the above.
    """

    source: RecordSource
    collection: Collection
    fillers: Mapping[str, Block]
    lost: NDArray[np.int64]
    rows: Rows
    token: str

    @classmethod
    def make(
        cls, source: RecordSource, reports: Sequence[ShardReport], fill_values: Mapping[str, Any] | None
    ) -> FilledSource:
        """Put rows where records were lost: as many as are known to be, else one for each range of bytes."""
        held = source.collection
        lost, rows = [], 0
        starts = [0]
        for start, report in zip(held.starts[:-1].tolist(), reports, strict=True):
            before = np.append(0, np.cumsum(report.counts))
            places = np.searchsorted(report.starts, [gap.start for gap in report.lost])
            for gap, place in zip(report.lost, places.tolist(), strict=True):
                number = 1 if gap.records is None else gap.records
                lost.append(np.arange(number) + (start + int(before[place]) + rows))
                rows += number
            starts.append(start + report.records + rows)
        collection = replace(held, starts=np.array(starts, np.int64))
        numbers = np.concatenate([np.zeros(0, np.int64), *lost])
        return cls._of(source, collection, fillers(source.parser, fill_values), numbers, range(starts[-1]))

    @classmethod
    def _of(
        cls,
        source: RecordSource,
        collection: Collection,
        filling: Mapping[str, Block],
        lost: NDArray[np.int64],
        rows: Rows,
    ) -> FilledSource:
        values = {name: np.asarray(block).tolist() for name, block in filling.items()}
        return cls(source, collection, filling, lost, rows, tokenize(source, values, lost, rows))

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def parser(self) -> Parser:
        """All that is known of the records."""
        return self.source.parser

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.source.schema

    @property
    def nrows(self) -> int:
        """Rows of all features."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files and sizes."""
        return self.source.origin

    def select(self, key: Any) -> FilledSource:
        """Restrict the source to those rows."""
        return self._of(self.source, self.collection, self.fillers, self.lost, pick_rows(self.rows, key))

    def sized(self) -> FilledSource:
        """Give the same rows to whom sizes are enough."""
        return self._of(self.source.sized(), self.collection, self.fillers, self.lost, self.rows)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Borders stay as they are."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of some features: records that hold are read, the others filled."""
        rows = row_numbers(pick_rows(self.rows, key))
        place = np.searchsorted(self.lost, rows)
        held = np.ones(len(rows), bool)
        inside = place < len(self.lost)
        held[inside] = self.lost[place[inside]] != rows[inside]
        records = (rows - place)[held]
        if held.all():
            return self.source.read(names, records, out)
        blocks = self.source.read(names, records)
        order = np.full(len(rows), len(records))
        order[held] = np.arange(len(records))
        filled = {name: take_rows(concatenate([block, self.fillers[name]]), order) for name, block in blocks.items()}
        return fill(filled, out)

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other."""
        return (self.read(names, key, into) for key, into in parts(spans, out))


def fillers(parser: Parser, fill_values: Mapping[str, Any] | None) -> dict[str, Block]:
    """Make a row of each column: of the value given for it, else of the default value of its feature.

    Raises
    ------
    SchemaError
        If a column has neither, or the value is none of its feature.
    """
    given = dict(fill_values or {})
    for name in given:
        if name not in parser.recipes:
            raise UnknownFeatureError(f"fill_values: no column {name!r}{near_misses(name, tuple(parser.recipes))}")
    return {
        name: _row(name, recipe.feature, given[name] if name in given else _default(name, recipe))
        for name, recipe in parser.recipes.items()
    }


def _default(name: str, recipe: Recipe) -> Any:
    value = getattr(recipe.parsed, "default_value", None)
    if value is None or name != recipe.source:
        raise SchemaError(
            f"column {name!r}: errors='fill' needs a value for records that are lost, and {recipe.parsed} has no "
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
        raise SchemaError(f"{owner}: {value!r:.100} is no value of {feature} ({error})") from error
    return conform(feature, row, owner)
