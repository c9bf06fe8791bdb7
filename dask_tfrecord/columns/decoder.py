"""Decoder: which keys each column needs, and how record ranges become blocks.

A run names records of one shard, consecutive or selected, and an index entry to start reading from. The native decoder
is fed windows of about a MiB, so memory is the output and one window. Records that are not selected are skipped by
their headers. A record that the decoder refuses becomes a `FeatureError` or a `CorruptRecordError`.
"""

from __future__ import annotations

import functools
import logging
import math
import struct
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Content, Fault, Kind, Stop, ValueLayout
from dask_tfrecord.blocks import Arrays, Block, MemoryLimit, RowError, RowLimitError, allocating
from dask_tfrecord.columns.message_fields import MessageTables, columns_in_bytes, message_columns, message_tables
from dask_tfrecord.errors import (
    FEATURES,
    CorruptRecordError,
    FeatureError,
    FeatureValueError,
    Location,
    MemoryLimitError,
    SchemaError,
    Spelled,
    TFRecordError,
    near_misses,
    plural,
    redact_url,
    refused,
)
from dask_tfrecord.features import Feature, FixedLenFeature, ProtoFeature
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.dtypes import stored_kind
from dask_tfrecord.features.inference.payload_type import payload_error
from dask_tfrecord.features.keys import MESSAGES, Decoded, KeyOutput, KeySpec
from dask_tfrecord.features.listed import is_padded, lengths
from dask_tfrecord.features.schema import ITEMS, Sampling, Schema, unset_keys
from dask_tfrecord.features.tensor import found_tensor
from dask_tfrecord.messages import DecodeError, ExampleListWithContext, SequenceExample
from dask_tfrecord.records.framing import framing_error
from dask_tfrecord.records.index import RecordRange, check_following_splits, truncation_error
from dask_tfrecord.records.window import FOOTER, HEADER, MAX_RECORD_BYTES, Expected, Window
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.activities import activity
from dask_tfrecord.shards.shard import is_local
from dask_tfrecord.shards.streams import StoredStream, open_stored

# Limit of NumPy.
_MAX_AXES = 64
# Faults of one value: `value_errors=` fills or skips their rows. A feature that is missing, or of another kind, raises
# FeatureError whatever `value_errors` is.
_VALUE_FAULTS = (Fault.SIZE, Fault.UTF8, Fault.BOOLEAN, Fault.CAST, Fault.TENSOR)
# Records of a shard in memory that are decoded before memory is allocated for all.
_FIRST_RECORDS = 64
# Of columns of lengths.
_COUNT = FixedLenFeature((), "int64")


class Decoder:
    """Decode records by a schema: its columns, their keys, and what is read for them.

    Most features make one column, sparse ones three, feature lists two. Columns of the features of items are one group.

    Parameters
    ----------
    schema : Schema
        Schema of the records.
    kept : {"values", "sizes", "steps"}
        The values to decode. With ``"sizes"``, only row splits and shapes are right: values of rows that vary in size
        are checked and counted, and replaced by zeros that share the memory of one; only the headers of images are
        read. An example of three records with the values [5, 6], [] and [7]: the block is [0, 0], [] and [0]. With
        ``"steps"``, each column has the number of steps of a padded feature.

    Raises
    ------
    SchemaError
        If a feature class is not supported for records, feature lists or items, two columns have the same name, two
        features read one key in different ways.
    """

    __slots__ = ("columns", "decoders", "kept", "schema")

    def __init__(self, schema: Schema, kept: Literal["values", "sizes", "steps"] = "values") -> None:
        self.schema, self.kept = schema, kept
        self.decoders = _column_decoders(schema) if kept != "steps" else _step_counts(_column_decoders(schema))
        features = {name: column.feature for name, column in self.decoders.items()}
        sampling = schema.sampling if features.keys() == schema.keys() else None
        classes = {name: column.classes for name, column in self.decoders.items() if column.classes}
        classes |= {name: names for name, names in schema.classes.items() if name in features}
        groups = schema.groups_of(features)
        for name, column in self.decoders.items():
            if column.groups and column.scope != "item":
                groups[column.groups[0]] = (*groups.get(column.groups[0], ()), name)
        inner = {name: column.groups[1:] for name, column in self.decoders.items() if column.groups[1:]}
        if schema.example_features:
            groups[ITEMS] = tuple(name for name, column in self.decoders.items() if column.scope == "item")
        self.columns = Schema(
            features,
            sampling,
            classes=classes,
            groups=groups,
            inner_groups=inner,
            report=schema.report,
            # Lengths were counted in these files.
            records=schema if schema.records is None else schema.records,
        )
        if kept == "sizes":
            # A key has one spec: its values are kept for all columns if one of them needs them.
            needed = {spec for column in self.decoders.values() for spec in _needed_specs(column)}
            for name, column in self.decoders.items():
                specs = tuple(spec if spec in needed else replace(spec, counted=True) for spec in column.specs)
                self.decoders[name] = replace(column, specs=specs)

    def keeps_values(self, names: Iterable[str]) -> bool:
        """Return whether values of some columns are in memory while they are read: not only counts of values."""
        return not all(spec.counted for name in names for spec in self.decoders[name].specs)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self.kept)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # Stores hold tokens: the name belongs to their format.
        return "Decoder", self.schema.__dask_tokenize__(), *(() if self.kept == "values" else (self.kept,))


@functools.lru_cache(maxsize=32)
def size_decoder(decoder: Decoder) -> Decoder:
    """Return the decoder of the same columns for their sizes."""
    return Decoder(decoder.schema, "sizes")


