"""Lengths of the rows of ragged columns: measured in the pass that counts remote shards, or kept next to the shards.

A writer needs them before it writes: without them it reads the shards once more to measure. They are kept in the
process that opened the shards, as far as they fit in `Limits.offsets_nbytes`. `build_index` writes them to
`FILE.lengths.idx`: a line of JSON, and then the lengths of each level of each column.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.blocks import flatten_block
from dask_tfrecord.columns.decoder import Decoder, decode, size_decoder
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.index import (
    Entries,
    Lengths,
    RecordRange,
    ShardIndex,
    join_lengths,
    scan_shard,
    whole_records,
)
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.chunk_borders import group_by_size
from dask_tfrecord.rows.sources import RecordSource
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.checksums import masked_crc32c
from dask_tfrecord.shards.listing import Sidecar, find_sidecars, sidecar_path
from dask_tfrecord.shards.shard import Shard, Shards, is_local
from dask_tfrecord.shards.streams import open_sink, read_bytes, written_or_discarded

LENGTHS_SUFFIX = ".lengths.idx"
# Raise the number when a feature class measures its rows in another way: older files are not used then.
_VERSION = 1


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
        return cls.of_schema(schema, limits().offsets_nbytes / total)

    @classmethod
    def of_schema(cls, schema: Schema, share: float = math.inf) -> Measuring | None:
        """Return how to measure ragged columns; None without them, or if measuring keeps their values."""
        decoder = size_decoder(Decoder(schema))
        features = decoder.columns.items()
        names = tuple(name for name, each in features if each.ragged_rank or each.own_shapes or each.is_bytes)
        if not names or decoder.keeps_values(names):
            return None
        return cls(decoder, names, share)

    def write(self, shard: Shard) -> dict[str, int]:
        """Write the lengths in a shard next to it; return the bytes of the file by its path."""
        path = sidecar_path(shard.path, LENGTHS_SUFFIX)
        index = scan_shard(shard, walker=self.index_entries)
        assert path is not None
        lengths = {name: () for name in self.names} if index.lengths is None else index.lengths
        levels = {
            name: [each.astype(np.min_scalar_type(each.max(initial=0)).newbyteorder("<")) for each in lengths[name]]
            for name in lengths
        }
        body = b"".join(each.tobytes() for each in chain(*levels.values()))
        header = {
            **_described(shard, index.count, self.decoder),
            "shard_version": shard.version,
            "crc": masked_crc32c(body),
            "columns": {name: [[each.itemsize, len(each)] for each in columns] for name, columns in levels.items()},
        }
        text = json.dumps(header).encode() + b"\n"
        with written_or_discarded(open_sink(path, storage_options=shard.storage_options)) as sink:
            sink.write(text)
            sink.write(body)
        return {path: len(text) + len(body)}

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
        if not isinstance(source, RecordSource) or not isinstance(source.rows, range):
            return {}
        if source.rows != range(source.collection.nrows):
            return {}
        decoder = size_decoder(source.decoder)
        kept = self._found.get(tokenize(source.shards, decoder))
        return _stored_lengths(source, decoder) if kept is None else kept


def _described(shard: Shard, records: int, decoder: Decoder) -> dict[str, object]:
    """Return what a file of lengths has in common with the rows that it is used for."""
    return {"lengths": _VERSION, "shard_nbytes": shard.size, "records": records, "features": tokenize(decoder)}


def _stored_lengths(source: RecordSource, decoder: Decoder) -> Lengths:
    """Read the lengths of all rows from the files next to the shards; none if a file is missing or does not fit."""
    shards, counts = source.shards, source.collection.counts.tolist()
    files = [each for each in find_sidecars(shards, LENGTHS_SUFFIX) if each is not None]
    sizes = [each.file.size for each in files]
    # A length has a byte or more there, and eight in memory.
    if not files or len(files) < len(shards) or 8 * sum(sizes) > limits().offsets_nbytes:
        return {}
    expected = [_described(*each, decoder) for each in zip(shards, counts, strict=True)]
    calls = [
        partial(_read_lengths, files[part], expected[part], shards.versions[part]) for part in group_by_size(sizes)
    ]
    found = list(chain.from_iterable(compute_with_progress(calls, "Reading lengths")))
    return join_lengths([each for each, count in zip(found, counts, strict=True) if count]) or {}


def _read_lengths(
    files: Sequence[Sidecar], expected: Sequence[dict[str, object]], versions: Sequence[str]
) -> list[Lengths | None]:
    """Read files of lengths; None for one that is damaged, or describes other features or an earlier shard."""
    return [_lengths_in(*each) for each in zip(files, expected, versions, strict=True)]


def _lengths_in(sidecar: Sidecar, expected: dict[str, object], version: str) -> Lengths | None:
    try:
        text, _, body = read_bytes(sidecar.file, 0, sidecar.file.size).partition(b"\n")
        header = json.loads(text)
        is_same = header.items() >= expected.items() and (sidecar.newer or header["shard_version"] == version)
        if not is_same or header["crc"] != masked_crc32c(body):
            return None
        columns, at = dict[str, tuple[NDArray[np.int64], ...]](), 0
        for name, levels in header["columns"].items():
            columns[name] = ()
            for itemsize, count in levels:
                columns[name] += (np.frombuffer(body, f"<u{itemsize}", count, at).astype(np.int64),)
                at += itemsize * count
    except (TFRecordError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return columns


def _lengths_nbytes(lengths: Lengths) -> int:
    return sum(level.nbytes for levels in lengths.values() for level in levels)


kept_lengths = _Kept()
