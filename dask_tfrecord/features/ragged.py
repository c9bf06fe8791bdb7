"""Values in nested rows of variable length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, RaggedBlock, RowError, first_true, row_of_value, splits_of
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.base import Feature, of_this_library
from dask_tfrecord.features.dtypes import checked_mixed, checked_parsed_dtype, numpy_dtype, values_dtype
from dask_tfrecord.features.encoded import Encoded
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, in_rows
from dask_tfrecord.features.keys import Decoded, KeyOutput, KeySpec, Scope, number_content, ragged_key
from dask_tfrecord.features.listed import Listed
from dask_tfrecord.features.row_partitions import (
    PARTITIONS,
    KeyedPartition,
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from dask_tfrecord.features.tfds_entries import Entry, sequence_entry, values_entry


def _check_values(values: Any, dtype: str) -> None:
    """Check the feature of the values of a `RaggedFeature`."""
    if not isinstance(values, Encoded):
        raise SchemaError(
            f"RaggedFeature: values must be a RawFeature, TensorFeature, ImageFeature or TextFeature; got {values!r}"
        )
    if dtype != "bytes":
        raise SchemaError(f"RaggedFeature: values are decoded from bytes: expected dtype 'bytes'; got {dtype!r}")
    if values.count is not None or -1 in values.value_shape or values.ragged_rank or values.own_shapes:
        raise SchemaError(f"RaggedFeature: values have one known shape; got {values!r}")
    if getattr(values, "default_value", None) is not None:
        raise SchemaError(f"RaggedFeature: rows may be empty, so values need no default_value; got {values!r}")


@dataclass(frozen=True, slots=True, repr=False)
class RaggedFeature(Listed):
    """Read nested rows of variable length, like `tf.io.RaggedFeature`.

    Parameters
    ----------
    dtype : str or dtype
        As for `FixedLenFeature`.
    value_key : str, optional
        Key of the values, by default the name of the feature.
    partitions : sequence of partition, default ()
        Partitions of the values of a record into rows, the outermost rows first: `RowLengths`, `RowSplits`,
        `ValueRowIds`, `RowLimits`, `RowStarts` or `UniformRowLength`. A partition that does not match the values is an
        error.
    row_splits_dtype, validate
        Accepted for compatibility with TensorFlow, but without effect: row splits are int64 and always checked.
    values : RawFeature, TensorFeature, ImageFeature or TextFeature, optional
        Feature with a known shape that decodes each bytes value to an array or text. The dtype is then ``"bytes"``. Not
        for sequence features.
    mixed : bool, default False
        As for `FixedLenFeature`.

    Examples
    --------
    >>> RaggedFeature("int64", value_key="vals", partitions=[RaggedFeature.RowLengths("lens")])
    RaggedFeature('int64', value_key='vals', partitions=(RowLengths('lens'),))
    >>> from dask_tfrecord import RawFeature
    >>> RaggedFeature("bytes", partitions=[RaggedFeature.RowLengths("lens")], values=RawFeature((3,), "float32")).shape
    (-1, -1, 3)
    """

    # Attributes as in `tf.io`, so that its feature specifications can be pasted.
    RowLengths: ClassVar = RowLengths
    RowLimits: ClassVar = RowLimits
    RowSplits: ClassVar = RowSplits
    RowStarts: ClassVar = RowStarts
    UniformRowLength: ClassVar = UniformRowLength
    ValueRowIds: ClassVar = ValueRowIds
    dtype: str
    value_key: str | None = None
    partitions: tuple[Partition, ...] = ()
    row_splits_dtype: str = field(default="int32", repr=False, compare=False)
    validate: bool = field(default=False, repr=False, compare=False)
    values: Encoded | None = field(default=None, kw_only=True)
    mixed: bool = field(default=False, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            dtype: Any,
            value_key: str | None = None,
            partitions: Sequence[Partition] = (),
            row_splits_dtype: Any = "int32",
            validate: bool = False,
            *,
            values: Encoded | None = None,
            mixed: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = checked_parsed_dtype(self.dtype, "RaggedFeature")
        expected = "a partition, for example RowLengths(key)"
        partitions = tuple(
            of_this_library(each, Partition, PARTITIONS, "RaggedFeature", expected) for each in self.partitions
        )
        splits = numpy_dtype(self.row_splits_dtype, "RaggedFeature: row_splits_dtype").name
        if splits not in ("int32", "int64"):
            raise SchemaError(f"RaggedFeature: expected row_splits_dtype int32 or int64; got {self.row_splits_dtype!r}")
        if self.values is not None:
            _check_values(self.values, dtype)
        mixed = checked_mixed(self.mixed, dtype, "RaggedFeature")
        self._set(
            dtype=dtype, partitions=partitions, row_splits_dtype=splits, validate=bool(self.validate), mixed=mixed
        )

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Return nested sequences; None if the keys are not those that TFDS uses."""
        levels = self.ragged_rank - 1
        keys = [RowLengths(f"{name}/ragged_row_lengths_{level}") for level in range(levels)]
        if list(self.partitions[:levels]) != keys or self.value_key != f"{name}/ragged_flat_values" or not levels:
            return None
        nested = values_entry(self.dtype, self.item_shape, labels)
        if self.values is not None:
            nested = None if self.uniform_sizes else self.values.tfds_entry(name, labels, format)
        for _ in range(levels + 1):
            nested = sequence_entry(nested)
        return nested

    @property
    def refuses_values(self) -> bool:
        """Values of several keys may contradict each other."""
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """-1 for each level of rows, then the sizes of the innermost uniform partitions."""
        inner = self.item_shape
        return (*(-1,) * self.ragged_rank, *inner)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """A block's dtype: the decoded arrays', or object for bytes."""
        return values_dtype(self.dtype) if self.values is None else self.values.item_dtype

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Sizes of the innermost uniform partitions, then the shape of decoded arrays."""
        return (*self.uniform_sizes, *(() if self.values is None else self.values.value_shape))

    @property
    def uniform_sizes(self) -> tuple[int, ...]:
        """Sizes of the innermost uniform partitions."""
        sizes: list[int] = []
        for partition in reversed(self.partitions):
            if not isinstance(partition, UniformRowLength):
                break
            sizes.insert(0, partition.length)
        return tuple(sizes)

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of variable length."""
        return 1 + len(self.partitions) - len(self.uniform_sizes)

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of the values, then the specs of the keyed partitions."""
        if scope != "value" and self.values is not None:
            return None
        entries = [partition.key for partition in self.partitions if isinstance(partition, KeyedPartition)]
        values = ragged_key(key, self.key_dtype, scope=scope, content=number_content(self.mixed))
        if self.values is not None:
            # Each is a value of its own.
            (one,) = self.values.with_count(-1).keys(values.key, "value") or ()
            values = replace(values, content=one.content)
        return (values, *(ragged_key(each, "int64", scope=scope) for each in entries))

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys of the partitions, also of arrays, which are decoded to check them."""
        return keys[1:] if self.values is None else keys

    def assemble(self, decoded: Decoded) -> Block:
        """Return nested rows of values."""
        values, *keyed = decoded.keys
        groups = _Groups(values)
        partitions = list(self.partitions)
        counts = np.diff(groups.splits)
        inner = self.uniform_sizes
        if inner:
            counts = groups.divided(counts, math.prod(inner), self)
            del partitions[-len(inner) :]
        if self.values is None:
            block = values.flat(self.item_dtype, inner)
        else:
            # Each bytes value is an array; the innermost uniform partitions group them.
            rows: Any = self.values.assemble(decoded._replace(keys=[values], out=None, values=True))
            block = rows.values.reshape((len(rows.values) // math.prod(inner), *inner, *rows.values.shape[1:]))
        for partition in reversed(partitions):
            if isinstance(partition, UniformRowLength):
                counts = groups.divided(counts, partition.length, self)
                lengths = np.full(int(counts.sum()), partition.length, np.int64)
            else:
                assert isinstance(partition, KeyedPartition)
                lengths, counts = groups.cut(partition, keyed.pop(), counts)
            block = RaggedBlock(block, splits_of(lengths))
        block = RaggedBlock(block, splits_of(counts))
        return block if values.step_splits is None else RaggedBlock(block, values.record_splits)

    def item(self) -> Feature | None:
        """Return the feature of the rows within rows."""
        if self.values is None:
            return Listed.item(self)
        levels, sizes = self.ragged_rank - 1, tuple(map(UniformRowLength, self.uniform_sizes))
        if levels or sizes:
            # One level of rows less; the keys are not read from records.
            outer = tuple(RowLengths(f"{level}") for level in range(levels - 1))
            return RaggedFeature("bytes", partitions=(*outer, *sizes), values=self.values)
        return self.values

    def reason_not_written(self) -> str | None:
        """Return the reason of the values."""
        return None if self.values is None else self.values.reason_not_written()

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return nested rows as their values and the entries of each partition."""
        # `ends`: offsets between groups (records, or steps), in items of the current level.
        result: list[KeyedValues] = []
        ends: _Ints = block.row_splits
        inside: Any = block.values
        for partition in self.partitions[: self.ragged_rank - 1]:
            splits = inside.row_splits
            if isinstance(partition, KeyedPartition):
                entries, offsets = _partition_entries(partition, splits, ends)
                result.append(KeyedValues(partition.key, entries, row_splits=np.ascontiguousarray(offsets)))
            elif (number := first_true(np.diff(splits) != partition.length)) is not None:  # type: ignore[attr-defined]
                size = splits[number + 1] - splits[number]
                raise RowError(
                    row_of_value(ends, number)[0], f"holds a row of {size} items, which {partition!r} cannot represent"
                )
            ends, inside = splits[ends], inside.values
        ends = np.ascontiguousarray(ends)
        if self.values is None:
            return [in_rows(key, RaggedBlock(inside, ends)), *result]
        # Axes of uniform partitions are merged with the axis of the rows.
        axes = len(self.uniform_sizes)
        values = inside.reshape((math.prod(inside.shape[: axes + 1]), *inside.shape[axes + 1 :]))
        rows = RaggedBlock(values, ends * math.prod(self.uniform_sizes))
        return [*self.values.encode_rows(key, rows, encoding), *result]


_Ints = NDArray[np.int64]
# ValueRowIds may skip rows, and an 8-byte id may skip more rows than fit into memory.
MAX_ROWS = 1 << 24


class _Groups:
    """All records, or all of their steps."""

    def __init__(self, values: KeyOutput) -> None:
        self.steps = values.step_splits is not None
        self.row_splits = values.record_splits
        self.splits = self.row_splits if values.step_splits is None else values.step_splits

    def refuse(self, bad: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Raise an error of the first invalid group, with the text that `describe` returns for it."""
        if (group := first_true(bad)) is not None:
            row, step = row_of_value(self.row_splits, group) if self.steps else (group, None)
            raise RowError(row, describe(group), step)

    def divided(self, counts: _Ints, length: int, feature: RaggedFeature) -> _Ints:
        """Return the number of rows per group, for rows of one length."""
        self.refuse(
            counts % length != 0,
            lambda group: (
                f"holds {plural(counts[group], 'value')}, not a multiple of {length}, the row length of {feature}"
            ),
        )
        return counts // length

    def cut(self, partition: KeyedPartition, output: KeyOutput, counts: _Ints) -> tuple[_Ints, _Ints]:
        """Return the lengths of all rows, and the number of rows per group."""
        splits = output.record_splits if output.step_splits is None else output.step_splits
        if self.steps:
            row = first_true(np.diff(output.record_splits) != np.diff(self.row_splits))
            if row is not None:
                raise RowError(row, f"has another number of steps in {partition.key!r} than in its values")
        entries: Any = output.values
        entries = entries.view(np.int64)

        def misfit(group: int) -> str:
            found = entries[splits[group] : splits[group + 1]].tolist()
            if not found:
                cut = f"its {counts[group]:,} values or rows"
                return f"has no values in {partition.key!r}; {partition!r} must split {cut}"
            shown = f"{found[:10]!r:.100}" + (" and more" if len(found) > 10 else "")
            return f"holds {shown} as {partition!r}, which do not split its {counts[group]:,} values or rows"

        # The bound prevents overflow of sums.
        most = MAX_ROWS if isinstance(partition, ValueRowIds) else int(counts.max(initial=0))
        self.refuse(_any(splits, (entries < 0) | (entries > most)), misfit)
        lengths, rows, fits = _cut_groups(partition, entries, splits, counts)
        self.refuse(~fits, misfit)
        self.refuse(_any(splits_of(rows), lengths < 0), misfit)
        totals = splits_of(lengths)[splits_of(rows)]
        self.refuse(np.diff(totals) != counts, misfit)
        return lengths, rows


def _any(splits: _Ints, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each group whether one of its entries is bad."""
    return np.diff(splits_of(bad)[splits]) > 0


def _cut_groups(
    partition: KeyedPartition, entries: _Ints, splits: _Ints, counts: _Ints
) -> tuple[_Ints, _Ints, NDArray[np.bool_]]:
    """Find all row lengths, how many rows each group has, and whether its entries fit.

    `splits` are the offsets between groups of entries, `counts` the values of each group.
    """
    rows = np.diff(splits)
    some = rows > 0
    firsts, lasts = splits[:-1][some], splits[1:][some] - 1
    fits = np.ones(len(counts), bool)
    lengths = entries
    if isinstance(partition, RowSplits | RowStarts):
        fits[some] = entries[firsts] == 0
    match partition:
        case RowSplits():
            # Each entry of a group but the first one ends a row; a group without entries contains no rows.
            lengths, rows = np.delete(np.diff(entries, prepend=0), firsts), rows - some
        case RowLimits():
            lengths = np.diff(entries, prepend=0)
            lengths[firsts] = entries[firsts]
        case RowStarts():
            lengths = np.diff(entries, append=0)
            lengths[lasts] = counts[some] - entries[lasts]
        case ValueRowIds():
            # Each entry is the row of a value; skipped rows are empty.
            ascending = np.diff(entries, prepend=0)
            ascending[firsts] = 0
            fits = (rows == counts) & ~_any(splits, ascending < 0)
            entries_of, rows = rows, np.zeros(len(counts), np.int64)
            rows[some] = entries[lasts] + 1
            if not fits.all() or rows.sum() > MAX_ROWS + len(entries):
                fits &= rows <= MAX_ROWS // max(len(rows), 1)
                return np.zeros(0, np.int64), np.zeros(len(counts), np.int64), fits
            first = np.repeat(splits_of(rows)[:-1], entries_of)
            lengths = np.bincount(first + entries, minlength=int(rows.sum()))
    return lengths, rows, fits


def _partition_entries(partition: KeyedPartition, splits: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
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
        case _:
            # RowLengths
            return lengths, ends
