"""From what a user asks for, and how large rows are, to where arrays are cut. Pure values.

All features share a unit of rows, so that a task reads records once for all of them. Chunks and shards of each feature
divide it.
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
from dask_tfrecord.stores.feed import RowSizes
from dask_tfrecord.stores.layout import CHUNK_NBYTES, UNIT_NBYTES, Cuts, RowGrid, array_name, default_rows
from dask_tfrecord.stores.levels import Levels

__all__ = ["Wishes", "array_names", "check_names"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asks for.

    Attributes
    ----------
    chunks, shards : int, mapping of str to int, or None
        Rows, of all features or by feature; entries, by the name of a flat array.
    target_chunk_bytes, target_shard_bytes : int, str or None
        Decoded bytes of a chunk and of a shard, where nobody says how many rows.
    """

    chunks: int | Mapping[str, int] | None = None
    shards: int | Mapping[str, int] | None = None
    target_chunk_bytes: int | str | None = None
    target_shard_bytes: int | str | None = None

    def values(self) -> dict[str, Any]:
        """Write them as JSON values, by which a conversion is known."""
        named = {"chunks": self.chunks, "shards": self.shards}
        sizes = {"target_chunk_bytes": self.target_chunk_bytes, "target_shard_bytes": self.target_shard_bytes}
        return {
            **{
                option: {name: int(rows) for name, rows in value.items()} if isinstance(value, Mapping) else _int(value)
                for option, value in named.items()
            },
            **{option: _nbytes(option, value) for option, value in sizes.items()},
        }

    def cut(self, schema: Schema, nrows: int, sizes: RowSizes) -> tuple[RowGrid, Cuts]:
        """Cut rows, and arrays that are cut otherwise.

        Raises
        ------
        ValueError
            If a number is none, a shard is not a whole number of chunks, or features do not share a unit of rows.
        UnknownFeatureError
            If a name is neither that of a feature nor that of a flat array.
        """
        chunks, shards = _by_name("chunks", self.chunks, schema), _by_name("shards", self.shards, schema)
        chunk_nbytes = _nbytes("target_chunk_bytes", self.target_chunk_bytes)
        shard_nbytes = _nbytes("target_shard_bytes", self.target_shard_bytes)
        asked = {name: (chunks.get(name), shards.get(name)) for name in schema}

        def wanted(nbytes: int) -> int:
            return default_rows(nbytes, sizes.largest, sizes.by_rows, sizes.read)

        all_rows = max(nrows, 1)
        small, large = wanted(chunk_nbytes or CHUNK_NBYTES), wanted(chunk_nbytes or UNIT_NBYTES)
        # Of one size, so that tasks take as long as each other.
        large = math.ceil(all_rows / math.ceil(all_rows / large))
        whole = None
        if shard_nbytes is not None:
            whole = min(small, all_rows) * math.ceil(min(wanted(shard_nbytes), all_rows) / min(small, all_rows))
        unit = _shared_unit(asked, whole, large)

        def cut(chunk: int | None, shard: int | None) -> tuple[int, int]:
            if shard is None and whole is not None:
                shard = unit
            chunk = chunk or (_divisor(unit, large) if shard is None else _divisor(shard, small))
            return chunk, shard or chunk

        rows = {name: cut(*of) for name, of in asked.items()}
        most = default_rows(UNIT_NBYTES, sizes.read, sizes.read, sizes.read)
        grid = RowGrid(min((chunk for chunk, _ in rows.values()), default=unit), unit, most)
        named = _entries(schema, chunks, shards)
        return grid, Cuts(rows, named, chunk_nbytes, shard_nbytes)


def array_names(schema: Schema) -> dict[str, str]:
    """Name the feature of each flat array that is not laid out by rows."""
    found: dict[str, str] = {}
    for name, feature in schema.items():
        splits = Levels.of(feature).splits
        found |= {f"{array_name(name)}.{part}": name for part in (*splits[1:], "values") if splits}
    return found


def check_names(option: str, names: Iterable[str], schema: Schema) -> None:
    """Refuse names that are neither of a feature nor of a flat array.

    Raises
    ------
    UnknownFeatureError
        If one is; near misses are named.
    """
    known = [*schema, *array_names(schema)]
    for name in names:
        if name not in known:
            raise UnknownFeatureError(f"{option}: no feature and no flat array {name!r}{near_misses(name, known)}")


def _by_name(option: str, value: int | Mapping[str, int] | None, schema: Schema) -> Mapping[str, int]:
    """Spread what is asked for over names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(schema, _number(option, value))
    check_names(option, value, schema)
    return {name: _number(f"{option}[{name!r}]", rows) for name, rows in value.items()}


def _number(option: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{option} is a number of rows; got {value!r}")
    return int(value)


def _int(value: int | None) -> int | None:
    return None if value is None else int(value)


def _nbytes(option: str, value: int | str | None) -> int | None:
    if value is None:
        return None
    nbytes = int(parse_bytes(value))
    if isinstance(value, bool) or nbytes < 1:
        raise ValueError(f"{option} is a number of bytes, such as 4194304 or '4 MiB'; got {value!r}")
    return nbytes


def _shared_unit(asked: Mapping[str, tuple[int | None, int | None]], whole: int | None, large: int) -> int:
    """Find the rows of a unit: a whole number of what each feature has asked for."""
    for name, (chunk, shard) in asked.items():
        _check_whole(chunk, shard, name)
    writes = {name: shard or chunk or 0 for name, (chunk, shard) in asked.items() if shard or chunk}
    if not writes:
        return whole or large
    most = max(writes, key=writes.__getitem__)
    for name, rows in writes.items():
        if writes[most] % rows:
            raise ValueError(
                f"features share a unit of rows, which one task reads: {rows} rows of {name!r} do not divide "
                f"{writes[most]} of {most!r}"
            )
    # Who has asked for nothing, or for no shards, would have had this many.
    free = [whole or large for chunk, shard in asked.values() if shard is None and (whole or chunk is None)]
    return writes[most] * max(1, max(free, default=1) // writes[most])


def _check_whole(chunk: int | None, shard: int | None, name: str) -> None:
    if chunk is not None and shard is not None and shard % chunk:
        raise ValueError(f"a shard is a whole number of chunks; {shard} rows are no multiple of {chunk} ({name!r})")


def _divisor(unit: int, wanted: int) -> int:
    """Find what divides a unit and is nearest to the rows that are wanted."""
    if wanted >= unit:
        return unit
    divisors = [part for n in range(1, math.isqrt(unit) + 1) if unit % n == 0 for part in (n, unit // n)]
    return min(divisors, key=lambda size: abs(math.log(size / wanted)))


def _entries(schema: Schema, chunks: Mapping[str, int], shards: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Find the flat arrays for which somebody has said how many entries."""
    found: dict[str, tuple[int, int]] = {}
    for name in array_names(schema):
        if name in schema or not (name in chunks or name in shards):
            continue
        chunk, shard = chunks.get(name), shards.get(name)
        if chunk is None:
            raise ValueError(f"shards of {name!r} take chunks={{{name!r}: …}} too: both count its entries")
        _check_whole(chunk, shard, name)
        found[name] = (chunk, shard or chunk)
    return found
