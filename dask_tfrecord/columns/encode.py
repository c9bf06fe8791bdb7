"""Features that columns are written as, and encoding of their blocks to framed records by the native encoder.

The schema that writes records also reads them. A column that no feature stores unchanged needs one from the user:
values are never converted by a guess. Records are written to one buffer that is reused, so memory is the given rows and
one buffer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
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
    first_true,
    place,
    placing,
    splits_of,
    take_rows,
)
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.features import (
    COMPRESSION_WBITS,
    Encoded,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    KeyedPartition,
    ProtoFeature,
    RaggedFeature,
    RawFeature,
    RowLimits,
    RowSplits,
    RowStarts,
    SparseFeature,
    TensorFeature,
    ValueRowIds,
    VarLenFeature,
    dtype_name,
    stored_kind,
)
from dask_tfrecord.features.image import encode_images
from dask_tfrecord.features.keys import KINDS, MESSAGES
from dask_tfrecord.features.sparse import check_indices
from dask_tfrecord.features.tensor import serialize_tensors, tensor_head
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
    required, optional = [name], []
    if isinstance(feature, SparseFeature):
        required, optional = [f"{name}.indices", f"{name}.values"], [f"{name}.shape"]
    elif steps or isinstance(feature, FixedLenSequenceFeature):
        lengths = lengths_column(name, columns)
        optional = [] if lengths is None else [lengths]
    if not all(column in columns for column in required):
        return None
    return (*required, *(column for column in optional if column in columns and column not in own))


@dataclass(frozen=True, slots=True)
class _ColumnEncoding:
    """Columns that one feature is written from."""

    name: str
    key: str
    feature: Feature
    columns: Mapping[str, Feature]
    unit: str


class Encoder:
    """Encodes columns to the values of keys."""

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        self.schema, self.columns = schema, columns
        self.encoding = dict(encoding or {})
        promised = Decoder(schema).columns
        self._plans = [_plan(name, feature, schema, columns, promised) for name, feature in schema.items()]
        used = {column for plan in self._plans for column in plan.columns}
        if left := [name for name in columns if name not in used]:
            raise SchemaError(f"column {left[0]!r} belongs to no feature: add one to the schema, or drop the column")
        if other := [name for name in self.encoding if not isinstance(schema.get(name), ImageFeature)]:
            raise SchemaError(f"encoding of {other[0]!r}: only an ImageFeature has an encoding")

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self.schema, self.columns, self.encoding)

    def keyed(self, blocks: Mapping[str, Block], location: Location) -> list[KeyedValues]:
        """Return the values of each key."""
        found: dict[tuple[str, bool], tuple[KeyedValues, str]] = {}
        first: tuple[KeyedValues, str] | None = None
        for plan in self._plans:
            with locating(plan.name, location, plan.unit):
                blocks_of = {name: formed(wanted, blocks[name]) for name, wanted in plan.columns.items()}
                made = _keyed(plan, blocks_of, self.encoding.get(plan.name, ImageEncoding()))
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


def _plan(name: str, feature: Feature, schema: Schema, columns: Schema, promised: Schema) -> _ColumnEncoding:
    unit = "value"
    if schema.has_steps(name):
        unit = "step" if schema.message == "SequenceExample" else "item"
    names = source_columns(name, feature, columns, schema, steps=unit == "step")
    if names is None:
        raise SchemaError(f"feature {name!r}: the column that {feature} is written from is missing")
    lengths = FixedLenFeature((), "int64")
    wanted = {column: promised.get(column, lengths) for column in names}
    for column, form in wanted.items():
        check_column(column, columns[column], form)
    return _ColumnEncoding(name, schema.key_of(name), feature, wanted, unit)


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
    has, takes = _sizes(given), _sizes(wanted)
    # Shapes that differ by row are checked when the rows exist.
    free = given.own_shapes > 0 and wanted.own_shapes > 0
    if len(has) != len(takes) or not all(
        size == -1 or size == is_ or (free and is_ == -1) for is_, size in zip(has, takes, strict=True)
    ):
        raise SchemaError(f"column {column!r} has rows of shape {has} where {holder} takes {takes}")
    levels = given.ragged_rank - wanted.ragged_rank
    if (given.own_shapes and not wanted.own_shapes) or (levels > 1 and wanted.own_shapes):
        raise SchemaError(f"column {column!r} has rows that are arrays of any shape, which {holder} does not hold")


def _sizes(feature: Feature) -> tuple[int, ...]:
    """Return the shape of a row, with -1 for sizes that differ between rows."""
    if isinstance(feature, FixedLenSequenceFeature):
        return (-1, *feature.shape)
    if feature.own_shapes:
        assert isinstance(feature, Encoded)
        return (*(-1,) * feature.ragged_rank, *feature.value_shape)
    return (*(-1,) * feature.ragged_rank, *feature.item_shape)


def formed(wanted: Feature, block: Block) -> Block:
    """Convert a block to the form and dtype that reading it returns."""
    if wanted.own_shapes and wanted.ragged_rank:
        block = _rows_of_arrays(block, wanted)
    elif wanted.own_shapes:
        block = _arrays(block, wanted)
    elif not isinstance(wanted, FixedLenSequenceFeature):
        block = _nested(block, wanted.ragged_rank)
    return to_bytes(block) if wanted.is_bytes or wanted.item_dtype.kind == "T" else cast(block, wanted.item_dtype)


def _nested(block: Any, levels: int) -> Any:
    """Return rows with `levels` ragged levels; rows of one length get evenly spaced splits."""
    if not levels:
        return block
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_nested(block.values, levels - 1), block.row_splits)
    rows, length, *inner = block.shape
    values = block.reshape((rows * length, *inner))
    return RaggedBlock(_nested(values, levels - 1), np.arange(rows + 1, dtype=np.int64) * length)


def _rows_of_arrays(block: Block, wanted: Feature) -> RaggedBlock:
    """Return rows of arrays with their own shapes; arrays of one axis more are cut along the first."""
    if isinstance(block, ArraysBlock):
        splits, shapes = splits_of(block.shapes[:, 0]), np.repeat(block.shapes[:, 1:], block.shapes[:, 0], axis=0)
        block = RaggedBlock(ArraysBlock(block.values, splits_of(shapes.prod(axis=1)), shapes), splits)
    rows: RaggedBlock = _nested(block, 1)
    with placing(rows.row_splits, item=True):
        return RaggedBlock(_arrays(rows.values, wanted), rows.row_splits)


def _arrays(block: Block, wanted: Feature) -> ArraysBlock:
    """Return rows that are arrays with their own shapes."""
    if isinstance(block, ArraysBlock):
        sizes = np.array(_sizes(wanted)[wanted.ragged_rank :])
        if (row := first_true(((sizes != -1) & (block.shapes != sizes)).any(axis=1))) is not None:
            shape = tuple(block.shapes[row].tolist())
            raise RowError(row, f"holds an array of shape {shape} where {wanted} takes {tuple(sizes.tolist())}")
        return block
    rows: Any = _nested(block, 1)
    inner = rows.values.shape[1:]
    each = math.prod(inner)
    shapes = np.empty((len(rows), 1 + len(inner)), np.int64)
    shapes[:, 0], shapes[:, 1:] = np.diff(rows.row_splits), inner
    return ArraysBlock(rows.values.reshape((len(rows.values) * each,)), rows.row_splits * each, shapes)


def _keyed(plan: _ColumnEncoding, blocks: Mapping[str, Any], encoding: ImageEncoding) -> Sequence[KeyedValues]:
    """Return the values of the keys of a feature."""
    name, feature = plan.name, plan.feature
    if isinstance(feature, SparseFeature):
        return sparse(name, feature, blocks)
    block, lengths = blocks[name], blocks.get(f"{name}.lengths")
    if isinstance(feature, FixedLenSequenceFeature):
        block = padded(feature, block, lengths)
    elif plan.unit == "step":
        check_lengths(np.diff(block.row_splits), lengths)
    if plan.unit != "value":
        with placing(block.row_splits, item=True):
            steps = _values(plan, encoding, block.values)
        splits = np.ascontiguousarray(block.row_splits)
        return [replace(keyed, steps=True, step_splits=keyed.row_splits, row_splits=splits) for keyed in steps]
    if isinstance(feature, Encoded) and feature.count is not None:
        return [_encoded_rows(plan, encoding, _nested(block, 1), feature.count)]
    return _values(plan, encoding, block)


def _encoded_rows(plan: _ColumnEncoding, encoding: ImageEncoding, block: RaggedBlock, count: int = -1) -> KeyedValues:
    """Return the values of rows of arrays, each encoded as one bytes value; any number of them without `count`."""
    with placing(block.row_splits, item=True):
        (keyed,) = _values(plan, encoding, block.values)
    if count >= 0:
        return replace(keyed, count=count)
    return replace(keyed, row_splits=np.ascontiguousarray(block.row_splits))


def _values(plan: _ColumnEncoding, encoding: ImageEncoding, block: Any) -> Sequence[KeyedValues]:
    """Return the values of the keys of rows, of steps, or of single arrays."""
    match plan.feature:
        case RaggedFeature():
            return _partitioned(plan, plan.feature, encoding, block)
        case ImageFeature():
            return [fixed(plan.key, encode_images(encoding, block))]
        case RawFeature():
            return [raw(plan.key, plan.feature, block)]
        case TensorFeature():
            return [tensor(plan.key, plan.feature, block)]
    return [ragged(plan.key, block) if isinstance(block, RaggedBlock) else fixed(plan.key, block)]


def value_bytes(name: str, feature: Encoded, encoding: ImageEncoding, block: Any) -> BytesBlock:
    """Return arrays as bytes values, one each."""
    (keyed,) = _values(_ColumnEncoding(name, name, feature, {}, "value"), encoding, block)
    assert keyed.value_splits is not None
    values = BytesBlock(keyed.values, keyed.value_splits, (len(keyed.value_splits) - 1,))
    return BytesBlock.of([keyed.prefix + value for value in np.asarray(values).tolist()]) if keyed.prefix else values


def record_schema(columns: Schema, read: Schema | None, given: Schema) -> Schema:
    """Return the features that columns are written as."""
    if read is not None and read.message_type is not None:
        read = None
    message = given.message if given.message != "Example" or read is None else read.message
    own = {*given, *(read or {})}
    found: dict[str, tuple[Feature, bool]] = {}
    used: dict[str, str] = {}

    def names_of(name: str, feature: Feature, steps: bool) -> tuple[str, ...] | None:
        return source_columns(name, feature, columns, own, steps=steps and message == "SequenceExample")

    def take(name: str, feature: Feature, *, steps: bool) -> bool:
        names = names_of(name, feature, steps)
        if names is None or any(column in used for column in names):
            return False
        found[name] = (feature, steps)
        used.update(dict.fromkeys(names, name))
        return True

    for name, feature in given.items():
        if isinstance(feature, ProtoFeature):
            raise _no_bytes(name, name)
        if not take(name, feature, steps=given.has_steps(name)):
            raise UnknownFeatureError(f"feature {name!r}: no column for {feature}{near_misses(name, columns)}")
    if read is not None:
        read_columns = Decoder(read).columns
        for name, feature in read.items():
            if isinstance(feature, ProtoFeature):
                labels = Decoder(read.select([name])).columns
                for column in columns:
                    if column in labels and column not in used:
                        raise _no_bytes(column, name)
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


def _no_bytes(column: str, name: str) -> SchemaError:
    return SchemaError(
        f"column {column!r} is a field of messages in bytes, which are written as they are: read the bytes by "
        f"features={{{name!r}: FixedLenFeature((), 'bytes')}}, drop the column, or state by features={{{column!r}: …}} "
        f"how Examples store its values"
    )


def column_forms(features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Return the features of the columns from which records of these features are written."""
    schema = given_features(features, None)
    columns: Mapping[str, Any] = Decoder(schema).columns
    # Arrays hold the nanoseconds of times of messages.
    is_time = {name: form.item_dtype.kind in "mM" for name, form in columns.items()}
    forms = {name: replace(form, dtype="int64") if is_time[name] else form for name, form in columns.items()}
    for name, feature in schema.items():
        if isinstance(feature, FixedLenSequenceFeature):
            # Object arrays hold rows without padding.
            forms[name] = VarLenFeature(feature.dtype, shape=(-1, *feature.shape))
    return forms


