"""Features that columns are written as, and encoding of their blocks to framed records by the native encoder.

The schema that writes records also reads them. A column that no feature stores unchanged needs one from the user:
values are never converted by a guess. Records are written to one buffer that is reused, so memory is the given rows and
one buffer.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns import disassemble
from dask_tfrecord.columns.assemble import MESSAGES
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, RowError, place, splits_of
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.columns.disassemble import KeyedValues, cast, castable, to_bytes
from dask_tfrecord.columns.encoded_values import encode_images
from dask_tfrecord.errors import FeatureError, Location, SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    VarLenFeature,
)
from dask_tfrecord.images.pixels import ImageEncoding
from dask_tfrecord.schema import Schema, split_item_name

# Initial size of the buffer for records.
_BUFFER = 1 << 20
# Maximum size of a framed record that protobuf can read.
_MOST = (1 << 31) - 1


def source_columns(
    name: str, feature: Feature, columns: Container[str], own: Container[str], *, steps: bool
) -> tuple[str, ...] | None:
    """Return the columns that a feature is written from."""
    required, optional = [name], []
    if isinstance(feature, SparseFeature):
        required, optional = [f"{name}.indices", f"{name}.values"], [f"{name}.shape"]
    elif steps or isinstance(feature, FixedLenSequenceFeature):
        optional = [f"{name}.lengths"]
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
            try:
                formed = {name: _formed(wanted, blocks[name]) for name, wanted in plan.columns.items()}
                made = _keyed(plan, formed, self.encoding.get(plan.name, ImageEncoding()))
                if plan.unit == "item":
                    other, name = first = first or (made[0], plan.name)
                    _check_items(made[0], other, name)
            except RowError as error:
                record = (location.record or 0) + error.row
                place = "" if error.item is None else f", in {plan.unit} {error.item}"
                raise FeatureError(
                    f"feature {plan.name!r} {error.message}{place}", Location(location.file, record, feature=plan.name)
                ) from None
            for keyed in made:
                other, name = found.setdefault((keyed.key, keyed.steps), (keyed, plan.name))
                if other is not keyed and not other.same(keyed):
                    raise SchemaError(
                        f"features {name!r} and {plan.name!r} share the key {keyed.key!r}, and their columns hold "
                        f"different values for it",
                        location,
                    )
        return [keyed for keyed, _ in found.values()]


class RecordStream:
    """Records of one shard, encoded from consecutive blocks."""

    def __init__(self, encoder: Encoder, file: str) -> None:
        self.encoder, self.file = encoder, file
        self.records = 0
        self._buffer: NDArray[np.uint8] = np.empty(_BUFFER, np.uint8)

    def framed(self, blocks: Mapping[str, Block]) -> Iterator[memoryview]:
        """Encode the records of the next rows."""
        rows = len(next(iter(blocks.values())))
        fields = [keyed.field() for keyed in self.encoder.keyed(blocks, Location(self.file, self.records))]
        native = _native.Encoder(fields, rows, MESSAGES[self.encoder.schema.message])
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
        _check(column, columns[column], form)
    return _ColumnEncoding(name, schema.key_of(name), feature, wanted, unit)


def _check_items(items: KeyedValues, others: KeyedValues, name: str) -> None:
    """Refuse rows with another number of items than those of feature `name`."""
    assert items.row_splits is not None and others.row_splits is not None
    found, expected = np.diff(items.row_splits), np.diff(others.row_splits)
    if len(wrong := np.flatnonzero(found != expected)):
        row = int(wrong[0])
        raise RowError(
            row, f"holds {plural(found[row], 'item')}; expected {expected[row]:,}, as in {name!r}: items have all keys"
        )


def _check(column: str, given: Feature, wanted: Feature) -> None:
    """Refuse a column whose dtype or row shape does not match its feature."""
    dtypes = given.item_dtype, wanted.item_dtype
    text = [dtype.kind == "T" for dtype in dtypes]
    fits = text[0] or given.is_bytes if wanted.is_bytes else text[0] == text[1] and (text[0] or castable(*dtypes))
    if not fits:
        hint = ""
        if castable(dtypes[1], dtypes[0]):
            hint = f": a RawFeature or TensorFeature of {dtypes[0]} keeps what it holds"
        raise SchemaError(f"column {column!r} is of {_dtype(dtypes[0])}, which {wanted} does not hold{hint}")
    has, takes = _sizes(given), _sizes(wanted)
    # Shapes that differ by row are checked when the rows exist.
    free = given.own_shapes > 0 and wanted.own_shapes > 0
    if len(has) != len(takes) or not all(
        size == -1 or size == is_ or (free and is_ == -1) for is_, size in zip(has, takes, strict=True)
    ):
        raise SchemaError(f"column {column!r} has rows of shape {has} where {wanted} takes {takes}")
    levels = given.ragged_rank - wanted.ragged_rank
    if (given.own_shapes and not wanted.own_shapes) or (levels > 1 and wanted.own_shapes):
        raise SchemaError(f"column {column!r} has rows that are arrays of any shape, which {wanted} does not hold")


def _dtype(dtype: np.dtype[Any]) -> str:
    return {"O": "bytes", "T": "text"}.get(dtype.kind, dtype.name)


def _sizes(feature: Feature) -> tuple[int, ...]:
    """Return the shape of a row, with -1 for sizes that differ between rows."""
    if isinstance(feature, FixedLenSequenceFeature):
        return (-1, *feature.shape)
    if feature.own_shapes:
        assert isinstance(feature, Encoded)
        return (*(-1,) * feature.ragged_rank, *feature.value_shape)
    return (*(-1,) * feature.ragged_rank, *feature.item_shape)


def _formed(wanted: Feature, block: Block) -> Block:
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
    shape = (rows * length, *inner)
    values = block.reshape(shape) if isinstance(block, np.ndarray) else BytesBlock(block.values, block.splits, shape)
    return RaggedBlock(_nested(values, levels - 1), np.arange(rows + 1, dtype=np.int64) * length)


def _rows_of_arrays(block: Block, wanted: Feature) -> RaggedBlock:
    """Return rows of arrays with their own shapes; arrays of one axis more are cut along the first."""
    if isinstance(block, ArraysBlock):
        splits, shapes = splits_of(block.shapes[:, 0]), np.repeat(block.shapes[:, 1:], block.shapes[:, 0], axis=0)
        block = RaggedBlock(ArraysBlock(block.values, splits_of(shapes.prod(axis=1)), shapes), splits)
    rows: RaggedBlock = _nested(block, 1)
    try:
        return RaggedBlock(_arrays(rows.values, wanted), rows.row_splits)
    except RowError as error:
        row, value = place(rows.row_splits, error.row)
        raise RowError(row, f"{error.message}, in value {value}") from None


def _arrays(block: Block, wanted: Feature) -> ArraysBlock:
    """Return rows that are arrays with their own shapes."""
    if isinstance(block, ArraysBlock):
        sizes = np.array(_sizes(wanted)[wanted.ragged_rank :])
        wrong = np.flatnonzero(((sizes != -1) & (block.shapes != sizes)).any(axis=1))
        if len(wrong):
            shape = tuple(block.shapes[wrong[0]].tolist())
            raise RowError(
                int(wrong[0]), f"holds an array of shape {shape} where {wanted} takes {tuple(sizes.tolist())}"
            )
        return block
    rows: Any = _nested(block, 1)
    inner = rows.values.shape[1:]
    shapes = np.empty((len(rows), 1 + len(inner)), np.int64)
    shapes[:, 0], shapes[:, 1:] = np.diff(rows.row_splits), inner
    values = rows.values
    count = len(values) * int(np.prod(inner, dtype=np.int64))
    flat = values.reshape(-1) if isinstance(values, np.ndarray) else BytesBlock(values.values, values.splits, (count,))
    return ArraysBlock(flat, rows.row_splits * int(np.prod(inner, dtype=np.int64)), shapes)


def _keyed(plan: _ColumnEncoding, blocks: Mapping[str, Any], encoding: ImageEncoding) -> Sequence[KeyedValues]:
    """Return the values of the keys of a feature."""
    name, feature = plan.name, plan.feature
    if isinstance(feature, SparseFeature):
        return disassemble.sparse(name, feature, blocks)
    block, lengths = blocks[name], blocks.get(f"{name}.lengths")
    if isinstance(feature, FixedLenSequenceFeature):
        block = disassemble.padded(feature, block, lengths)
    elif plan.unit == "step":
        disassemble.check_lengths(np.diff(block.row_splits), lengths)
    if isinstance(feature, Encoded) and feature.count is not None and plan.unit == "value":
        # Each array is encoded as one bytes value.
        return disassemble.in_rows(_nested(block, 1), feature.count, lambda values: _values(plan, encoding, values))
    if plan.unit != "value":
        return disassemble.in_steps(block, lambda steps: _values(plan, encoding, steps))
    if isinstance(feature, FixedLenSequenceFeature):
        return [disassemble.flatten_ragged(name, block)]
    return _values(plan, encoding, block)


def _values(plan: _ColumnEncoding, encoding: ImageEncoding, block: Any) -> Sequence[KeyedValues]:
    """Return the values of the keys of rows, of steps, or of single arrays."""
    feature = plan.feature
    if isinstance(feature, ImageFeature):
        block = encode_images(encoding, block)
    if isinstance(feature, RaggedFeature) and feature.values is not None:
        inner = replace(plan, feature=feature.values)
        return disassemble.flatten_partitioned(plan.key, feature, block, lambda rows: _values(inner, encoding, rows))
    return _rows(plan.key, feature, block)


def _rows(name: str, feature: Feature, block: Any) -> Sequence[KeyedValues]:
    """Return the values of the keys of rows, or of steps treated as rows."""
    match feature:
        case RaggedFeature():
            return disassemble.flatten_partitioned(name, feature, block)
        case VarLenFeature():
            return [disassemble.flatten_ragged(name, block)]
        case RawFeature():
            return [disassemble.raw(name, feature, block)]
        case TensorFeature():
            return [disassemble.tensor(name, feature, block)]
    return [disassemble.fixed(name, block)]


def record_schema(columns: Schema, read: Schema | None, given: Schema) -> Schema:
    """Return the features that columns are written as."""
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


def given_features(
    features: Mapping[str, Any] | None,
    sequence_features: Mapping[str, Any] | None,
    example_features: Mapping[str, Any] | None = None,
) -> Schema:
    """Return the schema of the arguments of a user; of Examples without `sequence_features` or `example_features`."""
    for argument, given in (
        ("features", features),
        ("sequence_features", sequence_features),
        ("example_features", example_features),
    ):
        if given is not None and not isinstance(given, Mapping):
            raise SchemaError(
                f"{argument} is a mapping of names to features, or a Schema; got {given!r:.100}{picked(given)}"
            )
    if isinstance(features, Schema):
        if sequence_features is None and example_features is None:
            return features
        features = features.select(features.context_features)
        classes, groups = features.classes, features.groups
    else:
        classes = groups = {}
    return Schema(
        features or {},
        sequence_features=sequence_features,
        example_features=example_features,
        classes=classes,
        groups=groups,
    )


def picked(given: Any) -> str:
    """Return the end of an error: a hint at `columns=` if `given` is a sequence of names."""
    names = isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) for name in given)
    return "; columns= picks features by name when shards are read" if names else ""


def column_forms(features: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Return the features of the columns from which records of these features are written."""
    schema = given_features(features, None)
    forms = dict(Decoder(schema).columns)
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
