"""Lengths of the rows of ragged columns, measured in the pass that counts the records of remote shards.

A writer needs them before it writes: without them it reads the shards once more to measure. They are kept in the
process that opened the shards, as far as they fit in `Limits.offsets_nbytes`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import flatten_block
from dask_tfrecord.columns.decoder import Decoder, decode, size_decoder
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.index import Entries, Lengths, RecordRange, ShardIndex, join_lengths, whole_records
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.sources import RecordSource
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.shard import Shard, Shards, is_local


@dataclass(frozen=True, slots=True)
class Measuring:
    """Counts the records of shards as `index_entries` does, and measures columns in the same pass."""

    # For sizes.
    decoder: Decoder
    names: tuple[str, ...]
    # Most bytes of lengths for each byte of a shard.
    share: float

    @classmethod
    def of_remote(cls, shards: Shards, schema: Schema) -> Measuring | None:
        """Return how to measure the ragged columns of remote shards; None for local ones, which are read fast."""
        total = int(shards.sizes.sum())
        if not total or is_local(shards.paths[0]):
            return None
        decoder = size_decoder(Decoder(schema))
        features = decoder.columns.items()
        names = tuple(name for name, each in features if each.ragged_rank or each.own_shapes or each.is_bytes)
        if not names or decoder.keeps_values(names):
            return None
        return cls(decoder, names, limits().offsets_nbytes / total)

    def index_entries(
        self, window: Window, *, stop: int | None = None, check_crc: bool = True, apart: int | None = None
    ) -> ShardIndex:
        """Walk records from the position of a window; without lengths if these would take too much memory.

        Raises an error if a record is damaged or refused, which need not be the one that counting alone raises.
        """
        begin, apart = window.offset, limits().entry_nbytes if apart is None else apart
        found, lengths, nbytes = Entries([0], [begin], 0, begin), list[Lengths | None](), 0
        while (stop is None or window.offset < stop) and not window.exhausted:
            ends = whole_records(window, stop, check_crc)
            begins = np.append(0, ends[:-1])
            if None not in lengths:
                measured = self._measure(window, begins, ends, check_crc)
                nbytes += _lengths_nbytes(measured)
                lengths.append(measured)
                if nbytes > self.share * (window.offset + int(ends[-1]) - begin):
                    lengths = [None]
            offsets = begins + window.offset
            while (index := int(np.searchsorted(offsets, found.offsets[-1] + apart))) < len(offsets):
                found.records.append(found.count + index)
                found.offsets.append(int(offsets[index]))
            found.count += len(ends)
            window.advance(int(ends[-1]))
        found.end = window.offset
        return found.index(window.compression, join_lengths(lengths))

    def _measure(self, window: Window, begins: NDArray[np.int64], ends: NDArray[np.int64], check_crc: bool) -> Lengths:
        """Return the lengths in the records in view."""
        data = np.frombuffer(window.view(0, int(ends[-1])), np.uint8)
        shard = Shard(window.shard.path, len(data), window.shard.version, None, data=data)
        run = RecordRange(shard, 0, len(ends), 0, 0, len(data), ends_shard=True, spans=(begins, ends))
        blocks = decode([run], self.decoder, self.names, rows=len(ends), check_crc=check_crc)
        return {name: tuple(map(np.diff, flatten_block(block)[0])) for name, block in blocks.items()}


class _Kept:
    """Lengths of the data sets that this process opened last."""

    def __init__(self) -> None:
        self._lock, self._found = threading.Lock(), OrderedDict[str, Lengths]()

    def keep(self, shards: Shards, measuring: Measuring, indexes: Sequence[ShardIndex]) -> None:
        """Keep the lengths of all rows, if all shards were measured."""
        lengths = join_lengths([index.lengths for index in indexes if index.count])
        if lengths is None:
            return
        with self._lock:
            self._found[tokenize(shards, measuring.decoder)] = lengths
            while len(self._found) > 1 and sum(map(_lengths_nbytes, self._found.values())) > limits().offsets_nbytes:
                self._found.popitem(last=False)

    def of(self, source: object) -> Lengths:
        """Return the lengths of all rows of a source by column; none if they are unknown."""
        if not self._found or not isinstance(source, RecordSource) or not isinstance(source.rows, range):
            return {}
        if source.rows != range(source.collection.nrows):
            return {}
        return self._found.get(tokenize(source.shards, size_decoder(source.decoder)), {})


def _lengths_nbytes(lengths: Lengths) -> int:
    return sum(level.nbytes for levels in lengths.values() for level in levels)


kept_lengths = _Kept()