def _needed_specs(column: ColumnDecoder) -> tuple[KeySpec, ...]:
    """Return the specs whose values are kept, or determine the sizes of rows."""
    made = column.feature
    if column.assembler is lengths:
        return ()
    if column.prepare is None and not (made.ragged_rank or made.own_shapes or made.is_bytes):
        return column.specs
    return column.parsed.keys_for_sizes(column.specs)


def _step_counts(columns: Mapping[str, ColumnDecoder]) -> dict[str, ColumnDecoder]:
    """Return the columns that count the steps of padded features."""
    counted = {}
    for name, column in columns.items():
        if name == column.source and is_padded(column.parsed):
            specs = tuple(replace(spec, counted=True) for spec in column.specs)
            counted[name] = replace(column, feature=_COUNT, specs=specs, assembler=lengths)
    return counted


def _column_decoders(schema: Schema) -> dict[str, ColumnDecoder]:
    """Make the decoder of each column of a schema; refuse two columns of one name."""
    columns: dict[str, ColumnDecoder] = {}
    features: Mapping[str, Any] = schema
    for name, feature in features.items():
        if schema.message_type is not None:
            of_feature = message_columns(schema.message_type, name, feature)
        elif feature.is_message:
            of_feature = _columns_of_messages(name, feature, schema)
        else:
            of_feature = feature.columns(name, schema.key_of(name), schema.scope_of(name))
            if schema.scope_of(name) == "step":
                specs = of_feature[name].specs[:1]
                of_feature[f"{name}.lengths"] = ColumnDecoder(_COUNT, name, feature, specs, lengths, scope="step")
        for label, column in of_feature.items():
            if label in columns:
                raise SchemaError(
                    f"the columns of features {columns[label].source!r} and {name!r} would both be {label!r}"
                )
            columns[label] = column
    for column in columns.values():
        _check_axes(column)
    if schema.message_type is None:
        columns = _with_shared_keys(columns)
        _check_keys(columns)
    # A field or key may have several columns, such as the names and the numbers of an enum.
    uses = Counter(spec for column in columns.values() for spec in column.specs)
    return {
        name: replace(column, assembler=type(column.parsed).assemble)
        if column.assembler is None and uses[column.specs[0]] > 1
        else column
        for name, column in columns.items()
    }


def _columns_of_messages(name: str, feature: ProtoFeature, schema: Schema) -> dict[str, ColumnDecoder]:
    """Return the columns of messages in the bytes of a key, one in every record, step or item."""
    scope = schema.scope_of(name)
    steps = scope != "value"
    key = schema.key_of(name)
    specs = (KeySpec(key, "bytes", ValueLayout.FIXED, steps=steps, optional=steps),)
    columns = columns_in_bytes(name, feature, specs, key, (key,) if steps else ())
    return {label: replace(column, scope=scope) for label, column in columns.items()}


def _check_axes(column: ColumnDecoder) -> None:
    """Refuse shapes with more axes than a NumPy array, the axis of rows included."""
    # Rows of different shapes are arrays of their own; flat values of ragged rows lack the axes of rows.
    rows = int(not column.feature.own_shapes)
    axes = len(column.feature.row_shape) - column.feature.ragged_rank
    if axes + rows > _MAX_AXES:
        raise SchemaError(
            f"feature {column.source!r}: {type(column.parsed).__name__} has a shape of {axes} dimensions; a NumPy "
            f"array has at most {_MAX_AXES}{', one of them for the rows' if rows else ''}. Use "
            f"FixedLenFeature((), 'bytes') for the bytes of a tensor, or a flat shape for the values of a list"
        )


def _with_shared_keys(columns: Mapping[str, ColumnDecoder]) -> dict[str, ColumnDecoder]:
    """Let several features assemble one bytes value themselves, whatever they make from it."""
    specs_of: dict[tuple[str, bool], list[KeySpec]] = {}
    for column in columns.values():
        for spec in column.specs:
            specs_of.setdefault((spec.key, spec.steps), []).append(spec)
    shared = {
        key
        for key, specs in specs_of.items()
        if all(map(_is_one_value, specs)) and (len({*specs}) > 1 or (len(specs) > 1 and specs[0].is_direct))
    }
    made = {}
    for name, column in columns.items():
        if shared.isdisjoint((spec.key, spec.steps) for spec in column.specs):
            made[name] = column
            continue
        specs = tuple(
            KeySpec(spec.key, "bytes", ValueLayout.FIXED, steps=spec.steps, optional=spec.optional)
            if (spec.key, spec.steps) in shared
            else spec
            for spec in column.specs
        )
        made[name] = replace(column, specs=specs, assembler=column.assembler or type(column.parsed).assemble)
    return made


def _is_one_value(spec: KeySpec) -> bool:
    """Return whether a spec reads one bytes value without a default, for any use of it."""
    is_one = spec.layout == ValueLayout.FIXED and spec.dtype == "bytes" and spec.count == 1
    return not spec.default_value and (is_one or spec.layout in (ValueLayout.RAW, ValueLayout.TENSOR))


def _check_keys(columns: Mapping[str, ColumnDecoder]) -> None:
    """Refuse a key that two features read in different ways."""
    expected: dict[tuple[str, bool], tuple[KeySpec, str]] = {}
    for column in columns.values():
        for spec in column.specs:
            other, source = expected.setdefault((spec.key, spec.steps), (spec, column.source))
            if other != spec:
                raise SchemaError(
                    f"features {source!r} and {column.source!r} read the key {spec.key!r} in different ways, but a "
                    f"key has one definition: {other.layout.name.lower()} {other.dtype} and {spec.layout.name.lower()} "
                    f"{spec.dtype}"
                )


_log = logging.getLogger(__name__)


