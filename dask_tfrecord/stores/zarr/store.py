"""Zarr groups: where they are, their objects, this library's attributes, and how arrays are created."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import fsspec.core
import numpy as np
import zarr
import zarr.abc.store
import zarr.buffer
import zarr.errors
import zarr.storage
from numpy.typing import NDArray

from dask_tfrecord.errors import (
    COMPONENT,
    OVERWRITE,
    WRITE_AGAIN,
    IncompleteStoreError,
    Location,
    SchemaError,
    StoreInUseError,
    TFRecordError,
    UnsupportedFormatError,
    add_path,
    near_misses,
    printable,
    redact,
    redact_url,
    repr_without_credentials,
)
from dask_tfrecord.shards.objects import (
    SETTLE_SECONDS,
    DirectoryObjects,
    NotAFileError,
    Objects,
    check_inside,
    objects_in,
)
from dask_tfrecord.shards.remote import call_once, check_slashes, explain_missing_extra, join
from dask_tfrecord.shards.shard import check_encodable, is_local
from dask_tfrecord.stores.journal import Journal
from dask_tfrecord.stores.zarr import conditional
from dask_tfrecord.stores.zarr.codec import TFRecordCodec
from dask_tfrecord.stores.zarr.compat import (
    array_of_document,
    chunk_key,
    encoded_chunks,
    run_sync,
    store_and_path,
)

_ATTRIBUTE = "dask_tfrecord"
# Version of the layout and of the attributes. Version 1, whose attribute was named "format", has no groups. Before
# version 4, all arrays along the rows had chunks that divide one number of rows. No release wrote version 3.
FORMAT_VERSION = 4
# Folder of runs within the group, and folder of what appends have recorded.
CHECKPOINT_FOLDER = ".dask_tfrecord"
APPENDS_FOLDER = f"{CHECKPOINT_FOLDER}.appends"
# Temporary file that zarr leaves when its process is killed.
TORN = re.compile(r".*\.[0-9a-f]{32}\.partial")
# Object of the metadata of a group or an array.
GROUP_METADATA = "zarr.json"
# Protocols whose file systems are extras of this package.
_EXTRA_PROTOCOLS = {"s3", "s3a", "gs", "gcs"}
# Bytes of a file name, on every common file system.
_NAME_NBYTES = 255


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """Location of a Zarr group, sent to workers."""

    store: Any
    component: str | None
    storage_options: dict[str, Any] | None

    __repr__ = repr_without_credentials

    @classmethod
    def from_arguments(
        cls, store: Any, component: str | None, storage_options: Mapping[str, Any] | None
    ) -> TargetGroup:
        """Locate the group of the arguments of `to_zarr`."""
        if component is not None and not isinstance(component, str):
            raise TypeError(f"component must be the path of a group within the store, a string; got {component!r:.100}")
        parts = [part for part in (component or "").replace("\\", "/").split("/") if part]
        if {".", ".."} & set(parts):
            raise ValueError(f"component must be the path of a group within the store; got {component!r}")
        if store is None or (isinstance(store, int | float | Mapping) and not isinstance(store, dict)):
            if isinstance(store, Mapping):
                raise TypeError("the data set comes before the store: write dtf.to_zarr(ds, 'train.zarr')")
            raise TypeError(f"store must be a path, a URL or a zarr store; got {store!r:.100}")
        options = dict(storage_options or {}) or None
        if type(store) is zarr.storage.LocalStore and not store.read_only:
            store = store.root
        if isinstance(store, os.PathLike):
            store = os.fspath(store)
        if isinstance(store, str) and store.startswith(("file://", "local://")):
            store, options = fsspec.core.url_to_fs(store)[1], None
        if isinstance(store, str) and "::" in store and is_local(store):
            raise ValueError(
                f"{printable(redact(store))!r}: zarr takes `::` in a path for a chain of URLs, and would write "
                f"below the name before it; choose a path without `::`"
            )
        if isinstance(store, str) and not is_url(store):
            check_slashes(store)
            store = str(Path(store).expanduser().absolute())  # workers may have another working directory
        if isinstance(store, str) and is_url(store):
            for protocol in {link.partition("://")[0] for link in store.split("::")} & _EXTRA_PROTOCOLS:
                with explain_missing_extra():
                    fsspec.core.get_filesystem_class(protocol)
        target = cls(store, "/".join(parts) or None, options)
        check_encodable(str(target.directory or ""))
        return target

    def __str__(self) -> str:
        text = redact_url(self.store) if isinstance(self.store, str) else redact(self.store)
        return printable(text + (f"/{self.component}" if self.component else ""))

    @property
    def location(self) -> Location:
        """The group, for errors."""
        return Location(str(self))

    @property
    def directory(self) -> Path | None:
        """Directory of the group; None if it is not in the local file system."""
        local = isinstance(self.store, str) and not is_url(self.store)
        return Path(self.store, self.component or "") if local else None

    def open(self, mode: Literal["r", "r+"]) -> zarr.Group:
        """Open the group, or raise FileNotFoundError, or IncompleteStoreError for invalid metadata."""
        return call_once(lambda: self._open_group(mode), str(self), "open the group")

    def _open_group(self, mode: Literal["r", "r+"], consolidated: bool | None = None) -> zarr.Group:
        try:
            return zarr.open_group(
                self.store,
                mode=mode,
                path=self.component,
                storage_options=self.storage_options,
                zarr_format=3,
                use_consolidated=consolidated,
            )
        except (zarr.errors.ContainsGroupError, zarr.errors.ContainsArrayError, FileExistsError) as error:
            raise FileNotFoundError(
                f"no Zarr group at {self}, but an array, which to_zarr did not write: da.from_zarr opens it"
            ) from error
        except (zarr.errors.GroupNotFoundError, FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"no Zarr group of format 3 at {self}" + self._found_instead()) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise IncompleteStoreError(f"the metadata of the group is not JSON ({error})", self.location) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise IncompleteStoreError(
                f"cannot read the metadata of the group ({type(error).__name__}: {error})", self.location
            ) from error

    def _found_instead(self) -> str:
        """Describe a local path without a group."""
        with suppress(Exception):
            kind = type(zarr.open(self.store, mode="r", path=self.component, storage_options=self.storage_options))
            opened = "xarray.open_zarr or zarr.open_group" if kind is zarr.Group else "da.from_zarr"
            return (
                f", but a{' group' if kind is zarr.Group else 'n array'} that to_zarr did not write: {opened} opens it"
            )
        directory = self.directory
        if directory is None:
            return ""
        if directory.is_file():
            return f", but a file. {self._read_shards()}"
        if any(directory.glob("*.parquet")):
            call = f"dtf.Dataset.from_arrays(pandas.read_parquet({self._relative()!r}))"
            return f", but a directory of Parquet files: write {call} to read them"
        if any(directory.glob("*.tfrecord*")):
            return f", but a directory of shards: write dtf.read_tfrecord({self._relative()!r})"
        if directory.exists():
            return ", but a directory without one; " + COMPONENT + " names a group within a store"
        if self.component and Path(self.store).exists():
            return f": the store exists, but does not have a group at {self.component!r}"
        if "tfrecord" in directory.name or set("*?[") & set(directory.name):
            return f". {self._read_shards()}"
        siblings = (path.name for path in directory.parent.iterdir()) if directory.parent.is_dir() else ()
        return f": the path does not exist{near_misses(directory.name, sorted(siblings))}"

    def _read_shards(self) -> str:
        return f"If these are TFRecord files, not a Zarr store, write dtf.read_tfrecord({self._relative()!r})"

    def _relative(self) -> str:
        """Spell the path of the store as a user types it."""
        path = Path(self.store)
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

    def create_parents(self) -> None:
        """Create the groups that hold the group, unless they exist."""
        parts = (self.component or "").split("/")[: -1 if self.component else 0]
        paths = ["/".join(parts[:number]) for number in range(len(parts) + 1)] if self.component else []
        for path in paths:
            parent = replace(self, component=path or None)
            with suppress(FileExistsError):
                parent.objects().create(GROUP_METADATA, group_document({}))

    def has_group(self) -> bool:
        """Return True if there are metadata of a group, or of an array, at its path."""
        return self.objects().get([GROUP_METADATA])[GROUP_METADATA] is not None

    def check_rewritable(self) -> None:
        """Raise TypeError for a zip file, whose objects cannot be replaced."""
        if isinstance(self.store, zarr.storage.ZipStore):
            raise TypeError(
                f"cannot write {self}: entries of a ZipStore are written once and by one process; write a directory "
                f"and zip it afterwards"
            )

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse names of arrays that files can't have."""
        for name in names if self.directory is not None else ():
            check_encodable(str(Path(self.directory or "", name)))
            nbytes = len(name.encode())
            if nbytes > _NAME_NBYTES:
                raise SchemaError(
                    f"feature {name[:40]!r}… becomes a file name of {nbytes} bytes, more than the {_NAME_NBYTES} bytes "
                    f"of a file name: rename it, for example by map_blocks(lambda blocks: {{'x': blocks[name]}})"
                )

    def read_attributes(self) -> dict[str, Any]:
        """Return the attributes that this library wrote; raises the errors of `open`.

        zarr would parse the consolidated metadata of all arrays, which takes a millisecond for each.
        """
        group = call_once(lambda: self._open_group("r", consolidated=False), str(self), "open the group")
        return self.own_attributes(group)

    def own_attributes(self, group: zarr.Group) -> dict[str, Any]:
        """Return the attributes that this library wrote to the group."""
        return values_of_attribute(group.attrs.asdict())

    def format_version(self, attributes: Mapping[str, Any]) -> int | None:
        """Return the version of the layout of a group; None if this library did not write it.

        Raises UnsupportedFormatError if it is newer than `FORMAT_VERSION`.
        """
        version = attributes.get("format_version", attributes.get("format"))
        if type(version) is not int or version < 1:
            return None
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the group has format version {version}, and this version of dask_tfrecord reads versions 1 to "
                f"{FORMAT_VERSION}: update dask_tfrecord, or pass " + OVERWRITE + " to write the group again",
                self.location,
            )
        return version

    def check_format(self) -> None:
        """Refuse to resume a group of a newer format version."""
        with suppress(FileNotFoundError, IncompleteStoreError):
            self.format_version(self.read_attributes())

    def stored_attributes(self) -> dict[str, Any]:
        """Return the attributes that this library wrote; none if the group does not exist, or has a newer format."""

        def document() -> bytes | None:
            try:
                return self.objects().get([GROUP_METADATA])[GROUP_METADATA]
            except (NotADirectoryError, NotAFileError):
                return None

        # zarr would search groups of format 2, too, by several requests.
        found: Any = None
        with suppress(ValueError, RecursionError):
            found = json.loads(call_once(document, str(self), "open the group") or b"null")
        if not isinstance(found, dict) or found.get("node_type") != "group":
            return {}
        attributes = found.get("attributes")
        own = values_of_attribute(attributes) if isinstance(attributes, dict) else {}
        try:
            return {} if self.format_version(own) is None else own
        except UnsupportedFormatError:
            return {}

    def stored_arrays(self, names: Iterable[str]) -> dict[str, Any]:
        """Open arrays of the group; raise IncompleteStoreError if one does not exist."""
        arrays, group = {}, self.open("r+")
        for name in names:
            array = group.get(name)
            if not isinstance(array, zarr.Array):
                raise IncompleteStoreError(
                    f"{name!r} is not an array of the group: " + OVERWRITE + " writes the group again",
                    self.location,
                )
            arrays[name] = array
        return arrays

    def new_arrays(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays of the group whose metadata are not stored yet, by name."""
        store, path = store_and_path(self.store, self.component or "", self.storage_options)
        return {
            name: array_of_document(store, f"{path}/{name}".lstrip("/"), document)
            for name, document in documents.items()
        }

    def read_entries(
        self, array: Any, location: Location, start: int, stop: int, *, encoded: bool = False
    ) -> NDArray[Any]:
        """Read entries of an array of the group like `read_entries`; if `encoded`, their stored bytes, in one shard."""
        objects = self.objects()
        if not encoded:
            return read_entries(array, objects, location, start, stop)
        count = array.shards[0]
        name = f"{array.basename}/{chunk_key(array, start // count)}"
        shard = objects.get([name])[name]
        if shard is None:
            raise IncompleteStoreError(f"{name} is missing: " + WRITE_AGAIN, location)
        entries = np.empty(stop - start, object)
        entries[:] = encoded_chunks(shard, count)[start % count :][: stop - start]
        return entries

    def objects(self, group: zarr.Group | None = None) -> GroupObjects:
        """Return the objects at the path of the group, which may not exist, or of one that is open."""
        if self.directory is not None:
            return DirectoryObjects(str(self.directory))
        if group is not None:
            return StoreObjects(group.store, group.path)
        return StoreObjects(*store_and_path(self.store, self.component or "", self.storage_options))

    def journal(self) -> Journal:
        """Return the journal of the group."""
        if isinstance(self.store, str):
            objects: Objects = objects_in(
                join(self.store, self.component) if self.component else self.store, self.storage_options
            )
        else:
            objects = self.objects()
        return Journal(objects, CLAIM, "this group", self.location)

    @property
    def is_in_memory(self) -> bool:
        """True if the store is in the memory of the process that created it."""
        return isinstance(self.store, zarr.storage.MemoryStore | dict)

    def torn(self, folders: Iterable[str]) -> list[str]:
        """List the temporary files that zarr and claims left in some folders when a process was killed."""
        objects = self.objects()
        if not isinstance(objects, DirectoryObjects):
            return []
        found = ((folder, name) for folder in folders for name in objects.children(folder))
        return [f"{folder}/{name}".lstrip("/") for folder, name in found if TORN.fullmatch(name)]


def stored_attribute(own: Mapping[str, Any]) -> dict[str, str]:
    """Return the attribute of a group that holds values of this library as JSON text, which NetCDF can store too."""
    return {_ATTRIBUTE: json.dumps(own)}


def values_of_attribute(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return this library's values among a group's attributes, as JSON text or an earlier mapping."""
    found = attributes.get(_ATTRIBUTE)
    if isinstance(found, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(found)
    return dict(found) if isinstance(found, Mapping) else {}


def group_document(attributes: Mapping[str, Any]) -> bytes:
    """Return the metadata of a group, as zarr writes them."""
    return json.dumps({"attributes": attributes, "zarr_format": 3, "node_type": "group"}, indent=2).encode()


def is_url(store: str) -> bool:
    """Return True for a URL, or a chain of them."""
    return "://" in store or "::" in store


# Name of the claim of a run on a group, and prefix of names that belong to claims.
CLAIM = ".dask_tfrecord.claim"


# Concurrent requests to a store.
_REQUESTS = 64
# Objects whose sizes are looked up one by one; more are listed.
LOOKED_UP = 8

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoreObjects:
    """Objects below a path of a store."""

    store: zarr.abc.store.Store
    path: str
    # Of a run: raises unless it may replace and remove objects. With it, nothing is put over the object of another run.
    guard: Callable[[], object] | None = None

    def put(self, name: str, value: bytes) -> None:
        """Write an object atomically."""
        run_sync(self._set(self._key(name), value))

    def put_all(self, values: Mapping[str, bytes | memoryview]) -> None:
        """Write objects that do not exist yet, many concurrently.

        A run replaces those that exist only if it has the group still, and only in the version that it has found then.
        """
        if self.guard is None:
            self._each(values, lambda key: self._set(key, values[self._name(key)]))
            return
        created = self._each(values, lambda key: conditional.create(self.store, key, values[self._name(key)]))
        unconditional = [name for name, done in created.items() if done is None]
        self._each(unconditional, lambda key: self._set(key, values[self._name(key)]))
        for name in (name for name, done in created.items() if done is False):
            self.change(name, partial(lambda value, found: value, values[name]))

    def change(self, name: str, changed: Callable[[bytes | None], bytes | memoryview]) -> None:
        """Replace an object, or create it, by a function of what it is now."""
        key = self._key(name)
        # In this order: a run that has lost the group between two steps has an outdated version.
        version = None if self.guard is None else run_sync(conditional.version(self.store, key))
        found = self.get([name])[name]
        if self.guard is not None:
            self.guard()
        value = changed(found)
        if value == found:
            return
        done: bool | None = None
        if self.guard is not None and found is None:
            done = run_sync(conditional.create(self.store, key, value))
        elif self.guard is not None:
            done = run_sync(conditional.replace(self.store, key, value, version))
        if done is None:
            run_sync(self._set(key, value))
        elif not done and self.get([name])[name] != value:
            raise StoreInUseError(
                f"another run has written {name} meanwhile. This one writes nothing more", Location(redact(self.store))
            )

    async def _set(self, key: str, value: bytes | memoryview) -> None:
        await self.store.set(key, zarr.buffer.cpu.Buffer.from_bytes(value))

    def create(self, name: str, value: bytes) -> bool:
        """Write an object unless it exists; return True if it was written.

        Exclusive in memory, on local disks, through obstore, and by the clients of S3, Google and Azure. With other
        stores the object is read back after `SETTLE_SECONDS` seconds, and the last of several concurrent writers wins.
        """
        done = run_sync(conditional.create(self.store, self._key(name), value))
        if done is None:
            run_sync(self._settle(self._key(name), value))
        return bool(done) or self.get([name])[name] == value

    async def _settle(self, key: str, value: bytes) -> None:
        await self.store.set_if_not_exists(key, zarr.buffer.cpu.Buffer.from_bytes(value))
        await asyncio.sleep(SETTLE_SECONDS)

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None for a missing one."""
        return self._each(names, lambda key: conditional.read(self.store, key))

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each object in bytes; None for a missing one. Many are listed, if listings have sizes."""
        names, lists = list(names), conditional.lists_sizes(self.store)
        counts = Counter(name.partition("/")[0] for name in (names if len(names) > LOOKED_UP and lists else ()))
        many = {folder for folder, count in counts.items() if count > 1}
        if many:
            self._invalidate()

        async def sizes(key: str) -> Mapping[str, int]:
            if self._name(key) in many:
                return await conditional.listed_sizes(self.store, key)
            try:
                return {key: await self.store.getsize(key)}
            except (FileNotFoundError, KeyError):
                # Icechunk raises KeyError for an array that it does not have.
                return {}

        asked = [*sorted(many), *(name for name in names if name.partition("/")[0] not in many)]
        found = {key: size for answer in self._each(asked, sizes).values() for key, size in answer.items()}
        return {name: found.get(self._key(name)) for name in names}

    def names(self, below: str) -> list[str]:
        """List the names of all objects below a path."""

        async def found() -> list[str]:
            # `list_prefix` returns keys relative to the root of the store.
            prefix = self._key(below) if below else self.path
            return [key async for key in self.store.list_prefix(f"{prefix}/" if prefix else "")]

        self._invalidate()
        try:
            return [self._name(key) for key in run_sync(found())]
        except FileNotFoundError:
            return []

    def children(self, below: str) -> list[str]:
        """List the names in a folder."""
        self._invalidate()
        try:
            found = run_sync(conditional.children(self.store, self._key(below) if below else self.path))
            return sorted(key.rstrip("/").rpartition("/")[2] for key in found)
        except FileNotFoundError:
            return []

    def drop(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is ignored."""
        names = list(names)
        if self.guard is not None and names:
            self.guard()
        keys = [self._key(name) for name in names]
        if len(names) > 1 and run_sync(conditional.delete(self.store, keys)):
            return
        # Deleting a missing key is a no-op.
        self._each(names, self.store.delete)

    def remove(self, below: str) -> None:
        """Delete an object, or everything below a path."""
        # Where stores are directories, a folder is not an object.
        self.drop(self.names(below) or [below])
        self._remove_directory(below)

    def clear(self, keeps: Callable[[str], bool], first: Set[str]) -> None:
        """Delete everything except names for which `keeps` returns True.

        Objects that have one of the names `first`, in any folder, go before all others.
        """
        self.drop(name for name in self.names("") if not keeps(name) and name.rpartition("/")[2] in first)
        # Some stores delete an array with its metadata.
        self.drop(name for name in self.names("") if not keeps(name))
        for name in self.children(""):
            if not keeps(f"{name}/"):
                self._remove_directory(name)

    def _remove_directory(self, name: str) -> None:
        """Remove an empty directory, in stores that keep them; elsewhere another run may have written there again."""
        if not isinstance(self.store, zarr.storage.FsspecStore | zarr.storage.ObjectStore):
            run_sync(self.store.delete_dir(self._key(name)))

    def _invalidate(self) -> None:
        """Forget listings of the client, which lack objects of other processes."""
        invalidate = getattr(getattr(self.store, "fs", None), "invalidate_cache", None)
        if invalidate is not None:
            invalidate()

    def _key(self, name: str) -> str:
        check_inside(name, str(self.store))
        return f"{self.path}/{name}" if self.path else name

    def _name(self, key: str) -> str:
        return key[len(self.path) + 1 if self.path else 0 :]

    def _each(self, names: Iterable[str], request: Callable[[str], Coroutine[Any, Any, Answer]]) -> dict[str, Answer]:
        """Send a request for each name, many concurrently; raise the first error when all have ended."""
        names = list(names)
        if not names:
            return {}

        async def answers() -> list[Answer | BaseException]:
            gate = asyncio.Semaphore(_REQUESTS)

            async def answer(name: str) -> Answer:
                async with gate:
                    return await request(self._key(name))

            found = await asyncio.gather(*map(answer, names), return_exceptions=True)
            for each in found:
                if isinstance(each, BaseException):
                    raise each
            return found

        return dict(zip(names, run_sync(answers()), strict=True))  # type: ignore[arg-type]


# Errors of codecs for damaged or truncated chunks.
_DAMAGED = (RuntimeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile)
# Entries of a chunk that are compared with the fill value. If all of them equal it, the chunk may be missing, and its
# object is looked up.
_SAMPLED = 16


# Objects below the path of a group.
GroupObjects = DirectoryObjects | StoreObjects


def read_entries(array: Any, objects: GroupObjects, location: Location, start: int, stop: int) -> NDArray[Any]:
    """Read entries of an array, whose chunks or shards span all axes but the first.

    Raises IncompleteStoreError if a chunk is damaged or missing; an `OSError` names the chunk.
    """
    is_virtual = isinstance(array.serializer, TFRecordCodec)
    # Chunks of virtual arrays may differ in length, for which zarr lacks `chunks`.
    unit = 1 if is_virtual else (array.shards or array.chunks)[0]
    try:
        entries = np.asarray(array[start:stop])
    except TFRecordError:
        raise
    except OSError as error:
        if is_virtual:  # the error names the shard
            raise
        numbers = range(start // unit, -(-stop // unit))
        if error.filename is None and len(numbers) > 1:
            # The one that can't be read names itself.
            for number in numbers:
                read_entries(array, objects, location, number * unit, min((number + 1) * unit, array.shape[0]))
        add_path(
            error,
            f"{location.file.removesuffix(f'/{array.basename}')}/{array.basename}/{chunk_key(array, start // unit)}",
        )
        raise
    except _DAMAGED as error:
        raise IncompleteStoreError(
            f"cannot read entries {start:,} to {stop:,}: {type(error).__name__}: {error}. The chunk was changed after "
            f"it was written; " + WRITE_AGAIN,
            location,
        ) from error
    if is_virtual:
        return entries  # it raises for a missing chunk
    suspects: dict[str, range] = {}
    for number in range(start // unit, -(-(start + len(entries)) // unit)):
        rows = range(number * unit, min((number + 1) * unit, array.shape[0]))
        rows_read = entries[max(rows.start - start, 0) : rows.stop - start]
        if rows_read.size and _is_filled(rows_read[:: -(-len(rows_read) // _SAMPLED)], array.fill_value):
            suspects[f"{array.basename}/{chunk_key(array, number)}"] = rows
    sizes = objects.sizes(suspects) if suspects else {}
    missing = next((name for name, size in sizes.items() if size is None), None)
    if missing is not None:
        rows = suspects[missing]
        raise IncompleteStoreError(
            f"{missing} is missing: entries {rows.start:,} to {rows.stop:,}; zarr reads each of them as "
            f"{np.asarray(array.fill_value).item()!r}. " + WRITE_AGAIN,
            location,
        )
    return entries


def _is_filled(entries: NDArray[Any], value: Any) -> bool:
    wanted = np.broadcast_to(np.asarray(value, entries.dtype), entries.shape)
    # NumPy 2.5 warns of signaling NaNs, which data may hold.
    with np.errstate(invalid="ignore"):
        return np.array_equal(entries, wanted, equal_nan=entries.dtype.kind in "fc")
