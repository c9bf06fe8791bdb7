"""Compressions of shards by name, and which one a file has.

Packages add compressions with `register_compression`, or by an entry point of the group
``dask_tfrecord.compressions``, which holds on workers too.
"""

from __future__ import annotations

from dask_tfrecord.plugins import Registry
from dask_tfrecord.shards.checksums import masked_crc32c
from dask_tfrecord.shards.deflate import GZIP, ZLIB
from dask_tfrecord.shards.shard_compression import ShardCompression
from dask_tfrecord.shards.zstandard import ZSTD

# Bytes that detection takes: a TFRecord header has 12, and an inflater rejects other data within a few hundred.
DETECTION_NBYTES = 512

COMPRESSIONS: Registry[ShardCompression] = Registry("dask_tfrecord.compressions", GZIP, ZLIB, ZSTD)


def register_compression(compression: ShardCompression) -> None:
    """Make a compression of shards known in this process.

    Workers must know it as well. To make it known in every process, let a package name the `ShardCompression` in an
    entry point of the group ``dask_tfrecord.compressions``.

    Parameters
    ----------
    compression : ShardCompression
        The compression, which replaces one of the same name, unless that belongs to this library.

    Raises
    ------
    ValueError
        If a compression of this library has the same name, or the name is not a lower-case identifier.

    See Also
    --------
    ShardCompression : Describe a compression, with an example.
    """
    name = compression.name
    if (
        name in COMPRESSIONS.built_in
        or name in ("infer", "same", "none")
        or not (name.isidentifier() and name == name.lower())
    ):
        raise ValueError(f"expected an unused name in lower case for a compression; got {name!r}")
    COMPRESSIONS.added[name] = compression


def find_compression(name: str) -> ShardCompression:
    """Return a compression by its name; raise ValueError if it is unknown in this process."""
    for compression in COMPRESSIONS:
        if compression.name == name:
            return compression
    raise ValueError(
        f"compression {name!r} is not registered in this process; register_compression does it for one process, and a "
        f"package with an entry point of the group {COMPRESSIONS.group!r} for all"
    )


def has_access_points(name: str) -> bool:
    """Return whether a file can be read from points within it, given by a sidecar."""
    return find_compression(name).has_access_points


def useless_index(name: str) -> str:
    """Return the reason why shards of a compression lack an index."""
    others = " or ".join(each.name for each in COMPRESSIONS if each.has_access_points)
    return (
        f"an index of {name} data is useless, because these can only be read from their beginning; write {others} "
        "instead"
    )


def detect_compression(head: bytes) -> str | None:
    """Return the name of the compression that the first `DETECTION_NBYTES` of a file begin; None for none.

    A file whose length CRC matches is not compressed, even if the length equals the magic number of gzip.
    """
    if len(head) >= 12 and masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little"):
        return None
    return next((compression.name for compression in COMPRESSIONS if compression.is_start(head)), None)


def normalize_compression(compression: object, *others: str) -> str | None:
    """Check and normalise a `compression` argument: None, the name of a compression in any case, or one of `others`.

    An empty string is None, as for `tf.io.TFRecordWriter`. Raises ValueError for another value.
    """
    name = compression.lower() if isinstance(compression, str) else compression
    if name is None or name == "":
        return None
    if isinstance(name, str) and (name in others or any(name == known.name for known in COMPRESSIONS)):
        return name
    accepted = [*map(repr, others), "None", *(repr(known.name) for known in COMPRESSIONS)]
    raise ValueError(f"compression must be one of {', '.join(accepted)}; got {compression!r}")
