"""`virtual_zarr`: scan records for the byte ranges of their values, and return references to them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import dask
import fsspec
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Collection, row_numbers
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.arrays.sources import RecordSource
from dask_tfrecord.columns.decoder import Decoder, location_nbytes, why_not_located
from dask_tfrecord.errors import Location, SchemaError, redact_url
from dask_tfrecord.features import Feature, RawFeature
from dask_tfrecord.records.framing import Window
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.shard import Shard, Shards, is_local
from dask_tfrecord.stores.flat_arrays import BorderCounts
from dask_tfrecord.stores.virtual.references import VirtualArray, VirtualZarr
from dask_tfrecord.stores.zarr.layout import RowGrid, zarr_layout

__all__ = ["virtual_zarr"]

# First bytes of a shard, enough to detect its compression.
_HEAD_NBYTES = 512


def virtual_zarr(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
    *,
    sequence_features: Mapping[str, Feature] | None = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    counts: str | Sequence[int] = "auto",
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> VirtualZarr:
    """Refer to the values within TFRecord shards as a Zarr group, without copying them.

    Every record is one chunk, a byte range of its shard. This requires uncompressed shards, and values that are one
    byte range of the same length in every record: `FixedLenFeature` of float32, which writers pack, and `RawFeature` of
    a known shape.

    Parameters
    ----------
    urlpath, features, sequence_features, columns, split, counts, compression, storage_options
        As in `read_tfrecord`; records must be counted. Use `columns` to leave out features without these byte ranges.

    Returns
    -------
    VirtualZarr
        `VirtualZarr.to_json` and `VirtualZarr.to_parquet` write it.

    Raises
    ------
    SchemaError
        If features lack these byte ranges (the error lists them, each with the reason), or a shard is compressed.
    FeatureError
        If a record lacks a feature, has another number of values, or stores them in several runs.
    CorruptRecordError
        If a CRC does not match. Every record is read on the active scheduler, and both of its CRCs are checked.
    ValueError
        If shards are in several file systems, or are specified by chained URLs.

    Notes
    -----
    The references are valid as long as the shards do not change; the attributes hold the sizes and versions of the
    shards. Each record is read by its own request, so that a pass over all records is slower than with `read_tfrecord`
    or with a store written by `to_zarr`. Values keep the byte order of the file. Options of fsspec are not stored;
    readers specify them as ``remote_options``.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
    <VirtualZarr: 20 records of 2 files: image>
    """
    if counts is None:
        raise ValueError("a chunk for each record needs counted records: counts is 'auto', 'scan' or a sequence")
    dataset = read_tfrecord(
        urlpath,
        features,
        sequence_features=sequence_features,
        columns=columns,
        split=split,
        chunks="shard",
        counts=counts,
        compression=compression,
        storage_options=storage_options,
    )
    source = dataset.source
    if not isinstance(source, RecordSource):
        raise TypeError(f"expected records; got {type(source).__name__}")
    shards, schema = source.collection.shards, source.decoder.schema
    _check_features(schema)
    _check_files(shards)
    files = tuple(map(redact_url, shards.paths))
    _check_distinct(files, shards.paths)
    offsets = _offsets(source, np.asarray(dataset.borders))
    rows = row_numbers(source.rows)
    numbers = _shard_numbers(source.collection, rows)
    attributes = {"dask_tfrecord": {"schema": json.loads(schema.to_json()), "source": dict(source.origin)}}
    return VirtualZarr(files, numbers, tuple(_arrays(schema, offsets, len(rows))), attributes)


def _shard_numbers(collection: Collection, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the shard of each row."""
    return np.searchsorted(collection.starts, rows, side="right") - 1


