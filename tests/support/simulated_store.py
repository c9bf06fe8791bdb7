"""An object store of a simulation, as the client of S3 shows it: each request is a step of the run that sends it.

It has conditional puts, and no renames: an object is put if it is absent, or if it still has the version that was
seen; the version is the MD5 of the content, as in S3. Listings and reads see what was written before.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem

from support.simulation import loop_of_run, take_step

PROTOCOL = "simulated"


@dataclass(frozen=True)
class _Object:
    value: bytes
    # Of the clock of the simulation.
    modified: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.value).hexdigest()}"'

    def info(self, path: str) -> dict[str, Any]:
        modified = datetime.fromtimestamp(self.modified, UTC)
        return {"name": path, "size": len(self.value), "type": "file", "ETag": self.etag, "LastModified": modified}


class S3FileSystem(AsyncFileSystem):  # type: ignore[misc]
    """The client, with the methods of s3fs that this library and zarr call. Its name selects conditional puts."""

    protocol = PROTOCOL
    cachable = False
    # Of all clients: objects by path.
    objects: ClassVar[dict[str, _Object]] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Event loop of the run that calls: while a run is stopped, the loops of others go on."""
        return loop_of_run() or self._loop  # type: ignore[no-any-return]

    @classmethod
    def restore(cls, saved: str, path: str) -> None:
        """Make a folder what another one is."""
        for name in [name for name in cls.objects if name.startswith(f"{path}/")]:
            del cls.objects[name]
        cls.objects |= {
            f"{path}{name.removeprefix(saved)}": each
            for name, each in cls.objects.items()
            if name.startswith(f"{saved}/")
        }

    def _take(self, what: str, path: str) -> None:
        take_step(what, f"/{path}")

    def _found(self, path: str) -> _Object:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", IfMatch: str | None = None) -> None:
        path = self._strip_protocol(path)
        self._take("create" if mode == "create" else "put" if IfMatch is None else "replace", path)
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        if IfMatch is not None and self._found(path).etag != IfMatch:
            raise OSError("PreconditionFailed")
        self.objects[path] = _Object(bytes(value))

    async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        await self._pipe_file(rpath, Path(lpath).read_bytes())

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1, path2 = map(self._strip_protocol, (path1, path2))
        self._take("copy", path2)
        self.objects[path2] = _Object(self._found(path1).value)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._rm([path])

    async def _rm(self, path: str | list[str], recursive: bool = False, **_: Any) -> None:
        paths = [self._strip_protocol(each) for each in ([path] if isinstance(path, str) else path)]
        self._take("delete", paths[0])
        below = tuple(f"{each}/" for each in paths) if recursive else ()
        for name in [name for name in self.objects if name in paths or name.startswith(below)]:
            del self.objects[name]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        self._take("get", path)
        return self._found(path).value[start:end]

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Return bucket, key and version of a path."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key, None

    async def _call_s3(self, method: str, *, Bucket: str, Key: str, Range: str = "", **_: Any) -> dict[str, Any]:
        assert method == "get_object"
        self._take("get", f"{Bucket}/{Key}")
        found = self._found(f"{Bucket}/{Key}")
        start, stop = 0, len(found.value)
        if Range:
            first, last = Range.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1, stop)
        return {
            "Body": _Body(found.value[start:stop]),
            "ETag": found.etag,
            "ContentRange": f"bytes {start}-{stop - 1}/{len(found.value)}",
        }

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        self._take("head", path)
        if path in self.objects:
            return self.objects[path].info(path)
        if any(name.startswith(f"{path}/") for name in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    async def _lsdir(self, path: str, **_: Any) -> list[dict[str, Any]]:
        path = self._strip_protocol(path).rstrip("/")
        self._take("list", path)
        found = {}
        for name, each in self.objects.items():
            if name.startswith(f"{path}/"):
                inner, _separator, more = name[len(path) + 1 :].partition("/")
                child = f"{path}/{inner}"
                found[child] = {"name": child, "size": 0, "type": "directory"} if more else each.info(child)
        return [found[name] for name in sorted(found)]

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = await self._lsdir(path)
        if not found:
            raise FileNotFoundError(path)
        return found if detail else [info["name"] for info in found]

    async def _find(self, path: str, detail: bool = False, **_: Any) -> Any:
        path = self._strip_protocol(path).rstrip("/")
        self._take("list", path)
        found = {
            name: each.info(name) for name, each in sorted(self.objects.items()) if f"{name}/".startswith(f"{path}/")
        }
        return found if detail else [*found]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self.cat_file(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: listings are not kept."""


class _Body(io.BytesIO):
    """Body of a response."""

    async def read(self, count: int = -1) -> bytes:  # type: ignore[override]
        return super().read(count)


fsspec.register_implementation(PROTOCOL, S3FileSystem, clobber=True)
