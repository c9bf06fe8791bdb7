"""Columns of protobuf messages: the outputs that each field needs, the tables of the native decoder, and blocks.

The tree of a message type is unrolled along the paths of the wanted fields: each place in it has a table. A repeated
field adds a level of rows, whose splits all columns below it share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dask_tfrecord import _native
from dask_tfrecord._native import Fault, FieldType
from dask_tfrecord.blocks import (
    Block,
    BytesBlock,
    MemoryLimit,
    RaggedBlock,
    RowError,
    RowLimitError,
    as_row_error,
    first_true,
    row_of_value,
    splits_of,
)
from dask_tfrecord.errors import FeatureError, FeatureValueError, Location, SchemaError, near_misses
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    ProtoFeature,
    RaggedFeature,
    RowLengths,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.encoded import iter_values
from dask_tfrecord.features.keys import Assemble, Decoded, KeyOutput
from dask_tfrecord.features.message_types import (
    MessageType,
    enum_names,
    fields_of,
    is_map,
    is_packed,
    is_repeated,
    is_required,
    is_utf8,
    oneofs_of,
    split_path,
)
from dask_tfrecord.shards.deflate import inflated_value

_BYTES = FixedLenFeature((), "bytes")
_DTYPES = {
    FieldType.DOUBLE: "float64",
    FieldType.FLOAT: "float32",
    FieldType.BOOL: "bool",
    **dict.fromkeys([FieldType.INT64, FieldType.SINT64, FieldType.SFIXED64], "int64"),
    **dict.fromkeys([FieldType.UINT64, FieldType.FIXED64], "uint64"),
    **dict.fromkeys([FieldType.INT32, FieldType.SINT32, FieldType.SFIXED32, FieldType.ENUM], "int32"),
    **dict.fromkeys([FieldType.UINT32, FieldType.FIXED32], "uint32"),
}
_TIMES = {"google.protobuf.Timestamp": "datetime64[ns]", "google.protobuf.Duration": "timedelta64[ns]"}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_BYTES_WRAPPERS = {"google.protobuf.StringValue", "google.protobuf.BytesValue"}
_ANY = "google.protobuf.Any"
# More columns than a data set can be used with; a recursive type may unroll to any number.
_MOST_COLUMNS = 20_000
# Compressed messages that are inflated before they are decoded.
_INFLATED_NBYTES = 1 << 20
# Enums with all numbers below it have class names.
_MOST_CLASSES = 4096


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One output of the message decoder."""

    path: tuple[str, ...]  # names from the root
    part: str = "values"  # or "presence", or "case": number of the field of a oneof that is set
    counted: bool = False  # values are validated, but only their number is kept
    steps: bool = field(default=False, init=False)

    @property
    def key(self) -> str:
        """Path as text."""
        return ".".join(self.path)


