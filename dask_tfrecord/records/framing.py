"""The framing of TFRecord: a moving window on a shard's bytes, the records in it, and what is wrong where it breaks.

A record is a little-endian u64 length, the u32 masked CRC-32C of these 8 bytes, the payload, and the u32 masked
CRC-32C of the payload. The hot paths are in `dask_tfrecord._native`; here every check is made with the `crc32c`
package, so that an error rests on a second opinion. Imports errors and storage.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Self

import crc32c
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import CorruptRecordError, Place
from dask_tfrecord.storage.compression import mask_crc32c, masked_crc32c, open_stream
from dask_tfrecord.storage.files import Shard, find_shards

__all__ = ["FOOTER", "HEADER", "MAX_RECORD_BYTES", "Window", "framing_error", "iterate", "read_records"]

# Bytes of a record around its payload.
HEADER = 12
FOOTER = 4

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")

# Protobuf takes no larger message. Data that inflate to more than this for one record are damaged, or a bomb.
MAX_RECORD_BYTES = 1 << 31

_LOOK = 64
_CONTROLS = {chr(code) for code in range(32)} - set("\t\n\r\f")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"RIFF": "a RIFF file (WebP, WAV, AVI)",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip data",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"\x93NUMPY": "a NumPy file",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
    b"SQLite format 3\x00": "an SQLite database",
    b"version https://git-lfs": "a Git LFS pointer: the file itself was never fetched",
}


class Window:
    """A moving view of a shard's decompressed bytes, through one buffer that is used again and again.

    Parameters
    ----------
    shard : Shard
        What to read.
    start : int, default 0
        Offset in the decompressed stream to begin at.
    block_size : int, default 1 MiB
        Bytes to read at a time. It may be changed between two calls of `fill`.
    stop : int, optional
        How far reading will go in the decompressed stream, as far as is known; see `expect`.
    max_record_bytes : int, default 2 GiB
        A record that says it is larger is an error.

    Attributes
    ----------
    buffer : uint8 array
        The memory; another one after it had to grow. A record larger than it makes it grow as its bytes arrive, by
        doubling, so a length field alone allocates nothing.
    begin, end : int
        ``buffer[begin:end]`` is in view.
    offset : int
        Of ``buffer[begin]`` in the decompressed stream.
    compression : str or None
        As found.
    """

    __slots__ = (
        *("_most", "_size", "_stream", "_view"),
        *("begin", "block_size", "buffer", "compression", "end", "max_record_bytes", "offset", "shard"),
    )

    def __init__(
        self,
        shard: Shard,
        start: int = 0,
        *,
        block_size: int = 1 << 20,
        stop: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.shard = shard
        self.block_size = block_size
        self.max_record_bytes = max_record_bytes
        self._most = HEADER + max_record_bytes + FOOTER
        self._stream = open_stream(shard, start, stop)
        self.compression = self._stream.compression
        # Known from the start only where bytes are as they are stored.
        self._size = shard.size if self.compression is None else None
        self.begin = self.end = 0
        try:
            self.offset = self._stream.position
            if self.offset < start:
                raise CorruptRecordError(
                    f"expected at least {start} bytes, the stream ends after {self.offset}: the file has changed since "
                    f"it was indexed; read the collection again",
                    Place(shard.path),
                )
        except BaseException:
            self._stream.close()
            raise
        self.buffer: NDArray[np.uint8] = np.empty(block_size, np.uint8)
        self._view = self.buffer.data

    def expect(self, stop: int) -> None:
        """Know that reading will go on to `stop`, and probably no further: ranges of remote files are cut to fit.

        Parameters
        ----------
        stop : int
            A byte of the decompressed stream.
        """
        self._stream.expect(stop)

    def fill(self, need: int = 1) -> bool:
        """Bring `need` bytes into view.

        Nothing is read if they are there already: to go on after a cut record, ask for more than is in view. Arrays
        that view `buffer` are overwritten.

        Parameters
        ----------
        need : int, default 1
            Bytes, counted from `begin`.

        Returns
        -------
        bool
            False if the stream ends before, or no record is allowed to need so much; then less than the stream holds
            may be in view.
        """
        have = self.end - self.begin
        if need > self._most:
            return False
        if have >= need:
            return True
        if self._size is not None and self.offset + need > self._size:
            return False
        while have < need:
            self._make_room(have)
            last = self.end + max(self.block_size, need - have)
            count = self._stream.readinto(self._view[self.end : last])
            if not count:
                return False
            self.end += count
            have += count
        return True

    def _make_room(self, have: int) -> None:
        """Move what is in view to the front, and grow if reading on would be in crumbs."""
        if self.begin:
            self.buffer[:have] = self.buffer[self.begin : self.end]
            self.begin, self.end = 0, have
        if len(self.buffer) - have < self.block_size // 2 or len(self.buffer) == have:
            grown = np.empty(2 * len(self.buffer), np.uint8)
            grown[:have] = self.buffer[:have]
            self.buffer = grown
            self._view = grown.data

    def advance(self, nbytes: int) -> bool:
        """Go forward.

        Parameters
        ----------
        nbytes : int
            How far; it may pass `end`, and is then skipped unread in a plain file, inflated in a compressed one.

        Returns
        -------
        bool
            False if the stream ends before that point; the window then stands at its end.
        """
        if nbytes <= self.end - self.begin:
            self.begin += nbytes
            self.offset += nbytes
            return True
        target = self.offset + nbytes
        self.begin = self.end = 0
        self.offset = self._stream.seek(target)
        return self.offset == target

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes in view, counted from `begin`; good until the next `fill`."""
        return self._view[self.begin + start : min(self.begin + stop, self.end)]

    @property
    def exhausted(self) -> bool:
        """Whether no byte is left, neither in view nor in the stream."""
        return not self.fill()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        """Close the file at the end of the with-block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()


def framing_error(window: Window, record: int) -> CorruptRecordError:
    """Say what is wrong with a record that was refused.

    Its bytes are looked at again, in blocks; nothing is allocated by its length.

    Parameters
    ----------
    window : Window
        Stands at the record's header; it is moved.
    record : int
        The record's number in the shard.

    Returns
    -------
    CorruptRecordError
        To be raised.
    """
    place = Place(window.shard.path, record, window.offset)
    have = _in_view(window, HEADER)
    if have < HEADER:
        begins = f"; the file begins with {_look(window)}" if record == 0 else ""
        return CorruptRecordError(
            f"truncated header: expected {HEADER} bytes, found {have} before the end of the file{begins}. The file was "
            f"cut, is still being written, or has something else appended",
            place,
        )
    length, stored = _HEAD.unpack(window.view(0, HEADER))
    computed = masked_crc32c(window.view(0, 8))
    if stored != computed:
        found = f"the CRC of the length does not hold (stored {stored:#010x}, computed {computed:#010x})"
        if record == 0:
            inside = f", inflated from {window.compression}," if window.compression else ""
            return CorruptRecordError(
                f"this is no TFRecord file, or its first header is damaged: {found}. The file{inside} begins with "
                f"{_look(window)}",
                place,
            )
        return CorruptRecordError(f"{found}; the header says {length} bytes. Fetch or write the file again", place)
    return CorruptRecordError(_wrong_payload(window, length), place)


def _wrong_payload(window: Window, length: int) -> str:
    """Say what is wrong after a header that holds; the window stands at it."""
    window.advance(HEADER)
    size = window.shard.size if window.compression is None else None
    there, crc = 0, 0
    # A plain file tells without reading whether it is all there.
    if size is None or window.offset + length <= size:
        while there < length and window.fill():
            part = min(length - there, window.end - window.begin)
            crc = crc32c.crc32c(window.view(0, part), crc)
            window.advance(part)
            there += part
    else:
        there = size - window.offset
    again = "The file was cut, or is still being written"
    if there < length:
        return f"truncated payload: expected {length} bytes, found {there} before the end of the file. {again}"
    have = _in_view(window, FOOTER)
    if have < FOOTER:
        return f"truncated footer: expected {FOOTER} bytes, found {have} before the end of the file. {again}"
    (stored,) = _CRC.unpack(window.view(0, FOOTER))
    computed = mask_crc32c(crc)
    if stored != computed:
        return (
            f"the CRC of the payload does not hold (stored {stored:#010x}, computed {computed:#010x}, {length} bytes). "
            f"Fetch or write the file again; check_crc=False reads the payload as it is"
        )
    if length > window.max_record_bytes:
        return (
            f"the record has {length} bytes where max_record_bytes allows {window.max_record_bytes}; read_records "
            f"takes another limit, if the file is to be trusted"
        )
    return "the record was refused, and holds on a second look: the file is being changed, or memory or disk fail"


def _in_view(window: Window, most: int) -> int:
    """Bytes in view after reading on for up to `most`."""
    while (have := window.end - window.begin) < most and window.fill(have + 1):
        pass
    return min(have, most)


def _look(window: Window) -> str:
    """Describe what is in view, by what files begin with."""
    head = bytes(window.view(0, _in_view(window, _LOOK)))
    shown = f" ({head[:12].hex(' ')})"
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            return what + shown
    if not head.strip(b"\0"):
        return f"{len(head)} zero bytes: a download or copy that was never finished?"
    # The last character may be cut.
    text = head.decode(errors="ignore")
    if len(text.encode()) > len(head) - 4 and not set(text) & _CONTROLS:
        return f"text: {text[:40]!r}"
    return f"bytes of no format known here{shown}"


def read_records(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    check_crc: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Iterate over the payloads of all records, of whatever kind.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` looks at the bytes, never at the name.
    check_crc : bool, default True
        Whether both CRCs of every record have to hold.
    max_record_bytes : int, default 2 GiB
        A record that says it is larger is an error, before memory is taken for it.
    storage_options : mapping, optional
        What fsspec takes beside the URL.

    Yields
    ------
    bytes
        One payload after the other, in the order of the shards.

    Raises
    ------
    ShardNotFoundError
        At once, if there are no such files.
    CorruptRecordError
        At a record that is damaged; those before it have been yielded.
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return (
        payload
        for shard in shards
        for _, payload in iterate(shard, check_crc=check_crc, max_record_bytes=max_record_bytes)
    )


def iterate(
    shard: Shard,
    *,
    check_crc: bool = True,
    record: int = 0,
    offset: int = 0,
    stop: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Generator[tuple[int, bytes], None, None]:
    """Iterate over the records of one shard.

    Parameters
    ----------
    shard : Shard
        What to read; its file is open until the generator ends or is closed.
    check_crc : bool, default True
        Whether both CRCs of every record have to hold.
    record, offset : int, default 0
        Number of the record to begin with, and where its header is.
    stop : int, optional
        How far reading will go, as far as is known; it may go on.
    max_record_bytes : int, default 2 GiB
        A record that says it is larger is an error.

    Yields
    ------
    offset : int
        Of the record's header, in the decompressed stream.
    payload : bytes
        What the record holds.
    """
    with Window(shard, offset, stop=stop, max_record_bytes=max_record_bytes) as window:
        while window.fill(HEADER):
            length, stored = _HEAD.unpack(window.view(0, HEADER))
            if check_crc and masked_crc32c(window.view(0, 8)) != stored:
                raise framing_error(window, record)
            whole = HEADER + length + FOOTER
            if not window.fill(whole):
                raise framing_error(window, record)
            payload = bytes(window.view(HEADER, HEADER + length))
            if check_crc and masked_crc32c(payload) != _CRC.unpack(window.view(HEADER + length, whole))[0]:
                raise framing_error(window, record)
            yield window.offset, payload
            window.advance(whole)
            record += 1
        if not window.exhausted:
            raise framing_error(window, record)
