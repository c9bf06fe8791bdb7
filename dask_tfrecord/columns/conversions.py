"""Conversions to blocks: values that users pass, and blocks that are written as another feature.

`feature_of` describes a block, `conform` makes a block of a feature from any array or list, and `as_read` converts a
block to what its records are read as. Arrays are never cast silently: floats not to integers, and no number to a dtype
that does not hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    as_row_error,
    first_true,
    splits_of,
)
from dask_tfrecord.errors import FeatureError, SchemaError, joined
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TensorFeature,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
    dtype_name,
)
from dask_tfrecord.features.dtypes import TIMES
from dask_tfrecord.features.keyed_values import in_levels, refuse_values
from dask_tfrecord.features.listed import is_padded


def feature_of(array: Any, owner: str) -> Feature:
    """Describe blocks like `array` by a feature."""
    if isinstance(array, RaggedBlock) and isinstance(array.values, ArraysBlock):
        arrays = feature_of(array.values, owner)
        return TensorFeature(arrays.shape, arrays.dtype, count=-1)
    if isinstance(array, RaggedBlock):
        values, rank = array.flat_values, array.ragged_rank
        kind, name = ("", "bytes") if isinstance(values, BytesBlock) else (values.dtype.kind, values.dtype.name)
        inner = values.shape[1:]
        levels = tuple(RowLengths(str(level)) for level in range(rank - 1))
        if 0 in inner and rank == 1 and kind != "T":
            return TensorFeature(inner, name, count=-1)
        if not kind or kind in "biuf" or name in ("bfloat16", *TIMES):
            return VarLenFeature(name, shape=(*(-1,) * rank, *inner))
        if kind == "T" and (levels or inner):
            return RaggedFeature("bytes", partitions=(*levels, *map(UniformRowLength, inner)), values=TextFeature())
        if kind == "c" and levels:
            return RaggedFeature("bytes", partitions=levels, values=RawFeature(inner, name))
        if kind in "Tc":
            return TextFeature(count=-1) if kind == "T" else RawFeature((-1, *inner), name)
        array = array.values
    if isinstance(array, ArraysBlock):
        items = array.values
        return TensorFeature(
            (-1,) * array.shapes.shape[1], "bytes" if isinstance(items, BytesBlock) else items.dtype.name
        )
    if isinstance(array, BytesBlock):
        return FixedLenFeature(array.shape[1:], "bytes")
    if not isinstance(getattr(array, "dtype", None), np.dtype) or len(getattr(array, "shape", ())) == 0:
        advice = _LIST_HINT if isinstance(array, list) else ""
        raise SchemaError(f"{owner}: expected an array with an axis of rows; got {array!r:.100}{advice}")
    dtype, shape = array.dtype, tuple(array.shape[1:])
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        narrow = "float64" if dtype.kind == "f" else "complex128"
        raise SchemaError(f"{owner}: {dtype} is not portable: array.astype({narrow!r}) rounds it")
    if isinstance(dtype, np.dtypes.StringDType) and (not shape or (len(shape) == 1 and shape[0])):
        return TextFeature(count=shape[0] if shape else None)
    if dtype.name in ("int64", "float32", *TIMES):
        return FixedLenFeature(shape, dtype.name)
    if dtype.kind in "biufc" or dtype.name == "bfloat16":
        return RawFeature(shape, dtype.newbyteorder("="))
    raise no_feature(dtype, shape, owner)


def no_feature(dtype: np.dtype[Any], shape: tuple[int, ...], owner: str) -> SchemaError:
    """Return the error about an array that no feature stores."""
    return SchemaError(
        f"{owner}: no feature stores an array of dtype {dtype} and shape {shape} per row{_HINTS.get(dtype.kind, '')}"
    )


_LIST_HINT = (
    "; an empty list has no type: map_blocks(func, template={name: TextFeature(), …}) states it for text, "
    "FixedLenFeature((), 'int64') for a number per row, and VarLenFeature('int64') for a list of numbers"
)
_HINTS = {
    "M": "; write array.astype('datetime64[us]').astype('int64') for microseconds since 1970",
    "m": "; write array.astype('timedelta64[us]').astype('int64') for microseconds",
    "O": "; specify the type of the objects: map_blocks(func, template={name: FixedLenFeature((), 'bytes'), …})",
    "S": "; NumPy's S drops trailing zero bytes: convert it to an object array of bytes",
    "T": "; a text column has one string, or a list of strings, per row: flatten the rows",
    "U": "; write array.astype(numpy.dtypes.StringDType()) for text",
}
# Limit of the rows that an error lists.
_LISTED_ROWS = 5


def host_array(array: Any, owner: str, first: int = 0) -> Any:
    """Return the values of an array in the memory of the process, where blocks and files need them.

    This is the one place that copies arrays of devices, such as those of CuPy and tensors of torch. Masked and missing
    values and sparse arrays are refused; errors number the rows from `first`. Other values are returned unchanged.
    """
    if not isinstance(array, np.ndarray):
        return _from_library(array, owner, first)
    if may_miss_text(array.dtype):
        return _text_without_missing(array, owner, first)
    if not isinstance(array, np.ma.MaskedArray):
        return array
    mask = np.ma.getmaskarray(array)
    if not mask.any():
        return array.data
    rows: Any = np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1)) + first if mask.ndim else []
    raise SchemaError(f"{owner} is masked{_in_rows(rows)}, and records lack masks: {_MISSING}")


def may_miss_text(dtype: Any) -> bool:
    """Return whether a dtype is a `StringDType` with an object for missing values."""
    return isinstance(dtype, np.dtypes.StringDType) and hasattr(dtype, "na_object")


def _text_without_missing(array: NDArray[Any], owner: str, first: int) -> NDArray[Any]:
    """Return text as the `StringDType` without missing values, which NumPy would replace by their names."""
    texts = array.astype(object)
    others = [not isinstance(text, str) for text in texts.ravel().tolist()]
    missing = np.array(others, bool).reshape(len(array), -1).any(axis=1) if array.ndim and array.size else np.zeros(0)
    refuse_missing_rows(np.flatnonzero(missing) + first, owner)
    return texts.astype(np.dtypes.StringDType())


def _from_library(array: Any, owner: str, first: int) -> Any:
    """Return an array of another library as one of NumPy, and anything else unchanged."""
    refuse_sparse(array, owner)
    kind = type(array)
    if hasattr(kind, "null_count") and hasattr(kind, "is_null"):
        # pyarrow and polars make other values of nulls: floats of integers, and the first category.
        refuse_missing_rows(np.flatnonzero(np.asarray(array.is_null())) + first, owner)
        # polars makes nulls of empty lists when it flattens them; pyarrow does not.
        nested = array.to_arrow() if hasattr(getattr(array, "dtype", None), "inner") else array
        if any(map(_holds_null, getattr(nested, "chunks", [nested]))):
            raise SchemaError(f"{owner} has missing values in its lists, which records do not have: {_MISSING}")
    if hasattr(kind, "detach") and hasattr(kind, "cpu"):
        return array.detach().cpu().numpy()
    if (hasattr(kind, "__array_function__") or hasattr(kind, "__cuda_array_interface__")) and hasattr(kind, "get"):
        # CuPy refuses to convert its arrays implicitly.
        return array.get()
    return array


def _holds_null(array: Any) -> bool:
    """Return whether the lists of an array of pyarrow hold a null, at any depth."""
    while hasattr(array, "flatten") and hasattr(getattr(array, "type", None), "value_type"):
        array = array.flatten()
        if getattr(array, "null_count", 0):
            return True
    return False


def refuse_sparse(array: Any, owner: str) -> None:
    """Refuse sparse arrays, which would grow to their full size without notice."""
    if hasattr(type(array), "todense"):
        raise SchemaError(
            f"{owner} is sparse, of type {type(array).__module__.partition('.')[0]}.{type(array).__name__}: write "
            "array.todense() to make it dense, or array.map_blocks(lambda block: block.todense()) for a dask array"
        )


def refuse_missing_values(series: Any, owner: str, first: int = 0) -> None:
    """Refuse missing values of a Series, Index or extension array; NaN is a value of NumPy's floats."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "f":
        return
    refuse_missing_rows(np.flatnonzero(np.asarray(series.isna())) + first, owner)