class Where(NamedTuple):
    """Which records are kept."""

    tested: Sequence[str]  # columns that are decoded first
    mask: Callable[
        [dict[str, Block]], NDArray[np.bool_]
    ]  # of the records that are kept, by the blocks of these columns


def decode(
    runs: Iterable[RecordRange],
    decoder: Decoder,
    names: Sequence[str],
    *,
    rows: int | None,
    check_crc: bool = True,
    out: Arrays | None = None,
    limit: MemoryLimit | None = None,
    where: Where | None = None,
) -> dict[str, Block]:
    """Decode columns from record ranges in one pass; with `where`, only records that it keeps."""
    job = _DecodeJob(decoder, names, check_crc, limit)
    if where is not None:
        job = _FilteredJob(decoder, names, check_crc, limit, where)
    with _Shards(check_crc) as shards:
        return shards.decode(job, runs, rows, out or {})


def decode_blocks(
    chunks: Iterable[tuple[Iterable[RecordRange], int | None, dict[str, NDArray[Any]]]],
    decoder: Decoder,
    names: Sequence[str],
    *,
    check_crc: bool = True,
    limit: MemoryLimit | None = None,
) -> Generator[dict[str, Block], None, None]:
    """Decode chunks one after another; a shard stays open while consecutive chunks read from it."""
    job = _DecodeJob(decoder, names, check_crc, limit)
    with _Shards(check_crc) as shards:
        for runs, rows, out in chunks:
            yield shards.decode(job, runs, rows, out)


