"""`read_bag`: records of any type as a `dask.bag` of payloads or of decoded values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import dask.bag

from dask_tfrecord.arrays.record_partitions import RecordPartition, record_partitions
from dask_tfrecord.errors import FeatureError, plural
from dask_tfrecord.inspection.payload_type import detect_payload_type
from dask_tfrecord.records.splits import iterate_payloads
from dask_tfrecord.storage.listing import find_shards

__all__ = ["read_bag"]


def read_bag(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    decode: Callable[[bytes], Any] | None = None,
    *,
    chunks: str | int = "auto",
    compression: str | None = "infer",
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> dask.bag.Bag:
    """Open records of any kind as a dask bag.

    For payloads other than Examples: JSON, protobuf messages, tf.Events or any bytes. `read_tfrecord` is faster for
    arrays.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        Shards, as for `read_tfrecord`.
    decode : callable, optional
        Function from a payload (`bytes`) to a value, called on the workers. By default the payload is the value. Values
        are pickled between processes: messages of `dask_tfrecord.messages` can be pickled, protobuf messages of classes
        that are created at run time elsewhere cannot.
    chunks : "auto", "shard", int or str, default "auto"
        Records per partition. ``"auto"``: one partition per shard; uncompressed shards larger than dask's
        ``array.chunk-size`` are split, and neighbours are joined past 20,000 partitions. ``"shard"``: exactly one
        partition per shard. An int: that many records, across shards. A size such as ``"64 MiB"``: shards are split and
        joined to that many stored bytes, but compressed shards are never split. An int or a size counts all records.
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` detects compression by the first bytes, not by the file name.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    dask.bag.Bag
        Values in the order of the records. A partition is read record by record, so reductions and filters hold one
        payload at a time.

    Raises
    ------
    ShardNotFoundError
        If no shard is found. It is a `FileNotFoundError` too.
    CorruptRecordError
        If a record is damaged: when it is read, or now if records have to be counted.
    FeatureError
        During computation, if `decode` fails. The error names the record; its cause is the exception of `decode`,
        except between processes.
    ValueError
        If an argument has an invalid value.

    Examples
    --------
    >>> bag = dtf.read_bag("train-*.tfrecord", decode=len)
    >>> bag.npartitions
    2
    >>> bag.take(3)
    (266, 269, 272)
    """
    if decode is not None and not callable(decode):
        raise ValueError(f"decode is a function of a payload, or None; got {decode!r:.100}")
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    parts = record_partitions(shards, chunks, check_crc)
    # dask materialises the values of a partition only when they leave a task.
    bag = dask.bag.from_sequence(parts, partition_size=1)
    values: dask.bag.Bag = bag.map(_values, decode=decode, check_crc=check_crc).flatten()
    return values


def _values(part: RecordPartition, decode: Callable[[bytes], Any] | None, check_crc: bool) -> Iterator[Any]:
    """Yield the values of a partition."""
    with closing(iterate_payloads(part.runs, check_crc=check_crc)) as records:
        for location, payload in records:
            if decode is None:
                yield payload
                continue
            try:
                value = decode(payload)
            except Exception as error:
                # The cause is lost between processes, so the message includes its text.
                name = getattr(decode, "__qualname__", None) or repr(decode)
                raise FeatureError(
                    f"decode ({name}) raised {error!r:.300} on a payload of {plural(len(payload), 'byte')}, which "
                    f"looks like {detect_payload_type(payload)}",
                    location,
                ) from error
            yield value
