"""Chunk grids in a Zarr group: how many rows and entries chunks and shards get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.settings import check_unit, limits, parse_size
from dask_tfrecord.stores.documents import Positive
from dask_tfrecord.stores.output import check_number
from dask_tfrecord.stores.units import Levels, RowSizes, is_flat
from dask_tfrecord.stores.zarr.array_names import array_name, array_names, check_names

# Bytes of a Python string besides its characters; Zarr's codec of strings takes Python strings.
STRING_NBYTES = 64
# Approximate units of a flat array per unit of rows.
_FLAT_UNITS = 4
# Limit for all arrays that are chunked along rows, as a multiple of a write unit: with many arrays each gets less.
_ARRAYS_TOGETHER = 4
# Limit of decoded bytes in a unit of rows with its flat values, which the task reads only for their lengths.
_SPAN_NBYTES = 32 << 20
# Most units of rows that a chunk of small rows spans: if one task reads all of them, or rows will be appended.
_LONGEST, _LONGEST_GROWING = 128, 16
# Units of the largest arrays that a task reads, and tasks of data that have few units: for threads of one machine.
UNITS_OF_A_TASK, _FEW_TASKS = 8, 8
# A store of more objects has shards by default, of at most this many write units.
_MOST_OBJECTS, _MOST_UNITS_PER_SHARD = 100_000, 16


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Chunk grid along rows, of all arrays without a grid of their own."""

    # Rows of a chunk.
    chunk: Positive
    # Rows of a write unit: a chunk, or a shard of chunks.
    unit: Positive
    # Most rows that a task reads at once.
    most: Positive


