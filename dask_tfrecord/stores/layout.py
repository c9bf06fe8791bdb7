"""What a store of a data set looks like: names, shapes, write units. Pure values, no store is touched here.

One flat group. Dense and text columns are one array each. Columns of bytes, of ragged rows and of arrays of their own
shapes are flat ``NAME.values`` and a chain of splits (see `dask_tfrecord.stores.levels`): ``NAME.row_splits``, which is
laid out by rows as ``NAME.shapes`` is, and the others and the values on grids of their own. A write unit is what one
task writes: a shard where arrays are sharded, else a chunk; no two tasks ever write into the same one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature, TextFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.levels import Levels, is_flat, is_part

__all__ = [
    "ArraySpec",
    "Cuts",
    "Layout",
    "RowGrid",
    "Tally",
    "array_name",
    "check_storable",
    "default_rows",
    "zarr_layout",
]

# Decoded bytes that an array has at most in a write unit, and in a chunk within a shard, where nobody says otherwise.
UNIT_NBYTES = 8 << 20
CHUNK_NBYTES = 1 << 20
# So many times as much all arrays have at most that are laid out by rows: where they are many, each has less.
ARRAYS_TOGETHER = 4
# Decoded bytes that a unit of rows may span where most of them are flat: its task reads those only for their lengths.
SPAN_NBYTES = 32 << 20
# Units of a flat array that a unit of rows has, more or less, and the decoded bytes of each if they are more than one.
FLAT_UNITS = 4
FLAT_NBYTES = 128 << 10
# Decoded bytes of flat features that a task has in hand at once, and the most between two borders of a tally.
PIECE_NBYTES = 8 << 20
GRANULE_NBYTES = 512 << 10

_PLURAL = re.compile("s(?=(_[0-9]+)?$)")
_BY_ROWS = ("dense", "row_splits", "shapes")
# What Zarr or some file system does not take in a name; the dot is ours, between a name and its part.
_FORBIDDEN = frozenset('%.<>:"\\|?*') | {chr(code) for code in range(32)}


@dataclass(frozen=True, slots=True)
class RowGrid:
    """How rows are cut.

    Attributes
    ----------
    chunk : int
        Rows of a chunk.
    unit : int
        Rows of a write unit: a chunk, or a shard of chunks.
    most : int
        Rows that a task reads at once.
    """

    chunk: int
    unit: int
    most: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where arrays are cut otherwise than the grid of rows and the sizes above say.

    Attributes
    ----------
    rows : dict of str to (int, int)
        Rows of a chunk, and of a shard or else of the chunk again, by feature; a unit of rows is a multiple of each.
    entries : dict of str to (int, int)
        The same in entries of flat arrays, by the name of the array.
    chunk_nbytes, shard_nbytes : int or None
        Decoded bytes of a chunk and of a shard of flat arrays.
    """

    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    chunk_nbytes: int | None = None
    shard_nbytes: int | None = None

    def flat(self, name: str, item_nbytes: int, length: int, units: float, sharded: bool) -> tuple[int, int]:
        """Entries of a chunk and of a write unit of a flat array, which has that many entries in so many row units."""
        if name in self.entries:
            return self.entries[name]
        item = max(1, item_nbytes)
        # They begin and end where units of rows do, as nearly as the sizes of rows allow: what lies across the end of a
        # task is read for two.
        share = max(1, math.ceil(length / max(units, 1.0)))
        parts = max(1, min(FLAT_UNITS, share * item // FLAT_NBYTES))
        most = max(1, min(math.ceil(share / parts), length))
        chunk = max(1, (self.chunk_nbytes or (CHUNK_NBYTES if sharded else UNIT_NBYTES)) // item)
        if not sharded:
            return (_even(most, chunk),) * 2
        whole = _even(most, max(1, (self.shard_nbytes or UNIT_NBYTES) // item))
        chunk = _even(whole, chunk)
        return chunk, chunk * math.ceil(whole / chunk)


def _even(length: int, most: int) -> int:
    """Entries of parts of the same length, none of which has more than `most`."""
    return math.ceil(length / math.ceil(length / most))


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
        ``"dense"``, or what comes behind the column's name: ``"values"``, ``"row_splits"``, ``"row_splits_1"`` and so
        on, ``"byte_splits"``, ``"shapes"``.
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

    @property
    def by_rows(self) -> bool:
        """Whether it is cut where rows are."""
        return self.part in _BY_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """How much the flat features hold before some borders between rows.

    Attributes
    ----------
    rows : ndarray of int64, shape (nborders,)
        The borders, ascending: the first row, every row where a unit of rows begins, the number of rows.
    items : dict of str to ndarray of int64, shape (nborders, levels)
        Items of each level of a feature before each border, rows first.
    sizes : ndarray of int64, shape (nborders,)
        Decoded bytes of all flat features before each border.
    """

    rows: NDArray[np.int64]
    items: dict[str, NDArray[np.int64]]
    sizes: NDArray[np.int64]

    @classmethod
    def joined(cls, schema: Schema, parts: Sequence[Tally]) -> Tally:
        """Put tallies of rows that follow each other together; each begins at its own first row with nothing."""
        none = np.zeros(1, np.int64)
        return cls(
            np.concatenate([none, *(part.rows[1:] for part in parts)]),
            {
                name: _running([part.items[name] for part in parts], (len(Levels.of(feature).splits) + 1,))
                for name, feature in schema.items()
                if is_flat(feature)
            },
            _running([part.sizes for part in parts], ()),
        )

    def at(self, border: int, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Items of some features before a border."""
        return {name: tuple(self.items[name][border].tolist()) for name in names}

    def spans(self, low: int, high: int, most_rows: int) -> tuple[tuple[int, int], ...]:
        """Rows between two borders, in pieces: of `PIECE_NBYTES` and of `most_rows`, where borders allow it."""
        cuts = [low]
        while cuts[-1] < high:
            last = cuts[-1]
            past = min(
                int(np.searchsorted(self.sizes, self.sizes[last] + PIECE_NBYTES, side="right")),
                int(np.searchsorted(self.rows, self.rows[last] + most_rows, side="right")),
            )
            cuts.append(min(max(past - 1, last + 1), high))
        return tuple(pairwise(self.rows[cuts].tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """All arrays of a group and what its tasks write.

    Attributes
    ----------
    nrows : int
        Rows.
    grid : RowGrid
        How rows are cut.
    arrays : tuple of ArraySpec
        In the order of the features.
    tally : Tally
        Of the flat features.
    """

    nrows: int
    grid: RowGrid
    arrays: tuple[ArraySpec, ...]
    tally: Tally

    @property
    def nunits(self) -> int:
        """How many write units there are."""
        flat = (math.ceil(array.shape[0] / array.unit) for array in self.arrays if not array.by_rows)
        return self.nrow_units + sum(flat)

    @property
    def nrow_units(self) -> int:
        """How many of them are of rows; one where there are none, which has the first split."""
        return max(1, math.ceil(self.nrows / self.grid.unit))


def default_rows(nbytes: int, largest: float, laid_by_rows: float, altogether: float) -> int:
    """Rows of which an array has no more than `nbytes`, in a unit or a chunk.

    Parameters
    ----------
    nbytes : int
        Decoded bytes of the largest array.
    largest, laid_by_rows, altogether : float
        Decoded bytes of a row: in the largest array that is laid out by rows, in all of these, and in all there are.
    """
    each = max(largest, laid_by_rows / ARRAYS_TOGETHER, altogether * UNIT_NBYTES / SPAN_NBYTES, 1.0)
    return max(1, int(nbytes / each))


def check_storable(schema: Schema) -> None:
    """Refuse dtypes that Zarr has no name for.

    Raises
    ------
    SchemaError
        If there is one; what to make of it is said.
    """
    for name, feature in schema.items():
        if feature.item_dtype.kind not in "biufcOT":
            block = f"blocks[{name!r}]"
            cast = f"{block}.astype('float32')"
            if feature.ragged_rank == 1:
                cast = f"RaggedBlock({block}.values.astype('float32'), {block}.row_splits)"
            elif feature.block_dtype.kind == "O":
                cast = f"[row.astype('float32') for row in {block}] and a template"
            raise SchemaError(
                f"column {name!r} is of dtype {feature.item_dtype}, which Zarr has no name for: make float32 of it "
                f"with map_blocks and {cast}"
            )


def array_name(feature: str) -> str:
    """Name of a feature in the group: ``/`` becomes ``.``, what can't stand in a name is percent-encoded.

    No two features share a name, nor does one share the name of another's part. The group's attributes keep the true
    names.
    """
    if not feature:
        return "%"
    *parents, leaf = feature.split("/")
    # "x/values" would be the values of a ragged "x".
    joined = "%2F" if is_part(leaf) else "."
    head = ".".join(map(_quoted, parents))
    name = f"{head}{joined}{_quoted(leaf)}" if parents else _quoted(leaf)
    if name.startswith("__"):  # reserved by Zarr
        name = "%5F" + name[1:]
    if set(name) == {"."} or name == "zarr.json":
        name = name.replace(".", "%2F")
    return name[:-1] + "%20" if name.endswith(" ") else name


def _quoted(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _FORBIDDEN else char for char in text)


def zarr_layout(
    schema: Schema,
    nrows: int,
    grid: RowGrid,
    tally: Tally,
    cuts: Cuts | None = None,
    axes: Mapping[str, Sequence[str]] | None = None,
) -> Layout:
    """Lay out the arrays of a group.

    Parameters
    ----------
    schema : Schema
        The features.
    nrows : int
        Rows.
    grid : RowGrid
        How rows are cut.
    tally : Tally
        Of the flat features, with a border wherever a unit of rows begins.
    cuts : Cuts, optional
        Where arrays are cut otherwise.
    axes : mapping of str to sequence of str, optional
        Names of the axes behind the first, by feature, of dense arrays and of values.
    """
    arrays: list[ArraySpec] = []
    cuts = cuts or Cuts()
    for feature_name, feature in schema.items():
        name = array_name(feature_name)
        if is_flat(feature):
            arrays += _flat_arrays(name, feature_name, feature, nrows, grid, tally, cuts)
            continue
        dtype = "string" if isinstance(feature, TextFeature) else feature.block_dtype.str
        shape = (nrows, *feature.block_shape)
        dimensions = ("record", *_axes(name, len(shape) - 1))
        cut = cuts.rows.get(feature_name, (grid.chunk, grid.unit))
        arrays.append(ArraySpec(name, feature_name, "dense", shape, dtype, *cut, dimensions))
    return Layout(nrows, grid, tuple(_with_own_dimensions(arrays, axes or {})), tally)


def _with_own_dimensions(arrays: Sequence[ArraySpec], axes: Mapping[str, Sequence[str]]) -> Iterator[ArraySpec]:
    """Keep dimensions apart from arrays: xarray reads an array of a dimension's name at once, as its coordinate."""
    names = {array.name for array in arrays}
    for array in arrays:
        # No array's name ends like that.
        first, *inner = (name + "%" if name in names else name for name in array.dimensions)
        if array.part in ("dense", "values"):
            inner = list(axes.get(array.feature, inner))
        yield replace(array, dimensions=(first, *inner))


def _flat_arrays(
    name: str, feature_name: str, feature: Feature, nrows: int, grid: RowGrid, tally: Tally, cuts: Cuts
) -> Iterator[ArraySpec]:
    levels, items = Levels.of(feature), tally.items[feature_name][-1].tolist()

    def spec(part: str, length: int, dtype: str, cuts: tuple[int, int], *inner: int) -> ArraySpec:
        dimensions = (f"{name}.{_PLURAL.sub('', part)}", *_axes(name, len(inner)))
        if part == "shapes":
            dimensions = ("record", f"{name}.axis")
        return ArraySpec(f"{name}.{part}", feature_name, part, (length, *inner), dtype, *cuts, dimensions)

    rows = cuts.rows.get(feature_name, (grid.chunk, grid.unit))
    sharded = rows[0] != rows[1]

    def flat(part: str, item_nbytes: int, length: int) -> tuple[int, int]:
        return cuts.flat(f"{name}.{part}", item_nbytes, length, nrows / grid.unit, sharded)

    dtype, inner = ("|u1", ()) if feature.is_bytes else (feature.item_dtype.str, feature.item_shape)
    yield spec("values", items[-1], dtype, flat("values", levels.item_nbytes, items[-1]), *inner)
    for part, stride in zip(levels.splits, levels.strides, strict=True):
        length = levels.entries(part, items) + 1
        by_rows = max(1, rows[0] * stride), max(1, rows[1] * stride)
        yield spec(part, length, "<i8", by_rows if part in _BY_ROWS else flat(part, 8, length))
    if levels.axes:
        yield spec("shapes", nrows, "<i8", rows, levels.axes)


def _axes(name: str, number: int) -> Iterator[str]:
    return (f"{name}.dim_{axis}" for axis in range(1, number + 1))


def _running(parts: Sequence[NDArray[np.int64]], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Join running totals of that shape that each begin at nothing."""
    steps = [np.diff(part, axis=0) for part in parts]
    return np.cumsum(np.concatenate([np.zeros((1, *shape), np.int64), *steps]), axis=0)
