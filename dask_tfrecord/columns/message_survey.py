"""Survey records of one message type: how often each field is set and how many values it has.

Records are decoded as the columns of `read_tfrecord(…, message=M)` are, so a record that the survey refuses is one that
cannot be read. Surveys of parts of a collection are merged in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import RowError
from dask_tfrecord.columns.decoder import located_error
from dask_tfrecord.columns.message_fields import (
    FieldPath,
    FieldSpec,
    MessageTables,
    leaf_paths,
    message_columns,
    message_tables,
)
from dask_tfrecord.errors import FeatureError, Location, joined
from dask_tfrecord.features import FixedLenFeature, dtype_name
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.inference.report import FeatureReport, KindReport, Report, Suggestion, suggested_content
from dask_tfrecord.features.inference.survey import FeatureCounts, KindCounts, merge_each
from dask_tfrecord.features.keys import Decoded, KeyOutput
from dask_tfrecord.features.message_types import MessageType, enum_names, is_map, is_repeated

# Records, and bytes of records, that are decoded together.
_BATCH = 256
_BATCH_NBYTES = 4 << 20
# Records that are refused whose errors are kept.
_MOST_REFUSALS = 10
# Names of an enum that a report lists.
_MOST_NAMES = 4
_BYTES = FixedLenFeature((), "bytes")


@dataclass(frozen=True, slots=True)
class _Field:
    """Column of a field, and the output that states whether it is set; None if its values do."""

    path: FieldPath
    column: ColumnDecoder
    presence: FieldSpec | None

    @classmethod
    def of(cls, message: MessageType, name: str, feature: Any) -> _Field:
        """Return the field of a path."""
        path = FieldPath.find(message, feature.path)
        spec = FieldSpec(path.parts, "presence") if path.has_presence and not _is_entry(path) else None
        return cls(path, message_columns(message, name, feature)[name], spec)

    @property
    def kind(self) -> str:
        """Name of the dtype."""
        return dtype_name(self.column.feature.item_dtype)

    def is_set(self, outputs: Sequence[KeyOutput], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each record sets the field; `ends` holds the offsets of its values between records."""
        output = outputs[0]
        if self.presence is not None:
            flags = outputs[-1].flat(np.dtype(bool))
        elif (self.path.field is not None and is_repeated(self.path.field)) or _is_entry(self.path):
            return np.diff(ends) > 0
        elif output.value_splits is not None:
            flags = np.diff(output.value_splits) > 0
        else:
            # Negative zero is set.
            assert output.values is not None
            flags = output.values.reshape(max(1, int(ends[-1])), -1)[: int(ends[-1])].any(axis=1)
        return np.diff(np.append(0, np.cumsum(flags))[ends]) > 0


def _is_entry(path: FieldPath) -> bool:
    """Return whether a field is the key or the value of a map."""
    return path.oneof is None and len(path.fields) > 1 and is_map(path.fields[-2])


