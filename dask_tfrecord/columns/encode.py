"""Blocks into records: what features make of columns goes through the native encoder, framed and with both CRCs.

The way back from `decode`: the same schema reads what was written. Encoding is done piece by piece through one buffer
that is used again, so memory is a piece of rows and a block of records.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns import unmaking
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.columns.casting import cast, castable, to_bytes
from dask_tfrecord.columns.image_writing import ImageEncoding, images
from dask_tfrecord.columns.recipes import Parser
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.columns.unmaking import Keyed
from dask_tfrecord.errors import FeatureError, Place, SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["Encoder", "RecordStream", "columns_of"]

# Room for records that are made at once.
_ROOM = 1 << 20
# What the native encoder says of a record that protobuf could not read; its framing included.
_MOST = (1 << 31) - 1


def columns_of(
    name: str, feature: Feature, columns: Container[str], own: Container[str], *, steps: bool
) -> tuple[str, ...] | None:
    """Name the columns that a feature is written from.

    Parameters
    ----------
    name : str
        The feature's.
    feature : Feature
        What is written.
    columns : container of str
        The columns there are.
    own : container of str
        Names of all features: a column of such a name is that feature's.
    steps : bool
        It is a feature list.

    Returns
    -------
    tuple of str or None
        Those that it needs, and those that are there beside them; None where one that it needs is not there.
    """
    needed, beside = [name], []
    if isinstance(feature, SparseFeature):
        needed, beside = [f"{name}.indices", f"{name}.values"], [f"{name}.shape"]
    elif steps or isinstance(feature, FixedLenSequenceFeature):
        beside = [f"{name}.lengths"]
    if not all(column in columns for column in needed):
        return None
    return (*needed, *(column for column in beside if column in columns and column not in own))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one feature is written from.

    Attributes
    ----------
    name : str
        Its name.
    feature : Feature
        What it is.
    columns : mapping of str to Feature
        The columns that it is written from, in the form that reading gives them.
    steps : bool
        It is a feature list.
    """

    name: str
    feature: Feature
    columns: Mapping[str, Feature]
    steps: bool


class Encoder:
    """Makes records of columns.

    Parameters
    ----------
    schema : Schema
        What records are to hold.
    columns : Schema
        The columns as they come.
    encoding : mapping of str to ImageEncoding, optional
        How images are written; PNG where it does not say.

    Raises
    ------
    SchemaError
        If a column is of no feature, or of a dtype or shape that its feature has not.
    """

    def __init__(self, schema: Schema, columns: Schema, encoding: Mapping[str, ImageEncoding] | None = None) -> None:
        self.schema, self.columns = schema, columns
        self.encoding = dict(encoding or {})
        promised = Parser(schema).columns
        self._plans = [_plan(name, feature, schema, columns, promised) for name, feature in schema.items()]
        used = {column for plan in self._plans for column in plan.columns}
        if left := [name for name in columns if name not in used]:
            raise SchemaError(f"column {left[0]!r} is of no feature: say what it is, or leave it out")
        if other := [name for name in self.encoding if not isinstance(schema.get(name), ImageFeature)]:
            raise SchemaError(f"encoding of {other[0]!r}: it is no ImageFeature, which alone has an encoding")

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self.schema, self.columns, self.encoding)

    def keyed(self, blocks: Mapping[str, Block], place: Place) -> list[Keyed]:
        """Find what each key holds.

        Parameters
        ----------
        blocks : mapping of str to Block
            The columns, as many rows each.
        place : Place
            Of the first of them.

        Raises
        ------
        FeatureError
            If a value does not fit its feature.
        SchemaError
            If two features share a key and differ in its values.
        """
        found: dict[tuple[str, bool], tuple[Keyed, str]] = {}
        for plan in self._plans:
            try:
                formed = {name: _formed(wanted, blocks[name]) for name, wanted in plan.columns.items()}
                made = _keyed(plan, formed, self.encoding.get(plan.name, ImageEncoding()))
            except RowError as error:
                record = (place.record or 0) + error.row
                raise FeatureError(
                    f"feature {plan.name!r} {error.message}", Place(place.file, record, feature=plan.name)
                ) from None
            for keyed in made:
                other, name = found.setdefault((keyed.key, keyed.steps), (keyed, plan.name))
                if other is not keyed and not other.same(keyed):
                    raise SchemaError(
                        f"features {name!r} and {plan.name!r} share the key {keyed.key!r}, and their columns hold "
                        f"different values for it",
                        place,
                    )
        return [keyed for keyed, _ in found.values()]


class RecordStream:
    """The records of one shard, made of blocks that follow each other.

    Parameters
    ----------
    encoder : Encoder
        What makes them.
    file : str
        The shard, for errors.
    """

    def __init__(self, encoder: Encoder, file: str) -> None:
        self.encoder, self.file = encoder, file
        self.records = 0
        self._buffer: NDArray[np.uint8] = np.empty(_ROOM, np.uint8)

    def framed(self, blocks: Mapping[str, Block]) -> Iterator[memoryview]:
        """Make the records of some rows.

        Parameters
        ----------
        blocks : mapping of str to Block
            The columns of the next rows.

        Yields
        ------
        memoryview
            Whole records, framed; good until the next one.

        Raises
        ------
        FeatureError
            If a value does not fit its feature, or a record would be larger than protobuf takes.
        """
        rows = len(next(iter(blocks.values())))
        fields = [keyed.field() for keyed in self.encoder.keyed(blocks, Place(self.file, self.records))]
        native = _native.Encoder(fields, rows, self.encoder.schema.message == "SequenceExample")
        row = 0
        while row < rows:
            records, nbytes, need = native.encode(row, self._buffer)
            if records:
                yield self._buffer.data[:nbytes]
            elif need > _MOST:
                raise FeatureError(
                    f"the record would take {need:,} bytes where protobuf takes {_MOST:,} at the most: write it as "
                    f"several",
                    Place(self.file, self.records),
                )
            else:
                self._buffer = np.empty(max(need, 2 * len(self._buffer)), np.uint8)
            row += records
            self.records += records


