"""Decoding of runs of records to blocks, with the native decoder.

A run names records of one shard, consecutive or selected, and an index entry to start reading from. The decoder is fed
windows of about a MiB, so memory is the output and one window. Records that are not selected are skipped by their
headers. A record that the decoder refuses becomes a `FeatureError` or a `CorruptRecordError`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord._native import Fault, Kind, Stop, ValueLayout
from dask_tfrecord.columns.blocks import (
    MESSAGES,
    Block,
    KeyOutput,
    KeySpec,
    MemoryLimit,
    RowError,
    RowLimitError,
    allocating,
    decoding,
    unset_column,
)
from dask_tfrecord.columns.decoder import ColumnDecoder, Decoder
from dask_tfrecord.columns.encoded_values import found_tensor, image_values, inflated_values, tensor_values
from dask_tfrecord.columns.items import partitioned
from dask_tfrecord.errors import (
    CorruptRecordError,
    FeatureError,
    Location,
    MemoryLimitError,
    TFRecordError,
    near_misses,
    plural,
    redact_url,
)
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    TensorFeature,
    TextFeature,
    stored_kind,
)
from dask_tfrecord.inspection.payload_type import payload_error
from dask_tfrecord.messages import DecodeError, ExampleListWithContext, SequenceExample
from dask_tfrecord.records.framing import HEADER, Window, framing_error
from dask_tfrecord.records.index import Run, check_following_splits, truncation_error
from dask_tfrecord.schema import ITEMS, Sampling, Schema, unset_keys
from dask_tfrecord.settings import limits

_log = logging.getLogger(__name__)


def decode(
    runs: Iterable[Run],
    decoder: Decoder,
    names: Sequence[str],
    *,
    rows: int | None,
    check_crc: bool = True,
    out: Mapping[str, NDArray[Any]] | None = None,
    limit: MemoryLimit | None = None,
) -> dict[str, Block]:
    """Decode columns of runs of records in one pass."""
    chunk = runs, rows, dict(out or {})
    with closing(decode_blocks([chunk], decoder, names, check_crc=check_crc, limit=limit)) as decoded:
        return next(decoded)


def decode_blocks(
    chunks: Iterable[tuple[Iterable[Run], int | None, dict[str, NDArray[Any]]]],
    decoder: Decoder,
    names: Sequence[str],
    *,
    check_crc: bool = True,
    limit: MemoryLimit | None = None,
) -> Generator[dict[str, Block], None, None]:
    """Decode chunks one after another; a shard stays open while consecutive chunks read from it."""
    request = _Request(decoder, names, check_crc, limit)
    reader: _Reader | None = None
    try:
        for runs, rows, out in chunks:
            runs = list(runs)
            job = _DecodeJob(request, rows, out, runs)
            job.nbytes = sum(run.stop_offset - run.offset for run in runs)
            for run in runs:
                if reader is None or not reader.reaches(run):
                    if reader is not None:
                        reader.window.close()
                    reader = _Reader(run, check_crc)
                job.runs.append((job.records, run))
                with decoding(names, run.shard.path, run.first):
                    reader.read(run, job)
            yield job.blocks()
    finally:
        if reader is not None:
            reader.window.close()


class _Request:
    """Columns that are decoded together, and their specifications for the native decoder."""

    def __init__(self, decoder: Decoder, names: Sequence[str], check_crc: bool, limit: MemoryLimit | None) -> None:
        self.decoder, self.limit = decoder, limit
        self.columns = {name: decoder.decoders[name] for name in names}
        # Columns may share key specs. `outputs` holds, by column, the indices of its key specs.
        indices: dict[KeySpec, int] = {}
        self.outputs = {
            name: [indices.setdefault(spec, len(indices)) for spec in column.specs]
            for name, column in self.columns.items()
        }
        self.key_specs = list(indices)
        schema = decoder.schema
        # An inferred schema was sampled. If all of its columns are read, keys that it lacks are errors: their values
        # would be lost.
        sampling = schema.sampling if len(names) == len(decoder.decoders) else None
        known = {(spec.key, spec.steps) for spec in self.key_specs}
        unset = [
            (name, *key) for name in (sampling.unset if sampling else ()) for key in unset_keys(name, schema.message)
        ]
        unset = [(name, key, steps) for name, key, steps in unset if (key, steps) not in known]
        self.unset = [name for name, _, _ in unset]
        self._columns = [spec.to_native() for spec in self.key_specs]
        self._columns += [unset_column(key, steps) for _, key, steps in unset]
        self._options = check_crc, sampling is not None, MESSAGES[schema.message]

    def native(self) -> _native.Decoder:
        """Return a decoder for one chunk."""
        native = _native.Decoder(self._columns, *self._options)
        if self.limit is not None:
            native.set_memory_limit(self.limit.nbytes)
        return native


class _DecodeJob:
    """The decoder of one chunk, and the blocks assembled from its outputs."""

    def __init__(self, request: _Request, rows: int | None, out: dict[str, NDArray[Any]], runs: Sequence[Run]) -> None:
        self.request, self.rows, self.out = request, rows, out
        self.offered: dict[int, NDArray[Any]] = {}
        self.nbytes = 0  # of all runs; 0 once memory for them is allocated
        self.records = 0  # decoded so far
        self.runs: list[tuple[int, Run]] = []  # each with the row of its first record
        self.native = request.native()
        self.arrays = {} if rows is None else dict(self._set_outputs(rows, runs))

    def _set_outputs(self, rows: int, runs: Sequence[Run]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Set the output buffers of the decoder, and yield the arrays of dense columns."""
        for name, column in self.request.columns.items():
            index, array = self.request.outputs[name][0], self.out.get(name)
            if column.keeps_values and array is not None:
                self.offered[index] = array.reshape(-1)
                self.native.offer_output(index, self.offered[index].view(np.uint8))
            if array is None:
                self._check(column, rows, runs)
            if column.assembler is None:
                if array is None:
                    with allocating(column.source, column.feature, runs):
                        array = np.empty((rows, *column.feature.item_shape), column.feature.item_dtype)
                self.native.set_output(index, array.reshape(-1).view(np.uint8))
                yield name, array

    def _check(self, column: ColumnDecoder, rows: int, runs: Sequence[Run]) -> None:
        """Refuse more rows of one size than the limit allows."""
        try:
            if self.request.limit is not None:
                self.request.limit.check_rows(rows, column.feature)
        except RowLimitError as error:
            self.runs = list(zip(accumulate((run.count or 0 for run in runs), initial=0), runs, strict=False))
            raise row_error(error, column.source, *self._run_of(error.row)) from None

    def learn(self, records: int, consumed: int) -> None:
        """Count records; the first of them determine how much memory is allocated for all."""
        self.records += records
        if records and self.nbytes:
            factor = self.nbytes / consumed if self.rows is None else min(self.nbytes / consumed, self.rows / records)
            self.native.preallocate(factor * 1.05)
            self.nbytes = 0

    def blocks(self) -> dict[str, Block]:
        """Assemble the blocks of all columns."""
        specs = self.request.key_specs
        taken = [KeyOutput.from_native(self.native.take_output(i), spec) for i, spec in enumerate(specs)]
        for index, memory in self.offered.items():
            if taken[index].values is None:
                taken[index] = taken[index]._replace(values=memory[: taken[index].total].view(np.uint8))
        prepared: dict[str, Sequence[KeyOutput]] = {}
        blocks = {}
        for name, column in self.request.columns.items():
            outputs: Sequence[KeyOutput] = [taken[index] for index in self.request.outputs[name]]
            try:
                if column.prepare is not None:
                    if column.source not in prepared:
                        prepared[column.source] = column.prepare(column.parsed, outputs)
                    outputs = prepared[column.source]
                blocks[name] = self._block(name, column, outputs)
            except RowError as error:
                raise row_error(error, column.source, *self._run_of(error.row), column.unit) from None
        return blocks

    def _block(self, name: str, column: ColumnDecoder, outputs: Sequence[KeyOutput]) -> Block:
        if name in self.arrays:
            return self.arrays[name]
        if column.assembler is not None:
            out = self.out.get(name) if column.feature.is_dense else None
            if out is None and self.request.limit is not None:
                self.request.limit.check_rows(self.records, column.feature)
            assemble: Any = column.assembler
            if assemble in (image_values, inflated_values, partitioned, tensor_values):
                # Their sizes follow from the encoded values.
                assemble = partial(assemble, limit=self.request.limit)
            with allocating(column.source, column.feature, [run for _, run in self.runs]):
                block: Block = assemble(column.parsed, outputs, self.records, out)
                return block
        # The number of rows was unknown, so the decoder allocated the memory.
        dense: NDArray[Any] = outputs[0].values.view(column.feature.item_dtype)  # type: ignore[union-attr]
        return dense.reshape(self.records, *column.feature.item_shape)

    def _run_of(self, row: int) -> tuple[Run, int]:
        """Return the run that a row comes from, and its record number in the shard."""
        first, run = next((first, run) for first, run in reversed(self.runs) if first <= row)
        return run, run.record_number(row - first)


