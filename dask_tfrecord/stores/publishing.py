"""Shards that appear whole, unless their writing is called off: what all tasks that write one go through."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dask_tfrecord.records.sidecar import write_sidecars
from dask_tfrecord.storage.files import Shard, find_shards
from dask_tfrecord.stores.failure import named, under_way

__all__ = ["CalledOff", "Publisher"]


class _Sink(Protocol):
    def close(self) -> None: ...

    def discard(self) -> None: ...


Sink = TypeVar("Sink", bound=_Sink)


class CalledOff(Exception):
    """Another task has failed: nothing more is to be written."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """How all shards of one writing appear.

    Attributes
    ----------
    identity : str
        What the writing calls itself: whoever calls it off waits for what is being written.
    compression : str or None
        Of the shards.
    index : bool
        Whether a sidecar is written beside each.
    storage_options : mapping
        What fsspec takes beside a URL.
    """

    identity: str
    compression: str | None
    index: bool
    storage_options: Mapping[str, Any]

    @contextmanager
    def shard(self, path: str, create: Callable[..., Sink]) -> Generator[Sink, None, None]:
        """Make a shard that appears at the end of the with-block, or not at all.

        Parameters
        ----------
        path : str
            Path or URL.
        create : callable
            Begins it: ``create(path, compression, storage_options=…)``.

        Raises
        ------
        CalledOff
            If the writing was called off, before it began or since.
        """
        with under_way(self.identity) as on:
            if not on:
                raise CalledOff
            with named(path):
                sink = create(path, self.compression, storage_options=self.storage_options)
            try:
                yield sink
                self.go_on()
                with named(path):
                    sink.close()
            except BaseException:
                sink.discard()
                raise
            if self.index:
                write_sidecars(self._find(path))

    def stored(self, path: str) -> int:
        """Find the bytes of a shard that has appeared."""
        return self._find(path).size

    def _find(self, path: str) -> Shard:
        return find_shards(path, compression=self.compression, storage_options=self.storage_options)[0]

    def go_on(self) -> None:
        """Stop here if the writing was called off."""
        with under_way(self.identity) as on:
            if not on:
                raise CalledOff
