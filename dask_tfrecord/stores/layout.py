"""What a store of a data set looks like: names, shapes, write units. Pure values, no store is touched here.

One flat group. Dense and text features are one array each. Bytes and ragged features are flat ``NAME.values`` and
``NAME.row_splits`` (ragged bytes have ``NAME.byte_splits`` between them), on grids of their own. A write unit is what
one task writes: a shard where arrays are sharded, else a chunk; no two tasks ever write into the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.schema import Feature, FixedLenFeature, Schema, TextFeature, VarLenFeature

__all__ = [
    "ArraySpec",
    "GranuleCounts",
    "Layout",
    "Tally",
    "Unit",
    "array_name",
    "is_flat",
    "row_units",
    "splits_per_row",
    "tally",
    "zarr_layout",
]

# Decoded bytes of a write unit and of a chunk within a shard, where nobody says otherwise.
UNIT_NBYTES = 8 << 20
CHUNK_NBYTES = 1 << 20

_PARTS = ("values", "row_splits", "byte_splits")
# What Zarr or some file system does not take in a name; the dot is ours, between a name and its part.
_FORBIDDEN = frozenset('%.<>:"\\|?*') | {chr(code) for code in range(32)}


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the group.

    Attributes
    ----------
    name : str
        Its name there.
    feature : str
        The feature that it belongs to.
    part : str
        ``"dense"``, ``"values"``, ``"row_splits"`` or ``"byte_splits"``.
    shape : tuple of int
        Its shape.
    dtype : str
        A NumPy dtype, or ``"string"``.
    chunk : int
        Length of a chunk along the first axis; other axes are whole.
    unit : int
        Length of a write unit: a shard, or the chunk.
    dimensions : tuple of str
        Names of the axes.
    """

    name: str
    feature: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    chunk: int
    unit: int
    dimensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task writes.

    Attributes
    ----------
    array : ArraySpec or None
        The flat array of which entries are written; None for rows of everything that is laid out by rows.
    start, stop : int
        Entries of that array, or rows.
    rows : tuple of int
        First row and past-the-last row that have to be read for it.
    """

    array: ArraySpec | None
    start: int
    stop: int
    rows: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class GranuleCounts:
    """What some granules of rows of one flat feature hold.

    Attributes
    ----------
    values : ndarray of int64, shape (ngranules,)
        Values, as rows of `RaggedBlock.values`; bytes values of a fixed feature.
    nbytes : ndarray of int64, shape (ngranules,)
        Bytes, of bytes features.
    """

    values: NDArray[np.int64]
    nbytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """How many values and bytes the flat features hold, up to the border of each granule of rows.

    Attributes
    ----------
    granule : int
        Rows of a granule; units of rows are a whole number of them.
    values : dict of str to ndarray of int64, shape (ngranules + 1,)
        Values of ragged features before each border.
    nbytes : dict of str to ndarray of int64, shape (ngranules + 1,)
        Bytes of bytes features before each border.
    """

    granule: int
    values: dict[str, NDArray[np.int64]]
    nbytes: dict[str, NDArray[np.int64]]

    def entries(self, array: ArraySpec, feature: Feature) -> NDArray[np.int64]:
        """Entries of a flat array before each border."""
        if array.part == "byte_splits":
            return self.values[array.feature] * math.prod(feature.shape[1:])
        return (self.nbytes if feature.dtype == "bytes" else self.values)[array.feature]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """All arrays of a group and the tasks that write them.

    Attributes
    ----------
    nrows : int
        Rows.
    unit_rows : int
        Rows of a write unit.
    arrays : tuple of ArraySpec
        In the order of the features.
    tally : Tally
        Of the flat features.
    """

    nrows: int
    unit_rows: int
    arrays: tuple[ArraySpec, ...]
    tally: Tally

    def units(self, schema: Schema) -> Iterator[Unit]:
        """Every write unit, rows first."""
        for start, stop in row_units(self.nrows, self.unit_rows):
            yield Unit(None, start, stop, (start, stop))
        for array in self.arrays:
            if array.part in ("values", "byte_splits"):
                for start in range(0, array.shape[0], array.unit):
                    stop = min(start + array.unit, array.shape[0])
                    yield Unit(array, start, stop, self._rows(array, schema[array.feature], start, stop))

    def _rows(self, array: ArraySpec, feature: Feature, start: int, stop: int) -> tuple[int, int]:
        """Whole granules of rows that hold entries ``start`` to ``stop``."""
        before = self.tally.entries(array, feature)
        first = min(int(np.searchsorted(before, start, side="right")) - 1, max(len(before) - 2, 0))
        last = int(np.searchsorted(before, stop, side="left"))
        return min(first * self.tally.granule, self.nrows), min(last * self.tally.granule, self.nrows)


def row_units(nrows: int, unit_rows: int) -> Iterator[tuple[int, int]]:
    """First row and past-the-last row of each unit; a group without rows still has one, which writes the first split."""
    for start in range(0, max(nrows, 1), unit_rows):
        yield start, min(start + unit_rows, nrows)


def is_flat(feature: Feature) -> bool:
    """Whether a feature is laid out as flat values and splits."""
    return isinstance(feature, VarLenFeature) or (isinstance(feature, FixedLenFeature) and feature.dtype == "bytes")


def splits_per_row(schema: Schema, name: str) -> int:
    """Entries of ``NAME.row_splits`` for each row: a fixed bytes feature has one per value."""
    feature = schema[name]
    return math.prod(feature.shape) if isinstance(feature, FixedLenFeature) else 1


def array_name(feature: str) -> str:
    """Name of a feature in the group: ``/`` becomes ``.``, what can't stand in a name is percent-encoded.

    No two features share a name, nor does one share the name of another's part. The group's attributes keep the true
    names.
    """
    if not feature:
        return "%"
    *parents, leaf = feature.split("/")
    # "x/values" would be the values of a ragged "x".
    joined = "%2F" if leaf in _PARTS else "."
    head = ".".join(map(_quoted, parents))
    name = f"{head}{joined}{_quoted(leaf)}" if parents else _quoted(leaf)
    if name.startswith("__"):  # reserved by Zarr
        name = "%5F" + name[1:]
    if set(name) == {"."} or name == "zarr.json":
        name = name.replace(".", "%2F")
    return name[:-1] + "%20" if name.endswith(" ") else name


def _quoted(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _FORBIDDEN else char for char in text)


def zarr_layout(schema: Schema, nrows: int, chunk_rows: int, unit_rows: int, counts: Tally) -> Layout:
    """Lay out the arrays of a group.

    Parameters
    ----------
    schema : Schema
        The features.
    nrows : int
        Rows.
    chunk_rows, unit_rows : int
        Rows of a chunk and of a write unit; they differ where arrays are sharded.
    counts : Tally
        Of the flat features.
    """
    arrays: list[ArraySpec] = []
    for feature_name, feature in schema.items():
        name = array_name(feature_name)
        if is_flat(feature):
            arrays += _flat_arrays(name, feature_name, feature, nrows, (chunk_rows, unit_rows), counts)
            continue
        dtype = "string" if isinstance(feature, TextFeature) else feature.block_dtype.str
        shape = (nrows, *feature.block_shape)
        dimensions = ("record", *(f"{name}.dim_{axis}" for axis in range(1, len(shape))))
        arrays.append(ArraySpec(name, feature_name, "dense", shape, dtype, chunk_rows, unit_rows, dimensions))
    return Layout(nrows, unit_rows, tuple(arrays), counts)


def _flat_arrays(
    name: str, feature_name: str, feature: Feature, nrows: int, grid: tuple[int, int], counts: Tally
) -> Iterator[ArraySpec]:
    sharded = grid[0] != grid[1]
    ragged = isinstance(feature, VarLenFeature)
    inner = feature.shape[1:] if ragged else ()
    is_bytes = feature.dtype == "bytes"
    values = int((counts.nbytes if is_bytes else counts.values)[feature_name][-1])
    dtype = "|u1" if is_bytes else np.dtype(feature.dtype).str
    item = np.dtype(dtype).itemsize * (1 if is_bytes else math.prod(inner))

    def flat(part: str, length: int, dtype: str, item: int, dimension: str, inner: tuple[int, ...] = ()) -> ArraySpec:
        whole = max(1, UNIT_NBYTES // item)
        chunk = max(1, min(CHUNK_NBYTES // item if sharded else whole, length))
        unit = chunk * max(1, whole // chunk) if sharded else chunk
        dimensions = (dimension, *(f"{name}.dim_{axis}" for axis in range(1, len(inner) + 1)))
        return ArraySpec(f"{name}.{part}", feature_name, part, (length, *inner), dtype, chunk, unit, dimensions)

    yield flat("values", values, dtype, item, f"{name}.value", () if is_bytes else inner)
    per_row = 1 if ragged else math.prod(feature.shape)
    chunk, unit = (max(1, rows * per_row) for rows in grid)
    splits = (nrows * per_row + 1,)
    yield ArraySpec(
        f"{name}.row_splits", feature_name, "row_splits", splits, "<i8", chunk, unit, (f"{name}.row_split",)
    )
    if ragged and is_bytes:
        count = int(counts.values[feature_name][-1])
        yield flat("byte_splits", count * math.prod(inner) + 1, "<i8", 8, f"{name}.byte_split")


def tally(granule: int, counted: Sequence[Mapping[str, GranuleCounts]], schema: Schema) -> Tally:
    """Add up what the counting tasks found."""
    flat = [name for name, feature in schema.items() if is_flat(feature)]
    return Tally(
        granule,
        {name: _before([part[name].values for part in counted]) for name in flat},
        {name: _before([part[name].nbytes for part in counted]) for name in flat},
    )


def _before(counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The sum of all counts before each border."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]))])
