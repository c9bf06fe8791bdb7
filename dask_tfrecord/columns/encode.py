"""Features that columns are written as, and encoding of their blocks to framed records by the native encoder.

The schema that writes records also reads them. A column that no feature stores unchanged needs one from the user:
values are never converted by a guess. Records are written to one buffer that is reused, so memory is the given rows and
one buffer.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    as_row_error,
    first_true,
    splits_of,
)
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    dtype_name,
)
from dask_tfrecord.features.keys import MESSAGES, Unit
from dask_tfrecord.features.written import KeyedValues, in_levels, refuse_values
from dask_tfrecord.images.pixels import ImageEncoding
from dask_tfrecord.schema import Schema, given_features, lengths_column, split_item_name

# Initial size of the buffer for records.
_BUFFER = 1 << 20
# Maximum size of a framed record that protobuf can read.
_MOST = (1 << 31) - 1


def source_columns(
    name: str, feature: Feature, columns: Mapping[str, Feature], own: Container[str], *, steps: bool
) -> tuple[str, ...] | None:
    """Return the columns that a feature is written from."""
    required, optional = feature.sources(name)
    if steps or feature.is_padded:
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
    unit: Unit


class Encoder:
    """Encodes columns to the values of keys."""

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        self.schema, self.columns = schema, columns
        self.encoding = dict(encoding or {})
        decoder = Decoder(schema)
        self._plans = [_plan(name, feature, columns, decoder) for name, feature in schema.items()]
        used = {column for plan in self._plans for column in plan.columns}
        if left := [name for name in columns if name not in used]:
            raise SchemaError(f"column {left[0]!r} belongs to no feature: add one to the schema, or drop the column")
        if other := [name for name in self.encoding if name not in schema or not schema[name].is_image]:
            raise SchemaError(f"encoding of {other[0]!r}: only an ImageFeature has an encoding")

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self.schema, self.columns, self.encoding)

    def keyed(self, blocks: Mapping[str, Block], location: Location) -> list[KeyedValues]:
        """Return the values of each key."""
        found: dict[tuple[str, bool], tuple[KeyedValues, str]] = {}
        first: tuple[KeyedValues, str] | None = None
        for plan in self._plans:
            with locating(plan.name, location, plan.unit):
                blocks_of = {name: as_read(wanted, blocks[name]) for name, wanted in plan.columns.items()}
                made = self._values(plan, blocks_of)
                if plan.unit == "item":
                    other, name = first = first or (made[0], plan.name)
                    assert made[0].row_splits is not None and other.row_splits is not None
                    check_items(made[0].row_splits, other.row_splits, name, "items have all keys")
            for keyed in made:
                other, name = found.setdefault((keyed.key, keyed.steps), (keyed, plan.name))
                if other is not keyed and not other.same(keyed):
                    raise SchemaError(
                        f"features {name!r} and {plan.name!r} share the key {keyed.key!r}, and their columns hold "
                        f"different values for it",
                        location,
                    )
        return [keyed for keyed, _ in found.values()]

    def _values(self, plan: ColumnEncoding, blocks: Mapping[str, Block]) -> list[KeyedValues]:
        """Return the values of the keys of one feature."""
        encoding = self.encoding.get(plan.name, ImageEncoding())
        return plan.feature.encode_columns(plan.name, plan.key, plan.unit, blocks, encoding)

    def native(self, blocks: Mapping[str, Block], location: Location) -> _native.Encoder:
        """Return the native encoder of these rows."""
        fields = [keyed.field() for keyed in self.keyed(blocks, location)]
        return _native.Encoder(fields, len(next(iter(blocks.values()))), MESSAGES[self.schema.message])


@contextmanager
def locating(name: str, location: Location, unit: str = "item") -> Iterator[None]:
    """Raise the error of a row with its record; `location` is that of the first row."""
    try:
        yield
    except RowError as error:
        record = (location.record or 0) + error.row
        place = "" if error.item is None else f", in {unit} {error.item}"
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
                    f"the record would take {written.need:,} bytes where protobuf takes {_MOST:,} at the most: write "
                    f"it as several",
                    Location(self.file, self.records),
                )
            else:
                self._buffer = np.empty(max(written.need, 2 * len(self._buffer)), np.uint8)
            row += written.records
            self.records += written.records


def _plan(name: str, feature: Feature, columns: Schema, decoder: Decoder) -> ColumnEncoding:
    schema = decoder.schema
    unit = schema.unit_of(name)
    if (reason := feature.reason_not_written()) is not None:
        raise SchemaError(f"feature {name!r}: {feature} {reason}; state by features={{{name!r}: …}} how to write it")
    names = source_columns(name, feature, columns, schema, steps=unit == "step")
    if feature.is_message:
        names = message_columns_of(name, decoder, columns)
    if not names:
        raise SchemaError(f"feature {name!r}: the column that {feature} is written from is missing")
    lengths = FixedLenFeature((), "int64")
    wanted = {column: decoder.columns.get(column, lengths) for column in names}
    for column, form in wanted.items():
        check_column(column, columns[column], form)
    return ColumnEncoding(name, schema.key_of(name), feature, wanted, unit)


def message_columns_of(name: str, decoder: Decoder, columns: Container[str]) -> tuple[str, ...]:
    """Return the columns that are fields of the messages in the bytes of a feature."""
    return tuple(label for label, each in decoder.decoders.items() if each.source == name and label in columns)


def check_items(found: NDArray[np.int64], expected: NDArray[np.int64], other: str, reason: str) -> None:
    """Refuse rows whose splits have another number of items than those of `other`."""
    sizes, wanted = np.diff(found), np.diff(expected)
    if (row := first_true(sizes != wanted)) is not None:
        raise RowError(row, f"holds {plural(sizes[row], 'item')}; expected {wanted[row]:,}, as in {other!r}: {reason}")


def check_column(column: str, given: Feature, wanted: Feature, field: str | None = None) -> None:
    """Refuse a column whose dtype or row shape does not match its feature, or the field of a message."""
    holder = field or wanted
    dtypes = given.item_dtype, wanted.item_dtype
    text = [dtype.kind == "T" for dtype in dtypes]
    fits = text[0] or given.is_bytes if wanted.is_bytes else text[0] == text[1] and (text[0] or castable(*dtypes))
    if not fits:
        hint = ""
        if field is not None:
            hint = f": it takes {dtype_name(dtypes[1])}"
        elif castable(dtypes[1], dtypes[0]):
            hint = f": a RawFeature or TensorFeature of {dtypes[0]} keeps what it holds"
        raise SchemaError(f"column {column!r} is of {dtype_name(dtypes[0])}, which {holder} does not hold{hint}")
    has, takes = given.row_shape, wanted.row_shape
    # Shapes that differ by row are checked when the rows exist.
    free = given.own_shapes > 0 and wanted.own_shapes > 0
    if len(has) != len(takes) or not all(
        size == -1 or size == is_ or (free and is_ == -1) for is_, size in zip(has, takes, strict=True)
    ):
        raise SchemaError(f"column {column!r} has rows of shape {has} where {holder} takes {takes}")
    levels = given.ragged_rank - wanted.ragged_rank
    if (given.own_shapes and not wanted.own_shapes) or (levels > 1 and wanted.own_shapes):
        raise SchemaError(f"column {column!r} has rows that are arrays of any shape, which {holder} does not hold")


def as_read(wanted: Feature, block: Block) -> Block:
    """Convert a block to the form and dtype that reading it returns."""
    if wanted.own_shapes and wanted.ragged_rank:
        block = _rows_of_arrays(block, wanted)
    elif wanted.own_shapes:
        block = _arrays(block, wanted)
    elif not wanted.is_padded:
        block = in_levels(block, wanted.ragged_rank)
    return to_bytes(block) if wanted.is_bytes or wanted.item_dtype.kind == "T" else cast(block, wanted.item_dtype)


def _rows_of_arrays(block: Block, wanted: Feature) -> RaggedBlock:
    """Return rows of arrays with their own shapes; arrays of one axis more are cut along the first."""
    if isinstance(block, ArraysBlock):
        splits, shapes = splits_of(block.shapes[:, 0]), np.repeat(block.shapes[:, 1:], block.shapes[:, 0], axis=0)
        block = RaggedBlock(ArraysBlock(block.values, splits_of(shapes.prod(axis=1)), shapes), splits)
    rows: RaggedBlock = in_levels(block, 1)
    with as_row_error(rows.row_splits, item=True):
        return RaggedBlock(_arrays(rows.values, wanted), rows.row_splits)


def _arrays(block: Block, wanted: Feature) -> ArraysBlock:
    """Return rows that are arrays with their own shapes."""
    if isinstance(block, ArraysBlock):
        sizes = np.array(wanted.row_shape[wanted.ragged_rank :])
        if (row := first_true(((sizes != -1) & (block.shapes != sizes)).any(axis=1))) is not None:
            shape = tuple(block.shapes[row].tolist())
            raise RowError(row, f"holds an array of shape {shape} where {wanted} takes {tuple(sizes.tolist())}")
        return block
    rows: Any = in_levels(block, 1)
    inner = rows.values.shape[1:]
    each = math.prod(inner)
    shapes = np.empty((len(rows), 1 + len(inner)), np.int64)
    shapes[:, 0], shapes[:, 1:] = np.diff(rows.row_splits), inner
    return ArraysBlock(rows.values.reshape((len(rows.values) * each,)), rows.row_splits * each, shapes)


def record_schema(columns: Schema, read: Schema | None, given: Schema) -> Schema:
    """Return the features that columns are written as."""
    if read is not None and read.message_type is not None:
        read = None
    message = given.message if given.message != "Example" or read is None else read.message
    own = {*given, *(read or {})}
    found: dict[str, tuple[Feature, bool]] = {}
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
        found[name] = (feature, steps)
        used.update(dict.fromkeys(names, name))
        return True

    for name, feature in given.items():
        if not take(name, feature, steps=given.has_steps(name)):
            raise UnknownFeatureError(f"feature {name!r}: no column for {feature}{near_misses(name, columns)}")
    if read is not None:
        read_columns = Decoder(read).columns
        for name, feature in read.items():
            steps = read.has_steps(name)
            names = names_of(name, feature, steps) or ()
            kept = all(columns[column] == read_columns.get(column, columns[column]) for column in names)
            if kept and (not steps or read.message == message):
                take(name, feature, steps=steps)
    for name in columns:
        if name not in used:
            take(name, columns[name], steps=False)
    order = dict.fromkeys(used[column] for column in columns)
    of_records = {name: found[name][0] for name in order if not found[name][1]}
    of_steps = {split_item_name(name, message)[0]: found[name][0] for name in order if found[name][1]}
    classes = {**columns.classes, **given.classes}
    schema = Schema(
        of_records,
        sequence_features=of_steps if message == "SequenceExample" else None,
        example_features=of_steps if message == "ExampleListWithContext" else None,
        classes={name: names for name, names in classes.items() if name in found},
    )
    grouping = given if given.groups else columns
    items = [name for name in schema if message == "ExampleListWithContext" and schema.has_steps(name)]
    ragged = [name for name, feature in schema.items() if feature.ragged_rank and name not in items]
    return schema.with_groups(grouping.groups_of(ragged))


def column_forms(features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Return the features of the columns from which records of these features are written."""
    schema = given_features(features, None)
    columns: Mapping[str, Any] = Decoder(schema).columns
    # Arrays hold the nanoseconds of times of messages.
    is_time = {name: form.item_dtype.kind in "mM" for name, form in columns.items()}
    forms = {name: replace(form, dtype="int64") if is_time[name] else form for name, form in columns.items()}
    for name, feature in schema.items():
        if feature.is_padded:
            # Object arrays hold rows without padding.
            forms[name] = feature.unpadded()
    return forms


