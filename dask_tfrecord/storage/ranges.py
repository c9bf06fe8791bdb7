"""Byte ranges of remote files; each request is repeated after a transient failure.

Object stores and HTTP servers are read with one request per range, without an open connection in between. Each response
is compared with the listing, so that a changed file is detected. Other file systems (archives, sftp, caches) are read
through an open file. A server without support of ranges is read sequentially from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from fsspec.asyn import AsyncFileSystem, sync

from dask_tfrecord.errors import Location, ShardChangedError, ShardNotFoundError, StorageError
from dask_tfrecord.storage.clients import check_encoding, file_system, given_timeout, http_timeout, read_at_most
from dask_tfrecord.storage.retry import http_status, remaining_seconds, with_retries
from dask_tfrecord.storage.shard import Shard, has_changed

__all__ = ["RangeFetcher", "changed_error", "not_found_error", "open_ranges"]

# Bytes that are discarded at a time before the start of a range, if the server sends the whole file.
_DISCARD_SIZE = 1 << 20


class Ranges(Protocol):
    """Reader of byte ranges of one file."""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop``; fewer only if the file is shorter."""

    def close(self) -> None:
        """Close open files and connections."""


class RangeFetcher:
    """Fetch complete ranges of one file, with retries.

    Parameters
    ----------
    shard : Shard
        File as it was listed.
    ranges : Ranges
        Reader of the file.
    current_info : callable
        Returns the current properties of the file.
    """

    def __init__(self, shard: Shard, ranges: Ranges, current_info: Callable[[], dict[str, Any]]) -> None:
        self._shard = shard
        self._ranges = ranges
        self._current_info = current_info
        self._stopped = threading.Event()

    def __call__(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop``.

        Raises
        ------
        ShardChangedError
            If the file has changed since it was listed.
        ShardNotFoundError
            If the file does not exist any more.
        StorageError
            If every attempt fails.
        """
        what = f"read bytes {start} to {stop}"
        try:
            return with_retries(lambda: self._read_complete(start, stop), self._shard.path, what, self._stopped)
        except FileNotFoundError as error:
            raise not_found_error(self._shard) from error

    def stop(self) -> None:
        """End the retries after the current attempt."""
        self._stopped.set()

    def close(self) -> None:
        """Close open files and connections."""
        self.stop()
        self._ranges.close()

    def _read_complete(self, start: int, stop: int) -> bytes:
        try:
            data = self._ranges.read(start, stop)
        except Exception as error:
            # 412: the ETag differs. 416: the range begins past the end of the file.
            if http_status(error) in (412, 416):
                raise changed_error(self._shard) from error
            raise
        if len(data) == stop - start:
            return data
        info = self._current_info()
        if has_changed(self._shard, info):
            raise changed_error(self._shard, info.get("size"))
        raise ConnectionError(f"received {len(data)} of {stop - start} bytes")


def open_ranges(shard: Shard) -> RangeFetcher:
    """Open a remote file for reading ranges.

    Raises
    ------
    ShardChangedError
        If the file is known to have changed since it was listed, before a byte is read.
    """
    fs, path = file_system(shard.path, shard.storage_options)
    kinds = {kind.__name__ for kind in type(fs).__mro__}
    if "S3FileSystem" in kinds:
        return RangeFetcher(shard, _S3Ranges(shard, fs, path), lambda: _current_info(fs, path))
    if "HTTPFileSystem" in kinds:
        return RangeFetcher(shard, _HttpRanges(shard, fs, path), lambda: _current_info(fs, path))
    info = with_retries(lambda: _current_info(fs, path), shard.path, "look up the file")
    if has_changed(shard, info):
        raise changed_error(shard, info.get("size"))
    ranges = _CatRanges(fs, path) if issubclass(type(fs), AsyncFileSystem) else _FileRanges(fs, path)
    return RangeFetcher(shard, ranges, lambda: _current_info(fs, path))


def changed_error(shard: Shard, size: int | None = None) -> ShardChangedError:
    """Return the error for a file that has changed since it was listed."""
    if size is not None and size != shard.size:
        message = f"the file had {shard.size:,} bytes when it was listed and ends after {size:,} now: it was "
        message += "truncated or replaced" if size < shard.size else "appended to or replaced"
    else:
        message = "the file has changed since it was listed: it was written to or replaced"
    return ShardChangedError(f"{message}; read the collection again", Location(shard.path))


def not_found_error(shard: Shard) -> ShardNotFoundError:
    """Return the error for a file that was removed since it was listed."""
    return ShardNotFoundError("the file is gone since it was listed; read the collection again", Location(shard.path))


def check_range(given: str, start: int, stop: int, path: str) -> None:
    """Check a Content-Range, which may end before the requested range at the end of the file only."""
    found = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", given)
    if found is None or int(found[1]) != start:
        raise ConnectionError(f"requested bytes from {start}, received {given[:80]!r}")
    if int(found[2]) >= stop:
        raise StorageError(
            f"the server answered a request of bytes {start} to {stop} with {given!r}; it does not follow HTTP",
            Location(path),
        )


def _current_info(fs: Any, path: str) -> dict[str, Any]:
    fs.invalidate_cache()
    return dict(fs.info(path))


class _S3Ranges:
    """Object of S3. The server compares the ETag of each request with the listed one."""

    def __init__(self, shard: Shard, fs: Any, path: str) -> None:
        self._fs = fs
        self._shard = shard
        bucket, key, version = fs.split_path(path)
        self._object = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        if not getattr(fs, "local_expiry_check", False):
            # VAST servers do not support the condition; s3fs documents the option for them.
            self._object["IfMatch"] = f'"{shard.version}"'

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = sync(self._fs.loop, self._read, start, stop, remaining_seconds())
        return data

    async def _read(self, start: int, stop: int, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            response = await self._fs._call_s3("get_object", Range=f"bytes={start}-{stop - 1}", **self._object)
            body = response["Body"]
            try:
                if has_changed(self._shard, {"ETag": response.get("ETag")}):
                    raise changed_error(self._shard)
                check_range(response.get("ContentRange", ""), start, stop, self._shard.path)
                return await read_at_most(body, stop - start)
            finally:
                body.close()

    def close(self) -> None:
        pass


class _HttpRanges:
    """File of a web server, with or without support of ranges."""

    def __init__(self, shard: Shard, fs: Any, path: str) -> None:
        self._shard = shard
        self._fs = fs
        self._url = fs.encode_url(path)
        # Response of a server that sends the whole file: the following ranges are read from it.
        self._whole: Any = None
        self._position = 0

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = sync(self._fs.loop, self._read, start, stop, remaining_seconds())
        return data

    def close(self) -> None:
        if self._whole is not None:
            self._fs.loop.call_soon_threadsafe(self._whole.close)
            self._whole = None

    async def _read(self, start: int, stop: int, seconds: float) -> bytes:
        async with asyncio.timeout(seconds):
            if self._whole is None or start < self._position:
                response = await self._request(start, stop)
                if response.status == 206:
                    # Not returned to the pool of connections: a response may be longer than the range.
                    with contextlib.closing(response):
                        return await read_at_most(response.content, stop - start)
                self._whole, self._position = response, 0
        try:
            while self._position < start:
                async with asyncio.timeout(seconds):
                    await self._take(min(start - self._position, _DISCARD_SIZE))
            async with asyncio.timeout(seconds):
                return await self._take(stop - start)
        except BaseException:
            self._whole.close()
            self._whole = None
            raise

    async def _request(self, start: int, stop: int) -> Any:
        if self._whole is not None:
            self._whole.close()
            self._whole = None
        options: dict[str, Any] = dict(self._fs.kwargs)
        if not given_timeout(self._shard.storage_options):
            # The caller may take any time between two parts of a whole file; `_read` limits each of them.
            options["timeout"] = http_timeout(None)
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        session = await self._fs.set_session()
        response = await session.get(self._url, headers=headers, **options)
        try:
            if response.status == 404:
                raise FileNotFoundError(self._url)
            response.raise_for_status()
            self._check(response, start, stop)
        except BaseException:
            response.close()
            raise
        return response

    def _check(self, response: Any, start: int, stop: int) -> None:
        """Check that the response holds the requested range, of the file that was listed."""
        check_encoding(response.headers, self._shard.path)
        info = {key: response.headers[key] for key in ("ETag", "Last-Modified") if key in response.headers}
        if response.status == 206:
            given = response.headers.get("Content-Range", "")
            check_range(given, start, stop, self._shard.path)
            total = given.rpartition("/")[2]
        else:
            total = response.headers.get("Content-Length", "")
        if total.isdigit():
            info["size"] = int(total)
        if has_changed(self._shard, info):
            raise changed_error(self._shard, info.get("size"))

    async def _take(self, count: int) -> bytes:
        parts = []
        while count and (part := await self._whole.content.read(count)):
            parts.append(part)
            count -= len(part)
            self._position += len(part)
        if count and self._position < self._shard.size:
            raise ConnectionError(f"the connection ended after {self._position} of {self._shard.size} bytes")
        return b"".join(parts)


class _CatRanges:
    """File of another asynchronous file system, read with `cat_file`."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path

    def read(self, start: int, stop: int) -> bytes:
        data: bytes = self._fs.cat_file(self._path, start=start, end=stop)
        return data

    def close(self) -> None:
        pass


class _FileRanges:
    """File that fsspec opens, for one reader at a time."""

    def __init__(self, fs: Any, path: str) -> None:
        # The reference keeps the archive open that contains the file.
        self._fs = fs
        self._path = path
        self._file: BinaryIO | None = None
        self._position = 0

    def read(self, start: int, stop: int) -> bytes:
        try:
            if self._file is None:
                self._file, self._position = self._open(), 0
            if self._position != start:
                self._file.seek(start)
            parts = []
            while start < stop and (part := self._file.read(stop - start)):
                parts.append(part)
                start += len(part)
            self._position = start
            return b"".join(parts)
        except BaseException:
            # The next attempt opens the file again.
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        file: BinaryIO = self._fs.open(self._path, "rb", cache_type="none")
        if isinstance(file, io.BytesIO):
            # All readers of a memory file share one object and its position. The copy shares only its bytes.
            return io.BytesIO(file.getvalue())
        return file
