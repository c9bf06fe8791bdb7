"""TFRecord framing: a window on the bytes of a shard, reading and writing of records, and errors for damaged ones.

A record is a little-endian uint64 length, the uint32 masked CRC-32C of these 8 bytes, the payload, and the uint32
masked CRC-32C of the payload:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details

The native core checks CRCs while it scans or decodes. `framing_error` checks the refused record again with the `crc32c`
package, so that an error is confirmed by a second implementation.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.errors import CorruptRecordError, Location, Spelled, plural
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.checksums import mask_crc32c, masked_crc32c
from dask_tfrecord.shards.foreign import HEAD_NBYTES, Format, foreign_format
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.shards.streams import Arrived, ByteSink, open_sink, open_stream

# Bytes of a record around its payload.
HEADER = 12
FOOTER = 4

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")

# Advice for every damaged record, the end of an error.
_REMEDY = Spelled(
    '; read_tfrecord(…, errors="skip") drops damaged records, and repair copies the others to a new file',
    "; --errors skip drops damaged records, and the command repair copies the others to a new file",
)

# Protobuf limits messages to this size. Larger records are damaged, or part of a decompression bomb.
MAX_RECORD_BYTES = 1 << 31

_HEAD_SIZE = 64
# First bytes of a file, which reveal its compression.
_PROBE_NBYTES = 512
_CONTROLS = {chr(code) for code in range(32)} - set("\t\n\r\f")
# Memory of a window that was closed, for each thread.
_spares = threading.local()
# Bytes that the native core reads between two checks for an interruption.
_MOST_NBYTES = 16 << 20
_NOTHING = np.empty(0, np.uint8)


class Expected(NamedTuple):
    """Sizes of all records of a decoder, known in advance; it allocates memory by them after the first record."""

    nbytes: int  # stored; 0 if memory is allocated
    rows: int | None


class Window:
    """Window on the decompressed bytes of a shard, which moves forward and reuses one buffer.

    Parameters
    ----------
    shard : Shard
        Shard to read.
    start : int, default 0
        Offset in the decompressed stream where the window starts.
    block_size : int, default 1 MiB
        Bytes per read. It may be changed between two calls of `ensure`.
    stop : int, optional
        Offset in the decompressed stream where reading will probably stop; see `expect`.
    max_record_bytes : int, default 2 GiB
        A record with a larger length is an error.
    most : int, optional
        Bytes of the memory from the start, if the first read takes fewer.

    Attributes
    ----------
    buffer : uint8 array
        Memory of the window. For a large record it is replaced by an array of the size that is needed if the file has
        these bytes. Where the size of the stream is unknown, it is replaced by one of twice the size whenever the bytes
        that have arrived enter it, so a length field alone never allocates memory.
    begin, end : int
        ``buffer[begin:end]`` is in view.
    offset : int
        Offset of ``buffer[begin]`` in the decompressed stream.
    compression : str or None
        Detected compression.
    """

    __slots__ = (
        *("_max_need", "_size", "_stream", "_view"),
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
        most: int = 0,
    ) -> None:
        self.shard = shard
        self.block_size = block_size
        self.max_record_bytes = max_record_bytes
        self._max_need = HEADER + max_record_bytes + FOOTER
        self._stream = open_stream(shard, start, stop)
        self.compression = self._stream.compression
        # The size of a decompressed stream is unknown.
        self._size = shard.size if self.compression is None else None
        self.begin = self.end = 0
        try:
            self.offset = self._stream.position
            if self.offset < start:
                raise CorruptRecordError(
                    f"expected at least {start} bytes, the stream ends after {self.offset}: the file has changed since "
                    f"it was indexed; read the collection again",
                    Location(shard.path),
                )
        except BaseException:
            self._stream.close()
            raise
        spare: NDArray[np.uint8] | None = _spares.__dict__.pop("memory", None) if most > block_size else None
        if spare is None or len(spare) != most:
            spare = np.empty(max(block_size, most), np.uint8)
        self.buffer = spare
        self._view = self.buffer.data

    def feed(
        self, decoder: _native.Decoder, limit: int, stop: int, last: int | None, expected: Expected
    ) -> _native.Walk:
        """Feed a decoder at most `limit` records, and move forward past those that it accepts.

        They are the records in view, and, as far as the native core can read them itself, those that follow: about
        16 MiB until the next check for an interruption. Reading will probably stop at the offset `stop`; the last
        record begins at the offset `last` at most.
        """
        arrived, position = self._readable()
        walk, self.begin, self.end, read = decoder.feed_on(
            self._origin(arrived, stop),
            self.buffer,
            self.begin,
            self.end,
            position,
            limit,
            self.offset,
            last,
            expected.nbytes,
            -1 if expected.rows is None else expected.rows,
        )
        self._follow(arrived.start + read)
        return walk

    def feed_selected(
        self,
        decoder: _native.Decoder,
        first: int,
        selected: NDArray[np.int64],
        stop: int,
        expected: Expected,
        ends: NDArray[np.int64] | None,
    ) -> tuple[_native.Walk, int]:
        """Feed a decoder the records with the numbers `selected`, as `feed` does, and skip the others by their headers.

        The record at the window has the number `first`. The offset where each record ends is written to `ends`, up to
        a damaged header. Returns the number of decoded records, too. If a record ends beyond the stream, the window is
        at the end of the stream, and has moved by fewer bytes than the walk.
        """
        arrived, position = self._readable()
        walk, self.begin, self.end, read, decoded = decoder.feed_selected_on(
            self._origin(arrived, stop),
            self.buffer,
            self.begin,
            self.end,
            position,
            first,
            selected,
            self.offset,
            expected.nbytes,
            -1 if expected.rows is None else expected.rows,
            ends,
        )
        self._follow(arrived.start + read)
        return walk, decoded

    def _readable(self) -> tuple[Arrived, int]:
        """Return what the native core can read itself, and the position in it that follows the bytes in view."""
        at = self.offset + self.end - self.begin
        arrived = self._stream.arrived() or Arrived(None, _NOTHING, at, at)
        return arrived, at - arrived.start

    def _origin(self, arrived: Arrived, stop: int) -> _native.Origin:
        """Describe what the native core reads: little at once at first, because a few records may be enough."""
        return _native.Origin(
            arrived.file,
            arrived.memory,
            stop=max(stop - arrived.start, 0),
            size=arrived.stop - arrived.start,
            most=_MOST_NBYTES,
            first=limits().first_window_nbytes,
            block=limits().window_nbytes,
        )

    def _follow(self, position: int) -> None:
        """Move the stream to the position that the native core has reached, or to its end."""
        self.offset = self._stream.seek(position) - (self.end - self.begin)

    def expect(self, stop: int) -> None:
        """Announce the offset in the stream where reading will probably stop, which limits remote ranges."""
        self._stream.expect(stop)

    def ensure(self, need: int = 1) -> bool:
        """Read until `need` bytes, counted from `begin`, are in view; nothing is read if they are in view already.

        False if the stream has fewer bytes, or `need` exceeds the largest allowed record: the window may then contain
        less than the rest of the stream. To continue after a truncated record, request more bytes than are in view.
        Arrays that view `buffer` are overwritten.
        """
        have = self.end - self.begin
        if need > self._max_need:
            return False
        if have >= need:
            return True
        if self._size is not None and self.offset + need > self._size:
            return False
        while have < need:
            self._extend(have, need)
            last = self.end + max(self.block_size, need - have)
            count = self._stream.readinto(self._view[self.end : last])
            if not count:
                return False
            self.end += count
            have += count
        return True

    def _extend(self, have: int, need: int) -> None:
        """Move the bytes in view to the front; enlarge the buffer if less than half a block is free."""
        if self.begin:
            self.buffer[:have] = self.buffer[self.begin : self.end]
            self.begin, self.end = 0, have
        if len(self.buffer) - have < self.block_size // 2 or len(self.buffer) == have:
            # A file of known size has the bytes that are needed: `ensure` has compared them.
            grown = np.empty(max(2 * len(self.buffer), need if self._size is not None else 0), np.uint8)
            grown[:have] = self.buffer[:have]
            self.buffer = grown
            self._view = grown.data

    def advance(self, nbytes: int) -> bool:
        """Move the window forward by bytes; those past `end` are skipped, and inflated in a compressed file.

        False if the stream is shorter: the window is then at its end.
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
        """Return bytes in view, counted from `begin`; they are valid until the next `ensure`."""
        return self._view[self.begin + start : min(self.begin + stop, self.end)]

    @property
    def exhausted(self) -> bool:
        """True if all bytes of the stream are behind the window."""
        return not self.ensure()

    def close(self) -> None:
        """Close the file, and keep a usual window's memory for this thread's next one."""
        self._stream.close()
        if len(self.buffer) == limits().window_nbytes:
            _spares.memory = self.buffer
            self.begin = self.end = 0
            self.buffer = np.empty(0, np.uint8)
            self._view = self.buffer.data

    def __enter__(self) -> Self:
        """Return the window; the with-block closes the file."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self.close()


def detected_compression(shard: Shard) -> str | None:
    """Return the compression of a shard, by its first bytes."""
    with Window(shard, block_size=_PROBE_NBYTES, stop=_PROBE_NBYTES) as window:
        return window.compression


def foreign_head(shard: Shard) -> Format | None:
    """Return the format of other files that the bytes of a shard begin like; see `foreign_format`."""
    with Window(shard, block_size=_PROBE_NBYTES, stop=_PROBE_NBYTES) as window:
        return foreign_format(bytes(window.view(0, _fill_up_to(window, HEAD_NBYTES))))


def framing_error(window: Window, record: int) -> CorruptRecordError:
    """Return the error for a record that was refused, whose header is at the window, which is moved.

    The record is read again in blocks, so its length allocates no memory.
    """
    location = Location(window.shard.path, record, window.offset)
    have = _fill_up_to(window, HEADER)
    if have < HEADER:
        text = f"truncated header: expected {HEADER} bytes, found {have} before the end of the file"
        if record == 0:
            return _not_a_shard(window, text, location)
        causes = "The file was truncated, is still being written, or has other data appended"
        return CorruptRecordError(f"{text}. {causes}" + _REMEDY, location)
    length, stored = _HEAD.unpack(window.view(0, HEADER))
    computed = masked_crc32c(window.view(0, 8))
    if stored != computed:
        found = f"the CRC of the length does not hold (stored {stored:#010x}, computed {computed:#010x})"
        if record == 0:
            return _not_a_shard(window, found, location)
        return CorruptRecordError(
            f"{found}; the header declares {plural(length, 'byte')}. Fetch or write the file again" + _REMEDY, location
        )
    return _payload_error(window, length, location)


def _not_a_shard(window: Window, found: str, location: Location) -> CorruptRecordError:
    """Return the error about a file whose first header is refused: what it seems to be, what to do, what was found."""
    directory, _, name = window.shard.path.rpartition("/")
    inside = f", inflated from {window.compression}," if window.compression else ""
    text = f"this is not a TFRecord file, or its start is damaged: it{inside} begins with {describe_head(window)}"
    if "tfrecord" not in name and "::" not in window.shard.path:
        text += f". Pass only TFRecord files, as in {directory}/*.tfrecord"
    return CorruptRecordError(f"{text}. In detail: {found}", location)


def _payload_error(window: Window, length: int, location: Location) -> CorruptRecordError:
    """Describe the damage of a record whose header, at the window, is intact, as arguments of its error."""
    import crc32c

    window.advance(HEADER)
    size = window.shard.size if window.compression is None else None
    found, crc = 0, 0
    # The size of an uncompressed file shows truncation without reading.
    if size is None or window.offset + length <= size:
        while found < length and window.ensure():
            part = min(length - found, window.end - window.begin)
            crc = crc32c.crc32c(window.view(0, part), crc)
            window.advance(part)
            found += part
    else:
        found = size - window.offset
    advice = "The file was truncated, or is still being written"
    if found < length:
        expected = plural(length, "byte")
        text = f"truncated payload: expected {expected}, found {found:,} before the end of the file. {advice}"
        return CorruptRecordError(text + _REMEDY, location)
    have = _fill_up_to(window, FOOTER)
    if have < FOOTER:
        text = f"truncated footer: expected {FOOTER} bytes, found {have} before the end of the file. {advice}"
        return CorruptRecordError(text + _REMEDY, location)
    (stored,) = _CRC.unpack(window.view(0, FOOTER))
    computed = mask_crc32c(crc)
    if stored != computed:
        text = (
            f"the CRC of the payload does not hold (stored {stored:#010x}, computed {computed:#010x}, "
            f"{plural(length, 'byte')}). Fetch or write the file again; check_crc=False reads the payload as it is"
        )
        return CorruptRecordError(text + _REMEDY, location)
    if length > window.max_record_bytes:
        text = (
            f"the record has {plural(length, 'byte')} where max_record_bytes allows {window.max_record_bytes:,}; "
            f"read_records accepts a higher limit, for files that are trusted"
        )
        return CorruptRecordError(text, location)
    text = "the record was refused, but is intact when read again: the file is being changed, or memory or disk fail"
    return CorruptRecordError(text, location)


def _fill_up_to(window: Window, most: int) -> int:
    """Read until `most` bytes are in view or the stream ends; return the number of bytes in view, at most `most`."""
    while (have := window.end - window.begin) < most and window.ensure(have + 1):
        pass
    return min(have, most)


def describe_head(window: Window) -> str:
    """Describe the first bytes of a file by the magic numbers of other formats."""
    start = bytes(window.view(0, _fill_up_to(window, HEAD_NBYTES)))
    head, shown = start[:_HEAD_SIZE], f" ({start[:12].hex(' ')})"
    if (format := foreign_format(start)) is not None:
        return format.what + shown + (format.advice and f"; {format.advice}")
    if not head.strip(b"\0"):
        return f"{len(head)} zero bytes: the file may be an incomplete download or copy"
    # The last character may be incomplete.
    text = head.decode(errors="ignore")
    if len(text.encode()) > len(head) - 4 and not set(text) & _CONTROLS:
        return f"the text {text[:40]!r}"
    return f"bytes of an unknown format{shown}"


@explain_arguments("dtf.read_records('train.tfrecord')")
def read_records(
    urlpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    compression: str | None = "infer",
    check_crc: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Iterate over the payloads of all records, of any kind.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, or template (``name@8``, ``name-?????-of-00008``).
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the name.
    check_crc : bool, default True
        Check both CRCs of every record.
    max_record_bytes : int, default 2 GiB
        A record with a larger length is an error, before memory is allocated for it.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Yields
    ------
    bytes
        Payload of each record, in the order of the shards.

    Raises
    ------
    ShardNotFoundError
        If the files do not exist; raised by the call, before the first record.
    CorruptRecordError
        If a record is damaged; the records before it are yielded first.
    """
    shards = find_shards(urlpath, compression=compression, storage_options=storage_options)
    return (
        payload
        for shard in shards
        for _, payload in iterate_records(shard, check_crc=check_crc, max_record_bytes=max_record_bytes)
    )