class _Reader:
    """A window on one shard, and the number of the record that it begins with."""

    def __init__(self, run: Run, check_crc: bool) -> None:
        self.shard = run.shard
        self.check_crc = check_crc
        self.window = Window(run.shard, run.offset, block_size=limits().first_window_nbytes, stop=run.stop_offset)
        self.record = run.entry_record

    def reaches(self, run: Run) -> bool:
        """Return whether the run follows in the same shard."""
        return run.shard == self.shard and run.first >= self.record

    def read(self, run: Run, job: _DecodeJob) -> None:
        """Decode the run."""
        if _log.isEnabledFor(logging.DEBUG):
            names, path = tuple(job.request.columns), redact_url(run.shard.path)
            _log.debug("decode %s from record %d, %s of them, of %s", names, run.first, run.count, path)
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
                f"{plural(self.record, 'record')} expected, and more bytes follow them: the counts given are wrong, or "
                f"the file has changed since it was counted",
                Location(self.shard.path, self.record, self.window.offset),
            )

    def _read_all(self, run: Run, job: _DecodeJob) -> None:
        """Decode consecutive records."""
        self.skip(run)
        left = -1 if run.count is None else run.count
        window = self.window
        crossing = False
        while left != 0 and not self._beyond(run):
            end, limit = window.end, left
            if crossing:
                limit = 1
            elif run.split is not None:
                end = min(end, window.begin + run.split.stop - window.offset)
            walk = job.native.feed(window.buffer, window.begin, end, limit, window.offset)
            window.advance(walk.consumed)
            self.record += walk.records
            left -= walk.records if left > 0 else 0
            job.learn(walk.records, walk.consumed)
            self._check(walk, job)
            if walk.stop is Stop.MORE:
                # The last record of a split reaches beyond it.
                crossing = run.split is not None and window.offset + walk.need > run.split.stop
                if crossing:
                    window.expect(max(run.stop_offset, window.offset + walk.need))
                if not self._beyond(run) and not self._fill(walk.need, run):
                    if run.count is None and window.exhausted:
                        return
                    raise self._ended(left)
        if run.split is not None:
            check_following_splits(self.shard, run.split, window.offset, self.record)

    def _read_selected(self, run: Run, selected: NDArray[np.int64], job: _DecodeJob) -> None:
        """Decode selected records; skip those between them by their headers."""
        window, done = self.window, 0
        while done < len(selected):
            border = window.offset
            walk = job.native.feed_selected(
                window.buffer, window.begin, window.end, self.record, selected[done:], border
            )
            if not window.advance(walk.consumed):
                raise truncation_error(self.shard, border, self.record, walk.records)
            self.record += walk.records
            decoded = int(np.searchsorted(selected, self.record)) - done
            done += decoded
            job.learn(decoded, walk.consumed)
            self._check(walk, job)
            if walk.stop is Stop.MORE and not self._fill(walk.need, run):
                raise self._ended(int(selected[-1]) + 1 - self.record)

    def _check(self, walk: _native.Walk, job: _DecodeJob) -> None:
        """Raise an error if the decoder refused a record."""
        if walk.stop is Stop.FEATURE:
            raise self._feature_error(job)
        if walk.stop is Stop.FRAMING:
            raise framing_error(self.window, self.record)

    def _beyond(self, run: Run) -> bool:
        return run.split is not None and self.window.offset >= run.split.stop

    def _fill(self, need: int, run: Run) -> bool:
        """Read `need` bytes and a block of the rest of the run; return whether they exist."""
        window = self.window
        left = run.stop_offset - window.offset - (window.end - window.begin)
        least, most = limits().first_window_nbytes, limits().window_nbytes
        window.block_size = min(max(left, need, least), most) if left > 0 else most
        return window.fill(need)

    def skip(self, run: Run) -> None:
        """Skip to the first record of the run."""
        count = run.first - self.record
        while count > 0:
            window, border = self.window, self.window.offset
            walk = _native.scan(window.buffer, window.begin, window.end, count, self.check_crc)
            if not window.advance(walk.consumed):
                raise truncation_error(self.shard, border, self.record, walk.records)
            self.record += walk.records
            count -= walk.records
            if walk.stop is Stop.FRAMING:
                raise framing_error(window, self.record)
            if walk.stop is Stop.MORE and not self._fill(walk.need, run):
                raise self._ended(count)

    def _ended(self, missing: int) -> TFRecordError:
        if not self.window.exhausted:
            return framing_error(self.window, self.record)
        return CorruptRecordError(
            f"the shard ends where {plural(missing, 'more record')} should follow: the counts given are wrong, or the "
            f"file has changed since it was counted",
            Location(self.shard.path, self.record, self.window.offset),
        )

    def _feature_error(self, job: _DecodeJob) -> TFRecordError:
        """Return the error of the record that the decoder refused."""
        location = Location(self.shard.path, self.record, self.window.offset)
        problem = job.native.problem()
        refused = Refused(problem.fault, problem.step, problem.found, problem.text.decode())
        length = int.from_bytes(self.window.view(0, 8), "little")
        payload = bytes(self.window.view(HEADER, HEADER + length))
        request = job.request
        if refused.is_other_message:
            return payload_error(payload, location, request.decoder.schema.message)
        schema = request.decoder.schema
        if 0 <= problem.column < len(request.key_specs):
            spec = request.key_specs[problem.column]
            column = next(column for column in request.columns.values() if spec in column.specs)
            if refused.fault == Fault.FULL and request.limit is not None:
                message = f"feature {column.source!r} {request.limit.message()}"
                return MemoryLimitError(message, replace(location, feature=column.source))
            return feature_error(column, spec, refused, schema, location, payload)
        key = request.unset[problem.column - len(request.key_specs)] if problem.column >= 0 else refused.text
        return unknown_error(key, refused, schema, location)


