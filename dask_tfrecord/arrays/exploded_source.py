"""`Dataset.explode`: items of ragged rows as rows, read from the records that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import RowNumbers, pick_rows, row_numbers, row_runs
from dask_tfrecord.arrays.filled_source import FilledSource
from dask_tfrecord.arrays.mapped_source import MappedSource
from dask_tfrecord.arrays.sources import Outputs, RecordSource, Source, fill, memory_limit, parts
from dask_tfrecord.columns.blocks import (
    Block,
    BytesBlock,
    RowError,
    block_nbytes,
    concatenate,
    splits_of,
    take_rows,
    zero_rows,
)
from dask_tfrecord.columns.decode import locate_record, located_error
from dask_tfrecord.columns.images import image_rows
from dask_tfrecord.columns.items import ItemPlan, UnequalLengths
from dask_tfrecord.columns.memory_limit import allocating
from dask_tfrecord.errors import FeatureError, Location, MemoryLimitError
from dask_tfrecord.features import ImageFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits

__all__ = ["ExplodedSource", "ItemCounts", "locate_row", "read_lengths"]

# Records between two cumulative counts.
_GROUP = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ItemCounts:
    """Number of items of each record.

    Attributes
    ----------
    lengths : ndarray of unsigned int, shape (records,)
        Items of each record, in the smallest dtype.
    starts : ndarray of int64
        Items before every 1024th record, and the number of items.
    """

    lengths: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def from_lengths(cls, lengths: NDArray[Any]) -> ItemCounts:
        """Count the items before some of the records."""
        sums = np.add.reduceat(lengths, np.arange(0, len(lengths), _GROUP), dtype=np.int64) if len(lengths) else lengths
        return cls(lengths, splits_of(sums))

    @property
    def nitems(self) -> int:
        """Number of items."""
        return int(self.starts[-1])

    def splits(self, first: int, past: int) -> NDArray[np.int64]:
        """Return the items before the records `first` to `past`."""
        group = first // _GROUP
        before = int(self.starts[group]) + int(self.lengths[group * _GROUP : first].sum(dtype=np.int64))
        return before + splits_of(self.lengths[first:past])

    def before(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the items before some records."""
        return self.splits(0, len(self.lengths))[records]

    def records_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first record of a range of items, and the end of its records."""
        first, last = self.locate(np.array([start, stop - 1]))[0].tolist()
        return first, last + 1

    def locate(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the record of each item, and the number of the item in its record."""
        low = int(np.searchsorted(self.starts, items.min(), side="right")) - 1
        high = int(np.searchsorted(self.starts, items.max(), side="right"))
        splits = self.splits(low * _GROUP, min(high * _GROUP, len(self.lengths)))
        # Records without items share their split with the next one.
        found = np.searchsorted(splits, items, side="right") - 1
        return found + low * _GROUP, items - splits[found]


