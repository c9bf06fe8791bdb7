"""Reading of Zarr groups that `to_zarr` wrote: `from_zarr`, its source, and the validation of attributes.

Any program may have changed the group. Every error names the store and the attribute, array or chunk.
"""

from __future__ import annotations

import json
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import zarr
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    concatenate,
    splits_of,
    take_rows,
    to_text,
    zero_rows,
)
from dask_tfrecord.errors import OVERWRITE, WRITE_AGAIN, IncompleteStoreError, Location, SchemaError, Spelled
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.chunk_borders import borders_by_rows
from dask_tfrecord.rows.collection import RowNumbers, pick_rows
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows, Outputs, join_into, parts
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.units import BorderCounts, Levels
from dask_tfrecord.stores.zarr.array_names import array_name, splits_name
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid
from dask_tfrecord.stores.zarr.layout import with_strings, zarr_layout
from dask_tfrecord.stores.zarr.run_folder import find_run
from dask_tfrecord.stores.zarr.store import TargetGroup, read_entries

# Most units of a group that is opened: each takes some bytes.
_MAX_UNITS = 1 << 26
_INT64 = np.iinfo(np.int64).max

# Function of the name of an array, the first entry and the end of the range.
_Read = Callable[[str, int, int], NDArray[Any]]


def rows_from_zarr(
    store: Any, *, component: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Rows:
    """Open a group that `to_zarr` wrote, under the original feature names.

    Parameters
    ----------
    store : str, Path or zarr store
        A path, a URL or a store.
    component : str, optional
        Path of the group within the store.
    storage_options : mapping, optional
        fsspec options for a URL.

    Returns
    -------
    Dataset
        One chunk per unit of rows in the store. If you select only columns with small rows, as in ``ds["label"]`` and
        ``ds[["label", "score"]]``, they have longer chunks: stored chunks, of up to 1 MiB together.
        ``ds["image", "label"]`` gives two arrays with the same chunks. To get the dimensions, coordinates and dates of
        an xarray Dataset that was written, call `xarray.open_zarr` instead.

    Raises
    ------
    FileNotFoundError
        If the group does not exist.
    UnsupportedFormatError
        If a newer version of this library wrote the group in a format that this version does not know.
    IncompleteStoreError
        If the conversion was never finished, or another program wrote the group. While rows are read, if one of their
        chunks is damaged, or missing (zarr would return fill values). This is also a `ValueError`.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr")["label"].dtype
    dtype('int64')
    """
    target = TargetGroup.from_arguments(store, component, storage_options)
    source = open_source(target)
    rows = len(source.rows)
    borders = _chunk_borders(target, rows) if source.is_virtual else borders_by_rows(rows, source.unit_rows)
    return Rows.of_source(source, borders)


def _chunk_borders(target: TargetGroup, rows: int) -> NDArray[np.int64]:
    """Return a virtual group's chunk borders, from pairs of row count and repeats."""
    found = _typed(target, target.own_attributes(target.open("r")), "chunk_rows", list)
    try:
        borders = splits_of(np.repeat(*np.array(found, np.int64).reshape(-1, 2).T))
    except (ValueError, TypeError, OverflowError) as error:
        raise _invalid(target, "chunk_rows", repr(found), "pairs of a number of rows and of chunks") from error
    if borders[-1] != rows or (np.diff(borders) < 1).any():
        raise _invalid(target, "chunk_rows", repr(found), f"{rows:,} rows in chunks of one row or more")
    return borders if rows else np.array([0, 0])


def open_source(target: TargetGroup) -> ZarrSource:
    """Open a complete group, and compare its attributes with its arrays, or raise IncompleteStoreError."""
    try:
        group = _OpenGroup.open(target).group
    except FileNotFoundError:
        if find_run(target) is not None:
            raise _unfinished(target) from None
        raise
    attributes = target.own_attributes(group)
    try:
        return _source(target, group, attributes)
    except IncompleteStoreError:
        if target.own_attributes(target.open("r")) == attributes:
            raise
    # A run has added to the group meanwhile.
    return open_source(target)


def _unfinished(target: TargetGroup) -> IncompleteStoreError:
    return IncompleteStoreError(
        "the conversion that wrote this group was never finished: "
        + Spelled("to_zarr(…, resume=True)", "to-zarr --resume")
        + " continues it, "
        + OVERWRITE
        + " starts over",
        target.location,
    )


def _source(target: TargetGroup, group: zarr.Group, attributes: Mapping[str, Any]) -> ZarrSource:
    if target.format_version(attributes) is None:
        raise IncompleteStoreError(
            "the group was not written by to_zarr; open it with xarray.open_zarr, zarr.open_group or da.from_zarr",
            target.location,
        )
    if not _typed(target, attributes, "complete", bool):
        raise _unfinished(target)
    source = _typed(target, attributes, "source", dict) if "source" in attributes else {}
    read_by = None if source.get("schema") is None else _typed(target, source, "schema", dict, "source.schema")
    of_records = None if read_by is None else _stored_schema(target, read_by, "source.schema")
    identity = _typed(target, attributes, "id", str)
    schema = _stored_schema(target, _typed(target, attributes, "schema", dict), "schema")
    if schema.records is None and of_records is not None:
        # Earlier versions did not write what a step made of the records.
        schema = schema.replaced(schema, records=of_records)
    records = _count(target, attributes, "records", 0)
    unit_rows = _count(target, attributes, "unit_rows", 1)
    virtual = "chunk_rows" in attributes
    chunk_rows = _check_arrays(target, group, with_strings(schema) if virtual else schema, records)
    if records // unit_rows > _MAX_UNITS:
        value = f"{unit_rows:,} for {records:,} records"
        raise _invalid(target, "unit_rows", value, f"at most {_MAX_UNITS:,} units of records")
    longer = {} if virtual else {name: rows for name, rows in chunk_rows.items() if rows > unit_rows}
    return ZarrSource(target, identity, schema, range(records), unit_rows, read_by, virtual, longer)


def _check_arrays(target: TargetGroup, group: Any, schema: Schema, records: int) -> dict[str, int]:
    """Compare each array with the schema and record count; return the rows in a dense chunk."""
    chunk_rows: dict[str, int] = {}
    counts = BorderCounts.concatenate(schema, [])
    for items in counts.items.values():
        items[-1, 0] = records
    try:
        layout = zarr_layout(schema, records, RowGrid(1, 1, 1), counts)
    except SchemaError as error:
        raise _invalid_schema(target, "schema", error) from error
    grown = cache(partial(_grown_lengths, target))
    _check_consolidated(target, group, grown, next((spec.name for spec in layout.arrays if spec.by_rows), None))
    for spec in layout.arrays:
        array = _array(target, group, spec.name)
        # Flat values have any length, and text any dtype. A run that adds rows sets the number of records last.
        shape = spec.shape
        if not spec.by_rows or (array.shape != shape and array.shape[:1] == (grown().get(spec.name),)):
            shape = (*array.shape[:1], *spec.shape[1:])
        dtype = array.dtype if spec.is_text else spec.memory_dtype
        if (array.shape, array.dtype) != (shape, dtype):
            lengths = spec.shape if spec.by_rows else ("any length", *spec.shape[1:])
            raise IncompleteStoreError(
                f"array {spec.name!r} has shape {array.shape} and dtype {array.dtype}; the attributes "
                f"dask_tfrecord.records ({records:,}) and dask_tfrecord.schema (feature {spec.feature!r}) "
                f"expect ({', '.join(map(str, lengths))}) and {'text' if spec.dtype == 'string' else dtype}. The group "
                f"was changed after it was written: " + WRITE_AGAIN,
                target.location,
            )
        if spec.part == "dense":
            # Rows of a virtual group are read by the borders of its chunks, which may differ in length.
            with suppress(NotImplementedError):
                chunk_rows[spec.feature] = array.chunks[0]
    return chunk_rows


def _grown_lengths(target: TargetGroup) -> Mapping[str, int]:
    """Return the lengths of arrays with the rows that a run is adding, or was adding when it ended."""
    found = find_run(target)
    return {} if found is None else {name: after for name, (_, after, _) in found[1].lengths.items()}


def _check_consolidated(
    target: TargetGroup, group: Any, grown: Callable[[], Mapping[str, int]], name: str | None
) -> None:
    """Compare an array of rows with the copy of its metadata in the group, which other programs do not change."""
    if name is None or group.metadata.consolidated_metadata is None:
        return
    path = f"{name}/zarr.json"
    found = target.objects(group).get([path])[path]
    try:
        rows = operator.index(json.loads(found or b"")["shape"][0])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        # `_array` reports metadata that cannot be read.
        return
    recorded = _array(target, group, name).shape[0]
    if rows != recorded and rows != grown().get(name):
        raise IncompleteStoreError(
            f"{path} has {rows:,} rows, and the consolidated metadata of the group {recorded:,}: another program has "
            f"changed the arrays since to_zarr wrote them. xarray.open_zarr(…, consolidated=False) opens them; "
            + WRITE_AGAIN,
            target.location,
        )


def _typed(
    target: TargetGroup, attributes: Mapping[str, Any], name: str, kind: type, full_name: str | None = None
) -> Any:
    """Return an attribute, which must have that type."""
    value = attributes.get(name)
    if type(value) is not kind:
        actual = repr(value) if name in attributes else "missing"
        raise _invalid(target, full_name or name, actual, kind.__name__)
    return value


def _count(target: TargetGroup, attributes: Mapping[str, Any], name: str, least: int) -> int:
    value: int = _typed(target, attributes, name, int)
    if not least <= value <= _INT64:
        raise _invalid(target, name, str(value), f"an integer from {least} on")
    return value


def _stored_schema(target: TargetGroup, document: Mapping[str, Any], name: str) -> Schema:
    try:
        return Schema.from_json(json.dumps(document))
    except (SchemaError, ValueError, RecursionError, OverflowError) as error:
        raise _invalid_schema(target, name, error) from error


def _invalid_schema(target: TargetGroup, name: str, error: Exception) -> IncompleteStoreError:
    return IncompleteStoreError(
        f"attribute dask_tfrecord.{name} of the group is not a valid schema ({error}): the group was changed after it "
        f"was written, or another program wrote it",
        target.location,
    )


def _invalid(target: TargetGroup, name: str, found: str, expected: str) -> IncompleteStoreError:
    found = found if len(found) <= 100 else found[:100] + "…"
    return IncompleteStoreError(
        f"attribute dask_tfrecord.{name} of the group is {found}; expected {expected}. The group was changed after it "
        f"was written, or another program wrote it",
        target.location,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ZarrSource(CountedRows):
    """Source of rows of a group that `to_zarr` wrote."""

    target: TargetGroup
    # Identity of the conversion; another identity means other data.
    identity: str
    schema: Schema
    # Rows of the group that the source returns.
    rows: RowNumbers
    # Rows of a write unit.
    unit_rows: int
    # JSON of the schema that read the rows from records; None for other rows.
    read_by: Mapping[str, Any] | None
    # The chunks are byte ranges of shards, and bytes values are values of arrays.
    is_virtual: bool = False
    # Rows of a chunk of the dense features that have longer chunks than a unit.
    chunk_rows: Mapping[str, int] = field(default_factory=dict)

    def __dask_tokenize__(self) -> object:
        # The rows themselves: the text of a long array is abbreviated.
        return normalize_token(("dask_tfrecord.ZarrSource", str(self.target), self.identity, self.rows))

    @property
    def content(self) -> object:
        """Rows of a conversion, wherever its store is."""
        return self.identity, self.rows

    @property
    def origin(self) -> Mapping[str, Any]:
        """The store, and the schema of the records it was converted from."""
        return {"store": str(self.target)} | ({} if self.read_by is None else {"schema": self.read_by})

    def borders_of(self, names: Sequence[str], borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return borders at the ends of stored chunks, if chunks of all columns are longer than a unit."""
        rows = self.rows
        if (
            not isinstance(rows, range)
            or rows.step != 1
            or not rows
            or not all(name in self.chunk_rows for name in names)
        ):
            return borders
        step = math.lcm(*(self.chunk_rows[name] for name in names))
        nbytes = sum(
            self.schema[name].block_dtype.itemsize * math.prod(self.schema[name].block_shape) for name in names
        )
        # Each small chunk would take a task longer to arrange than to read.
        step *= max(1, limits().chunk_nbytes // max(step * nbytes, 1))
        first = rows.start // step + 1
        return np.concatenate([[0], np.arange(first * step, rows.stop, step) - rows.start, [len(rows)]])

    def select(self, key: Any) -> ZarrSource:
        """Restrict the source to those rows."""
        return replace(self, rows=pick_rows(self.rows, key))

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read rows of some features."""
        return self._blocks(self._opened().read, names, key, out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span; a chunk of several consecutive spans is read once."""
        opened = self._opened()
        # Of a virtual group, only the rows of a range are decoded.
        read = opened.read if self.is_virtual else _LastChunks(opened).read
        return (self._blocks(read, names, key, into) for key, into in parts(spans, out))

    def _opened(self) -> _OpenGroup:
        opened = _OpenGroup.current(self.target, self.identity)
        if opened.identity != self.identity:
            raise IncompleteStoreError(
                "the group was replaced after it was opened: open it again", self.target.location
            )
        return opened

    def _blocks(
        self, read: _Read, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None
    ) -> dict[str, Block]:
        rows, splits = pick_rows(self.rows, key), dict[tuple[str, int, int], NDArray[Any]]()

        def once(name: str, start: int, stop: int) -> NDArray[Any]:
            """Read splits of a group for all of its columns."""
            if name not in shared_splits:
                return read(name, start, stop)
            if (name, start, stop) not in splits:
                splits[name, start, stop] = read(name, start, stop)
            return splits[name, start, stop]

        shared_splits = {splits_name(names[0], self.schema) for names in self.schema.groups.values()}
        return join_into([{name: self._block(once, name, rows) for name in names}], out)

    def _block(self, read: _Read, name: str, rows: RowNumbers) -> Block:
        if isinstance(rows, range) and rows.step == 1:
            return self._range(read, name, rows.start, rows.stop)
        # Rows of one unit are read as one range, and then picked.
        index = np.asarray(rows, np.int64)
        ascending, order = np.unique(index, return_inverse=True)
        borders = np.flatnonzero(np.diff(ascending // self.unit_rows)) + 1
        blocks = [
            take_rows(self._range(read, name, int(group[0]), int(group[-1]) + 1), group - group[0])
            for group in np.split(ascending, borders)
            if len(group)
        ]
        return take_rows(concatenate([zero_rows(self.schema[name]), *blocks]), order)

    def _range(self, read: _Read, name: str, start: int, stop: int) -> Block:
        if not self.is_virtual:
            return self._stored_range(self.schema[name], read, name, start, stop)
        column = self.schema[name]
        return _with_bytes(self._stored_range(with_strings(self.schema)[name], read, name, start, stop), column)

    def _stored_range(self, feature: Feature, read: _Read, name: str, start: int, stop: int) -> Block:
        """Read a column's rows from a feature's arrays."""
        path, levels = array_name(name), Levels.from_feature(feature)
        if not levels.splits:
            return read(path, start, stop)
        first, last = start, stop
        splits: list[NDArray[np.int64]] = []
        shapes = None
        for level, (suffix, stride) in enumerate(zip(levels.splits, levels.strides, strict=True)):
            if levels.shapes is not None and level == levels.shapes_level:
                shapes = read(f"{path}.{levels.shapes}", first, last)
            array = f"{path}.{suffix}" if splits else splits_name(name, self.schema)
            ends = read(array, first * stride, last * stride + 1)
            first, last = int(ends[0]), int(ends[-1])
            splits.append(ends - first)
        values = read(f"{path}.values", first, last)
        return levels.to_block(feature, stop - start, splits, values, shapes)


def _with_bytes(block: Any, column: Feature) -> Block:
    """Return a block of a virtual group with the values of its column: bytes, or text, which is stored as bytes."""
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_with_bytes(block.values, column), block.row_splits)
    if isinstance(block, ArraysBlock):
        values: Any = _with_bytes(block.values, column)
        return ArraysBlock(values, block.row_splits, block.shapes)
    if block.dtype != object:
        return np.asarray(block)
    values = BytesBlock.of(block.ravel().tolist(), block.shape)
    return values if column.is_bytes else to_text(values)


def _array(target: TargetGroup, group: zarr.Group, name: str) -> Any:
    """Open an array of a group to read it, or raise IncompleteStoreError."""
    try:
        array = group.get(name)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IncompleteStoreError(
            f"the metadata of array {name!r} cannot be read ({type(error).__name__}: {error}); " + WRITE_AGAIN,
            target.location,
        ) from error
    if not isinstance(array, zarr.Array):
        raise IncompleteStoreError(f"{name!r} is not an array of the group", target.location)
    # zarr refuses empty chunks itself where the chunks of an array differ in length, and lacks `chunks` for it.
    with suppress(NotImplementedError):
        if 0 in (*array.chunks[:1], *(array.shards or ())[:1]):
            raise IncompleteStoreError(f"chunk_shape of array {name!r} is 0, expected a row or more", target.location)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class _OpenGroup:
    """Group whose metadata the tasks of a process read once, until they change."""

    target: TargetGroup
    group: zarr.Group
    identity: Any
    # Marks of a group that another run has replaced: the process, and its file or the time.
    stamp: tuple[Any, ...]
    arrays: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, target: TargetGroup) -> _OpenGroup:
        """Read the metadata of a group, for all tasks of this process."""
        global _groups
        stamp = _stamp(target)
        group = target.open("r")
        opened = cls(target, group, target.own_attributes(group).get("id"), stamp)
        # Replaced as a whole: threads continue with the groups that they have.
        _groups = (opened, *(known for known in _groups if not _are_same(known.target, target)))[:_MOST_GROUPS]
        return opened

    @classmethod
    def current(cls, target: TargetGroup, identity: str) -> _OpenGroup:
        """Return the group; opened again if its file has changed, or, in other stores, after `look_again` seconds."""

        def known() -> _OpenGroup | None:
            same = (each for each in _groups if each.identity == identity and _are_same(each.target, target))
            return next((each for each in same if each._is_recent()), None)

        found = known()
        if found is None:
            with _opening:
                found = known() or cls.open(target)
        return found

    def _is_recent(self) -> bool:
        now = _stamp(self.target)
        if self.target.directory is not None:
            return now == self.stamp
        return bool(now[0] == self.stamp[0] and now[1] - self.stamp[1] < limits().look_again)

    def array(self, name: str) -> Any:
        """Return an array of the group."""
        if name not in self.arrays:
            self.arrays[name] = _array(self.target, self.group, name)
        return self.arrays[name]

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read entries of one array; `read_entries` and `_array` raise the errors."""
        location = Location(f"{self.target}/{name}")
        return read_entries(self.array(name), self.target.objects(self.group), location, start, stop)


# The last groups that tasks of this process have read.
_groups: tuple[_OpenGroup, ...] = ()
_MOST_GROUPS = 8
# Held by a thread that opens a group; others wait for it instead of opening it too.
_opening = threading.Lock()


def _are_same(one: TargetGroup, other: TargetGroup) -> bool:
    """Return whether two locations are one; stores of a worker are copies, and stores in memory are what they are."""
    if (one.component, one.storage_options) != (other.component, other.storage_options):
        return False
    first, second = one.store, other.store
    if isinstance(first, str | zarr.storage.FsspecStore | zarr.storage.ObjectStore) and type(first) is type(second):
        return bool(first == second)
    return first is second


def _stamp(target: TargetGroup) -> tuple[Any, ...]:
    """Return the process, and the identity of the file of the group, or the time where checking costs a request."""
    directory = target.directory
    if directory is None:
        return os.getpid(), time.monotonic()
    try:
        found = (directory / "zarr.json").stat()
    except OSError:
        return (os.getpid(),)
    return os.getpid(), found.st_mtime_ns, found.st_size, found.st_ino


class _LastChunks:
    """Reader of consecutive ranges. The last chunk of each array is kept for the next range."""

    def __init__(self, opened: _OpenGroup) -> None:
        self.opened = opened
        self.chunks: dict[str, tuple[int, NDArray[Any]]] = {}

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read entries of one array."""
        size = self.opened.array(name).chunks[0]
        if stop - start >= size or stop == start:
            return self.opened.read(name, start, stop)
        found = []
        for number in range(start // size, (stop - 1) // size + 1):
            first, chunk = self.chunks.get(name, (-1, None))
            if chunk is None or first != number * size:
                first, chunk = number * size, self.opened.read(name, number * size, (number + 1) * size)
                self.chunks[name] = first, chunk
            found.append(chunk[max(start - first, 0) : stop - first])
        return found[0] if len(found) == 1 else np.concatenate(found)
