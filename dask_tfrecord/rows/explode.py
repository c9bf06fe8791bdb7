"""Ragged columns: divided into items by `Dataset.explode`, as flat values and row splits, or padded."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import RaggedBlock, pad_levels, zero_rows
from dask_tfrecord.columns.conversions import feature_of
from dask_tfrecord.columns.items import (
    MASK,
    RECORD,
    ItemColumns,
    LengthError,
    StepWindow,
)
from dask_tfrecord.errors import FeatureError, SchemaError, Spelled, UnknownFeatureError, near_misses
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.features.schema import Schema, lengths_column, prefix_groups
from dask_tfrecord.rows.counting import compute_with_progress
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.objects import as_chunk
from dask_tfrecord.rows.rows import Chunk, Rows, block_array, chunk_array, column_key, locate_in_chunk, shared
from dask_tfrecord.rows.sources import (
    AnySource,
    CountedRows,
    ExplodedChunks,
    ExplodedSource,
    ItemCounts,
    UncountedChunks,
    read_lengths,
)

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
        arrays.append(block_array(_shapes, chunks, name, column_key("shapes", name, token), shape, _INT))
    return tuple(arrays)


def _chunk_splits(chunks: da.Array, name: str, level: int, sizes: tuple[float, ...]) -> da.Array:
    option = (name, level)
    token = tokenize(chunks.name, option)
    # First value of each chunk. Chunks may be empty, so the last split of the previous chunk is not enough.
    totals = block_array(_total, chunks, option, column_key("totals", name, token), ((1,) * chunks.numblocks[0],), _INT)
    starts = da.cumsum(totals, axis=0) - totals
    ends = block_array(_ends, chunks, option, column_key("ends", name, token), (sizes,), _INT, starts)
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
    return block_array(_padded, chunks, option, key, shape, dtype, da.arange(rows.nchunks, chunks=1))


def _check_ragged(name: str, feature: Feature) -> None:
    if not feature.ragged_rank and not feature.own_shapes:
        raise SchemaError(f"column {name!r} is {feature}, of one shape in all rows: ds[{name!r}] needs no padding")


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
        raise TypeError(f"padded: length is a number of values, or a tuple of them; got {length!r:.100}")
    lengths = tuple(map(operator.index, given))
    if len(lengths) != feature.ragged_rank:
        raise ValueError(
            f"column {name!r} has {feature.ragged_rank} levels of rows, and each of them is padded to a length of its "
            f"own: give a tuple of as many; got length={length!r}"
        )
    if min(lengths) < 0:
        raise ValueError(f"rows are padded to no or more values; got length={length!r}")
    return lengths


def padding_value(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return the padding in the dtype of the column; its zero by default."""
    if dtype.kind == "O":
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"the padding of {name!r}, a column of bytes, is bytes; got {value!r}")
        return value or b""
    if dtype.kind == "T":
        if value is not None and not isinstance(value, str):
            raise ValueError(f"the padding of {name!r}, a column of text, is str; got {value!r}")
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
        raise ValueError(f"the padding {value!r} is no {dtype}, which the values of {name!r} are")
    return filling[()]


def _level(chunk: Chunk, name: str, level: int) -> Any:
    """Return the block of one level; 0 is the outermost."""
    block: Any = chunk.blocks[name]
    for _ in range(level):
        block = block.values
    return block


def _chunk_values(chunk: Chunk, name: str) -> NDArray[Any]:
    block = _level(chunk, name, 0)
    return as_chunk(block.flat_values if isinstance(block, RaggedBlock) else block.values, name)


def _shapes(chunk: Chunk, name: str) -> NDArray[np.int64]:
    block = _level(chunk, name, 0)
    arrays: Any = block.values if isinstance(block, RaggedBlock) else block
    return np.asarray(arrays.shapes)


def _total(chunk: Chunk, option: tuple[str, int]) -> NDArray[np.int64]:
    return np.asarray(_level(chunk, *option).row_splits[-1:])


