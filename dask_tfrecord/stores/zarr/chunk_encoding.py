"""Bytes of chunks of Zarr arrays with the common codecs, encoded in the calling thread.

zarr passes each chunk through an asynchronous pipeline. That takes 0.7 ms of Python, as long as compressing a MiB, and
for stores without a directory one thread of Python for all tasks. Here, a chunk of numbers or text is encoded by
numcodecs alone: the bytes are the same. Other arrays, with filters or rare codecs, are encoded by zarr (`compat`).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import crc32c
import numcodecs
import numpy as np
import zarr.codecs
from numpy.typing import NDArray

Encode = Callable[[NDArray[Any]], bytes | memoryview]
_EncodeBytes = Callable[[Any], Any]

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


def chunk_encoder(array: Any) -> Encode | None:
    """Return a function that encodes whole chunks, or shards, of an array; None if only zarr encodes them.

    The function takes the entries of a chunk along the first axis, and fills a partial chunk.
    """
    # Threads may make it twice. The metadata are kept, so that their identity is not used again.
    metadata = array.metadata
    found = _encoders.get(id(metadata))
    if found is None:
        if len(_encoders) > _MOST_ENCODERS:
            _encoders.clear()
        found = _encoders[id(metadata)] = metadata, _array_encoder(array)
    return found[1]


# No thread iterates over it, and each entry keeps the metadata whose identity is its key.
_encoders: dict[int, tuple[Any, Encode | None]] = {}
_MOST_ENCODERS = 4096


def _array_encoder(array: Any) -> Encode | None:
    dtype = array.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biufcT" or array.ndim == 0:
        return None
    codecs, fill_value = array.metadata.codecs, array.metadata.fill_value
    whole = tuple(array.shards or array.chunks)
    if len(codecs) == 1 and isinstance(codecs[0], zarr.codecs.ShardingCodec):
        encode = _sharded(codecs[0], whole, dtype)
    else:
        encode = _plain_encoder(codecs, dtype)
    if encode is None:
        return None

    def encode_filled(entries: NDArray[Any]) -> bytes | memoryview:
        if len(entries) < whole[0]:
            filled = np.full(whole, fill_value, dtype)
            filled[: len(entries)] = entries
            entries = filled
        if entries.shape != whole:
            raise ValueError(f"a chunk of shape {whole} got entries of shape {entries.shape}")
        return encode(entries)

    return encode_filled


def _plain_encoder(codecs: Sequence[Any], dtype: np.dtype[Any]) -> Encode | None:
    """Return the encoder of a chunk by a codec of bytes, and compressors after it."""
    first, *rest = codecs
    steps = [_step(codec) for codec in rest]
    if None in steps:
        return None
    if type(first) is zarr.codecs.BytesCodec:
        endian = None if first.endian is None else _name(first.endian)
        swapped = dtype.newbyteorder("<" if endian in (None, "little") else ">")
    elif type(first) is not zarr.codecs.VLenUTF8Codec:
        return None

    def encode(entries: NDArray[Any]) -> bytes | memoryview:
        data: Any
        if dtype.kind == "T":
            data = numcodecs.VLenUTF8().encode(entries.astype(object))
        else:
            data = np.ascontiguousarray(entries, swapped).reshape(-1).view(np.uint8)
        for step in steps:
            data = step(data)  # type: ignore[misc]
        return data if isinstance(data, bytes) else memoryview(data)

    return encode


def _name(option: Any) -> str:
    """Name a codec's option, which later versions of zarr keep as a string."""
    return str(getattr(option, "value", option))


def _step(codec: Any) -> _EncodeBytes | None:
    """Return the function of a codec from bytes to bytes, with the options that zarr passes to numcodecs."""
    made: Any = None
    if type(codec) is zarr.codecs.BloscCodec and _has_typesize():
        options = _name(codec.cname), codec.clevel, _SHUFFLES[_name(codec.shuffle)], codec.blocksize
        made = numcodecs.Blosc(*options, typesize=codec.typesize)
    elif type(codec) is zarr.codecs.ZstdCodec:
        made = numcodecs.Zstd(codec.level, codec.checksum)
    elif type(codec) is zarr.codecs.GzipCodec:
        made = numcodecs.GZip(codec.level)
    elif type(codec) is zarr.codecs.Crc32cCodec:
        return _with_checksum
    return None if made is None else made.encode


@functools.cache
def _has_typesize() -> bool:
    # Before numcodecs 0.16, Blosc shuffles items of the size of the array that it gets: bytes.
    return "typesize" in inspect.signature(numcodecs.Blosc).parameters


def _with_checksum(data: Any) -> bytes:
    return bytes(data) + crc32c.crc32c(data).to_bytes(4, "little")


def _sharded(codec: Any, whole: tuple[int, ...], dtype: np.dtype[Any]) -> Encode | None:
    """Return the encoder of a shard whose chunks follow each other along the first axis."""
    inner, rows = tuple(codec.chunk_shape), codec.chunk_shape[0]
    encode = _plain_encoder(codec.codecs, dtype)
    index = _plain_encoder(codec.index_codecs, np.dtype("<u8"))
    if encode is None or index is None or inner[1:] != whole[1:] or whole[0] % rows or sys.byteorder != "little":
        return None
    at_start = _name(codec.index_location) == "start"

    def encode_shard(entries: NDArray[Any]) -> bytes:
        parts = [encode(entries[start : start + rows]) for start in range(0, whole[0], rows)]
        sizes = [len(part) for part in parts]
        table = np.array(list(zip(itertools.accumulate(sizes[:-1], initial=0), sizes, strict=True)), "<u8")
        if at_start:
            # The encoded size of the index does not depend on its values.
            table[:, 0] += len(index(table))
        return b"".join([index(table), *parts] if at_start else [*parts, index(table)])

    # An empty chunk is not stored in a shard.
    return encode_shard if math.prod(inner) else None
