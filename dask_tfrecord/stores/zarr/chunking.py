"""Chunk grid of a conversion, from the options of the user and the size of rows.

All features share a unit of rows, so that a task reads records once for all of them. The chunks and shards of each
feature divide it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from dask_tfrecord.errors import UnknownFeatureError
from dask_tfrecord.schema import Schema, near_misses
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.flat_arrays import Levels
from dask_tfrecord.stores.rows import RowSizes
from dask_tfrecord.stores.zarr.layout import GridOverrides, RowGrid, array_name

__all__ = ["ChunkRequest", "array_names", "check_names"]

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