def _plan(name: str, feature: Feature, schema: Schema, columns: Schema, promised: Schema) -> _Plan:
    steps = name in (schema.sequence_features or {})
    names = columns_of(name, feature, columns, schema, steps=steps)
    if names is None:
        raise SchemaError(f"feature {name!r}: there is no column that {feature} is written from")
    lengths = FixedLenFeature((), "int64")
    wanted = {column: promised.get(column, lengths) for column in names}
    for column, form in wanted.items():
        _check(column, columns[column], form)
    return _Plan(name, feature, wanted, steps)


def _check(column: str, given: Feature, wanted: Feature) -> None:
    """Refuse a column that no value of could be written."""
    dtypes = given.item_dtype, wanted.item_dtype
    text = [dtype.kind == "T" for dtype in dtypes]
    fits = text[0] or given.is_bytes if wanted.is_bytes else text[0] == text[1] and (text[0] or castable(*dtypes))
    if not fits:
        hint = ""
        if castable(dtypes[1], dtypes[0]):
            hint = f": a RawFeature or TensorFeature of {dtypes[0]} keeps what it holds"
        raise SchemaError(f"column {column!r} is of {_dtype(dtypes[0])}, which {wanted} does not hold{hint}")
    has, takes = _sizes(given), _sizes(wanted)
    # An array of its own shape is known only when it is there.
    free = given.own_shapes > 0 and wanted.own_shapes > 0
    if len(has) != len(takes) or not all(
        size == -1 or size == is_ or (free and is_ == -1) for is_, size in zip(has, takes, strict=True)
    ):
        raise SchemaError(f"column {column!r} has rows of shape {has} where {wanted} takes {takes}")
    if (given.own_shapes and not wanted.own_shapes) or (given.ragged_rank > 1 and wanted.own_shapes):
        raise SchemaError(f"column {column!r} has rows that are arrays of any shape, which {wanted} does not hold")


def _dtype(dtype: np.dtype[Any]) -> str:
    return {"O": "bytes", "T": "text"}.get(dtype.kind, dtype.name)


def _sizes(feature: Feature) -> tuple[int, ...]:
    """Shape of a row; -1 where rows differ."""
    if isinstance(feature, FixedLenSequenceFeature):
        return (-1, *feature.shape)
    if feature.own_shapes:
        return tuple(feature.shape or (-1,) * feature.own_shapes)
    return (*(-1,) * feature.ragged_rank, *feature.item_shape)


def _formed(wanted: Feature, block: Block) -> Block:
    """Give a block the form and the dtype that reading gives it."""
    if wanted.own_shapes:
        block = _arrays(block, wanted)
    elif not isinstance(wanted, FixedLenSequenceFeature):
        block = _nested(block, wanted.ragged_rank)
    return to_bytes(block) if wanted.is_bytes or isinstance(wanted, TextFeature) else cast(block, wanted.item_dtype)


def _nested(block: Any, levels: int) -> Any:
    """Rows of that many levels; where all have one length, the splits of that."""
    if not levels:
        return block
    if isinstance(block, RaggedBlock):
        return RaggedBlock(_nested(block.values, levels - 1), block.row_splits)
    rows, length, *inner = block.shape
    shape = (rows * length, *inner)
    values = block.reshape(shape) if isinstance(block, np.ndarray) else BytesBlock(block.values, block.splits, shape)
    return RaggedBlock(_nested(values, levels - 1), np.arange(rows + 1, dtype=np.int64) * length)


def _arrays(block: Block, wanted: Feature) -> ArraysBlock:
    """Rows that are arrays of shapes of their own."""
    if isinstance(block, ArraysBlock):
        sizes = np.array(_sizes(wanted))
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


def _keyed(plan: _Plan, blocks: Mapping[str, Any], encoding: ImageEncoding) -> Sequence[Keyed]:
    """Find what a feature leaves under its keys."""
    name, feature = plan.name, plan.feature
    if isinstance(feature, SparseFeature):
        return unmaking.sparse(name, feature, blocks)
    block, lengths = blocks[name], blocks.get(f"{name}.lengths")
    if isinstance(feature, FixedLenSequenceFeature):
        block = unmaking.padded(feature, block, lengths)
    elif plan.steps:
        unmaking.check_lengths(np.diff(block.row_splits), lengths)
    if isinstance(feature, ImageFeature):
        block = images(encoding, block)
    if plan.steps:
        return unmaking.in_steps(block, lambda steps: _rows(name, feature, steps))
    if isinstance(feature, FixedLenSequenceFeature) or (isinstance(feature, ImageFeature) and feature.ragged_rank):
        return [unmaking.ragged(name, block)]
    return _rows(name, feature, block)


def _rows(name: str, feature: Feature, block: Any) -> Sequence[Keyed]:
    """Find what rows leave, or steps as if they were rows."""
    match feature:
        case RaggedFeature():
            return unmaking.partitioned(name, feature, block)
        case VarLenFeature():
            return [unmaking.ragged(name, block)]
        case RawFeature():
            return [unmaking.raw(name, feature, block)]
        case TensorFeature():
            return [unmaking.tensor(name, feature, block)]
    return [unmaking.fixed(name, block)]
