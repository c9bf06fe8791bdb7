"""Write columns as protobuf fields: which field each column is, and the native encoder.

The tables are those that read the same columns, so that a message that was read is written with all fields that have a
column. Blocks are taken apart into the outputs of their fields, and the row splits of the repeated fields around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import Block, BytesBlock, RowError, as_row_error, first_true
from dask_tfrecord.columns.conversions import as_read, check_column
from dask_tfrecord.columns.encode import ColumnEncoding, Encoder, check_items, locating
from dask_tfrecord.columns.message_fields import FieldPath, FieldSpec, message_columns, message_tables
from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.features import Encoded, Feature, FixedLenFeature, ProtoFeature, TextFeature
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.encoded import deflated
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, fixed
from dask_tfrecord.features.keys import Decoded
from dask_tfrecord.features.message_types import MessageType, is_map, is_utf8
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.window import FOOTER, HEADER

# Bytes of a message that protobuf reads.
MAX_MESSAGE = (1 << 31) - 1


def message_schema(columns: Mapping[str, Feature | None], read: Schema | None, given: Schema) -> Schema:
    """Choose the field for each column: the given one, the one that was read, or the field of the same name."""
    message, features = given.message_type, dict(given)
    assert message is not None
    described = {label for name, feature in given.items() for label in _columns(message, name, feature)}
    known = {} if read is None or read.message_type is None else read
    for name, feature in known.items():
        labels = _columns(read.message_type, name, feature).keys()  # type: ignore[union-attr, arg-type]
        if name not in features and not labels & described and labels & columns.keys():
            features[name] = feature
            described |= labels
    for name in columns:
        if name not in described:
            features[name] = _feature_of_name(message, name, columns[name])
    return Schema(features, message=message)


def _columns(message: MessageType, name: str, feature: Any) -> dict[str, ColumnDecoder]:
    try:
        return message_columns(message, name, feature)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from None


def _feature_of_name(message: MessageType, name: str, column: Feature | None) -> ProtoFeature:
    """Find the field of a message that a column is written to when no feature describes it."""
    try:
        path = FieldPath.find(message, name)
    except SchemaError as error:
        raise SchemaError(
            f"column {name!r} names no field of {message.name}: {error}; drop the column, give "
            f"features={{{name!r}: ProtoFeature('path')}}, or write Examples with other features"
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
            self.fields[name] = _check_writable(message, name, given, known[name])
        self._paths = {name: FieldPath.find(message, field.specs[0].key) for name, field in self.fields.items()}
        for name in self.encoding:
            if name not in self.fields or not self.fields[name].parsed.is_image:
                raise SchemaError(f"encoding of {name!r}: only the values of an ImageFeature have an encoding")
        specs = [spec for field in self.fields.values() for spec in field.specs]
        # The column of a oneof states which of its messages is set, also if the message lacks a column.
        self._members = {
            FieldSpec((*spec.path[:-1], member.name), "presence"): (spec, member.number)
            for path, spec in zip(self._paths.values(), (field.specs[0] for field in self.fields.values()), strict=True)
            if spec.part == "case"
            for member in path.oneof.fields
            if member.message_type is not None
        }
        self.specs = tuple(dict.fromkeys([*specs, *self._members]))
        _check_map_keys(self._paths)
        _check_bytes(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageEncoder, (self.schema, self.columns, self.encoding)

    def native(self, blocks: Mapping[str, Block], location: Location) -> _native.MessageEncoder:
        """Return the native encoder of these rows."""
        return self._native(blocks, partial(locating, location=location), location)

    def payloads(self, blocks: Mapping[str, Block]) -> BytesBlock:
        """Return the messages of these rows; `RowError` names a row that can't be encoded."""
        native = self._native(blocks, lambda _: nullcontext(), None)
        rows = len(next(iter(blocks.values())))
        buffer = np.empty(1 << 16, np.uint8)
        messages = list[bytes]()
        while len(messages) < rows:
            written = native.encode(len(messages), buffer)
            if not written.records:
                if written.need > MAX_MESSAGE:
                    raise RowError(len(messages), f"would take {written.need:,} bytes, more than protobuf can")
                buffer = np.empty(max(written.need, 2 * len(buffer)), np.uint8)
            framed, at = buffer[: written.nbytes].tobytes(), 0
            while at < len(framed):
                length = int.from_bytes(framed[at : at + 8], "little")
                messages.append(framed[at + HEADER : at + HEADER + length])
                at += HEADER + length + FOOTER
        return BytesBlock.of(messages)

    def _native(
        self,
        blocks: Mapping[str, Block],
        naming: Callable[[str], AbstractContextManager[None]],
        location: Location | None,
    ) -> _native.MessageEncoder:
        """Give the native encoder the values of all columns, after each row splits that a message level shares."""
        tables = message_tables(self.message, self.specs)
        outputs: dict[FieldSpec, tuple[str, Any]] = {}
        splits: dict[tuple[str, ...], tuple[str, NDArray[np.int64]]] = {}
        for name, field in self.fields.items():
            with naming(name), ExitStack() as stack:
                block: Any = as_read(field.feature, blocks[name])
                path = field.specs[0].path
                for repeated in (path[: end + 1] for end in range(len(path))):
                    if repeated in tables.splits:
                        other, expected = splits.setdefault(repeated, (name, block.row_splits))
                        check_items(block.row_splits, expected, other, "both are fields of the same messages")
                        stack.enter_context(as_row_error(block.row_splits, item=True))
                        block = block.values
                values = self._field_values(name, field, block)
            for spec, each in zip(field.specs, values, strict=True):
                other, first = outputs.setdefault(spec, (name, each))
                if first is not each and not _are_equal(first, each):
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

    def _field_values(self, name: str, field: ColumnDecoder, block: Any) -> Sequence[Any]:
        """Return a column's outputs, with one value for each message instance."""
        spec, path = field.specs[0], self._paths[name]
        if spec.part == "case":
            return [
                _enum_numbers({each.name: each.number for each in path.oneof.fields} | {"": 0}, block, int_text=False)
            ]
        if spec.part == "presence":
            return [block]
        last = path.fields[-1]
        if last.enum_type is not None and isinstance(block, BytesBlock):
            return [_enum_numbers({each.name: each.number for each in last.enum_type.values}, block, int_text=True)]
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


