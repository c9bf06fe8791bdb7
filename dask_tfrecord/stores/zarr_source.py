"""Rows of Zarr groups that `to_zarr` wrote: `from_zarr` and the source behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Lazy
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.plan import Rows, pick_rows
from dask_tfrecord.arrays.source import Out, fill, parts
from dask_tfrecord.columns.blocks import Block, concatenate, take_rows, zero_rows
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.layout import array_name
from dask_tfrecord.stores.levels import Levels
from dask_tfrecord.stores.zarr import FORMAT, Target

__all__ = ["ZarrSource", "from_zarr"]

# Gives entries `start` to `stop` of an array, by its name.
_Read = Callable[[str, int, int], NDArray[Any]]


def from_zarr(store: Any, *, component: str | None = None, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Open a group that `to_zarr` wrote, under the features' true names.

    Parameters
    ----------
    store : str, Path or zarr store
        A path, a URL or a store.
    component : str, optional
        Path of the group within the store.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    Dataset
        Chunked as the store was written.

    Raises
    ------
    FileNotFoundError
        If no group is there.
    IncompleteStoreError
        If its writing was never finished, or something else wrote it; and where rows are read, if a chunk of theirs is
        damaged or gone, which zarr itself would read as fill values. A `ValueError` too.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr")["label"].dtype
    dtype('int64')
    """
    target = Target.of(store, component, storage_options)
    attributes = target.attributes(target.open("r"))
    if attributes.get("format") != FORMAT:
        raise IncompleteStoreError(
            "the group was not written by to_zarr; zarr.open_group and da.from_zarr read it", target.place
        )
    if not attributes["complete"]:
        raise IncompleteStoreError(
            "the conversion that wrote this group was never finished: to_zarr(…, resume=True) goes on with it, "
            "mode='w' writes it anew",
            target.place,
        )
    schema = Schema.from_json(json.dumps(attributes["schema"]))
    rows, unit = int(attributes["records"]), int(attributes["unit_rows"])
    read_by = attributes.get("source", {}).get("schema")
    source = ZarrSource(target, attributes["id"], schema, range(rows), unit, read_by)
    borders = np.append(np.arange(0, rows, unit), rows) if rows else np.array([0, 0])
    return Dataset(Lazy(source, borders, len(borders) - 1), list(schema))


@dataclass(frozen=True, slots=True, eq=False)
class ZarrSource:
    """Rows of a group that `to_zarr` wrote.

    Attributes
    ----------
    target : Target
        The group.
    identity : str
        What the conversion called itself: another one is other data.
    schema : Schema
        The features.
    rows : range or ndarray of int64
        The rows of the group that are rows here.
    unit_rows : int
        Rows of a write unit.
    read_by : mapping or None
        JSON of the schema that the rows were once read by from records, if they were and are still the same columns.
    """

    target: Target
    identity: str
    schema: Schema
    rows: Rows
    unit_rows: int
    read_by: Mapping[str, Any] | None

    def __dask_tokenize__(self) -> object:
        # Rows as they are: of a long array the text leaves most out.
        return normalize_token(("dask_tfrecord.ZarrSource", str(self.target), self.identity, self.rows))

    @property
    def nrows(self) -> int:
        """Rows of all features."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """The store, and the schema of the records that it was made of."""
        return {"store": str(self.target)} | ({} if self.read_by is None else {"schema": self.read_by})

    def sized(self) -> ZarrSource:
        """Give the same."""
        return self

    def select(self, key: Any) -> ZarrSource:
        """Restrict the source to those rows."""
        return replace(self, rows=pick_rows(self.rows, key))

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Units are what is read at once."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of some features."""
        group = self._group()
        return self._blocks(partial(self.target.read, group), names, key, out)

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other; a chunk that several of them lie in is read once."""
        kept = _Kept(self.target, self._group())
        return (self._blocks(kept.read, names, key, into) for key, into in parts(spans, out))

    def _group(self) -> Any:
        group = self.target.open("r")
        if self.target.attributes(group).get("id") != self.identity:
            raise IncompleteStoreError("the group was replaced after it was opened: open it again", self.target.place)
        return group

    def _blocks(
        self, read: _Read, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None
    ) -> dict[str, Block]:
        rows = pick_rows(self.rows, key)
        return fill({name: self._block(read, name, rows) for name in names}, out)

    def _block(self, read: _Read, name: str, rows: Rows) -> Block:
        if isinstance(rows, range) and rows.step == 1:
            return self._stretch(read, name, rows.start, rows.stop)
        # Any rows: those of one unit are read in one stretch, once, and then picked.
        index = np.asarray(rows, np.int64)
        ascending, order = np.unique(index, return_inverse=True)
        cuts = np.flatnonzero(np.diff(ascending // self.unit_rows)) + 1
        parts = [
            take_rows(self._stretch(read, name, int(part[0]), int(part[-1]) + 1), part - part[0])
            for part in np.split(ascending, cuts)
            if len(part)
        ]
        return take_rows(concatenate([zero_rows(self.schema[name]), *parts]), order)

    def _stretch(self, read: _Read, name: str, start: int, stop: int) -> Block:
        feature, path = self.schema[name], array_name(name)
        levels = Levels.of(feature)
        if not levels.splits:
            return read(path, start, stop)
        first, last = start, stop
        splits = []
        for part, stride in zip(levels.splits, levels.strides, strict=True):
            ends = read(f"{path}.{part}", first * stride, last * stride + 1)
            first, last = int(ends[0]), int(ends[-1])
            splits.append(ends - first)
        values = read(f"{path}.values", first, last)
        shapes = read(f"{path}.shapes", start, stop) if levels.axes else None
        return levels.block(feature, stop - start, splits, values, shapes)


class _Kept:
    """Reads stretches that follow each other, and keeps the chunk that the last one of each array ended in."""

    def __init__(self, target: Target, group: Any) -> None:
        self.target, self.group = target, group
        self.sizes: dict[str, int] = {}
        self.chunks: dict[str, tuple[int, NDArray[Any]]] = {}

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Entries of one array."""
        if name not in self.sizes:
            self.sizes[name] = self.group[name].chunks[0]
        size = self.sizes[name]
        if stop - start >= size or stop == start:
            return self.target.read(self.group, name, start, stop)
        found = []
        for number in range(start // size, (stop - 1) // size + 1):
            first, chunk = self.chunks.get(name, (-1, None))
            if chunk is None or first != number * size:
                first, chunk = number * size, self.target.read(self.group, name, number * size, (number + 1) * size)
                self.chunks[name] = first, chunk
            found.append(chunk[max(start - first, 0) : stop - first])
        return found[0] if len(found) == 1 else np.concatenate(found)