class FieldPath(NamedTuple):
    """A field of a message type, or a oneof, and the fields on the way to it."""

    parts: tuple[str, ...]
    fields: tuple[Any, ...]  # descriptors, without the oneof's
    oneof: Any = None
    # Of messages in bytes: the path of the bytes, and a group for each of their levels of rows.
    prefix: str = ""
    outer: tuple[str, ...] = ()

    @classmethod
    def find(cls, message: MessageType, path: str, prefix: str = "", outer: tuple[str, ...] = ()) -> FieldPath:
        """Find a path in the tree of a message type."""
        parts, fields = split_path(path), list[Any]()
        descriptor: Any = message.descriptor
        for number, part in enumerate(parts):
            known = {} if descriptor is None else fields_of(message.pool, descriptor)
            oneofs = {} if descriptor is None else {oneof.name: oneof for oneof in oneofs_of(descriptor)}
            if part in oneofs and number == len(parts) - 1:
                return cls(parts, tuple(fields), oneofs[part], prefix, outer)
            if part not in known:
                inside = f"field {'.'.join(parts[:number])!r}" if number else f"message {message.name}"
                reason = f"has no field {part!r}{near_misses(part, [*known, *oneofs])}" if known else "has no fields"
                raise SchemaError(f"path {path!r}: {inside} {reason}")
            fields.append(known[part])
            descriptor = known[part].message_type
        return cls(parts, tuple(fields), None, prefix, outer)

    @property
    def rank(self) -> int:
        """Levels of rows."""
        return len(self.outer) + sum(map(is_repeated, self.fields))

    @property
    def groups(self) -> tuple[str, ...]:
        """Paths of the repeated messages on the way, the outermost first."""
        repeated = [
            ".".join(filter(None, [self.prefix, *self.parts[: number + 1]]))
            for number, each in enumerate(self.fields)
            if is_repeated(each) and each.message_type is not None and not _is_value(each.message_type.full_name)
        ]
        return (*self.outer, *repeated)

    @property
    def field(self) -> Any:
        """The field's descriptor; None for a oneof and for the whole message."""
        return self.fields[-1] if self.fields and self.oneof is None else None

    def of_wrapper(self) -> FieldPath:
        """Return the path of the value in a wrapper like ``google.protobuf.Int64Value``."""
        value = self.fields[-1].message_type.fields_by_name["value"]
        return self._replace(parts=(*self.parts, "value"), fields=(*self.fields, value))

    @property
    def has_presence(self) -> bool:
        """True if the field is set or not, apart from its value."""
        return self.field is not None and not is_repeated(self.field) and bool(self.field.has_presence)

    @property
    def message(self) -> str | None:
        """Full name of the message that the field holds."""
        held = None if self.field is None else self.field.message_type
        return None if held is None else held.full_name


def leaf_paths(message: MessageType, path: str = "", depth: int = 1) -> dict[str, ProtoFeature]:
    """Make a feature for each column at a path: the field itself, or all fields in its message."""
    start = FieldPath.find(message, path)
    if start.oneof is not None or (start.fields and (start.message is None or _is_value(start.message))):
        return {path: ProtoFeature(path)}
    descriptor = start.fields[-1].message_type if start.fields else message.descriptor
    leaves: dict[str, ProtoFeature] = {}
    for parts, is_message in _leaf_columns(message.pool, descriptor, start.parts, (descriptor.full_name,), depth):
        leaf = ".".join(parts)
        leaves[leaf] = ProtoFeature(leaf, values=_BYTES if is_message else None)
        if len(leaves) > _MOST_COLUMNS:
            raise SchemaError(
                f"message {message.name} has more than {_MOST_COLUMNS:,} fields in fields: pick some with "
                f'features={{"name": ProtoFeature("path.to.field")}}'
            )
    return leaves


def _is_value(name: str) -> bool:
    """Return whether a message makes one column."""
    return name in _TIMES or name in _WRAPPERS