def refuse_missing_rows(rows: Sequence[int] | NDArray[np.int64], owner: str) -> None:
    """Refuse an array with rows that have missing values, if there are any."""
    if len(rows):
        raise SchemaError(f"{owner} has missing values{_in_rows(rows)}, which records do not have: {_MISSING}")


_MISSING = (
    "fill the missing values (array.filled(value), series.fillna(value)), or write rows of variable length "
    "without them (RaggedBlock, or lists like [[1], []]), and read them with VarLenFeature, or with FixedLenFeature "
    "and a default_value"
)


def _in_rows(rows: Any) -> str:
    """List row numbers as the end of a phrase: " in row 3", " in rows 3, 4, …"; "" for an empty list."""
    if len(rows) == 0:
        return ""
    return f" in row{'' if len(rows) == 1 else 's'} " + joined(
        [f"{row:,}" for row in rows[: _LISTED_ROWS + 1]], _LISTED_ROWS
    )


def as_bytes(item: Any) -> Any:
    """Return bytearrays and memoryviews, which NumPy takes for rows of integers, as bytes; those in lists, too."""
    if isinstance(item, list | tuple):
        # Fast path: the set of types avoids a Python loop over numbers.
        holds = any(issubclass(kind, list | tuple | bytearray | memoryview) for kind in set(map(type, item)))
        return [as_bytes(each) for each in item] if holds else item
    return bytes(item) if isinstance(item, bytearray | memoryview) else item