def listed_features(columns: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the default features that arrays are written as: kinds that an Example lists.

    Integers and bool are listed as int64, float16 and bfloat16 as float32.
    """
    return {name: _listed(name, feature) for name, feature in columns.items()}


def _listed(name: str, feature: Feature) -> Feature:
    dtype = feature.item_dtype
    if dtype.name == "float64":
        sizes = tuple(feature.shape) if feature.shape else ()
        kept = f"RawFeature({sizes}, 'float64')"
        rounded = f"FixedLenFeature({sizes}, 'float32')"
        if isinstance(feature, TensorFeature):
            rounded, kept = f"TensorFeature({sizes}, 'float32')", f"TensorFeature({sizes}, 'float64')"
        elif feature.ragged_rank == 1:
            rounded = f"VarLenFeature('float32'{'' if len(sizes) == 1 else f', shape={sizes}'})"
        elif feature.ragged_rank:
            rounded, kept = "RaggedFeature('float32', partitions=…)", "a sequence feature VarLenFeature('float64')"
        raise SchemaError(
            f"array {name!r} is of float64, and an Example lists float32: specify features={{{name!r}: {rounded}}} to "
            f"round it, or {{{name!r}: {kept}}} to keep it"
        )
    if dtype.kind == "c":
        raise SchemaError(
            f"array {name!r} is of {dtype}, which an Example cannot list: specify RawFeature(shape, {dtype.name!r}) or "
            f"TensorFeature(shape, {dtype.name!r}) in features="
        )
    if isinstance(feature, TensorFeature) or feature.own_shapes:
        raise SchemaError(
            f"array {name!r} has rows of different shapes, which an Example cannot list: specify TensorFeature or "
            f"ImageFeature in features="
        )
    if isinstance(feature, RawFeature):
        if feature.ragged_rank:
            return VarLenFeature(dtype, shape=(-1, *feature.item_shape))
        return FixedLenFeature(feature.item_shape, dtype)
    if isinstance(feature, VarLenFeature) and feature.ragged_rank > 1:
        raise SchemaError(
            f"array {name!r} has nested rows, which an Example cannot list: specify RaggedFeature with partitions in "
            f"features=, or VarLenFeature in sequence_features="
        )
    return feature


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
        with placing(block.row_splits):
            values: Any = cast(block.values, dtype)
        return replace(block, values=values)
    if isinstance(block, BytesBlock) or block.dtype == dtype:
        return block
    with np.errstate(all="ignore"):
        result = block.astype(dtype)
    _refuse(block, _misfits(block, result), f"which does not fit {dtype}")
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


def _refuse(values: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if (position := first_true(bad)) is not None:
        raise RowError(position // max(1, math.prod(values.shape[1:])), f"holds {values.ravel()[position]}, {why}")


def listed(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as an Example lists them: int64 or float32, flat and contiguous."""
    kind = np.dtype(stored_kind(values.dtype.name))
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(values, kind).reshape(-1)
    if values.dtype == np.uint64:
        _refuse(values, result.reshape(values.shape) < 0, "which exceeds int64, the integers of an Example")
    if values.dtype == np.float64:
        back = result.reshape(values.shape).astype(np.float64)
        other = (back != values) & ~(np.isnan(back) & np.isnan(values))
        _refuse(values, other, "which float32, the floats of an Example, cannot represent: round it to float32 first")
    return result


def to_bytes(block: Block) -> Block:
    """Encode strings to UTF-8, at any level of rows; return bytes unchanged."""
    if isinstance(block, RaggedBlock):
        values: Any = to_bytes(block.values)
        return RaggedBlock(values, block.row_splits)
    if not isinstance(block, np.ndarray):
        return block
    return BytesBlock.of([item.encode() for item in block.ravel().tolist()], block.shape)


_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedValues:
    """Values of one key, or of one feature list, in all records."""

    key: str
    values: NDArray[Any]  # flat: int64, float32, or the uint8 of all bytes values
    count: int = 1  # values per row, or per step, if the splits are None
    row_splits: _Ints | None = None  # in values or steps
    value_splits: _Ints | None = None  # of bytes values
    step_splits: _Ints | None = None  # in values
    steps: bool = False  # the key is a feature list
    prefix: bytes = b""  # written before each bytes value

    def field(self) -> _native.Field:
        """Return the specification for the native encoder."""
        kind = KINDS["bytes" if self.value_splits is not None else self.values.dtype.name]
        return _native.Field(
            self.key.encode(),
            kind,
            self.values.view(np.uint8),
            list=self.steps,
            count=self.count,
            prefix=self.prefix,
            value_splits=self.value_splits,
            step_splits=self.step_splits,
            row_splits=self.row_splits,
        )

    def same(self, other: KeyedValues) -> bool:
        """Return whether another column has the same values for the key."""
        own, others = ((of.count, of.steps, of.prefix, of.values.tobytes()) for of in (self, other))
        splits = ("row_splits", "value_splits", "step_splits")
        return own == others and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in splits)


