"""Layout of a Zarr group: its arrays, their write units, and the tasks that write them. Pure values.

All arrays are in one Zarr group. Dense and text columns are one array each. Columns of bytes, ragged columns and
columns of arrays with their own shapes become flat ``NAME.values`` and splits (see `dask_tfrecord.stores.flat_arrays`).
Columns of a group share ``GROUP.row_splits`` and the dimension ``GROUP``. Outermost splits and ``NAME.shapes`` are
chunked along rows; other splits and the values have grids of their own.

Exactly one task writes a write unit. For a flat array a unit is a shard, or a chunk of an array without shards; for
arrays that are chunked along rows, it is the chunks or shards of the same rows. A task reads the rows of some units of
rows, and also writes the flat units whose middle is in these rows. It reads other rows only for these flat units, so
that two tasks read the same rows only at the ends of a task.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import BorderCounts, Levels, is_flat

# Approximate units of a flat array per unit of rows.
FLAT_UNITS = 4


_PLURAL = re.compile("s(?=(_[0-9]+)?$)")


_BY_ROWS = ("dense", "row_splits", "shapes")


# Suffixes of the names of flat arrays.
_SUFFIX = re.compile("values|shapes|item_shapes|byte_splits|row_splits(_[0-9]+)?")


# Characters that Zarr or a file system refuses in a name; the dot separates the name of a column from its suffix.
_FORBIDDEN = frozenset('%.<>:"\\|?*') | {chr(code) for code in range(32)}


@dataclass(frozen=True, slots=True, eq=False)
class Dimensions:
    """Names of the dimensions of a store."""

    given: Mapping[str, Sequence[str]] | None = None
    rows: str = "record"
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Chunk grid along rows."""

    # Rows of a chunk.
    chunk: int
    # Rows of a write unit: a chunk, or a shard of chunks.
    unit: int
    # Most rows that a task reads at once.
    most: int


