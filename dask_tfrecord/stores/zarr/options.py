"""Options of a conversion, validated and resolved per array: the chunk grid, codecs, names of axes, fill values.

All features share a unit of rows, so that a task reads records once for all of them. The chunks and shards of each
feature divide it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from dask_tfrecord.errors import UnknownFeatureError, near_misses
from dask_tfrecord.inputs.inputs import Inputs
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import BorderCounts, Levels, is_flat
from dask_tfrecord.stores.rows import RowSizes
from dask_tfrecord.stores.zarr.layout import (
    ArraySpec,
    Dimensions,
    GridOverrides,
    RowGrid,
    ZarrLayout,
    array_name,
    splits_name,
    zarr_layout,
)

# Limit for all arrays that are chunked along rows, as a multiple of a write unit: with many arrays each gets less.
ARRAYS_TOGETHER = 4


# Limit of the decoded bytes of a unit of rows, flat values included: its task reads those only for their lengths.
SPAN_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Chunk and shard sizes that the user requests: rows by feature and entries by flat array, or decoded bytes."""

    chunks: int | Mapping[str, int] | None = None
    shards: int | Mapping[str, int] | None = None
    chunk_nbytes: int | None = None
    shard_nbytes: int | None = None

    @classmethod
    def from_arguments(
        cls, chunks: int | str | Mapping[str, int] | None, shards: int | str | Mapping[str, int] | None
    ) -> ChunkRequest:
        """Check the arguments of `to_zarr`.

        Raises
        ------
        ValueError
            If an argument is neither a number of rows nor a size.
        """
        chunk_rows, chunk_nbytes = _rows_or_size("chunks", chunks)
        shard_rows, shard_nbytes = _rows_or_size("shards", shards)
        return cls(chunk_rows, shard_rows, chunk_nbytes, shard_nbytes)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        given = {"chunks": (self.chunks, self.chunk_nbytes), "shards": (self.shards, self.shard_nbytes)}
        return {option: rows if nbytes is None else f"{nbytes} B" for option, (rows, nbytes) in given.items()}

    def resolve(self, schema: Schema, nrows: int, sizes: RowSizes) -> tuple[RowGrid, GridOverrides]:
        """Choose the grid of rows, and the grids of arrays that differ from it.

        Raises
        ------
        ValueError
            If a number is invalid, a shard is not a multiple of its chunk, or features do not share a unit of rows.
        UnknownFeatureError
            If a name belongs neither to a feature nor to a flat array.
        """
        chunks, shards = _by_name("chunks", self.chunks, schema), _by_name("shards", self.shards, schema)
        chunk_nbytes, shard_nbytes = self.chunk_nbytes, self.shard_nbytes
        requested = {name: (chunks.get(name), shards.get(name)) for name in schema}

        def rows_of(nbytes: int) -> int:
            return _default_rows(nbytes, sizes.largest, sizes.by_rows, sizes.read)

        all_rows = max(nrows, 1)
        small = rows_of(chunk_nbytes or limits().chunk_nbytes)
        large = rows_of(chunk_nbytes or limits().write_unit_nbytes)
        # Equal units, so that tasks take equally long.
        large = math.ceil(all_rows / math.ceil(all_rows / large))
        shard_rows = None
        if shard_nbytes is not None:
            shard_rows = min(small, all_rows) * math.ceil(min(rows_of(shard_nbytes), all_rows) / min(small, all_rows))
        unit = _shared_unit(requested, shard_rows, large)

        def chunk_and_shard(chunk: int | None, shard: int | None) -> tuple[int, int]:
            if shard is None and shard_rows is not None:
                shard = unit
            chunk = chunk or (_divisor(unit, large) if shard is None else _divisor(shard, small))
            return chunk, shard or chunk

        rows = {name: chunk_and_shard(*each) for name, each in requested.items()}
        most = _default_rows(limits().write_unit_nbytes, sizes.read, sizes.read, sizes.read)
        grid = RowGrid(min((chunk for chunk, _ in rows.values()), default=unit), unit, most)
        entries = _entries(schema, chunks, shards)
        return grid, GridOverrides(rows, entries, chunk_nbytes, shard_nbytes)


