"""Zarr groups: where they are, what this library notes on them, and the objects that they are made of.

Only this module, `dask_tfrecord.stores.stored` and `dask_tfrecord.stores.zarr_settings` import zarr.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec.core
import zarr
import zarr.api.asynchronous
import zarr.errors
import zarr.storage
from numpy.typing import NDArray

from dask_tfrecord.errors import IncompleteStoreError, Place
from dask_tfrecord.stores.entries import read_entries
from dask_tfrecord.stores.failure import remove_directory
from dask_tfrecord.stores.objects import Files, Objects
from dask_tfrecord.stores.own_loop import own_loop
from dask_tfrecord.stores.stored import Stored

__all__ = ["FORMAT", "JOURNAL", "Put", "Target", "check_forms"]

_ATTRIBUTE = "dask_tfrecord"
FORMAT = 1
# What a conversion keeps within the group until it is whole.
JOURNAL = ".dask_tfrecord"
# What zarr leaves of a file that it was writing when it was killed.
_TORN = re.compile(r".*\.[0-9a-f]{32}\.partial")
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
# Chunks of the fill value are left out otherwise, and complex ones of negative zeros with them.
_CONFIG: Any = {"write_empty_chunks": True}
# What tells arrays of one kind apart.
_NAMING = ("dimension_names", "attributes")
_NO_GROUP = "is there and is no Zarr group: give another path"

# Takes an array, the first entry and the one past the last, and what is written there.
Put = Callable[[Any, int, int, NDArray[Any]], None]


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
        if store is None:
            raise TypeError("store is a path, a URL or a zarr store; got None")
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

    def open(self, mode: Literal["r", "r+"]) -> zarr.Group:
        """Open the group.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        IncompleteStoreError
            If its metadata is no JSON.
        """
        return self._open(mode, None)

    def _open(self, mode: Literal["r", "r+", "w", "w-"], attributes: dict[str, Any] | None) -> zarr.Group:
        try:
            return zarr.open_group(
                self.store,
                mode=mode,
                path=self.component,
                storage_options=self.storage_options,
                zarr_format=3,
                attributes=attributes,
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

    def create(self, mode: Literal["w", "w-"], noted: Mapping[str, Any]) -> zarr.Group:
        """Make the group, and note on it what it will be.

        Raises
        ------
        FileExistsError
            If it is there and `mode` is ``"w-"``.
        """
        return self._open(mode, {_ATTRIBUTE: {"format": FORMAT, **noted}})

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
            if self.begun():
                raise FileExistsError(
                    f"{self} holds a conversion that was never finished: resume=True goes on with it, mode='w' "
                    f"replaces it, component= writes beside it"
                )
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

    def noted(self) -> dict[str, Any]:
        """Look up what `to_zarr` noted, where there is a group at all."""
        try:
            found = self.attributes(self.open("r"))
        except (FileNotFoundError, IncompleteStoreError):
            return {}
        return found if found.get("format") == FORMAT else {}

    def begun(self) -> bool:
        """Whether there is a group that a conversion of this library has begun, and not finished."""
        noted = self.noted()
        return bool(noted) and not noted.get("complete")

    def note(self, identity: str, **changes: Any) -> dict[str, Any]:
        """Change what is noted on the group of a conversion; give all that is.

        Raises
        ------
        IncompleteStoreError
            If the group is another conversion's.
        """
        group = self.open("r+")
        noted = self.attributes(group)
        if noted.get("id") != identity:
            raise IncompleteStoreError(
                "another conversion has taken the place of this one: call to_zarr again", self.place
            )
        if noted | changes != noted:
            group.attrs[_ATTRIBUTE] = noted | changes
        return noted | changes

    def consolidate(self) -> None:
        """Gather the metadata of all arrays in that of the group."""
        with warnings.catch_warnings():
            # Consolidated metadata works and xarray asks for it; zarr warns that the specification is not out yet.
            warnings.filterwarnings("ignore", "Consolidated metadata is currently not part", UserWarning)
            zarr.consolidate_metadata(self.open("r+").store, path=self.component, zarr_format=3)

    def create_arrays(self, group: zarr.Group, forms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Make the arrays of the group; in a directory, without any other thread.

        Parameters
        ----------
        group : zarr.Group
            The group.
        forms : mapping of str to mapping
            What `zarr.create_array` takes, by the name of the array.
        """
        if self.directory is None:
            return {name: group.create_array(name, **form, config=_CONFIG) for name, form in forms.items()}
        create = zarr.api.asynchronous.create_array
        with own_loop() as loop:
            return {
                name: zarr.Array(loop.run_until_complete(create(group.store_path, name=name, **form, config=_CONFIG)))
                for name, form in forms.items()
            }

    def writable(self, group: zarr.Group, name: str) -> Any:
        """Open an array of the group that is there, to write to it.

        Raises
        ------
        IncompleteStoreError
            If it is not.
        """
        array = group.get(name)
        if not isinstance(array, zarr.Array):
            raise IncompleteStoreError(f"{name!r} is no array of the group: mode='w' writes it anew", self.place)
        metadata: Any = array.metadata
        return zarr.Array(zarr.AsyncArray(metadata, array.store_path, _CONFIG))

    def objects(self, group: zarr.Group) -> Objects:
        """Find what the group is made of."""
        return Stored(group.store, group.path) if self.directory is None else Files(str(self.directory))

    @contextmanager
    def writing(self) -> Iterator[Put]:
        """Give what writes to arrays of the group, as long as this lasts; in a directory, without any other thread."""
        if self.directory is None:
            # The connections of a store belong to zarr's own event loop.
            yield lambda array, start, stop, entries: array.__setitem__(slice(start, stop), entries)
            return
        with own_loop() as loop:
            yield lambda array, start, stop, entries: loop.run_until_complete(
                array.async_array.setitem(slice(start, stop), entries)
            )

    @property
    def is_of_one_process(self) -> bool:
        """Whether the store lies in the memory of the process that made it."""
        return isinstance(self.store, zarr.storage.MemoryStore | dict)

    def remove_torn(self) -> None:
        """Remove what zarr left of files that it was writing when a process was killed."""
        for folder, _, files in os.walk(self.directory or ""):
            for name in files:
                if _TORN.fullmatch(name):
                    Path(folder, name).unlink(missing_ok=True)

    def remove(self, made: Sequence[Path]) -> None:
        """Leave nothing of the group; where a store can't, an empty one that says it is not whole.

        Parameters
        ----------
        made : sequence of Path
            The directories that were made to hold it.
        """
        if self.directory is not None:
            remove_directory(self.directory, "zarr.json", made)
            return
        if isinstance(self.store, str):
            fs, path = fsspec.core.url_to_fs(self.store, **(self.storage_options or {}))
            path = f"{path.rstrip('/')}/{self.component or ''}".rstrip("/")
            if "/" in path.strip("/"):  # never a whole bucket
                fs.rm(path, recursive=True)
                return
        self.create("w", {"complete": False})

    def read(self, group: zarr.Group, name: str, start: int, stop: int) -> NDArray[Any]:
        """Entries of one array that `to_zarr` wrote.

        Raises
        ------
        IncompleteStoreError
            If it is not there, or a chunk of it is damaged or gone.
        """
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise IncompleteStoreError(f"{name!r} is no array of the group", self.place)
        return read_entries(array, self.objects(group), Place(f"{self}/{name}"), start, stop)


