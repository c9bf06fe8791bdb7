"""Writing Zarr stores: one task per write unit, and each writes what it alone writes.

The only module that imports zarr. What a store looks like is decided in `dask_tfrecord.stores.layout` and shown by
`dask_tfrecord.stores.planning`; what tasks do is in `dask_tfrecord.stores.writer`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
import fsspec.core
import numpy as np
import zarr
import zarr.codecs
import zarr.errors
import zarr.storage
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.errors import IncompleteStoreError, Place
from dask_tfrecord.stores.codecs import Codecs
from dask_tfrecord.stores.failure import named, remove_directory, removed_on_failure, uninterrupted
from dask_tfrecord.stores.feed import Feed
from dask_tfrecord.stores.layout import Layout
from dask_tfrecord.stores.writer import Writer, WriteReport, write_unit

__all__ = ["FORMAT", "Target", "write_zarr"]

_ATTRIBUTE = "dask_tfrecord"
FORMAT = 1
# By one of these a directory is known as an array or a group, and these are all the files that a group has.
_MARKS = {"zarr.json", ".zgroup", ".zarray", ".zmetadata", ".zattrs"}
_NO_GROUPS = (
    zarr.errors.GroupNotFoundError,
    zarr.errors.ContainsArrayError,
    FileNotFoundError,
    NotADirectoryError,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
_NO_GROUP = "is there and is no Zarr group: give another path"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a group is, in a form that travels to workers.

    Attributes
    ----------
    store : object
        A path, a URL or a zarr store.
    component : str or None
        The group's path in it.
    storage_options : dict or None
        For a URL.
    """

    store: Any
    component: str | None
    storage_options: dict[str, Any] | None

    @classmethod
    def of(cls, store: Any, component: str | None, storage_options: Mapping[str, Any] | None) -> Target:
        """Make the target that a user's arguments mean."""
        parts = [part for part in (component or "").replace("\\", "/").split("/") if part]
        if {".", ".."} & set(parts):
            raise ValueError(f"component is the path of a group within the store; got {component!r}")
        options = dict(storage_options or {}) or None
        if type(store) is zarr.storage.LocalStore and not store.read_only:
            store = store.root
        if isinstance(store, os.PathLike):
            store = os.fspath(store)
        if isinstance(store, str) and store.startswith(("file://", "local://")):
            store, options = fsspec.core.url_to_fs(store)[1], None
        if isinstance(store, str) and not _is_url(store):
            store = str(Path(store).expanduser().absolute())  # workers may stand in another directory
        return cls(store, "/".join(parts) or None, options)

    def __str__(self) -> str:
        return f"{self.store}" + (f"/{self.component}" if self.component else "")

    @property
    def place(self) -> Place:
        """The group, for errors."""
        return Place(str(self))

    @property
    def directory(self) -> Path | None:
        """The group's directory, where it is one of this machine."""
        local = isinstance(self.store, str) and not _is_url(self.store)
        return Path(self.store, self.component or "") if local else None

    def open(self, mode: Literal["r", "r+", "w", "w-"]) -> zarr.Group:
        """Open or make the group.

        Raises
        ------
        FileExistsError
            If it is there and `mode` is ``"w-"``.
        FileNotFoundError
            If it is not there and is to be read.
        IncompleteStoreError
            If its metadata is no JSON.
        """
        try:
            return zarr.open_group(
                self.store, mode=mode, path=self.component, storage_options=self.storage_options, zarr_format=3
            )
        except (zarr.errors.ContainsGroupError, zarr.errors.ContainsArrayError, FileExistsError) as error:
            if mode in ("r", "r+"):
                raise FileNotFoundError(f"no Zarr group at {self}, but an array") from error
            raise FileExistsError(f"{self} {_NO_GROUP}") from error
        except (zarr.errors.GroupNotFoundError, FileNotFoundError, NotADirectoryError) as error:
            if mode in ("w", "w-"):
                raise
            raise FileNotFoundError(f"no Zarr group of format 3 at {self}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise IncompleteStoreError(f"the metadata of the group is no JSON ({error})", self.place) from error

    def check_free(self, mode: Literal["w", "w-"], origin: Mapping[str, Any]) -> Literal["w", "w-"]:
        """Refuse before anything is read; give the mode to open the group with.

        Raises
        ------
        FileExistsError
            If the group is there and `mode` is ``"w-"``; or what is there is no group, or holds other things than
            arrays and groups: zarr would delete them too.
        ValueError
            If the group is, or holds, what the rows come from.
        """
        try:
            zarr.open_group(self.store, mode="r", path=self.component, storage_options=self.storage_options)
        except _NO_GROUPS as error:
            # Only nothing, or an empty directory, is as good as a group that is replaced.
            directory = self.directory
            if directory is not None and directory.exists() and (directory.is_file() or any(directory.iterdir())):
                raise FileExistsError(f"{self} {_NO_GROUP}") from error
            return "w-"
        if mode == "w-":
            raise FileExistsError(f"{self} exists: mode='w' replaces it, component= writes beside it")
        if f"{_real(origin.get('store', ''))}/".startswith(f"{_real(str(self))}/"):
            raise ValueError(f"{self} can't be replaced by what is read from it: write to another path")
        other = next(_others(self.directory), None) if self.directory is not None else None
        if other is not None:
            raise FileExistsError(f"{self} holds {other.name!r}, which is no part of a Zarr group and would be deleted")
        return "w"

    def attributes(self, group: zarr.Group) -> dict[str, Any]:
        """Look up what `to_zarr` noted on the group."""
        attributes = group.attrs.asdict().get(_ATTRIBUTE)
        return dict(attributes) if isinstance(attributes, Mapping) else {}

    def read(self, group: zarr.Group, name: str, start: int, stop: int) -> NDArray[Any]:
        """Entries of one array of the group."""
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise IncompleteStoreError(f"{name!r} is no array of the group", self.place)
        return np.asarray(array[start:stop])


def _is_url(store: str) -> bool:
    return "://" in store or "::" in store


def _real(store: str) -> str:
    return store if _is_url(store) else os.path.realpath(store)


def _others(directory: Path) -> Iterator[Path]:
    """Find what lies in the directory of a group and is none of its members."""
    for path in directory.iterdir():
        if not (path.name in _MARKS or any((path / mark).is_file() for mark in _MARKS)):
            yield path


def write_zarr(
    target: Target, opening: Literal["w", "w-"], feed: Feed, layout: Layout, codecs: Codecs, *, compute: bool
) -> Delayed | None:
    """Make the group that a layout says, and its tasks; run them, or hand them back."""
    made = [path for path in target.directory.parents if not path.exists()] if target.directory is not None else []
    group = target.open(opening)
    with removed_on_failure(feed.token, lambda: _remove(target, made)):
        with named(str(target)):
            writer = uninterrupted(lambda: _create(group, target, feed, layout, codecs))
        written = _tasks(target, layout, writer, feed)
        if not compute:
            return written
        dask.compute(written)
        if not target.attributes(target.open("r")).get("complete"):
            raise IncompleteStoreError(
                "tasks ran in other processes, and the store lies in the memory of this one: give a path or a URL that "
                "all processes reach, or compute on threads",
                target.place,
            )
    return None


def _create(group: zarr.Group, target: Target, feed: Feed, layout: Layout, codecs: Codecs) -> Writer:
    """Note on the group what it will be, and make its arrays."""
    group.attrs[_ATTRIBUTE] = {
        "format": FORMAT,
        "complete": False,
        "id": feed.token,
        "records": layout.nrows,
        "unit_rows": layout.grid.unit,
        "schema": json.loads(feed.schema.to_json()),
        "source": dict(feed.dataset.origin),
    }
    arrays = {}
    for spec in layout.arrays:
        inner = tuple(max(1, size) for size in spec.shape[1:])
        compressors, filters = codecs.of(spec)
        arrays[spec.name] = group.create_array(
            spec.name,
            shape=spec.shape,
            dtype=spec.dtype,
            chunks=(spec.chunk, *inner),
            shards=(spec.unit, *inner) if spec.unit != spec.chunk else None,
            compressors=compressors,
            filters=filters,
            dimension_names=spec.dimensions,
            # Chunks of zeros are left out otherwise, and complex ones of negative zeros with them.
            config={"write_empty_chunks": True},
        )
    return Writer(feed.token, str(target), feed.schema, layout.nrows, layout.arrays, arrays)


def _tasks(target: Target, layout: Layout, writer: Writer, feed: Feed) -> Delayed:
    plan = dask.delayed(writer, name=f"tfrecord-writer-{feed.token}", traverse=False)
    begun = dask.delayed(_begin, pure=False)(target, plan, dask_key_name=f"tfrecord-begin-{feed.token}")
    jobs = (
        ((unit.spans[0][0], unit.spans[-1][1]) if unit.spans else (0, 0), (unit,)) for unit in layout.units(feed.schema)
    )
    return feed.run(write_unit, jobs, _finish, (target, feed.token), begun)


def _begin(target: Target, writer: Writer) -> Writer:
    """Let tasks write: the group is still the one that was made for them, and is not whole."""
    _mark(target, writer.identity, False)
    return writer


def _finish(target: Target, identity: str, reports: Sequence[WriteReport]) -> None:
    """Make the group whole, by the last thing that is written to it."""
    with warnings.catch_warnings(), named(str(target)):
        # Consolidated metadata works and xarray asks for it; zarr warns that the specification is not out yet.
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part", UserWarning)
        store = target.open("r+").store
        uninterrupted(lambda: zarr.consolidate_metadata(store, path=target.component or None, zarr_format=3))
        _mark(target, identity, True)


def _mark(target: Target, identity: str, complete: bool) -> None:
    group = target.open("r+")
    noted = target.attributes(group)
    if noted.get("id") != identity:
        raise IncompleteStoreError(
            "another conversion has taken the place of this one: call to_zarr again", target.place
        )
    if noted["complete"] != complete:
        group.attrs[_ATTRIBUTE] = {**noted, "complete": complete}


def _remove(target: Target, made: Sequence[Path]) -> None:
    """Leave nothing of the group; where a store can't, an empty one that says it is not whole."""
    if target.directory is not None:
        remove_directory(target.directory, "zarr.json", made)
        return
    if isinstance(target.store, str):
        fs, path = fsspec.core.url_to_fs(target.store, **(target.storage_options or {}))
        path = f"{path.rstrip('/')}/{target.component or ''}".rstrip("/")
        if "/" in path.strip("/"):  # never a whole bucket
            fs.rm(path, recursive=True)
            return
    target.open("w").attrs[_ATTRIBUTE] = {"format": FORMAT, "complete": False}