def _default_rows(nbytes: int, largest: float, by_rows: float, altogether: float) -> int:
    """Return the number of rows of a unit or a chunk in which an array has at most `nbytes`.

    Parameters
    ----------
    nbytes : int
        Decoded bytes of the largest array.
    largest, by_rows, altogether : float
        Decoded bytes of a row in the largest array that is chunked along rows, in all of these, and in all arrays.
    """
    each = max(largest, by_rows / ARRAYS_TOGETHER, altogether * limits().write_unit_nbytes / SPAN_NBYTES, 1.0)
    return max(1, int(nbytes / each))


def array_names(schema: Schema) -> dict[str, str]:
    """Return the feature of each flat array that is not chunked along rows, by the name of the array."""
    found: dict[str, str] = {}
    for name, feature in schema.items():
        splits = Levels.from_feature(feature).splits
        found |= {f"{array_name(name)}.{part}": name for part in (*splits[1:], "values") if splits}
    return found


def check_names(option: str, names: Iterable[str], schema: Schema) -> None:
    """Refuse names that belong neither to a feature nor to a flat array.

    Raises
    ------
    UnknownFeatureError
        If a name is unknown; the message has similar names.
    """
    known = dict.fromkeys([*schema, *array_names(schema)])
    for name in names:
        if name not in known:
            raise UnknownFeatureError(f"{option}: unknown feature or flat array {name!r}{near_misses(name, known)}")


def _by_name(option: str, value: int | Mapping[str, int] | None, schema: Schema) -> Mapping[str, int]:
    """Return the number of rows or entries by name."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(schema, _number(option, value))
    check_names(option, value, schema)
    return {name: _number(f"{option}[{name!r}]", rows) for name, rows in value.items()}


def _rows_or_size(
    option: str, value: int | str | Mapping[str, int] | None
) -> tuple[int | Mapping[str, int] | None, int | None]:
    """Split a `chunks` or `shards` argument into rows and bytes."""
    if value is None:
        return None, None
    if isinstance(value, Mapping):
        return {name: _number(f"{option}[{name!r}]", rows) for name, rows in value.items()}, None
    if isinstance(value, str):
        return None, _nbytes(option, value)
    return _number(option, value, ", a size such as '8 MiB' or a mapping of names to rows"), None


def _number(option: str, value: Any, more: str = "") -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{option} must be a number of rows, 1 or more{more}; got {value!r:.100}")
    return int(value)


def _nbytes(option: str, size: str) -> int:
    try:
        # dask parses a unit without a number as one of that unit.
        nbytes = int(parse_bytes(size)) if any(character.isdigit() for character in size) else 0
    except ValueError:
        nbytes = 0
    if nbytes < 1:
        raise ValueError(f"{option} must be a number of rows or a size such as '4 MiB'; got {size!r:.100}")
    return nbytes


def _shared_unit(requested: Mapping[str, tuple[int | None, int | None]], shard_rows: int | None, large: int) -> int:
    """Return the rows of a unit: a multiple of the chunk or shard of each feature."""
    for name, (chunk, shard) in requested.items():
        _check_multiple(chunk, shard, name)
    writes = {name: shard or chunk or 0 for name, (chunk, shard) in requested.items() if shard or chunk}
    if not writes:
        return shard_rows or large
    most = max(writes, key=writes.__getitem__)
    for name, rows in writes.items():
        if writes[most] % rows:
            raise ValueError(
                f"features share a unit of rows, which one task reads: {rows:,} rows of {name!r} do not divide "
                f"{writes[most]:,} of {most!r}"
            )
    # Default rows of the features without a request, or without shards.
    defaults = [
        shard_rows or large for chunk, shard in requested.values() if shard is None and (shard_rows or chunk is None)
    ]
    return writes[most] * max(1, max(defaults, default=1) // writes[most])


def _check_multiple(chunk: int | None, shard: int | None, name: str) -> None:
    if chunk is not None and shard is not None and shard % chunk:
        raise ValueError(
            f"a shard must be a multiple of its chunk; {shard:,} rows are not a multiple of {chunk:,} ({name!r})"
        )


def _divisor(unit: int, wanted: int) -> int:
    """Return the divisor of a unit that is nearest to a number of rows."""
    if wanted >= unit:
        return unit
    divisors = [part for n in range(1, math.isqrt(unit) + 1) if unit % n == 0 for part in (n, unit // n)]
    return min(divisors, key=lambda size: abs(math.log(size / wanted)))


def _entries(schema: Schema, chunks: Mapping[str, int], shards: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return chunk and shard of the flat arrays whose entries the user specifies."""
    found: dict[str, tuple[int, int]] = {}
    for name in array_names(schema):
        if name in schema or not (name in chunks or name in shards):
            continue
        chunk, shard = chunks.get(name), shards.get(name)
        if chunk is None:
            raise ValueError(f"shards of {name!r} need chunks={{{name!r}: …}}, too: both count its entries")
        _check_multiple(chunk, shard, name)
        found[name] = (chunk, shard or chunk)
    for group, members in schema.groups.items():
        along = [f"{array_name(name)}.values" for name in members if len(Levels.from_feature(schema[name]).splits) == 1]
        given = {found[name] for name in along if name in found}
        if len(given) > 1:
            sizes = " and ".join(f"{chunk:,} ({shard:,})" for chunk, shard in sorted(given))
            raise ValueError(
                f"arrays along the items of group {group!r} have one chunk (and shard) of items; got {sizes}"
            )
        found |= dict.fromkeys(along, *given) if given else {}
    return found