def check_forms(forms: Mapping[str, Mapping[str, Any]]) -> None:
    """Make arrays in memory, so that what zarr refuses is refused before anything is written or replaced.

    Parameters
    ----------
    forms : mapping of str to mapping
        What `zarr.Group.create_array` takes, by the name of the array.

    Raises
    ------
    ValueError
        If zarr does not make one; its own error is the cause.
    """
    # Columns are often many of one kind, and each takes a millisecond.
    kinds: dict[str, str] = {}
    for name, form in forms.items():
        kinds.setdefault(repr([form[option] for option in form if option not in _NAMING]), name)
    store, create = zarr.storage.MemoryStore(), zarr.api.asynchronous.create_array
    with own_loop() as loop:
        for name in kinds.values():
            form = forms[name]
            try:
                loop.run_until_complete(create(store, name=name, **form))
            except Exception as error:
                codecs = ", ".join(f"{option}={form[option]!r}" for option in ("compressors", "filters"))
                raise ValueError(
                    f"zarr makes no array {name!r} of {form['dtype']} with {codecs}: {error}. Codecs are objects of "
                    f"zarr.codecs, such as zarr.codecs.ZstdCodec(level=3), or their JSON values"
                ) from error


def _is_url(store: str) -> bool:
    return "://" in store or "::" in store


def _real(store: str) -> str:
    return store if _is_url(store) else os.path.realpath(store)


def _others(directory: Path) -> Iterator[Path]:
    """Find what lies in the directory of a group and is none of its members."""
    for path in directory.iterdir():
        ours = path.name in _MARKS or path.name == JOURNAL or _TORN.fullmatch(path.name)
        if not (ours or any((path / mark).is_file() for mark in _MARKS) or _is_unborn(path)):
            yield path


def _is_unborn(path: Path) -> bool:
    """Whether a directory is what zarr leaves of an array that it was making when it was killed."""
    return path.is_dir() and all(_TORN.fullmatch(inner.name) for inner in path.iterdir())