def conform(feature: Feature, array: Any, owner: str, *, lossless: bool = False) -> Block:
    """Convert `array` to a block of `feature`; only the numbers of Python lists are cast.

    If `lossless`, rows that are arrays are cast as if they were lists: an integer that does not fit is an error, a
    float is rounded.
    """
    array = host_array(array, owner)
    if feature.ragged_rank:
        block_given = isinstance(array, RaggedBlock)
        array = _check_ragged_block(array, owner) if block_given else _ragged_block(feature, array, owner, lossless)
    elif feature.own_shapes:
        array = (
            array
            if isinstance(array, ArraysBlock)
            else _unequal_arrays(feature, array, owner, lossless, range(len(array)))
        )
    elif feature.item_dtype.kind == "T":
        array = as_text(array, owner)
    elif feature.block_dtype == np.dtype(object) and not isinstance(array, BytesBlock):
        # Lists of bytes would become NumPy's S, which drops zero bytes.
        array = _bytes_block(array if isinstance(array, np.ndarray) else objects(array), owner)
    elif not isinstance(array, RaggedBlock | BytesBlock | ArraysBlock):
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    found = feature_of(array, owner)
    if _block_form(found) != _block_form(feature):
        raise SchemaError(f"{owner}: expected {feature}; got {found}")
    block: Block = array
    return block


def same_form(one: Feature, other: Feature) -> bool:
    """Return whether blocks of two features have the same dtype and shape."""
    return _block_form(one) == _block_form(other)


def _block_form(feature: Feature) -> tuple[object, ...]:
    """Return the properties that blocks of a feature share."""
    return feature.item_dtype, feature.item_shape, feature.ragged_rank, feature.own_shapes


def _check_ragged_block(block: RaggedBlock, owner: str) -> RaggedBlock:
    """Check that the splits of a block match its values."""
    values, splits = block.values, np.asarray(host_array(block.row_splits, f"{owner}: row_splits"))
    if isinstance(values, RaggedBlock):
        values = _check_ragged_block(values, owner)
    elif not isinstance(values, BytesBlock | ArraysBlock):
        values = np.asarray(host_array(values, f"{owner}: values"))
        values = _bytes_block(values, owner) if values.dtype.kind == "O" else values
    if splits.ndim != 1 or splits.dtype.kind not in "iu" or not len(splits):
        raise SchemaError(f"{owner}: expected row_splits as an array of ints, one more than rows; got {splits!r:.100}")
    if splits[0] != 0 or splits[-1] != len(values) or (np.diff(splits.astype(np.int64)) < 0).any():
        raise SchemaError(
            f"{owner}: expected row_splits that ascend from 0 to {len(values)} (values); got {splits!r:.100}"
        )
    return RaggedBlock(values, splits.astype(np.int64, copy=False))


