"""Byte ranges of files that are not on this machine, each asked for again when it fails in passing.

Object stores and HTTP servers are asked for ranges by themselves: no connection stays open between two of them, and
each is checked to come from the file that was listed. What has no such calls (archives, sftp, caches) is opened as a
file. A server without ranges is read from its beginning. Imports errors, retry and shards only.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from dask_tfrecord.errors import Place, ShardChangedError, ShardNotFoundError
from dask_tfrecord.storage.retry import http_status, persist
from dask_tfrecord.storage.shards import Shard, has_changed

__all__ = ["Fetch", "changed", "gone", "open_ranges"]

# What a server without ranges sends is dropped up to where reading begins, in pieces.
_DROP = 1 << 20

# Seconds without a byte after which a connection counts as lost. A file may take as long as it takes.
_SILENCE = 60


class Ranges(Protocol):
    """One file, from which ranges are asked for."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``; fewer only if the file is shorter."""

    def close(self) -> None:
        """Give back what is open."""


class Fetch:
    """Ranges of one file, whole or not at all.

    Parameters
    ----------
    shard : Shard
        As it was listed.
    ranges : Ranges
        How to get at its bytes.
    look : callable
        Says what the file is now.
    """

    def __init__(self, shard: Shard, ranges: Ranges, look: Callable[[], dict[str, Any]]) -> None:
        self._shard = shard
        self._ranges = ranges
        self._look = look
        self._stopped = threading.Event()

    def __call__(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``.

        Raises
        ------
        ShardChangedError
            If the file is not the one that was listed.
        ShardNotFoundError
            If it is not there any more.
        StorageError
            If the store goes on failing.
        """
        what = f"read bytes {start} to {stop}"
        try:
            return persist(lambda: self._whole(start, stop), self._shard.path, what, self._stopped)
        except FileNotFoundError as error:
            raise gone(self._shard) from error

    def stop(self) -> None:
        """Let an attempt be the last one."""
        self._stopped.set()

    def close(self) -> None:
        """Give back what is open."""
        self.stop()
        self._ranges.close()

    def _whole(self, start: int, stop: int) -> bytes:
        try:
            data = self._ranges.read(start, stop)
        except Exception as error:
            # A condition that does not hold, or a range that begins past the end.
            if http_status(error) in (412, 416):
                raise changed(self._shard) from error
            raise
        if len(data) == stop - start:
            return data
        info = self._look()
        if has_changed(self._shard, info):
            raise changed(self._shard, info.get("size"))
        raise ConnectionError(f"{len(data)} of {stop - start} bytes came")


def open_ranges(shard: Shard) -> Fetch:
    """Make ready to read ranges of a file.

    Raises
    ------
    ShardChangedError
        If the file is not the one that was listed, where that is known before a byte is read.
    """
    fs, path = fsspec.core.url_to_fs(shard.path, **shard.storage_options)
    kinds = {kind.__name__ for kind in type(fs).__mro__}
    if "S3FileSystem" in kinds:
        return Fetch(shard, _S3Ranges(shard, fs, path), lambda: _look(fs, path))
    if "HTTPFileSystem" in kinds:
        return Fetch(shard, _HttpRanges(shard, fs, path), lambda: _look(fs, path))
    info = persist(lambda: _look(fs, path), shard.path, "look at the file")
    if has_changed(shard, info):
        raise changed(shard, info.get("size"))
    ranges = _CatRanges(fs, path) if issubclass(type(fs), AsyncFileSystem) else _FileRanges(fs, path)
    return Fetch(shard, ranges, lambda: _look(fs, path))


def changed(shard: Shard, size: int | None = None) -> ShardChangedError:
    """Say that a file is not what it was."""
    if size is not None and size != shard.size:
        what = f"the file had {shard.size} bytes when it was listed and ends after {size} now: it was "
        what += "truncated or replaced" if size < shard.size else "written on or replaced"
    else:
        what = "the file has changed since it was listed: it was written to or replaced"
    return ShardChangedError(f"{what}; read the collection again", Place(shard.path))


def gone(shard: Shard) -> ShardNotFoundError:
    """Say that a file is not there any more."""
    return ShardNotFoundError("the file is gone since it was listed; read the collection again", Place(shard.path))


def _look(fs: Any, path: str) -> dict[str, Any]:
    fs.invalidate_cache()
    return dict(fs.info(path))


class _S3Ranges:
    """An object of S3: the server itself checks each range to be of the object that was listed."""

    def __init__(self, shard: Shard, fs: Any, path: str) -> None:
        self._fs = fs
        self._shard = shard
        bucket, key, version = fs.split_path(path)
        self._object = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        if not getattr(fs, "local_expiry_check", False):
            # The server of VAST does not know the condition, which is what the option is for.
            self._object["IfMatch"] = f'"{shard.version}"'

    def read(self, start: int, stop: int) -> bytes:
        response = self._fs.call_s3("get_object", Range=f"bytes={start}-{stop - 1}", **self._object)
        data: bytes = sync(self._fs.loop, self._body, response)
        return data

    async def _body(self, response: dict[str, Any]) -> bytes:
        body = response["Body"]
        try:
            if has_changed(self._shard, {"ETag": response.get("ETag")}):
                raise changed(self._shard)
            data: bytes = await body.read()
            return data
        finally:
            body.close()

    def close(self) -> None:
        pass


class _HttpRanges:
    """A file of a web server, with ranges or without."""

    def __init__(self, shard: Shard, fs: Any, path: str) -> None:
        self._shard = shard
        self._fs = fs
        self._url = fs.encode_url(path)
        # Where the server sends the whole file, it is read on from range to range.
        self._whole: Any = None
        self._at = 0

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = sync(self._fs.loop, self._read, start, stop)
        return data

    def close(self) -> None:
        if self._whole is not None:
            self._fs.loop.call_soon_threadsafe(self._whole.close)
            self._whole = None

    async def _read(self, start: int, stop: int) -> bytes:
        if self._whole is None or start < self._at:
            response = await self._ask(start, stop)
            if response.status == 206:
                async with response:
                    data: bytes = await response.read()
                    return data
            self._whole, self._at = response, 0
        try:
            while self._at < start:
                await self._take(min(start - self._at, _DROP))
            return await self._take(stop - start)
        except BaseException:
            self._whole.close()
            self._whole = None
            raise

    async def _ask(self, start: int, stop: int) -> Any:
        if self._whole is not None:
            self._whole.close()
            self._whole = None
        import aiohttp  # fsspec has imported it already

        options: dict[str, Any] = {
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
        }
        options |= self._fs.kwargs
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        session = await self._fs.set_session()
        response = await session.get(self._url, headers=headers, **options)
        try:
            if response.status == 404:
                raise FileNotFoundError(self._url)
            response.raise_for_status()
            self._check(response, start)
        except BaseException:
            response.close()
            raise
        return response

    def _check(self, response: Any, start: int) -> None:
        """See that the answer is what was asked for, of the file that was listed."""
        said = {key: response.headers[key] for key in ("ETag", "Last-Modified") if key in response.headers}
        if response.status == 206:
            unit, _, total = response.headers.get("Content-Range", "").partition("/")
            if not unit.startswith(f"bytes {start}-"):
                raise ConnectionError(f"asked for bytes from {start}, the server sent {unit!r}")
        else:
            total = response.headers.get("Content-Length", "")
        if total.isdigit():
            said["size"] = int(total)
        if has_changed(self._shard, said):
            raise changed(self._shard, said.get("size"))

    async def _take(self, count: int) -> bytes:
        parts = []
        while count and (part := await self._whole.content.read(count)):
            parts.append(part)
            count -= len(part)
            self._at += len(part)
        if count and self._at < self._shard.size:
            raise ConnectionError(f"the connection ended after {self._at} of {self._shard.size} bytes")
        return b"".join(parts)


class _CatRanges:
    """A file of another store that is asked for ranges."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = self._fs.cat_file(self._path, start=start, end=stop)
        return data

    def close(self) -> None:
        pass


class _FileRanges:
    """A file that fsspec opens, by one reader at a time."""

    def __init__(self, fs: Any, path: str) -> None:
        # An archive is closed with the file system that looks into it.
        self._fs = fs
        self._path = path
        self._file: BinaryIO | None = None
        self._at = 0

    def read(self, start: int, stop: int) -> bytes:
        try:
            if self._file is None:
                self._file, self._at = self._open(), 0
            if self._at != start:
                self._file.seek(start)
            parts = []
            while start < stop and (part := self._file.read(stop - start)):
                parts.append(part)
                start += len(part)
            self._at = start
            return b"".join(parts)
        except BaseException:
            # The next attempt begins anew.
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        file: BinaryIO = self._fs.open(self._path, "rb", cache_type="none")
        if isinstance(file, io.BytesIO):
            # A memory file is one object for all who opened it: its position would be theirs too. This shares bytes.
            return io.BytesIO(file.getvalue())
        return file
