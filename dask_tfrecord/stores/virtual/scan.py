"""Cut a virtual group: find where records end, which ones a chunk has, and how long their rows are.

A shard of three records of 40, 50 and 60 bytes, in chunks of two rows: chunk 0 is its bytes 0 to 90, and chunk 1 is its
bytes 90 to 150. A column with 1, 0 and 4 values in these records has one value in chunk 0, and four in chunk 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, RaggedBlock, splits_of
from dask_tfrecord.columns.decoder import Decoder, decode_blocks, size_decoder
from dask_tfrecord.errors import Location, SchemaError, plural
from dask_tfrecord.records.index import RecordRange, record_ends
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.chunk_borders import joined_parts
from dask_tfrecord.rows.collection import row_numbers
from dask_tfrecord.rows.sources import RecordSource, UncountedSource
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.stores.units import check_group_lengths, flat_levels
from dask_tfrecord.stores.zarr.codec import records_checksum
from dask_tfrecord.stores.zarr.layout import with_strings

# Chunks are equal if they can have at least an eighth of the requested rows; otherwise their rows differ.
_LEAST_SHARE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Ends of a shard's records in its decompressed stream, and their payload CRCs as (n, 4) bytes."""

    compression: str | None
    ends: NDArray[np.int64]
    crcs: NDArray[np.uint8]

    @property
    def begins(self) -> NDArray[np.int64]:
        """Offsets of the first bytes of the records."""
        return np.append(0, self.ends)[:-1]


def scan_records(shards: Shards) -> list[Scan]:
    """Walk the headers of all shards, on the active scheduler."""
    groups = joined_parts((splits_of(shards.sizes).tolist(), limits().scan_task_nbytes))
    calls = [partial(_scan_shards, shards[start:stop]) for start, stop in pairwise(groups)]
    return list(chain.from_iterable(compute_with_progress(calls, "Scanning records")))


def _scan_shards(shards: Shards) -> list[Scan]:
    """Find where each record of some shards ends, and the CRC of its payload."""
    scans = []
    for shard in shards:
        ends, crcs = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.uint8)]
        with Window(shard, block_size=limits().index_window_nbytes, stop=shard.size) as window:
            for more in record_ends(window):
                ends.append(more[0])
                crcs.append(more[1])
        scans.append(Scan(window.compression, np.concatenate(ends), np.concatenate(crcs)))
    return scans


class Piece(NamedTuple):
    """Consecutive records of a shard that are rows."""

    shard: int
    first: int
    stop: int


def row_pieces(source: RecordSource | UncountedSource, scans: Sequence[Scan]) -> list[Piece]:
    """Return the consecutive records of shards that are rows."""
    if not isinstance(source, RecordSource):
        return [Piece(number, 0, len(scan.ends)) for number, scan in enumerate(scans) if len(scan.ends)]
    rows, starts = row_numbers(source.rows), source.collection.starts
    numbers = np.searchsorted(starts, rows, side="right") - 1
    records = rows - starts[numbers]
    cuts = [0, *(np.flatnonzero((np.diff(numbers) != 0) | (np.diff(records) != 1)) + 1).tolist(), len(rows)]
    pieces = [
        Piece(int(numbers[cut]), int(records[cut]), int(records[end - 1]) + 1) for cut, end in pairwise(cuts) if end
    ]
    for number, _, stop in pieces:
        if stop > len(scans[number].ends):
            raise SchemaError(
                f"{plural(stop, 'record')} expected, {len(scans[number].ends):,} found: the counts are wrong"
            )
    return pieces


