"""DataFrames of pandas and dask as `Rows`.

Columns of Arrow types become blocks without Python objects. `dask_tfrecord.inputs.array_likes` converts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection, tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.rows import Chunk, Rows, shared
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.columns.user_blocks import MISSING, conform, in_rows, refuse_missing_values
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features import Feature, TextFeature
from dask_tfrecord.inputs.array_likes import check_names, column_from_array, columns_from_arrays, exactly
from dask_tfrecord.schema import Schema


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas or dask."""
    return all(hasattr(value, name) for name in ("iloc", "columns", "dtypes"))


def rows_of_frame(frame: Any, forms: Mapping[str, Feature], *, exact: bool) -> Rows:
    """Convert a DataFrame; `forms` and `exact` are those of `columns_from_arrays`."""
    names = _checked_names(frame)
    if is_dask_collection(frame):
        return _from_dask(frame, names, forms, exact=exact)
    index = frame.index
    numbers = type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
    if len(frame) and (not numbers or any(name is not None for name in index.names)):
        raise SchemaError(_INDEX)
    columns = {name: _column(frame[name], f"array {name!r}", 0) for name in names}
    return columns_from_arrays(columns, forms, exact=exact)


_INDEX = (
    "the index of the DataFrame would be lost: frame.reset_index() converts it to a column, "
    "frame.reset_index(drop=True) drops it"
)


def _checked_names(frame: Any) -> list[str]:
    names = list(frame.columns)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise SchemaError(
            f"columns of a DataFrame must be named by strings; got {wrong[0]!r}: frame.rename(columns=str)"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SchemaError(f"the DataFrame has several columns {twice[0]!r}: names must be unique")
    return names


def _from_dask(frame: Any, names: Sequence[str], forms: Mapping[str, Feature], *, exact: bool) -> Rows:
    """Convert a dask DataFrame: a partition becomes a chunk."""
    if frame.index.name is not None or getattr(frame.index.dtype, "kind", "") not in "iu":
        # Each partition may number its rows from 0.
        raise SchemaError(_INDEX)
    if not names:
        raise SchemaError("records need one column or more; the DataFrame has none")
    features = {name: _feature_of_dtype(frame.dtypes[name], name, forms.get(name)) for name in names}
    if exact:
        check_names(forms, names)
        for name, form in forms.items():
            # A row of zeros has the dtype and shape of the column.
            row = np.zeros((1, *features[name].block_shape), features[name].block_dtype)
            features[name], _ = exactly(form, features[name], row, f"array {name!r}")
    schema = Schema(features)
    sizes = tuple(int(rows) for rows in frame.map_partitions(len).compute())
    # An optimised graph would not refer to the futures of persisted partitions.
    parts = frame.to_delayed(optimize_graph=False)
    graph: dict[Any, Any] = {}
    for part in {id(part.dask): part for part in parts}.values():
        graph |= dict(part.__dask_graph__())
    keys = [part.key for part in parts]
    node = shared(schema, "schema")
    name = f"tfrecord-partition-{tokenize(keys, schema, sizes)}"
    borders = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64).tolist()
    tasks: dict[Any, Any] = {
        (name, number): (_partition_chunk, key, node.key, *span)
        for number, (key, span) in enumerate(zip(keys, pairwise(borders), strict=True))
    }
    chunks = da.Array(graph | dict(node.__dask_graph__()) | tasks, name, ((1,) * len(keys),), meta=np.empty(0, object))
    return Rows.of_chunks(chunks, schema, sizes, {})


def _feature_of_dtype(dtype: Any, name: str, form: Feature | None) -> Feature:
    """Find the feature of a column of a dask DataFrame by its dtype."""
    import pandas

    owner = f"column {name!r}"
    if isinstance(dtype, pandas.CategoricalDtype) and dtype.categories is not None and len(dtype.categories):
        # Categories are decoded.
        return column_from_array(dtype.categories, owner, form)[0]
    if isinstance(dtype, pandas.StringDtype):
        return TextFeature()
    if dtype == np.dtype(object):
        if form is None:
            raise SchemaError(
                f"column {name!r} is of objects, which may be anything: specify "
                f"features={{{name!r}: FixedLenFeature((), 'bytes')}} for bytes, or VarLenFeature(dtype) for lists"
            )
        return form
    return column_from_array(_column(pandas.Series([], dtype=dtype), owner, 0), owner, form)[0]


