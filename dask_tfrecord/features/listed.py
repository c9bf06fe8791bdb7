"""Features of values that an Example lists: a fixed number of them, any number, or steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord._native import ValueLayout
from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    broadcast_zeros,
    first_true,
    splits_of,
    take_rows,
)
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import (
    Shape,
    checked_default,
    checked_mixed,
    checked_parsed_dtype,
    checked_shape,
    default_array,
    stored_kind,
    values_dtype,
)
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, check_lengths
from dask_tfrecord.features.keys import Decoded, KeyOutput, KeySpec, Scope, number_content, ragged_key, values_in_rows
from dask_tfrecord.features.size_keys import check_size_keys, keyed_sizes, shapes_of_keys, size_specs, sizes_and_keys
from dask_tfrecord.features.tensor import TensorFeature
from dask_tfrecord.features.tfds_entries import Entry, tensor_entry, values_entry


class Listed(Feature):
    """Feature whose values an Example lists."""

    __slots__ = ()
    mixed: bool = False

    @property
    def stored(self) -> str:
        """Kind of the stored list: "int64", "float32" or "bytes"."""
        return stored_kind(self.dtype)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""
        return values_dtype(self.dtype)

    @property
    def refuses_values(self) -> bool:
        """Values may not fit the dtype that they are cast to."""
        return bool(self.dtype != self.stored)

    def _is_equal(self, other: object) -> Any:
        """Compare the fields as tuples, in which NaN, a single object here, equals itself.

        Since Python 3.13 dataclasses compare field by field, and NaN differs from itself.
        """
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return tuple(getattr(self, name) for name in names) == tuple(getattr(other, name) for name in names)

    @property
    def key_dtype(self) -> str:
        """The dtype of a key's values: times are views of integers."""
        return "int64" if self.item_dtype.kind in "mM" else self.dtype

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return no key: the numbers of values are enough."""
        return ()

    def column(self, scope: Scope) -> Feature:
        """Return the feature itself if it describes a record, else rows of its rows."""
        if scope == "value":
            return self
        return VarLenFeature(self.dtype, shape=(-1, *self.shape), mixed=self.mixed)

    def item(self) -> Feature | None:
        """Return the feature of one row less."""
        if self.ragged_rank > 1:
            return VarLenFeature(self.dtype, shape=self.shape[1:], mixed=self.mixed)
        return FixedLenFeature(self.item_shape, self.dtype, mixed=self.mixed) if self.ragged_rank else None


@dataclass(frozen=True, slots=True, repr=False)
class FixedLenFeature(Listed):
    """Read a feature with the same number of values in every record, like `tf.io.FixedLenFeature`.

    A record with a different number of values is an error, and so is a record without values, unless there is a
    default.

    Parameters
    ----------
    shape : tuple of int
        Shape of one record's values; ``()`` for a scalar.
    dtype : str or dtype
        ``"int64"``, ``"float32"`` or ``"bytes"`` (``"string"``, `bytes` and `object` mean the same). Values are cast to
        any other integer or float dtype, or to ``"bool"``: an integer that does not fit, or a float that overflows, is
        an error that names the record; floats are rounded.
    default_value : scalar or array-like, optional
        Values for a record that lacks the feature, or whose list is empty or unset: one value for all elements, or one
        for each element of the shape.
    mixed : bool, default False
        Accept both integers and floats, record by record; the dtype is ``"float64"`` or ``"float32"``. An integer that
        the dtype can't represent exactly is an error that names the record. Written records contain floats.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> FixedLenFeature((), "int64", default_value=-1)
    FixedLenFeature((), 'int64', default_value=-1)
    """

    has_decoded_values = True
    shape: tuple[int, ...]
    # Required. It has a default so that the check of the shape comes first, and reports a shape that was left out.
    dtype: str = field(default_factory=str)
    default_value: Any = None
    mixed: bool = field(default=False, kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape,
            dtype: Any,
            default_value: Any = None,
            *,
            mixed: bool = False,
            value_key: str | None = None,
        ) -> None: ...

    __eq__ = Listed._is_equal

    def __post_init__(self) -> None:
        given: Any = self.shape
        if isinstance(given, tuple | list) and any(isinstance(size, str) and not size.isdigit() for size in given):
            raise SchemaError(
                f"FixedLenFeature: the number of values is fixed, and sizes in keys differ between records; got shape "
                f"{given}: write VarLenFeature({self.dtype!r}, shape={given})"
            )
        shape = checked_shape(self.shape, "FixedLenFeature")
        if isinstance(self.dtype, str) and not self.dtype:
            raise SchemaError(f"FixedLenFeature needs a dtype, as in FixedLenFeature({shape}, 'int64')")
        dtype = checked_parsed_dtype(self.dtype, "FixedLenFeature")
        default = checked_default(self.default_value, dtype, shape, "FixedLenFeature")
        mixed = checked_mixed(self.mixed, dtype, "FixedLenFeature")
        self._set(shape=shape, dtype=dtype, default_value=default, mixed=mixed)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.shape

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of a fixed number of values."""
        if scope == "step" or (scope == "item" and 0 in self.shape):
            return None
        count, steps = math.prod(self.shape), scope == "item"
        spec = KeySpec(key, self.key_dtype, ValueLayout.FIXED, count, steps=steps, content=number_content(self.mixed))
        if self.default_value is None:
            return (spec,)
        values = default_array(self.default_value, self.item_dtype, self.shape)
        default_value = tuple(values.ravel().tolist()) if self.is_bytes else (values.tobytes(),)
        return (replace(spec, optional=True, default_value=default_value),)

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Return the entry of values of a known shape."""
        return values_entry(self.dtype, self.shape, labels)

    def assemble(self, decoded: Decoded) -> Block:
        """Make rows, or items, with a fixed number of values."""
        output = decoded.keys[0]
        if output.row_splits is not None:
            return values_in_rows(output, self.item_dtype, self.shape)
        if self.is_bytes:
            return output.encoded().reshape((decoded.rows, *self.shape))
        return decoded.into(output.flat(self.item_dtype, self.shape))

    def suggestion(self, count: int) -> str:
        """Suggest what reads a different number of values."""
        if not count and not self.shape:
            return "; a default_value fills it"
        return f"; VarLenFeature({self.dtype!r}) reads any number of them"


@dataclass(frozen=True, slots=True, repr=False)
class VarLenFeature(Listed):
    """Read a feature with any number of values per record, including zero, like `tf.io.VarLenFeature`.

    Parameters
    ----------
    dtype : str or dtype
        As for `FixedLenFeature`.
    shape : tuple of int, default (-1,)
        Shape of one record's array: ``(-1, 4)`` groups the values by four (boxes), and a number of values that is not a
        multiple of four is an error. In the schema of a data set, several -1 at the start are nested levels of rows. If
        a key of the record contains the size, as one int64, give its name: ``("height", "width", 3)``; each row is then
        an array with its own shape. `to_tfrecord` writes these keys, too.
    mixed : bool, default False
        As for `FixedLenFeature`.
    size_keys : tuple of str, optional
        Keys of the sizes that are -1, as an alternative to names in `shape`. If several sizes are open, one key may
        list all sizes of the array, as for `RawFeature`.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> VarLenFeature("float32", shape=(-1, 4))
    VarLenFeature('float32', shape=(-1, 4))
    """

    has_decoded_values = True
    dtype: str
    shape: tuple[int, ...] = field(default=(-1,), kw_only=True)
    mixed: bool = field(default=False, kw_only=True)
    size_keys: tuple[str, ...] = field(default=(), kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            dtype: Any,
            *,
            shape: int | Sequence[int | str | None] = (-1,),
            mixed: bool = False,
            size_keys: Sequence[str] = (),
            value_key: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = checked_parsed_dtype(self.dtype, "VarLenFeature")
        given, size_keys = sizes_and_keys(self.shape, self.size_keys, "VarLenFeature")
        shape = checked_shape(given, "VarLenFeature", open_sizes=100)
        if size_keys:
            check_size_keys(size_keys, shape, "VarLenFeature")
        elif shape[:1] != (-1,):
            raise SchemaError(f"VarLenFeature: expected a shape that starts with -1, as in (-1, 4); got {shape}")
        mixed = checked_mixed(self.mixed, dtype, "VarLenFeature")
        self._set(dtype=dtype, shape=shape, mixed=mixed, size_keys=size_keys)
        if self.own_shapes and values_dtype(dtype).kind in "mM":
            raise SchemaError(f"VarLenFeature: arrays of times may have only one open size, the first; got {shape}")
        if -1 in self.item_shape or 0 in self.item_shape:
            raise SchemaError(f"VarLenFeature: expected known, positive sizes after the leading -1; got {shape}")

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Return the entry of any number of values."""
        is_listed = self.ragged_rank == 1 and not self.size_keys
        return values_entry(self.dtype, self.shape, labels) if is_listed else None

    @property
    def ragged_rank(self) -> int:
        """Levels of rows: the number of leading -1 in the shape."""
        if self.own_shapes:
            return 0
        return next((axis for axis, size in enumerate(self.shape) if size != -1), len(self.shape))

    @property
    def own_shapes(self) -> int:
        """Number of axes if sizes are in keys, unless the number of values determines them."""
        return len(self.shape) if self.size_keys and (self.shape[0] != -1 or -1 in self.shape[1:]) else 0

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return () if self.own_shapes else self.shape[self.ragged_rank :]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row, with -1 for sizes that differ between rows."""
        return self.shape

    @property
    def refuses_values(self) -> bool:
        """Values may contradict their sizes, or not fit the dtype that they are cast to."""
        return bool(self.size_keys) or bool(self.dtype != self.stored)

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Specify any number of values, then the keys with their sizes."""
        if self.ragged_rank > 1 or (self.size_keys and scope != "value"):
            return None
        each, content = math.prod(self.item_shape), number_content(self.mixed)
        values = ragged_key(key, self.key_dtype, each, scope=scope, content=content)
        return (values, *(size_specs(self) if self.size_keys else ()))

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys of sizes; the numbers of values are enough without."""
        return keys[1:]

    def item(self) -> Feature | None:
        """Return the feature with one row level less, or the one for an array's rows."""
        if self.own_shapes:
            return TensorFeature(self.shape[1:], self.item_dtype) if self.shape[0] < 0 else None
        return Listed.item(self)

    def assemble(self, decoded: Decoded) -> Block:
        """Make rows of values, rows of steps, or arrays whose shapes differ."""
        output = decoded.keys[0]
        block = values_in_rows(output, self.item_dtype, self.item_shape, math.prod(self.item_shape))
        if not self.size_keys:
            return block
        shapes = shapes_of_keys(self, decoded.keys[1:], np.diff(output.record_splits), 1, "value")
        values: Any = block.values
        return ArraysBlock(values, block.row_splits, shapes) if self.own_shapes else block

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return the values, and the sizes of arrays that are in keys of their own."""
        rows = RaggedBlock(block.values, block.row_splits) if isinstance(block, ArraysBlock) else block
        values = Listed.encode_block(self, key, rows, encoding)
        return [*values, *keyed_sizes(self, block)] if self.size_keys else values


@dataclass(frozen=True, slots=True, repr=False)
class FixedLenSequenceFeature(Listed):
    """Read steps of values, padded to the longest record, like `tf.io.FixedLenSequenceFeature`.

    In an Example, the values of a record are split into steps. In the feature lists of a SequenceExample, each step is
    a Feature of its own.

    Parameters
    ----------
    shape : tuple of int
        Shape of one step.
    dtype : str or dtype
        As for `FixedLenFeature`.
    allow_missing : bool, default False
        Accept a record without the feature, as a record with zero steps. Must be True for features of an Example.
    default_value : scalar, optional
        Value that pads shorter records; 0 or ``b""`` by default.
    length : int, optional
        Number of steps to pad to; by default the longest record's, which is counted when the data set is opened.
        A record with more steps is an error.
    mixed : bool, default False
        As for `FixedLenFeature`.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> FixedLenSequenceFeature((4,), "float32", allow_missing=True, length=10).block_shape
    (10, 4)
    """

    shape: tuple[int, ...]
    dtype: str
    allow_missing: bool = False
    default_value: Any = None
    length: int | None = field(default=None, kw_only=True)
    mixed: bool = field(default=False, kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(
            self,
            shape: Shape,
            dtype: Any,
            allow_missing: bool = False,
            default_value: Any = None,
            *,
            length: int | None = None,
            mixed: bool = False,
            value_key: str | None = None,
        ) -> None: ...

    __eq__ = Listed._is_equal

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "FixedLenSequenceFeature")
        dtype = checked_parsed_dtype(self.dtype, "FixedLenSequenceFeature")
        default = checked_default(self.default_value, dtype, (), "FixedLenSequenceFeature")
        if 0 in shape:
            raise SchemaError(f"FixedLenSequenceFeature: steps without values can't be counted; got shape {shape}")
        if self.length is not None and (isinstance(self.length, bool) or self.length < 0):
            raise SchemaError(
                f"FixedLenSequenceFeature: expected a non-negative number of steps as length; got {self.length!r}"
            )
        length = None if self.length is None else int(self.length)
        allow_missing = bool(self.allow_missing)
        mixed = checked_mixed(self.mixed, dtype, "FixedLenSequenceFeature")
        self._set(
            shape=shape, dtype=dtype, default_value=default, length=length, allow_missing=allow_missing, mixed=mixed
        )

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Return the entry of any number of steps."""
        return tensor_entry(self.dtype, (-1, *self.shape))

    @property
    def item_shape(self) -> tuple[int, ...]:
        """A record's shape: how many steps, then a step's shape."""
        if self.length is None:
            raise SchemaError(f"the length of {self} is unknown until a data set is opened; set length=")
        return (self.length, *self.shape)

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Specify the values in all steps, or a fixed number in each."""
        each, content = math.prod(self.shape), number_content(self.mixed)
        if scope == "step":
            optional = self.allow_missing
            return (
                KeySpec(key, self.key_dtype, ValueLayout.FIXED, each, content=content, steps=True, optional=optional),
            )
        is_listed = scope == "value" and self.allow_missing
        return (ragged_key(key, self.key_dtype, each, content=content),) if is_listed else None

    def unsupported(self, scope: Scope) -> str:
        """End an error with the feature to use instead."""
        if scope == "value":
            return "needs allow_missing=True, as in TensorFlow, because an Example lists values without steps"
        hint = "; VarLenFeature(dtype, shape=(-1, …)) reads lists of any length" if scope == "item" else ""
        return Feature.unsupported(self, scope) + hint

    def column(self, scope: Scope) -> Feature:
        """Return the feature itself: its rows are padded steps."""
        return self

    def unpadded(self) -> Feature:
        """Return the feature of rows of steps."""
        return VarLenFeature(self.dtype, shape=(-1, *self.shape), mixed=self.mixed)

    def item(self) -> Feature | None:
        """Return the feature of a step."""
        return FixedLenFeature(self.shape, self.dtype, mixed=self.mixed)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row, with -1 for the number of steps."""
        return (-1, *self.shape)

    def encode_columns(
        self, name: str, key: str, scope: Scope, blocks: Mapping[str, Any], encoding: ImageEncoding
    ) -> list[KeyedValues]:
        """Return the values of steps without padding."""
        unpadded = {**blocks, name: self._without_padding(blocks[name], blocks.get(f"{name}.lengths"))}
        return Feature.encode_columns(self, name, key, scope, unpadded, encoding)

    def _without_padding(self, block: Block, lengths: Block | None) -> RaggedBlock:
        """Cut the padding from rows of steps; keep all steps if `lengths` is None."""
        if isinstance(block, RaggedBlock):
            check_lengths(np.diff(block.row_splits), lengths)
            return block
        assert isinstance(block, np.ndarray | BytesBlock)
        rows, most = block.shape[:2]
        steps = block.reshape((rows * most, *self.shape))
        if lengths is None:
            return RaggedBlock(steps, np.arange(rows + 1, dtype=np.int64) * most)
        counts = np.asarray(lengths).astype(np.int64)
        if (row := first_true((counts < 0) | (counts > most))) is not None:
            raise RowError(
                row, f"holds {plural(most, 'step')}, including padding; its lengths column has {counts[row]}"
            )
        kept: Any = take_rows(steps, np.flatnonzero(np.arange(most) < counts[:, None]))
        return RaggedBlock(kept, splits_of(counts))

    def assemble(self, decoded: Decoded) -> Block:
        """Return steps, padded to the length of the feature."""
        output = decoded.keys[0]
        steps = _step_splits(self, output)
        counts = np.diff(steps)
        length = self.item_shape[0]
        if (row := first_true(counts > length)) is not None:
            raise RowError(row, f"holds {plural(counts[row], 'step')}; {self} accepts at most {length}")
        if self.is_bytes:
            is_step = np.repeat((np.arange(length) < counts[:, None]).ravel(), math.prod(self.shape))
            return self._padded_bytes(output, is_step, (len(counts), *self.item_shape))
        # A default of -0.0 is falsy, but differs from 0.
        default = 0 if self.default_value is None else self.default_value
        filler = default_array(default, self.item_dtype, self.shape)
        return RaggedBlock(output.flat(self.item_dtype, self.shape), steps).padded(length, filler, decoded.out)

    def _padded_bytes(self, output: KeyOutput, is_step: NDArray[np.bool_], shape: tuple[int, ...]) -> BytesBlock:
        """Put the bytes values of records at their places, and the default between them."""
        given = output.encoded()
        filling = np.frombuffer(self.default_value or b"", np.uint8)
        sizes = np.full(len(is_step), len(filling), np.int64)
        sizes[is_step] = np.diff(given.splits)
        ends = splits_of(sizes)
        values = given.values
        if output.values is None:
            values = broadcast_zeros(np.uint8, int(ends[-1]))
        elif len(filling):
            is_value = np.repeat(is_step, sizes)
            values = np.empty(len(is_value), np.uint8)
            values[is_value] = given.values
            values[~is_value] = np.tile(filling, int((~is_step).sum()))
        return BytesBlock(values, ends, shape)


def is_padded(feature: Feature) -> TypeGuard[FixedLenSequenceFeature]:
    """Return whether rows are steps, padded to one length."""
    return isinstance(feature, FixedLenSequenceFeature)


def _step_splits(feature: Feature, output: KeyOutput) -> NDArray[np.int64]:
    """Return the offsets between records, in steps of a feature list or steps that the values form."""
    return output.record_splits if output.spec.steps else output.record_splits // math.prod(feature.shape)


def lengths(feature: Feature, decoded: Decoded) -> Block:
    """Count the steps of each row."""
    return decoded.into(np.diff(_step_splits(feature, decoded.keys[0])))