def _leaf_columns(
    pool: Any, descriptor: Any, parts: tuple[str, ...], within: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each column below a message, and whether it holds the bytes of a message."""
    for name, each in fields_of(pool, descriptor).items():
        inner = each.message_type
        if inner is None or _is_value(inner.full_name):
            yield (*parts, name), False
            continue
        # The entry of a map is a part of the message that has the map.
        left = depth - (inner.full_name in within and not is_map(each))
        if left >= 0:
            yield from _leaf_columns(pool, inner, (*parts, name), (*within, inner.full_name), left)
        else:
            yield (*parts, name), True
    for oneof in oneofs_of(descriptor):
        yield (*parts, oneof.name), False


def message_columns(
    message: MessageType, name: str, feature: ProtoFeature, prefix: str = "", outer: tuple[str, ...] = ()
) -> dict[str, ColumnDecoder]:
    """List a feature's columns; for messages in bytes, `prefix` and `outer` are as in `FieldPath`."""
    if feature.presence or feature.values is not None:
        path = FieldPath.find(message, feature.path, prefix, outer)
        if feature.values is not None and feature.values.is_message:
            return _nested_columns(path, name, feature.values)
        column = _presence_column(path) if feature.presence else _field_column(path, feature.values)
        return {name: replace(column, source=name)}
    columns = {}
    for leaf, each in leaf_paths(message, feature.path, feature.depth).items():
        rest = leaf.removeprefix(feature.path).removeprefix(".")
        label = ".".join(filter(None, [name, rest]))
        column = _field_column(FieldPath.find(message, leaf, prefix, outer), each.values)
        columns[label] = replace(column, source=name)
    if not columns:
        raise SchemaError(
            f"feature {name!r}: message {feature.path!r} has no fields; ProtoFeature(path, presence=True) is a column "
            f"of whether it is set"
        )
    return columns


def _nested_columns(path: FieldPath, name: str, feature: ProtoFeature) -> dict[str, ColumnDecoder]:
    """Return the columns of messages in the bytes of a field, or in an Any."""
    is_any = path.message == _ANY
    if path.message in _BYTES_WRAPPERS:
        path = path.of_wrapper()
    if is_any:
        specs = FieldSpec((*path.parts, "type_url")), FieldSpec((*path.parts, "value"))
    else:
        specs = _field_column(path, _BYTES).specs
    prefix = ".".join(filter(None, [path.prefix, *path.parts]))
    levels = path.groups if path.groups and len(path.groups) == path.rank else (*path.groups, prefix)[: path.rank]
    return columns_in_bytes(name, feature, specs, prefix, levels, is_any=is_any)


def columns_in_bytes(
    name: str, feature: ProtoFeature, specs: Any, prefix: str, outer: tuple[str, ...], *, is_any: bool = False
) -> dict[str, ColumnDecoder]:
    """Return the columns of messages in bytes values, which have the outputs of `specs`."""
    columns = message_columns(
        feature.message, name, replace(feature, message=None, compression_type=None), prefix, outer
    )
    indices: dict[FieldSpec, int] = {}
    for spec in chain.from_iterable(column.specs for column in columns.values()):
        indices.setdefault(spec, len(indices))
    prepare = partial(_decode_messages, feature.message, tuple(indices), is_any)
    return {
        label: replace(
            column,
            parsed=feature,
            specs=specs,
            assembler=partial(_picked_assembler, column, tuple(indices[spec] for spec in column.specs)),
            prepare=prepare,
        )
        for label, column in columns.items()
    }


def _presence_column(path: FieldPath) -> ColumnDecoder:
    """Make the column that states whether a field is set; refuse fields that always are."""
    if not path.has_presence:
        raise SchemaError(
            f"path {'.'.join(path.parts)!r} has no presence: only messages, members of a oneof, `optional` fields and "
            "fields of proto2 can be unset"
        )
    spec = FieldSpec(path.parts, "presence")
    return _column_of_path(path, FixedLenFeature((), "bool"), (spec,))


def _field_column(path: FieldPath, values: Feature | None) -> ColumnDecoder:
    """Return the column of a field or of a oneof, with values as they are or as `values` describes them."""
    if path.oneof is not None:
        if values is not None:
            raise _misfit(path, values, "a oneof, which is a column of names")
        names = {each.number: each.name for each in path.oneof.fields} | {0: ""}
        return _column_of_path(path, TextFeature(), (FieldSpec(path.parts, "case"),), _enum_names_of(names))
    if not path.fields:
        raise SchemaError("the empty path is the whole message; values= are those of one of its fields")
    last = path.fields[-1]
    if path.message is not None and values != _BYTES:
        if path.message in _TIMES:
            parts = tuple(FieldSpec((*path.parts, part)) for part in ("seconds", "nanos"))
            if values is None:
                return _column_of_path(path, FixedLenFeature((), _TIMES[path.message]), parts, _assemble_times)
        elif path.message in _WRAPPERS:
            return _field_column(path.of_wrapper(), values)
        raise _misfit(path, values, f"a message {path.message}")
    kind = FieldType(last.type)
    spec = FieldSpec(path.parts)
    is_text = values is not None and values.item_dtype.kind == "T"
    if kind == FieldType.ENUM:
        names = enum_names(last)
        if values is None:
            return replace(_column_of_path(path, FixedLenFeature((), "int32"), (spec,)), classes=_class_names(names))
        if not is_text:
            raise _misfit(path, values, "an enum, which TextFeature() names")
        return _column_of_path(path, values, (spec,), _enum_names_of(names))
    if kind in _DTYPES:
        if values is not None:
            raise _misfit(path, values, _DTYPES[kind])
        return _column_of_path(path, FixedLenFeature((), _DTYPES[kind]), (spec,))
    if kind == FieldType.STRING and not is_text and values not in (None, _BYTES):
        raise _misfit(path, values, "text")
    default = TextFeature() if kind == FieldType.STRING else _BYTES
    return _column_of_path(path, default if values is None else values, (spec,))


def _misfit(path: FieldPath, values: Any, found: str) -> SchemaError:
    return SchemaError(f"path {'.'.join(path.parts)!r} is {found}, but values={values} are those of bytes")


def _class_names(names: Mapping[int, str]) -> tuple[str, ...]:
    if min(names) < 0 or max(names) >= _MOST_CLASSES:
        return ()
    return tuple(names.get(number, str(number)) for number in range(max(names) + 1))


def _column_of_path(
    path: FieldPath, values: Feature, specs: tuple[FieldSpec, ...], assembler: Assemble | None = None
) -> ColumnDecoder:
    """Return a column with as many levels of rows as the path has repeated fields."""
    feature = rows_of_values(values, path.rank)
    if assembler is None and (path.rank or values.is_bytes or isinstance(values, Encoded)):
        assembler = type(values).assemble
    if path.rank > 1:
        assert assembler is not None
        assembler = partial(_nested_assembler, assembler)
    return ColumnDecoder(feature, "", values, specs, assembler, groups=path.groups)


def rows_of_values(values: Any, rank: int) -> Feature:
    """Return the feature of values in some levels of rows."""
    if rank == 0:
        same: Feature = values
        return same
    if not isinstance(values, Encoded):
        return VarLenFeature(values.dtype, shape=(-1,) * rank)
    if rank > 1:
        return RaggedFeature("bytes", partitions=[RowLengths(str(level)) for level in range(rank - 1)], values=values)
    return values.with_count(-1)


def _nested_assembler(innermost: Assemble, feature: Any, decoded: Decoded) -> Block:
    """Assemble several levels of rows by the assembler of the innermost."""
    outer = decoded.keys[0].outer
    with ExitStack() as stack:
        for splits in outer:
            stack.enter_context(as_row_error(splits))
        block: Any = innermost(feature, decoded._replace(rows=len(decoded.keys[0].record_splits) - 1))
    for splits in reversed(outer):
        block = RaggedBlock(block, splits)
    rows: Block = block
    return rows


def _with_splits(decoded: Decoded, values: Any) -> Block:
    splits = decoded.keys[0].row_splits
    return decoded.into(values) if splits is None else RaggedBlock(values, splits)


def _enum_names_of(names: Mapping[int, str]) -> Assemble:
    """Make a function that names enum numbers; an unknown number becomes decimal text."""
    known = np.array(sorted(names), np.int32)
    texts = np.array([names[number] for number in known.tolist()], np.dtypes.StringDType())

    def assemble(feature: Any, decoded: Decoded) -> Block:
        numbers = decoded.keys[0].flat(np.dtype(np.int32))
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        out = texts[at]
        unknown = known[at] != numbers
        if unknown.any():
            out[unknown] = numbers[unknown].astype(np.dtypes.StringDType())
        return _with_splits(decoded, out)

    return assemble


def _assemble_times(feature: FixedLenFeature, decoded: Decoded) -> Block:
    """Assemble nanoseconds from seconds and nanos."""
    dtype, billion, most = feature.item_dtype, 1_000_000_000, np.iinfo(np.int64).max
    seconds, nanos = decoded.keys[0].flat(np.dtype(np.int64)), decoded.keys[1].flat(np.dtype(np.int32))
    whole, rest = np.divmod(nanos.astype(np.int64), billion)
    whole += np.clip(seconds, -10 * billion, 10 * billion)
    (low, first), (high, last) = divmod(-most, billion), divmod(most, billion)
    above = (whole > low) | ((whole == low) & (rest >= first))
    below = (whole < high) | ((whole == high) & (rest <= last))
    # A moment counts nanoseconds from its second on; both parts of a duration have one sign.
    valid = nanos >= 0 if dtype.kind == "M" else np.sign(seconds) * np.sign(nanos) >= 0
    if (number := first_true(~(above & below & valid & (np.abs(nanos.astype(np.int64)) < billion)))) is not None:
        splits = decoded.keys[0].row_splits
        row, item = (number, None) if splits is None else row_of_value(splits, number)
        raise RowError(
            row,
            f"holds {seconds[number]} seconds and {nanos[number]} nanoseconds, which are no {dtype}: read the fields "
            f"seconds and nanos instead",
            item,
        )
    # The product may wrap, and the sum then wraps back.
    return _with_splits(decoded, (whole * billion + rest).view(dtype))


def _decode_messages(
    message: MessageType,
    specs: tuple[FieldSpec, ...],
    is_any: bool,
    parsed: Any,
    outputs: Sequence[KeyOutput],
    limit: MemoryLimit | None,
) -> Sequence[KeyOutput]:
    """Decode messages in bytes values: the fields of all columns of a feature at once."""
    values, outer = outputs[-1].encoded(), outputs[-1].levels
    if is_any:
        values = _of_type(values, outputs[0].encoded(), message.name)
    with ExitStack() as stack:
        for splits in outer:
            stack.enter_context(as_row_error(splits, item=splits is outer[-1]))
        tables = message_tables(message, specs)
        native = tables.decoder(check_crc=False)
        if limit is not None:
            native.set_memory_limit(limit.nbytes)
        for first, part in _stored_messages(values, parsed, limit):
            number = native.feed_values(np.ascontiguousarray(part.values), np.ascontiguousarray(part.splits))
            if number < len(part):
                problem = native.problem()
                if problem.fault is Fault.FULL and limit is not None:
                    raise RowLimitError(first + number, limit.message())
                raise RowError(first + number, tables.describe(problem))
    found = []
    for output in tables.outputs(native):
        levels = (*outer, *output.levels)
        found.append(output._replace(outer=levels[:-1], row_splits=levels[-1] if levels else None))
    return found


def _stored_messages(
    values: BytesBlock, parsed: ProtoFeature, limit: MemoryLimit | None
) -> Iterator[tuple[int, BytesBlock]]:
    """Yield the number of the first message, and some messages, which are inflated if they are compressed."""
    if parsed.compression_type is None:
        yield 0, values
        return
    parts, size, first = list[bytes](), 0, 0
    for number, value in enumerate(iter_values(values)):
        most = 0 if limit is None else limit.nbytes + 1
        # A field that is not set is empty, and so is a message in it.
        part, whole = inflated_value(value, parsed.compression_type, most) if value else (b"", True)
        if limit is not None and len(part) > limit.nbytes:
            raise RowLimitError(number, limit.message())
        if not whole:
            raise RowError(number, f"holds damaged {parsed.compression_type} data, which {parsed} can't inflate")
        parts.append(part)
        size += len(part)
        if size >= _INFLATED_NBYTES:
            yield first, BytesBlock.of(parts)
            parts, size, first = [], 0, number + 1
    yield first, BytesBlock.of(parts)


def _of_type(values: BytesBlock, urls: BytesBlock, name: str) -> BytesBlock:
    """Unpack Any messages that have one type; others become empty messages."""
    ending = np.frombuffer(f"/{name}".encode(), np.uint8)
    sizes = np.diff(urls.splits)
    is_type = sizes >= len(ending)
    tails = urls.splits[1:][is_type, None] + np.arange(-len(ending), 0)
    is_type[is_type] = (urls.values[tails] == ending).all(axis=1)
    rows = RaggedBlock(values.values, values.splits).take(np.flatnonzero(is_type))
    kept: Any = rows.values
    return BytesBlock(kept, splits_of(np.where(is_type, np.diff(values.splits), 0)), values.shape)


def _picked_assembler(column: ColumnDecoder, indices: tuple[int, ...], feature: Any, decoded: Decoded) -> Block:
    """Assemble a column of messages in bytes values, from the outputs of all their columns."""
    keys: Sequence[KeyOutput] = [decoded.keys[index] for index in indices]
    if column.prepare is not None:
        keys = column.prepare(column.parsed, keys, decoded.limit)
    if column.assembler is None:
        (output,) = keys
        return decoded.into(output.flat(column.parsed.item_dtype))
    return column.assembler(column.parsed, decoded._replace(keys=keys))


class MessageTables:
    """Tables of the places in the tree of a message type that some outputs need, for the native decoder."""

    def __init__(self, message: MessageType, specs: Sequence[FieldSpec]) -> None:
        self.message, self.specs = message, specs
        self.tables: list[Any] = []
        self.places: list[tuple[tuple[str, ...], list[str]]] = []  # path of each table, and names of its fields
        self.splits: dict[tuple[str, ...], int] = {}  # of repeated fields, by their paths
        self.counted: list[int] = []  # outputs whose values are not kept
        # Outputs of each field by their parts, and messages that have some of them.
        self._wanted: dict[tuple[str, ...], dict[str, int]] = {}
        self._entered = {spec.path[:end] for spec in specs for end in range(len(spec.path))}
        for number, spec in enumerate(specs):
            self._wanted.setdefault(spec.path, {})[spec.part] = number
        self._add_message(message.descriptor, ())

    def _add_message(self, descriptor: Any, path: tuple[str, ...]) -> int:
        """Add the tables of a message at a place and of the messages below it; return the first index."""
        index, names = len(self.tables), list[str]()
        self.tables.append(None)
        self.places.append((path, names))
        oneofs = [
            oneof
            for oneof in oneofs_of(descriptor)
            if any(self._is_needed((*path, name)) for name in [oneof.name, *(each.name for each in oneof.fields)])
        ]
        numbers = {each.number: number for number, oneof in enumerate(oneofs) for each in oneof.fields}
        fields = []
        for name, each in fields_of(self.message.pool, descriptor).items():
            names.append(name)
            oneof = -1 if each.is_extension else numbers.get(each.number, -1)
            fields.append(self._describe_field(each, (*path, name), oneof))
        cases = [self._wanted.get((*path, oneof.name), {}).get("case", -1) for oneof in oneofs]
        self.tables[index] = _native.MessageTable(fields, cases)
        return index

    def _is_needed(self, path: tuple[str, ...]) -> bool:
        return path in self._wanted or path in self._entered

    def _describe_field(self, each: Any, path: tuple[str, ...], oneof: int) -> _native.MessageField:
        """Describe a field for the native decoder: its kind, its place in messages, and what is read of it."""
        wanted, repeated = self._wanted.get(path, {}), is_repeated(each)
        options: dict[str, Any] = {"repeated": repeated, "packed": is_packed(each), "oneof": oneof}
        options["required"] = is_required(each)
        if self._is_needed(path):
            if repeated:
                options["splits"] = self.splits.setdefault(path, len(self.splits))
            options |= {"column": wanted.get("values", -1), "presence": wanted.get("presence", -1)}
            sized = repeated or FieldType(each.type) not in _DTYPES
            if "values" in wanted and self.specs[wanted["values"]].counted and sized:
                # A singular number has one value in each message: there is nothing to count.
                self.counted.append(wanted["values"])
            # Bytes of entries, too, come from the last entry of each key.
            if path in self._entered or is_map(each):
                options["message"] = self._add_message(each.message_type, path)
            if each.message_type is None:
                # Other text is checked when it is assembled: protobuf accepts any bytes, and may discard them.
                options |= {
                    "utf8": "values" in wanted and is_utf8(each),
                    "default": b"" if repeated else _default_bytes(each),
                }
        if each.enum_type is not None and each.enum_type.is_closed:
            # Other numbers set no member of a oneof, and make an entry of a map unknown, whatever else is read.
            options["numbers"] = list(enum_names(each))
        return _native.MessageField(each.number, FieldType(each.type), is_map=is_map(each), **options)

    def decoder(self, *, check_crc: bool) -> _native.MessageDecoder:
        """Return a native decoder."""
        return _native.MessageDecoder(self.tables, len(self.specs), len(self.splits), check_crc, self.counted)

    def outputs(self, native: _native.MessageDecoder) -> list[KeyOutput]:
        """Take the outputs of a native decoder, with the row splits of each."""
        taken = {path: native.take_splits(index) for path, index in self.splits.items()}
        outputs = []
        for number, spec in enumerate(self.specs):
            levels = [taken[path] for end in range(len(spec.path)) if (path := spec.path[: end + 1]) in taken]
            output = KeyOutput.from_native(native.take_output(number), spec)
            outer, row_splits = (tuple(levels[:-1]), levels[-1]) if levels else ((), None)
            outputs.append(output._replace(outer=outer, row_splits=row_splits))
        return outputs

    def field(self, problem: _native.MessageProblem) -> str:
        """Return the path of the field that the decoder refused."""
        if problem.table < 0:
            return ""
        path, names = self.places[problem.table]
        known = [names[problem.field]] if problem.field >= 0 else []
        return ".".join([*path, *known])

    def error(self, problem: _native.MessageProblem, location: Location) -> FeatureError:
        """Return the error of a record that the decoder refused."""
        kind = FeatureValueError if problem.fault is Fault.UTF8 else FeatureError
        return kind(self.describe(problem), replace(location, feature=self.field(problem) or None))

    def describe(self, problem: _native.MessageProblem) -> str:
        """Describe content that the decoder refused, in a message that begins with the feature's."""
        where = f"field {self.field(problem)!r}" if self.field(problem) else f"message {self.message.name}"
        number = f", number {problem.number} on the wire" if problem.number and problem.field < 0 else ""
        if problem.fault is Fault.UTF8:
            return (
                f"{where} at byte {problem.offset} is not valid UTF-8, which text is; ProtoFeature(path, "
                f"values=FixedLenFeature((), 'bytes')) reads any bytes of proto2"
            )
        return (
            f"{where}{number}, at byte {problem.offset}: expected {problem.expected}, found {problem.found}: the "
            f"record is damaged, or no message {self.message.name}"
        )


@lru_cache(256)
def message_tables(message: MessageType, specs: tuple[FieldSpec, ...]) -> MessageTables:
    """Return the tables of some outputs."""
    return MessageTables(message, specs)


def _default_bytes(each: Any) -> bytes:
    """Return the default value of a scalar field as bytes of a column; empty for zero and empty text."""
    value, kind = each.default_value, FieldType(each.type)
    if kind in (FieldType.BYTES, FieldType.STRING):
        return value.encode() if isinstance(value, str) else bytes(value)
    stored = np.array(value, _DTYPES[kind]).tobytes()
    return stored if any(stored) else b""
