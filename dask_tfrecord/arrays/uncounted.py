"""Rows that nobody has counted: shards in chunks of bytes, each of which finds its own records when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.plan import ByteChunks
from dask_tfrecord.arrays.source import Out, Source, origin_of
from dask_tfrecord.columns.blocks import Block, block_nbytes
from dask_tfrecord.columns.decode import Run, decode
from dask_tfrecord.columns.recipes import Parser
from dask_tfrecord.errors import CorruptRecordError, FeatureError, ShardChangedError
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import mark
from dask_tfrecord.records.splits import Entry, Split, find_entry, sure_entry
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.shards import Shard, Shards

__all__ = ["UncountedSource", "decoded_ratio"]

# Records that begin in so many bytes are decoded to learn how large they become.
_PROBE_NBYTES = 256 << 10
# Most last records of a split end within so many bytes behind it.
_BEYOND = 64 << 10
# Bytes that a compressed one becomes, so far as nobody has looked.
_INFLATION = 10

_REFUSED = "rows can't be picked where counts=None left them uncounted; open with counts='auto'"


@dataclass(frozen=True, slots=True, eq=False)
class UncountedSource:
    """Rows of TFRecord shards that were not counted, in chunks of any number of rows.

    Attributes
    ----------
    chunks : ByteChunks
        The shards, and where they are cut.
    parser : Parser
        What their records hold, and the columns made of it.
    check_crc : bool
        Check the CRCs of what is read.
    """

    chunks: ByteChunks
    parser: Parser
    check_crc: bool

    def __dask_tokenize__(self) -> object:
        plan = (self.chunks.shards, self.chunks.borders)
        return normalize_token(("dask_tfrecord.UncountedSource", plan, self.parser, self.check_crc))

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.parser.columns

    @property
    def nrows(self) -> None:
        """Nobody knows."""
        return None

    @property
    def rows(self) -> None:
        """Nobody knows."""
        return None

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files and sizes."""
        return origin_of(self.chunks.shards)

    def sized(self) -> Source:
        """Give the same."""
        return self

    def select(self, key: Any) -> Source:
        """Refuse: nobody knows where a row is."""
        raise ValueError(_REFUSED)

    def refine(self, borders: NDArray[Any], nbytes: int) -> NDArray[Any]:
        """Nothing is known that borders could be refined by."""
        return borders

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """All rows of chunk number `key`."""
        pieces = list(self.chunks.pieces(key))
        entries = [_entry(shard, split, self.check_crc) for shard, split in pieces]
        try:
            return self._decode(names, pieces, entries)
        except ShardChangedError:
            raise
        except (CorruptRecordError, FeatureError):
            if all(entry is None or entry.record is not None for entry in entries):
                raise
        # What was found may be the payload of a record, and its number is not known: both are certain where the shard
        # is walked from its beginning.
        sure = [Entry(0, 0) if split is None else sure_entry(shard, split) for shard, split in pieces]
        return self._decode(names, pieces, sure)

    def _decode(
        self, names: Sequence[str], pieces: Sequence[tuple[Shard, Split | None]], entries: Sequence[Entry | None]
    ) -> dict[str, Block]:
        runs = [
            _run(shard, split, entry)
            for (shard, split), entry in zip(pieces, entries, strict=True)
            if entry is not None and (split is None or entry.offset < split.stop)
        ]
        return decode(runs, self.parser, names, rows=None, check_crc=self.check_crc)

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Refuse: nobody knows where a row is."""
        raise ValueError(_REFUSED)


def decoded_ratio(shards: Shards, parser: Parser, check_crc: bool) -> float:
    """Tell how many bytes become of a stored one, by the first records of the first shard that holds any; 1 or more."""
    shard = next((shard for shard in shards if shard.size), None)
    if shard is None:
        return 1.0
    with Window(shard, stop=_PROBE_NBYTES) as window:
        nbytes = mark(window, stop=_PROBE_NBYTES, check_crc=check_crc).end
        stored = nbytes if window.compression is None else nbytes / _INFLATION
    if not stored:  # compressed, and there is nothing in it
        return 1.0
    run = _run(shard, Split(0, _PROBE_NBYTES), Entry(0, 0))
    blocks = decode([run], parser, tuple(parser.columns), rows=None, check_crc=check_crc)
    return max(1.0, sum(map(block_nbytes, blocks.values())) / stored)


def _entry(shard: Shard, split: Split | None, check_crc: bool) -> Entry | None:
    return Entry(0, 0) if split is None else find_entry(shard, split, check_crc=check_crc)


def _run(shard: Shard, split: Split | None, entry: Entry) -> Run:
    past = shard.size if split is None else min(shard.size, split.stop + _BEYOND)
    record = entry.record or 0
    return Run(shard, record, None, record, entry.offset, past, last=split is None, split=split)