def iterate_records(
    shard: Shard,
    *,
    check_crc: bool = True,
    record: int = 0,
    offset: int = 0,
    stop: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Generator[tuple[int, bytes], None, None]:
    """Iterate over the offsets and payloads of the records of one shard.

    The first record has the number `record`, and its header is at `offset`. The caller will probably stop at `stop`,
    which limits remote ranges; iteration continues past it. The file is open until the generator ends or is closed.
    """
    with Window(shard, offset, stop=stop, max_record_bytes=max_record_bytes) as window:
        while window.ensure(HEADER):
            length, stored = _HEAD.unpack(window.view(0, HEADER))
            if check_crc and masked_crc32c(window.view(0, 8)) != stored:
                raise framing_error(window, record)
            size = HEADER + length + FOOTER
            if not window.ensure(size):
                raise framing_error(window, record)
            payload = bytes(window.view(HEADER, HEADER + length))
            if check_crc and masked_crc32c(payload) != _CRC.unpack(window.view(HEADER + length, size))[0]:
                raise framing_error(window, record)
            yield window.offset, payload
            window.advance(size)
            record += 1
        if not window.exhausted:
            raise framing_error(window, record)


class RecordWriter:
    """Write records of any kind to a file, with both CRCs.

    The complete file is published under its name when the writer is closed. If the with-block raises, the new file is
    discarded and an older file of that name is kept.

    Parameters
    ----------
    path : str or os.PathLike
        Path or fsspec URL.
    compression : {None, "gzip", "zlib", "zstd"}
        The compression does not depend on the file name.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Examples
    --------
    >>> with RecordWriter("some.tfrecord") as writer:  # doctest: +SKIP
    ...     writer.write(b"payload")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        sink = open_sink(path, compression, storage_options)
        self._sink: ByteSink | None = sink
        # A writer that is neither closed nor discarded leaves no temporary file.
        self._finalizer = weakref.finalize(self, _discard_abandoned, sink, os.getpid())

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append one record.

        Parameters
        ----------
        record : bytes, bytearray or memoryview
            Payload of the record.

        Raises
        ------
        TypeError
            If `record` is not bytes-like, for example a dict or a message that is not serialized. Nothing is
            appended, and the writer remains usable.
        """
        if self._sink is None:
            raise ValueError("the writer is closed; open another one")
        try:
            payload = memoryview(record).cast("B")
        except TypeError:
            raise TypeError(f"a record is bytes, bytearray or memoryview; got {_describe(record)}") from None
        try:
            write_record(self._sink, payload)
        except BaseException:
            # The file may end within a record.
            self.discard()
            raise

    def close(self) -> None:
        """Publish the file; a second call does nothing."""
        if self._sink is None:
            return
        try:
            self._sink.close()
        except BaseException:
            self.discard()
            raise
        self._sink = None
        self._finalizer.detach()

    def discard(self) -> None:
        """Remove the unfinished file; after `close`, do nothing."""
        if self._sink is not None:
            self._finalizer.detach()
            self._sink.discard()
            self._sink = None

    def __enter__(self) -> Self:
        """Close the file at the end of the with-block, or discard it if that raises."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close or discard the file."""
        if kind is None:
            self.close()
        else:
            self.discard()


def write_record(sink: ByteSink, payload: bytes | memoryview) -> None:
    """Append one framed record to a sink: length, CRC of the length, payload, CRC of the payload."""
    length = len(payload).to_bytes(8, "little")
    sink.write(length + _CRC.pack(masked_crc32c(length)))
    sink.write(payload)
    sink.write(_CRC.pack(masked_crc32c(payload)))


def _discard_abandoned(sink: ByteSink, pid: int) -> None:
    # The file belongs to the process that opened it, not to its forks.
    if os.getpid() == pid:
        sink.discard()


def _describe(record: object) -> str:
    """Describe an object that is not a payload, and how to serialize it."""
    name = type(record).__name__
    if hasattr(record, "SerializeToString"):
        return f"a message {name}: write(message.SerializeToString())"
    if isinstance(record, Mapping):
        return f"a {name}: to_tfrecord({{name: rows, …}}, path) writes columns, Example.SerializeToString() one record"
    if isinstance(record, str):
        return "str: write(text.encode())"
    return name
