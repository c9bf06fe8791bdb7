"""Columns of messages of any protobuf type, value by value, from messages that protobuf parsed.

The type is unrolled first: each place in the tree of its fields becomes a message type of its own, without recursion
and with the extensions as fields. Messages below the depth limit are fields of bytes there, as they are in the columns.
protobuf parses the records as the unrolled type; it decides which records are legal.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from oracle.message_types import Field

_DTYPES = {
    Field.TYPE_DOUBLE: "float64",
    Field.TYPE_FLOAT: "float32",
    Field.TYPE_BOOL: "bool",
    Field.TYPE_STRING: "text",
    Field.TYPE_BYTES: "bytes",
    Field.TYPE_ENUM: "int32",
    **dict.fromkeys([Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_SFIXED32], "int32"),
    **dict.fromkeys([Field.TYPE_INT64, Field.TYPE_SINT64, Field.TYPE_SFIXED64], "int64"),
    **dict.fromkeys([Field.TYPE_UINT32, Field.TYPE_FIXED32], "uint32"),
    **dict.fromkeys([Field.TYPE_UINT64, Field.TYPE_FIXED64], "uint64"),
}
_TIMES = {"google.protobuf.Timestamp": "datetime64[ns]", "google.protobuf.Duration": "timedelta64[ns]"}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_PACKAGE = "unrolled"
_UNUSED = 268_435_399


class Refused(Exception):
    """A record whose content a column can't hold, although protobuf accepts it."""


@dataclass(slots=True)
class PlaceField:
    """One field at a place: its name in columns, its attribute in the unrolled type, and the place of a message."""

    name: str
    attribute: str
    declared: descriptor_pb2.FieldDescriptorProto
    place: Place | None = None
    is_map: bool = False
    # Names of the last part of a single column: of a time, a wrapper.
    whole: str = ""

    @property
    def repeated(self) -> bool:
        return bool(self.declared.label == Field.LABEL_REPEATED)

    @property
    def is_opaque(self) -> bool:
        """Whether the column holds the bytes of messages."""
        return self.place is None and self.declared.type in (Field.TYPE_MESSAGE, Field.TYPE_GROUP)


@dataclass(slots=True)
class Place:
    """One place in the tree of a type."""

    fields: list[PlaceField] = dataclasses.field(default_factory=list)
    # Name of the column, name in the unrolled type, and the names of the members by their attribute.
    oneofs: list[tuple[str, str, dict[str, str]]] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Column:
    """Expected column: dtype, number of repeated fields around a value, and the nested lists of values."""

    dtype: str
    rank: int
    rows: list[Any]


