"""Arrays of ragged columns: flat values and row splits, or padded rows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import RaggedBlock, pad_levels
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.graph import Chunk, block_array, locate_in_chunk
from dask_tfrecord.rows.object_array import as_chunk
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import AnySource
from dask_tfrecord.rows.task_names import column_key

_INT = np.dtype(np.int64)


def ragged_column(rows: Rows, name: str, feature: Feature) -> tuple[da.Array, ...]:
    """Return the flat values of a column, its row splits from the outermost on, and shapes if each row has its own.

    All arrays share one decode per chunk. Arrays without an entry per row have chunks of unknown sizes.
    """
    _check_ragged(name, feature)
    chunks = rows.chunks([name])
    token = tokenize(chunks.name, name)
    unknown = (np.nan,) * chunks.numblocks[0]
    shape = (unknown, *feature.item_shape)
    arrays = [block_array(_chunk_values, chunks, name, column_key("values", name, token), shape, feature.item_dtype)]
    for level in range(feature.ragged_rank + bool(feature.own_shapes)):
        arrays.append(_chunk_splits(chunks, name, level, rows.sizes if level == 0 else unknown))
    if feature.own_shapes:
        shape = (unknown if feature.ragged_rank else rows.sizes, feature.own_shapes)
        arrays.append(block_array(_chunk_shapes, chunks, name, column_key("shapes", name, token), shape, _INT))
    return tuple(arrays)


def _chunk_splits(chunks: da.Array, name: str, level: int, sizes: tuple[float, ...]) -> da.Array:
    """Return the row splits of a level, counted through all chunks."""
    option = (name, level)
    token = tokenize(chunks.name, option)
    # First value of each chunk. Chunks may be empty, so the last split of the previous chunk is not enough.
    totals = block_array(
        _chunk_total, chunks, option, column_key("totals", name, token), ((1,) * chunks.numblocks[0],), _INT
    )
    starts = da.cumsum(totals, axis=0) - totals
    ends = block_array(_chunk_ends, chunks, option, column_key("ends", name, token), (sizes,), _INT, starts)
    zero = da.zeros(1, dtype=np.int64, chunks=1)
    row_splits: da.Array = da.concatenate([zero, ends], allow_unknown_chunksizes=True)
    return row_splits


def padded_column(rows: Rows, name: str, feature: Feature, length: int | Sequence[int], value: Any) -> da.Array:
    """Return a column with every row padded to `length`."""
    check_ragged(name, feature)
    dtype = feature.item_dtype
    lengths, value = _checked_lengths(length, name, feature), padding_value(value, dtype, name)
    chunks = rows.chunks([name])
    option = (name, lengths, value, rows.source, rows.borders)
    key = column_key("padded", name, tokenize(chunks.name, option))
    shape = (rows.sizes, *lengths, *feature.item_shape)
    return block_array(_pad_chunk, chunks, option, key, shape, dtype, da.arange(rows.nchunks, chunks=1))


def _check_ragged(name: str, feature: Feature) -> None:
    if not feature.ragged_rank and not feature.own_shapes:
        raise SchemaError(
            f"column {name!r} is {feature}, with the same shape in all rows: write ds[{name!r}], without padding"
        )


def check_ragged(name: str, feature: Feature) -> None:
    """Check that the rows of a column can be padded."""
    _check_ragged(name, feature)
    if feature.own_shapes:
        pads = f"batches(pad={{{name!r}: (height, width)}}) pads them"
        made = f"ds.explode({name!r}) makes a row of each array" if feature.ragged_rank else pads
        raise SchemaError(f"column {name!r} is {feature}, of arrays: {made}")


def _checked_lengths(length: int | Sequence[int], name: str, feature: Feature) -> tuple[int, ...]:
    """Check the padded lengths, the outermost first."""
    given = (length,) if not isinstance(length, Sequence) else length
    if not all(isinstance(each, int | np.integer) for each in given):
        raise TypeError(f"padded: length must be a number of values, or a tuple of them; got {length!r:.100}")
    lengths = tuple(map(operator.index, given))
    if len(lengths) != feature.ragged_rank:
        raise ValueError(
            f"column {name!r} has {feature.ragged_rank} levels of rows, and each has a length of its own: give a tuple "
            f"of as many lengths; got length={length!r}"
        )
    if min(lengths) < 0:
        raise ValueError(f"rows can only be padded to 0 or more values; got length={length!r}")
    return lengths


def padding_value(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return the padding in the dtype of the column; its zero by default."""
    if dtype.kind == "O":
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the padding of {name!r}, a column of bytes, must be bytes; got {value!r}")
        return value or b""
    if dtype.kind == "T":
        if value is not None and not isinstance(value, str):
            raise ValueError(f"the padding of {name!r}, a column of text, must be str; got {value!r}")
        return value or ""
    given = np.asarray(0 if value is None else value)
    if given.ndim == 0 and dtype.kind in "mM" and given.dtype.kind == dtype.kind:
        made = given.astype(dtype)
        if np.isnat(given) or made == given:
            return made[()]
    fits = given.ndim == 0 and given.dtype.kind in ("biufc" if dtype.kind == "c" else "biuf")
    if fits and dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = bool(np.isfinite(given)) and int(given) == given and low <= int(given) <= high
    with np.errstate(over="ignore"):
        filling = given.astype(dtype) if fits else given
    # Rounding of floats is accepted.
    if not fits or np.isinf(filling) != np.isinf(given):
        raise ValueError(f"value={value!r} does not fit {dtype}, the dtype of {name!r}")
    return filling[()]


def _block_of_level(chunk: Chunk, name: str, level: int) -> Any:
    """Return the block of one level; 0 is the outermost."""
    block: Any = chunk.blocks[name]
    for _ in range(level):
        block = block.values
    return block


def _chunk_values(chunk: Chunk, name: str) -> NDArray[Any]:
    block = _block_of_level(chunk, name, 0)
    return as_chunk(block.flat_values if isinstance(block, RaggedBlock) else block.values, name)


def _chunk_shapes(chunk: Chunk, name: str) -> NDArray[np.int64]:
    block = _block_of_level(chunk, name, 0)
    arrays: Any = block.values if isinstance(block, RaggedBlock) else block
    return np.asarray(arrays.shapes)


def _chunk_total(chunk: Chunk, option: tuple[str, int]) -> NDArray[np.int64]:
    return np.asarray(_block_of_level(chunk, *option).row_splits[-1:])


def _chunk_ends(chunk: Chunk, option: tuple[str, int], start: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(start + _block_of_level(chunk, *option).row_splits[1:])


def _pad_chunk(
    chunk: Chunk,
    option: tuple[str, tuple[int, ...], Any, AnySource | None, NDArray[np.int64] | None],
    number: NDArray[np.int64],
) -> NDArray[Any]:
    """Pad a chunk's rows; an error about a longer row names its record."""
    name, lengths, value, source, borders = option

    def refuse(row: int, held: str, length: int) -> FeatureError:
        return FeatureError(
            f"feature {name!r} holds {held}, but padded(length={length if len(lengths) == 1 else lengths}) takes "
            f"{length} at most; rows are never cut: give a larger length",
            locate_in_chunk(source, borders, int(number[0]), row, name),
        )

    return as_chunk(pad_levels(_block_of_level(chunk, name, 0), lengths, value, refuse), name)
