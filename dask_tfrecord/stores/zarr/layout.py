"""Layout of a conversion to Zarr: options, arrays, write units, tasks, memory. Nothing is written."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.markup import json_number
from dask_tfrecord.options import ZarrOptions
from dask_tfrecord.rows.graph import Rechunked
from dask_tfrecord.rows.inputs import Inputs
from dask_tfrecord.rows.memory import MemoryBudget, Workers
from dask_tfrecord.rows.progress import run_uninterrupted
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.documents import Count, ObjectName, Positive
from dask_tfrecord.stores.units import BorderCounts, Levels, RowSizes, RowTasks, is_flat
from dask_tfrecord.stores.zarr.array_names import array_name, check_names, splits_name
from dask_tfrecord.stores.zarr.chunk_grid import (
    STRING_NBYTES,
    UNITS_OF_A_TASK,
    ChunkRequest,
    GridOverrides,
    RowGrid,
    least_tasks,
    unit_rows,
)
from dask_tfrecord.stores.zarr.codec import ImageCodec
from dask_tfrecord.stores.zarr.compat import array_metadata, constant_array
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint, digest


@dataclass(frozen=True, slots=True, eq=False)
class ConversionRequest:
    """Validated inputs and options of a conversion."""

    rows: Rows
    schema: Schema
    options: ZarrOptions
    chunks: ChunkRequest
    names: Dimensions
    attributes: UserAttributes
    # Features whose images are not decoded.
    encoded_images: tuple[str, ...] = ()
    fingerprint: Fingerprint = field(default_factory=Fingerprint)

    @classmethod
    def from_arguments(
        cls,
        arrays: Mapping[str, Any],
        options: ZarrOptions,
        *,
        grows: bool = False,
        encoded: Sequence[str] | None = None,
    ) -> ConversionRequest:
        """Validate the arguments of a conversion, before any row is read; `grows` if rows will be appended.

        Images of the columns `encoded` are not decoded, by default in all columns that allow it.
        """
        chunks = ChunkRequest.from_arguments(options["chunks"], options["shards"], grows=grows)
        inputs, groups = Inputs.from_arrays(arrays, keep_constants=True), options["groups"]
        rows = inputs.rows
        rows.check_counted()
        schema = rows.schema if groups is None else _with_groups(rows.schema, groups)
        check_storable(schema)
        names = Dimensions.from_inputs(inputs, options["dimension_names"])
        attributes = UserAttributes.from_inputs(inputs)
        inputs.warn_of_attributes(attributes.omitted)
        images = _images_of_one_size(rows) if options["encoded_images"] else ()
        images = images if encoded is None else tuple(name for name in encoded if name in images)
        request = cls(rows, schema, options, chunks, names, attributes, images)
        request._check()
        fingerprint = Fingerprint.from_rows(rows, schema, request._options_json())
        return replace(request, rows=rows.encoded(images) if images else rows, fingerprint=fingerprint)

    def keep_encoded(self, spec: ArraySpec) -> ArraySpec:
        """Return an array, with one encoded image a chunk if its images are not decoded."""
        return replace(spec, chunk=1, encoded=True) if spec.feature in self.encoded_images else spec

    def _options_json(self) -> dict[str, Any]:
        """Return the options that decide what is written, for the fingerprint."""
        options = self.options
        fills = {name: json_value(value) for name, value in (options["fill_values"] or {}).items()}
        return {
            **self.chunks.to_json(),
            "compressors": _document(options["compressors"]),
            "filters": _document(options["filters"]),
            **self.names.to_json(),
            "fill_values": fills or None,
            **self.attributes.to_json(),
            "consolidated": bool(options["consolidated"]),
            **({"encoded_images": list(self.encoded_images)} if self.encoded_images else {}),
        }

    def _check(self) -> None:
        """Refuse options that do not fit the features. Chunk sizes depend on the size of rows and are checked later."""
        schema, fills = self.schema, self.options["fill_values"]
        splits = {splits_name(name, schema) for name in schema if is_flat(schema[name])}
        for option in ("compressors", "filters"):
            codecs = self.options[option]
            if _is_by_name(codecs):
                check_names(option, [name for name in codecs if name not in splits], schema)
            for given in codecs.values() if _is_by_name(codecs) else (codecs,):
                if given != "auto" and (named := [codec for codec in _as_tuple(given) if isinstance(codec, str | int)]):
                    raise ValueError(
                        f"{option} must be 'auto', None, or objects of zarr.codecs; got {named[0]!r:.100}: write "
                        f"compressors=zarr.codecs.GzipCodec() for gzip, or zarr.codecs.ZstdCodec(level=3) for Zstandard"
                    )
        if fills is not None and not isinstance(fills, Mapping):
            raise ValueError(f"fill_values must map features or flat arrays to values; got {fills!r}")
        check_names("fill_values", fills or {}, schema)
        # Without rows: only axes after the first are checked.
        arrays = arrays_without_rows(schema, replace(self.names, given=None))
        self.names.check(schema, arrays)
        for spec in arrays:
            self._fill_value(spec)

    def create_arguments(self, layout: ZarrLayout) -> dict[str, dict[str, Any]]:
        """Return the arguments of `zarr.create_array` for each array, by its name."""
        splits = layout.splits_attributes(self.schema)
        created = {spec.name: self._create_arguments(spec) for spec in layout.arrays}
        for name, attributes in splits.items():
            created[name]["attributes"] |= attributes
        return created

    def _create_arguments(self, spec: ArraySpec) -> dict[str, Any]:
        schema, filters = self.schema, self.options["filters"]
        inner = tuple(max(1, size) for size in spec.shape[1:])
        # Filters of a feature do not apply to its splits.
        compressors = _pick(self.options["compressors"], spec, _default_compressors(spec, schema))
        codecs: dict[str, Any] = {"compressors": compressors, "serializer": "auto"}
        if spec.encoded:
            codecs = {"compressors": (), "serializer": ImageCodec(Schema({"image": schema[spec.feature]}).to_json())}
        filterable = spec.part in ("dense", "values") or (_is_by_name(filters) and spec.name in filters)
        return {
            "shape": spec.shape,
            "dtype": spec.dtype,
            "chunks": (spec.chunk, *inner),
            "shards": (spec.unit, *inner) if spec.unit != spec.chunk else None,
            **codecs,
            "filters": _pick(filters, spec, ()) if filterable and not spec.encoded else (),
            "fill_value": self._fill_value(spec),
            "dimension_names": spec.dimensions,
            "attributes": array_attributes(spec, schema, self.attributes.arrays),
        }

    def _fill_value(self, spec: ArraySpec) -> Any:
        """Return the fill value of an array: the value that the user gave, the scalar default of its feature, or zero.

        Raises ValueError if the dtype of the array cannot hold it.
        """
        given, schema = self.options["fill_values"] or {}, self.schema
        if spec.name in given and spec.name not in schema:
            return _checked(given[spec.name], spec.dtype, spec.name)
        if spec.feature in given and spec.part in ("dense", "values"):
            return _checked(given[spec.feature], spec.dtype, spec.feature)
        default = getattr(schema[spec.feature], "default_value", None)
        if spec.part == "dense" and default is not None and not isinstance(default, tuple):
            return _checked(default, spec.dtype, spec.feature)
        return "" if spec.is_text else np.zeros((), spec.dtype)[()]


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A planned conversion."""

    request: ConversionRequest
    layout: ZarrLayout
    # Metadata of the arrays, by name; none if the group of an interrupted conversion has them.
    metadata: Mapping[str, Any]
    sizes: RowSizes
    ntasks: int
    memory: MemoryBudget
    memory_limit: int | None
    rechunks: tuple[Rechunked, ...]

    def check_memory(self) -> None:
        """Raise `ValueError` if the conversion exceeds the memory of a worker."""
        excess = self.memory.excess(self.memory_limit)
        if excess is not None:
            raise ValueError(excess)