def row_error(
    error: RowError, source: str, run: Run, record: int, unit: str = "value"
) -> FeatureError | MemoryLimitError:
    """Return the public error of a row of a run."""
    return located_error(error, locate_record(run, record, source), unit)


def located_error(error: RowError, place: Location, unit: str = "value") -> FeatureError | MemoryLimitError:
    """Return the public error of a row at a location."""
    kind = MemoryLimitError if isinstance(error, RowLimitError) else FeatureError
    item = "" if error.item is None else f" in {unit} {error.item}"
    return kind(f"feature {place.feature!r}{item} {error.message}", place)


def locate_record(run: Run, record: int, feature: str) -> Location:
    """Return the location of a record of a run, with its byte, which this function searches."""
    reader = _Reader(run, check_crc=False)
    with reader.window:
        reader.skip(replace(run, first=record))
        return Location(run.shard.path, record, reader.window.offset, feature)


@dataclass(frozen=True, slots=True)
class Refused:
    """Content of a record that the decoder refused."""

    fault: Fault
    step: int
    found: int
    text: str

    @property
    def is_other_message(self) -> bool:
        """Return whether the record as a whole is not the expected message."""
        return self.fault in (Fault.MALFORMED, Fault.NOT_EXAMPLE)


def unknown_error(key: str, refused: Refused, schema: Schema, location: Location) -> FeatureError:
    """Return the error of a feature that an inferred schema lacks."""
    if refused.fault == Fault.UNKNOWN_KEY:
        name = key if refused.step < 0 else f"{ITEMS}/{key}"
        message = "is not in the schema"
    else:
        name = key
        message = f"holds {_kind_name(Kind(refused.found))}, but no sampled record sets it"
    unit = "item" if schema.message == "ExampleListWithContext" else "step"
    text = f"feature {name!r}{_place(refused, unit)} {message}{_hint(schema.sampling)}"
    return FeatureError(text, Location(location.file, location.record, location.offset, name))


