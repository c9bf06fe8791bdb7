"""Records into blocks: runs of records go through the native decoder, what it refuses becomes the public error.

This is the one way from the bytes of shards to NumPy. A run names a stretch of consecutive records of one shard and a
place to start reading from; the decoder is fed windows of a few MiB, so memory is the output and one window.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import Block, BytesBlock, RaggedBlock, to_text
from dask_tfrecord.columns.recognise import describe_payload
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place, TFRecordError
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.records.framing import HEADER, Window, framing_error
from dask_tfrecord.records.index import cut_error
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.files import Shard

__all__ = ["Run", "decode", "decode_pieces"]

# The numbers of native/columns.hpp.
_KINDS = {"bytes": 1, "float32": 2, "int64": 3}
_FIXED, _RAGGED, _RAW, _SKIPPED, _UNSET = range(5)
_MALFORMED, _NOT_EXAMPLE, _MISSING, _KIND, _COUNT, _SIZE, _UTF8, _UNKNOWN_KEY, _BOOLEAN = range(1, 10)

# Bytes read at once: no more than a block, which stays in cache, and no less than a few pages.
_BLOCK = 1 << 20
_LEAST = 16 << 10

_log = logging.getLogger(__name__)

_Spec = tuple[bytes, int, int, int, int, bool, bool]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records of one shard.

    Attributes
    ----------
    shard : Shard
        Where they are.
    first : int
        Number of the first one in the shard.
    count : int or None
        How many; None for all to the end of the shard.
    mark : int
        Number of a record at or before the first, whose place is known.
    offset : int
        The byte of that record's header in the decompressed stream.
    past : int
        A byte that lies past the run, as far as is known: no more than up to there is read at once.
    last : bool
        The run ends where the shard ends: bytes that follow are an error.
    """

    shard: Shard
    first: int
    count: int | None
    mark: int
    offset: int
    past: int
    last: bool


def decode(
    runs: Iterable[Run],
    schema: Schema,
    names: Sequence[str],
    *,
    rows: int | None,
    check_crc: bool = True,
    out: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, Block]:
    """Features of runs of records, decoded in one pass.

    Parameters
    ----------
    runs : iterable of Run
        In the order of the rows; those of one shard ascend.
    schema : Schema
        All that is known of the records.
    names : sequence of str
        The features to decode.
    rows : int or None
        Records of all runs together, None where that is not known.
    check_crc : bool, default True
        Check both CRCs of every record that is decoded.
    out : mapping of str to ndarray, optional
        Contiguous arrays of shape ``(rows, *shape)`` that numeric features are decoded into.

    Returns
    -------
    dict of str to Block
        In the order of `names`; those of `out` are the arrays given.

    Raises
    ------
    CorruptRecordError
        If the framing of a record is damaged, a shard ends early or holds more records than it should.
    FeatureError
        If a record is no Example or not what the schema says.
    """
    with closing(decode_pieces([(runs, rows, dict(out or {}))], schema, names, check_crc=check_crc)) as pieces:
        return next(pieces)


def decode_pieces(
    pieces: Iterable[tuple[Iterable[Run], int | None, dict[str, NDArray[Any]]]],
    schema: Schema,
    names: Sequence[str],
    *,
    check_crc: bool = True,
) -> Generator[dict[str, Block], None, None]:
    """Decode runs piece by piece: a shard is entered once, however many pieces follow each other in it.

    Parameters
    ----------
    pieces : iterable of (runs, rows, out)
        Each as `decode` takes it. The next one is asked for when the blocks of the one before are done with.
    schema, names, check_crc
        As `decode` takes them.

    Yields
    ------
    dict of str to Block
        Of one piece.
    """
    reader: _Reader | None = None
    try:
        for runs, rows, out in pieces:
            runs = list(runs)
            job = _Job(schema, tuple(names), rows, check_crc, out)
            job.nbytes = sum(run.past - run.offset for run in runs)
            for run in runs:
                if reader is None or not reader.reaches(run):
                    if reader is not None:
                        reader.window.close()
                    reader = _Reader(run, check_crc)
                reader.read(run, job)
            yield job.blocks()
    finally:
        if reader is not None:
            reader.window.close()