def _ragged_block(feature: Feature, rows: Any, owner: str, lossless: bool) -> RaggedBlock:
    """Convert rows of arrays, an object array or a list, to flat buffers."""
    if feature.own_shapes:
        lengths = np.array([len(row) for row in rows], np.int64)
        arrays = [array for row in rows for array in row]
        numbers = np.repeat(np.arange(len(lengths)), lengths).tolist()
        return RaggedBlock(_unequal_arrays(feature, arrays, owner, lossless, numbers), splits_of(lengths))
    levels, nested = [], list(rows)
    numbers = list(range(len(nested)))
    for _ in range(feature.ragged_rank - 1):
        for number, row in zip(numbers, nested, strict=True):
            if not isinstance(row, list | tuple) and not (isinstance(row, np.ndarray) and row.ndim):
                raise SchemaError(f"{owner}: row {number} holds {row!r:.100}; expected nested rows for {feature}")
        lengths = np.array([len(row) for row in nested], np.int64)
        numbers = np.repeat(np.asarray(numbers, np.int64), lengths).tolist()
        levels.append(lengths)
        nested = [item for row in nested for item in row]
    shape = (-1, *feature.item_shape)
    items = [
        _row_to_array(feature, number, row, shape, owner, lossless) for number, row in zip(numbers, nested, strict=True)
    ]
    values = np.concatenate([np.empty((0, *feature.item_shape), feature.item_dtype), *items])
    block: Any = _bytes_block(values, owner) if feature.is_bytes else values
    for lengths in [*levels, np.array([len(item) for item in items], np.int64)][::-1]:
        block = RaggedBlock(block, splits_of(lengths))
    made: RaggedBlock = block
    return made


def _unequal_arrays(feature: Feature, arrays: Any, owner: str, lossless: bool, numbers: Sequence[int]) -> ArraysBlock:
    """Convert arrays of different shapes, an object array or a list, to flat buffers; `numbers` are their rows."""
    axes = feature.own_shapes
    shape = feature.row_shape[feature.ragged_rank :]
    items = [
        _row_to_array(feature, number, row, shape, owner, lossless) for number, row in zip(numbers, arrays, strict=True)
    ]
    values = np.concatenate([np.empty(0, feature.item_dtype), *(item.ravel() for item in items)])
    shapes = np.array([item.shape for item in items], np.int64).reshape(len(items), axes)
    flat = _bytes_block(values, owner) if feature.is_bytes else values
    return ArraysBlock(flat, splits_of(shapes.prod(axis=1)), shapes)


def _row_to_array(
    feature: Feature, number: int, row: Any, shape: tuple[int, ...], owner: str, lossless: bool
) -> NDArray[Any]:
    """Convert one row to an array of the feature's dtype; known sizes of `shape` must match."""
    dtype, listed, place = feature.item_dtype, isinstance(row, list | tuple), f"{owner}: row {number}"
    try:
        if dtype.kind == "T":
            return as_text(np.asarray(host_array(row, place), object), place)
        item = objects(row) if feature.is_bytes else np.asarray(host_array(row, place))
    except ValueError as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{place} is a list of rows with different lengths; expected {feature}") from None
    if dtype.kind in "mM" and item.dtype == np.int64:
        item = item.view(dtype)
    if not item.size and item.ndim != len(shape):
        item = item.reshape([0, *shape[1:]] if -1 not in shape[1:] else [0] * len(shape))
    fits = not item.size or item.dtype == dtype
    fits = fits or ((listed or lossless) and castable(item.dtype, dtype))
    sizes = len(item.shape) == len(shape) and all(
        size in (-1, is_) for size, is_ in zip(shape, item.shape, strict=True)
    )
    if not (fits and sizes):
        raise SchemaError(f"{place} has dtype {item.dtype} and shape {item.shape}; expected {feature}")
    return cast_numbers(item, feature, owner, number)