def feature_error(
    column: ColumnDecoder, spec: KeySpec, refused: Refused, schema: Schema, location: Location, payload: bytes
) -> FeatureError:
    """Return the error of a feature of a record, `payload`, that does not match the schema."""
    message = f"feature {column.source!r}"
    if spec.key != schema.key_of(column.source):
        message += f", key {spec.key!r},"
    message += f"{_place(refused, column.unit)} {_difference(column.parsed, spec, refused)}"
    if refused.fault == Fault.MISSING:
        is_list = schema.message == "ExampleListWithContext"
        message += _keys_of_items(spec, refused, payload) if is_list else _found_keys(spec, payload)
    message += _hint(schema.sampling)
    return FeatureError(message, Location(location.file, location.record, location.offset, column.source))


def _place(refused: Refused, unit: str) -> str:
    return f" in {unit} {refused.step}" if refused.step >= 0 else ""


def _found_keys(spec: KeySpec, payload: bytes) -> str:
    """Describe the keys of a record that lacks one."""
    try:
        record = SequenceExample.FromString(payload)  # parses Examples too: they are its context
    except (DecodeError, UnicodeDecodeError):
        # The decoder does not validate features that are not requested.
        return "; another part of the record is damaged"
    features, lists = record.context.feature, record.feature_lists.feature_list
    if spec.key in features and not spec.steps:
        return "; the key exists, but its value is empty"
    if spec.steps and not lists:
        return "; the record lacks feature lists: read Examples without sequence_features"
    if spec.steps and spec.key in features:
        return "; it is a feature of the context: specify it in features"
    if spec.key in lists:
        return "; it is a feature list: specify it in sequence_features"
    return near_misses(spec.key, sorted(lists if spec.steps else features))


