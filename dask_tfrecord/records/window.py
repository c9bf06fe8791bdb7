"""Window on the decompressed bytes of a shard, and what the first of them are."""

from __future__ import annotations

import threading
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.errors import CorruptRecordError, Location
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.compressions import DETECTION_NBYTES
from dask_tfrecord.shards.foreign import HEAD_NBYTES, Format, foreign_format
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.shards.streams import Arrived, open_stream

# Bytes of a record around its payload.
HEADER = 12
FOOTER = 4

# Protobuf limits messages to this size. Larger records are damaged, or part of a decompression bomb.
MAX_RECORD_BYTES = 1 << 31

_HEAD_SIZE = 64
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
                    f"it was indexed; call read_tfrecord again",
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

        `Framing.next` in `native/framing.hpp` compares both CRCs of a record before the decoder sees its payload.
        They are the records in view, and, as far as the native core can read them itself, those that follow: about
        16 MiB until the next check for an interruption. Reading will probably stop at the offset `stop`; the last
        record begins at the offset `last` at most.
        """
        arrived, position = self._arrived_bytes()
        walk, self.begin, self.end, read = decoder.feed_on(
            self._native_origin(arrived, stop),
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
        self._move_stream(arrived.start + read)
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
        arrived, position = self._arrived_bytes()
        walk, self.begin, self.end, read, decoded = decoder.feed_selected_on(
            self._native_origin(arrived, stop),
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
        self._move_stream(arrived.start + read)
        return walk, decoded

    def _arrived_bytes(self) -> tuple[Arrived, int]:
        """Return what the native core can read itself, and the position in it that follows the bytes in view."""
        at = self.offset + self.end - self.begin
        arrived = self._stream.arrived() or Arrived(None, _NOTHING, at, at)
        return arrived, at - arrived.start

    def _native_origin(self, arrived: Arrived, stop: int) -> _native.Origin:
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

    def _move_stream(self, position: int) -> None:
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
            self._make_room(have, need)
            last = self.end + max(self.block_size, need - have)
            count = self._stream.readinto(self._view[self.end : last])
            if not count:
                return False
            self.end += count
            have += count
        return True

    def fill(self, most: int) -> int:
        """Read until `most` bytes are in view or the stream ends; return how many are, at most `most`."""
        while (have := self.end - self.begin) < most and self.ensure(have + 1):
            pass
        return min(have, most)

    def _make_room(self, have: int, need: int) -> None:
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
    with Window(shard, block_size=DETECTION_NBYTES, stop=DETECTION_NBYTES) as window:
        return window.compression


def foreign_head(shard: Shard) -> Format | None:
    """Return the format of other files that the bytes of a shard begin like; see `foreign_format`."""
    with Window(shard, block_size=DETECTION_NBYTES, stop=DETECTION_NBYTES) as window:
        return foreign_format(bytes(window.view(0, window.fill(HEAD_NBYTES))))


def describe_head(window: Window) -> str:
    """Describe the first bytes of a file by the magic numbers of other formats."""
    start = bytes(window.view(0, window.fill(HEAD_NBYTES)))
    head = start[:_HEAD_SIZE]
    if (format := foreign_format(start)) is not None:
        return format.what + (format.advice and f"; {format.advice}")
    if not head.strip(b"\0"):
        return f"{len(head)} zero bytes: the file may be an incomplete download or copy"
    # The last character may be incomplete.
    text = head.decode(errors="ignore")
    if len(text.encode()) > len(head) - 4 and not set(text) & _CONTROLS:
        return f"the text {text[:40]!r}"
    return f"bytes of an unknown format ({start[:12].hex(' ')})"