def plan_conversion(request: ConversionRequest, layout: ZarrLayout | None = None) -> Conversion:
    """Plan a conversion: count variable-length columns, choose the chunk grid, estimate the memory.

    `layout` comes from an interrupted conversion.
    """
    rows, schema = request.rows, request.schema
    workers = Workers.active().with_memory_limit(request.options["memory_limit"])
    row_tasks = RowTasks(rows, uuid.uuid4().hex, schema)
    sizes = row_tasks.row_sizes()
    created: Mapping[str, Any] = {}
    if layout is None:
        nrows = rows.nrows or 0
        shares_reads = row_tasks.source is not None
        grid, overrides = request.chunks.resolve(schema, nrows, sizes, shares_reads=shares_reads)
        border_counts = row_tasks.count_borders(overrides.units(grid), grid.most)
        layout = zarr_layout(schema, nrows, grid, border_counts, overrides, request.names)
        layout = replace(layout, arrays=tuple(map(request.keep_encoded, layout.arrays)))
        arguments = request.create_arguments(layout)
        created = run_uninterrupted(lambda: array_metadata(arguments))
    rechunks = rows.merged().rechunked
    read_nbytes = _held_nbytes(layout, row_tasks, sizes, workers.threads) + sum(each.held_nbytes for each in rechunks)
    shares_reads = row_tasks.source is not None
    ntasks = len(row_tasks_of(layout)) - 1 if shares_reads else layout.nunits
    memory = MemoryBudget.from_units(workers, ntasks, _unit_nbytes(layout, sizes), read_nbytes, together=shares_reads)
    return Conversion(request, layout, created, sizes, ntasks, memory, workers.memory_limit, rechunks)


def _unit_nbytes(layout: ZarrLayout, sizes: RowSizes) -> dict[str, tuple[int, bool]]:
    """Return the decoded bytes of each kind of unit, and whether it is a shard."""
    units, names = {"rows": (0, False)}, {layout.grid.unit: "rows"}
    for spec in layout.arrays:
        entry = spec.entry_nbytes(sizes.columns) + (STRING_NBYTES if spec.is_text else 0)
        name, entries = spec.name, spec.unit
        if spec.by_rows:
            stride = spec.unit // spec.rows if spec.part == "row_splits" else 1
            name, entries = names.setdefault(spec.rows, spec.name), spec.rows * max(stride, 1)
        nbytes, sharded = units.get(name, (0, False))
        units[name] = nbytes + int(min(entries, spec.shape[0]) * entry), sharded or spec.unit != spec.chunk
    return units


def _held_nbytes(layout: ZarrLayout, row_tasks: RowTasks, sizes: RowSizes, threads: int) -> int:
    """Return the decoded bytes of rows that a task holds: the block that it reads, and a copy of it."""
    block = min(layout.grid.most, layout.nrows) * sizes.read
    counts = layout.border_counts
    if counts.items:
        # A row is never split, so the rows between two borders may exceed the size of a block.
        block = max(block, min(limits().read_nbytes, int(counts.sizes[-1])), int(np.diff(counts.sizes).max(initial=0)))
    return int(2 * block + row_tasks.extra_rows_per_thread(layout.grid.unit, threads) * sizes.read)


def group_attributes(request: ConversionRequest, layout: ZarrLayout, identity: str) -> dict[str, Any]:
    """Return the attributes that this library writes to a group before its completion."""
    return {
        "id": identity,
        # A package that is imported from a source folder lacks one.
        "version": getattr(dask_tfrecord, "__version__", None),
        "unit_rows": layout.grid.unit,
        **request.fingerprint.to_attributes(),
    }


def _images_of_one_size(rows: Rows) -> tuple[str, ...]:
    """Return the columns whose rows are images of one size that can be read as bytes; refuse a data set without one."""
    known = {} if rows.source is None else rows.source.images
    images = tuple(
        name for name in rows.names if name in known and not known[name].ragged_rank and not known[name].count
    )
    if not images:
        raise ValueError(
            "encoded_images=True keeps the bytes of images that are read from shards, one per row, all of the same "
            "size: ImageFeature((height, width, channels)); there is no such column"
        )
    return images


def _with_groups(schema: Schema, groups: Mapping[str, str | Sequence[str]]) -> Schema:
    """Return the schema with the groups of the user; raise UnknownFeatureError for unknown names and prefixes."""
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups must map names to a prefix or a list of features; got {groups!r:.100}")
    ragged = [name for name in schema if schema[name].ragged_rank]
    members: dict[str, Sequence[str]] = {}
    for group, given in groups.items():
        members[group] = list(given)
        if isinstance(given, str):
            prefix = given.rstrip("/")
            members[group] = [name for name in ragged if name == prefix or name.startswith(f"{prefix}/")]
            if not members[group]:
                known = {*ragged, *(name[: name.rindex("/")] for name in ragged if "/" in name)}
                raise UnknownFeatureError(
                    f"group {group!r}: no ragged feature is named {prefix!r} or begins with '{prefix}/'"
                    f"{near_misses(prefix, sorted(known))}"
                )
    return schema.with_groups(members)