def cast_numbers(array: NDArray[Any], feature: Feature, owner: str, row: int | None = None) -> NDArray[Any]:
    """Cast an array, for one row or for many, to a feature's dtype; refuse what does not fit."""
    dtype = feature.item_dtype
    if not array.size or array.dtype == dtype:
        return array.astype(dtype, copy=False)
    try:
        made = cast(array, dtype)
    except RowError as error:
        number = error.row if row is None else row
        raise FeatureError(f"{owner}: row {number} {error.message}, where {feature} is written") from None
    assert isinstance(made, np.ndarray)
    return made


def objects(rows: Any) -> NDArray[np.object_]:
    """Return nested lists, or an array, as an object array; bytearrays and memoryviews become bytes."""
    return np.asarray(as_bytes(rows), object)


def as_text(array: Any, owner: str) -> NDArray[Any]:
    """Convert an array or a list of strings to `StringDType`."""
    given = array if isinstance(getattr(array, "dtype", None), np.dtype) else np.asarray(array, object)
    given = host_array(given, owner)
    if given.dtype.kind == "O":
        _refuse_others(given, str, owner)
    elif given.dtype.kind not in "TU":
        raise SchemaError(f"{owner}: expected text; got dtype {given.dtype}")
    try:
        return np.asarray(given, dtype=np.dtypes.StringDType())
    except (TypeError, UnicodeError):
        rows = given.reshape(len(given), -1).tolist()
    for number, row in enumerate(rows):
        for item in row:
            if any("\ud800" <= char <= "\udfff" for char in item):
                raise SchemaError(
                    f"{owner}: row {number} holds {item!a:.100}: a lone surrogate is not valid UTF-8; encode it to "
                    f"bytes, as text.encode('utf-8', 'surrogatepass')"
                )
    raise SchemaError(f"{owner}: NumPy cannot convert it to text: {given!r:.100}")


def _bytes_block(array: NDArray[Any], owner: str) -> BytesBlock:
    """Convert an array of `bytes` objects to flat buffers."""
    if array.dtype.kind != "O":
        raise SchemaError(f"{owner}: expected bytes; got dtype {array.dtype}{_HINTS['S']}")
    items = list(map(as_bytes, array.ravel().tolist()))
    _refuse_others(items, bytes, owner)
    return BytesBlock.of(items, array.shape)


def _refuse_others(array: NDArray[np.object_] | list[Any], kind: type, owner: str) -> None:
    """Refuse objects of other types than one, bytes or str."""
    items = array.ravel().tolist() if isinstance(array, np.ndarray) else array
    # Fast path: checking the set of types avoids a Python loop.
    if set(map(type, items)) <= {kind}:
        return
    for item in items:
        if not isinstance(item, kind):
            raise SchemaError(f"{owner}: expected {kind.__name__} objects; got {item!r:.100}")


def check_column(column: str, given: Feature, wanted: Feature, field: str | None = None) -> None:
    """Refuse a column whose dtype or row shape does not match its feature, or the field of a message."""
    holder = field or wanted
    dtypes = given.item_dtype, wanted.item_dtype
    text = [dtype.kind == "T" for dtype in dtypes]
    fits = text[0] or given.is_bytes if wanted.is_bytes else text[0] == text[1] and (text[0] or castable(*dtypes))
    if not fits:
        hint = ""
        if field is not None:
            hint = f": it takes {dtype_name(dtypes[1])}"
        elif castable(dtypes[1], dtypes[0]):
            hint = f": a RawFeature or TensorFeature of {dtypes[0]} keeps what it holds"
        raise SchemaError(f"column {column!r} is of {dtype_name(dtypes[0])}, which {holder} can't store{hint}")
    has, takes = given.row_shape, wanted.row_shape
    # Shapes that differ by row are checked when the rows exist.
    free = given.own_shapes > 0 and wanted.own_shapes > 0
    if len(has) != len(takes) or not all(
        size == -1 or size == is_ or (free and is_ == -1) for is_, size in zip(has, takes, strict=True)
    ):
        raise SchemaError(f"column {column!r} has rows of shape {has}, but {holder} takes {takes}")
    levels = given.ragged_rank - wanted.ragged_rank
    if (given.own_shapes and not wanted.own_shapes) or (levels > 1 and wanted.own_shapes):
        raise SchemaError(f"column {column!r} has rows that are arrays of any shape, which {holder} can't store")


