"""Sources: objects that read rows of columns as blocks, in any process.

A source is small, picklable and tokenised. It is sent to each worker once, and its token identifies its rows.
Rows either have numbers (`CountedRows`), or are read in chunks of any number of rows (`UncountedChunks`).
`RecordSource` reads TFRecord shards, and `UncountedSource` ranges of their bytes. What changes columns and rows is a
step: see `rows/steps.py`. The reader of Zarr groups is in `stores/`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.base import normalize_token, tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import Arrays, Block, block_nbytes, concatenate, rows_of, take_rows, zero_rows
from dask_tfrecord.columns.decoder import Decoder, Where, decode, decode_blocks, locate_record, size_decoder
from dask_tfrecord.errors import (
    CorruptRecordError,
    FeatureError,
    FeatureValueError,
    Location,
    ShardChangedError,
    redact_url,
)
from dask_tfrecord.features import FixedLenFeature, VarLenFeature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.index import (
    ByteSplit,
    RecordRange,
    SplitEntry,
    check_count,
    find_entry,
    find_entry_by_walk,
    index_entries,
    walk,
)
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.chunk_borders import ByteChunks, finer_borders
from dask_tfrecord.rows.collection import Collection, RowKey, RowNumbers, pick_rows, row_numbers, row_runs
from dask_tfrecord.rows.memory import block_limit
from dask_tfrecord.shards.shard import Shard, Shards

# Returns memory for the flat values of a span of rows, or None. A source may ignore it.
OutputBuffer = Callable[[tuple[int, int]], NDArray[Any] | None]
# Output of each column: an array that is filled, or an output buffer for flat values of rows that differ in size.
Outputs = Mapping[str, NDArray[Any] | OutputBuffer]

# Rows that are read to estimate their size: borders of spans, and decoded bytes after which the probe stops.
_PROBE_CUTS = (0, 1, 4, 16, 64)
_PROBE_NBYTES = 8 << 20


class Source:
    """Rows that are read on demand, in any process: `CountedRows` by their numbers, or `UncountedChunks`."""

    __slots__ = ()

    # Attributes of all sources, which are fields of some classes and properties of others.
    if TYPE_CHECKING:

        @property
        def schema(self) -> Schema:
            """Schema of the columns."""

        @property
        def columns(self) -> tuple[str, ...]:
            """Columns of the inner source that are read."""

    @property
    def inner(self) -> Source | None:
        """Source whose rows this source changes."""
        return None

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows as JSON values, for the repr and for attributes of stores."""
        return {} if self.inner is None else self.inner.origin

    @property
    def shards(self) -> Shards | None:
        """TFRecord shards that hold the rows, if any."""
        return None if self.inner is None else self.inner.shards

    @property
    def derivation(self) -> object:
        """Identity of what this source changes in the rows of the inner one, except for functions."""
        return None

    @property
    def content(self) -> object:
        """Identity for fingerprints, without the paths of files, which are compared by the files they lead to."""
        return self

    @property
    def images(self) -> Mapping[str, Any]:
        """Columns of images of one shape that `CountedRows.encoded` can read as bytes."""
        return {}