def _flat(key: str, values: NDArray[Any] | BytesBlock) -> KeyedValues:
    """Return all values of a key, concatenated."""
    if isinstance(values, BytesBlock):
        return KeyedValues(key, np.ascontiguousarray(values.values), value_splits=np.ascontiguousarray(values.splits))
    return KeyedValues(key, listed(values))


def fixed(key: str, block: Any) -> KeyedValues:
    """Disassemble rows of a fixed number of values."""
    return replace(_flat(key, block), count=math.prod(block.shape[1:]))


def ragged(key: str, block: RaggedBlock) -> KeyedValues:
    """Disassemble rows of values."""
    with placing(block.row_splits):
        flat = _flat(key, block.flat_values)
    inner = math.prod(block.flat_values.shape[1:])
    return replace(flat, row_splits=block.row_splits * inner if inner != 1 else np.ascontiguousarray(block.row_splits))


def padded(feature: FixedLenSequenceFeature, block: Block, lengths: Block | None) -> RaggedBlock:
    """Return rows of steps without padding; all steps if `lengths` is None."""
    if isinstance(block, RaggedBlock):
        check_lengths(np.diff(block.row_splits), lengths)
        return block
    assert isinstance(block, np.ndarray | BytesBlock)
    rows, most = block.shape[:2]
    steps = block.reshape((rows * most, *feature.shape))
    if lengths is None:
        return RaggedBlock(steps, np.arange(rows + 1, dtype=np.int64) * most)
    counts = np.asarray(lengths).astype(np.int64)
    if (row := first_true((counts < 0) | (counts > most))) is not None:
        raise RowError(row, f"holds {plural(most, 'step')}, including padding; its lengths column has {counts[row]}")
    kept: Any = take_rows(steps, np.flatnonzero(np.arange(most) < counts[:, None]))
    return RaggedBlock(kept, splits_of(counts))


