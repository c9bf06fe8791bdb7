"""Lazy columns as dask arrays. Rule: columns requested together are decoded together, and a key has one definition.

A single column is `da.from_array` over a `LazyColumn`: dask merges slices and ints of rows into the read. dask does not
merge lists and masks, so `Dataset.rows` handles those. Several columns share one task per chunk that decodes exactly
these columns; the name of the task identifies the set. Building a graph reads nothing.

dask may fuse a task into its only reader. The reader's key then has another definition than in a graph where the task
has two readers. A cluster that holds both graphs warns and may keep tasks forever. Tasks that read chunks therefore
have a second dependency, which excludes them from low-level fusion, and layers of chunks are annotated, which excludes
them from blockwise fusion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.columns.blocks import Block, to_array
from dask_tfrecord.features import Feature

__all__ = [
    "Chunk",
    "LazyColumn",
    "block_array",
    "chunk_array",
    "column_arrays",
    "lazy_chunks",
    "lazy_column",
    "read_chunk",
    "shared",
]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Blocks of some columns, as a chunk of an object array with one element.

    It reports its real size to dask. An object array of NumPy would report 8 bytes, so that a worker would not spill
    it.

    Attributes
    ----------
    blocks : dict of str to Block
        Block of each column, with the same number of rows.
    """

    blocks: dict[str, Block]

    def __getitem__(self, key: Any) -> Any:
        return self.blocks if key == 0 else self

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(_footprint, self.blocks.values()))


def _footprint(block: Block) -> int:
    if isinstance(block, np.ndarray) and block.dtype.kind == "T":
        # Only short strings are stored in the array itself.
        return block.nbytes + int(np.strings.str_len(block).sum())
    return sys.getsizeof(block)


class LazyColumn:
    """Array-like of one column of a source; indexing reads only the selected rows.

    Parameters
    ----------
    source : Source
        Source with counted rows.
    name : str
        Name of the column.
    """

    def __init__(self, source: Source, name: str) -> None:
        feature = source.schema[name]
        self.source, self.name = source, name
        self.shape = (source.nrows or 0, *feature.block_shape)
        self.dtype = feature.block_dtype
        self.ndim = len(self.shape)

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.LazyColumn", self.source, self.name))

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rows is Ellipsis:
            rows = slice(None)
        one = isinstance(rows, int | np.integer)
        block = self.source.read((self.name,), [rows] if one else rows)[self.name]
        array = to_array(block)
        return array[(0, *rest)] if one else array[(slice(None), *rest)]


def shared(value: object, prefix: str) -> Delayed:
    """Return a graph node for an argument of many tasks, which is sent once per worker instead of with each task."""
    key = f"tfrecord-{prefix}-{tokenize(value)}"
    node: Delayed = dask.delayed(value, name=key, traverse=False)
    return node


def chunk_array(step: Callable[..., Chunk], name: str, number: int, *arguments: da.Array | Delayed) -> da.Array:
    """Return an object array with ``step(*arguments)`` per chunk, where each array contributes its chunk.

    At least two arguments are required, so that dask does not fuse the tasks with their inputs.
    """
    with dask.annotate(tfrecord=name):
        chunks: da.Array = da.map_blocks(
            step, *arguments, name=name, chunks=((1,) * number,), dtype=object, meta=np.empty(0, object)
        )
    return chunks


def lazy_column(source: Source, name: str, borders: NDArray[np.int64]) -> da.Array:
    """Return one column, decoded on its own; slices restrict the rows that are read."""
    column = LazyColumn(source, name)
    chunks = (tuple(np.diff(borders).tolist()), *((size,) for size in column.shape[1:]))
    key = f"tfrecord-{name}-{tokenize(column, chunks)}"
    # dask would fuse the node of a column with a single chunk into its reader, and only there.
    array: da.Array = da.from_array(
        column,
        chunks=chunks,
        name=key,
        asarray=False,
        lock=False,
        meta=_meta(source.schema[name]),
        inline_array=len(borders) == 2,
    )
    return array


def lazy_chunks(source: Source, names: Sequence[str], borders: NDArray[np.int64] | None, number: int) -> da.Array:
    """Return chunks of several columns: one task per chunk decodes exactly these.

    Parameters
    ----------
    source : Source
        Source of the rows.
    names : sequence of str
        Columns, in any order.
    borders : ndarray of int64 or None
        First row of each chunk, and the number of rows; None for the chunks of an uncounted source.
    number : int
        Number of chunks.
    """
    plan = (tuple(sorted(names)), borders)
    key = f"tfrecord-decode-{tokenize(source, plan, number)}"
    return chunk_array(read_chunk, key, number, shared(source, "source"), shared(plan, "plan"))


def read_chunk(
    source: Source, plan: tuple[tuple[str, ...], NDArray[np.int64] | None], block_id: tuple[int] = (0,)
) -> Chunk:
    """Read a chunk by a plan of column names and chunk borders."""
    names, borders = plan
    (number,) = block_id
    if not names:
        return Chunk({})
    return Chunk(source.read(names, number if borders is None else slice(*borders[number : number + 2].tolist())))


def column_arrays(chunks: da.Array, features: dict[str, Feature], sizes: Sequence[float]) -> dict[str, da.Array]:
    """Return one array per column, which takes its block from every chunk.

    Parameters
    ----------
    chunks : dask array of object, shape (nchunks,)
        Chunks of all columns.
    features : dict of str to feature
        Columns to return.
    sizes : sequence of int or nan
        Rows of each chunk.
    """
    return {
        name: block_array(
            _view,
            chunks,
            name,
            f"tfrecord-{name}-{tokenize(chunks.name, name)}",
            (tuple(sizes), *feature.block_shape),
            feature.block_dtype,
        )
        for name, feature in features.items()
    }


def block_array(
    step: Callable[..., NDArray[Any]],
    chunks: da.Array,
    option: object,
    name: str,
    shape: tuple[Any, ...],
    dtype: np.dtype[Any],
    *others: da.Array,
) -> da.Array:
    """Return an array of the blocks ``step(chunk, option, *others)``.

    Parameters
    ----------
    step : callable
        Function from a chunk to a block.
    chunks : dask array of object, shape (nchunks,)
        The chunks.
    option : object
        Argument of the function.
    name : str
        Name of the array.
    shape : tuple
        Rows of each block as a tuple, then the sizes of the other axes.
    dtype : dtype
        Data type of the blocks.
    *others : dask array of shape (nchunks,)
        Further arguments; each block contributes its element.
    """
    axes = tuple(range(len(shape)))
    array: da.Array = da.blockwise(
        step,
        axes,
        chunks,
        (0,),
        shared(option, "option"),
        None,
        *(argument for other in others for argument in (other, (0,))),
        name=name,
        dtype=dtype,
        meta=np.empty((0,) * len(axes), dtype),
        adjust_chunks={0: shape[0]},
        new_axes=dict(zip(axes[1:], shape[1:], strict=True)),
        align_arrays=False,
    )
    return array


def _view(chunk: Chunk, name: str) -> NDArray[Any]:
    return to_array(chunk.blocks[name])


def _meta(feature: Feature) -> NDArray[Any]:
    return np.empty((0,) * (1 + len(feature.block_shape)), feature.block_dtype)
