"""Columns of rows that the oracle read: arrays of one shape, padded arrays, and arrays of objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.features import Encoded, Feature, FixedLenSequenceFeature, SparseFeature, TextFeature
from oracle.partitions import objects
from oracle.values import oracle_dtype


def columns_of(name: str, feature: Feature, rows: Sequence[Any], is_list: bool) -> dict[str, NDArray[Any]]:
    """Return the columns of the rows of a feature, or of a feature list."""
    if isinstance(feature, SparseFeature):
        return {
            f"{name}.indices": objects([indices for indices, _ in rows]),
            f"{name}.values": objects([values for _, values in rows]),
            f"{name}.shape": np.array([feature.size] * len(rows), np.int64).reshape(len(rows), len(feature.size)),
        }
    lengths = {f"{name}.lengths": np.array([len(row) for row in rows], np.int64)} if is_list else {}
    if isinstance(feature, Encoded) and (is_list or feature.count == -1):
        return {name: objects(rows), **lengths}
    return {name: column_of(feature, rows), **lengths}


def column_of(feature: Feature, rows: Sequence[Any]) -> NDArray[Any]:
    """Return the array of the rows of a feature."""
    if isinstance(feature, TextFeature):
        return np.array(rows, np.dtypes.StringDType()).reshape(len(rows), *feature.shape)
    if isinstance(feature, FixedLenSequenceFeature):
        return _padded(feature, rows)
    if -1 not in feature.shape:
        several = () if getattr(feature, "count", None) is None else (feature.count,)  # type: ignore[attr-defined]
        column = np.empty((len(rows), *several, *feature.shape), oracle_dtype(feature.dtype).newbyteorder("="))
        for number, row in enumerate(rows):
            column[number, ...] = row
        return column
    return objects(rows)


def _padded(feature: FixedLenSequenceFeature, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    length = max(map(len, rows), default=0) if feature.length is None else feature.length
    column = np.empty((len(rows), length, *feature.shape), oracle_dtype(feature.dtype))
    padding = b"" if feature.dtype == "bytes" else 0
    column[...] = padding if feature.default_value is None else feature.default_value
    for number, row in enumerate(rows):
        column[number, : len(row)] = row
    return column