def check_lengths(counts: _Ints, lengths: Block | None) -> None:
    """Refuse lengths that differ from those of the rows."""
    if lengths is not None and (row := first_true(counts != np.asarray(lengths))) is not None:
        raise RowError(row, f"holds {plural(counts[row], 'step')}; its lengths column has {np.asarray(lengths)[row]}")


def raw(key: str, feature: RawFeature, block: Block) -> KeyedValues:
    """Disassemble arrays into one bytes value each, in the byte order of the file."""
    rows: Any = block.values if isinstance(block, RaggedBlock | ArraysBlock) else block
    values = np.ascontiguousarray(rows, feature.stored_dtype).reshape(-1).view(np.uint8)
    if isinstance(block, ArraysBlock):
        splits = block.row_splits * feature.stored_dtype.itemsize
    else:
        ends = block.row_splits if isinstance(block, RaggedBlock) else np.arange(len(block) + 1, dtype=np.int64)
        splits = ends * feature.nbytes
    if feature.compression_type is None:
        return KeyedValues(key, values, value_splits=splits)
    deflated = []
    for start, stop in pairwise(splits.tolist()):
        deflate = zlib.compressobj(wbits=COMPRESSION_WBITS[feature.compression_type])
        deflated.append(deflate.compress(values[start:stop].tobytes()) + deflate.flush())
    return _flat(key, BytesBlock.of(deflated))