def _keys_of_items(spec: KeySpec, refused: Refused, payload: bytes) -> str:
    """Describe the keys of an item, or of the context of a list of Examples, that lacks one."""
    try:
        record = ExampleListWithContext.FromString(payload)
    except (DecodeError, UnicodeDecodeError):
        return "; another part of the record is damaged"
    items, context = record.examples, record.context.features.feature
    found = items[refused.step].features.feature if spec.steps else context
    if spec.key in found:
        return "; the key exists, but its value is empty"
    if spec.steps and spec.key in context:
        return "; it is a feature of the context: specify it in features"
    if not spec.steps and any(spec.key in item.features.feature for item in items):
        return "; it is a feature of the items: specify it in example_features"
    if spec.steps and any(spec.key in item.features.feature for item in items):
        return "; other items of the record have it: a default_value fills it"
    return near_misses(spec.key, sorted(found))


def _hint(sampling: Sampling | None) -> str:
    if sampling is None:
        return ""
    return (
        f" (inferred from {plural(sampling.records, 'record')}; infer_schema(urlpath, sample=None) reads all of them, "
        f"or give features=)"
    )


def _kind_name(kind: Kind) -> str:
    return {Kind.BYTES: "a bytes list", Kind.FLOATS: "a float list", Kind.INT64: "an int64 list"}.get(kind, "no list")


def _difference(feature: Feature, spec: KeySpec, refused: Refused) -> str:
    """Describe the found content, and the content that the feature expects."""
    found = refused.found
    match refused.fault:
        case Fault.MISSING if (
            spec.layout == ValueLayout.LOCATED and getattr(feature, "default_value", None) is not None
        ):
            return f"is missing: the file does not hold the default value of {feature}"
        case Fault.SCATTERED:
            return (
                f"holds its values in several runs of bytes, but a reference to {feature} needs one run: they are not "
                f"packed, or packed in parts"
            )
        case Fault.MISSING:
            return f"is missing where {feature} needs it"
        case Fault.KIND:
            return f"holds {_kind_name(Kind(found))} where {feature} takes {_kind_name(spec.kind)}"
        case Fault.SIZE:
            return f"holds {plural(found, 'byte')} where {feature} takes {spec.count}"
        case Fault.UTF8:
            return f"is not valid UTF-8 where {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
        case Fault.BOOLEAN:
            return f"holds a byte {found} where {feature} takes 0 and 1; RawFeature(shape, 'uint8') reads any byte"
        case Fault.CAST:
            return f"holds {_value(spec, found)}, which {spec.dtype} can't hold, where {feature} casts to it"
        case Fault.TENSOR:
            return f"holds {found_tensor(refused.text, found)} where {feature} takes a tensor of its dtype and shape"
        case Fault.FULL:
            return f"holds more values than the output buffer, but {feature} has a known number"
    values = plural(found, "value")
    if spec.layout == ValueLayout.RAGGED:
        return f"holds {values} where {feature} takes a multiple of {spec.count}"
    listed = spec.layout == ValueLayout.FIXED or (spec.layout == ValueLayout.LOCATED and spec.dtype != "bytes")
    advice = "" if spec.steps or spec.layout == ValueLayout.LOCATED else _advice(feature, found)
    return f"holds {values} where {feature} takes {spec.count if listed else 1}{advice}"


def _advice(feature: Feature, found: int) -> str:
    """Return the feature class that reads this number of values."""
    if not found and isinstance(feature, FixedLenFeature | TextFeature) and not feature.shape:
        return "; a default_value fills it"
    if isinstance(feature, ImageFeature):
        return "; ImageFeature with a shape that begins with -1 reads any number of them"
    if isinstance(feature, RawFeature | TensorFeature | TextFeature):
        return f"; {type(feature).__name__} with count=-1 reads any number of them"
    if isinstance(feature, FixedLenFeature):
        return f"; VarLenFeature({feature.dtype!r}) reads any number of them"
    return ""


def _value(spec: KeySpec, found: int) -> str:
    """Format a number that the decoder reports by its bits."""
    if stored_kind(spec.dtype) == "int64":
        return str(found - (1 << 64) if found >= 1 << 63 else found)
    (value,) = struct.unpack("<f", struct.pack("<I", found))
    return repr(value)