# Compression must not slow down the conversion. zarr finds the size of items.
_AUTO = ({"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}},)


@dataclass(frozen=True, slots=True, eq=False)
class Codecs:
    """Compressors and filters."""

    compressors: Any = "auto"
    filters: Any = "auto"

    def check(self, schema: Schema) -> None:
        """Refuse names that belong neither to a feature nor to a flat array (row splits included).

        Raises
        ------
        UnknownFeatureError
            If a name is unknown.
        """
        for option, value in (("compressors", self.compressors), ("filters", self.filters)):
            if _is_by_name(value):
                splits = {splits_name(name, schema) for name in schema if is_flat(schema[name])}
                check_names(option, [name for name in value if name not in splits], schema)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        return {
            option: {name: _document(each) for name, each in value.items()} if _is_by_name(value) else _document(value)
            for option, value in (("compressors", self.compressors), ("filters", self.filters))
        }

    def resolve(self, spec: ArraySpec) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return compressors and filters of one array; filters of a feature do not apply to its splits."""
        compressors = _pick(self.compressors, spec)
        filterable = spec.part in ("dense", "values") or (_is_by_name(self.filters) and spec.name in self.filters)
        filters = _pick(self.filters, spec) if filterable else ()
        if isinstance(filters, str) and filters == "auto":
            filters = ()
        return _as_tuple(_AUTO if isinstance(compressors, str) and compressors == "auto" else compressors), _as_tuple(
            filters
        )


def codec_documents(codecs: tuple[Any, ...]) -> list[Any]:
    """Convert codecs to JSON values."""
    return [_codec_document(codec) for codec in codecs]


def codec_names(codecs: tuple[Any, ...]) -> str:
    """Format codecs for display: a name with its settings."""
    formatted = []
    for value in codec_documents(codecs):
        settings = [f"{key}={setting}" for key, setting in (value.get("configuration") or {}).items()]
        formatted.append(str(value.get("name", "?")) + (f"({', '.join(settings)})" if settings else ""))
    return ", ".join(formatted) or "none"


def _document(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else codec_documents(_as_tuple(value))


def _is_by_name(value: Any) -> bool:
    # A mapping may be a codec, which has a name; no codec is named "auto".
    if not isinstance(value, Mapping):
        return False
    name = value.get("name")
    return not isinstance(name, str) or name == "auto"


def _pick(value: Any, spec: ArraySpec) -> Any:
    if not _is_by_name(value):
        return value
    if spec.group is not None:
        return value.get(spec.name, "auto")
    return value.get(spec.feature, "auto") if spec.name not in value or spec.part == "dense" else value[spec.name]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _codec_document(codec: Any) -> dict[str, Any]:
    if isinstance(codec, Mapping):
        return dict(codec)
    return dict(codec.to_dict()) if hasattr(codec, "to_dict") else {"name": type(codec).__name__}


@dataclass(frozen=True, slots=True, eq=False)
class AxisNames(Dimensions):
    """Names of axes by feature; other axes are named after their array."""

    @classmethod
    def from_inputs(cls, inputs: Inputs, given: Mapping[str, Sequence[str]] | None) -> AxisNames:
        """Combine the names of the user with those of an xarray Dataset."""
        rows = "record" if inputs.rows is None else inputs.rows
        # `check` refuses other types.
        merge = inputs.axes and (given is None or isinstance(given, Mapping))
        return cls({**inputs.axes, **(given or {})} if merge else given, rows, rows in inputs.coords)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        axes = {name: list(axes) for name, axes in self.given.items()} if self.given else None
        return {"dimension_names": axes} | ({} if self.rows == "record" else {"rows_name": self.rows})

    def check(self, schema: Schema, arrays: Sequence[ArraySpec]) -> None:
        """Refuse names that do not fit the arrays of a group; the axes of `arrays` have generated names.

        Raises
        ------
        UnknownFeatureError
            If a key is not a feature.
        ValueError
            If there is not one string per axis, two axes of an array have one name, a name is that of an array of the
            group, or axes of one name differ in length.
        """
        if self.given is None:
            return
        if not isinstance(self.given, Mapping):
            raise ValueError(f"dimension_names must map features to names of axes; got {self.given!r}")
        for name, axes in self.given.items():
            if name not in schema:
                raise UnknownFeatureError(
                    f"dimension_names: unknown feature {name!r}{near_misses(name, tuple(schema))}"
                )
            if isinstance(axes, str) or not all(isinstance(axis, str) and axis for axis in axes):
                raise ValueError(f"dimension_names[{name!r}] must be a tuple of names, one for each axis; got {axes!r}")
        inner = {array.feature: array for array in arrays if array.part in ("dense", "values")}
        for name, axes in self.given.items():
            _check_axes(name, axes, inner[name], arrays)
        self._check_lengths(arrays)

    def _check_lengths(self, arrays: Sequence[ArraySpec]) -> None:
        """Refuse one name for axes of two lengths, which an xarray Dataset cannot have."""
        found: dict[str, tuple[int, str]] = {}
        for array in arrays:
            axes = array.dimensions[1:]
            if array.part in ("dense", "values"):
                axes = tuple((self.given or {}).get(array.feature, axes))
            for axis, length in zip(axes, array.shape[1:], strict=True):
                other, owner = found.setdefault(axis, (length, array.feature))
                if other != length:
                    raise ValueError(
                        f"dimension_names: {axis!r} has length {other} in {owner!r} and length {length} in "
                        f"{array.feature!r}: axes of one name must have one length"
                    )


def _check_axes(name: str, axes: Sequence[str], array: ArraySpec, arrays: Sequence[ArraySpec]) -> None:
    """Check the names of the axes of one array."""
    option, number = f"dimension_names[{name!r}]", len(array.shape) - 1
    if len(axes) != number:
        unit = "a row" if array.part == "dense" else "an item"
        raise ValueError(
            f"{option} has {len(axes)} names, {tuple(axes)}, where {unit} has "
            f"{number} {'axis' if number == 1 else 'axes'}, of shape {array.shape[1:]}"
        )
    if len(set(axes)) < len(axes):
        raise ValueError(f"{option}: {tuple(axes)} gives two axes of one array the same name")
    names = {each.name for each in arrays}
    along = {each.dimensions[0]: each for each in reversed(arrays)}
    for axis in axes:
        if axis in names:
            raise ValueError(
                f"{option}: {axis!r} is an array of the group, which xarray would read as the coordinate of that axis"
            )
        if axis in along:
            raise ValueError(f"{option}: {axis!r} is the first dimension of {along[axis].name!r}")


# Kinds of values that are accepted for each kind of dtype.
_FROM = {"b": "b", "i": "iuf", "u": "iuf", "f": "iuf", "c": "iufc"}


@dataclass(frozen=True, slots=True, eq=False)
class FillValues:
    """Fill values by feature or flat array."""

    given: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        return {"fill_values": {name: json_value(value) for name, value in self.given.items()} if self.given else None}

    def check(self, schema: Schema) -> None:
        """Refuse names that belong neither to a feature nor to a flat array.

        Raises
        ------
        UnknownFeatureError
            If a name is unknown.
        """
        if self.given is not None and not isinstance(self.given, Mapping):
            raise ValueError(f"fill_values must map features or flat arrays to values; got {self.given!r}")
        check_names("fill_values", self.given or {}, schema)

    def resolve(self, spec: ArraySpec, schema: Schema) -> Any:
        """Return the fill value of an array: that of the user, else the scalar default of its feature, else zero.

        Raises
        ------
        ValueError
            If the dtype of the array cannot hold it.
        """
        given = self.given or {}
        if spec.name in given and spec.name not in schema:
            return _checked(given[spec.name], spec.dtype, spec.name)
        if spec.feature in given and spec.part in ("dense", "values"):
            return _checked(given[spec.feature], spec.dtype, spec.feature)
        default = getattr(schema[spec.feature], "default_value", None)
        if spec.part == "dense" and default is not None and not isinstance(default, tuple):
            return _checked(default, spec.dtype, spec.feature)
        return "" if spec.dtype == "string" else np.dtype(spec.dtype).type(0)


def json_value(value: Any) -> Any:
    """Convert a scalar to JSON as the metadata of Zarr does."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, complex):
        return [json_value(plain.real), json_value(plain.imag)]
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if plain != plain else "Infinity" if plain > 0 else "-Infinity"
    return plain if plain is None or isinstance(plain, bool | int | float | str) else repr(plain)


def _checked(value: Any, dtype: str, name: str) -> Any:
    """Convert a value to a dtype; only floats may be rounded."""
    if dtype == "string":
        if isinstance(value, str):
            return str(value)
    elif isinstance(value, bool | int | float | complex | np.generic):
        wanted, given = np.dtype(dtype), np.asarray(value)
        if given.dtype.kind in _FROM[wanted.kind]:
            with np.errstate(all="ignore"):
                cast = given.astype(wanted)
            rounded = wanted.kind in "fc" and bool(np.isfinite(cast)) == bool(np.isfinite(given))
            if rounded or cast.item() == given.item():
                return cast[()]
    raise ValueError(f"fill_values[{name!r}]: {value!r:.100} is not a value of dtype {dtype}")


# Attributes of arrays and groups that this library or xarray uses.
_RESERVED = {"dask_tfrecord", "feature", "feature_class", "class_names", "coordinates"}


@dataclass(frozen=True, slots=True)
class UserAttributes:
    """Attributes and coordinates of what is written, as JSON values."""

    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group: Mapping[str, Any] = field(default_factory=dict)
    coords: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()

    @classmethod
    def from_inputs(cls, inputs: Inputs) -> UserAttributes:
        """Collect the attributes and coordinates of the inputs."""
        omitted: list[str] = []
        arrays = {name: _kept(each, f"{name}.", omitted) for name, each in inputs.attributes.items()}
        group = _kept(inputs.collection_attributes, "", omitted)
        return cls(arrays, group, inputs.coords, tuple(omitted))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        if not (self.arrays or self.group or self.coords):
            return {}
        return {"attributes": json.dumps([self.arrays, self.group, self.coords], sort_keys=True)}

    def of_group(self, schema: Schema) -> dict[str, Any]:
        """Return the attributes of the group; xarray expects the names of coordinates separated by spaces."""
        names = [array_name(name) for name in self.coords if not is_flat(schema[name])]
        coords = " ".join(name for name in names if " " not in name)
        return {**self.group, **({"coordinates": coords} if coords else {})}


def _kept(attributes: Mapping[str, Any], owner: str, omitted: list[str]) -> dict[str, Any]:
    """Convert attributes to JSON values; append the names of others to `omitted`."""
    kept = {}
    for name, value in attributes.items():
        try:
            json.dumps(value := _plain(value))
        except (TypeError, ValueError):
            omitted.append(f"{owner}{name}")
            continue
        if isinstance(name, str) and name not in _RESERVED:
            kept[name] = value
        else:
            omitted.append(f"{owner}{name}")
    return kept


def _plain(value: Any) -> Any:
    """Convert NumPy scalars and arrays to JSON values."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True, eq=False)
class ZarrOptions:
    """Options of a conversion."""

    chunks: ChunkRequest = field(default_factory=ChunkRequest)
    codecs: Codecs = field(default_factory=Codecs)
    names: AxisNames = field(default_factory=AxisNames)
    fill_values: FillValues = field(default_factory=FillValues)
    consolidated: bool = True
    attributes: UserAttributes = field(default_factory=UserAttributes)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        parts = (self.chunks, self.codecs, self.names, self.fill_values, self.attributes)
        return {name: value for part in parts for name, value in part.to_json().items()} | {
            "consolidated": bool(self.consolidated)
        }

    def check(self, schema: Schema) -> None:
        """Refuse options that do not fit the features. Chunk sizes depend on the size of rows and are checked later.

        Raises
        ------
        UnknownFeatureError
            If a name belongs neither to a feature nor to a flat array.
        ValueError
            If names of axes do not fit the arrays, or a fill value does not fit its dtype.
        """
        self.codecs.check(schema)
        self.fill_values.check(schema)
        # A layout without rows suffices: only axes after the first are checked.
        generated = Dimensions(None, self.names.rows, self.names.indexed)
        arrays = zarr_layout(schema, 0, RowGrid(1, 1, 1), BorderCounts.concatenate(schema, []), names=generated).arrays
        self.names.check(schema, arrays)
        for spec in arrays:
            self.fill_values.resolve(spec, schema)

    def create_arguments(self, layout: ZarrLayout, schema: Schema) -> dict[str, dict[str, Any]]:
        """Return the arguments of `zarr.create_array` for each array, by its name."""
        splits = layout.splits_attributes(schema)
        created = {spec.name: self._create_arguments(spec, schema) for spec in layout.arrays}
        for name, attributes in splits.items():
            created[name]["attributes"] |= attributes
        return created

    def _create_arguments(self, spec: ArraySpec, schema: Schema) -> dict[str, Any]:
        inner = tuple(max(1, size) for size in spec.shape[1:])
        compressors, filters = self.codecs.resolve(spec)
        return {
            "shape": spec.shape,
            "dtype": spec.dtype,
            "chunks": (spec.chunk, *inner),
            "shards": (spec.unit, *inner) if spec.unit != spec.chunk else None,
            "compressors": compressors,
            "filters": filters,
            "fill_value": self.fill_values.resolve(spec, schema),
            "dimension_names": spec.dimensions,
            "attributes": self._array_attributes(spec, schema),
        }

    def _array_attributes(self, spec: ArraySpec, schema: Schema) -> dict[str, Any]:
        """Return the attributes of an array: plain values, which xarray displays and netCDF can store."""
        if spec.group is not None:
            return {}
        attributes = {"feature": spec.feature, "feature_class": type(schema[spec.feature]).__name__}
        if spec.part not in ("dense", "values"):
            return attributes
        classes = schema.classes.get(spec.feature)
        user = self.attributes.arrays.get(spec.feature, {})
        return {**user, **attributes, **({"class_names": list(classes)} if classes else {})}
