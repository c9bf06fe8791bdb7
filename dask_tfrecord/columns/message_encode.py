"""Columns written as fields of protobuf messages: the fields of columns, and the native encoder of their blocks.

The tables are those that read the same columns, so that a message that was read is written with all fields that have a
column. Blocks are taken apart into the outputs of their fields, and the row splits of the repeated fields around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import Block, BytesBlock, RowError, as_row_error, first_true
from dask_tfrecord.columns.encode import check_column, check_items, formed, locating
from dask_tfrecord.columns.message_fields import (
    FieldPath,
    FieldSpec,
    message_columns,
    message_tables,
)
from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.features import Encoded, Feature, FixedLenFeature, ProtoFeature, TextFeature
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.keys import Decoded
from dask_tfrecord.images.pixels import ImageEncoding
from dask_tfrecord.message_types import MessageType, is_map, is_utf8
from dask_tfrecord.schema import Schema


def message_schema(columns: Mapping[str, Feature | None], read: Schema | None, given: Schema) -> Schema:
    """Return the fields that columns are written to: given ones, those that were read, or those of their names."""
    message, features = given.message_type, dict(given)
    assert message is not None
    found = {label for name, feature in given.items() for label in _columns(message, name, feature)}
    known = {} if read is None or read.message_type is None else read
    for name, feature in known.items():
        labels = _columns(read.message_type, name, feature).keys()  # type: ignore[union-attr, arg-type]
        if name not in features and not labels & found and labels & columns.keys():
            features[name] = feature
            found |= labels
    for name in columns:
        if name not in found:
            features[name] = _feature_of_name(message, name, columns[name])
    return Schema(features, message=message)


def _columns(message: MessageType, name: str, feature: Any) -> dict[str, ColumnDecoder]:
    try:
        return message_columns(message, name, feature)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from None


def _feature_of_name(message: MessageType, name: str, column: Feature | None) -> ProtoFeature:
    try:
        path = FieldPath.find(message, name)
    except SchemaError as error:
        raise SchemaError(
            f"column {name!r} names no field of {message.name}: {error}; drop the column, give "
            f"features={{{name!r}: ProtoFeature('path')}}, or write Examples by other features"
        ) from None
    if column is not None and path.message is not None and column.is_bytes:
        return ProtoFeature(name, values=FixedLenFeature((), "bytes"))
    is_enum = path.field is not None and path.field.enum_type is not None
    is_named = is_enum and column is not None and column.item_dtype.kind == "T"
    return ProtoFeature(name, values=TextFeature() if is_named else None)


class MessageEncoder:
    """Encodes columns to messages."""

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        self.schema, self.columns, self.encoding = schema, columns, dict(encoding or {})
        assert schema.message_type is not None
        message = self.message = schema.message_type
        known: dict[str, ColumnDecoder] = {}
        for name, feature in schema.items():
            known |= _columns(message, name, feature)
        self.fields: dict[str, ColumnDecoder] = {}
        for name, given in columns.items():
            if name not in known:
                raise SchemaError(
                    f"column {name!r} is a message with fields of its own in {message.name}: its columns are "
                    f"{', '.join(list(_columns(message, name, ProtoFeature(name)))[:5])}"
                )
            self.fields[name] = _writable(message, name, given, known[name])
        self._paths = {name: FieldPath.find(message, field.specs[0].key) for name, field in self.fields.items()}
        for name in self.encoding:
            if name not in self.fields or not self.fields[name].parsed.is_image:
                raise SchemaError(f"encoding of {name!r}: only the values of an ImageFeature have an encoding")
        specs = [spec for field in self.fields.values() for spec in field.specs]
        # The column of a oneof states which of its messages is set, also if the message has no column.
        self._members = {
            FieldSpec((*spec.path[:-1], member.name), "presence"): (spec, member.number)
            for path, spec in zip(self._paths.values(), (field.specs[0] for field in self.fields.values()), strict=True)
            if spec.part == "case"
            for member in path.oneof.fields
            if member.message_type is not None
        }
        self.specs = tuple(dict.fromkeys([*specs, *self._members]))
        _check_keys(self._paths)
        _check_bytes(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageEncoder, (self.schema, self.columns, self.encoding)

    def native(self, blocks: Mapping[str, Block], location: Location) -> _native.MessageEncoder:
        """Return the native encoder of these rows."""
        tables = message_tables(self.message, self.specs)
        outputs: dict[FieldSpec, tuple[str, Any]] = {}
        splits: dict[tuple[str, ...], tuple[str, NDArray[np.int64]]] = {}
        for name, field in self.fields.items():
            with locating(name, location), ExitStack() as stack:
                block: Any = formed(field.feature, blocks[name])
                path = field.specs[0].path
                for repeated in (path[: end + 1] for end in range(len(path))):
                    if repeated in tables.splits:
                        other, expected = splits.setdefault(repeated, (name, block.row_splits))
                        check_items(block.row_splits, expected, other, "both are fields of the same messages")
                        stack.enter_context(as_row_error(block.row_splits, item=True))
                        block = block.values
                values = self._values(name, field, block)
            for spec, each in zip(field.specs, values, strict=True):
                other, first = outputs.setdefault(spec, (name, each))
                if first is not each and not _same(first, each):
                    raise SchemaError(
                        f"columns {other!r} and {name!r} hold different values of field {spec.key!r}: drop one of them",
                        location,
                    )
        for spec, (case, number) in self._members.items():
            outputs.setdefault(spec, ("", outputs[case][1] == number))
        flat = [outputs[spec][1] for spec in self.specs]
        return _native.MessageEncoder(
            tables.tables,
            [
                np.ascontiguousarray(each.values if isinstance(each, BytesBlock) else each.view(np.uint8))
                for each in flat
            ],
            [np.ascontiguousarray(each.splits) if isinstance(each, BytesBlock) else None for each in flat],
            [np.ascontiguousarray(splits[path][1]) for path in tables.splits],
            len(next(iter(blocks.values()))),
        )

    def _values(self, name: str, field: ColumnDecoder, block: Any) -> Sequence[Any]:
        """Return the values of each output of a column, one per instance of its message."""
        spec, path = field.specs[0], self._paths[name]
        if spec.part == "case":
            return [_numbers({each.name: each.number for each in path.oneof.fields} | {"": 0}, block, int_text=False)]
        if spec.part == "presence":
            return [block]
        last = path.fields[-1]
        if last.enum_type is not None and isinstance(block, BytesBlock):
            return [_numbers({each.name: each.number for each in last.enum_type.values}, block, int_text=True)]
        if last.enum_type is not None and last.enum_type.is_closed:
            numbers = [each.number for each in last.enum_type.values]
            if (row := first_true(~np.isin(block, numbers))) is not None:
                raise RowError(row, f"holds {block[row]}, which enum {last.enum_type.full_name} lacks")
        if len(field.specs) > 1:
            return _seconds_and_nanos(block.view(field.parsed.item_dtype))
        if isinstance(field.parsed, Encoded) and field.parsed.item_dtype.kind != "T":
            block = field.parsed.value_bytes(block, self.encoding.get(name, ImageEncoding()))
        elif self.columns[name].is_bytes and is_utf8(last):
            try:
                TextFeature().assemble(Decoded.of(block))
            except RowError as error:
                raise RowError(error.row, "is not valid UTF-8, which text of this field is") from None
        return [block]


def _writable(message: MessageType, name: str, given: Feature, field: ColumnDecoder) -> ColumnDecoder:
    """Refuse a column that its field does not hold."""
    if field.prepare is not None:
        raise SchemaError(
            f"column {name!r} is a field of messages in bytes, which are written as they are: read their bytes by "
            f"ProtoFeature(path, values=FixedLenFeature((), 'bytes')), of an Any its type_url and value"
        )
    if field.parsed.item_dtype.kind in "mM" and given.item_dtype == np.int64:
        # Nanoseconds: arrays of a user have other dtypes than times.
        times: Any = field.feature
        field = replace(field, feature=replace(times, dtype="int64"))
    spec = field.specs[0]
    where = f"field {spec.key if len(field.specs) == 1 else '.'.join(spec.path[:-1])!r} of {message.name}"
    check_column(name, given, field.feature, where)
    return field


def _check_keys(paths: Mapping[str, FieldPath]) -> None:
    """Refuse entries of maps without keys."""
    known = {path.parts for path in paths.values()}
    for name, path in paths.items():
        for end, each in enumerate(path.fields, 1):
            if is_map(each) and (*path.parts[:end], "key") not in known:
                key = ".".join((*path.parts[:end], "key"))
                raise SchemaError(
                    f"column {name!r} is of entries of a map without their keys: write a column of {key!r}, too, or "
                    f"drop this one"
                )


def _check_bytes(fields: Mapping[str, ColumnDecoder]) -> None:
    """Refuse a message that is in two columns: its bytes, and a field of it."""
    wholes = {spec.path: name for name, field in fields.items() for spec in field.specs if spec.part == "values"}
    for name, field in fields.items():
        for spec in field.specs:
            for end in range(1, len(spec.path)):
                if spec.path[:end] in wholes:
                    raise SchemaError(
                        f"columns {wholes[spec.path[:end]]!r} and {name!r} hold the bytes and a field of message "
                        f"{'.'.join(spec.path[:end])!r}: drop one of them"
                    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, BytesBlock):
        return np.array_equal(one.values, other.values) and np.array_equal(one.splits, other.splits)
    return bool(one.tobytes() == other.tobytes())


def _numbers(known: Mapping[str, int], texts: BytesBlock, *, int_text: bool) -> NDArray[np.int32]:
    """Return the numbers of names; of an enum, decimal text is an unknown number."""
    numbers = {name.encode(): number for name, number in known.items()}
    out = np.empty(len(texts), np.int32)
    for row, text in enumerate(np.asarray(texts).tolist()):
        try:
            out[row] = numbers[text] if text in numbers or not int_text else int(text)
        except (KeyError, ValueError, OverflowError):
            names = ", ".join(repr(name) for name in [*known][:10])
            raise RowError(row, f"holds {text.decode(errors='replace')!r}; expected one of {names}") from None
    return out


def _seconds_and_nanos(times: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the parts of moments, whose nanoseconds count on, or of durations, whose parts have one sign."""
    if (row := first_true(np.isnat(times))) is not None:
        raise RowError(row, "holds NaT, which is no time: 0 is the default of a field that is not set")
    count, billion = times.view(np.int64), 1_000_000_000
    seconds, nanos = np.divmod(count, billion)
    if times.dtype.kind == "m":
        above = (seconds < 0) & (nanos > 0)
        seconds, nanos = seconds + above, nanos - billion * above
    return seconds, nanos.astype(np.int32)