class CountedRows(Source, ABC):
    """Rows with known numbers, so that any of them can be read.

    An example of three records, whose column "x" holds 5, 7 and 9: ``read(["x"], slice(1, 3))`` returns 7 and 9,
    ``read(["x"], [2, 0])`` returns 9 and 5, and ``read_spans(["x"], [(0, 1), (1, 3)])`` yields 5, then 7 and 9.
    ``select([2, 0])`` is a source of two rows, 9 and 5, whose row 0 is the record 2, as ``locate(0, "x")`` reports.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def rows(self) -> RowNumbers:
            """Numbers of the stored rows that are rows of this source."""

    @property
    def nrows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def inner(self) -> CountedRows | None:
        """Source whose rows this source changes."""
        return None

    @property
    def most_items(self) -> int:
        """Most items of a record, which are all decoded to read one; 0 if rows are not items."""
        return 0 if self.inner is None else self.inner.most_items

    @abstractmethod
    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows of some columns in one pass, chosen by a slice, ints or a mask.

        Arrays of `out` are filled and returned for dense columns.
        """

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows ``start`` to ``stop`` of each span, read in one pass if spans ascend.

        A span is taken from `spans` when its rows are requested, so that sizes may follow from the rows before. Arrays
        of `out` are filled span by span from their start. An `OutputBuffer` is called before each span.
        """
        return (self.read(names, key, into) for key, into in parts(spans, out))

    def read_where(self, names: Sequence[str], key: RowKey, where: Where) -> dict[str, Block]:
        """Read the rows of `key` that a mask of tested columns keeps."""
        return _kept_by(partial(self.read, key=key), names, where)

    def select(self, key: RowKey) -> CountedRows:
        """Return a source of the selected rows."""
        own: Any = self
        selected: CountedRows = replace(own, rows=pick_rows(self.rows, key))
        return selected

    def measure(self) -> CountedRows:
        """Return a source of the same rows for callers that need sizes only: values of ragged rows may be zeros."""
        return self

    def keeps_values(self, names: Sequence[str]) -> bool:
        """Return whether reading some columns keeps values in memory, and not only row splits."""
        return True

    def without_equal_lengths(self, names: Sequence[str]) -> Sequence[str]:
        """Choose as few ragged columns as give the row lengths of all."""
        return names

    def encoded(self, names: Sequence[str]) -> CountedRows:
        """Return a source of the same rows that does not decode the `images` in `names`: it reads their bytes."""
        return self

    def with_memory_limit(self, nbytes: int) -> CountedRows:
        """Return a source of the same rows that raises `MemoryLimitError` for larger columns of a block, if it can."""
        return self

    def borders_of(self, names: Sequence[str], borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunk borders for reading only some columns; `borders` are for all columns."""
        return borders

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add chunk borders about `nbytes` of stored data apart, where reading can start at no cost."""
        return borders if self.inner is None else self.inner.refine(borders, nbytes)

    def describe(self, key: RowKey) -> str:
        """Return the files and records of rows as text, for errors; `key` is as in `read`."""
        if self.inner is not None:
            return self.inner.describe(key)
        rows, place = row_numbers(pick_rows(self.rows, key)), self.origin.get("store", "rows in memory")
        return f"{place}: rows {rows.min()} to {rows.max()}" if rows.size else f"{place}: no rows"

    def locate(self, row: int, feature: str, start: int = 0) -> Location:
        """Return the location of row `start` + `row`, for errors: file, record and byte, or the store and its row."""
        if self.inner is not None:
            return self.inner.locate(row, feature, start)
        return Location(self.origin.get("store", "rows in memory"), int(self.rows[start + row]), feature=feature)

    def cost(self, spans: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return how many stored bytes (n, 2) row ranges take; None if shards aren't read."""
        return None if self.inner is None else self.inner.cost(spans)


class UncountedChunks(Source, ABC):
    """Chunks whose number of rows is unknown until they are read.

    An example of three records in two ranges of bytes: ``read_chunk(["x"], 0)`` returns the records whose headers begin
    in the first range, say 5 and 7, and ``read_chunk(["x"], 1)`` returns the other, 9.
    """

    __slots__ = ()

    @abstractmethod
    def read_chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read all rows of a chunk of some columns in one pass."""

    def read_chunk_where(self, names: Sequence[str], number: int, where: Where) -> dict[str, Block]:
        """Read the rows of a chunk that a mask of tested columns keeps."""
        return _kept_by(partial(self.read_chunk, number=number), names, where)

    @abstractmethod
    def describe_chunk(self, number: int) -> str:
        """Return the files and bytes, or the rows, of a chunk as text, for errors."""


class DerivedRows(CountedRows):
    """Rows of another source, `source`, which the class changes."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def source(self) -> CountedRows:
            """Source whose rows are changed."""

    @property
    def inner(self) -> CountedRows:
        """Source whose rows are changed."""
        return self.source

    def with_memory_limit(self, nbytes: int) -> CountedRows:
        """Limit the blocks of the source."""
        return self._of(self.source.with_memory_limit(nbytes))

    def _of(self, source: CountedRows) -> CountedRows:
        """Return the same changes of another source."""
        own: Any = self
        changed: CountedRows = replace(own, source=source)
        return changed