class _Shards:
    """Open shards: the shard of the window, and the shard of the last records whose bytes are known."""

    def __init__(self, check_crc: bool) -> None:
        self._check_crc = check_crc
        self._reader: _Reader | None = None
        self._file: StoredStream | None = None

    def decode(self, job: _DecodeJob, runs: Iterable[RecordRange], rows: int | None, out: Arrays) -> dict[str, Block]:
        """Decode the runs of a chunk."""
        runs = list(runs)
        with activity("decode"):
            job.begin(runs, rows, out)
            for run in runs:
                job.runs.append((job.records, run))
                try:
                    self._read(run, job)
                except MemoryLimitError:
                    raise
                except MemoryError as error:
                    text = f"no memory to decode features {', '.join(map(repr, job.columns))} from here on"
                    where = Location(run.shard.path, run.first)
                    advice = f"{refused('memory')}, or read fewer rows at once (chunks=)"
                    raise MemoryLimitError(f"{text}: {advice}", where) from error
            return job.blocks()

    def _read(self, run: RecordRange, job: _DecodeJob) -> None:
        """Decode a run of records: from memory, by the bytes of each record, or by moving a window over the shard."""
        if _log.isEnabledFor(logging.DEBUG):
            names, path = tuple(job.columns), redact_url(run.shard.path)
            _log.debug("decode %s from record %d, %s of them, of %s", names, run.first, run.count, path)
        if run.spans is not None and run.shard.data is not None:
            _feed_memory(run, *run.spans, job)
            return
        if run.spans is not None:
            if self._file is None or self._file.shard != run.shard:
                if self._file is not None:
                    self._file.close()
                self._file = open_stored(run.shard, keep=True)
            _read_spans(self._file, run, *run.spans, job)
            return
        if self._reader is None or not self._reader.reaches(run):
            if self._reader is not None:
                self._reader.window.close()
            self._reader = _Reader(run, self._check_crc)
        self._reader.read(run, job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._reader is not None:
            self._reader.window.close()
        if self._file is not None:
            self._file.close()


# Memory of each thread for the records that it reads: new memory takes longer than reading a large record.
_scratch = threading.local()


def _read_spans(
    file: StoredStream, run: RecordRange, begins: NDArray[np.int64], ends: NDArray[np.int64], job: _DecodeJob
) -> None:
    """Decode records whose bytes are known; no other bytes are read."""
    # More requests of remote files are open at a time.
    most = limits().window_nbytes * (1 if is_local(run.shard.path) else 8)
    done, before, memory = 0, 0, getattr(_scratch, "memory", np.empty(0, np.uint8))
    past = np.cumsum(ends - begins) if len(begins) > 1 else ends - begins
    while done < len(begins):
        # Records that fit in a window, or one.
        stop = max(int(past.searchsorted(before + most, "right")), done + 1) if len(past) > 1 else 1
        nbytes = int(past[stop - 1]) - before
        if nbytes > HEADER + MAX_RECORD_BYTES + FOOTER:
            raise _refused_span(run, done, job, None)
        if nbytes > len(memory):
            memory = np.empty(max(nbytes, limits().window_nbytes), np.uint8)
            if nbytes <= limits().window_nbytes:
                _scratch.memory = memory
        file.read_ranges(begins[done:stop], ends[done:stop], memory[:nbytes])
        walk = job.native.feed(memory, 0, nbytes, stop - done)
        job.preallocate_from_first_records(walk.records, walk.consumed)
        if walk.records < stop - done or walk.consumed < nbytes:
            raise _refused_span(run, done + walk.records, job, walk)
        done, before = stop, before + nbytes


def _feed_memory(run: RecordRange, begins: NDArray[np.int64], ends: NDArray[np.int64], job: _DecodeJob) -> None:
    """Decode records of a shard in memory, which are not copied; of selected ones, others lie between them."""
    done, data = 0, run.shard.data
    while done < len(begins):
        # The first records determine how much memory is allocated for all.
        last = min(done + _FIRST_RECORDS, len(begins)) if job.nbytes else len(begins)
        begin, end = int(begins[done]), int(ends[last - 1])
        if run.selected is None:
            walk = job.native.feed(data, begin, end, last - done)
        else:
            walk = job.native.feed_selected(data, begin, end, int(run.selected[done]), run.selected[done:last])
        if walk.stop is Stop.FEATURE or walk.consumed < end - begin:
            decoded = int(np.searchsorted(ends, begin + walk.consumed, "right")) - done
            raise _refused_span(run, done + decoded, job, walk)
        job.preallocate_from_first_records(last - done, walk.consumed)
        done = last


def _refused_span(run: RecordRange, index: int, job: _DecodeJob, walk: _native.Walk | None) -> TFRecordError:
    """Return the error of a record of known bytes that was refused, which is read again."""
    assert run.spans is not None
    record, begin = run.record_number(index), int(run.spans[0][index])
    reader = _Reader(replace(run, first=record, count=1, entry_record=record, offset=begin), job.check_crc)
    with reader.window as window:
        header = window.view(0, 8) if window.ensure(HEADER) else b""
        window.ensure(HEADER + int.from_bytes(header, "little") + FOOTER)
        if walk is not None:
            reader._check(walk, job)
        return framing_error(window, record)


class _Keys(NamedTuple):
    """Keys of columns that are decoded together."""

    columns: dict[str, ColumnDecoder]
    outputs: dict[str, list[int]]  # indices of the key specs of a column, which others may share
    specs: list[Any]  # of type KeySpec or FieldSpec
    tables: MessageTables | None
    unset: list[str]
    native: list[_native.ColumnSpec]
    closed: bool
    dense: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and dtype of a row that the decoder writes


@functools.lru_cache(maxsize=32)
def _needed_keys(decoder: Decoder, names: tuple[str, ...]) -> _Keys:
    """Collect the keys that some columns need, each once, and where each column finds its outputs."""
    columns = {name: decoder.decoders[name] for name in names}
    indices: dict[Any, int] = {}
    outputs = {
        name: [indices.setdefault(spec, len(indices)) for spec in column.specs] for name, column in columns.items()
    }
    dense = {
        name: (column.feature.item_shape, column.feature.item_dtype)
        for name, column in columns.items()
        if column.assembler is None
    }
    schema, specs = decoder.schema, list(indices)
    if schema.message_type is not None:
        return _Keys(columns, outputs, specs, message_tables(schema.message_type, tuple(indices)), [], [], False, dense)
    # An inferred schema was sampled. If all of its columns are read, keys that it lacks are errors: their values
    # would be lost.
    sampling = schema.sampling if len(names) == len(decoder.decoders) else None
    known = {(spec.key, spec.steps) for spec in specs}
    unset = [
        (name, key, steps)
        for name in (sampling.unset if sampling else ())
        for key, steps in unset_keys(name, schema.message)
        if (key, steps) not in known
    ]
    native = [spec.to_native() for spec in specs]
    for _, key, steps in unset:
        native.append(_native.ColumnSpec(key.encode(), Kind.NONE, ValueLayout.UNSET, list=steps))
    return _Keys(columns, outputs, specs, None, [name for name, _, _ in unset], native, sampling is not None, dense)


class _DecodeJob:
    """Columns that are decoded together, and the native decoder of the chunk that is read."""

    runs: list[tuple[int, RecordRange]]  # of the chunk, each with the row of its first record
    records: int  # of the chunk, decoded so far
    native: Any  # decoder of Examples or of messages

    def __init__(self, decoder: Decoder, names: Sequence[str], check_crc: bool, limit: MemoryLimit | None) -> None:
        self.schema, self.limit, self.check_crc = decoder.schema, limit, check_crc
        self._values = decoder.kept != "sizes"
        keys = _needed_keys(decoder, tuple(names))
        self.columns, self.outputs, self.key_specs, self.tables, self.unset, *_ = keys
        self._dense, self._specs = keys.dense, keys.native
        self._options = check_crc, keys.closed

    def begin(self, runs: Sequence[RecordRange], rows: int | None, out: Arrays) -> None:
        """Prepare to decode the next chunk."""
        self.rows, self.out = rows, out
        self.offered: dict[int, NDArray[Any]] = {}
        self.nbytes = sum(run.stop_offset - run.offset for run in runs)  # 0 once memory for them is allocated
        self.records, self.runs = 0, []
        if self.tables is not None:
            self.native = self.tables.decoder(check_crc=self.check_crc)
        else:
            self.native = _native.Decoder(self._specs, *self._options, MESSAGES[self.schema.message])
        if self.limit is not None:
            self.native.set_memory_limit(self.limit.nbytes)
        self.arrays = {} if rows is None else dict(self._set_outputs(rows, runs))

    def _set_outputs(self, rows: int, runs: Sequence[RecordRange]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Set the output buffers of the decoder, and yield the arrays of dense columns."""
        for name, column in self.columns.items():
            index, array = self.outputs[name][0], self.out.get(name)
            if array is not None and column.has_decoded_values:
                self.offered[index] = array.reshape(-1)
                self.native.offer_output(index, self.offered[index].view(np.uint8))
            if array is None:
                self._check(column, rows, runs)
            if name in self._dense:
                if array is None:
                    shape, dtype = self._dense[name]
                    with allocating(column.source, column.feature, runs):
                        array = np.empty((rows, *shape), dtype)
                self.native.set_output(index, array.reshape(-1).view(np.uint8))
                yield name, array

    def _check(self, column: ColumnDecoder, rows: int, runs: Sequence[RecordRange]) -> None:
        """Refuse more rows of one size than the limit allows."""
        try:
            if self.limit is not None:
                self.limit.check_rows(rows, column.feature)
        except RowLimitError as error:
            self.runs = list(zip(accumulate((run.count or 0 for run in runs), initial=0), runs, strict=False))
            raise located_error(error, self._locate(error.row, column.source)) from None

    def preallocate_from_first_records(self, records: int, consumed: int) -> None:
        """Count records; the first of them determine how much memory is allocated for all."""
        self.records += records
        if records and self.nbytes:
            factor = self.nbytes / consumed if self.rows is None else min(self.nbytes / consumed, self.rows / records)
            self.native.preallocate(factor * 1.05)
            self.nbytes = 0

    def feed(
        self, window: Window, limit: int, last: int | None, run: RecordRange, record: int
    ) -> tuple[_native.Walk, _DecodeJob]:
        """Decode records from number `record` on, past which the window moves; return the job that ended, too."""
        walk = window.feed(self.native, limit, run.stop_offset, last, Expected(self.nbytes, self.rows))
        self.records += walk.records
        if walk.records:
            self.nbytes = 0
        return walk, self

    def feed_selected(
        self,
        window: Window,
        record: int,
        selected: NDArray[np.int64],
        run: RecordRange,
        ends: NDArray[np.int64] | None,
    ) -> tuple[_native.Walk, int]:
        """Decode selected records, and return how many; see `Window.feed_selected`."""
        expected = Expected(self.nbytes, self.rows)
        walk, decoded = window.feed_selected(self.native, record, selected, run.stop_offset, expected, ends)
        self.records += decoded
        if decoded:
            self.nbytes = 0
        return walk, decoded

    def blocks(self) -> dict[str, Block]:
        """Assemble the blocks of all columns."""
        if self.tables is not None:
            taken = dict(enumerate(self.tables.outputs(self.native)))
        else:
            # Arrays of dense columns are filled.
            filled = {self.outputs[name][0] for name in self.arrays}
            taken = {
                index: KeyOutput.from_native(self.native.take_output(index), spec)
                for index, spec in enumerate(self.key_specs)
                if index not in filled
            }
        for index, memory in self.offered.items():
            if taken[index].values is None:
                taken[index] = taken[index]._replace(values=memory[: taken[index].total].view(np.uint8))
        prepared: dict[str, Sequence[KeyOutput]] = {}
        blocks: dict[str, Block] = {}
        for name, column in self.columns.items():
            if name in self.arrays:
                blocks[name] = self.arrays[name]
                continue
            outputs: Sequence[KeyOutput] = [taken[index] for index in self.outputs[name]]
            try:
                if column.prepare is not None:
                    if column.source not in prepared:
                        prepared[column.source] = column.prepare(column.parsed, outputs, self.limit)
                    outputs = prepared[column.source]
                blocks[name] = self._make_block(name, column, outputs)
            except RowError as error:
                if not self.runs:
                    raise
                raise located_error(error, self._locate(error.row, column.source), column.scope) from None
        return blocks

    def _make_block(self, name: str, column: ColumnDecoder, outputs: Sequence[KeyOutput]) -> Block:
        """Make the block of a column from its outputs, or view the memory that the decoder filled."""
        if column.assembler is not None:
            out = self.out.get(name) if column.feature.is_dense else None
            if out is None and self.limit is not None:
                self.limit.check_rows(self.records, column.feature)
            with allocating(column.source, column.feature, [run for _, run in self.runs]):
                values = self._values or not column.is_own
                return column.assembler(column.parsed, Decoded(outputs, self.records, out, self.limit, values))
        # The number of rows was unknown, so the decoder allocated the memory.
        dense: NDArray[Any] = outputs[0].values.view(column.feature.item_dtype)  # type: ignore[union-attr]
        return dense.reshape(self.records, *column.feature.item_shape)

    def _locate(self, row: int, feature: str) -> Location:
        """Return the location of a row."""
        first, run = next((first, run) for first, run in reversed(self.runs) if first <= row)
        return locate_record(run, run.record_number(row - first), feature)


def rows_of_no_fields(decoder: Decoder, name: str) -> Block:
    """Return the block of a column of one message without fields: their defaults; refuse others."""
    job = _DecodeJob(decoder, (name,), False, None)
    job.begin((), None, {})
    job.native.feed_values(np.zeros(0, np.uint8), np.zeros(2, np.int64))
    job.records = 1
    try:
        return job.blocks()[name]
    except RowError as error:
        raise SchemaError(f"a message without field {name!r} has no value") from error


class _FilteredJob(_DecodeJob):
    """Columns of records that a mask keeps. Each window is decoded twice: tested columns, then records to keep."""

    def __init__(
        self, decoder: Decoder, names: Sequence[str], check_crc: bool, limit: MemoryLimit | None, where: Where
    ) -> None:
        super().__init__(decoder, names, check_crc, limit)
        tested, self.mask = where
        self.tested = _DecodeJob(decoder, tested, check_crc, limit)

    def begin(self, runs: Sequence[RecordRange], rows: int | None, out: Arrays) -> None:
        """Prepare to decode the next chunk."""
        super().begin(runs, rows, out)
        # Records that are kept: for each window, the number of its record range and the numbers of the records.
        self._kept: list[tuple[int, NDArray[np.int64]]] = []

    def blocks(self) -> dict[str, Block]:
        """Assemble the blocks of the records that are kept."""
        for number, group in groupby(self._kept, key=itemgetter(0)):
            first, run = self.runs[number]
            self.runs[number] = first, replace(run, selected=np.concatenate([kept for _, kept in group]))
        return super().blocks()

    def feed(
        self, window: Window, limit: int, last: int | None, run: RecordRange, record: int
    ) -> tuple[_native.Walk, _DecodeJob]:
        """Test the records in view, and decode those that are kept."""
        tested = self.tested
        tested.begin([], None, {})
        tested.runs.append((0, replace(run, first=record)))
        end = window.end if last is None else min(window.end, window.begin + last - window.offset)
        walk = tested.native.feed(window.buffer, window.begin, end, limit)
        tested.preallocate_from_first_records(walk.records, walk.consumed)
        if walk.stop in (Stop.FEATURE, Stop.FRAMING) or not walk.records:
            window.advance(walk.consumed)
            return walk, tested
        kept = record + np.flatnonzero(self.mask(tested.blocks()))
        if not len(kept):
            window.advance(walk.consumed)
            return walk, tested
        self._kept.append((len(self.runs) - 1, kept))
        stop = window.begin + walk.consumed
        found = self.native.feed_selected(window.buffer, window.begin, stop, record, kept)
        self.preallocate_from_first_records(len(kept), walk.consumed)
        ended = found if found.stop is Stop.FEATURE else walk
        window.advance(ended.consumed)
        return ended, self


class _Reader:
    """A window on one shard, and the number of the record that it begins with."""

    def __init__(self, run: RecordRange, check_crc: bool) -> None:
        self.shard = run.shard
        self.check_crc = check_crc
        first, most = limits().first_window_nbytes, limits().window_nbytes
        whole = most if run.stop_offset - run.offset > first else 0
        self.window = Window(run.shard, run.offset, block_size=first, stop=run.stop_offset, most=whole)
        self.record = run.entry_record

    def reaches(self, run: RecordRange) -> bool:
        """Return whether the run follows in the same shard."""
        return run.shard == self.shard and run.first >= self.record

    def read(self, run: RecordRange, job: _DecodeJob) -> None:
        """Decode the run."""
        self.window.expect(run.stop_offset)
        # Skip to the run. Bytes before it may be damaged, so they are not read for their headers.
        if run.offset > self.window.offset:
            self.window.advance(run.offset - self.window.offset)
            self.record = run.entry_record
        if run.selected is None:
            self._read_all(run, job)
        else:
            self._read_selected(run, run.selected, job)
        if run.ends_shard and not self.window.exhausted:
            raise CorruptRecordError(
                f"{plural(self.record, 'record')} expected, but more bytes follow: the counts that were given are "
                "wrong, or the file has changed since it was counted",
                Location(self.shard.path, self.record, self.window.offset),
            )

    def _read_all(self, run: RecordRange, job: _DecodeJob) -> None:
        """Decode consecutive records."""
        self.skip(run)
        left = -1 if run.count is None else run.count
        window = self.window
        crossing = False
        while left != 0 and not self._beyond(run):
            last = None if run.split is None or crossing else run.split.stop
            walk, ended = job.feed(window, 1 if crossing else left, last, run, self.record)
            self.record += walk.records
            left -= walk.records if left > 0 else 0
            self._check(walk, ended)
            if walk.stop is Stop.MORE:
                # The last record of a split reaches beyond it.
                crossing = run.split is not None and window.offset + walk.need > run.split.stop
                if crossing:
                    window.expect(max(run.stop_offset, window.offset + walk.need))
                if not self._beyond(run) and not self._fill(walk.need, run):
                    if run.count is None and window.exhausted:
                        return
                    raise self._too_few_records(left)
        if run.split is not None:
            check_following_splits(self.shard, run.split, window.offset, self.record)

    def _read_selected(self, run: RecordRange, selected: NDArray[np.int64], job: _DecodeJob) -> None:
        """Decode selected records; skip those between them by their headers."""
        window, done, kept = self.window, 0, run.kept
        if kept is not None and kept[selected + 1].all():
            kept = None
        # A single read remembers the offsets that it passes; a second read in the same range indexes the whole range.
        complete = kept is not None and (len(selected) > 1 or kept[self.record + 1] > 0)
        if kept is not None:
            kept[self.record] = window.offset
        while done < len(selected):
            border = window.offset
            # The end of the last record is kept if no bytes follow: see below.
            ends = None if kept is None else kept[self.record + 1 : -1]
            walk, decoded = job.feed_selected(window, self.record, selected[done:], run, ends)
            if window.offset < border + walk.consumed:
                raise truncation_error(self.shard, border, self.record, walk.records)
            self.record += walk.records
            done += decoded
            if kept is not None and self.record == len(kept) - 1 and window.offset == run.shard.size:
                kept[-1] = window.offset
            self._check(walk, job)
            if walk.stop is Stop.MORE and not self._fill(walk.need, run):
                raise self._too_few_records(int(selected[-1]) + 1 - self.record)
        if kept is not None and self.record < len(kept) - 1:
            # Records behind the last one that have been read too.
            self._keep_offsets(run, kept)
        # Damage beyond the selected records is not an error of this read.
        complete = complete and run.stop_offset - window.offset <= 2 * limits().entry_nbytes
        while complete and kept is not None and window.offset < run.stop_offset and self._fill(HEADER, run):
            walk = self._keep_offsets(run, kept)
            self.record += walk.records
            if not walk.records or not window.advance(walk.consumed):
                break

    def _keep_offsets(self, run: RecordRange, kept: NDArray[np.int64]) -> _native.Walk:
        """Keep the ends of records whose intact headers are in view, up to the end of the run."""
        window, first = self.window, self.record
        end = min(window.end, window.begin + max(run.stop_offset - window.offset, 0))
        ends = np.empty(min(len(kept) - 1 - first, (end - window.begin) // HEADER), np.int64)
        walk = _native.find_ends(window.buffer, window.begin, end, True, ends)
        found = ends[: walk.records] + window.offset
        if first + len(found) == len(kept) - 1 and found[-1:] != run.shard.size:
            # Bytes follow the last record, or are missing: an error of the read that reaches it.
            found = found[:-1]
        kept[first + 1 : first + 1 + len(found)] = found
        return walk

    def _check(self, walk: _native.Walk, job: _DecodeJob) -> None:
        """Raise an error if the decoder refused a record."""
        if walk.stop is Stop.FEATURE:
            raise self._feature_error(job)
        if walk.stop is Stop.FRAMING:
            raise framing_error(self.window, self.record)

    def _beyond(self, run: RecordRange) -> bool:
        return run.split is not None and self.window.offset >= run.split.stop

    def _fill(self, need: int, run: RecordRange) -> bool:
        """Read `need` bytes and a block of the rest of the run; return whether they exist."""
        window = self.window
        left = run.stop_offset - window.offset - (window.end - window.begin)
        least, most = limits().first_window_nbytes, limits().window_nbytes
        window.block_size = min(max(left, need, least), most) if left > 0 else most
        return window.ensure(need)

    def skip(self, run: RecordRange) -> None:
        """Skip to the first record of the run."""
        count, window = run.first - self.record, self.window
        while count > 0:
            border = window.offset
            walk = _native.scan(window.buffer, window.begin, window.end, count, self.check_crc)
            if not window.advance(walk.consumed):
                raise truncation_error(self.shard, border, self.record, walk.records)
            self.record += walk.records
            count -= walk.records
            if walk.stop is Stop.FRAMING:
                raise framing_error(window, self.record)
            if walk.stop is Stop.MORE and not self._fill(walk.need, run):
                raise self._too_few_records(count)

    def _too_few_records(self, missing: int) -> TFRecordError:
        """Make the error for a shard that has fewer records than were counted."""
        if not self.window.exhausted:
            return framing_error(self.window, self.record)
        return CorruptRecordError(
            f"the shard ends where {plural(missing, 'more record')} should follow: the counts that were given are "
            "wrong, or the file has changed since it was counted",
            Location(self.shard.path, self.record, self.window.offset),
        )

    def _feature_error(self, job: _DecodeJob) -> TFRecordError:
        """Return the error of the record that the decoder refused."""
        location = Location(self.shard.path, self.record, self.window.offset)
        problem = job.native.problem()
        if job.tables is not None and problem.fault is Fault.FULL and job.limit is not None:
            location = replace(location, feature=job.tables.field(problem) or None)
            return MemoryLimitError(f"field {location.feature!r} {job.limit.message()}", location)
        if job.tables is not None:
            return job.tables.error(problem, location)
        length = int.from_bytes(self.window.view(0, 8), "little")
        payload = bytes(self.window.view(HEADER, HEADER + length))
        if problem.fault in (Fault.MALFORMED, Fault.NOT_EXAMPLE):
            return payload_error(payload, location, job.schema.message)
        if 0 <= problem.column < len(job.key_specs):
            spec = job.key_specs[problem.column]
            column = next(column for column in job.columns.values() if spec in column.specs)
            if problem.fault == Fault.FULL and job.limit is not None:
                message = f"feature {column.source!r} {job.limit.message()}"
                return MemoryLimitError(message, replace(location, feature=column.source))
            return _refused_error(column, spec, problem, job.schema, location, payload)
        key = job.unset[problem.column - len(job.key_specs)] if problem.column >= 0 else problem.text.decode()
        return _unknown_error(key, problem, job.schema, location)


def located_error(
    error: RowError, place: Location, scope: str = "value", kind: type[FeatureError] = FeatureValueError
) -> FeatureError | MemoryLimitError:
    """Return the public error of a row at a location."""
    item = "" if error.item is None else f" in {scope} {error.item}"
    message = f"feature {place.feature!r}{item} " + error.message
    return MemoryLimitError(message, place) if isinstance(error, RowLimitError) else kind(message, place)


def locate_record(run: RecordRange, record: int, feature: str) -> Location:
    """Return the location of a record of a run, with its byte: a known one, or found by walking the headers."""
    if run.spans is not None and run.selected is not None:
        # The records of `selected` begin at these bytes, in the same order.
        begins, _ = run.spans
        return Location(run.shard.path, record, int(begins[run.selected == record][0]), feature)
    reader = _Reader(run, check_crc=False)
    with reader.window:
        reader.skip(replace(run, first=record))
        return Location(run.shard.path, record, reader.window.offset, feature)


def _unknown_error(key: str, refused: _native.Problem, schema: Schema, location: Location) -> FeatureError:
    """Return the error of a feature that an inferred schema lacks."""
    if refused.fault == Fault.UNKNOWN_KEY:
        name = key if refused.step < 0 else f"{ITEMS}/{key}"
        message = "is not in the schema"
    else:
        name = key
        message = f"holds {_kind_name(Kind(refused.found))}, but no sampled record sets it"
    scope = "item" if schema.message == "ExampleListWithContext" else "step"
    text = f"feature {name!r}{_place(refused, scope)} {message}" + _key_hint(schema.sampling)
    return FeatureError(text, replace(location, feature=name))


def _refused_error(
    column: ColumnDecoder, spec: KeySpec, refused: _native.Problem, schema: Schema, location: Location, payload: bytes
) -> FeatureError:
    """Return the error of a feature of a record, `payload`, that does not match the schema."""
    message = f"feature {column.source!r}"
    if spec.key not in (column.source, column.source.removeprefix(f"{ITEMS}/")):
        message += f", key {spec.key!r},"
    message += f"{_place(refused, column.scope)} {_describe_difference(column.parsed, spec, refused)}"
    if refused.fault == Fault.MISSING:
        message += _found_keys(spec, refused, payload, is_list=schema.message == "ExampleListWithContext")
    message += _key_hint(schema.sampling)
    kind = FeatureValueError if refused.fault in _VALUE_FAULTS else FeatureError
    return kind(message, replace(location, feature=column.source))


def _place(refused: _native.Problem, scope: str) -> str:
    return f" in {scope} {refused.step}" if refused.step >= 0 else ""


def _found_keys(spec: KeySpec, refused: _native.Problem, payload: bytes, *, is_list: bool) -> str:
    """List which keys a record has that lacks one; in a list of Examples, the keys of the item."""
    try:
        # Examples are parsed, too: they are the context of a SequenceExample.
        record: Any = (ExampleListWithContext if is_list else SequenceExample).FromString(payload)
    except (DecodeError, UnicodeDecodeError):
        # The decoder does not validate features that are not requested.
        return "; another part of the record is damaged"
    if is_list:
        context = record.context.features.feature
        parts = [item.features.feature for item in record.examples]
    else:
        context, parts = record.context.feature, [record.feature_lists.feature_list]
    nearby = parts[refused.step if is_list else 0] if spec.steps else context
    if spec.key in nearby and (is_list or not spec.steps):
        return "; the key exists, but its value is empty"
    if spec.steps and not is_list and not nearby:
        return "; the record lacks feature lists: read Examples without sequence_features"
    if spec.steps and spec.key in context:
        return "; it is a feature of the context: specify it in features"
    if not any(spec.key in part for part in parts):
        return f"; if only some records have it, give it a default_value{near_misses(spec.key, sorted(nearby))}"
    if is_list and spec.steps:
        return "; other items of the record have it: a default_value fills it"
    if is_list:
        return "; it is a feature of the items: specify it in example_features"
    return "; it is a feature list: specify it in sequence_features"


def _key_hint(sampling: Sampling | None) -> str:
    """Say, for a key that a record lacks, that the schema was inferred from a sample."""
    if sampling is None:
        return ""
    every = Spelled("infer_schema(urlpath, sample=None)", "--sample all")
    inferred = f" (inferred from {plural(sampling.records, 'record')}; "
    return inferred + every + " reads all of them, or give " + FEATURES + ")"


def _kind_name(kind: Kind) -> str:
    return {Kind.BYTES: "a bytes list", Kind.FLOATS: "a float list", Kind.INT64: "an int64 list"}.get(kind, "no list")


def _describe_difference(feature: Feature, spec: KeySpec, refused: _native.Problem) -> str:
    """Describe the found content, and the content that the feature expects."""
    found = refused.found
    match refused.fault:
        case Fault.MISSING:
            return f"is missing, and {feature} needs it"
        case Fault.KIND:
            taken = "a float or int64 list" if spec.content is Content.MIXED else _kind_name(spec.kind)
            advice = _right_kind(feature, spec, Kind(found))
            return f"holds {_kind_name(Kind(found))}, but {feature} takes {taken}{advice}"
        case Fault.SIZE:
            text = f"holds {plural(found, 'byte')}, but {feature} takes {spec.count:,}"
            items = math.prod(feature.item_shape)
            if fitting := {items: "uint8", 2 * items: "uint16", 4 * items: "float32", 8 * items: "float64"}.get(found):
                return f"{text}; RawFeature({feature.item_shape}, {fitting!r}) takes this number"
            # Other bytes are often an encoded image.
            return f"{text}: give a shape of {found:,} bytes; ImageFeature() reads JPEG, PNG and other images"
        case Fault.UTF8:
            return f"is not valid UTF-8, but {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
        case Fault.BOOLEAN:
            return f"holds a byte {found}, but {feature} takes 0 and 1; RawFeature(shape, 'uint8') reads any byte"
        case Fault.CAST if spec.content is Content.MIXED:
            return f"holds {_shown(spec, found)}, which {spec.dtype} can't hold exactly, where {feature} reads it"
        case Fault.CAST:
            return f"holds {_shown(spec, found)}, which {spec.dtype} can't hold, where {feature} casts to it"
        case Fault.TENSOR:
            tensor = found_tensor(refused.text.decode(), found)
            return f"holds {tensor}, but {feature} takes a tensor of its dtype and shape"
        case Fault.FULL:
            return f"holds more values than the output buffer, but {feature} has a known number"
    values = plural(found, "value")
    if spec.layout == ValueLayout.RAGGED:
        return f"holds {values}, but {feature} takes a multiple of {spec.count}"
    listed = spec.layout == ValueLayout.FIXED
    advice = "" if spec.steps else feature.suggestion(found)
    return f"holds {values}, but {feature} takes {spec.count if listed else 1}{advice}"


def _right_kind(feature: Feature, spec: KeySpec, found: Kind) -> str:
    """Return the feature to write for values of another kind."""
    dtype = {Kind.BYTES: "bytes", Kind.FLOATS: "float32", Kind.INT64: "int64"}.get(found)
    if dtype is None or spec.content is Content.MIXED:
        return ""
    if found is Kind.BYTES and spec.count > 1 and spec.layout == ValueLayout.FIXED:
        return f"; if the bytes are an array, write RawFeature({feature.item_shape}, {str(feature.item_dtype)!r})"
    if spec.kind is Kind.BYTES and feature.item_dtype.kind not in "OT" and -1 not in feature.item_shape:
        # The feature decodes bytes to numbers, and the record lists numbers.
        return f"; write {FixedLenFeature(feature.item_shape, dtype)}"
    with suppress(TypeError, SchemaError):
        other: Any = feature
        return f"; write {replace(other, dtype=dtype)}"
    return f"; its dtype is {dtype!r}"


def _shown(spec: KeySpec, found: int) -> str:
    """Format a number that the decoder reports by its bits."""
    if spec.content is Content.MIXED or stored_kind(spec.dtype) == "int64":
        return str(found - (1 << 64) if found >= 1 << 63 else found)
    (value,) = struct.unpack("<f", struct.pack("<I", found))
    return repr(value)
