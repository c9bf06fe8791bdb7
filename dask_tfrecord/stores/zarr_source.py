"""Rows of Zarr groups that `to_zarr` wrote: `from_zarr` and the source behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Lazy
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.plan import Rows, pick_rows
from dask_tfrecord.arrays.source import parts
from dask_tfrecord.columns.blocks import Block, BytesBlock, RaggedBlock, concatenate, take_rows, zero_rows
from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.schema import Schema, VarLenFeature
from dask_tfrecord.stores.layout import array_name, is_flat, splits_per_row
from dask_tfrecord.stores.zarr import FORMAT, Target

__all__ = ["ZarrSource", "from_zarr"]


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
        If its writing was never finished, or something else wrote it. A `ValueError` too.

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
        raise IncompleteStoreError("the conversion that wrote this group was never finished: write it again", target.place)
    schema = Schema.from_json(json.dumps(attributes["schema"]))
    rows, unit = int(attributes["records"]), int(attributes["unit_rows"])
    source = ZarrSource(target, attributes["id"], schema, range(rows), unit)
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
    """

    target: Target
    identity: str
    schema: Schema
    rows: Rows
    unit_rows: int

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.ZarrSource", str(self.target), self.identity, self.rows

    @property
    def nrows(self) -> int:
        """Rows of all features."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """The store."""
        return {"store": str(self.target)}

    def select(self, key: Any) -> ZarrSource:
        """Restrict the source to those rows."""
        return ZarrSource(self.target, self.identity, self.schema, pick_rows(self.rows, key), self.unit_rows)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Units are what is read at once."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of some features."""
        group = self.target.open("r")
        if self.target.attributes(group).get("id") != self.identity:
            raise IncompleteStoreError("the group was replaced after it was opened: open it again", self.target.place)
        rows = pick_rows(self.rows, key)
        blocks = {}
        for name in names:
            block = self._block(group, name, rows)
            if out is not None and name in out:
                out[name][:] = block
                block = out[name]
            blocks[name] = block
        return blocks

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Mapping[str, NDArray[Any]] | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other."""
        return (self.read(names, key, into) for key, into in parts(spans, out))

    def _block(self, group: Any, name: str, rows: Rows) -> Block:
        if isinstance(rows, range) and rows.step == 1:
            return self._stretch(group, name, rows.start, rows.stop)
        # Any rows: those of one unit are read in one stretch, once, and then picked.
        index = np.asarray(rows, np.int64)
        ascending, order = np.unique(index, return_inverse=True)
        cuts = np.flatnonzero(np.diff(ascending // self.unit_rows)) + 1
        parts = [
            take_rows(self._stretch(group, name, int(part[0]), int(part[-1]) + 1), part - part[0])
            for part in np.split(ascending, cuts)
            if len(part)
        ]
        return take_rows(concatenate([zero_rows(self.schema[name]), *parts]), order)

    def _stretch(self, group: Any, name: str, start: int, stop: int) -> Block:
        feature = self.schema[name]
        path = array_name(name)
        if not is_flat(feature):
            return self.target.read(group, path, start, stop)
        per_row = splits_per_row(self.schema, name)
        splits = self.target.read(group, f"{path}.row_splits", start * per_row, stop * per_row + 1)
        first, last = int(splits[0]), int(splits[-1])
        if isinstance(feature, VarLenFeature) and feature.dtype != "bytes":
            return RaggedBlock(self.target.read(group, f"{path}.values", first, last), splits - first)
        if not isinstance(feature, VarLenFeature):
            shape = (stop - start, *feature.block_shape)
            return BytesBlock(self.target.read(group, f"{path}.values", first, last), splits - first, shape)
        inner = feature.shape[1:]
        each = int(np.prod(inner))
        ends = self.target.read(group, f"{path}.byte_splits", first * each, last * each + 1)
        values = self.target.read(group, f"{path}.values", int(ends[0]), int(ends[-1]))
        return RaggedBlock(BytesBlock(values, ends - ends[0], (last - first, *inner)), splits - first)