class SameRows(DerivedRows):
    """Base of sources that change columns and keep row numbers."""

    __slots__ = ()

    @property
    def rows(self) -> RowNumbers:
        """Rows of the source."""
        return self.source.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the source."""
        return tuple(self.source.schema)

    def select(self, key: RowKey) -> CountedRows:
        """Return a source of the selected rows."""
        return self._of(self.source.select(key))

    def measure(self) -> CountedRows:
        """Measure the source."""
        return self._of(self.source.measure())


AnySource = CountedRows | UncountedChunks


def _kept_by(read: Callable[[Sequence[str]], dict[str, Block]], names: Sequence[str], where: Where) -> dict[str, Block]:
    tested, mask = where
    blocks = read(tuple(dict.fromkeys([*tested, *names])))
    kept = np.flatnonzero(mask({name: blocks[name] for name in tested}))
    return {name: take_rows(blocks[name], kept) for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class RowChunks(UncountedChunks):
    """Counted rows in chunks, for readers of chunks."""

    source: CountedRows
    borders: NDArray[np.int64]

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.RowChunks", self.source, self.borders))

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self.source.schema

    @property
    def inner(self) -> CountedRows:
        """Source of the rows."""
        return self.source

    @property
    def derivation(self) -> object:
        """Borders of the chunks."""
        return tuple(self.borders.tolist())

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return tuple(self.source.schema)

    def _key(self, number: int) -> slice:
        return slice(*self.borders[number : number + 2].tolist())

    def read_chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read the rows of a chunk."""
        return self.source.read(names, self._key(number))

    def read_chunk_where(self, names: Sequence[str], number: int, where: Where) -> dict[str, Block]:
        """Read the rows of a chunk that a mask of tested columns keeps."""
        return self.source.read_where(names, self._key(number), where)

    def describe_chunk(self, number: int) -> str:
        """Return the rows of a chunk as text, for errors."""
        return self.source.describe(self._key(number))


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSource(CountedRows):
    """Rows of chunks that are read whole, whose borders are known.

    An example of three rows in two chunks, with borders 0, 2, 3: rows 1 to 2 are the last one of chunk 0 and all of
    chunk 1.
    """

    schema: Schema
    borders: Sequence[int]  # first row of each chunk, and the end of the last one; rows before the first can't be read
    read_chunk: Callable[[Sequence[str], int], Mapping[str, Block]]
    rows: RowNumbers  # numbers of the rows of this source

    @classmethod
    def of_all(
        cls, schema: Schema, borders: Sequence[int], read_chunk: Callable[[Sequence[str], int], Mapping[str, Block]]
    ) -> ChunkSource:
        """Read all rows, by their numbers."""
        return cls(schema, borders, read_chunk, range(borders[-1]))

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows, from the chunks that contain them alone."""
        rows = pick_rows(self.rows, key)
        if isinstance(rows, range) and rows.step == 1:
            return join_into([self._read_range(names, rows.start, rows.stop)], out)
        # A row that is selected twice is read once.
        ascending, order = np.unique(row_numbers(rows), return_inverse=True)
        blocks_of: dict[str, list[Block]] = {name: [zero_rows(self.schema[name])] for name in names}
        cuts = np.searchsorted(ascending, self.borders)
        for number, (low, high) in enumerate(pairwise(cuts.tolist())):
            if low < high:
                blocks = self.read_chunk(names, number)
                for name in names:
                    blocks_of[name].append(take_rows(blocks[name], ascending[low:high] - self.borders[number]))
        return join_into([{name: take_rows(concatenate(blocks), order) for name, blocks in blocks_of.items()}], out)

    def _read_range(self, names: Sequence[str], start: int, stop: int) -> dict[str, Block]:
        """Read a range of rows from the chunks that it touches."""
        blocks_of: dict[str, list[Block]] = {name: [] for name in names}
        for number, (first, past) in enumerate(pairwise(self.borders)):
            if max(start, first) < min(stop, past):
                blocks = self.read_chunk(names, number)
                for name in names:
                    blocks_of[name].append(rows_of(blocks[name], max(start, first) - first, min(stop, past) - first))
        return {name: concatenate(blocks or [zero_rows(self.schema[name])]) for name, blocks in blocks_of.items()}


@dataclass(frozen=True, slots=True, eq=False)
class RecordSource(CountedRows):
    """Rows of TFRecord shards whose records are counted."""

    collection: Collection
    decoder: Decoder
    rows: RowNumbers  # numbers of the rows in the collection
    check_crc: bool
    token: str  # identity of the attributes above
    most_nbytes: int | None = None  # limit of bytes for a column of a block, if lower than the setting

    @classmethod
    def from_collection(
        cls, collection: Collection, decoder: Decoder, rows: RowNumbers, *, check_crc: bool
    ) -> RecordSource:
        """Create a source and its token."""
        # Index entries follow from the shards; counts may come from the user.
        token = tokenize(collection.shards, collection.starts, decoder, rows, check_crc)
        return cls(collection, decoder, rows, check_crc, token)

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def content(self) -> object:
        """Records of the shards, whatever their paths are."""
        shards, starts = self.collection.shards.without_paths(), self.collection.starts
        return shards, starts, self.decoder, self.rows, self.check_crc

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.decoder.columns

    @property
    def shards(self) -> Shards:
        """Shards of the collection."""
        return self.collection.shards

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions, and the schema of the records."""
        return {**shards_origin(self.collection.shards), "schema": json.loads(self.decoder.schema.to_json())}

    def measure(self) -> RecordSource:
        """Return a source of the same rows that counts the values of ragged rows without decoding them."""
        # Every task calls this, so the token is not computed from all shards again.
        return replace(self, decoder=size_decoder(self.decoder), token=f"{self.token}-sized")

    def keeps_values(self, names: Sequence[str]) -> bool:
        """Return whether reading some columns keeps values in memory, and not only row splits."""
        return self.decoder.keeps_values(names)

    def without_equal_lengths(self, names: Sequence[str]) -> Sequence[str]:
        """Choose one column of each repeated message, whose fields have the same items; prefer uncompressed ones."""
        if self.decoder.schema.message_type is None:
            return names
        chosen: dict[str, str] = {}
        for name in names:
            column = self.decoder.decoders[name]
            first = chosen.setdefault(column.groups[0] if column.groups else name, name)
            if column.prepare is None and self.decoder.decoders[first].prepare is not None:
                chosen[column.groups[0]] = name
        return tuple(chosen.values())

    @property
    def images(self) -> Mapping[str, Any]:
        """Images of the records."""
        schema, columns = self.decoder.schema, self.decoder.columns
        found = schema.context_features
        if schema.message_type is not None:
            # A feature has the path of a field, and its column is the image.
            found = {name: columns[name] for name in schema if name in columns}
        return {name: each for name, each in found.items() if each.is_image and not each.own_shapes}

    def encoded(self, names: Sequence[str]) -> RecordSource:
        """Return a source that reads the bytes of images, one or any number per record."""
        schema = self.decoder.schema
        context, single = schema.context_features, FixedLenFeature((), "bytes")
        if schema.message_type is not None:
            fields: Mapping[str, Any] = context
            features = schema.replaced({**schema, **{name: replace(fields[name], values=single) for name in names}})
        else:
            stored = {name: VarLenFeature("bytes") if context[name].ragged_rank else single for name in names}
            features = Schema(
                {**context, **stored},
                schema.sampling,
                sequence_features=schema.sequence_features,
                example_features=schema.example_features,
            )
        source = RecordSource.from_collection(self.collection, Decoder(features), self.rows, check_crc=self.check_crc)
        return replace(source, most_nbytes=self.most_nbytes)

    def with_memory_limit(self, nbytes: int) -> RecordSource:
        """Return a source of the same rows with a lower memory limit."""
        return replace(self, most_nbytes=nbytes)

    def select(self, key: RowKey) -> RecordSource:
        """Return a source of the selected rows."""
        return RecordSource.from_collection(
            self.collection, self.decoder, pick_rows(self.rows, key), check_crc=self.check_crc
        )

    def describe(self, key: RowKey) -> str:
        """Return the files and records of rows as text, for errors."""
        return describe_rows(self.collection, pick_rows(self.rows, key), "record")

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add borders at index entries."""
        return finer_borders(self.collection, self.rows, borders, nbytes)

    def locate(self, row: int, feature: str, start: int = 0) -> Location:
        """Return the file, the record and its byte, which is searched."""
        (run,) = row_runs(self.collection, pick_rows(self.rows, slice(start + row, start + row + 1)))
        return locate_record(run, run.first, feature)

    def cost(self, spans: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the stored bytes of ranges of rows, estimated between index entries."""
        return self.collection.stored_nbytes(self.rows, spans)

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows of some columns; only those records are decoded."""
        rows = pick_rows(self.rows, key)
        ascending: RowNumbers = rows
        order: NDArray[np.int64] | None = None
        runs: Iterable[RecordRange] | None = None
        if len(rows) == 1:
            runs = [self.collection.pick(int(rows[0]))]
        elif not (isinstance(rows, range) and rows.step > 0) and (np.diff(rows) <= 0).any():
            runs = self.collection.unordered(row_numbers(rows))
            if runs is None:
                # A record that is selected twice is decoded once.
                ascending, order = np.unique(rows, return_inverse=True)
        into = out if order is None else None
        blocks = decode(
            self._ascending_runs(ascending) if runs is None else self._check_counts(runs),
            self.decoder,
            names,
            rows=len(ascending),
            check_crc=self.check_crc,
            out=into,
            limit=block_limit(self.most_nbytes),
        )
        if order is None:
            return blocks
        return join_into([{name: take_rows(block, order) for name, block in blocks.items()}], out)

    def read_where(self, names: Sequence[str], key: RowKey, where: Where) -> dict[str, Block]:
        """Decode the tested columns, and the others for the records that are kept, in one pass."""
        rows = pick_rows(self.rows, key)
        is_consecutive = isinstance(rows, range) and rows.step == 1
        if set(names) <= set(where.tested) or not is_consecutive:
            # Nothing is saved: all columns are tested, or the records of an index array are picked one by one.
            return CountedRows.read_where(self, names, key, where)
        runs, limit = self._ascending_runs(rows), block_limit(self.most_nbytes)
        return decode(runs, self.decoder, names, rows=None, check_crc=self.check_crc, limit=limit, where=where)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span; each shard is opened once if rows ascend."""
        if not (isinstance(self.rows, range) and self.rows.step > 0):
            return (self.read(names, key, into) for key, into in parts(spans, out))
        everything = self.rows == range(self.collection.nrows)
        runs = (
            (self._ascending_runs(self.rows[key], everything=everything), key.stop - key.start, into)
            for key, into in parts(spans, out)
        )
        limit = block_limit(self.most_nbytes)
        return decode_blocks(runs, self.decoder, names, check_crc=self.check_crc, limit=limit)

    def _ascending_runs(self, rows: RowNumbers, *, everything: bool = False) -> Iterator[RecordRange]:
        """Yield runs of ascending rows, and check them."""
        return self._check_counts(row_runs(self.collection, rows), everything=everything)

    def _check_counts(self, runs: Iterable[RecordRange], *, everything: bool = False) -> Iterator[RecordRange]:
        """Yield runs; check counts of the user if no run reaches the end of the shard."""
        for run in runs:
            if run.total is not None and not everything:
                check_count(run.shard, run.total, check_crc=self.check_crc)
            yield run


