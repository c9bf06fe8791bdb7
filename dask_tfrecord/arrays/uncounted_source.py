"""Source of rows that are not counted: chunks are ranges of bytes, whose records are found when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import ByteChunks
from dask_tfrecord.arrays.sources import Outputs, Source, memory_limit, shards_origin
from dask_tfrecord.columns.blocks import Block, block_nbytes
from dask_tfrecord.columns.column_plan import SchemaPlan, SizePlan
from dask_tfrecord.columns.decode import decode
from dask_tfrecord.errors import CorruptRecordError, FeatureError, ShardChangedError
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import index_entries, walk
from dask_tfrecord.records.splits import ByteSplit, Run, SplitEntry, find_entry, find_entry_by_walk
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shard import Shard, Shards

__all__ = ["UncountedSource", "decoded_ratio"]

# Stored bytes of the records that are decoded to estimate the ratio of decoded to stored bytes.
_PROBE_NBYTES = 256 << 10
# Bytes read beyond a split: the last record of most splits ends within them.
_BEYOND = 64 << 10
# Assumed ratio of decompressed to compressed bytes.
_INFLATION = 10

_REFUSED = "rows can't be picked where counts=None left them uncounted; open with counts='auto'"


@dataclass(frozen=True, slots=True, eq=False)
class UncountedSource:
    """Rows of TFRecord shards that are not counted, in chunks of any number of rows.

    Attributes
    ----------
    chunks : ByteChunks
        Shards and borders of the chunks.
    plan : SchemaPlan
        Plan that decodes records to columns.
    check_crc : bool
        Check the CRCs of records that are read.
    """

    chunks: ByteChunks
    plan: SchemaPlan
    check_crc: bool

    def __dask_tokenize__(self) -> object:
        chunks = (self.chunks.shards, self.chunks.borders)
        return normalize_token(("dask_tfrecord.UncountedSource", chunks, self.plan, self.check_crc))

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.plan.columns

    @property
    def nrows(self) -> None:
        """`None`: rows are not counted."""
        return None

    @property
    def rows(self) -> None:
        """`None`: rows are not counted."""
        return None

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions."""
        return shards_origin(self.chunks.shards)

    def sizes_only(self) -> Source:
        """Return the source itself."""
        return self

    def with_memory_limit(self, nbytes: int) -> Source:
        """Return the source itself: a chunk is read as a whole."""
        return self

    def select(self, key: Any) -> Source:
        """Raise `ValueError`: the positions of rows are unknown."""
        raise ValueError(_REFUSED)

    def describe(self, key: Any) -> str:
        """Return the files and ranges of bytes of a chunk as text, for errors."""
        parts = [
            shard.path if split is None else f"{shard.path}: records from byte {split.start} to {split.stop}"
            for shard, split in self.chunks.byte_ranges(key)
        ]
        return " to ".join(dict.fromkeys([parts[0], parts[-1]])) if parts else "no records"

    def refine(self, borders: NDArray[Any], nbytes: int) -> NDArray[Any]:
        """Return the borders unchanged."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read all rows of chunk number `key`."""
        ranges = list(self.chunks.byte_ranges(key))
        entries = [_entry(shard, split, self.check_crc) for shard, split in ranges]
        try:
            return self._decode(names, ranges, entries)
        except ShardChangedError:
            raise
        except (CorruptRecordError, FeatureError):
            if all(entry is None or entry.record is not None for entry in entries):
                raise
        # The first header that was found may lie in a payload, and record numbers are unknown. A walk from the start of
        # the shard determines both.
        certain = [SplitEntry(0, 0) if split is None else find_entry_by_walk(shard, split) for shard, split in ranges]
        return self._decode(names, ranges, certain)

    def first(self, names: Sequence[str], rows: int) -> dict[str, Block]:
        """Read the first rows, or all if there are fewer; only the headers of their shards up to there are walked."""
        runs = []
        for shard in self.chunks.shards:
            if rows <= 0:
                break
            count = 0
            with Window(shard) as window:
                for step in walk(window, check_crc=self.check_crc):
                    count = min(step.first + step.count, rows)
                    if count == rows:
                        break
            if count:
                runs.append(Run(shard, 0, count, 0, 0, shard.size, ends_shard=False))
            rows -= count
        return decode(runs, self.plan, names, rows=None, check_crc=self.check_crc, limit=memory_limit())

    def _decode(
        self,
        names: Sequence[str],
        ranges: Sequence[tuple[Shard, ByteSplit | None]],
        entries: Sequence[SplitEntry | None],
    ) -> dict[str, Block]:
        runs = [
            _run(shard, split, entry)
            for (shard, split), entry in zip(ranges, entries, strict=True)
            if entry is not None and (split is None or entry.offset < split.stop)
        ]
        return decode(runs, self.plan, names, rows=None, check_crc=self.check_crc, limit=memory_limit())

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Raise `ValueError`: the positions of rows are unknown."""
        raise ValueError(_REFUSED)


def decoded_ratio(shards: Shards, plan: SchemaPlan, check_crc: bool) -> float:
    """Estimate the ratio of decoded to stored bytes, at least 1, from the first records of the collection."""
    shard = next((shard for shard in shards if shard.size), None)
    if shard is None:
        return 1.0
    with Window(shard, stop=_PROBE_NBYTES) as window:
        nbytes = index_entries(window, stop=_PROBE_NBYTES, check_crc=check_crc).end
        stored = nbytes if window.compression is None else nbytes / _INFLATION
    if not stored:  # compressed and empty
        return 1.0
    run = _run(shard, ByteSplit(0, _PROBE_NBYTES), SplitEntry(0, 0))
    # Values are not decoded: small records may decode to large ones.
    sizes = SizePlan(plan.schema)
    blocks = decode([run], sizes, tuple(sizes.columns), rows=None, check_crc=check_crc, limit=memory_limit())
    return max(1.0, sum(map(block_nbytes, blocks.values())) / stored)


def _entry(shard: Shard, split: ByteSplit | None, check_crc: bool) -> SplitEntry | None:
    return SplitEntry(0, 0) if split is None else find_entry(shard, split, check_crc=check_crc)


def _run(shard: Shard, split: ByteSplit | None, entry: SplitEntry) -> Run:
    past = shard.size if split is None else min(shard.size, split.stop + _BEYOND)
    record = entry.record or 0
    return Run(shard, record, None, record, entry.offset, past, ends_shard=split is None, split=split)