def _partition_chunk(frame: Any, schema: Schema, start: int, stop: int) -> Chunk:
    """Convert a partition of rows `start` to `stop`."""
    if len(frame) != stop - start:
        raise SchemaError(
            f"a partition has {len(frame):,} rows; expected {stop - start:,}, its rows when the data set was made"
        )
    blocks: dict[str, Block] = {}
    for name, feature in schema.items():
        owner = f"column {name!r}"
        column = _column(frame[name], owner, start)
        if not isinstance(column, RaggedBlock | BytesBlock | ArraysBlock):
            column = column_from_array(column, owner, feature)[1]
        blocks[name] = conform(feature, column, owner, lossless=True)
    return Chunk(blocks)


def _column(series: Any, owner: str, first: int) -> Any:
    """Return a block for a column of an Arrow type, and other columns unchanged; `first` is the number of its row 0."""
    if getattr(series.dtype, "pyarrow_dtype", None) is None:
        refuse_missing_values(series, owner, first)
        return series
    import pyarrow as pa

    array = pa.array(series)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    block = _block(array, owner, lambda: np.arange(first, first + len(array)))
    return series if block is None else block


def _block(array: Any, owner: str, rows: Callable[[], NDArray[np.int64]]) -> Any:
    """Convert an Arrow array to a block; None if no block has its type.

    Parameters
    ----------
    array : pyarrow.Array
        The values.
    owner : str
        Column, for errors.
    rows : callable
        Returns the number of the row of each value.
    """
    import pyarrow as pa

    kind = array.type
    if array.null_count:
        missing = np.unique(rows()[np.asarray(array.is_null())])
        raise SchemaError(f"{owner} has missing values{in_rows(missing)}, which records do not have: {MISSING}")
    if isinstance(kind, pa.FixedShapeTensorType):
        # `to_numpy_ndarray` reads a missing value within a tensor as a number, and refuses bool.
        tensors = _block(array.storage, owner, rows).reshape(len(array), *kind.shape)
        return tensors.transpose(0, *(1 + axis for axis in kind.permutation)) if kind.permutation else tensors
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist(), np.dtypes.StringDType())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _bytes_block(array.cast(pa.large_binary()))
    if pa.types.is_fixed_size_list(kind):
        return _fixed(_block(array.flatten(), owner, lambda: np.repeat(rows(), kind.list_size)), len(array), kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = np.asarray(array.offsets, np.int64)
        inner = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        values = _block(inner, owner, lambda: np.repeat(rows(), np.diff(offsets)))
        fits = isinstance(values, np.ndarray | BytesBlock | ArraysBlock | RaggedBlock)
        return RaggedBlock(values, offsets - offsets[0]) if fits else None
    if pa.types.is_struct(kind) and [field.name for field in kind] == ["data", "shape"]:
        data, shapes = (_block(array.field(name), owner, rows) for name in ("data", "shape"))
        if isinstance(data, RaggedBlock) and isinstance(shapes, np.ndarray) and shapes.ndim == 2:
            shapes, sizes = shapes.astype(np.int64, copy=False), np.diff(data.row_splits)
            wrong = (shapes < 0).any(axis=1) | (shapes.prod(axis=1, dtype=np.float64) != sizes)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise SchemaError(
                    f"{owner}, row {rows()[at]}: an array of shape {tuple(shapes[at].tolist())} has "
                    f"{plural(int(sizes[at]), 'value')}; expected the product of its sizes"
                )
            return ArraysBlock(data.flat_values, data.row_splits, shapes)
    return None


def _bytes_block(array: Any) -> BytesBlock:
    """Return the values of a large_binary array, sharing memory."""
    _, offsets, data = array.buffers()
    if not len(array):
        return BytesBlock(np.empty(0, np.uint8), np.zeros(1, np.int64), (0,))
    splits = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, np.uint8)[splits[0] : splits[-1]] if data is not None else np.empty(0, np.uint8)
    return BytesBlock(values, splits - splits[0], (len(array),))


def _fixed(inner: Any, rows: int, kind: Any) -> Any:
    """Return rows of a fixed number of values."""
    if isinstance(inner, BytesBlock):
        return BytesBlock(inner.values, inner.splits, (rows, kind.list_size, *inner.shape[1:]))
    if isinstance(inner, np.ndarray):
        return inner.reshape(rows, kind.list_size, *inner.shape[1:])
    return None