class Unrolled:
    """A message type without recursion: the places of its fields, and its class.

    `depth` is the number of messages on a way that are within another one of their type and still have fields.
    """

    def __init__(self, files: descriptor_pb2.FileDescriptorSet, name: str, depth: int) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        self.messages: dict[str, tuple[descriptor_pb2.FileDescriptorProto, descriptor_pb2.DescriptorProto]] = {}
        self.enum_files: dict[str, str] = {}
        self.extensions: dict[str, list[tuple[str, descriptor_pb2.FieldDescriptorProto]]] = {}
        self.places = 0
        for file in files.file:
            self.pool.AddSerializedFile(file.SerializeToString())
            self._index(file, file, file.package, file.message_type)
        path, self.root = self._unroll(name, (), depth)
        self.message: type[Any] = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(path))

    def _index(self, file: Any, scope: Any, prefix: str, messages: Any) -> None:
        for enum in scope.enum_type:
            self.enum_files[f"{prefix}.{enum.name}".lstrip(".")] = file.name
        for extension in scope.extension:
            name = f"{prefix}.{extension.name}".lstrip(".")
            self.extensions.setdefault(extension.extendee.lstrip("."), []).append((f"[{name}]", extension))
        for message in messages:
            name = f"{prefix}.{message.name}".lstrip(".")
            self.messages[name] = (file, message)
            self._index(file, message, name, message.nested_type)

    def _unroll(self, name: str, above: tuple[str, ...], depth: int) -> tuple[str, Place]:
        """Add a file with the type of one place; return its name and the place."""
        file, message = self.messages[name]
        self.places += 1
        made = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}{self.places}.proto", package=_PACKAGE)
        made.syntax = file.syntax or "proto2"
        if file.syntax == "editions":
            made.edition = file.edition
            made.options.CopyFrom(file.options)
        declared = made.message_type.add(name=f"P{self.places}")
        place = self._fill(declared, f"{_PACKAGE}.{declared.name}", message, (*above, name), depth, made)
        self.pool.AddSerializedFile(made.SerializeToString())
        return f"{_PACKAGE}.{declared.name}", place

    def _fill(
        self,
        made: descriptor_pb2.DescriptorProto,
        path: str,
        message: descriptor_pb2.DescriptorProto,
        above: tuple[str, ...],
        depth: int,
        file: descriptor_pb2.FileDescriptorProto,
    ) -> Place:
        """Declare the fields of a message at one place; `above` ends with its name."""
        place = Place()
        known = [(one.name, one) for one in message.field] + self.extensions.get(above[-1], [])
        for number, (label, field) in enumerate(known):
            one = PlaceField(label, f"f{number}", field)
            copied = made.field.add()
            copied.CopyFrom(field)
            copied.ClearField("json_name")
            copied.ClearField("extendee")
            copied.name = one.attribute
            if message.options.map_entry:
                copied.name = one.attribute = field.name
            if field.type == Field.TYPE_ENUM:
                file.dependency.extend({self.enum_files[field.type_name[1:]]} - {*file.dependency})
            elif field.type in (Field.TYPE_MESSAGE, Field.TYPE_GROUP):
                self._unroll_field(one, copied, made, path, above, depth, file)
            place.fields.append(one)
        for index, oneof in enumerate(message.oneof_decl):
            made.oneof_decl.add(name=f"o{index}")
            members = {
                f"f{number}": label
                for number, (label, field) in enumerate(known)
                if field.HasField("oneof_index") and field.oneof_index == index and not field.proto3_optional
            }
            if members:
                place.oneofs.append((oneof.name, f"o{index}", members))
        for copied in made.field if file.syntax == "proto3" else ():
            # A message that became bytes is still set or not.
            if copied.type == Field.TYPE_BYTES and copied.proto3_optional and not copied.HasField("oneof_index"):
                copied.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"o{copied.oneof_index}")
        return place

    def _unroll_field(
        self,
        one: PlaceField,
        copied: descriptor_pb2.FieldDescriptorProto,
        made: descriptor_pb2.DescriptorProto,
        path: str,
        above: tuple[str, ...],
        depth: int,
        file: descriptor_pb2.FileDescriptorProto,
    ) -> None:
        name = one.declared.type_name[1:]
        _, message = self.messages[name]
        one.is_map = message.options.map_entry
        one.whole = _TIMES.get(name, "wrapper" if name in _WRAPPERS else "")
        is_group = one.declared.type == Field.TYPE_GROUP
        # The entry of a map is not a message of its own.
        left = depth - (name in above and not one.is_map)
        if one.is_map or (is_group and left >= 0):
            # These are part of the message that has the field.
            nested = made.nested_type.add(name=f"{one.attribute.title()}Entry")
            nested.options.CopyFrom(message.options)
            copied.type_name = f".{path}.{nested.name}"
            one.place = self._fill(nested, f"{path}.{nested.name}", message, (*above, name), left, file)
            return
        if left >= 0:
            type_name, one.place = self._unroll(name, above, left)
            if _has_columns(one.place):
                copied.type_name = f".{type_name}"
                file.dependency.append(f"{_PACKAGE}{type_name.removeprefix(f'{_PACKAGE}.P')}.proto")
                return
        if one.place is None or is_delimited(one.declared):
            # Its bytes are read, or it is stored as a group: protobuf keeps and merges fields that a type lacks.
            opaque = made.nested_type.add(name=f"{one.attribute.title()}Bytes")
            # Without any field, protobuf would accept fields of number 0.
            opaque.field.add(name="unused", number=_UNUSED, label=Field.LABEL_OPTIONAL, type=Field.TYPE_BYTES)
            copied.type_name = f".{path}.{opaque.name}"
            return
        # Nothing of it is read.
        copied.type = Field.TYPE_BYTES
        copied.ClearField("type_name")
        if file.syntax == "proto3" and not (one.repeated or copied.HasField("oneof_index")):
            copied.proto3_optional = True

    def parse(self, payload: bytes) -> Any:
        """Parse a record; None if protobuf refuses it."""
        try:
            return self.message.FromString(payload)
        except DecodeError:
            return None

    def columns(self, messages: Sequence[Any]) -> dict[str, Column]:
        """Return the columns of messages of the unrolled type; maps are in the order of their keys.

        Raises
        ------
        Refused
            If a time is out of range, or a text is not UTF-8.
        """
        return _columns(self.root, "", messages)

    def presences(self, messages: Sequence[Any]) -> dict[str, Column]:
        """Return whether each field with presence is set, by its path; maps are in the order of their keys."""
        return _presences(self.root, "", messages)

    def held(self, payload: bytes) -> bytes:
        """Return a record without what no column holds: items without fields of their own."""
        message = self.message.FromString(payload)
        _drop_unread(self.root, message)
        return bytes(message.SerializePartialToString(deterministic=True))

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.columns([]))

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the columns below each outermost repeated message (maps excluded), by its path."""
        found: dict[str, list[str]] = {}
        for path, one in _outermost(self.root, ""):
            assert one.place is not None
            if not one.is_map and not one.whole and _has_columns(one.place):
                found[path] = [*_columns(one.place, f"{path}.", [])]
        return found

    @property
    def maps(self) -> dict[str, int]:
        """Paths of the maps, outer ones first, and the number of repeated fields around each entry."""
        return _maps(self.root, "", 0)

    @property
    def opaque(self) -> set[str]:
        """Paths of the columns that hold the bytes of messages."""
        return {*_opaque(self.root, "")}


def is_delimited(declared: descriptor_pb2.FieldDescriptorProto) -> bool:
    """Return whether a message of an edition is stored as groups are."""
    features = getattr(declared.options, "features", None)
    return features is not None and features.message_encoding == features.DELIMITED


def _has_columns(place: Place) -> bool:
    """Return whether a message at a place makes columns."""
    return bool(place.oneofs) or any(one.place is None or _has_columns(one.place) for one in place.fields)


def _drop_unread(place: Place, message: Any) -> None:
    """Drop repeated messages without columns, and the content of others."""
    for one in place.fields:
        if one.place is None:
            continue
        held = getattr(message, one.attribute)
        if one.is_map:
            _, value = one.place.fields
            for key in held if value.place is not None else ():
                if _has_columns(value.place):
                    _drop_unread(value.place, held[key])
                else:
                    held[key] = b""
        elif not _has_columns(one.place):
            if one.repeated:
                message.ClearField(one.attribute)
            elif message.HasField(one.attribute) and isinstance(held, bytes):
                setattr(message, one.attribute, b"")
            elif message.HasField(one.attribute):
                held.Clear()
        else:
            present = held if one.repeated else [held] if message.HasField(one.attribute) else []
            for each in present:
                _drop_unread(one.place, each)


def _outermost(place: Place, prefix: str) -> Iterator[tuple[str, PlaceField]]:
    for one in place.fields:
        if one.place is not None and one.repeated:
            yield f"{prefix}{one.name}", one
        elif one.place is not None and not one.whole:
            yield from _outermost(one.place, f"{prefix}{one.name}.")


def _opaque(place: Place, prefix: str) -> Iterator[str]:
    for one in place.fields:
        if one.is_opaque:
            yield f"{prefix}{one.name}"
        elif one.place is not None and not one.whole:
            yield from _opaque(one.place, f"{prefix}{one.name}.")


def _maps(place: Place, prefix: str, rank: int) -> dict[str, int]:
    found = {}
    for one in place.fields:
        if one.is_map:
            found[f"{prefix}{one.name}"] = rank + 1
        if one.place is not None and not one.whole:
            found |= _maps(one.place, f"{prefix}{one.name}.", rank + one.repeated)
    return found


def _columns(place: Place, prefix: str, messages: Sequence[Any]) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for one in place.fields:
        held = [getattr(message, one.attribute) for message in messages]
        if one.is_map:
            found |= _map_columns(one, f"{prefix}{one.name}", held)
        elif one.repeated:
            flat = [value for values in held for value in values]
            found |= _grouped(_values(one, f"{prefix}{one.name}", flat), [len(values) for values in held])
        else:
            found |= _values(one, f"{prefix}{one.name}", held)
    for label, name, members in place.oneofs:
        set_ones = [message.WhichOneof(name) for message in messages]
        found[f"{prefix}{label}"] = Column("text", 0, [members[one] if one else "" for one in set_ones])
    return found


def _presences(place: Place, prefix: str, messages: Sequence[Any]) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for one in place.fields:
        path = f"{prefix}{one.name}"
        held = [getattr(message, one.attribute) for message in messages]
        if one.is_map:
            assert one.place is not None
            key, value = one.place.fields
            keys = [_sorted_keys(entries, key) for entries in held]
            held = [[entries[one] for one in ordered] for entries, ordered in zip(held, keys, strict=True)]
            below = value.place if not value.whole else None
            path = f"{path}.value"
        else:
            below = one.place if not one.whole else None
        if not one.repeated and _has_presence(one, messages):
            found[path] = Column("bool", 0, [message.HasField(one.attribute) for message in messages])
        if below is None or not _has_columns(below):
            continue
        if one.repeated:
            flat = [value for values in held for value in values]
            found |= _grouped(_presences(below, f"{path}.", flat), [len(values) for values in held])
        else:
            found |= _presences(below, f"{path}.", held)
    return found


def _has_presence(one: PlaceField, messages: Sequence[Any]) -> bool:
    return bool(messages and messages[0].DESCRIPTOR.fields_by_name[one.attribute].has_presence)


def _map_columns(one: PlaceField, path: str, held: Sequence[Any]) -> dict[str, Column]:
    assert one.place is not None
    key, value = one.place.fields
    keys = [_sorted_keys(entries, key) for entries in held]
    flat = [entries[one] for entries, ordered in zip(held, keys, strict=True) for one in ordered]
    found = _values(key, f"{path}.key", [one for ordered in keys for one in ordered])
    return _grouped(found | _values(value, f"{path}.value", flat), [len(ordered) for ordered in keys])


def _sorted_keys(entries: Any, key: PlaceField) -> list[Any]:
    try:
        keys = list(entries)
    except UnicodeDecodeError:
        keys = [b""]
    if key.declared.type == Field.TYPE_STRING and not all(isinstance(one, str) for one in keys):
        raise Refused("a key is not UTF-8")
    return sorted(keys)


def _grouped(columns: dict[str, Column], counts: Sequence[int]) -> dict[str, Column]:
    """Divide the items of repeated fields into lists."""
    grouped = {}
    for name, column in columns.items():
        items = iter(column.rows)
        grouped[name] = Column(column.dtype, column.rank + 1, [[next(items) for _ in range(count)] for count in counts])
    return grouped


def _values(one: PlaceField, path: str, held: Sequence[Any]) -> dict[str, Column]:
    """Return the columns of the values of a field, one per value."""
    if one.whole == "wrapper":
        assert one.place is not None
        [inner] = one.place.fields
        return _values(inner, path, [getattr(value, inner.attribute) for value in held])
    if one.whole:
        return {path: Column(one.whole, 0, [_nanoseconds(value, one.whole) for value in held])}
    if one.place is not None:
        return _columns(one.place, f"{path}.", held) if _has_columns(one.place) else {}
    if one.is_opaque:
        return {path: Column("bytes", 0, [value.SerializePartialToString() for value in held])}
    dtype = _DTYPES[one.declared.type]
    if dtype == "text" and not all(isinstance(value, str) for value in held):
        raise Refused(f"{path} is not UTF-8")
    if dtype.startswith("float"):
        return {path: Column(dtype, 0, [float_bits(value) for value in held])}
    return {path: Column(dtype, 0, [*held])}


def _nanoseconds(value: Any, dtype: str) -> int:
    seconds, nanos = value.f0, value.f1
    count: int = seconds * 10**9 + nanos
    one_sign = nanos >= 0 if dtype.startswith("datetime") else seconds * nanos >= 0
    # The least number is NaT.
    if not (-(2**63) < count < 2**63 and one_sign and abs(nanos) < 10**9):
        raise Refused(f"{count} ns are out of range")
    return count


def float_bits(value: float) -> str | bytes:
    """Return a value that is equal for equal bits, and for any two NaNs."""
    return "nan" if math.isnan(value) else struct.pack("<d", value)


def listed(array: Any, dtype: str, rank: int) -> list[Any]:
    """Return a computed column as nested lists, after checking its dtype at the given number of ragged axes."""
    if rank:
        assert array.dtype == object, (array.dtype, rank)
        return [listed(row, dtype, rank - 1) for row in array]
    if dtype == "bytes":
        assert array.dtype == object, array.dtype
        return list(array)
    if dtype == "text":
        assert array.dtype == np.dtypes.StringDType(), array.dtype
        return list(array)
    assert array.dtype == np.dtype(dtype), array.dtype
    assert array.ndim == 1, array.shape
    if dtype.startswith("float"):
        return [float_bits(value) for value in array.tolist()]
    return array.view(np.int64).tolist() if array.dtype.kind in "mM" else list(array.tolist())


def sort_maps(columns: dict[str, list[Any]], maps: dict[str, int]) -> None:
    """Order the entries of maps by their keys, in place, after checking that no key occurs twice."""
    for path, rank in maps.items():
        if f"{path}.key" not in columns:
            continue
        keys = columns[f"{path}.key"]
        for name in [name for name in columns if name.startswith(f"{path}.") and name != f"{path}.key"]:
            columns[name] = [_sorted_as(of, held, rank - 1) for of, held in zip(keys, columns[name], strict=True)]
        columns[f"{path}.key"] = [_sorted_as(of, of, rank - 1) for of in keys]


def _sorted_as(keys: list[Any], held: list[Any], rank: int) -> list[Any]:
    if rank:
        return [_sorted_as(of, one, rank - 1) for of, one in zip(keys, held, strict=True)]
    assert len({*keys}) == len(keys), keys
    assert len(held) == len(keys)
    return [held[place] for place in sorted(range(len(keys)), key=keys.__getitem__)]