def as_read(wanted: Feature, block: Block) -> Block:
    """Convert a block to the form and dtype that reading it returns."""
    if wanted.own_shapes and wanted.ragged_rank:
        block = _rows_of_arrays(block, wanted)
    elif wanted.own_shapes:
        block = _of_own_shapes(block, wanted)
    elif not is_padded(wanted):
        block = in_levels(block, wanted.ragged_rank)
    return to_bytes(block) if wanted.is_bytes or wanted.item_dtype.kind == "T" else cast(block, wanted.item_dtype)


def _rows_of_arrays(block: Block, wanted: Feature) -> RaggedBlock:
    """Return rows of arrays with their own shapes; arrays of one axis more are cut along the first.

    A row that is one array of shape (2, 5, 4) becomes a row of two arrays of shape (5, 4).
    """
    if isinstance(block, ArraysBlock):
        splits, shapes = splits_of(block.shapes[:, 0]), np.repeat(block.shapes[:, 1:], block.shapes[:, 0], axis=0)
        block = RaggedBlock(ArraysBlock(block.values, splits_of(shapes.prod(axis=1)), shapes), splits)
    rows: RaggedBlock = in_levels(block, 1)
    with as_row_error(rows.row_splits, item=True):
        return RaggedBlock(_of_own_shapes(rows.values, wanted), rows.row_splits)


def _of_own_shapes(block: Block, wanted: Feature) -> ArraysBlock:
    """Return rows that are arrays with their own shapes."""
    if isinstance(block, ArraysBlock):
        sizes = np.array(wanted.row_shape[wanted.ragged_rank :])
        if (row := first_true(((sizes != -1) & (block.shapes != sizes)).any(axis=1))) is not None:
            shape = tuple(block.shapes[row].tolist())
            raise RowError(row, f"holds an array of shape {shape}, but {wanted} takes {tuple(sizes.tolist())}")
        return block
    rows: Any = in_levels(block, 1)
    inner = rows.values.shape[1:]
    each = math.prod(inner)
    shapes = np.empty((len(rows), 1 + len(inner)), np.int64)
    shapes[:, 0], shapes[:, 1:] = np.diff(rows.row_splits), inner
    return ArraysBlock(rows.values.reshape((len(rows.values) * each,)), rows.row_splits * each, shapes)


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a dtype may be cast to another: integers to floats, but never floats to integers."""
    order = {"integer": 0, "float": 1, "complex": 2}
    kinds = _dtype_kind(given), _dtype_kind(wanted)
    return given == wanted or (all(kind in order for kind in kinds) and order[kinds[0]] <= order[kinds[1]])


def _dtype_kind(dtype: np.dtype[Any]) -> str:
    """Name the kind of numbers that a cast keeps or changes: integer, float or complex."""
    if dtype.kind in "biu":
        return "integer"
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return "float"
    return "complex" if dtype.kind == "c" else dtype.kind


def cast(block: Block, dtype: np.dtype[Any]) -> Block:
    """Cast the numbers of a block to another dtype."""
    if isinstance(block, RaggedBlock | ArraysBlock):
        with as_row_error(block.row_splits):
            values: Any = cast(block.values, dtype)
        return replace(block, values=values)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        result = block.astype(dtype)
    refuse_values(block, _changed_values(block, result), f"which does not fit {dtype}")
    return result


def _changed_values(given: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the values that the cast changed, other than by rounding floats."""
    if _dtype_kind(given.dtype) != "integer":
        return np.asarray(np.isfinite(given) & ~np.isfinite(result))
    if _dtype_kind(result.dtype) == "integer":
        # An 8-byte integer that changes its sign keeps its bits, so that casting it back hides the change.
        other: NDArray[np.bool_] = (result.astype(given.dtype) != given) | ((result < 0) != (given < 0))
        return other
    # A float represents all integers up to this one.
    largest = 1 << {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}.get(result.dtype.name, 53)
    if given.dtype.kind == "b" or largest >= np.iinfo(given.dtype).max:
        return np.zeros(given.shape, bool)
    out: NDArray[np.bool_] = given > largest
    return out | (given < -largest) if given.dtype.kind == "i" else out


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; return bytes unchanged."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    return BytesBlock.of([item.encode() for item in block.ravel().tolist()], block.shape)
