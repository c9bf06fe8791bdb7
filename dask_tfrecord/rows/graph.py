"""Graphs of dask: chunks of blocks, the tasks that make them, and arrays of their columns.

Rule: columns requested together are decoded together, and a key of a graph has one definition.

A single column is `da.from_array` over a `LazyColumn`: dask merges slices and ints of rows into the read. dask does not
merge lists and masks, so `Dataset.rows` handles those. Several columns share one task per chunk that decodes exactly
these columns; the name of the task identifies the set. Building a graph reads nothing.

dask may fuse a task into its only reader. The reader's key then has another definition than in a graph where the task
has two readers. A cluster that holds both graphs warns and may keep tasks forever. Tasks that read chunks therefore
have a second dependency, which excludes them from low-level fusion, and layers of chunks are annotated, which excludes
them from blockwise fusion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.local
import dask.threaded
import numpy as np
from dask.base import normalize_token, tokenize
from dask.delayed import Delayed
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, block_nbytes, splits_of
from dask_tfrecord.errors import Location, plural, printable
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.object_array import as_chunk
from dask_tfrecord.rows.sources import AnySource, CountedRows, UncountedChunks
from dask_tfrecord.rows.steps import Place
from dask_tfrecord.rows.task_names import column_key, label_key, step_key


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Blocks of some columns, as a chunk of an object array with one element.

    It reports its real size to dask. An object array of NumPy would report 8 bytes, so that a worker would not spill
    it.
    """

    blocks: dict[str, Block]

    def __getitem__(self, key: Any) -> Any:
        return self.blocks if key == 0 else self

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(block_nbytes, self.blocks.values()))


class LazyColumn:
    """Array-like of one column of a source; indexing reads only the selected rows."""

    def __init__(self, source: CountedRows, name: str) -> None:
        feature = source.schema[name]
        self.source, self.name = source, name
        self.shape = (source.nrows, *feature.block_shape)
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
        array = as_chunk(block, self.name)
        return array[(0, *rest)] if one else array[(slice(None), *rest)]

    def in_chunks(self, sizes: Sequence[float]) -> da.Array:
        """Return a dask array in chunks of `sizes` rows."""
        chunks = (tuple(sizes), *((size,) for size in self.shape[1:]))
        array: da.Array = da.from_array(
            self,
            chunks=chunks,
            name=column_key("read", self.name, tokenize(self, np.asarray(sizes))),
            asarray=False,
            lock=False,
            meta=np.empty((0,) * self.ndim, self.dtype),
            # dask would fuse the node of a column with a single chunk into its reader, and only there.
            inline_array=len(sizes) == 1,
        )
        return array


def shared(value: object, prefix: str) -> Delayed:
    """Return a graph node for an argument of many tasks, which is sent once per worker instead of with each task."""
    node: Delayed = dask.delayed(value, name=label_key(prefix, value), traverse=False)
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


def read_chunk(
    source: AnySource, plan: tuple[tuple[str, ...], NDArray[np.int64] | None], block_id: tuple[int] = (0,)
) -> Chunk:
    """Read a chunk by a plan of column names and chunk borders."""
    names, borders = plan
    (number,) = block_id
    if not names:
        return Chunk({})
    if isinstance(source, UncountedChunks):
        return Chunk(source.read_chunk(names, number))
    assert borders is not None
    return Chunk(source.read(names, slice(*borders[number : number + 2].tolist())))


def block_array(
    step: Callable[..., NDArray[Any]],
    chunks: da.Array,
    option: object,
    name: str,
    shape: tuple[Any, ...],
    dtype: np.dtype[Any],
    *others: da.Array,
) -> da.Array:
    """Return an array of the blocks ``step(chunk, option, *others)``; of `others`, each block gets its element.

    `shape` has the rows of each block as a tuple, then the sizes of the other axes.
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


@dataclass(frozen=True, slots=True)
class Rechunked:
    """An array that has to be rechunked, which holds parts of it in memory twice."""

    name: str
    before: tuple[tuple[int, ...], ...]
    # Rows are chunked as in the data set; other axes have one chunk.
    after: tuple[tuple[int, ...], ...]
    itemsize: int

    @property
    def held_nbytes(self) -> int:
        """Most bytes of old chunks that are in memory together to make a new chunk."""
        old, new = (splits_of(chunks[0]) for chunks in (self.before, self.after))
        low = np.searchsorted(old, new[:-1], side="right") - 1
        high = np.maximum(np.searchsorted(old, new[1:], side="left"), low)
        rows = int((old[high] - old[low]).max(initial=0))
        return rows * math.prod(map(sum, self.after[1:])) * self.itemsize

    @staticmethod
    def largest(chunks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Return the shape of the largest chunk."""
        return tuple(map(max, chunks))

    def __str__(self) -> str:
        rows = ", ".join(f"{size:,}" for size in self.after[0][:3]) + (", …" if len(self.after[0]) > 3 else "")
        return (
            f"{self.name!r} is rechunked from {_describe_chunks(self.before)} to {_describe_chunks(self.after)}, which "
            f"holds {format_bytes(self.held_nbytes)} of it in memory per thread: chunks of ({rows}) rows, whole along "
            "other axes, need no rechunking"
        )


