"""`virtual_zarr`: from shards to references into them. Records are scanned for where values lie, and none is copied."""

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

from dask_tfrecord.arrays.plan import Collection, row_numbers
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.arrays.source import RecordSource
from dask_tfrecord.columns.places import PlaceParser, place_nbytes, why_unplaced
from dask_tfrecord.errors import Place, SchemaError
from dask_tfrecord.features import Feature, RawFeature
from dask_tfrecord.records.framing import Window
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shards import Shard, Shards, is_local
from dask_tfrecord.stores.layout import RowGrid, Tally, zarr_layout
from dask_tfrecord.stores.references import VirtualArray, VirtualZarr

__all__ = ["virtual_zarr"]

# Stored bytes that a task goes through.
_TASK_NBYTES = 64 << 20
# Bytes that tell the compression of a shard.
_LOOK = 512


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

    Every record is one chunk, a byte range of its shard. That takes values that are as many bytes in one place of
    every record: `FixedLenFeature` of float32, which writers pack, and `RawFeature` of a known shape, in shards that
    are not compressed.

    Parameters
    ----------
    urlpath, features, sequence_features, columns, split, counts, compression, storage_options
        As `read_tfrecord` takes them; records have to be counted. `columns` picks what can be referred to.

    Returns
    -------
    VirtualZarr
        To be written by `VirtualZarr.to_json` or `VirtualZarr.to_parquet`.

    Raises
    ------
    SchemaError
        If features can't be referred to (all of them are named, each with the reason), or a shard is compressed.
    FeatureError
        If a record lacks a feature, has another number of values, or has them in several runs.
    CorruptRecordError
        If a CRC does not hold: every record is read, on the active scheduler, and both of its CRCs are checked.
    ValueError
        If shards lie in several file systems, or are reached through a chain of URLs.

    Notes
    -----
    The references hold as long as the shards stay as they are; their sizes and versions are in the attributes. To read
    a record is a request of its own: a whole pass is slower than `read_tfrecord`, or a store that `to_zarr` wrote. The
    values keep the byte order of the file. What fsspec takes beside a URL is not stored: readers give it as
    ``remote_options``.

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
    shards, schema = source.collection.shards, source.parser.schema
    _check_features(schema)
    _check_files(shards)
    offsets = _offsets(source, np.asarray(dataset.borders))
    rows = row_numbers(source.rows)
    numbers = _shard_numbers(source.collection, rows)
    attributes = {"dask_tfrecord": {"schema": json.loads(schema.to_json()), "source": dict(source.origin)}}
    return VirtualZarr(shards.paths, numbers, tuple(_arrays(schema, offsets, len(rows))), attributes)


def _shard_numbers(collection: Collection, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find which shard each row is in."""
    return np.searchsorted(collection.starts, rows, side="right") - 1


def _arrays(schema: Schema, offsets: Mapping[str, NDArray[np.int64]], rows: int) -> list[VirtualArray]:
    # As `to_zarr` lays them out, but for what depends on the bytes.
    layout = zarr_layout(schema, rows, RowGrid(1, 1, 1), Tally.joined(schema, []))
    made = []
    for array in layout.arrays:
        feature = schema[array.feature]
        dtype = feature.stored_dtype.str if isinstance(feature, RawFeature) else array.dtype
        size, places = place_nbytes(feature), offsets[array.feature]
        made.append(VirtualArray(array.name, array.shape, dtype, array.dimensions, size, places))
    return made


def _check_features(schema: Schema) -> None:
    """Refuse what has no place, all at once, and say what is left."""
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
    return why_unplaced(name, schema)


def _check_files(shards: Shards) -> None:
    """Refuse files that references do not reach: readers have one file system, and take bytes as they are stored."""
    protocols = set()
    for shard in shards:
        local = is_local(shard.path)
        if ("://" if local else "::") in shard.path:
            raise ValueError(f"{shard.path}: readers of references take a plain path, or a URL of one file system")
        protocols.add("file" if local else fsspec.core.split_protocol(shard.path)[0])
        if shard.compression != "infer":
            _check_stored(shard, shard.compression)
    if len(protocols) > 1:
        raise ValueError(f"readers of references have one file system; the shards are in {sorted(protocols)}")


def _check_stored(shard: Shard, compression: str | None) -> None:
    if compression is not None:
        raise SchemaError(
            f"the shard is compressed ({compression}), and no byte of it is one of a value: to_zarr copies them",
            Place(shard.path),
        )


def _offsets(source: RecordSource, borders: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Find where the values of every record begin, in parallel on the active scheduler."""
    parser = PlaceParser(source.parser.schema)
    places = RecordSource.make(source.collection, parser, source.rows, check_crc=True)
    node = dask.delayed(places, traverse=False)
    task = dask.delayed(_places, pure=False)
    cuts = source.refine(borders, _TASK_NBYTES).tolist()
    found = dask.compute(*(task(node, start, stop) for start, stop in pairwise(cuts)))
    return {name: np.concatenate([np.zeros(0, np.int64), *(part[name] for part in found)]) for name in parser.columns}


def _places(source: RecordSource, start: int, stop: int) -> dict[str, NDArray[np.int64]]:
    """Find where the values of some rows begin."""
    rows, collection = slice(start, stop), source.collection
    for number in np.unique(_shard_numbers(collection, row_numbers(source.rows[rows]))).tolist():
        shard = collection.shards[number]
        # Where counts were given, nobody has looked.
        if shard.compression == "infer":
            with Window(shard, block_size=_LOOK) as window:
                _check_stored(shard, window.compression)
    blocks = source.read(tuple(source.schema), rows)
    return {name: np.asarray(block, np.int64) for name, block in blocks.items()}