@dataclass(frozen=True, slots=True)
class GridOverrides:
    """Chunks and shards of arrays that differ from the grid of rows and the default sizes."""

    # Rows of a chunk and of a shard (of the chunk without shards), by feature.
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Entries of a chunk and of a shard, by the name of a flat array.
    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Decoded bytes in a chunk and in a shard of flat arrays.
    chunk_nbytes: int | None = None
    shard_nbytes: int | None = None
    # The arrays will grow: chunks do not end with the rows that there are.
    grows: bool = False
    # Features without a request: row splits in one chunk take the final number into it.
    defaults: frozenset[str] = frozenset()

    def units(self, grid: RowGrid) -> list[int]:
        """Return how many rows each kind of unit has."""
        return sorted({grid.unit, *(unit_rows(grid, unit) for _, unit in self.rows.values())})

    def flat_grid(self, name: str, item_nbytes: int, length: int, units: float, sharded: bool) -> tuple[int, int]:
        """Return how many entries a flat array's chunk and write unit have.

        The array has `length` entries, in `units` units of rows.
        """
        if name in self.entries:
            return self.entries[name]
        item = max(1, item_nbytes)
        # Flat units begin and end near units of rows: rows across the end of a task are read by two tasks.
        default = limits().chunk_nbytes if sharded else limits().write_unit_nbytes
        share = max(1, math.ceil(length / max(units, 1.0)))
        if self.grows:
            share = math.ceil(length / units) if length and units else max(1, default // item)
        parts = max(1, min(_FLAT_UNITS, share * item // limits().flat_chunk_nbytes))
        most = math.ceil(share / parts) if self.grows else max(1, min(math.ceil(share / parts), length))
        if units <= 1.0:
            # The store may have been begun from few rows, and grow.
            most = max(most, limits().flat_chunk_nbytes // item)
        chunk = max(1, (self.chunk_nbytes or default) // item)
        if not sharded:
            return (_even(most, chunk),) * 2
        shard = _even(most, max(1, (self.shard_nbytes or limits().write_unit_nbytes) // item))
        chunk = _even(shard, chunk)
        return chunk, chunk * math.ceil(shard / chunk)


def unit_rows(grid: RowGrid, rows: int) -> int:
    """Return the rows of a write unit of an array whose chunks or shards have `rows` rows."""
    return rows if grid.unit % rows else grid.unit


def _even(length: int, most: int) -> int:
    """Return the length of equal parts of at most `most` entries."""
    return math.ceil(length / math.ceil(length / most))


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Chunk and shard sizes that the user requests: rows by feature and entries by flat array, or decoded bytes."""

    chunks: int | Mapping[str, int] | None = None
    shards: int | Mapping[str, int] | None = None
    chunk_nbytes: int | None = None
    shard_nbytes: int | None = None
    # Rows will be appended: the sizes do not depend on the number of rows.
    grows: bool = False
    # Rows of a unit of the group that the arrays are added to: units of both divide each other.
    unit_of_group: int | None = None

    @classmethod
    def from_arguments(
        cls,
        chunks: int | str | Mapping[str, int] | None,
        shards: int | str | Mapping[str, int] | None,
        *,
        grows: bool = False,
    ) -> ChunkRequest:
        """Check the arguments of `to_zarr`: numbers of rows or sizes."""
        chunk_rows, chunk_nbytes = rows_or_size("chunks", chunks)
        shard_rows, shard_nbytes = rows_or_size("shards", shards)
        return cls(chunk_rows, shard_rows, chunk_nbytes, shard_nbytes, grows)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the fingerprint."""
        given = {"chunks": (self.chunks, self.chunk_nbytes), "shards": (self.shards, self.shard_nbytes)}
        return {option: rows if nbytes is None else f"{nbytes} B" for option, (rows, nbytes) in given.items()}

    def resolve(
        self, schema: Schema, nrows: int, sizes: RowSizes, *, shares_reads: bool = True
    ) -> tuple[RowGrid, GridOverrides]:
        """Choose the grid of rows, and the grids of arrays that differ from it.

        Arrays of small rows have chunks of several units of rows, at most one task's if tasks read shards
        (`shares_reads`). A chunk of many small rows that the user requests does not lengthen the unit.

        Raises ValueError if a number is invalid, a shard is not a multiple of its chunk, or features do not share a
        unit of rows; UnknownFeatureError if a name belongs neither to a feature nor to a flat array.
        """
        chunks, shards = _by_name("chunks", self.chunks, schema), _by_name("shards", self.shards, schema)
        chunk_nbytes, shard_nbytes = self.chunk_nbytes, self.shard_nbytes
        requested = {name: (chunks.get(name), shards.get(name)) for name in schema}
        if not (self.grows or chunks or shards or chunk_nbytes or shard_nbytes):
            shard_nbytes = _default_shard_nbytes(schema, nrows, sizes)
        small = _default_rows(chunk_nbytes or limits().chunk_nbytes, sizes)
        large = _default_rows(chunk_nbytes or limits().write_unit_nbytes, sizes)
        all_rows = max(nrows, large if self.grows else 1)
        if chunk_nbytes is None:
            # An interrupted conversion keeps whole units.
            least = _default_rows(limits().least_unit_nbytes, sizes)
            large = min(large, max(least, math.ceil(all_rows / limits().wanted_units)))
        # Equal units, so that tasks take equally long.
        large = math.ceil(all_rows / math.ceil(all_rows / large))
        defaults = frozenset(name for name, each in requested.items() if each == (None, None) and not self.grows)
        if self.unit_of_group is not None:
            unit = self.unit_of_group
            large = large // unit * unit if large > unit else _divisor(unit, large)
        elif len(defaults) == len(schema) and any(map(is_flat, schema.values())):
            # The final number of row splits would be a chunk of its own.
            smaller = range(large, large - large // 8, -1) if large < all_rows else ()
            large = next((rows for rows in smaller if all_rows % rows), large)
        shard_rows = None
        if shard_nbytes is not None:
            chunk = min(small, all_rows)
            shard_rows = chunk * math.ceil(min(_default_rows(shard_nbytes, sizes), all_rows) / chunk)
        nbytes = {name: _largest_row(name, feature, sizes) for name, feature in schema.items()}
        unit = _shared_unit(requested, shard_rows, large, _default_rows(limits().write_unit_nbytes, sizes), nbytes)
        target = min(limits().small_rows_nbytes, chunk_nbytes or math.inf, shard_nbytes or math.inf)
        longest = {name: _longest_chunk(unit, nbytes[name], target, self.chunk_nbytes, shard_rows) for name in defaults}
        most_units = _LONGEST_GROWING
        if not self.grows:
            most_units = math.ceil(all_rows / unit)
            # Rows in memory are read again for nothing, and rows of shards by one task.
            most_units = min(_LONGEST, most_units // least_tasks(sizes.read * nrows)) if shares_reads else most_units
        longer = _longer_units(unit, most_units, [(nbytes[name], longest[name]) for name in defaults])

        def chunk_and_shard(name: str, chunk: int | None, shard: int | None) -> tuple[int, int]:
            most = int(target / nbytes[name])
            if shard is chunk is None:
                own = max((rows for rows in longer if rows <= longest.get(name, 0)), default=unit)
                if own > unit or (shard_rows is not None and unit <= most):
                    return own, own
            if shard is None and shard_rows is not None:
                shard = unit
            chunk = chunk or (_divisor(unit, large) if shard is None else _divisor(shard, max(small, most)))
            return chunk, shard or chunk

        rows = {name: chunk_and_shard(name, *each) for name, each in requested.items()}
        grid = RowGrid(min((chunk for chunk, _ in rows.values()), default=unit), unit, rows_of_a_read(sizes))
        entries = _entries(schema, chunks, shards)
        return grid, GridOverrides(rows, entries, chunk_nbytes, shard_nbytes, self.grows, defaults)


def _default_shard_nbytes(schema: Schema, nrows: int, sizes: RowSizes) -> int | None:
    """Return the decoded bytes of a shard if a store without shards would have too many objects; else None."""
    unit_rows = _default_rows(limits().write_unit_nbytes, sizes)
    small = [
        _largest_row(name, feature, sizes) * unit_rows < limits().small_rows_nbytes for name, feature in schema.items()
    ]
    flat = sum(sizes.columns[name] for name in schema if is_flat(schema[name])) * nrows / limits().write_unit_nbytes
    objects = nrows / unit_rows * small.count(False) + flat
    if objects <= _MOST_OBJECTS:
        return None
    return limits().write_unit_nbytes * min(math.ceil(objects / _MOST_OBJECTS), _MOST_UNITS_PER_SHARD)


def _largest_row(name: str, feature: Feature, sizes: RowSizes) -> float:
    """Return how many decoded bytes a row takes in a feature's largest row-chunked array."""
    levels = Levels.from_feature(feature)
    strings = STRING_NBYTES if feature.item_dtype.kind == "T" else 0
    return max(1.0, *levels.row_nbytes()) if levels.splits else max(1.0, sizes.columns[name] + strings)


def least_tasks(nbytes: float) -> int:
    """Return the least number of tasks that read some bytes: enough for the threads of a cluster, if there are many."""
    few = max(_FEW_TASKS, int(nbytes) // (UNITS_OF_A_TASK * limits().write_unit_nbytes))
    return min(limits().min_write_tasks, few)


def _longest_chunk(unit: int, nbytes: float, target: float, given: int | None, shard_rows: int | None) -> int:
    """Return how many rows a chunk has at most: `target` bytes, or with larger rows an object worth a request."""
    if 2 * unit * nbytes > target and given is None and shard_rows is None:
        target = limits().chunk_nbytes
    return int(target / nbytes)


def _longer_units(unit: int, most: int, arrays: Sequence[tuple[float, int]]) -> list[int]:
    """Choose longer units for small rows: multiples of a unit, so that one task writes each.

    `arrays` lists, for each array, the bytes of a row and the most rows of a chunk; `most` is the most units. The task
    fills the units of these arrays together, so that their sum is limited.
    """
    found: list[int] = []
    rows = 2 * unit
    # The last one may reach beyond the last row.
    while rows < 2 * most * unit and any(rows <= longest for _, longest in arrays):
        small = (each * min(rows, longest) for each, longest in arrays if 2 * unit <= longest)
        if sum(small) > limits().write_unit_nbytes:
            break
        found.append(rows)
        rows *= 2
    return found


def rows_of_a_read(sizes: RowSizes) -> int:
    """Return the most rows that a task reads at once."""
    return max(1, int(min(limits().write_unit_nbytes, _SPAN_NBYTES) / max(sizes.read, 1.0)))


def _default_rows(nbytes: int, sizes: RowSizes) -> int:
    """Return the number of rows of a unit or a chunk in which the largest array has at most `nbytes`."""
    share = sizes.read * limits().write_unit_nbytes / _SPAN_NBYTES
    return max(1, int(nbytes / max(sizes.largest, sizes.by_rows / _ARRAYS_TOGETHER, share, 1.0)))


def _by_name(option: str, value: int | Mapping[str, int] | None, schema: Schema) -> Mapping[str, int]:
    """Return the number of rows or entries by name."""
    if isinstance(value, Mapping):
        check_names(option, value, schema)
        return value
    return {} if value is None else dict.fromkeys(schema, value)


def rows_or_size(
    option: str, value: int | str | Mapping[str, int] | None
) -> tuple[int | Mapping[str, int] | None, int | None]:
    """Split a `chunks` or `shards` argument into rows and bytes."""
    if value is None:
        return None, None
    if isinstance(value, Mapping):
        return {name: check_number(f"{option}[{name!r}]", rows, 1, " of rows") for name, rows in value.items()}, None
    if isinstance(value, str):
        return None, _nbytes(option, value)
    return check_number(option, value, 1, " of rows", ", or a size such as '8 MiB'"), None


def _nbytes(option: str, size: str) -> int:
    check_unit(option, size)
    nbytes = int(parse_size(size) or 0)
    if nbytes < 1:
        raise ValueError(f"{option} must be a number of rows or a size such as '4 MiB'; got {size!r:.100}")
    return nbytes


def _shared_unit(
    requested: Mapping[str, tuple[int | None, int | None]],
    shard_rows: int | None,
    large: int,
    most_rows: int,
    nbytes: Mapping[str, float],
) -> int:
    """Choose rows per unit: a multiple of each feature's chunk or shard, except for small rows.

    `nbytes` are the bytes of a row of each feature. A unit has at most `most_rows` for the sake of small rows.
    """
    for name, (chunk, shard) in requested.items():
        _check_multiple(chunk, shard, name)
    writes = {name: shard or chunk or 0 for name, (chunk, shard) in requested.items() if shard or chunk}
    if not writes:
        return shard_rows or large
    most = max(writes, key=writes.__getitem__)
    for name, rows in writes.items():
        if writes[most] % rows:
            raise ValueError(
                f"one task writes whole chunks of all features: {writes[most]:,} rows of {most!r} must be a multiple "
                f"of the {rows:,} of {name!r}"
            )
    # Default rows of the features without a request, or without shards.
    defaults = [
        shard_rows or large for chunk, shard in requested.values() if shard is None and (shard_rows or chunk is None)
    ]
    if writes[most] <= most_rows:
        return writes[most] * max(1, max(defaults, default=1) // writes[most])
    # Longer units would hold too much of the other columns. Small rows have units of their own.
    largest = max(nbytes.values())
    wide = [rows for name, rows in writes.items() if rows <= most_rows or 2 * nbytes[name] > largest]
    least = max(wide, default=1)
    return least * _divisor(writes[most] // least, max(1, max(defaults, default=1) // least))


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
                f"arrays along the items of group {group!r} must have the same chunk (and shard); got {sizes}"
            )
        found |= dict.fromkeys(along, *given) if given else {}
    return found
