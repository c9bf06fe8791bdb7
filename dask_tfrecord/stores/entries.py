"""Entries of arrays that a conversion wrote, and nothing else.

Zarr reads fill values where a chunk is gone, and does not say which one is damaged.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import IncompleteStoreError, Place
from dask_tfrecord.stores.objects import Objects

__all__ = ["read_entries"]

# What codecs raise of bytes that they did not make, or not so many of them.
_DAMAGED = (RuntimeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile)
# Entries of a chunk that are looked at: where none of these is another than the fill value, the store is asked.
_LOOKS = 16


def read_entries(array: Any, objects: Objects, place: Place, start: int, stop: int) -> NDArray[Any]:
    """Read entries of an array.

    Parameters
    ----------
    array : zarr.Array
        Chunks, or shards, are stretches of its first axis.
    objects : Objects
        Of the group that it is in.
    place : Place
        The array, for errors.
    start, stop : int
        The first entry, and the one past the last.

    Raises
    ------
    IncompleteStoreError
        If a chunk is damaged or gone.
    """
    try:
        entries = np.asarray(array[start:stop])
    except _DAMAGED as error:
        raise IncompleteStoreError(
            f"entries {start:,} to {stop:,} can't be read: {type(error).__name__}: {error}. What lies there is not "
            f"what was written; to_zarr(…, mode='w') writes it anew",
            place,
        ) from error
    unit, inner = (array.shards or array.chunks)[0], (0,) * (array.ndim - 1)
    suspects: dict[str, range] = {}
    for number in range(start // unit, -(-(start + len(entries)) // unit)):
        rows = range(number * unit, min((number + 1) * unit, array.shape[0]))
        part = entries[max(rows.start - start, 0) : rows.stop - start]
        if part.size and _is_filled(part[:: -(-len(part) // _LOOKS)], array.fill_value):
            suspects[f"{array.basename}/{array.metadata.encode_chunk_key((number, *inner))}"] = rows
    sizes = objects.sizes(suspects) if suspects else {}
    gone = next((name for name, size in sizes.items() if size is None), None)
    if gone is not None:
        rows = suspects[gone]
        raise IncompleteStoreError(
            f"{gone} is not there any more, which had entries {rows.start:,} to {rows.stop:,}; zarr reads each of them "
            f"as {np.asarray(array.fill_value).item()!r}. to_zarr(…, mode='w') writes it anew",
            place,
        )
    return entries


def _is_filled(entries: NDArray[Any], value: Any) -> bool:
    wanted = np.broadcast_to(np.asarray(value, entries.dtype), entries.shape)
    return np.array_equal(entries, wanted, equal_nan=entries.dtype.kind in "fc")
