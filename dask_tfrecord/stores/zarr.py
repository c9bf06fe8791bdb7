"""Writing Zarr stores: one task per write unit, and each writes what it alone writes.

The only module that imports zarr. What a store looks like is decided in `dask_tfrecord.stores.layout`, what tasks do in
`dask_tfrecord.stores.writer`.
"""

from __future__ import annotations

import json
import math
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.writable import register_store
from dask_tfrecord.errors import IncompleteStoreError, Place
from dask_tfrecord.stores.failure import named, remove_directory, removed_on_failure, uninterrupted
from dask_tfrecord.stores.feed import Feed, count_rows
from dask_tfrecord.stores.layout import (
    CHUNK_NBYTES,
    UNIT_NBYTES,
    Layout,
    RowGrid,
    Tally,
    check_storable,
    default_rows,
    zarr_layout,
)
from dask_tfrecord.stores.levels import is_flat
from dask_tfrecord.stores.writer import Writer, WriteReport, write_unit

__all__ = ["FORMAT", "Target", "WriteReport", "to_zarr"]

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

Compressors = Any


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


def to_zarr(
    arrays: Mapping[str, Any],
    store: Any,
    *,
    component: str | None = None,
    mode: Literal["w", "w-"] = "w-",
    chunks: int | None = None,
    shards: int | None = None,
    compressors: Compressors = "auto",
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write columns to a Zarr group, one task per write unit and no rechunking.

    Dense and text columns are one array each. Columns of bytes and of ragged rows are ``NAME.values`` and
    ``NAME.row_splits``, with ``NAME.row_splits_1`` and so on where rows are made of rows, and ``NAME.byte_splits``
    where those are of bytes; arrays of their own shapes have these in ``NAME.shapes``. ``/`` in a name becomes ``.``;
    the group's attributes keep the true names, the schema with its class names, and the sources.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is written: a data set, or dask or NumPy arrays of as many rows each.
    store : str, Path or zarr store
        A path, a URL or a store.
    component : str, optional
        Path of the group within the store.
    mode : {"w-", "w"}
        ``"w-"`` fails if the group exists, ``"w"`` replaces it.
    chunks : int, optional
        Rows of a chunk; by default as many as make 4 MiB of what is laid out by rows (1 MiB where sharded), or fewer if
        bytes and ragged columns make rows long.
    shards : int, optional
        Rows of a shard, a multiple of `chunks`; by default arrays are not sharded.
    compressors : "auto", None or what `zarr.create_array` takes
        ``"auto"`` is Blosc with LZ4 and byte shuffling.
    compute : bool, default True
        Write now; otherwise only the empty arrays are made, and a `Delayed` that writes them is returned. Until that is
        computed the group is marked incomplete, and stays so if computing it fails.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If the group exists under ``mode="w-"``, or what is there is no Zarr group, or not only that: nothing but arrays
        and groups is ever replaced.
    SchemaError
        If arrays differ in their number of rows, or are of a dtype that no feature has, or that Zarr has no name for,
        which is bfloat16.
    ValueError
        If rows are not counted, `chunks` and `shards` do not fit each other, or the group would replace the one that
        the data set is read from.
    IncompleteStoreError
        If tasks ran in other processes and wrote to a store that lies in the memory of this one.

    Notes
    -----
    Sizes of bytes and ragged columns are counted first, which reads them once more. The group is marked incomplete
    until all of it is written; a conversion that fails removes what it wrote. Each task reads its rows in pieces, and
    holds what it writes and one piece.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrecords > 0
    True
    """
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    dataset = arrays if isinstance(arrays, Dataset) else Dataset.from_arrays(arrays)
    if dataset.nrecords is None:
        raise ValueError("rows have to be counted to be written: open with counts='auto'")
    check_storable(dataset.schema)
    target = Target.of(store, component, storage_options)
    opening = target.check_free(mode, dataset.origin)
    feed = Feed(dataset, uuid.uuid4().hex)
    layout = _layout(feed, dataset.nrecords, chunks, shards)
    made = [path for path in target.directory.parents if not path.exists()] if target.directory is not None else []
    group = target.open(opening)
    with removed_on_failure(feed.token, lambda: _remove(target, made)):
        with named(str(target)):
            writer = uninterrupted(lambda: _create(group, target, feed, layout, compressors))
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


def _layout(feed: Feed, rows: int, chunks: int | None, shards: int | None) -> Layout:
    """Count what the flat features hold, and lay the arrays out."""
    grid = _row_grid(feed, rows, chunks, shards)
    tally = Tally.joined(feed.schema, [])
    if any(map(is_flat, feed.schema.values())):
        jobs = ((span, (span, feed.schema, grid.unit, grid.most)) for span in pairwise(feed.borders.tolist()))
        (tally,) = dask.compute(feed.run(count_rows, jobs, Tally.joined, (feed.schema,)))
    return zarr_layout(feed.schema, rows, grid, tally)


def _row_grid(feed: Feed, rows: int, chunks: int | None, shards: int | None) -> RowGrid:
    """Cut the rows as the user says, or by their size."""
    for name, value in (("chunks", chunks), ("shards", shards)):
        if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} is a number of rows; got {value!r}")
    if shards is not None and chunks is not None and shards % chunks:
        raise ValueError(f"a shard is a whole number of chunks; {shards} rows are no multiple of {chunks}")
    by_rows, altogether = feed.row_nbytes()
    most = default_rows(UNIT_NBYTES, altogether, altogether)
    if shards is None:
        unit = int(chunks or min(default_rows(UNIT_NBYTES, by_rows, altogether), max(rows, 1)))
        return RowGrid(unit, unit, most)
    if chunks is None:
        wanted = default_rows(CHUNK_NBYTES, by_rows, altogether)
        divisors = [part for n in range(1, math.isqrt(shards) + 1) if shards % n == 0 for part in (n, shards // n)]
        chunks = min(divisors, key=lambda size: abs(math.log(size / wanted)))
    return RowGrid(int(chunks), int(shards), most)


def _create(group: zarr.Group, target: Target, feed: Feed, layout: Layout, compressors: Compressors) -> Writer:
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
    if isinstance(compressors, str) and compressors == "auto":
        compressors = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    arrays = {}
    for spec in layout.arrays:
        inner = tuple(max(1, size) for size in spec.shape[1:])
        arrays[spec.name] = group.create_array(
            spec.name,
            shape=spec.shape,
            dtype=spec.dtype,
            chunks=(spec.chunk, *inner),
            shards=(spec.unit, *inner) if spec.unit != spec.chunk else None,
            compressors=compressors,
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


register_store("zarr", to_zarr)
