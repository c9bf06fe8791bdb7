"""Lazy columns as dask arrays. The rule: what is asked for together is decoded together, and a key has one definition.

One feature alone is `da.from_array` over a `LazyColumn`, so that dask folds slices and ints of rows into what is read
(lists and masks it does not: `Dataset.rows` takes them). Several features share one task per chunk that decodes exactly
these; its name carries their set. Public dask API only, and nothing is read while a graph is built.

dask fuses a task into the only one that reads it, and then the key of that one is defined otherwise than in a graph
where two read it: a cluster that holds both graphs warns, and may keep tasks for ever. So a task here that reads chunks
reads a second key too, which such fusing never takes, and layers of chunks are annotated, so that no layer takes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import Array as ClassicArray
from dask.base import normalize_token, tokenize
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.source import Source
from dask_tfrecord.columns.blocks import Block, to_array
from dask_tfrecord.features import Feature

__all__ = [
    "Chunk",
    "LazyColumn",
    "alone",
    "chunk_array",
    "lazy_chunks",
    "read_chunk",
    "refuse_query_planning",
    "shared",
    "view",
    "views",
]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Blocks of some features: the one element of a chunk of an object array, for which dask takes it.

    An array of NumPy's would say that it is eight bytes large, and a worker would keep it in memory until that is full.

    Attributes
    ----------
    blocks : dict of str to Block
        As many rows of each.
    """

    blocks: dict[str, Block]

    def __getitem__(self, key: Any) -> Any:
        return self.blocks if key == 0 else self

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(_footprint, self.blocks.values()))


def _footprint(block: Block) -> int:
    if isinstance(block, np.ndarray) and block.dtype.kind == "T":
        # Strings of more than a few bytes lie elsewhere.
        return block.nbytes + int(np.strings.str_len(block).sum())
    return sys.getsizeof(block)


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


def refuse_query_planning() -> None:
    """Say so where dask was told to build arrays of another kind.

    Raises
    ------
    RuntimeError
        If dask's experimental array expressions are on.
    """
    # What counts is what the configuration was when dask.array was imported.
    if da.Array is not ClassicArray:
        raise RuntimeError(
            "dask_tfrecord builds graphs of dask's arrays, not of its experimental array expressions: leave the dask "
            "configuration array.query-planning unset, or set it to False before dask.array is imported"
        )


def shared(value: object, prefix: str) -> Delayed:
    """Make a key of a value that many tasks take: it travels once to each worker, not with each task."""
    key = f"tfrecord-{prefix}-{tokenize(value)}"
    node: Delayed = dask.delayed(value, name=key, traverse=False)
    return node


def chunk_array(step: Callable[..., Chunk], name: str, number: int, *arguments: da.Array | Delayed) -> da.Array:
    """Make an array of one element per chunk: ``step(*arguments)``, of each array the same chunk.

    Two of the arguments or more, so that dask fuses no task of it with what it reads.
    """
    with dask.annotate(tfrecord=name):
        chunks: da.Array = da.map_blocks(
            step, *arguments, name=name, chunks=((1,) * number,), dtype=object, meta=np.empty(0, object)
        )
    return chunks


def alone(source: Source, name: str, borders: NDArray[np.int64]) -> da.Array:
    """One feature: decoded by itself, and only the rows that slices leave."""
    column = LazyColumn(source, name)
    chunks = (tuple(np.diff(borders).tolist()), *((size,) for size in column.shape[1:]))
    key = f"tfrecord-{name}-{tokenize(column, chunks)}"
    # A column with one reader would be fused into it, and only there.
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
    """Several features: one task per chunk that decodes exactly these.

    Parameters
    ----------
    source : Source
        Where rows come from.
    names : sequence of str
        The features; their order does not matter.
    borders : ndarray of int64 or None
        First row of each chunk and the number of rows; None where the source's own chunks are taken as they are.
    number : int
        Number of chunks.
    """
    plan = (tuple(sorted(names)), borders)
    key = f"tfrecord-decode-{tokenize(source, plan, number)}"
    return chunk_array(read_chunk, key, number, shared(source, "source"), shared(plan, "plan"))


def read_chunk(
    source: Source, plan: tuple[tuple[str, ...], NDArray[np.int64] | None], block_id: tuple[int] = (0,)
) -> Chunk:
    """Read the features and the rows of a chunk that a plan, of names and borders, says."""
    names, borders = plan
    (number,) = block_id
    if not names:
        return Chunk({})
    return Chunk(source.read(names, number if borders is None else slice(*borders[number : number + 2].tolist())))


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
    return {
        name: view(
            _view,
            chunks,
            name,
            f"tfrecord-{name}-{tokenize(chunks.name, name)}",
            (tuple(sizes), *feature.block_shape),
            feature.block_dtype,
        )
        for name, feature in features.items()
    }


def view(
    step: Callable[..., NDArray[Any]],
    chunks: da.Array,
    option: object,
    name: str,
    shape: tuple[Any, ...],
    dtype: np.dtype[Any],
    *others: da.Array,
) -> da.Array:
    """Make an array of what ``step(chunk, option, *others)`` gives for each chunk.

    Parameters
    ----------
    step : callable
        From a chunk to a block.
    chunks : dask array of object, shape (nchunks,)
        The chunks.
    option : object
        Passed on.
    name : str
        Of the array's keys.
    shape : tuple
        Rows of each block as a tuple, and then the sizes of the other axes.
    dtype : dtype
        Of the blocks.
    *others : dask array of shape (nchunks,)
        Passed on, one chunk at a time.
    """
    axes = tuple(range(len(shape)))
    array: da.Array = da.blockwise(
        step,
        axes,
        chunks,
        (0,),
        shared(option, "option"),
        None,
        *(part for other in others for part in (other, (0,))),
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