def parts(spans: Iterable[tuple[int, int]], out: Outputs | None) -> Iterator[tuple[slice, dict[str, NDArray[Any]]]]:
    """Yield each span as a slice, with the slices of output arrays or the output buffers of its rows."""
    done = 0
    for start, stop in spans:
        filled = slice(done, done + stop - start)
        into = {
            name: into[filled] if isinstance(into, np.ndarray) else into((start, stop))
            for name, into in (out or {}).items()
        }
        yield slice(start, stop), {name: memory for name, memory in into.items() if memory is not None}
        done = filled.stop


def describe_rows(collection: Collection, rows: RowNumbers, noun: str) -> str:
    """Return the shards and records of rows as text."""
    if not len(rows):
        return f"no {noun}s"
    first, last = (rows[0], rows[-1]) if isinstance(rows, range) else (rows.min(), rows.max())
    first, last = min(int(first), int(last)), max(int(first), int(last))
    shards = np.searchsorted(collection.starts, [first, last], side="right") - 1
    path, other = (Location(collection.shards.paths[shard]) for shard in shards)
    starts = collection.starts[shards]
    start, stop = first - int(starts[0]), last - int(starts[1])
    some = "" if last - first + 1 == len(rows) else f"{len(rows):,} of the {noun}s: "
    if path != other:
        return f"{some}{path}: {noun} {start} to {other}: {noun} {stop}"
    return f"{some}{path}: {noun} {start}" if start == stop else f"{some}{path}: {noun}s {start} to {stop}"