def tensor(key: str, feature: TensorFeature, block: Block) -> KeyedValues:
    """Disassemble arrays into serialized tensors."""
    if isinstance(block, np.ndarray):
        # Tensors of one shape share their head.
        values = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        nbytes = math.prod(block.shape[1:]) * block.dtype.itemsize
        head = tensor_head(feature.dtype, block.shape[1:], nbytes)
        return KeyedValues(key, values, value_splits=np.arange(len(block) + 1, dtype=np.int64) * nbytes, prefix=head)
    assert isinstance(block, ArraysBlock | BytesBlock)
    return _flat(key, serialize_tensors(feature.dtype, block))


def sparse(name: str, feature: SparseFeature, blocks: Mapping[str, Block]) -> list[KeyedValues]:
    """Disassemble a sparse feature into its values, and their indices along each axis."""
    indices, values = blocks[f"{name}.indices"], blocks[f"{name}.values"]
    assert isinstance(indices, RaggedBlock) and isinstance(values, RaggedBlock)
    found, expected = np.diff(indices.row_splits), np.diff(values.row_splits)
    if (row := first_true(found != expected)) is not None:
        raise RowError(row, f"holds {found[row]} indices for {expected[row]} values")
    coordinates: Any = np.asarray(indices.values)
    check_indices(feature, coordinates, indices.row_splits)
    shape = blocks.get(f"{name}.shape")
    if shape is not None and (row := first_true((np.asarray(shape) != feature.size).any(axis=1))) is not None:
        given = tuple(np.asarray(shape)[row].tolist())
        raise RowError(row, f"has shape {given}; expected {feature.size}, the size of the feature")
    axes = [
        ragged(key, RaggedBlock(np.ascontiguousarray(coordinates[:, axis]), indices.row_splits))
        for axis, key in enumerate(feature.index_key)
    ]
    return [*axes, ragged(feature.value_key, values)]