def _arrays(schema: Schema, offsets: Mapping[str, NDArray[np.int64]], rows: int) -> list[VirtualArray]:
    # The layout of `to_zarr`, except for dtypes: the byte order is that of the file.
    layout = zarr_layout(schema, rows, RowGrid(1, 1, 1), BorderCounts.concatenate(schema, []))
    arrays = []
    for array in layout.arrays:
        feature = schema[array.feature]
        dtype = feature.stored_dtype.str if isinstance(feature, RawFeature) else array.dtype
        nbytes = location_nbytes(feature)
        arrays.append(VirtualArray(array.name, array.shape, dtype, array.dimensions, nbytes, offsets[array.feature]))
    return arrays


def _check_features(schema: Schema) -> None:
    """Raise if a feature lacks a byte range; the error lists all of them, and the remaining features."""
    reasons = {name: _why_not(name, schema) for name in schema}
    refused = [f"{name!r}: {reason}" for name, reason in reasons.items() if reason is not None]
    if refused:
        left = [name for name, reason in reasons.items() if reason is None]
        hint = f"columns={left} refers to the others" if left else "to_zarr copies them"
        raise SchemaError(f"no byte range of a record is the value of {'; of '.join(refused)}. {hint}")


def _why_not(name: str, schema: Schema) -> str | None:
    feature = schema[name]
    if isinstance(feature, RawFeature) and feature.dtype == "bfloat16":
        return "Zarr has no name for bfloat16: RawFeature(shape, '<u2') refers to its bits"
    return why_not_located(name, schema)


def _check_files(shards: Shards) -> None:
    """Raise if references can't address the files: readers support one file system, and no compression."""
    protocols = set()
    for shard in shards:
        local = is_local(shard.path)
        if ("://" if local else "::") in shard.path:
            raise ValueError(
                f"{redact_url(shard.path)}: readers of references take a plain path, or a URL of one file system"
            )
        protocols.add("file" if local else fsspec.core.split_protocol(shard.path)[0])
        if shard.compression != "infer":
            _check_uncompressed(shard, shard.compression)
    if len(protocols) > 1:
        raise ValueError(f"readers of references have one file system; the shards are in {sorted(protocols)}")


def _check_distinct(files: Sequence[str], paths: Sequence[str]) -> None:
    """Raise if URLs differ only in user info or query, which references do not store."""
    known: dict[str, str] = {}
    for file, path in zip(files, paths, strict=True):
        if known.setdefault(file, path) != path:
            raise ValueError(
                f"{file}: several shards have this URL and differ in user info or query, which references do not hold "
                f"because they may be credentials; refer to shards by URLs that differ in their paths"
            )


def _check_uncompressed(shard: Shard, compression: str | None) -> None:
    if compression is not None:
        raise SchemaError(
            f"the shard is compressed ({compression}), so no byte range of it is a value: to_zarr copies the values",
            Location(shard.path),
        )


def _offsets(source: RecordSource, borders: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the offset of the value in every record for each feature; computed on the active scheduler."""
    decoder = Decoder(source.decoder.schema, "offsets")
    locations = RecordSource.from_collection(source.collection, decoder, source.rows, check_crc=True)
    node = dask.delayed(locations, traverse=False)
    task = dask.delayed(_scan_rows, pure=False)
    cuts = source.refine(borders, limits().scan_task_nbytes).tolist()
    found = dask.compute(*(task(node, start, stop) for start, stop in pairwise(cuts)))
    return {name: np.concatenate([np.zeros(0, np.int64), *(rows[name] for rows in found)]) for name in decoder.columns}


def _scan_rows(source: RecordSource, start: int, stop: int) -> dict[str, NDArray[np.int64]]:
    """Return the offsets of the values of some rows."""
    rows, collection = slice(start, stop), source.collection
    for number in np.unique(_shard_numbers(collection, row_numbers(source.rows[rows]))).tolist():
        shard = collection.shards[number]
        # With counts from the user, the compression has not been detected.
        if shard.compression == "infer":
            with Window(shard, block_size=_HEAD_NBYTES) as window:
                _check_uncompressed(shard, window.compression)
    blocks = source.read(tuple(source.schema), rows)
    return {name: np.asarray(block, np.int64) for name, block in blocks.items()}