def join_into(parts: Sequence[dict[str, Block]], out: Arrays | None) -> dict[str, Block]:
    """Concatenate parts of rows, in the output arrays for dense columns."""
    joined: dict[str, Block] = {}
    for name, block in parts[0].items():
        array = None if out is None else out.get(name)
        if array is None or not isinstance(block, np.ndarray):
            # Flat values are not copied: an output buffer is only an offer.
            joined[name] = concatenate([part[name] for part in parts])
        elif parts[1:]:
            joined[name] = np.concatenate([part[name] for part in parts], out=array)
        else:
            if block.ctypes.data != array.ctypes.data:
                array[:] = block
            joined[name] = array
    return joined


def shards_origin(shards: Shards) -> Mapping[str, Any]:
    """Return files, sizes and versions; URLs are without credentials."""
    return {
        "files": list(map(redact_url, shards.paths)),
        "sizes": shards.sizes.tolist(),
        "versions": list(shards.versions),
    }


def probe_rows(source: CountedRows, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Read a few rows of a source, fewer if they are large; return their number, and decoded bytes by column.

    If a value can't be decoded, probe the next rows; the read of its row raises the error.
    """
    rows, sizes = 0, dict.fromkeys(names, 0)
    cuts = [min(cut, source.nrows) for cut in _PROBE_CUTS]
    # Values of ragged rows are not decoded: small records may decode to large ones.
    measured = source.measure()
    for start, stop in (*pairwise(cuts), *pairwise(range(1, cuts[-1] + 1))):
        if start == stop or (rows and stop - start == 1):
            continue
        try:
            [blocks] = measured.read_spans(names, [(start, stop)])
        except FeatureValueError:
            continue
        sizes = {name: nbytes + block_nbytes(blocks[name]) for name, nbytes in sizes.items()}
        rows += stop - start
        if sum(sizes.values()) >= _PROBE_NBYTES:
            break
    return rows, sizes


class GrowingSpans:
    """Consecutive spans of rows, each of about `nbytes` as estimated by the span before; `span` is the last one."""

    def __init__(self, start: int, stop: int, rows: int, nbytes: float, most_rows: float = float("inf")) -> None:
        self.span = (start, start)
        self.rows = rows  # of the next span
        self._stop, self._nbytes, self._most_rows = stop, nbytes, most_rows

    def __bool__(self) -> bool:
        return self.span[1] < self._stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self:
            self.span = self.span[1], min(self.span[1] + self.rows, self._stop)
            yield self.span

    def adapt(self, nbytes: float) -> None:
        """Size the next span by the decoded bytes of the last one; sizes grow slowly."""
        row_nbytes = max(nbytes / (self.span[1] - self.span[0]), 1.0)
        self.rows = max(1, int(min(self._nbytes / row_nbytes, 4 * self.rows, self._most_rows)))

    def retry(self) -> None:
        """Divide the last span, which exceeded a memory limit, into smaller ones."""
        start, stop = self.span
        self.span, self.rows = (start, start), max(1, (stop - start) // 8)


# Stored bytes of the records that are decoded to estimate the ratio of decoded to stored bytes.
_RATIO_NBYTES = 256 << 10
# Bytes read beyond a split: the last record of most splits ends within them.
_READ_PAST_SPLIT_NBYTES = 64 << 10
# Assumed ratio of decompressed to compressed bytes.
_INFLATION = 10


@dataclass(frozen=True, slots=True, eq=False)
class UncountedSource(UncountedChunks):
    """Rows in uncounted TFRecord shards, in chunks with any number of rows."""

    chunks: ByteChunks
    decoder: Decoder
    check_crc: bool

    def __dask_tokenize__(self) -> object:
        chunks = (self.chunks.shards, self.chunks.borders)
        return normalize_token(("dask_tfrecord.UncountedSource", chunks, self.decoder, self.check_crc))

    @property
    def content(self) -> object:
        """Records of the shards, whatever their paths are."""
        return self.chunks.shards.without_paths(), self.chunks.borders, self.decoder, self.check_crc

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.decoder.columns

    @property
    def shards(self) -> Shards:
        """Shards of all chunks."""
        return self.chunks.shards

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions."""
        return shards_origin(self.shards)

    def describe_chunk(self, number: int) -> str:
        """Return the files and ranges of bytes of a chunk as text, for errors."""
        parts = [
            str(Location(shard.path)) + ("" if split is None else f": records from byte {split.start} to {split.stop}")
            for shard, split in self.chunks.byte_ranges(number)
        ]
        return " to ".join(dict.fromkeys([parts[0], parts[-1]])) if parts else "no records"

    def read_chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read all rows of a chunk."""
        return self._read(names, number, None)

    def read_chunk_where(self, names: Sequence[str], number: int, where: Where) -> dict[str, Block]:
        """Decode the tested columns, and the others for the records that are kept, in one pass."""
        if set(names) <= set(where.tested):
            return UncountedChunks.read_chunk_where(self, names, number, where)
        return self._read(names, number, where)

    def _read(self, names: Sequence[str], number: int, where: Where | None) -> dict[str, Block]:
        """Read a chunk; if a record is refused, read it again from a header that is certain."""
        ranges = list(self.chunks.byte_ranges(number))
        entries = [
            SplitEntry(0, 0) if split is None else find_entry(shard, split, check_crc=self.check_crc)
            for shard, split in ranges
        ]
        try:
            return self._decode(names, ranges, entries, where)
        except ShardChangedError:
            raise
        except (CorruptRecordError, FeatureError):
            if all(entry is None or entry.record is not None for entry in entries):
                raise
        # The first header that was found may be inside a payload, and record numbers are unknown. A walk from the start
        # of the shard determines both.
        certain = [SplitEntry(0, 0) if split is None else find_entry_by_walk(shard, split) for shard, split in ranges]
        return self._decode(names, ranges, certain, where)

    def first(self, names: Sequence[str], rows: int) -> dict[str, Block]:
        """Read the first rows, or all if there are fewer; only the headers of their shards up to there are walked."""
        runs = []
        for shard in self.chunks.shards:
            if rows <= 0:
                break
            count = 0
            with Window(shard) as window:
                for step in walk(window, check_crc=self.check_crc):
                    count = min(step.first + step.count, rows)
                    if count == rows:
                        break
            if count:
                runs.append(RecordRange(shard, 0, count, 0, 0, shard.size, ends_shard=False))
            rows -= count
        return decode(runs, self.decoder, names, rows=None, check_crc=self.check_crc, limit=block_limit())

    def _decode(
        self,
        names: Sequence[str],
        ranges: Sequence[tuple[Shard, ByteSplit | None]],
        entries: Sequence[SplitEntry | None],
        where: Where | None,
    ) -> dict[str, Block]:
        """Decode the records whose headers begin in ranges of bytes."""
        runs = [
            _run(shard, split, entry)
            for (shard, split), entry in zip(ranges, entries, strict=True)
            if entry is not None and (split is None or entry.offset < split.stop)
        ]
        limit = block_limit()
        return decode(runs, self.decoder, names, rows=None, check_crc=self.check_crc, limit=limit, where=where)


def decoded_ratio(shards: Shards, decoder: Decoder, check_crc: bool) -> float:
    """Estimate the ratio of decoded to stored bytes, at least 1, from the first records of the collection."""
    shard = next((shard for shard in shards if shard.size), None)
    if shard is None:
        return 1.0
    with Window(shard, stop=_RATIO_NBYTES) as window:
        nbytes = index_entries(window, stop=_RATIO_NBYTES, check_crc=check_crc).nbytes
        stored = nbytes if window.compression is None else nbytes / _INFLATION
    if not stored:  # compressed and empty
        return 1.0
    run = _run(shard, ByteSplit(0, _RATIO_NBYTES), SplitEntry(0, 0))
    # Values are not decoded: small records may decode to large ones.
    sizes = size_decoder(decoder)
    blocks = decode([run], sizes, tuple(sizes.columns), rows=None, check_crc=check_crc, limit=block_limit())
    return max(1.0, sum(map(block_nbytes, blocks.values())) / stored)


def _run(shard: Shard, split: ByteSplit | None, entry: SplitEntry) -> RecordRange:
    past = shard.size if split is None else min(shard.size, split.stop + _READ_PAST_SPLIT_NBYTES)
    record = entry.record or 0
    return RecordRange(shard, record, None, record, entry.offset, past, ends_shard=split is None, split=split)