@dataclass(frozen=True, slots=True)
class GridOverrides:
    """Chunks and shards of arrays that differ from the grid of rows and the default sizes."""

    # Rows of a chunk and of a shard (of the chunk if there is no shard), by feature. A unit is a multiple of each.
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Entries of a chunk and of a shard, by the name of a flat array.
    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Decoded bytes of a chunk and of a shard of flat arrays.
    chunk_nbytes: int | None = None
    shard_nbytes: int | None = None

    def flat_grid(self, name: str, item_nbytes: int, length: int, units: float, sharded: bool) -> tuple[int, int]:
        """Return the entries of a chunk and of a write unit of a flat array.

        The array has `length` entries, in `units` units of rows.
        """
        if name in self.entries:
            return self.entries[name]
        item = max(1, item_nbytes)
        # Flat units begin and end near units of rows: rows across the end of a task are read by two tasks.
        share = max(1, math.ceil(length / max(units, 1.0)))
        parts = max(1, min(FLAT_UNITS, share * item // limits().flat_chunk_nbytes))
        most = max(1, min(math.ceil(share / parts), length))
        default = limits().chunk_nbytes if sharded else limits().write_unit_nbytes
        chunk = max(1, (self.chunk_nbytes or default) // item)
        if not sharded:
            return (_even(most, chunk),) * 2
        shard = _even(most, max(1, (self.shard_nbytes or limits().write_unit_nbytes) // item))
        chunk = _even(shard, chunk)
        return chunk, chunk * math.ceil(shard / chunk)


def _even(length: int, most: int) -> int:
    """Return the length of equal parts of at most `most` entries."""
    return math.ceil(length / math.ceil(length / most))


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the group."""

    # Name in the group.
    name: str
    # Feature that the array belongs to.
    feature: str
    # "dense", or the suffix of the name: "values", "row_splits", "row_splits_1" and so on, "byte_splits", "shapes",
    # "item_shapes".
    part: str
    shape: tuple[int, ...]
    # A NumPy dtype, or "string".
    dtype: str
    # Length of a chunk along the first axis; other axes are whole.
    chunk: int
    # Length of a write unit: a shard, or the chunk.
    unit: int
    # Names of the axes.
    dimensions: tuple[str, ...]
    # Group whose splits the array holds; `feature` is the first feature of that group.
    group: str | None = None

    @property
    def by_rows(self) -> bool:
        """True if the array is chunked along rows."""
        return self.part in _BY_ROWS

    def entry_nbytes(self, column_nbytes: Mapping[str, float]) -> float:
        """Return the decoded bytes of an entry along the first axis.

        Parameters
        ----------
        column_nbytes : mapping of str to float
            Decoded bytes of a row, by feature.
        """
        if self.dtype == "string":
            return column_nbytes[self.feature]
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ZarrLayout:
    """Arrays of a group, and counts for its write units."""

    nrows: int
    grid: RowGrid
    arrays: tuple[ArraySpec, ...]
    border_counts: BorderCounts

    def splits_attributes(self, schema: Schema) -> dict[str, dict[str, Any]]:
        """Return attributes of splits, by array: the dimension that they divide, and the group that they belong to.

        ``sample_dimension`` is that of contiguous ragged arrays in the CF conventions, section 9.3.3. CF stores counts,
        and splits are their cumulative sum: https://cfconventions.org/cf-conventions/cf-conventions.html
        """
        found: dict[str, dict[str, Any]] = {}
        for array in self.arrays:
            if array.group is not None:
                found.setdefault(array.name, {}).update(group=array.group, features=list(schema.groups[array.group]))
            if array.part == "values":
                last = Levels.from_feature(schema[array.feature]).splits[-1]
                own = f"{array.name.removesuffix('values')}{last}"
                name = splits_name(array.feature, schema) if last == "row_splits" else own
                found.setdefault(name, {})["sample_dimension"] = array.dimensions[0]
        return found

    @property
    def nunits(self) -> int:
        """Number of write units."""
        flat = (math.ceil(array.shape[0] / array.unit) for array in self.arrays if not array.by_rows)
        return self.nrow_units + sum(flat)

    @property
    def nrow_units(self) -> int:
        """Number of units of rows; without rows there is one, which holds the first split."""
        return max(1, math.ceil(self.nrows / self.grid.unit))


def array_name(feature: str) -> str:
    """Return the name of a feature in the group: ``/`` becomes ``.``, other forbidden characters are percent-encoded.

    Names of arrays are unique, suffixes included. The attributes of the group keep the true names.
    """
    if not feature:
        return "%"
    *parents, leaf = feature.split("/")
    # "x/values" must differ from the values of a ragged "x".
    joined = "%2F" if _SUFFIX.fullmatch(leaf) else "."
    head = ".".join(map(_quoted, parents))
    name = f"{head}{joined}{_quoted(leaf)}" if parents else _quoted(leaf)
    if name.startswith("__"):  # reserved by Zarr
        name = "%5F" + name[1:]
    if set(name) == {"."} or name == "zarr.json":
        name = name.replace(".", "%2F")
    return name[:-1] + "%20" if name.endswith(" ") else name


def splits_name(feature: str, schema: Schema) -> str:
    """Return the name of the outermost splits of a flat feature: those of its group, or its own."""
    return f"{array_name(schema.group_of(feature) or feature)}.row_splits"


def _quoted(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _FORBIDDEN else char for char in text)


def zarr_layout(
    schema: Schema,
    nrows: int,
    grid: RowGrid,
    border_counts: BorderCounts,
    overrides: GridOverrides | None = None,
    names: Dimensions = Dimensions(),
) -> ZarrLayout:
    """Lay out the arrays of a group.

    Parameters
    ----------
    schema : Schema
        Features.
    nrows : int
        Rows.
    grid : RowGrid
        Chunk grid along rows.
    border_counts : BorderCounts
        Item counts of the flat features, with a border at each unit of rows.
    overrides : GridOverrides, optional
        Grids of arrays that differ from the grid of rows.
    names : Dimensions, optional
        Names of the dimensions.
    """
    arrays: list[ArraySpec] = []
    overrides = overrides or GridOverrides()
    flat = _FlatLayout(schema, nrows, grid, border_counts, overrides, names.rows)
    for feature_name, feature in schema.items():
        name = array_name(feature_name)
        if is_flat(feature):
            arrays += flat.arrays(feature_name)
            continue
        dtype = "string" if feature.item_dtype.kind == "T" else feature.block_dtype.str
        shape = (nrows, *feature.block_shape)
        dimensions = (names.rows, *_axes(name, len(shape) - 1))
        grid_of_rows = overrides.rows.get(feature_name, (grid.chunk, grid.unit))
        arrays.append(ArraySpec(name, feature_name, "dense", shape, dtype, *grid_of_rows, dimensions))
    _check_groups(schema, arrays)
    return ZarrLayout(nrows, grid, tuple(_with_own_dimensions(arrays, names)), border_counts)


def _with_own_dimensions(arrays: Sequence[ArraySpec], given: Dimensions) -> Iterator[ArraySpec]:
    """Rename dimensions that have the name of an array: xarray would read that array as a coordinate."""
    names = {array.name for array in arrays}
    if given.indexed:
        names.discard(given.rows)
    for array in arrays:
        # The name of an array never ends with a percent sign.
        first, *inner = (name + "%" if name in names else name for name in array.dimensions)
        if array.part in ("dense", "values"):
            inner = list((given.given or {}).get(array.feature, inner))
        yield replace(array, dimensions=(first, *inner))


@dataclass(frozen=True, slots=True, eq=False)
class _FlatLayout:
    """Layout of the flat arrays of ragged and bytes features."""

    schema: Schema
    nrows: int
    grid: RowGrid
    border_counts: BorderCounts
    overrides: GridOverrides
    rows_name: str
    items_grids: dict[str, tuple[int, int]] = field(default_factory=dict)

    def arrays(self, feature_name: str) -> Iterator[ArraySpec]:
        """Yield the arrays of a feature; those of the first feature of a group include the splits of the group."""
        feature, name, group = self.schema[feature_name], array_name(feature_name), self.schema.group_of(feature_name)
        levels, items = Levels.from_feature(feature), self._items(feature_name)

        def spec(part: str, length: int, dtype: str, grid_of_array: tuple[int, int], *inner: int) -> ArraySpec:
            dimensions = (f"{name}.{_PLURAL.sub('', part)}", *_axes(name, len(inner)))
            if part == "shapes":
                dimensions = (self.rows_name, f"{name}.axis")
            return ArraySpec(f"{name}.{part}", feature_name, part, (length, *inner), dtype, *grid_of_array, dimensions)

        dtype, inner = ("|u1", ()) if feature.is_bytes else (feature.item_dtype.str, feature.item_shape)
        dtype = "string" if feature.item_dtype.kind == "T" else dtype
        if group is not None and len(levels.splits) == 1:
            if group not in self.items_grids:
                self.items_grids[group] = self._items_grid(group)
            values = spec("values", items[-1], dtype, self.items_grids[group], *inner)
            yield replace(values, dimensions=(self._dimension(group), *values.dimensions[1:]))
        else:
            yield spec("values", items[-1], dtype, self._flat_grid(feature_name, "values", levels.item_nbytes), *inner)
        rows = self._rows(feature_name)
        for part, stride in zip(levels.splits, levels.strides, strict=True):
            length = levels.entries(part, items) + 1
            if part not in _BY_ROWS:
                yield spec(part, length, "<i8", self._flat_grid(feature_name, part, 8))
                continue
            splits = spec(part, length, "<i8", (max(1, rows[0] * stride), max(1, rows[1] * stride)))
            if group is None:
                yield splits
            elif feature_name == self.schema.groups[group][0]:
                path = splits_name(feature_name, self.schema)
                yield replace(splits, name=path, dimensions=(path.removesuffix("s"),), group=group)
        if levels.shapes == "shapes":
            yield spec("shapes", self.nrows, "<i8", rows, levels.axes)
        elif levels.shapes is not None:
            grid = self._flat_grid(feature_name, levels.shapes, 8 * levels.axes)
            shapes = spec(levels.shapes, items[levels.shapes_level], "<i8", grid, levels.axes)
            items_dimension = f"{name}.item" if group is None else self._dimension(group)
            yield replace(shapes, dimensions=(items_dimension, f"{name}.axis"))

    def _items(self, feature_name: str) -> list[int]:
        found: list[int] = self.border_counts.items[feature_name][-1].tolist()
        return found

    def _rows(self, feature_name: str) -> tuple[int, int]:
        return self.overrides.rows.get(feature_name, (self.grid.chunk, self.grid.unit))

    def _flat_grid(self, feature_name: str, part: str, item_nbytes: int) -> tuple[int, int]:
        """Return the entries of a chunk and of a unit of an array of one feature."""
        levels, (chunk, unit) = Levels.from_feature(self.schema[feature_name]), self._rows(feature_name)
        length = levels.entries(part, self._items(feature_name)) + (part in levels.splits)
        name, units = f"{array_name(feature_name)}.{part}", self.nrows / self.grid.unit
        return self.overrides.flat_grid(name, item_nbytes, length, units, chunk != unit)

    def _items_grid(self, group: str) -> tuple[int, int]:
        """Return the items of a chunk and of a unit of all arrays along the items of a group: that of the largest."""
        levels = {name: Levels.from_feature(self.schema[name]) for name in self.schema.groups[group]}
        along = {name: each for name, each in levels.items() if len(each.splits) == 1}
        first, sharded = next(iter(along)), any(chunk != unit for chunk, unit in map(self._rows, along))
        nbytes = max(each.item_nbytes for each in along.values())
        length, units = self._items(first)[1], self.nrows / self.grid.unit
        return self.overrides.flat_grid(f"{array_name(first)}.values", nbytes, length, units, sharded)

    def _dimension(self, group: str) -> str:
        """Return the dimension of the items of a group."""
        return array_name(group) + ("%" if array_name(group) == self.rows_name else "")


def _check_groups(schema: Schema, arrays: Sequence[ArraySpec]) -> None:
    """Refuse a group whose splits or dimension have the name of another array or dimension.

    Raises
    ------
    SchemaError
        If there is one.
    """
    names = Counter(array.name for array in arrays)
    lengths: dict[str, set[int]] = {}
    for array in arrays:
        for dimension, size in zip(array.dimensions, array.shape, strict=True):
            lengths.setdefault(dimension, set()).add(size)
    for group in schema.groups:
        name = array_name(group)
        if names[f"{name}.row_splits"] > 1 or len(lengths.get(name, ())) > 1:
            raise SchemaError(
                f"group {group!r} has the name of a feature or dimension that does not belong to it: name the group "
                f"otherwise, as in groups={{'other': {list(schema.groups[group])[:3]}}}"
            )


def _axes(name: str, number: int) -> Iterator[str]:
    return (f"{name}.dim_{axis}" for axis in range(1, number + 1))


# Most units of rows of one task.
_MAX_ROW_UNITS = 8


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Entries that one task writes, and the rows that it reads for them."""

    # Number within the layout.
    number: int
    # Flat array; None for a unit of rows, of all arrays that are chunked along rows.
    array: ArraySpec | None
    # Range of entries of that array, or of rows.
    start: int
    stop: int
    # Range of rows that are read for it.
    first: int
    past: int
    # Items of each level of the flat features, rows first, before the first row and after the last one.
    before: Mapping[str, tuple[int, ...]]
    after: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Units that one task writes, and the rows that it reads."""

    # Units, those of rows first.
    units: tuple[WriteUnit, ...]
    # Ranges of rows that are read at once, ascending; each is entirely inside or outside of each unit.
    spans: tuple[tuple[int, int], ...]
    # Number in the key of the task.
    number: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """Range of all rows that it reads."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else (0, 0)

    def features(self, schema: Schema) -> list[str]:
        """Return the names of the features that it reads."""
        if any(unit.array is None for unit in self.units):
            return list(schema)
        names = {unit.array.feature for unit in self.units if unit.array is not None}
        return [name for name in schema if name in names]


def plan_units(layout: ZarrLayout, schema: Schema) -> Iterator[WriteUnit]:
    """Yield all write units of a layout, rows first."""
    number = count()
    for start, stop in _row_ranges(0, layout.nrows, layout.grid.unit):
        yield _row_unit(layout, next(number), start, stop)
    for array in layout.arrays:
        if not array.by_rows:
            level, stride = Levels.from_feature(schema[array.feature]).level_and_stride(array.part)
            before = layout.border_counts.items[array.feature][:, level] * stride
            for start in range(0, array.shape[0], array.unit):
                yield _flat_unit(layout, next(number), array, before, start, min(start + array.unit, array.shape[0]))


def plan_tasks(layout: ZarrLayout, units: Sequence[WriteUnit]) -> Iterator[WriteTask]:
    """Group units into tasks: flat units with the rows that hold most of their entries."""
    task_rows = layout.grid.unit * _row_units_per_task(layout)
    # A unit past the last row holds only the final split.
    last = max(layout.nrows - 1, 0)

    def task_number(unit: WriteUnit) -> int:
        return min((unit.first + unit.past) // 2, last) // task_rows

    for _, group in groupby(sorted(units, key=task_number), task_number):
        yield _task(layout, tuple(group))


def plan_single_tasks(layout: ZarrLayout, units: Iterable[WriteUnit]) -> Iterator[WriteTask]:
    """Make a task of each unit, for rows in memory: reading them again is free."""
    return (_task(layout, (unit,)) for unit in units)


def count_tasks(layout: ZarrLayout) -> int:
    """Count the tasks of all units."""
    return math.ceil(layout.nrow_units / _row_units_per_task(layout))


def _row_units_per_task(layout: ZarrLayout) -> int:
    return min(max(1, layout.nrow_units // limits().min_write_tasks), _MAX_ROW_UNITS)


def _task(layout: ZarrLayout, units: tuple[WriteUnit, ...]) -> WriteTask:
    """Divide the rows that units need into spans, at the ends of each unit."""
    borders = sorted({row for unit in units for row in (unit.first, unit.past)})
    spans: list[tuple[int, int]] = []
    for first, past in pairwise(borders):
        if any(unit.first <= first < unit.past for unit in units):
            spans += _spans(layout, first, past)
    return WriteTask(units, tuple(spans))


def _spans(layout: ZarrLayout, first: int, past: int) -> Iterable[tuple[int, int]]:
    if not layout.border_counts.items:
        return _row_ranges(first, past, layout.grid.most)
    low, high = np.searchsorted(layout.border_counts.rows, [first, past]).tolist()
    return layout.border_counts.spans(low, high, layout.grid.most)


def _row_unit(layout: ZarrLayout, number: int, start: int, stop: int) -> WriteUnit:
    counts = layout.border_counts
    if not counts.items:
        return WriteUnit(number, None, start, stop, start, stop, {}, {})
    low, high = np.searchsorted(counts.rows, [start, stop]).tolist()
    return WriteUnit(
        number, None, start, stop, start, stop, counts.at(low, counts.items), counts.at(high, counts.items)
    )


def _flat_unit(
    layout: ZarrLayout, number: int, array: ArraySpec, before: NDArray[np.int64], start: int, stop: int
) -> WriteUnit:
    """Return the unit of entries `start` to `stop`, with all rows that hold some of them."""
    counts = layout.border_counts
    low = int(np.searchsorted(before, start, side="right")) - 1
    # The last entry of splits does not belong to a row.
    high = max(low, int(np.searchsorted(before, min(stop, before[-1]), side="left")))
    first, past = counts.rows[[low, high]].tolist()
    names = (array.feature,)
    return WriteUnit(number, array, start, stop, first, past, counts.at(low, names), counts.at(high, names))


def _row_ranges(first: int, past: int, rows: int) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges; without rows there is one empty range, for the first split."""
    for start in range(first, max(past, first + 1), rows):
        yield start, min(start + rows, past)