def listed_features(columns: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the default features that arrays are written as: kinds that an Example lists.

    Integers and bool are listed as int64, float16 and bfloat16 as float32.
    """
    return {name: feature.listed(name) for name, feature in columns.items()}


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a dtype may be cast to another: integers to floats, but never floats to integers."""
    order = {"integer": 0, "float": 1, "complex": 2}
    kinds = _kind(given), _kind(wanted)
    return given == wanted or (all(kind in order for kind in kinds) and order[kinds[0]] <= order[kinds[1]])


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biu":
        return "integer"
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return "float"
    return "complex" if dtype.kind == "c" else dtype.kind


def cast(block: Block, dtype: np.dtype[Any]) -> Block:
    """Cast the numbers of a block to another dtype."""
    if isinstance(block, RaggedBlock | ArraysBlock):
        with as_row_error(block.row_splits):
            values: Any = cast(block.values, dtype)
        return replace(block, values=values)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        result = block.astype(dtype)
    refuse_values(block, _misfits(block, result), f"which does not fit {dtype}")
    return result


def _misfits(given: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the values that the cast changed, other than by rounding floats."""
    if _kind(given.dtype) != "integer":
        return np.asarray(np.isfinite(given) & ~np.isfinite(result))
    if _kind(result.dtype) == "integer":
        # An 8-byte integer that changes its sign keeps its bits, so that casting it back hides the change.
        other: NDArray[np.bool_] = (result.astype(given.dtype) != given) | ((result < 0) != (given < 0))
        return other
    largest = _largest_exact_integer(result.dtype)
    out: NDArray[np.bool_] = (given > largest) | (given < -largest) if given.dtype.kind == "i" else given > largest
    return out if largest < np.iinfo(given.dtype if given.dtype.kind != "b" else np.uint8).max else np.zeros_like(out)


def _largest_exact_integer(dtype: np.dtype[Any]) -> int:
    """Return the bound up to which a float represents every integer."""
    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}.get(dtype.name, 53)
    return 1 << bits


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; return bytes unchanged."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    return BytesBlock.of([item.encode() for item in block.ravel().tolist()], block.shape)