@dataclass(slots=True)
class MessageSurvey:
    """Counts over records that are messages of one type."""

    message: MessageType
    records: int = 0  # refused ones included
    shards: Counter[str] = field(default_factory=Counter)  # number of records by shard
    counts: dict[str, FeatureCounts] = field(default_factory=dict)  # of each column
    unknown_records: int = 0  # records with fields that the type lacks
    unknown_fields: int = 0
    refused: int = 0  # records that cannot be read as this message
    refusals: list[FeatureError] = field(default_factory=list)  # errors of the first of them

    def merge(self, other: MessageSurvey) -> None:
        """Add the survey of the part of the collection that follows. The other survey must not be used afterwards."""
        self.records += other.records
        self.shards.update(other.shards)
        merge_each(self.counts, other.counts)
        self.unknown_records += other.unknown_records
        self.unknown_fields += other.unknown_fields
        self.refused += other.refused
        self.refusals = [*self.refusals, *other.refusals][:_MOST_REFUSALS]

    def report(self, searched: Sequence[str] = ()) -> Report:
        """Return the report on the survey of the shards `searched`."""
        reported = []
        for name, feature in leaf_paths(self.message).items():
            each, counts = _Field.of(self.message, name, feature), self.counts.get(name, FeatureCounts())
            kinds = counts.kinds or {each.kind: KindCounts(Location(searched[0] if searched else ""))}
            reported.append(
                FeatureReport(
                    name=name,
                    in_lists=False,
                    present=counts.present,
                    unset=0,
                    kinds=tuple(KindReport.from_counts(kind, of_kind) for kind, of_kind in kinds.items()),
                    counts=counts.value_counts.bins(),
                    steps=(),
                    extent=counts.value_counts.extent(),
                    feature=feature,
                    suggestions=_suggest_content(each, feature, counts),
                )
            )
        return Report(
            self.message.name,
            self.records,
            0,
            len(self.shards),
            tuple(reported),
            message_type=self.message,
            unknown_records=self.unknown_records,
            unknown_fields=self.unknown_fields,
            refused=self.refused,
            refusals=tuple(self.refusals),
        )

    def add(self, tables: MessageTables, fields: dict[str, _Field], batch: Sequence[tuple[Location, bytes]]) -> None:
        """Count records of one shard; a record whose values make no columns is found by halves."""
        native = tables.decoder(check_crc=False)
        kept, unknown, refusals = [], list[int](), []
        for location, payload in batch:
            before = native.unknown_fields
            if native.feed_values(np.frombuffer(payload, np.uint8), np.array([0, len(payload)], np.int64)):
                kept.append((location, payload))
                unknown.append(native.unknown_fields - before)
            else:
                refusals.append(tables.error(native.problem(), location))
        outputs = dict(zip(tables.specs, tables.outputs(native), strict=True))
        taken = {name: [outputs[spec] for spec in each.column.specs] for name, each in fields.items()}
        try:
            for name, each in fields.items():
                if each.column.assembler is not None:
                    # Values may not fit a column: times may exceed 64 bits.
                    each.column.assembler(each.column.parsed, Decoded(taken[name], len(kept)))
        except RowError as error:
            if len(batch) > 1:
                self.add(tables, fields, batch[: len(batch) // 2])
                self.add(tables, fields, batch[len(batch) // 2 :])
                return
            refusal = located_error(error, replace(kept[error.row][0], feature=name))
            assert isinstance(refusal, FeatureError)
            kept, unknown, refusals = [], [], [refusal]
        self.records += len(batch)
        self.shards[batch[0][0].file] += len(batch)
        self.unknown_fields += sum(unknown)
        self.unknown_records += sum(map(bool, unknown))
        self.refused += len(refusals)
        self.refusals = [*self.refusals, *refusals][:_MOST_REFUSALS]
        for name, each in fields.items() if kept else ():
            presence = [] if each.presence is None else [outputs[each.presence]]
            _count_field(self.counts.setdefault(name, FeatureCounts()), each, [*taken[name], *presence], kept)


def _count_field(
    counts: FeatureCounts, each: _Field, outputs: Sequence[KeyOutput], kept: Sequence[tuple[Location, bytes]]
) -> None:
    """Count the records that have a field, and its values; detect what its bytes look like."""
    # Offsets of the values between records, through all levels of rows.
    ends = np.arange(len(kept) + 1)
    for splits in outputs[0].levels:
        ends = splits[ends]
    is_set = each.is_set(outputs, ends)
    number = int(is_set.sum())
    counts.present += number
    first = kept[int(is_set.argmax())][0]
    kind = counts.kinds.setdefault(each.kind, KindCounts(first))
    if number:
        kind.first = first if not kind.records else kind.first
        kind.add(first.file, number)
    sizes, times = np.unique(np.diff(ends), return_counts=True)
    for size, records in zip(sizes.tolist(), times.tolist(), strict=True):
        counts.value_counts.add(size, records)
    if each.kind == "bytes":
        found = outputs[0].encoded()
        counts.bytes_summary.add(filter(None, _native.bytes_rows(found.values, found.splits)))


def _suggest_content(each: _Field, feature: Any, counts: FeatureCounts) -> tuple[Suggestion, ...]:
    """Return the names of an enum, or the content that all bytes values have."""
    suggestion = None
    if each.path.field is not None and each.path.field.enum_type is not None:
        names = list(enum_names(each.path.field).values())
        suggestion = Suggestion(joined(names, _MOST_NAMES), "dtf.TextFeature()", counts.present, "record")
    elif each.kind == "bytes" and feature.values is None:
        suggestion = suggested_content(counts, _BYTES)
    if suggestion is None:
        return ()
    # A column can't hold rows of images of different shapes.
    code = None if suggestion.feature == "dtf.ImageFeature()" and each.path.rank else suggestion.feature
    return (
        replace(suggestion, feature=None if code is None else f'dtf.ProtoFeature("{feature.path}", values={code})'),
    )


def survey_messages(records: Iterable[tuple[Location, bytes]], message: MessageType) -> MessageSurvey:
    """Survey records that are messages of a type."""
    counts = MessageSurvey(message)
    fields = {name: _Field.of(message, name, feature) for name, feature in leaf_paths(message).items()}
    specs = dict.fromkeys(chain.from_iterable(each.column.specs for each in fields.values()))
    specs |= dict.fromkeys(each.presence for each in fields.values() if each.presence is not None)
    tables = message_tables(message, tuple(specs))
    for _, of_shard in groupby(records, key=lambda record: record[0].file):
        for batch in _payload_batches(of_shard):
            counts.add(tables, fields, batch)
    return counts


def _payload_batches(records: Iterable[tuple[Location, bytes]]) -> Iterator[list[tuple[Location, bytes]]]:
    """Group records into batches, which are limited in number and bytes."""
    batch, nbytes = list[tuple[Location, bytes]](), 0
    for location, payload in records:
        batch.append((location, payload))
        nbytes += len(payload)
        if len(batch) >= _BATCH or nbytes >= _BATCH_NBYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
