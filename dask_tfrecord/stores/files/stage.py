"""The folder of a run of files: what its tasks have written, and how readers get it.

``NAME`` is the name of a file below the common directory of all files of the output, as readers find it::

    .dask-tfrecord-…/new/NAME                   a complete file that no reader looks for
    .dask-tfrecord-…/publish-TOKEN/commit.json  what a run has begun to publish
    .dask-tfrecord-…/publish-TOKEN/new/NAME     from here it is renamed to NAME
    .dask-tfrecord-…/publish-TOKEN/old/NAME     what readers found before

A run that wakes after another one has taken over renames nothing: its folder has another name by then. In an object
store a folder can't be renamed: new objects stay in ``new``, and are copied from there.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dask_tfrecord.errors import IncompleteStoreError, Location, redact_url, repr_without_credentials
from dask_tfrecord.shards.objects import (
    PUBLISHING,
    DirectoryObjects,
    FileObjects,
    StoredFile,
    UrlObjects,
    file_identity,
    objects_in,
)
from dask_tfrecord.shards.remote import join
from dask_tfrecord.stores.documents import Count, ObjectName, parse

_COMMIT = "commit.json"
# Characters of a name in an error.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Commit:
    """Files that a run has begun to publish, in their order, and the identity of all of them."""

    # Size and version of each file.
    files: Mapping[ObjectName, tuple[Count, str | None]]
    # Document that describes the others: the last one; empty without one.
    last: str
    # Identity of what they add, and the number of the first one.
    identity: str
    first: Count = 0
    # Names of files that readers found before; None in a record of an earlier version.
    replaced: tuple[ObjectName, ...] | None = None

    def to_json(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Stage:
    """Folder of a run below a directory or URL, with the files that readers will find in that directory."""

    base: str
    # Name of the folder below it.
    folder: str
    storage_options: Mapping[str, Any]
    # Returns whether a name is one of the files of this output: no other one is moved.
    is_own: Callable[[str], bool]

    __repr__ = repr_without_credentials

    @property
    def _objects(self) -> FileObjects:
        return objects_in(self.base, self.storage_options, makes_directory=False)

    @property
    def _directory(self) -> Path | None:
        """The directory with the folder; None in an object store, which lacks directories."""
        objects = self._objects
        return Path(objects.root) if isinstance(objects, DirectoryObjects) else None

    def path(self, name: str) -> str:
        """Return the path or URL of a new file."""
        return join(self.base, f"{self.folder}/new/{name}")

    def held(self) -> set[str]:
        """Return the names of the new files, complete or not."""
        return self._names(f"{self.folder}/new")

    def make(self, names: Iterable[str]) -> None:
        """Make the folder, with the directories of new files."""
        directory = self._directory
        if directory is not None:
            for parent in {f"new/{name}".rpartition("/")[0] for name in names} | {"new"}:
                (directory / self.folder / parent).mkdir(parents=True, exist_ok=True)

    def add_directories(self, names: Iterable[str]) -> None:
        """Make the directories of more new files, unless the folder is gone."""
        self._make(f"{self.folder}/new", [f"{self.folder}/new/{name}" for name in names])

    def tidy(self) -> None:
        """Remove the folder if it is empty; tasks may be writing to it."""
        if self._directory is not None:
            for folder, *_ in os.walk(self._directory / self.folder, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106

    def publish(
        self,
        token: str,
        new: Mapping[str, StoredFile],
        replaced: Collection[str],
        last: str,
        identity: str,
        first: int,
        check: Callable[[], object],
    ) -> None:
        """Show new files to readers in place of others; `last` describes them, and is the last of them.

        If it replaces other files than `last`, it takes `last` away first, so that readers find an error, not a
        mixture. `check` raises an error if the run does not own the output any more.
        """
        objects, place, directory = self._objects, f"{self.folder}/publish-{token}", self._directory
        source = f"{self.folder}/new"
        self._make(place, [f"{place}/old/{name}" for name in replaced])
        files = {name: (file.size, file.version) for name, file in new.items()}
        objects.put(f"{place}/{_COMMIT}", Commit(files, last, identity, first, (*replaced,)).to_json())
        if directory is not None:
            objects.rename(source, f"{place}/new")
            source = f"{place}/new"
            for parent in {name.rpartition("/")[0] for name in new}:
                (directory / parent).mkdir(parents=True, exist_ok=True)
        others = [name for name in replaced if name != last]
        if last in replaced and others:
            others.insert(0, last)
        elif last in replaced:
            # Readers find it until the new one takes its place.
            objects.put(f"{place}/old/{last}", objects.get([last])[last] or b"")
        for name in others:
            check()
            if isinstance(objects, UrlObjects) and name in new:
                # Emptied, because a client can't delete on a condition: a run that wakes late would delete a new file.
                objects.copy(name, f"{place}/old/{name}")
                objects.empty(name, check)
            else:
                objects.rename(name, f"{place}/old/{name}")
        for name in new:
            check()
            objects.rename(f"{source}/{name}", name)

    def recover(self) -> Commit | None:
        """Move back what a run has published in part; return what a run has published completely.

        That stays recorded until `remove`, so the caller must record it elsewhere first.
        """
        whole = None
        for name in self._places():
            place = f"{self.folder}/{name}"
            if self._directory is not None:
                # The run that publishes may wake: its next rename fails.
                place = f"{self.folder}/taken-{uuid.uuid4().hex}"
                try:
                    self._objects.rename(f"{self.folder}/{name}", place)
                except FileNotFoundError:
                    continue
            whole = self._recover(place) or whole
        return whole

    def _recover(self, place: str) -> Commit | None:
        objects, directory = self._objects, self._directory
        commit, new = self._commit(place), f"{self.folder}/new"
        unpublished = self._names(f"{place}/new") | self.held()
        if commit is not None and self._is_whole(commit, unpublished):
            if directory is not None or any("/" not in name for name in self._names(self.folder)):
                return commit
            # A run that woke has recorded it after the one that took over had removed its files and their records.
            commit = None
        if commit is not None:
            stay = unpublished
            if directory is None and commit.replaced is not None:
                # A rename that was killed may have copied a file, and not removed the original.
                stay = unpublished & {*commit.replaced}
            for name in reversed([*commit.files]):
                if name not in stay and self._is(name, commit.files[name]):
                    objects.rename(name, f"{new if directory is None else f'{place}/new'}/{name}")
            for name in sorted(self._names(f"{place}/old"), key=lambda name: name == commit.last):
                if self.is_own(name):
                    if directory is not None:
                        (directory / name).parent.mkdir(parents=True, exist_ok=True)
                    objects.rename(f"{place}/old/{name}", name)
        if directory is not None:
            back = self._names(f"{place}/new")
            self.add_directories(back)
            for name in back:
                objects.rename(f"{place}/new/{name}", f"{new}/{name}")
        objects.remove(place)
        return None

    def _is_whole(self, commit: Commit, unpublished: Set[str]) -> bool:
        """Return whether readers find all files of a run, and the document that describes them."""
        left = unpublished & commit.files.keys()
        if self._directory is not None or left != {commit.last}:
            return not left
        # In an object store, a rename that was killed has copied the document, and not removed the original.
        names = [commit.last, f"{self.folder}/new/{commit.last}"]
        shown, new = self._objects.get(names).values()
        return shown is not None and shown == new

    def _places(self) -> list[str]:
        """List the names of the folders with what runs have begun to publish."""
        folders = {name.partition("/")[0] for name in self._names(self.folder)}
        return sorted(name for name in folders if name.startswith(PUBLISHING))

    def _commit(self, place: str) -> Commit | None:
        """Read what a run has begun to publish; None if nothing, or if the record is not one of this output."""
        name = f"{place}/{_COMMIT}"
        data = self._objects.get([name])[name]
        if data is None:
            return None
        where = Location(redact_url(self.base))
        commit = parse(Commit, data, _COMMIT, where)
        for each in (*commit.files, *([commit.last] if commit.last else [])):
            if not self.is_own(each):
                raise IncompleteStoreError(f"{_COMMIT} has {each[:_SHOWN]!r}, which is no file of this output", where)
        return commit

    def remove(self) -> None:
        """Remove the folder; in a directory under another name, so that no late task writes to it."""
        objects, gone = self._objects, self.folder
        if self._directory is not None:
            gone = f"{self.folder.removesuffix('.gone')}.gone"
            objects.remove(gone)
            with suppress(FileNotFoundError):
                objects.rename(self.folder, gone)
        objects.remove(gone)

    def _is(self, name: str, file: tuple[int, str | None]) -> bool:
        """Return whether a file is the one that was published; a copy in an object store has another version."""
        found = file_identity(join(self.base, name), self.storage_options)
        compared = 2 if self._directory is not None else 1
        return found is not None and found[:compared] == file[:compared]

    def _names(self, below: str) -> set[str]:
        """Return the names of the files below a folder."""
        try:
            return {name[len(below) + 1 :] for name in self._objects.names(below)}
        except NotADirectoryError:
            return set()

    def _make(self, folder: str, paths: Iterable[str]) -> None:
        """Make a folder and the directories of paths in it, and no directory above it."""
        directory = self._directory
        if directory is None:
            return
        needed = {folder}
        for path in paths:
            parent = path.rpartition("/")[0]
            while len(parent) > len(folder):
                needed.add(parent)
                parent = parent.rpartition("/")[0]
        for name in sorted(needed, key=len):
            with suppress(FileExistsError):
                os.mkdir(directory / name)  # noqa: PTH102
