"""Features that columns are written as, and encoding of their blocks to framed records by the native encoder.

The schema that writes records also reads them. A column that no feature stores unchanged needs one from the user:
values are never converted by a guess. Records are written to one buffer that is reused, so memory is the given rows and
one buffer.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import Block, RowError, first_true
from dask_tfrecord.columns.conversions import as_read, check_column
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues
from dask_tfrecord.features.keys import MESSAGES, Scope
from dask_tfrecord.features.listed import is_padded
from dask_tfrecord.features.schema import ITEMS, Schema, lengths_column, schema_from_arguments, split_item_name

# Initial size of the buffer for records.
_BUFFER = 1 << 20
# Maximum size of a framed record that protobuf can read.
_MOST = (1 << 31) - 1


def source_columns(
    name: str, feature: Feature, columns: Mapping[str, Feature], own: Container[str], *, steps: bool
) -> tuple[str, ...] | None:
    """Return the columns that a feature is written from."""
    required, optional = feature.sources(name)
    if steps or is_padded(feature):
        lengths = lengths_column(name, columns)
        optional = () if lengths is None else (lengths,)
    if not all(column in columns for column in required):
        return None
    return (*required, *(column for column in optional if column in columns and column not in own))


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """Columns that one feature is written from."""

    name: str
    key: str
    feature: Feature
    columns: Mapping[str, Feature]
    scope: Scope


class Encoder:
    """Encodes columns to the values of keys."""

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        self.schema, self.columns = schema, columns
        self.encoding = dict(encoding or {})
        decoder = Decoder(schema)
        self._plans = [_plan_feature(name, feature, columns, decoder) for name, feature in schema.items()]
        used = {column for plan in self._plans for column in plan.columns}
        if left := [name for name in columns if name not in used]:
            raise SchemaError(f"column {left[0]!r} belongs to no feature: add one to the schema, or drop it")
        if other := [name for name in self.encoding if name not in schema or not schema[name].is_image]:
            raise SchemaError(f"encoding of {other[0]!r}: only an ImageFeature has an encoding")

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self.schema, self.columns, self.encoding)

    def keyed(self, blocks: Mapping[str, Block], location: Location) -> list[KeyedValues]:
        """Return the values of each key."""
        by_key: dict[tuple[str, bool], tuple[KeyedValues, str]] = {}
        first: tuple[KeyedValues, str] | None = None
        for plan in self._plans:
            with locating(plan.name, location, plan.scope):
                blocks_of = {name: as_read(wanted, blocks[name]) for name, wanted in plan.columns.items()}
                made = self._values_of_keys(plan, blocks_of)
                if plan.scope == "item":
                    other, name = first = first or (made[0], plan.name)
                    assert made[0].row_splits is not None and other.row_splits is not None
                    check_items(made[0].row_splits, other.row_splits, name, "items have all keys")
            for keyed in made:
                other, name = by_key.setdefault((keyed.key, keyed.steps), (keyed, plan.name))
                if other is not keyed and not other.same(keyed):
                    raise SchemaError(
                        f"features {name!r} and {plan.name!r} share the key {keyed.key!r}, and their columns hold "
                        f"different values for it",
                        location,
                    )
        return [keyed for keyed, _ in by_key.values()]

    def _values_of_keys(self, plan: ColumnEncoding, blocks: Mapping[str, Block]) -> list[KeyedValues]:
        """Return the values of the keys of one feature."""
        encoding = self.encoding.get(plan.name, ImageEncoding())
        return plan.feature.encode_columns(plan.name, plan.key, plan.scope, blocks, encoding)

    def native(self, blocks: Mapping[str, Block], location: Location) -> _native.Encoder:
        """Return the native encoder of these rows."""
        fields = [keyed.field() for keyed in self.keyed(blocks, location)]
        return _native.Encoder(fields, len(next(iter(blocks.values()))), MESSAGES[self.schema.message])


@contextmanager
def locating(name: str, location: Location, scope: str = "item") -> Iterator[None]:
    """Raise the error of a row with its record; `location` names the first row."""
    try:
        yield
    except RowError as error:
        record = (location.record or 0) + error.row
        place = "" if error.item is None else f", in {scope} {error.item}"
        raise FeatureError(
            f"feature {name!r} {error.message}{place}", Location(location.file, record, feature=name)
        ) from None


class RecordStream:
    """Records of one shard, encoded from consecutive blocks."""

    def __init__(self, encoder: Any, file: str) -> None:
        # An Encoder, or one of messages.
        self.encoder, self.file = encoder, file
        self.records = 0
        self._buffer: NDArray[np.uint8] = np.empty(_BUFFER, np.uint8)

    def framed(self, blocks: Mapping[str, Block]) -> Iterator[memoryview]:
        """Encode the records of the next rows."""
        rows = len(next(iter(blocks.values())))
        native = self.encoder.native(blocks, Location(self.file, self.records))
        row = 0
        while row < rows:
            written = native.encode(row, self._buffer)
            if written.records:
                yield self._buffer.data[: written.nbytes]
            elif written.need > _MOST:
                raise FeatureError(
                    f"the record would take {written.need:,} bytes but protobuf allows at most {_MOST:,}: write it as "
                    "several records",
                    Location(self.file, self.records),
                )
            else:
                self._buffer = np.empty(max(written.need, 2 * len(self._buffer)), np.uint8)
            row += written.records
            self.records += written.records


def _plan_feature(name: str, feature: Feature, columns: Schema, decoder: Decoder) -> ColumnEncoding:
    """Plan how to write a feature: its columns, its form and its key."""
    schema = decoder.schema
    scope = schema.scope_of(name)
    if (reason := feature.reason_not_written()) is not None:
        raise SchemaError(f"feature {name!r}: {feature} {reason}; state by features={{{name!r}: …}} how to write it")
    names = source_columns(name, feature, columns, schema, steps=scope == "step")
    if feature.is_message:
        names = message_columns_of(name, decoder, columns)
    if not names:
        raise SchemaError(f"feature {name!r}: the column that {feature} is written from is missing")
    lengths = FixedLenFeature((), "int64")
    wanted = {column: decoder.columns.get(column, lengths) for column in names}
    for column, form in wanted.items():
        check_column(column, columns[column], form)
    return ColumnEncoding(name, schema.key_of(name), feature, wanted, scope)


def message_columns_of(name: str, decoder: Decoder, columns: Container[str]) -> tuple[str, ...]:
    """Return the columns that are fields of the messages in the bytes of a feature."""
    return tuple(label for label, each in decoder.decoders.items() if each.source == name and label in columns)


def check_items(found: NDArray[np.int64], expected: NDArray[np.int64], other: str, reason: str) -> None:
    """Refuse rows that have another number of items than the rows of `other`."""
    sizes, wanted = np.diff(found), np.diff(expected)
    if (row := first_true(sizes != wanted)) is not None:
        raise RowError(row, f"holds {plural(sizes[row], 'item')}; expected {wanted[row]:,}, as in {other!r}: {reason}")


def record_schema(columns: Schema, read: Schema | None, given: Schema) -> Schema:
    """Return the features that columns are written as."""
    if read is not None and read.message_type is not None:
        read = None
    message = given.message if given.message != "Example" or read is None else read.message
    own = {*given, *(read or {})}
    records: dict[str, tuple[Feature, bool]] = {}
    used: dict[str, str] = {}

    def names_of(name: str, feature: Feature, steps: bool) -> tuple[str, ...] | None:
        if feature.is_message:
            stated = given if read is None or name in given else read
            return message_columns_of(name, Decoder(stated.select([name])), columns) or None
        return source_columns(name, feature, columns, own, steps=steps and message == "SequenceExample")

    def take(name: str, feature: Feature, *, steps: bool) -> bool:
        names = names_of(name, feature, steps)
        if names is None or any(column in used for column in names):
            return False
        records[name] = (feature, steps)
        used.update(dict.fromkeys(names, name))
        return True

    def of_any_length(feature: Feature) -> Feature:
        # Files determine the length of padded rows.
        return replace(feature, length=None) if is_padded(feature) else feature

    for name, feature in given.items():
        if not take(name, feature, steps=given.has_steps(name)):
            raise UnknownFeatureError(f"feature {name!r}: no column for {feature}{near_misses(name, columns)}")
    if read is not None:
        read_columns = Decoder(read).columns
        for name, feature in read.items():
            steps = read.has_steps(name)
            names = names_of(name, feature, steps) or ()
            kept = all(
                of_any_length(columns[column]) == of_any_length(read_columns.get(column, columns[column]))
                for column in names
            )
            if kept and (not steps or read.message == message):
                take(name, feature, steps=steps)
    for name in columns:
        if name not in used:
            take(name, columns[name], steps=False)
    order = dict.fromkeys(used[column] for column in columns)
    of_records = {name: records[name][0] for name in order if not records[name][1]}
    of_steps = {split_item_name(name, message)[0]: records[name][0] for name in order if records[name][1]}
    classes = {**columns.classes, **given.classes}
    schema = Schema(
        of_records,
        sequence_features=of_steps if message == "SequenceExample" else None,
        example_features=of_steps if message == "ExampleListWithContext" else None,
        classes={name: names for name, names in classes.items() if name in records},
    )
    grouping = given if given.groups else columns
    items = [name for name in schema if message == "ExampleListWithContext" and schema.has_steps(name)]
    ragged = [name for name, feature in schema.items() if feature.ragged_rank and name not in items]
    groups = grouping.groups_of(ragged)
    if message == "ExampleListWithContext":
        # Columns that were items, and have other names now.
        groups.pop(ITEMS, None)
    return schema.with_groups(groups)


def column_forms(features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Map features of records to the features of the columns that are written as them."""
    schema = schema_from_arguments(features, None)
    columns: Mapping[str, Any] = Decoder(schema).columns
    # Arrays hold the nanoseconds of times of messages, and of times of one shape.
    is_time = {
        name: form.item_dtype.kind in "mM" and (name not in schema or not form.ragged_rank)
        for name, form in columns.items()
    }
    forms = {name: replace(form, dtype="int64") if is_time[name] else form for name, form in columns.items()}
    for name, feature in schema.items():
        if is_padded(feature):
            # Object arrays hold rows without padding.
            forms[name] = feature.unpadded()
    return forms