def _ends(chunk: Chunk, option: tuple[str, int], start: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(start + _level(chunk, *option).row_splits[1:])


def _padded(
    chunk: Chunk,
    option: tuple[str, tuple[int, ...], Any, AnySource | None, NDArray[np.int64] | None],
    number: NDArray[np.int64],
) -> NDArray[Any]:
    name, lengths, value, source, borders = option

    def refuse(row: int, held: str, length: int) -> FeatureError:
        return FeatureError(
            f"feature {name!r} holds {held} where padded(length={length if len(lengths) == 1 else lengths}) takes "
            f"{length} at the most; nothing is cut off: give a larger length",
            locate_in_chunk(source, borders, int(number[0]), row, name),
        )

    return as_chunk(pad_levels(_level(chunk, name, 0), lengths, value, refuse), name)


def explode_rows(
    rows: Rows,
    group: str | Sequence[str],
    repeat: str | Sequence[str],
    window: StepWindow | None = None,
    number: str | None = None,
    unwindowed: str | Sequence[str] = (),
) -> Rows:
    """Divide rows into items, or windows around them; see `Dataset.explode`."""
    schema, backend, rows = rows.schema, rows.backend, rows.merged()
    single = _group_columns(schema, unwindowed) if unwindowed else ()
    names = _group_columns(schema, group)
    if both := [name for name in single if name in names]:
        raise SchemaError(f"windows: column {both[0]!r} is in group and in items; give it once")
    item_columns = _columns_of_items(schema, (*names, *single), repeat, number, counted=rows.borders is not None)
    if window is not None:
        item_columns = _with_window(replace(item_columns, unwindowed=single), window)
    items = (
        _explode_chunks(rows, item_columns) if rows.source is None else _explode_source(rows, rows.source, item_columns)
    )
    return replace(items, backend=backend)


def _under(schema: Schema, prefix: str) -> tuple[str, ...]:
    """Return the ragged columns whose names begin with a prefix, or are the prefix."""
    return tuple(
        name
        for name, feature in schema.items()
        if (name == prefix or name.startswith((f"{prefix}/", f"{prefix}."))) and _is_divisible(schema, name)
    )


def _is_divisible(schema: Schema, name: str) -> bool:
    if schema[name].is_padded and lengths_column(name, schema) is None:
        return False
    return schema[name].item() is not None


def _columns_of_items(
    schema: Schema, names: tuple[str, ...], repeat: str | Sequence[str], number: str | None, *, counted: bool
) -> ItemColumns:
    """Check the arguments of `explode`, whose group has the columns `names`."""
    repeated = _checked_item_names(schema, [repeat] if isinstance(repeat, str) else repeat, "repeat")
    if both := [name for name in repeated if name in names]:
        raise SchemaError(f"explode: column {both[0]!r} is in group and in repeat; give it once")
    features = {name: schema[name].item() for name in names} | {name: schema[name] for name in repeated}
    if RECORD in features:
        raise SchemaError(
            f"explode: column {RECORD!r} would be replaced by the numbers of the records; "
            f"map_blocks returns it under another name"
        )
    if counted:
        features[RECORD] = FixedLenFeature((), "int64")
    if number is not None:
        if number in features or number == RECORD:
            raise SchemaError(f"explode: number={number!r} is the name of another column; give a new name")
        features[number] = FixedLenFeature((), "int64")
    padded = [name for name in names if schema[name].is_padded]
    lengths = [found for name in padded if (found := lengths_column(name, schema)) is not None]
    needed = dict.fromkeys([*names, *lengths, *repeated])
    classes = {name: schema.classes[name] for name in features if name in schema.classes}
    groups, inner_groups = schema.groups_of(repeated), dict[str, tuple[str, ...]]()
    for name in (*names, *repeated):
        inner = schema.inner_groups.get(name, ())
        if inner and name in names:
            groups[inner[0]] = (*groups.get(inner[0], ()), name)
            inner = inner[1:]
        if inner:
            inner_groups[name] = inner
    items = Schema(features, classes=classes, groups=groups, inner_groups=inner_groups)
    return ItemColumns(names, repeated, schema.select(needed), items, items, number=number)


def _with_window(item_columns: ItemColumns, window: StepWindow) -> ItemColumns:
    """Return the columns of rows that are windows around the items."""
    items = item_columns.item_schema
    features: dict[str, Feature] = dict(items)
    none = np.zeros((0, 1 + window.past + window.future), np.int64)
    for name in item_columns.group:
        if name in item_columns.unwindowed:
            continue
        features[name] = feature_of(window.around(zero_rows(items[name]), none, none == 0), f"windows: column {name!r}")
    if window.pad != "drop":
        if MASK in features:
            raise SchemaError(
                f"windows: column {MASK!r} would be replaced by the mask of the padding; map_blocks returns it under "
                f"another name"
            )
        features[MASK] = feature_of(none == 0, f"windows: column {MASK!r}")
    return replace(item_columns, schema=Schema(features, groups=items.groups_of(item_columns.repeated)), window=window)


def step_window(past: int, future: int, stride: int, pad: Literal["edge", "zero", "drop"]) -> StepWindow:
    """Check the arguments of `Dataset.windows`."""
    for name, value, least in (("past", past, 0), ("future", future, 0), ("stride", stride, 1)):
        if operator.index(value) < least:
            raise ValueError(f"windows: {name} is an int from {least} on; got {value!r}")
    if pad not in ("edge", "zero", "drop"):
        raise ValueError(f"windows: pad is 'edge', 'zero' or 'drop'; got {pad!r:.100}")
    return StepWindow(operator.index(past), operator.index(future), operator.index(stride), pad)


def _group_columns(schema: Schema, group: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a group, all of which are divisible into items."""
    if isinstance(group, str):
        names = schema.groups.get(group) or _under(schema, group)
        if names:
            return names
        dense = [name for name in schema if name == group or name.startswith(f"{group}/")]
        if not dense:
            prefixes = dict.fromkeys(
                [*schema.groups, *prefix_groups(schema), *(name for name in schema if _is_divisible(schema, name))]
            )
            raise UnknownFeatureError(f"explode: no group or column {group!r}{near_misses(group, prefixes)}")
        raise SchemaError(_dense_message(schema, dense[0]))
    names = _checked_item_names(schema, group, "group")
    if not names:
        raise SchemaError("explode: group needs at least one column")
    for name in names:
        if not _is_divisible(schema, name):
            raise SchemaError(_dense_message(schema, name))
    return names


def _dense_message(schema: Schema, name: str) -> str:
    feature = schema[name]
    if feature.is_padded:
        lengths = f"{name}.lengths"
        held = f"{lengths!r} is {schema[lengths]}, not" if lengths in schema else f"there is no column {lengths!r} of"
        return (
            f"explode: column {name!r} is padded, and {held} one integer per row, which tells items from padding; read "
            f"it as {feature.unpadded()}"
        )
    return (
        f"explode: column {name!r} is {feature}: its rows do not vary in length, so they have no items; "
        + Spelled("repeat=", "--repeat")
        + " repeats it for each item"
    )


def _checked_item_names(schema: Schema, given: Any, argument: str) -> tuple[str, ...]:
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"explode: {argument} is a name or a list of names of columns; got {given!r:.100}")
    for name in given:
        if name not in schema:
            raise UnknownFeatureError(f"explode: {argument}: no column {name!r}{near_misses(name, schema)}")
    if len(set(given)) < len(given):
        raise SchemaError(f"explode: columns are given once each; got {argument}={list(given)}")
    return tuple(given)


def _explode_source(rows: Rows, source: AnySource, item_columns: ItemColumns) -> Rows:
    if isinstance(source, UncountedChunks):
        return Rows.of_source(ExplodedChunks(source, item_columns), None, rows.nchunks)
    assert rows.borders is not None
    records, item_columns = _with_encoded_images(source, item_columns)
    counts = _count_items(records, item_columns, rows.borders)
    items = ExplodedSource(records, item_columns, counts, range(int(counts.starts[-1])))
    borders = counts.before(rows.borders)
    kept = item_columns.rows(counts.lengths.astype(np.int64))
    if isinstance(kept, slice):
        return Rows.of_source(items, borders)
    return Rows.of_source(items.select(kept), np.searchsorted(kept, borders))


def _with_encoded_images(source: CountedRows, item_columns: ItemColumns) -> tuple[CountedRows, ItemColumns]:
    """Read images of records as bytes if possible: a few items then cost a few images, not all of their records."""
    # Counting needs the headers of images that differ in size, so their pixels are decoded with the records.
    names = tuple(name for name in item_columns.group if name in source.images)
    if not names:
        return source, item_columns
    records = source.encoded(names)
    return records, replace(item_columns, records=records.schema.select(item_columns.records), encoded=names)


def _count_items(source: CountedRows, item_columns: ItemColumns, borders: NDArray[np.int64]) -> ItemCounts:
    """Count the items of all records, in a task for each chunk."""
    calls = [partial(read_lengths, start=start, stop=stop) for start, stop in pairwise(borders.tolist())]
    return ItemCounts.from_lengths(np.concatenate(compute_with_progress(calls, "Counting items", source, item_columns)))


def _explode_chunks(rows: Rows, item_columns: ItemColumns) -> Rows:
    """Divide chunks that exist already, or are computed from such."""
    chunks, borders, number = rows.chunks(tuple(item_columns.records)), rows.borders, rows.nchunks
    sizes: tuple[float, ...] = (np.nan,) * number
    if borders is not None:
        name = f"tfrecord:counting-items-{tokenize(chunks.name, item_columns)}"
        counts = block_array(_count_chunk, chunks, item_columns, name, ((1,) * number,), np.dtype(np.int64))
        sizes = tuple(counts.compute().tolist())
    option = shared((item_columns, borders), "items")
    name = f"tfrecord-explode-{tokenize(chunks.name, item_columns, borders)}"
    blocks = chunk_array(_explode_chunk, name, number, chunks, option)
    origin = {name: value for name, value in rows.origin.items() if name != "schema"}
    return Rows.of_chunks(blocks, item_columns.schema, sizes, {**origin, **item_columns.origin}, rows.rechunked)


def _count_chunk(chunk: Chunk, item_columns: ItemColumns) -> NDArray[np.int64]:
    rows = item_columns.rows(_chunk_lengths(chunk, item_columns, 0))
    return np.array([rows.stop if isinstance(rows, slice) else len(rows)])


def _explode_chunk(
    chunk: Chunk, option: tuple[ItemColumns, NDArray[np.int64] | None], block_id: tuple[int] = (0,)
) -> Chunk:
    item_columns, borders = option
    first = 0 if borders is None else int(borders[block_id[0]])
    lengths = _chunk_lengths(chunk, item_columns, first)
    return Chunk(
        item_columns.items(tuple(item_columns.schema), chunk.blocks, lengths, item_columns.rows(lengths), first)
    )


def _chunk_lengths(chunk: Chunk, item_columns: ItemColumns, first: int) -> NDArray[np.int64]:
    try:
        return item_columns.check_lengths(chunk.blocks, None)
    except LengthError as error:
        raise FeatureError(f"row {first + error.row}: feature {error.name!r} " + error.message) from None