def _partitioned(
    plan: _ColumnEncoding, feature: RaggedFeature, encoding: ImageEncoding, block: RaggedBlock
) -> list[KeyedValues]:
    """Disassemble nested rows into their values and the entries of each partition."""
    # `ends`: offsets between groups (records, or steps), in items of the current level.
    result: list[KeyedValues] = []
    ends: _Ints = block.row_splits
    inside: Any = block.values
    for partition in feature.partitions[: feature.ragged_rank - 1]:
        splits = inside.row_splits
        if isinstance(partition, KeyedPartition):
            entries, offsets = _entries(partition, splits, ends)
            result.append(KeyedValues(partition.key, entries, row_splits=np.ascontiguousarray(offsets)))
        elif (number := first_true(np.diff(splits) != partition.length)) is not None:  # type: ignore[attr-defined]
            size = splits[number + 1] - splits[number]
            raise RowError(place(ends, number)[0], f"holds a row of {size} items, which {partition!r} cannot represent")
        ends, inside = splits[ends], inside.values
    key, ends = plan.key if feature.value_key is None else feature.value_key, np.ascontiguousarray(ends)
    if feature.values is None:
        return [ragged(key, RaggedBlock(inside, ends)), *result]
    # Axes of uniform partitions are merged with that of the rows.
    axes = len(feature.uniform_sizes)
    values = inside.reshape((math.prod(inside.shape[: axes + 1]), *inside.shape[axes + 1 :]))
    of_values = replace(plan, key=key, feature=feature.values)
    rows = RaggedBlock(values, ends * math.prod(feature.uniform_sizes))
    return [_encoded_rows(of_values, encoding, rows), *result]


def _entries(partition: KeyedPartition, splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    """Return the entries of a partition, and the offsets between groups of entries.

    `splits` are the offsets between rows, in items of the next level; `ends` those between groups, in rows.
    """
    lengths, rows = np.diff(splits), np.diff(ends)
    match partition:
        case RowLimits():
            return splits[1:] - np.repeat(splits[ends[:-1]], rows), ends
        case RowStarts():
            return splits[:-1] - np.repeat(splits[ends[:-1]], rows), ends
        case RowSplits():
            # Each group has one entry more than rows.
            groups = np.arange(len(rows))
            positions = np.arange(len(lengths) + len(rows)) - np.repeat(groups, rows + 1)
            return splits[positions] - np.repeat(splits[ends[:-1]], rows + 1), ends + np.arange(len(ends))
        case ValueRowIds():
            last = np.zeros(len(rows), bool)
            last[rows > 0] = lengths[ends[1:][rows > 0] - 1] == 0
            if (row := first_true(last)) is not None:
                raise RowError(row, "ends with an empty row, which ValueRowIds cannot represent")
            numbers = np.arange(len(lengths)) - np.repeat(ends[:-1], rows)
            return np.repeat(numbers, lengths), splits[ends]
    return lengths, ends