@dataclass(frozen=True, slots=True, eq=False)
class ExplodedSource:
    """Items of the rows of another source.

    Attributes
    ----------
    source : Source
        Source of the records.
    plan : ItemPlan
        Columns of items and of records.
    counts : ItemCounts or None
        Items of each row of `source`; None if its rows are not counted.
    rows : range, ndarray of int64 or None
        Numbers of the items that are rows of this source, among all items of `source`.
    sized : Source or None
        Source of the same records that is read where sizes are enough; None to read values.
    """

    source: Source
    plan: ItemPlan
    counts: ItemCounts | None
    rows: RowNumbers | None
    sized: Source | None = None

    def __dask_tokenize__(self) -> object:
        # Counts follow from the records.
        return normalize_token(("dask_tfrecord.ExplodedSource", self.source, self.plan, self.rows, self.sized))

    @property
    def schema(self) -> Schema:
        """Schema of the columns of items."""
        return self.plan.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of records that are read."""
        return tuple(self.plan.records)

    @property
    def nrows(self) -> int | None:
        """Number of items; None if records are not counted."""
        return None if self.rows is None else len(self.rows)

    @property
    def most_items(self) -> int:
        """Most items of a record, all of which are decoded to read one; 0 for images, which are held as bytes."""
        if self.counts is None or self.plan.encoded:
            return 0
        return int(self.counts.lengths.max(initial=0))

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the records, without their schema: items are other rows."""
        kept = {name: value for name, value in self.source.origin.items() if name != "schema"}
        return {**kept, "exploded": [*self.plan.group]}

    def sizes_only(self) -> ExplodedSource:
        """Return a source of the same items; values are zeros where all columns that are read vary in size."""
        return replace(self, sized=self.source.sizes_only())

    def with_memory_limit(self, nbytes: int) -> ExplodedSource:
        """Limit the blocks of records."""
        sized = None if self.sized is None else self.sized.with_memory_limit(nbytes)
        return replace(self, source=self.source.with_memory_limit(nbytes), sized=sized)

    def _source_of(self, names: Sequence[str]) -> Source:
        """Return the source of the records to read: dense items need the values of ragged rows."""
        return self.source if self.sized is None or self.plan.needs_values(names) else self.sized

    def select(self, key: Any) -> ExplodedSource:
        """Return a source of the selected items."""
        if self.rows is None:
            # Raises: the positions of records are unknown.
            self.source.select(key)
        assert self.rows is not None
        return replace(self, rows=pick_rows(self.rows, key))

    def describe(self, key: Any) -> str:
        """Return the files and records of items as text, for errors."""
        if self.counts is None or self.rows is None:
            return self.source.describe(key)
        items = row_numbers(pick_rows(self.rows, key))
        return self.source.describe(np.unique(self.counts.locate(items)[0]) if items.size else slice(0))

    def record_of(self, row: int) -> int:
        """Return the row of the source that holds an item."""
        assert self.counts is not None and self.rows is not None
        return int(self.counts.locate(np.array([self.rows[row]]))[0][0])

    def record_spans(self, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ranges of records that hold ranges of items, both of shape (n, 2)."""
        assert self.counts is not None and self.rows is not None
        found = np.zeros_like(spans)
        for number, (start, stop) in enumerate(spans.tolist()):
            items = row_numbers(self.rows[start:stop])
            if items.size:
                found[number] = self.counts.records_of(int(items.min()), int(items.max()) + 1)
        return found

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add the borders that the source adds to those of the records of all items."""
        rows, counts = self.rows, self.counts
        if counts is None or not (isinstance(rows, range) and rows.step == 1) or not len(rows):
            return borders
        first, past = counts.records_of(rows.start, rows.stop)
        records = self.source.refine(np.array([first, past]), nbytes)
        before = counts.splits(first, past)[records - first] - rows.start
        return np.union1d(borders, before[(before > borders[0]) & (before < borders[-1])])

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read items; only the records that hold them are decoded."""
        counts = self.counts
        if counts is None or self.rows is None:
            blocks = self._source_of(names).read(self.plan.needed(names, counted=False), key)
            lengths = self._lengths(blocks, None, key)
            return self._items(names, blocks, lengths, slice(0, int(lengths.sum())), 0)
        items = pick_rows(self.rows, key)
        if not len(items):
            return fill({name: zero_rows(self.schema[name]) for name in names}, out)
        needed = self.plan.needed(names, counted=True)
        if isinstance(items, range) and items.step == 1:
            first, past = counts.records_of(items.start, items.stop)
            splits, records = counts.splits(first, past), slice(first, past)
            picked = slice(items.start - int(splits[0]), items.stop - int(splits[0]))
            # The values of whole records are decoded to their places.
            whole = picked == slice(0, int(splits[-1] - splits[0]))
            offered = self.plan.flat_outputs(out or {}) if whole else {}
            lengths = np.diff(splits)
            blocks = self._source_of(names).read(needed, records, offered) if needed else {}
            self._lengths(blocks, lengths, records)
            return _fill([self._items(names, blocks, lengths, picked, first)], out or {})
        numbers, within = counts.locate(row_numbers(items))
        # A record with several of the items is decoded once.
        ascending, order = np.unique(numbers, return_inverse=True)
        lengths = counts.lengths[ascending].astype(np.int64)
        blocks = self._source_of(names).read(needed, ascending) if needed else {}
        self._lengths(blocks, lengths, ascending)
        return _fill([self._items(names, blocks, lengths, splits_of(lengths)[order] + within, ascending)], out or {})

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the items of each span; a record that consecutive spans divide is decoded once."""
        rows = self.rows
        if not (isinstance(rows, range) and rows.step == 1):
            yield from (self.read(names, key, into) for key, into in parts(spans, out))
            return
        needed, request = self.plan.needed(names, counted=True), [(0, 0)]
        # A source requests a span when its blocks are requested: the current request.
        reads = self._source_of(names).read_spans(needed, (request[0] for _ in repeat(None))) if needed else repeat({})
        held = _Held(-1, {})
        for key, into in parts(spans, out):
            if key.start == key.stop:
                yield fill({name: zero_rows(self.schema[name]) for name in names}, into)
                continue
            made, held = self._read_span(names, (rows.start + key.start, rows.start + key.stop), held, request, reads)
            yield _fill(made, into)

    def _read_span(
        self,
        names: Sequence[str],
        items: tuple[int, int],
        held: _Held,
        request: list[tuple[int, int]],
        reads: Iterator[dict[str, Block]],
    ) -> tuple[list[dict[str, Block]], _Held]:
        """Return a range of items in one or two parts, and its last record if more of its items follow."""
        counts = self.counts
        assert counts is not None
        first, past = counts.records_of(*items)
        between = first + (first == held.record)
        made: list[dict[str, Block]] = []
        for start, stop in ((first, between), (between, past)):
            if start == stop:
                continue
            splits = counts.splits(start, stop)
            lengths = np.diff(splits)
            if start == held.record:
                blocks = held.blocks
            else:
                request[0] = start, stop
                blocks = next(reads)
                self._lengths(blocks, lengths, slice(start, stop))
            picked = slice(max(items[0] - int(splits[0]), 0), int(min(items[1], splits[-1]) - splits[0]))
            made.append(self._items(names, blocks, lengths, picked, start))
        if items[1] == splits[-1]:
            return made, _Held(-1, {})
        if stop - start > 1:
            blocks = {name: take_rows(block, np.array([len(block) - 1])) for name, block in blocks.items()}
        return made, _Held(past - 1, blocks)

    def _items(
        self,
        names: Sequence[str],
        blocks: Mapping[str, Block],
        lengths: NDArray[np.int64],
        picked: slice | NDArray[np.int64],
        first_record: int | NDArray[np.int64],
    ) -> dict[str, Block]:
        """Return items of blocks of records, as `ItemPlan.items` does, with decoded images."""
        made = self.plan.items(names, blocks, lengths, picked, first_record)
        for name in self.plan.encoded:
            if name not in made:
                continue
            feature, files = self.schema[name], made[name]
            assert isinstance(feature, ImageFeature) and isinstance(files, BytesBlock)
            assert isinstance(self.source, RecordSource)
            limit = memory_limit(self.source.most_nbytes)
            try:
                if limit is not None:
                    limit.check_rows(len(files), feature)
                with allocating(name, feature):
                    made[name] = image_rows(feature, files, None, None)
            except RowError as error:
                record = int(np.repeat(np.arange(len(lengths)), lengths)[picked][error.row])
                number = first_record + record if isinstance(first_record, int) else int(first_record[record])
                raise located_error(error, locate_row(self.source, 0, number, name)) from None
        return made

    def _lengths(self, blocks: Mapping[str, Block], expected: NDArray[np.int64] | None, key: Any) -> NDArray[np.int64]:
        """Check the row lengths of blocks of the source's rows `key`, and return them."""
        try:
            return self.plan.check_lengths(blocks, expected)
        except UnequalLengths as error:
            raise length_error(error, self.source, key) from None


@dataclass(frozen=True, slots=True)
class _Held:
    """Blocks of one record that was read; -1 for no record."""

    record: int
    blocks: Mapping[str, Block]


def _fill(made: Sequence[dict[str, Block]], out: Mapping[str, NDArray[Any]]) -> dict[str, Block]:
    """Concatenate parts of items, in the arrays to fill for dense columns."""
    filled: dict[str, Block] = {}
    for name, block in made[0].items():
        array = out.get(name)
        if array is None or not isinstance(block, np.ndarray):
            filled[name] = concatenate([part[name] for part in made])
        elif made[1:]:
            filled[name] = np.concatenate([part[name] for part in made], out=array)
        else:
            if block.ctypes.data != array.ctypes.data:
                array[:] = block
            filled[name] = array
    return filled


def length_error(error: UnequalLengths, source: Source, key: Any) -> FeatureError | MemoryLimitError:
    """Return the public error of a row of a source whose columns differ in length, with its record."""
    if source.rows is None:
        where = f"{source.describe(key)}: row {error.row} of the chunk"
        return FeatureError(f"{where}: feature {error.name!r} {error.message}")
    row = int(row_numbers(pick_rows(range(len(source.rows)), key))[error.row])
    return located_error(error, locate_row(source, 0, row, error.name))


def locate_row(source: object, start: int, row: int, feature: str) -> Location:
    """Return the location of row `start` + `row` of a source, for errors.

    It has file, record and byte, or the store and its row.
    """
    row += start
    while isinstance(source, MappedSource | ExplodedSource):
        if isinstance(source, ExplodedSource):
            row = source.record_of(row)
        source = source.source
    if isinstance(source, RecordSource):
        (run,) = row_runs(source.collection, pick_rows(source.rows, slice(row, row + 1)))
        return locate_record(run, run.first, feature)
    rows: Any = getattr(source, "rows", None)
    number = row if rows is None else int(rows[row])
    if isinstance(source, FilledSource):
        shards, starts = source.collection.shards, source.collection.starts
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        return Location(shards.paths[shard], number - int(starts[shard]), feature=feature)
    return Location(getattr(source, "origin", {}).get("store", "rows in memory"), number, feature=feature)


def read_lengths(source: Source, plan: ItemPlan, start: int, stop: int) -> NDArray[Any]:
    """Return the items of the rows `start` to `stop` of a source, in the smallest dtype.

    Raises
    ------
    FeatureError
        If the lengths of the columns of the group differ in a record.
    """
    names = tuple(dict.fromkeys(map(plan.lengths_of, plan.group)))
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    span = (start, start)
    rows = limits().probe_rows

    def growing() -> Iterator[tuple[int, int]]:
        nonlocal span
        while span[1] < stop:
            span = span[1], min(span[1] + rows, stop)
            yield span

    for blocks in source.sizes_only().read_spans(names, growing()):
        try:
            found.append(plan.check_lengths(blocks, None))
        except UnequalLengths as error:
            raise length_error(error, source, slice(*span)) from None
        # Sources that do not count without decoding hold the values of these rows.
        nbytes = sum(map(block_nbytes, blocks.values())) / (span[1] - span[0])
        rows = max(1, int(min(limits().read_nbytes / max(nbytes, 1), 4 * rows)))
    lengths = np.concatenate(found)
    return lengths.astype(np.min_scalar_type(lengths.max(initial=0)))
