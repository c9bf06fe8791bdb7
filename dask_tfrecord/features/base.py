"""The base of the feature classes."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from dask_tfrecord.blocks import Block, MemoryLimit, RaggedBlock, as_row_error
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, check_lengths, fixed, in_rows
from dask_tfrecord.features.keys import Assemble, Decoded, KeyOutput, KeySpec, Scope
from dask_tfrecord.features.tfds_entries import Entry


class Feature(ABC):
    """Base of the feature classes.

    A feature specifies the values to read from a record, and the layout of a block of rows. A block is dense: an array
    of shape ``(n, *item_shape)``; or ragged: `ragged_rank` levels of rows, whose values have the shape `item_shape`; or
    each of its rows is an array of its own shape.

    Attributes
    ----------
    block_dtype : dtype
        The dtype of a column: object if rows are bytes or arrays.
    is_bytes : bool
        Values of a block are bytes.
    is_dense : bool
        Blocks are arrays of numbers.
    is_image : bool
        Values are files of images, which can be decoded at several sizes.
    is_message : bool
        Values are fields of protobuf messages.
    has_decoded_values : bool
        The flat values of a block come from the decoder, unchanged.
    tfmd_domain : str or None
        Field of TensorFlow Metadata for the content of bytes, for example ``"image_domain"``.
    """

    __slots__ = ("block_dtype", "is_bytes", "is_dense")
    is_image: ClassVar[bool] = False
    is_message: ClassVar[bool] = False
    has_decoded_values: ClassVar[bool] = False
    tfmd_domain: ClassVar[str | None] = None
    dtype: Any
    shape: Any
    block_dtype: np.dtype[Any]
    is_bytes: bool
    is_dense: bool

    @property
    @abstractmethod
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: object for bytes."""

    @property
    @abstractmethod
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of each value in a ragged row; the same in all rows."""

    @property
    def ragged_rank(self) -> int:
        """Levels of rows of variable length."""
        return 0

    @property
    def own_shapes(self) -> int:
        """Number of axes if each row has its own shape, otherwise 0."""
        return 0

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a column; ``()`` if a row is an array, which is one object."""
        return () if self.ragged_rank or self.own_shapes else self.item_shape

    # Reading: what a decoder asks.

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the keys that a column needs from each record; None if the feature does not describe these values.

        Parameters
        ----------
        key : str
            Key of the feature in the record, the feature list or the item.
        scope : {"value", "step", "item"}
            The feature describes the values of a record, or of each of its steps or items.
        """
        raise NotImplementedError

    def column(self, scope: Scope) -> Feature:
        """Return the column's feature; steps and items add one level of rows."""
        return self

    def assemble(self, decoded: Decoded) -> Block:
        """Return the block of the decoded keys; `RowError` names a row that can't be decoded."""
        raise NotImplementedError

    def keys_for_sizes(self, keys: tuple[KeySpec, ...]) -> tuple[KeySpec, ...]:
        """Return the keys whose values determine the sizes of rows; values of others are checked and counted only."""
        return keys

    def columns(self, name: str, key: str, scope: Scope) -> dict[str, ColumnDecoder]:
        """Return the columns that the feature makes, by their names."""
        keys = self.keys(key, scope)
        if keys is None:
            raise SchemaError(f"feature {name!r}: {self} {self.unsupported(scope)}")
        is_direct = len(keys) == 1 and keys[0].is_direct
        assemble = None if is_direct else type(self).assemble
        return {name: ColumnDecoder(self.column(scope), name, self, keys, assemble, scope=scope)}

    def unsupported(self, scope: Scope) -> str:
        """End an error: why the feature does not describe values of this scope."""
        if scope == "value":
            return "needs one open size, because an Example lists values without steps"
        if scope == "step":
            return (
                "is not supported in sequence_features, which accept FixedLenSequenceFeature, VarLenFeature, "
                "RaggedFeature, and one RawFeature, TensorFeature, ImageFeature or TextFeature per step, without count "
                "and default_value"
            )
        return (
            "is not supported in example_features, which accept FixedLenFeature of at least one value, VarLenFeature, "
            "RaggedFeature, and one RawFeature, TensorFeature, ImageFeature or TextFeature per item, without count"
        )

    def suggestion(self, count: int) -> str:
        """Suggest a feature that reads `count` values, as the end of an error; empty if none does."""
        return ""

    @property
    def refuses_values(self) -> bool:
        """Values of the right kind and number may still be refused: they are decoded, cast or checked."""
        return True

    # Items: what explode asks.

    def item(self) -> Feature | None:
        """Return the feature of the items of a column; None if its rows do not vary in length."""
        return None

    # Writing: what an encoder asks.

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row, with -1 for sizes that differ between rows."""
        return (*(-1,) * self.ragged_rank, *self.item_shape)

    def sources(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that a feature called `name` is written from, and those that may be missing."""
        return (name,), ()

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Encode a block as its keys' values: for rows, or for all steps or items.

        Parameters
        ----------
        key : str
            Key of the feature.
        block : Block
            A block as `assemble` returns it.
        encoding : ImageEncoding
            File format of images.
        """
        return [in_rows(key, block) if isinstance(block, RaggedBlock) else fixed(key, block)]

    def reason_not_written(self) -> str | None:
        """Return why records can't be written with the feature; None if they can."""
        return None

    def encode_columns(
        self, name: str, key: str, scope: Scope, blocks: Mapping[str, Any], encoding: ImageEncoding
    ) -> list[KeyedValues]:
        """Return the values of the keys of the columns that a feature called `name` makes."""
        block = blocks[name]
        if scope == "value":
            return self.encode_block(key, block, encoding)
        if scope == "step":
            check_lengths(np.diff(block.row_splits), blocks.get(f"{name}.lengths"))
        with as_row_error(block.row_splits, item=True):
            steps = self.encode_block(key, block.values, encoding)
        splits = np.ascontiguousarray(block.row_splits)
        return [replace(keyed, steps=True, step_splits=keyed.row_splits, row_splits=splits) for keyed in steps]

    @property
    def stored_key(self) -> str | None:
        """Key of the records that holds the values; None for the name of the feature."""
        key: str | None = getattr(self, "value_key", None)
        return key

    # Descriptions of the records in other formats.

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Describe the feature in a `features.json` of TensorFlow Datasets; None if no TFDS class reads it.

        Parameters
        ----------
        name : str
            Name of the feature.
        labels : sequence of str or None
            Names of classes.
        format : str
            File format of images.
        """
        return None

    def _set(self, **values: Any) -> None:
        """Set checked arguments of the frozen dataclass, and what follows from them; for constructors only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.stored_key is not None:
            checked_key(self.stored_key, type(self).__name__)
        item_dtype = self.item_dtype
        block_dtype = np.dtype(object) if self.ragged_rank or self.own_shapes else item_dtype
        object.__setattr__(self, "block_dtype", block_dtype)
        object.__setattr__(self, "is_bytes", item_dtype == np.dtype(object))
        object.__setattr__(self, "is_dense", block_dtype.kind in "biufcmM")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that construct an equal feature, without defaults."""
        given = {}
        for argument in fields(self):  # type: ignore[arg-type]
            value = getattr(self, argument.name)
            if value != argument.default:
                given[argument.name] = value
        return given

    def __reduce__(self) -> Any:
        # The constructor replaces NaN by a single object, which compares equal to itself.
        return functools.partial(type(self), **self.arguments()), ()

    def call(self, code: Callable[[Any], str]) -> str:
        """Return the call that constructs the feature, with code of each value; required arguments are positional."""
        required = [field.name for field in fields(self) if field.default is MISSING]  # type: ignore[arg-type]
        parts = [code(v) if n in required else f"{n}={code(v)}" for n, v in self.arguments().items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __repr__(self) -> str:
        return self.call(repr)


def checked_key(key: Any, owner: str) -> str:
    """Check the name of a key of a record."""
    if not isinstance(key, str):
        raise SchemaError(f"{owner}: expected a string as key; got {key!r}")
    return key


def of_this_library(given: Any, base: type, classes: Mapping[str, Any], owner: str, expected: str) -> Any:
    """Convert a `tf.io` object to this library's class with the same positional arguments."""
    if isinstance(given, base):
        return given
    cls = classes.get(type(given).__name__)
    names = [] if cls is None else [each.name for each in fields(cls) if not each.kw_only]
    if cls is None or not all(hasattr(given, name) for name in names):
        raise SchemaError(f"{owner}: expected {expected}; got {given!r:.100}")
    return cls(*(getattr(given, name) for name in names))