def check_storable(schema: Schema) -> None:
    """Refuse dtypes without a name in Zarr by a SchemaError that has a conversion."""
    for name, feature in schema.items():
        if feature.item_dtype.kind not in "biufcOTmM":
            block = f"blocks[{name!r}]"
            cast = f"{block}.astype('float32')"
            if feature.ragged_rank == 1:
                cast = f"RaggedBlock({block}.values.astype('float32'), {block}.row_splits)"
            elif feature.block_dtype.kind == "O":
                cast = f"[row.astype('float32') for row in {block}] and a template"
            raise SchemaError(
                f"cannot write column {name!r}: Zarr has no name for dtype {feature.item_dtype}; convert it to float32 "
                f"with map_blocks and {cast}"
            )


_PLURAL = re.compile("s(?=(_[0-9]+)?$)")


_BY_ROWS = ("dense", "row_splits", "shapes")


@dataclass(frozen=True, slots=True, eq=False)
class Dimensions:
    """Names of the row dimension and other axes; an axis without a name is named after its array."""

    given: Mapping[str, Sequence[str]] | None = None
    rows: str = "record"
    # True if an array with the name of the rows is their coordinate.
    indexed: bool = False

    @classmethod
    def from_inputs(cls, inputs: Inputs, given: Mapping[str, Sequence[str]] | None) -> Dimensions:
        """Combine the names of the user with an xarray Dataset's."""
        labels = inputs.labels
        rows = "record" if labels.rows is None else labels.rows
        # `check` refuses other types.
        merge = labels.dims and (given is None or isinstance(given, Mapping))
        return cls({**labels.dims, **(given or {})} if merge else given, rows, rows in labels.coords)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        axes = {name: list(axes) for name, axes in self.given.items()} if self.given else None
        return {"dimension_names": axes} | ({} if self.rows == "record" else {"rows_name": self.rows})

    def check(self, schema: Schema, arrays: Sequence[ArraySpec]) -> None:
        """Refuse names that do not fit the arrays of a group; the axes of `arrays` have generated names.

        Keys are features. There is one string per axis; it is neither the name of another axis of the array nor that of
        an array of the group, and axes of one name have one length.
        """
        if self.given is None:
            return
        if not isinstance(self.given, Mapping):
            raise ValueError(f"dimension_names must map features to names of axes; got {self.given!r}")
        inner = {array.feature: array for array in arrays if array.part in ("dense", "values")}
        for name, axes in self.given.items():
            if name not in schema:
                raise UnknownFeatureError(
                    f"dimension_names: unknown feature {name!r}{near_misses(name, tuple(schema))}"
                )
            array, option = inner[name], f"dimension_names[{name!r}]"
            check_axis_names(option, axes, array.shape[1:], "a row" if array.part == "dense" else "an item")
            _check_taken(option, axes, arrays)
        check_axis_lengths((array.feature, self.inner_axes(array), array.shape[1:]) for array in arrays)

    def inner_axes(self, array: ArraySpec) -> Sequence[str]:
        """Return the names of the axes of an array after the first."""
        axes = array.dimensions[1:]
        return (self.given or {}).get(array.feature, axes) if array.part in ("dense", "values") else axes


def check_axis_lengths(arrays: Iterable[tuple[str, Sequence[str], Sequence[int]]]) -> None:
    """Refuse one name for axes of two lengths, which an xarray Dataset cannot have.

    An array has the name of its feature, and the names and lengths of its axes.
    """
    found: dict[str, tuple[int, str]] = {}
    for feature, axes, lengths in arrays:
        for axis, length in zip(axes, lengths, strict=True):
            other, owner = found.setdefault(axis, (length, feature))
            if other != length:
                raise ValueError(
                    f"dimension_names: {axis!r} has length {other} in {owner!r} and length {length} in "
                    f"{feature!r}: axes with the same name must have the same length"
                )