def choose_rows(pieces: Sequence[Piece], scans: Sequence[Scan], size: int) -> int:
    """Choose rows per chunk: about `size` bytes, dividing the shards evenly where possible."""
    lengths = [stop - first for _, first, stop in pieces]
    nbytes = sum(int(scans[number].ends[stop - 1] - scans[number].begins[first]) for number, first, stop in pieces)
    most = max(1, min(size * sum(lengths) // max(nbytes, 1), max(lengths, default=1)))
    # Of all pieces, so that more shards of this length can be appended; else the last chunk may be shorter.
    for common, least in ((math.gcd(*lengths), most / 2), (math.gcd(*lengths[:-1]), most / _LEAST_SHARE)):
        rows = most if common == 0 else _largest_divisor(common, most)
        if rows >= least:
            return rows
    return most


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`."""
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return max(part for divisor in small for part in (divisor, number // divisor) if part <= most)


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks with consecutive records of a shard, in row order."""

    files: NDArray[np.int64]  # number of the shard
    first: NDArray[np.int64]  # number of the first record in its shard
    counts: NDArray[np.int64]  # records
    begins: NDArray[np.int64]  # in the decompressed stream
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]  # of the bytes that are referred to: all of a compressed shard
    nbytes: NDArray[np.int64]
    checksums: NDArray[np.int64]

    @classmethod
    def plan(cls, pieces: Sequence[Piece], scans: Sequence[Scan], shards: Shards, rows: int) -> Chunks:
        """Divide pieces into chunks of that many rows."""
        parts = []
        for number, start, end in pieces:
            scan, whole = scans[number], scans[number].compression is not None
            if whole and end - start < len(scan.ends):
                raise SchemaError(
                    "a part of a compressed shard has no bytes of its own: select whole shards",
                    Location(shards.paths[number]),
                )
            firsts = np.arange(start, end, end - start if whole else rows)
            stops = np.append(firsts[1:], end)
            begins, ends = scan.begins[firsts], scan.ends[stops - 1]
            spans = zip(firsts.tolist(), stops.tolist(), strict=True)
            parts.append(
                cls(
                    files=np.full(len(firsts), number),
                    first=firsts,
                    counts=stops - firsts,
                    begins=begins,
                    ends=ends,
                    offsets=np.zeros_like(begins) if whole else begins,
                    nbytes=shards.sizes[number : number + 1] if whole else ends - begins,
                    checksums=np.array([records_checksum(scan.crcs[first:stop]) for first, stop in spans], np.int64),
                )
            )
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))

    @property
    def nrecords(self) -> int:
        """Number of records."""
        return int(self.counts.sum())

    def of_codec(self) -> NDArray[np.uint64]:
        """Return what the codec knows of each chunk."""
        return np.stack([self.checksums, self.files, self.first, self.begins], axis=1).astype(np.uint64)

    def run(self, shards: Shards, number: int) -> RecordRange:
        """Return the run of the records of a chunk."""
        first = int(self.first[number])
        begin = int(self.begins[number])
        end = int(self.ends[number])
        return RecordRange(
            shards[int(self.files[number])], first, int(self.counts[number]), first, begin, end, ends_shard=False
        )

    def locate(self, shards: Shards, number: int, row: int, feature: str) -> Location:
        """Return the location of a row of a chunk."""
        return Location(shards.paths[self.files[number]], int(self.first[number]) + row, feature=feature)


# Of a column in a chunk: lengths of the rows of each level, shapes of arrays, and number of values.
class Sizes(NamedTuple):
    """Sizes of the rows of a block."""

    # Items of each row, then of each item of these, and so on.
    levels: list[NDArray[np.int64]]
    # Shapes of the rows, or items, that have their own.
    shapes: NDArray[np.int64] | None
    # Number of the innermost items.
    items: int


def sizes_of(block: Any) -> Sizes:
    """Return the sizes of the rows of a block."""
    levels, shapes, items = [], None, len(block)
    while isinstance(block, RaggedBlock | ArraysBlock):
        shapes = block.shapes if isinstance(block, ArraysBlock) else shapes
        levels.append(np.diff(block.row_splits))
        items = int(block.row_splits[-1])
        block = block.values
    return Sizes(levels, shapes, items)


def measure_rows(shards: Shards, decoder: Decoder, chunks: Chunks) -> list[dict[str, Sizes]]:
    """Return the sizes of rows that differ in length, by chunk and column; a pass over the values finds them."""
    names = tuple(flat_levels(with_strings(decoder.columns)))
    if not names:
        return []
    parts = joined_parts((splits_of(chunks.ends - chunks.begins).tolist(), limits().scan_task_nbytes))
    calls = [partial(_measure_chunks, names=names, start=start, stop=stop) for start, stop in pairwise(parts)]
    sizes = size_decoder(decoder)
    return list(chain.from_iterable(compute_with_progress(calls, "Measuring rows", shards, sizes, chunks)))


def _measure_chunks(
    shards: Shards, decoder: Decoder, chunks: Chunks, names: tuple[str, ...], start: int, stop: int
) -> list[dict[str, Sizes]]:
    """Decode some chunks without keeping them, and return the sizes of their columns."""
    runs = ([chunks.run(shards, number)] for number in range(start, stop))
    sizes = []
    for number, blocks in enumerate(decode_blocks(((run, run[0].count, {}) for run in runs), decoder, names), start):
        check_group_lengths(decoder.columns.groups, blocks, partial(chunks.locate, shards, number))
        sizes.append({name: sizes_of(block) for name, block in blocks.items()})
    return sizes