class ExampleEncoder(Encoder):
    """Encode columns as the values of keys, and fields of nested messages as their key's messages."""

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        super().__init__(schema, columns, encoding)
        self._messages: dict[str, MessageEncoder] = {}
        joined: dict[tuple[str, str], list[ColumnEncoding]] = {}
        for plan in self._plans:
            if plan.feature.is_message:
                joined.setdefault((plan.key, plan.scope), []).append(plan)
        kept = [plan for plan in self._plans if not plan.feature.is_message]
        for parts in joined.values():
            # All paths of a message are in one value.
            forms = {label: form for part in parts for label, form in part.columns.items()}
            self._messages[parts[0].name] = _message_encoder(parts, self.encoding)
            kept.append(replace(parts[0], columns=forms))
        self._plans = kept

    def __reduce__(self) -> tuple[Any, ...]:
        return ExampleEncoder, (self.schema, self.columns, self.encoding)

    def _values_of_keys(self, plan: ColumnEncoding, blocks: Mapping[str, Block]) -> list[KeyedValues]:
        """Return the values of the keys of one feature."""
        encoder = self._messages.get(plan.name)
        if encoder is None:
            return super()._values_of_keys(plan, blocks)
        feature: Any = plan.feature

        def keyed(rows: Mapping[str, Block]) -> KeyedValues:
            payloads = encoder.payloads(rows)
            compression = feature.compression_type
            return fixed(plan.key, payloads if compression is None else deflated(payloads, compression))

        if plan.scope == "value":
            return [keyed(blocks)]
        rows: Mapping[str, Any] = blocks
        splits = next(iter(rows.values())).row_splits
        for name, block in rows.items():
            check_items(block.row_splits, splits, name, "both are fields of the same messages")
        with as_row_error(splits, item=True):
            items = keyed({name: block.values for name, block in rows.items()})
        return [replace(items, steps=True, row_splits=np.ascontiguousarray(splits))]


def _message_encoder(parts: Sequence[ColumnEncoding], encoding: Mapping[str, ImageEncoding]) -> MessageEncoder:
    """Return the encoder of the messages in the bytes of one key."""
    first: Any = parts[0].feature
    features, columns = {}, dict[str, Feature]()
    for part in parts:
        feature: Any = part.feature
        if (feature.message, feature.compression_type) != (first.message, first.compression_type):
            raise SchemaError(
                f"features {parts[0].name!r} and {part.name!r} are written to the key {part.key!r} as messages of "
                f"another type or compression"
            )
        features[part.name] = replace(feature, message=feature.path, path=None, key=None, compression_type=None)
        known = _columns(first.message, part.name, features[part.name])
        columns |= {label: known[label].feature for label in part.columns}
    named = {name: each for name, each in encoding.items() if name in columns}
    return MessageEncoder(Schema(features, message=first.message), Schema(columns), named)


def _check_writable(message: MessageType, name: str, given: Feature, field: ColumnDecoder) -> ColumnDecoder:
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


def _check_map_keys(paths: Mapping[str, FieldPath]) -> None:
    """Refuse entries of maps without keys."""
    known = {path.parts for path in paths.values()}
    for name, path in paths.items():
        for end, each in enumerate(path.fields, 1):
            if is_map(each) and (*path.parts[:end], "key") not in known:
                key = ".".join((*path.parts[:end], "key"))
                raise SchemaError(
                    f"column {name!r} has the entries of a map without their keys: also write a column of {key!r}, or "
                    "drop this one"
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


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, BytesBlock):
        return np.array_equal(one.values, other.values) and np.array_equal(one.splits, other.splits)
    return bool(one.tobytes() == other.tobytes())


def _enum_numbers(known: Mapping[str, int], texts: BytesBlock, *, int_text: bool) -> NDArray[np.int32]:
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