def check_axis_names(option: str, axes: Any, shape: tuple[int, ...], unit: str) -> None:
    """Refuse axis names unless they are different strings, one for each axis."""
    if isinstance(axes, str) or not all(isinstance(axis, str) and axis for axis in axes):
        raise ValueError(f"{option} must be a tuple of names, one for each axis; got {axes!r}")
    if len(axes) != len(shape):
        raise ValueError(f"{option} has {len(axes)} names, {tuple(axes)}, where {unit} has the shape {shape}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"{option}: {tuple(axes)} gives two axes of an array the same name")


def feature_attributes(name: str, schema: Schema) -> dict[str, Any]:
    """Return attributes of the array of a feature: plain values, which xarray displays and netCDF can store."""
    return {"feature": name, "feature_class": type(schema[name]).__name__}


def column_attributes(name: str, schema: Schema) -> dict[str, Any]:
    """Return attributes of the values of a feature, which may have class names."""
    classes = schema.classes.get(name)
    return feature_attributes(name, schema) | ({"class_names": list(classes)} if classes else {})


def _check_taken(option: str, axes: Sequence[str], arrays: Sequence[ArraySpec]) -> None:
    """Refuse names of axes that arrays of the group, or their first dimensions, have."""
    names = {each.name for each in arrays}
    along = {each.dimensions[0]: each for each in reversed(arrays)}
    for axis in axes:
        if axis in names:
            raise ValueError(
                f"{option}: {axis!r} is an array of the group, which xarray would read as the coordinate of that axis"
            )
        if axis in along:
            raise ValueError(f"{option}: {axis!r} is the first dimension of {along[axis].name!r}")


# Zarr's data type of text, whose chunks vlen-utf8 encodes. Bytes are flat arrays of uint8 with the splits between them.
TEXT = "string"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of the group."""

    # Name in the group.
    name: ObjectName
    # Feature that the array belongs to.
    feature: str
    # "dense", or the suffix of the name: "values", "row_splits", "row_splits_1" and so on, "byte_splits", "shapes",
    # "item_shapes".
    part: str
    shape: tuple[Count, ...]
    # A NumPy dtype, or `TEXT`.
    dtype: str
    # Length of a chunk along the first axis; other axes are whole.
    chunk: Positive
    # Length of a shard, or of the chunk.
    unit: Positive
    # Names of the axes.
    dimensions: tuple[str, ...]
    # Rows of a write unit: whole chunks, or shards; 0 if the array is not chunked along rows.
    rows: Count = 0
    # Group whose splits the array holds; `feature` is the first feature of that group.
    group: str | None = None
    # Chunks are encoded images, one each, and not their pixels.
    encoded: bool = False

    @property
    def by_rows(self) -> bool:
        """True if the array is chunked along rows."""
        return self.part in _BY_ROWS

    @property
    def is_text(self) -> bool:
        """True if entries are texts."""
        return self.dtype == TEXT

    @property
    def memory_dtype(self) -> np.dtype[Any]:
        """The dtype of entries in memory."""
        return np.dtypes.StringDType() if self.is_text else np.dtype(self.dtype)

    @property
    def is_large(self) -> bool:
        """True for flat entries that are read to the memory of their unit, because copying a unit takes long."""
        if self.by_rows or self.part != "values" or self.is_text:
            return False
        return self.unit * self.entry_nbytes({}) >= limits().read_nbytes // _UNITS_PER_READ

    def entry_nbytes(self, column_nbytes: Mapping[str, float]) -> float:
        """Return how many decoded bytes an entry along the first axis takes, from each feature's per row."""
        if self.is_text:
            return column_nbytes[self.feature]
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


# Units of values in the rows that are read at once: values of more units are copied where a read begins and ends.
_UNITS_PER_READ = 4


@dataclass(frozen=True, slots=True, eq=False)
class ZarrLayout:
    """Arrays of a group, and counts for its write units."""

    # Rows and arrays span the whole group. Rows are read by their number after `first_row`, as in
    # `border_counts`: if two rows are appended to five, first_row is 5, nrows is 7, and rows 0 and 1 are read.
    nrows: int
    grid: RowGrid
    arrays: tuple[ArraySpec, ...]
    border_counts: BorderCounts
    first_row: int = 0

    def splits_attributes(self, schema: Schema) -> dict[str, dict[str, Any]]:
        """Return attributes of splits, by array: the dimension that they divide, and the group that they belong to."""
        attributes: dict[str, dict[str, Any]] = {}
        for array in self.arrays:
            if array.group is not None:
                attributes.setdefault(array.name, {}).update(
                    group=array.group, features=list(schema.groups[array.group])
                )
            if array.part == "values":
                last = Levels.from_feature(schema[array.feature]).splits[-1]
                own = f"{array.name.removesuffix('values')}{last}"
                name = splits_name(array.feature, schema) if last == "row_splits" else own
                attributes.setdefault(name, {})["divides"] = array.dimensions[0]
        return attributes

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all arrays; text is estimated."""
        strings = {array.feature: float(STRING_NBYTES) for array in self.arrays}
        return int(sum(array.shape[0] * array.entry_nbytes(strings) for array in self.arrays))

    @property
    def nunits(self) -> int:
        """Number of write units."""
        return sum(count for _, count in unit_kinds(self))

    @property
    def nrow_units(self) -> int:
        """Number of units of the grid; without rows there is one, which holds the first split."""
        return max(1, math.ceil(self.nrows / self.grid.unit))

    @property
    def row_kinds(self) -> list[int]:
        """Rows in each kind of row unit, ascending: arrays with small rows have longer units."""
        return sorted({spec.rows for spec in self.arrays if spec.by_rows}) or [self.grid.unit]


@dataclass(frozen=True, slots=True)
class StoredStrings(Feature):
    """Column whose bytes are single array values, like text, not parts of a flat array."""

    original: Feature

    def __post_init__(self) -> None:
        self._set()

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of text."""
        return np.dtypes.StringDType()

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of the column's items."""
        return self.original.item_shape

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of the column."""
        return self.original.ragged_rank

    @property
    def own_shapes(self) -> int:
        """The number of axes of a row where shapes differ."""
        return self.original.own_shapes


def with_strings(schema: Schema) -> Schema:
    """Return the schema of the arrays of a virtual group, whose bytes are `StoredStrings`."""
    return schema.replaced({name: StoredStrings(each) if each.is_bytes else each for name, each in schema.items()})


def arrays_without_rows(schema: Schema, names: Dimensions = Dimensions()) -> tuple[ArraySpec, ...]:
    """Lay out the arrays of a group for their names, parts and dimensions alone."""
    return zarr_layout(schema, 0, RowGrid(1, 1, 1), BorderCounts.concatenate(schema, []), names=names).arrays


def zarr_layout(
    schema: Schema,
    nrows: int,
    grid: RowGrid,
    border_counts: BorderCounts,
    overrides: GridOverrides | None = None,
    names: Dimensions = Dimensions(),
) -> ZarrLayout:
    """Lay out the arrays of a group; `border_counts` have a border at each unit of rows."""
    arrays: list[ArraySpec] = []
    overrides = overrides or GridOverrides()
    flat = _FlatLayout(schema, nrows, grid, border_counts, overrides, names.rows)
    for feature_name, feature in schema.items():
        name = array_name(feature_name)
        if is_flat(feature):
            arrays += flat.arrays(feature_name)
            continue
        dtype = _stored_dtype(feature.block_dtype)
        shape = (nrows, *feature.block_shape)
        dimensions = (names.rows, *_axes(name, len(shape) - 1))
        grid_of_rows = overrides.rows.get(feature_name, (grid.chunk, grid.unit))
        rows = unit_rows(grid, grid_of_rows[1])
        arrays.append(ArraySpec(name, feature_name, "dense", shape, dtype, *grid_of_rows, dimensions, rows))
    _check_groups(schema, arrays)
    return ZarrLayout(nrows, grid, tuple(_with_own_dimensions(arrays, names)), border_counts)


def _stored_dtype(dtype: np.dtype[Any]) -> str:
    """Return the data type of Zarr for values of a dtype."""
    return TEXT if dtype.kind == "T" else dtype.str


def _with_own_dimensions(arrays: Sequence[ArraySpec], given: Dimensions) -> Iterator[ArraySpec]:
    """Rename dimensions that have the name of an array: xarray would read that array as a coordinate."""
    names = {array.name for array in arrays}
    if given.indexed:
        names.discard(given.rows)
    for array in arrays:
        # The name of an array never ends with a percent sign.
        array = replace(array, dimensions=tuple(name + "%" if name in names else name for name in array.dimensions))
        yield replace(array, dimensions=(array.dimensions[0], *given.inner_axes(array)))


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
        """Yield a feature's arrays; a group's first feature includes the group's splits."""
        feature = self.schema[feature_name]
        name = array_name(feature_name)
        group = self.schema.group_of(feature_name)
        levels, items = Levels.from_feature(feature), self._items(feature_name)

        def spec(part: str, length: int, dtype: str, grid_of_array: tuple[int, int], *inner: int) -> ArraySpec:
            dimensions = (f"{name}.{_PLURAL.sub('', part)}", *_axes(name, len(inner)))
            if part == "shapes":
                dimensions = (self.rows_name, f"{name}.axis")
            unit = unit_rows(self.grid, self._rows(feature_name)[1]) if part in _BY_ROWS else 0
            shape = (length, *inner)
            return ArraySpec(f"{name}.{part}", feature_name, part, shape, dtype, *grid_of_array, dimensions, unit)

        dtype, inner = ("|u1", ()) if feature.is_bytes else (_stored_dtype(feature.item_dtype), feature.item_shape)
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
            chunk, unit = rows
            if feature_name in self.overrides.defaults and chunk == unit >= self.nrows > 0:
                # A chunk that holds all rows holds the last split too, which no row begins.
                chunk = unit = self.nrows + 1
            splits = spec(part, length, "<i8", (max(1, chunk * stride), max(1, unit * stride)))
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
        return list(self.border_counts.items[feature_name][-1].tolist())

    def _rows(self, feature_name: str) -> tuple[int, int]:
        return self.overrides.rows.get(feature_name, (self.grid.chunk, self.grid.unit))

    def _flat_grid(self, feature_name: str, part: str, item_nbytes: int) -> tuple[int, int]:
        """Return how many entries a chunk and a unit have, in a feature's array."""
        levels, (chunk, unit) = Levels.from_feature(self.schema[feature_name]), self._rows(feature_name)
        length = levels.entries(part, self._items(feature_name)) + (part in levels.splits)
        name, units = f"{array_name(feature_name)}.{part}", self.nrows / self.grid.unit
        return self.overrides.flat_grid(name, item_nbytes, length, units, chunk != unit)

    def _items_grid(self, group: str) -> tuple[int, int]:
        """Return how many items a chunk and a unit have in a group, by its largest array."""
        levels = {name: Levels.from_feature(self.schema[name]) for name in self.schema.groups[group]}
        along = {name: each for name, each in levels.items() if len(each.splits) == 1}
        first = next(iter(along))
        sharded = any(chunk != unit for chunk, unit in map(self._rows, along))
        nbytes = max(each.item_nbytes for each in along.values())
        length, units = self._items(first)[1], self.nrows / self.grid.unit
        return self.overrides.flat_grid(f"{array_name(first)}.values", nbytes, length, units, sharded)

    def _dimension(self, group: str) -> str:
        """Return the dimension of the items of a group."""
        return array_name(group) + ("%" if array_name(group) == self.rows_name else "")


def _check_groups(schema: Schema, arrays: Sequence[ArraySpec]) -> None:
    """Refuse a group whose splits or dimension have the name of another array or dimension by a SchemaError."""
    names = Counter(array.name for array in arrays)
    lengths: dict[str, set[int]] = {}
    for array in arrays:
        for dimension, size in zip(array.dimensions, array.shape, strict=True):
            lengths.setdefault(dimension, set()).add(size)
    for group in schema.groups:
        name = array_name(group)
        if names[f"{name}.row_splits"] > 1 or len(lengths.get(name, ())) > 1:
            raise SchemaError(
                f"group {group!r} has the name of a feature or dimension that does not belong to it: give the group "
                f"another name, as in groups={{'other': {list(schema.groups[group])[:3]}}}"
            )


def _axes(name: str, number: int) -> Iterator[str]:
    return (f"{name}.dim_{axis}" for axis in range(1, number + 1))


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Entries that one task writes, and the rows that it reads for them."""

    # Number within the layout.
    number: int
    # Flat array; None for a unit of rows, which belongs to all arrays with units of that length.
    array: ArraySpec | None
    # Range of entries of that array, or of rows of the group.
    start: int
    stop: int
    # Range of rows that are read for it, as they are numbered by the source.
    first: int
    past: int
    # Items of each level of the flat features, rows first, before the first row and after the last one.
    before: Mapping[str, tuple[int, ...]]
    after: Mapping[str, tuple[int, ...]]
    # Rows of a unit of its kind; 0 for a flat array.
    rows: int = 0
    # Rows that its report counts: only units of one kind count.
    records: int = 0


def fits(layout: ZarrLayout, schema: Schema, lengths: Mapping[str, tuple[int, int, int]]) -> bool:
    """Return whether a stored layout is one of these columns, and of arrays that grow to these lengths, if any do."""
    planned = arrays_without_rows(schema)
    own, found = ({each.name: (each.feature, each.part, each.group) for each in of} for of in (planned, layout.arrays))
    return (
        own == found
        and all(each.shape and len(each.shape) == len(each.dimensions) for each in layout.arrays)
        and all((each.rows > 0) == each.by_rows for each in layout.arrays)
        and set(layout.border_counts.items) == {name for name in schema if is_flat(schema[name])}
        and (not lengths or own.keys() <= lengths.keys())
        and all(
            lengths[each.name][1:] == (each.shape[0], each.unit) and lengths[each.name][0] <= each.shape[0]
            for each in layout.arrays
            if lengths
        )
        # An array of splits has one entry before the first row.
        and (layout.first_row > 0 or all(lengths[each.name][0] <= 1 for each in layout.arrays if lengths))
    )


def features_by_rows(arrays: Iterable[ArraySpec], schema: Schema) -> dict[int, frozenset[str]]:
    """List which features each kind of unit reads: its arrays', and whole groups."""
    names_of: dict[int, set[str]] = {}
    for spec in arrays:
        if spec.by_rows:
            names_of.setdefault(spec.rows, set()).update(
                (spec.feature,) if spec.group is None else schema.groups[spec.group]
            )
    return {rows: frozenset(names) for rows, names in names_of.items()}


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Units that one task writes, and the rows that it reads."""

    # Units: first of rows, then of flat values.
    units: tuple[WriteUnit, ...]
    # Ranges of rows that are read at once, ascending; each is entirely inside or outside of each unit of rows.
    spans: tuple[tuple[int, int], ...]
    # Number in the key of the task.
    number: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """Range of all rows that it reads."""
        return (self.spans[0][0], self.spans[-1][1]) if self.spans else (0, 0)

    def features(self, schema: Schema, by_rows: Mapping[int, frozenset[str]]) -> list[str]:
        """Return the names of the features that it reads; `by_rows` are the `features_by_rows`."""
        names = {unit.array.feature for unit in self.units if unit.array is not None}
        # A store of flat arrays alone has units of rows that no array reads.
        names = names.union(*(by_rows.get(unit.rows, ()) for unit in self.units if unit.array is None))
        return [name for name in schema if name in names]


# Rows of a unit, or a flat array.
UnitKind = int | ArraySpec


def unit_kinds(layout: ZarrLayout) -> list[tuple[UnitKind, int]]:
    """Count write units by kind: row units, shortest first, then each flat array's.

    Units that hold only rows before the first one that is read are counted, and not written.
    """
    # Without rows there is one unit, which holds the first split.
    rows = ((kind, max(1, math.ceil(layout.nrows / kind))) for kind in layout.row_kinds)
    flat = ((array, math.ceil(array.shape[0] / array.unit)) for array in layout.arrays if not array.by_rows)
    return [*rows, *flat]


def plan_units(
    layout: ZarrLayout, schema: Schema, ranges: Sequence[tuple[int, int]] | None = None
) -> Iterator[WriteUnit]:
    """Yield the write units of a layout, rows first: all, or those in a range of each kind."""
    kinds, before = unit_kinds(layout), 0
    for (kind, count), (first, past) in zip(kinds, ranges or unit_ranges(layout, schema), strict=True):
        numbers, entry = np.arange(first, past), _first_entry(layout, schema, kind)
        borders = zip(*(each.tolist() for each in _unit_borders(layout, schema, kind, numbers)), strict=True)
        for index, (low, high) in zip(range(first, past), borders, strict=True):
            number, start = before + index, max(index * _length(kind), entry)
            if isinstance(kind, int):
                yield _row_unit(layout, number, kind, start, (low, high), counts=kind == kinds[0][0])
            else:
                yield _flat_unit(layout, number, kind, start, low, high)
        before += count


def unit_ranges(layout: ZarrLayout, schema: Schema) -> list[tuple[int, int]]:
    """Return which units of each kind are written: all but those that hold only rows before the first one read."""
    return [(_first_entry(layout, schema, kind) // _length(kind), count) for kind, count in unit_kinds(layout)]


def divide_units(
    layout: ZarrLayout, schema: Schema, borders: NDArray[np.int64], ranges: Sequence[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the first unit of each kind whose task is not before each of some borders between tasks.

    Units are those in a range of each kind; `layout` needs the counts of their rows only.
    """
    tasks, task_rows = [], _task_rows(layout)
    for (kind, _), (first, past) in zip(unit_kinds(layout), ranges, strict=True):
        numbers = np.arange(first, past)
        if isinstance(kind, int):
            starts, stops = np.maximum(numbers * kind, layout.first_row), np.minimum((numbers + 1) * kind, layout.nrows)
            ends = starts - layout.first_row, stops - layout.first_row
        else:
            low, high = _unit_borders(layout, schema, kind, numbers)
            ends = layout.border_counts.rows[low], layout.border_counts.rows[high]
        tasks.append(first + np.searchsorted(_task_number(layout, task_rows, *ends), borders))
    return np.array(tasks)


def border_counts_for(layout: ZarrLayout, schema: Schema, ranges: Sequence[tuple[int, int]]) -> BorderCounts:
    """Cut the counts of items down to what the units in these ranges need."""
    ends = [
        _unit_borders(layout, schema, kind, np.array([first, past - 1]))
        for (kind, _), (first, past) in zip(unit_kinds(layout), ranges, strict=True)
        if first < past
    ]
    lows, highs = [int(low.min()) for low, _ in ends], [int(high.max()) for _, high in ends]
    return layout.border_counts.between(min(lows, default=0), max(highs, default=0))


def _unit_borders(
    layout: ZarrLayout, schema: Schema, kind: UnitKind, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the borders before and after the rows that units of one kind read."""
    counts, length = layout.border_counts, _length(kind)
    starts = np.maximum(numbers * length, _first_entry(layout, schema, kind))
    stops = (numbers + 1) * length
    if isinstance(kind, int):
        rows = counts.rows + layout.first_row
        return np.searchsorted(rows, starts), np.searchsorted(rows, np.minimum(stops, layout.nrows))
    level, stride = Levels.from_feature(schema[kind.feature]).level_and_stride(kind.part)
    before = counts.items[kind.feature][:, level] * stride
    # The last entry of splits does not belong to a row.
    stops = np.minimum(np.minimum(stops, kind.shape[0]), before[-1])
    low = np.searchsorted(before, starts, side="right") - 1
    return low, np.maximum(low, np.searchsorted(before, stops, side="left"))


def plan_tasks(layout: ZarrLayout, units: Sequence[WriteUnit], *, shares_reads: bool) -> Iterator[WriteTask]:
    """Group units into tasks: flat units with the rows that hold most of their entries.

    Rows in memory share no reads: reading them again is free, and each unit is a task.
    """
    if not shares_reads:
        yield from (_task(layout, (unit,)) for unit in units)
        return

    task_rows = _task_rows(layout)

    def task_number(unit: WriteUnit) -> int:
        return int(_task_number(layout, task_rows, unit.first, unit.past))

    for _, group in groupby(sorted(units, key=task_number), task_number):
        yield _task(layout, tuple(group))


def row_tasks_of(layout: ZarrLayout) -> NDArray[np.int64]:
    """Cut the rows that are read into tasks; a unit belongs to the task that has its middle row."""
    rows, first = _task_rows(layout), layout.first_row
    past = max(first // rows + 1, math.ceil(layout.nrows / rows))
    return np.clip(np.arange(first // rows, past + 1) * rows, first, layout.nrows) - first


def _task_number(layout: ZarrLayout, task_rows: int, first: Any, past: Any) -> Any:
    """Find the task for a unit that reads some rows, by the middle one, or for many units."""
    # A unit past the last row holds only the final split.
    last = max(layout.nrows - layout.first_row - 1, 0)
    return (layout.first_row + np.minimum((first + past) // 2, last)) // task_rows - layout.first_row // task_rows


def _task_rows(layout: ZarrLayout) -> int:
    """Return the rows of a task: whole units of each kind, unless too few tasks would remain.

    The task of a longer unit reads the columns of that unit alone, beyond its own rows: other tasks read these rows for
    the other columns.
    """
    unit = task = layout.grid.unit
    rows_read = max(1, layout.nrows - layout.first_row)
    tasks = least_tasks(layout.nbytes * rows_read / max(1, layout.nrows))
    most = max(1, (layout.nrow_units - layout.first_row // unit) // tasks)
    for rows in layout.row_kinds:
        together = math.lcm(task, rows)
        # The bytes of rows were estimated when the chunks were chosen.
        if together <= 2 * most * unit:
            task = together
    # More small units: each task of remote shards reads some bytes beyond its rows.
    units = UNITS_OF_A_TASK * limits().write_unit_nbytes * layout.nrow_units // max(1, layout.nbytes)
    return task * max(1, min(most, max(UNITS_OF_A_TASK, units)) * unit // task)


def _task(layout: ZarrLayout, units: tuple[WriteUnit, ...]) -> WriteTask:
    """Divide the rows of units into spans, each read for the same features."""
    cuts = _cuts(units)
    starts, ends = np.sort([unit.first for unit in units]), np.sort([unit.past for unit in units])
    # np.unique would import numpy.ma, which takes as long as the rest of the plan of a part.
    borders = np.array(sorted(cuts))
    # Rows between two borders are read if more units have begun than have ended.
    read = np.searchsorted(starts, borders, side="right") > np.searchsorted(ends, borders, side="right")
    spans: list[tuple[int, int]] = []
    for (first, past), needed in zip(pairwise(borders.tolist()), read.tolist(), strict=False):
        if needed:
            spans += _spans(layout, first, past)
    return WriteTask(units, tuple(spans))


def _cuts(units: Sequence[WriteUnit]) -> set[int]:
    """Return the rows where one span of a task ends and another one begins.

    Small units of values begin and end within spans: each span costs as much Python as a MiB takes to decode. Large
    ones end with a span, so that their values are decoded to the memory that is written. An example: a unit of rows 10
    to 20, with values in two small units, whose rows are 8 to 15 and 14 to 22: the spans are rows 8 to 10, where only
    values are read, 10 to 20, and 20 to 22.
    """
    by_rows = [unit for unit in units if unit.array is None]
    shortest = min((unit.rows for unit in by_rows), default=0)
    # All features are read there.
    covered = [edge for unit in by_rows if unit.rows == shortest for edge in (unit.first, unit.past)]
    first, past = min(covered, default=0), max(covered, default=0)
    cuts = {edge for unit in by_rows for edge in (unit.first, unit.past)}
    edges, reached = set[int](), dict[str, int]()
    for unit in sorted(units, key=lambda unit: unit.first):
        if unit.array is None:
            continue
        if unit.array.is_large:
            cuts.add(unit.past)
        before = reached.get(unit.array.feature, -1)
        if unit.first > before:
            edges |= {before, unit.first}
        reached[unit.array.feature] = max(before, unit.past)
    edges.update(reached.values())
    return cuts | {edge for edge in edges if edge >= 0 and not first < edge < past}


def _spans(layout: ZarrLayout, first: int, past: int) -> Iterable[tuple[int, int]]:
    if not layout.border_counts.items:
        return _row_ranges(first, past, layout.grid.most)
    low, high = np.searchsorted(layout.border_counts.rows, [first, past]).tolist()
    return layout.border_counts.spans(low, high, layout.grid.most)


def _length(kind: UnitKind) -> int:
    """Return the length of a unit: entries of a flat array, or rows."""
    return kind if isinstance(kind, int) else kind.unit


def _first_entry(layout: ZarrLayout, schema: Schema, kind: UnitKind) -> int:
    """Return the first entry of a flat array that belongs to rows that are read, or the first of these rows."""
    if isinstance(kind, int) or not layout.first_row:
        return layout.first_row
    level, stride = Levels.from_feature(schema[kind.feature]).level_and_stride(kind.part)
    return int(layout.border_counts.items[kind.feature][0, level] * stride)


def _end_of_unit(start: int, length: int) -> int:
    return (start // length + 1) * length


def _row_unit(
    layout: ZarrLayout, number: int, rows: int, start: int, borders: tuple[int, int], *, counts: bool
) -> WriteUnit:
    found, stop = layout.border_counts, min(_end_of_unit(start, rows), layout.nrows)
    first = start - layout.first_row
    past = stop - layout.first_row
    records = stop - start if counts else 0
    before, after = (found.at(border, found.items) for border in borders)
    return WriteUnit(number, None, start, stop, first, past, before, after, rows, records)


def _flat_unit(layout: ZarrLayout, number: int, array: ArraySpec, start: int, low: int, high: int) -> WriteUnit:
    """Return the unit of entries from `start`, with all rows that hold some of them: those between two borders."""
    counts, stop = layout.border_counts, min(_end_of_unit(start, array.unit), array.shape[0])
    names = (array.feature,)
    first, past = int(counts.rows[low]), int(counts.rows[high])
    return WriteUnit(number, array, start, stop, first, past, counts.at(low, names), counts.at(high, names))


def _row_ranges(first: int, past: int, rows: int) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges; without rows there is one empty range, for the first split."""
    for start in range(first, max(past, first + 1), rows):
        yield start, min(start + rows, past)


def _default_compressors(spec: ArraySpec, schema: Schema) -> tuple[dict[str, Any], ...]:
    """Return a compression that does not slow down the conversion, as benchmarks/compression.py measures it.

    Bits of numbers of a byte are alike, from pixel to pixel and base to base; text loses what its bytes have in common.
    zarr finds the size of items.
    """
    text = spec.is_text or (spec.part == "values" and schema[spec.feature].is_bytes)
    shuffle = "bitshuffle" if not text and np.dtype(spec.dtype).itemsize == 1 else "shuffle"
    return ({"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": shuffle}},)


def codec_documents(codecs: Iterable[Any]) -> list[dict[str, Any]]:
    """Convert codecs to JSON values."""
    return list(map(_codec_document, codecs))


def _codec_document(codec: Any) -> dict[str, Any]:
    if isinstance(codec, Mapping):
        return dict(codec)
    return dict(codec.to_dict()) if hasattr(codec, "to_dict") else {"name": type(codec).__name__}


def codec_names(codecs: tuple[Any, ...]) -> str:
    """Format codecs for display: a name with its settings."""
    formatted = []
    for value in codec_documents(codecs):
        settings = [f"{key}={setting}" for key, setting in (value.get("configuration") or {}).items()]
        formatted.append(str(value.get("name", "?")) + (f"({', '.join(settings)})" if settings else ""))
    return ", ".join(formatted) or "none"


def _document(value: Any) -> Any:
    if _is_by_name(value):
        return {name: _document(each) for name, each in value.items()}
    return value if value is None or isinstance(value, str) else codec_documents(_as_tuple(value))


def _is_by_name(value: Any) -> bool:
    # A mapping may be a codec, which has a name; no codec is named "auto".
    if not isinstance(value, Mapping):
        return False
    name = value.get("name")
    return not isinstance(name, str) or name == "auto"


def _pick(value: Any, spec: ArraySpec, auto: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the codecs of one array; a mapping without the array has "auto"."""
    if _is_by_name(value):
        own = spec.group is not None or (spec.name in value and spec.part != "dense")
        value = value.get(spec.name if own else spec.feature, "auto")
    return auto if isinstance(value, str) and value == "auto" else _as_tuple(value)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


# Kinds of values that are accepted for each kind of dtype.
_FROM = {"b": "b", "i": "iuf", "u": "iuf", "f": "iuf", "c": "iufc", "M": "M", "m": "m"}


def json_value(value: Any) -> Any:
    """Convert a scalar to JSON as the metadata of Zarr does."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, complex):
        return [json_value(plain.real), json_value(plain.imag)]
    if isinstance(plain, float):
        return json_number(plain)
    return plain if plain is None or isinstance(plain, bool | int | str) else repr(plain)


def _checked(value: Any, dtype: str, name: str) -> Any:
    """Convert a value to a dtype; only floats may be rounded."""
    if dtype == TEXT:
        if isinstance(value, str):
            return str(value)
    elif isinstance(value, bool | int | float | complex | np.generic):
        wanted, given = np.dtype(dtype), np.asarray(value)
        if given.dtype.kind in _FROM[wanted.kind]:
            with np.errstate(all="ignore"):
                try:
                    cast = given.astype(wanted)
                except OverflowError:  # NumPy 2.5 refuses moments beyond the range
                    cast = np.asarray("NaT", wanted)
            rounded = wanted.kind in "fc" and bool(np.isfinite(cast)) == bool(np.isfinite(given))
            if wanted.kind in "mM":
                # A moment beyond the range wraps around.
                rounded = bool(np.isnat(given)) or bool(cast.astype(given.dtype) == given and cast == given)
            if rounded or (wanted.kind not in "mM" and cast.item() == given.item()):
                return cast[()]
    kind = dtype if dtype == TEXT else np.dtype(dtype).name
    example = f", for example np.{kind[:-4]}(0, 'ns')" if kind.endswith("[ns]") else ""
    raise ValueError(f"fill_values[{name!r}]: {value!r:.100} is not a value of dtype {kind}{example}")


# Attributes of arrays and groups that this library or xarray uses.
_RESERVED = {"dask_tfrecord", "feature", "feature_class", "class_names", "coordinates", "divides", "item_shape"}


@dataclass(frozen=True)
class UserAttributes:
    """Attributes and coordinates of what is written, as JSON values."""

    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group: Mapping[str, Any] = field(default_factory=dict)
    coords: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    # Dimensions and values of coordinates without rows (latitudes): arrays of their own, by name.
    constants: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)

    @classmethod
    def from_inputs(cls, inputs: Inputs) -> UserAttributes:
        """Collect the attributes and coordinates of the inputs; dates get the attributes that xarray decodes."""
        labels, omitted = inputs.labels, list[str]()
        arrays = {name: _kept(each, f"{name}.", omitted) for name, each in labels.attributes.items()}
        for name, dtype in labels.dtypes.items():
            if np.dtype(dtype).kind in "mM":
                arrays[name] = {**arrays.get(name, {}), **_time_attributes(np.dtype(dtype))}
        group = _kept(labels.collection_attributes, "", omitted)
        return cls(arrays, group, labels.coords, tuple(omitted), labels.constants)

    @cached_property
    def constant_arrays(self) -> Mapping[str, tuple[dict[str, Any], dict[str, bytes]]]:
        """Metadata and objects of the coordinates without rows, by the names of their arrays."""
        made = {array_name(name): (name, *each) for name, each in self.constants.items()}
        return {
            key: constant_array(key, dimensions, values, self.arrays.get(name, {}))
            for key, (name, dimensions, values) in made.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        if not (self.arrays or self.group or self.coords or self.constants):
            return {}
        constants = {
            name: [dims, digest([str(values.dtype), str(values.tolist())])]
            for name, (dims, values) in self.constants.items()
        }
        given = [self.arrays, self.group, self.coords, *([constants] if constants else ())]
        return {"attributes": json.dumps(given, sort_keys=True)}

    def of_group(self, schema: Schema) -> dict[str, Any]:
        """Return the attributes of the group; xarray expects the names of coordinates separated by spaces."""
        names = [array_name(name) for name in self.coords if not is_flat(schema[name])]
        # A coordinate with the name of its only dimension needs no mention.
        names += [array_name(name) for name, (dims, _) in self.constants.items() if dims != (name,)]
        coords = " ".join(name for name in names if " " not in name)
        return {**self.group, **({"coordinates": coords} if coords else {})}


def _time_attributes(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return attributes of the CF conventions for dates and durations that are stored as integers."""
    unit = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "D": "days"}.get(
        np.datetime_data(dtype)[0]
    )
    if unit is None or dtype.kind == "m":
        return {} if unit is None else {"units": unit}
    return {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}


def _kept(attributes: Mapping[str, Any], owner: str, omitted: list[str]) -> dict[str, Any]:
    """Convert attributes to JSON values; append the names of others to `omitted`."""
    kept = {}
    for name, value in attributes.items():
        try:
            json.dumps(value := _json_scalar(value))
        except (TypeError, ValueError):
            omitted.append(f"{owner}{name}")
            continue
        if isinstance(name, str) and name not in _RESERVED:
            kept[name] = value
        else:
            omitted.append(f"{owner}{name}")
    return kept


def _json_scalar(value: Any) -> Any:
    """Convert NumPy scalars and arrays to JSON values."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_json_scalar(item) for item in value]
    return {name: _json_scalar(item) for name, item in value.items()} if isinstance(value, dict) else value


def array_attributes(spec: ArraySpec, schema: Schema, user: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes of an array; a user's attributes of a feature are for dense arrays and values."""
    if spec.group is not None:
        return {}
    if spec.part not in ("dense", "values"):
        return feature_attributes(spec.feature, schema)
    feature = schema[spec.feature]
    # The bytes of values that differ in length: what an item of the column holds of them.
    inner = {"item_shape": list(feature.item_shape)} if spec.part == "values" and feature.is_bytes else {}
    return {**user.get(spec.feature, {}), **column_attributes(spec.feature, schema), **inner}
