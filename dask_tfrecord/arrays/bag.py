"""`to_bag`: records of any kind as a `dask.bag` of whatever a function makes of their payloads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import dask.bag

from dask_tfrecord.arrays.partitions import Partition, partitions
from dask_tfrecord.columns.payloads import payloads
from dask_tfrecord.columns.recognise import describe_payload
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.storage.files import find_shards

__all__ = ["to_bag"]


def to_bag(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    decode: Callable[[bytes], Any] | None = None,
    *,
    chunks: str | int = "auto",
    compression: str | None = "infer",
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> dask.bag.Bag:
    """Open records of any kind as a dask bag.

    For what is no Example: JSON, any protobuf message, a tf.Event, whatever somebody wrote. Arrays are faster from
    `read_tfrecord`, which see.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        As `read_tfrecord` takes it.
    decode : callable, optional
        What makes a value of a payload (`bytes`); it is called on the workers. By default the payload is the value.
        Values travel between processes by pickle: plain ones do, and messages of `dask_tfrecord.messages`; ones whose
        classes are made at run time elsewhere do not.
    chunks : "auto", "shard", int or str, default "auto"
        Records of a partition: ``"auto"`` makes one per shard, splits uncompressed shards that are larger than dask's
        ``array.chunk-size``, and joins neighbours past 20,000 partitions; ``"shard"`` makes exactly one per shard; an
        int is that many records, across shards; a size such as ``"64 MiB"`` splits and joins to that many stored
        bytes, but never splits a compressed shard. An int or a size counts the records of all shards first.
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` looks at the bytes, never at the name.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    dask.bag.Bag
        In the order of the records. A partition is read record by record as it is consumed: what reduces or filters
        holds no more than a payload at a time.

    Raises
    ------
    ShardNotFoundError
        If nothing is there. A `FileNotFoundError` too.
    CorruptRecordError
        If a record is damaged: when it is read, or here where records have to be counted.
    FeatureError
        When a value is made, if `decode` fails: the error names the record, and its cause is what `decode` raised,
        unless that was in another process.
    ValueError
        If an argument has another value than those above.

    Examples
    --------
    >>> bag = dtf.to_bag("train-*.tfrecord", decode=len)
    >>> bag.npartitions
    2
    >>> bag.take(3)
    (266, 269, 272)
    """
    if decode is not None and not callable(decode):
        raise ValueError(f"decode is a function of a payload, or None; got {decode!r:.100}")
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    parts = partitions(shards, chunks, check_crc)
    # By this way dask lists the values of a partition where it has to hand them on, and only there.
    bag = dask.bag.from_sequence(parts, partition_size=1)
    values: dask.bag.Bag = bag.map(_values, decode=decode, check_crc=check_crc).flatten()
    return values


def _values(part: Partition, decode: Callable[[bytes], Any] | None, check_crc: bool) -> Iterator[Any]:
    """Yield the values of a partition."""
    with closing(payloads(part.runs, check_crc=check_crc)) as records:
        for place, payload in records:
            if decode is None:
                yield payload
                continue
            try:
                value = decode(payload)
            except Exception as error:
                # The cause does not travel between processes, so its text is told too.
                name = getattr(decode, "__qualname__", None) or repr(decode)
                raise FeatureError(
                    f"decode ({name}) raised {error!r:.300} on a payload of {len(payload)} bytes, which looks like "
                    f"{describe_payload(payload)}",
                    place,
                ) from error
            yield value