def nonempty_chunks(sizes: Sequence[float]) -> list[int]:
    """Return the numbers of the chunks with rows; the first one if all are empty."""
    return [number for number, size in enumerate(sizes) if size] or [0]


def without_empty_chunks(array: da.Array) -> da.Array:
    """Remove the empty chunks of rows of an array."""
    kept = nonempty_chunks(array.chunks[0])
    if len(kept) == len(array.chunks[0]):
        return array
    filled: da.Array = array.blocks[kept]
    return filled


def each_chunk(step: Callable[..., Any], option: object, *chunks: da.Array) -> da.Array:
    """Call ``step(*chunks, option)`` for every chunk."""
    prefix = step.__name__.strip("_").replace("_", "-")
    name = step_key(prefix, [array.name for array in chunks], option)
    return chunk_array(step, name, chunks[0].numblocks[0], *chunks, shared(option, prefix))


def place_of_chunk(sizes: tuple[float, ...], files: str, number: int) -> Place:
    """Return where the rows of an existing chunk are from: assigned columns do not come from records."""
    start, size = float(np.sum(sizes[:number])), sizes[number]
    if np.isnan(start + size):
        return Place(lambda: f"chunk {number} of {files}")
    rows = range(int(start), int(start + size))
    return Place(lambda: f"rows {rows.start} to {rows.stop - 1} of {files}", rows)


def locate_in_chunk(
    source: AnySource | None, borders: NDArray[np.int64] | None, number: int, row: int, feature: str
) -> Location:
    """Return the location of a row of a chunk, for errors; without a source, rows are in memory."""
    start = 0 if borders is None else int(borders[number])
    if isinstance(source, CountedRows):
        return source.locate(row, feature, start)
    if borders is not None:
        return Location("rows in memory", start + row, feature=feature)
    place = "rows in memory" if source is None else source.describe_chunk(number)
    return Location(f"{place}: row {row} of chunk {number}", feature=feature)


def files_of(origin: Mapping[str, Any]) -> str:
    """Return the files of an origin as text, for errors."""
    files = origin.get("files", [origin["store"]] if "store" in origin else [])
    if not files:
        return "the data set"
    return f"{files[0]} to {files[-1]}" if files[1:] else str(files[0])


def origin_title(origin: Mapping[str, Any]) -> str | None:
    """Return the file, the number of files or the store of an origin as text, for titles; None for rows in memory."""
    files = origin.get("files")
    if isinstance(files, list) and files:
        return printable(files[0]) if len(files) == 1 else plural(len(files), "file")
    return printable(origin["store"]) if "store" in origin else None


def find_rechunked(arrays: Iterable[tuple[str, da.Array]], sizes: Sequence[float]) -> tuple[Rechunked, ...]:
    """Return the arrays whose chunks differ from `sizes` rows; unknown sizes count as equal."""
    rechunked = []
    for name, array in arrays:
        after = (tuple(sizes), *((size,) for size in array.shape[1:]))
        rows = [size for size in array.chunks[0] if size]
        differ = not np.isnan(rows).any() and rows != [size for size in sizes if size]
        if differ or any(number > 1 for number in array.numblocks[1:]):
            rechunked.append(Rechunked(name, array.chunks, after, array.dtype.itemsize))
    return tuple(rechunked)


def _describe_chunks(chunks: tuple[tuple[int, ...], ...]) -> str:
    number = math.prod(map(len, chunks))
    largest = " x ".join(f"{size:,}" for size in Rechunked.largest(chunks))
    return f"{plural(number, 'chunk')} of {'' if number == 1 else 'up to '}{largest}"
