"""Files of a directory that a test slows down or refuses: written by `put`, one call each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_tfrecord.shards.objects import DirectoryObjects


def put_each(objects: DirectoryObjects, values: Mapping[str, Any]) -> None:
    """Write files by `put`, which a test has replaced: the native core writes many at once otherwise."""
    for name, value in values.items():
        objects.put(name, value)
