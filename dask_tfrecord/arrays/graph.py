"""Lazy columns as dask arrays. The rule: what is asked for together is decoded together, and a key has one definition.

One feature alone is `da.from_array` over a `LazyColumn`, so that dask folds slices, ints and lists of rows into what is
read. Several features share one task per chunk that decodes exactly these; its name carries their set. Public dask API
only, and nothing is read while a graph is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.source import Source
from dask_tfrecord.columns.blocks import Block, to_array
from dask_tfrecord.schema import Feature

__all__ = ["LazyChunks", "LazyColumn", "alone", "lazy_chunks", "views"]


class LazyColumn:
    """One feature of a whole source, array-like: the rows that it is indexed with are the rows that are read.

    Parameters
    ----------
    source : Source
        Where rows come from; its rows are counted.
    name : str
        The feature.
    """

    def __init__(self, source: Source, name: str) -> None:
        feature = source.schema[name]
        self.source, self.name = source, name
        self.shape = (source.nrows or 0, *feature.block_shape)
        self.dtype = feature.block_dtype
        self.ndim = len(self.shape)

    def __dask_tokenize__(self) -> tuple[str, Source, str]:
        return "dask_tfrecord.LazyColumn", self.source, self.name

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rows is Ellipsis:
            rows = slice(None)
        one = isinstance(rows, int | np.integer)
        block = self.source.read((self.name,), [rows] if one else rows)[self.name]
        array = to_array(block)
        return array[(0, *rest)] if one else array[(slice(None), *rest)]


class LazyChunks:
    """One element per chunk: the dict of blocks of these features, read in one pass.

    Parameters
    ----------
    source : Source
        Where rows come from.
    names : tuple of str
        The features, sorted.
    borders : ndarray of int64 or None
        First row of each chunk and the number of rows; None where the source's own chunks are taken as they are.
    """

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, source: Source, names: tuple[str, ...], borders: NDArray[np.int64] | None, number: int) -> None:
        self.source, self.names, self.borders = source, names, borders
        self.shape = (number,)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tfrecord.LazyChunks", self.source, self.names, self.borders, self.shape

    def __getitem__(self, key: Any) -> NDArray[np.object_]:
        (chunks,) = key if isinstance(key, tuple) else (key,)
        numbers = range(self.shape[0])[chunks]
        elements = np.empty(len(numbers), object)
        for place, chunk in enumerate(numbers):
            rows = chunk if self.borders is None else slice(self.borders[chunk], self.borders[chunk + 1])
            elements[place] = self.source.read(self.names, rows)
        return elements


def alone(source: Source, name: str, borders: NDArray[np.int64]) -> da.Array:
    """One feature: decoded by itself, and only the rows that slices leave."""
    column = LazyColumn(source, name)
    chunks = (tuple(np.diff(borders).tolist()), *((size,) for size in column.shape[1:]))
    key = f"tfrecord-{name}-{tokenize(column, chunks)}"
    return da.from_array(column, chunks=chunks, name=key, asarray=False, lock=False, meta=_meta(source.schema[name]))


def lazy_chunks(source: Source, names: Sequence[str], borders: NDArray[np.int64] | None, number: int) -> da.Array:
    """Several features: one task per chunk that decodes exactly these."""
    chunks = LazyChunks(source, tuple(sorted(names)), borders, number)
    key = f"tfrecord-decode-{tokenize(chunks)}"
    return da.from_array(chunks, chunks=1, name=key, asarray=False, lock=False, meta=np.empty(0, object))


def views(chunks: da.Array, features: dict[str, Feature], sizes: Sequence[float]) -> dict[str, da.Array]:
    """Arrays over an array of chunks: each picks its feature out of every chunk's dict.

    Parameters
    ----------
    chunks : dask array of object, shape (nchunks,)
        One dict of blocks each.
    features : dict of str to feature
        The arrays wanted.
    sizes : sequence of int or nan
        Rows of each chunk.
    """
    arrays = {}
    for name, feature in features.items():
        axes = tuple(range(1 + len(feature.block_shape)))
        arrays[name] = da.blockwise(
            _view,
            axes,
            chunks,
            (0,),
            name,
            None,
            name=f"tfrecord-{name}-{tokenize(chunks.name, name)}",
            dtype=feature.block_dtype,
            meta=_meta(feature),
            adjust_chunks={0: tuple(sizes)},
            new_axes=dict(zip(axes[1:], feature.block_shape, strict=True)),
        )
    return arrays


def _view(chunk: NDArray[np.object_], name: str) -> NDArray[Any]:
    blocks: dict[str, Block] = chunk[0]
    return to_array(blocks[name])


def _meta(feature: Feature) -> NDArray[Any]:
    return np.empty((0,) * (1 + len(feature.block_shape)), feature.block_dtype)
