"""Stores of obstore as file systems of fsspec, with the paths in the store.

``FsspecStore`` of obstore creates its stores from options: https://developmentseed.org/obstore/latest/api/fsspec/
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from dask_tfrecord.errors import Location, StorageError, redact

PROTOCOL = "obstore"
_NEEDED = ("head", "get", "list_with_delimiter")
_PART_NBYTES = 1 << 20
# obstore has a class for these statuses, but not in listings.
_DENIED = re.compile(r"status code: 40[13]\b")


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """File system of one store, which has its own timeouts and retries.

    It calls no asynchronous method: processes abort at their exit after those.
    """

    protocol = PROTOCOL
    # fsspec would take two stores of the same text for one.
    cachable = False

    def __init__(self, store: Any) -> None:
        if not all(hasattr(store, name) for name in _NEEDED):
            kind = f"{type(store).__module__}.{type(store).__qualname__}"
            raise TypeError(
                f"storage_options['store'] must be a store of obstore, such as obstore.store.S3Store; got {kind}"
            )
        super().__init__()
        self.store = store

    def read(self, path: str, most: float, **options: Any) -> tuple[bytes, dict[str, Any]]:
        """Return up to `most` bytes of a response, and the properties of the object that they are from."""
        parts: list[bytes] = []
        with _plain_errors(path):
            response = self.store.get(path, options=options)
            for part in response.stream(min_chunk_size=_PART_NBYTES):
                parts.append(bytes(part)[: int(min(most, len(part)))])
                most -= len(parts[-1])
                if most <= 0:
                    break
            return b"".join(parts), _properties(response.meta)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: Any) -> bytes:
        """Read an object, or a range of it."""
        if end is not None:
            return self.read(path, end - (start or 0), range=(start or 0, end))[0]
        return self.read(path, math.inf, **({"range": {"offset": start}} if start else {}))[0]

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """Return the properties of an object, or of a directory that holds objects."""
        if path:
            with suppress(FileNotFoundError), _plain_errors(path):
                return _properties(self.store.head(path))
            try:
                self.ls(path)
            except NotImplementedError:
                raise FileNotFoundError(path) from None
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        """List a directory."""
        if any(kind.__name__ == "HTTPStore" for kind in type(self.store).__mro__):
            # It requests a listing by WebDAV, and repeats that for seconds.
            raise NotImplementedError("servers of HTTPStore do not list files; pass the path of each shard")
        with _plain_errors(path):
            found = self.store.list_with_delimiter(path)
        infos = [
            *map(_properties, found["objects"]),
            *({"name": name, "size": 0, "type": "directory"} for name in found["common_prefixes"]),
        ]
        if path and not infos:
            raise FileNotFoundError(path)
        return infos if detail else [info["name"] for info in infos]

    def pipe_file(self, path: str, value: bytes, mode: str | Mapping[str, str] = "overwrite", **_options: Any) -> None:
        """Write an object; with the mode ``"create"``, unless it exists; with a version, unless it has another one."""
        with _plain_errors(path):
            self.store.put(path, value, mode=mode)

    def put_file(self, lpath: str, rpath: str, **_options: Any) -> None:
        """Upload a local file."""
        with _plain_errors(rpath):
            self.store.put(rpath, Path(lpath))

    def cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        """Copy an object within the store."""
        with _plain_errors(path1):
            self.store.copy(path1, path2)

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        with _plain_errors(path):
            self.store.delete(path)

    def rm(self, path: str, **_options: Any) -> None:
        """Delete all objects in a directory. The directory itself is not an object."""
        files = [*self.find(path)]
        with _plain_errors(path):
            self.store.delete(files)


def _properties(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {**meta, "name": meta["path"], "type": "file"}


@contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    """Raise errors of obstore as builtin ones or as StorageError, with the first of their paragraphs."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        text = redact(str(error).partition("\n\n")[0].strip(" \n:"))
        failed: Exception = StorageError(text, Location(f"{PROTOCOL}://{path}"))
        if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
            failed = FileExistsError(text)
        elif isinstance(error, NotImplementedError):
            failed = NotImplementedError(text)
        elif _DENIED.search(text):
            failed = PermissionError(text)
    else:
        return
    # Not in the handler: the context of the error would show the whole text of obstore, credentials too.
    raise failed