@dataclass(frozen=True, slots=True)
class ColumnDecoder:
    """Keys of one column, and the assembly of its blocks."""

    feature: Feature  # dtype and shape of the blocks
    source: str  # name of the schema's feature that the column belongs to
    parsed: Feature  # the schema's feature
    specs: tuple[Any, ...]  # of type KeySpec, or FieldSpec
    assembler: Assemble | None  # None if the decoder writes the only key directly into an array
    # Processes the outputs before `assembler`, once for all columns of a feature.
    prepare: Callable[[Any, Sequence[KeyOutput], MemoryLimit | None], Sequence[KeyOutput]] | None = None
    scope: str = "value"  # what a row consists of, for errors: "value", "step" or "item"
    classes: tuple[str, ...] = ()  # names of the values of an enum
    groups: tuple[str, ...] = ()  # of the columns that share its rows at each level, the outermost first

    @property
    def has_decoded_values(self) -> bool:
        """The flat values of its blocks are the unchanged output of the decoder."""
        varies = bool(self.feature.ragged_rank) or self.feature.is_bytes
        whole = varies and self.parsed.has_decoded_values and self.is_own and self.prepare is None
        return whole and not any(spec.counted for spec in self.specs)

    @property
    def refuses_values(self) -> bool:
        """Values of the right kind and number may still be refused."""
        return self.prepare is not None or self.parsed.refuses_values

    @property
    def is_own(self) -> bool:
        """The feature assembles the blocks, or the decoder does for it."""
        return self.assembler is type(self.parsed).assemble