class _Job:
    """The decoder of one call, and the arrays it fills."""

    def __init__(
        self, schema: Schema, names: tuple[str, ...], rows: int | None, check_crc: bool, out: dict[str, NDArray[Any]]
    ) -> None:
        self.schema, self.names, self.rows = schema, names, rows
        self.nbytes = 0  # of all runs, until the first of them has said what becomes of them
        self.records = 0  # decoded so far
        # An inferred schema has only seen a sample: when all of it is read, a key that it lacks would be lost.
        sampling = schema.sampling if schema.sampling is not None and set(names) == set(schema) else None
        self.unset = sampling.unset if sampling else ()
        specs = [_spec(name, schema[name]) for name in names]
        specs += [_idle(name, _SKIPPED) for name in schema if name not in set(names)]
        specs += [_idle(name, _UNSET) for name in self.unset]
        self.decoder = _native.Decoder(specs, check_crc, sampling is not None)
        self.arrays: dict[str, NDArray[Any]] = {}
        for index, name in enumerate(names):
            feature = schema[name]
            if rows is not None and _is_dense(feature):
                array = out.get(name)
                if array is None:
                    array = np.empty((rows, *feature.block_shape), feature.block_dtype)
                self.decoder.lend(index, array.reshape(-1).view(np.uint8))
                self.arrays[name] = array

    def learn(self, records: int, consumed: int) -> None:
        """Take note of records; the first block of them says how much room all will take."""
        self.records += records
        if records and self.nbytes:
            times = self.nbytes / consumed if self.rows is None else min(self.nbytes / consumed, self.rows / records)
            self.decoder.expect(times * 1.05)
            self.nbytes = 0

    def blocks(self) -> dict[str, Block]:
        """Hand out what was decoded, feature by feature."""
        return {name: self._block(index, name) for index, name in enumerate(self.names)}

    def _block(self, index: int, name: str) -> Block:
        feature = self.schema[name]
        if name in self.arrays:
            return self.arrays[name]
        values, value_splits, row_splits = self.decoder.take(index)
        if isinstance(feature, VarLenFeature):
            inner = feature.shape[1:]
            each = math.prod(inner)
            items: Any = values
            if value_splits is not None:
                items = BytesBlock(items, value_splits, ((len(value_splits) - 1) // each, *inner))
            elif inner:
                items = items.reshape(-1, *inner)
            return RaggedBlock(items, row_splits // each if each > 1 else row_splits)  # type: ignore[operator, arg-type]
        if value_splits is not None:
            block = BytesBlock(values, value_splits, (self.records, *feature.block_shape))  # type: ignore[arg-type]
            return to_text(block) if isinstance(feature, TextFeature) else block
        # The number of rows was not known, so the decoder's own memory has grown with them.
        dense: NDArray[Any] = values.view(feature.block_dtype)  # type: ignore[union-attr]
        return dense.reshape(self.records, *feature.block_shape)


def _is_dense(feature: Feature) -> bool:
    return isinstance(feature, RawFeature) or (isinstance(feature, FixedLenFeature) and feature.dtype != "bytes")


def _spec(name: str, feature: Feature) -> _Spec:
    key = name.encode()
    if isinstance(feature, RawFeature):
        dtype = feature.stored_dtype
        swap = 1 if dtype.isnative else dtype.itemsize // (2 if dtype.kind == "c" else 1)
        return key, _KINDS["bytes"], _RAW, feature.nbytes, swap, False, dtype.kind == "b"
    kind = _KINDS[feature.dtype]
    if isinstance(feature, VarLenFeature):
        return key, kind, _RAGGED, math.prod(feature.shape[1:]), 1, False, False
    return key, kind, _FIXED, math.prod(feature.shape), 1, isinstance(feature, TextFeature), False


def _idle(name: str, layout: int) -> _Spec:
    return name.encode(), 0, layout, 1, 1, False, False


class _Reader:
    """A window on one shard that knows which record it stands at."""

    def __init__(self, run: Run, check_crc: bool) -> None:
        self.shard = run.shard
        self.check_crc = check_crc
        self.window = Window(run.shard, run.offset, block_size=_LEAST)
        self.record = run.mark

    def reaches(self, run: Run) -> bool:
        """Whether the run lies ahead in the same shard."""
        return run.shard == self.shard and run.first >= self.record

    def read(self, run: Run, job: _Job) -> None:
        """Decode the run."""
        _log.debug("decode %s from record %d, %s of them, of %s", job.names, run.first, run.count, run.shard.path)
        if run.mark > self.record:
            self.window.advance(run.offset - self.window.offset)
            self.record = run.mark
        self._skip(run)
        left = -1 if run.count is None else run.count
        window = self.window
        while left != 0:
            records, consumed, stop, need = job.decoder.feed(window.buffer, window.begin, window.end, left)
            window.advance(consumed)
            self.record += records
            left -= records if left > 0 else 0
            job.learn(records, consumed)
            if stop == _native.FEATURE:
                raise self._feature_error(job)
            if stop == _native.FRAMING:
                raise framing_error(window, self.record)
            if stop == _native.MORE and not self._fill(need, run):
                if run.count is None and window.exhausted:
                    return
                raise self._ended(left)
        if run.last and not window.exhausted:
            raise CorruptRecordError(
                f"{self.record} records were expected, and more bytes follow them: the counts given are wrong, or the "
                f"file has changed since it was counted",
                Place(self.shard.path, self.record, window.offset),
            )

    def _fill(self, need: int, run: Run) -> bool:
        """Have `need` bytes in view, and a block of what is left of the run."""
        window = self.window
        left = run.past - window.offset - (window.end - window.begin)
        window.block_size = min(max(left, need, _LEAST), _BLOCK) if left > 0 else _BLOCK
        return window.fill(need)

    def _skip(self, run: Run) -> None:
        count = run.first - self.record
        while count > 0:
            window, border = self.window, self.window.offset
            records, advance, stop, need = _native.scan(window.buffer, window.begin, window.end, count, self.check_crc)
            if not window.advance(advance):
                raise cut_error(self.shard, border, self.record, records)
            self.record += records
            count -= records
            if stop == _native.FRAMING:
                raise framing_error(window, self.record)
            if stop == _native.MORE and not self._fill(need, run):
                raise self._ended(count)

    def _ended(self, missing: int) -> TFRecordError:
        if not self.window.exhausted:
            return framing_error(self.window, self.record)
        return CorruptRecordError(
            f"the shard ends where {missing} more records were expected: the counts given are wrong, or the file has "
            f"changed since it was counted",
            Place(self.shard.path, self.record, self.window.offset),
        )

    def _feature_error(self, job: _Job) -> FeatureError:
        fault, column, found, key = job.decoder.problem()
        place = Place(self.shard.path, self.record, self.window.offset)
        if fault in (_MALFORMED, _NOT_EXAMPLE):
            length = int.from_bytes(self.window.view(0, 8), "little")
            payload = bytes(self.window.view(HEADER, HEADER + length))
            return FeatureError(
                f"expected an Example, found {describe_payload(payload)} of {length} bytes"
                + (" that protobuf can't parse as one" if fault == _MALFORMED else "")
                + "; read_records(urlpath) gives the payloads as they are",
                place,
            )
        if fault == _UNKNOWN_KEY:
            text = f"feature {key.decode()!r} is not among those of the schema"
            name = key.decode()
        elif column >= len(job.names):
            name = job.unset[column - len(job.schema)]
            text = f"feature {name!r} holds {_kind_name(found)}, and was never set in the records sampled"
        else:
            name = job.names[column]
            text = f"feature {name!r} {_difference(job.schema[name], fault, found)}"
        if job.schema.sampling is not None:
            text += (
                f" (inferred from {job.schema.sampling.records} records; infer_schema(urlpath, sample=None) reads all "
                f"of them, or give features=)"
            )
        return FeatureError(text, Place(place.file, place.record, place.offset, name))


def _kind_name(kind: int) -> str:
    return {1: "a bytes list", 2: "a float list", 3: "an int64 list"}.get(kind, "no list")


def _difference(feature: Feature, fault: int, found: int) -> str:
    """Say what was found where the feature takes something else."""
    if fault == _MISSING:
        return f"is missing where {feature} needs it"
    if fault == _KIND:
        return f"holds {_kind_name(found)} where {feature} takes {_kind_name(_KINDS.get(feature.dtype, 1))}"
    if fault == _SIZE and isinstance(feature, RawFeature):
        return f"holds {found} bytes where {feature} takes {feature.nbytes}"
    if fault == _UTF8:
        return f"is no UTF-8 where {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
    if fault == _BOOLEAN:
        return f"holds a byte {found} where {feature} takes 0 and 1; RawFeature(shape, 'uint8') reads any byte"
    values = f"{found} value{'' if found == 1 else 's'}"
    if isinstance(feature, VarLenFeature):
        return f"holds {values} where {feature} takes a multiple of {math.prod(feature.shape[1:])}"
    takes = 1 if isinstance(feature, RawFeature) else math.prod(feature.shape)
    return f"holds {values} where {feature} takes {takes}"
