"""Values in nested rows of variable length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import checked_key, of_this_library
from dask_tfrecord.features.dtypes import checked_parsed_dtype, numpy_dtype, values_dtype
from dask_tfrecord.features.encoded import Encoded
from dask_tfrecord.features.listed import Listed
from dask_tfrecord.features.partitions import (
    PARTITIONS,
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)


def _check_values(values: Any, dtype: str) -> None:
    """Check the feature of the values of a `RaggedFeature`."""
    if not isinstance(values, Encoded):
        raise SchemaError(
            f"RaggedFeature: values is a RawFeature, TensorFeature, ImageFeature or TextFeature; got {values!r}"
        )
    if dtype != "bytes":
        raise SchemaError(f"RaggedFeature: values are decoded from bytes: expected dtype 'bytes'; got {dtype!r}")
    if values.count is not None or -1 in values.value_shape or values.ragged_rank or values.own_shapes:
        raise SchemaError(f"RaggedFeature: values have one known shape; got {values!r}")
    if getattr(values, "default_value", None) is not None:
        raise SchemaError(f"RaggedFeature: rows may be empty, so values need no default_value; got {values!r}")


@dataclass(frozen=True, slots=True, repr=False)
class RaggedFeature(Listed):
    """Values in nested rows of variable length, as `tf.io.RaggedFeature`.

    Parameters
    ----------
    dtype : str or dtype
        As for `FixedLenFeature`.
    value_key : str, optional
        Key of the values, by default the name of the feature.
    partitions : sequence of partition, default ()
        Partitions of the values of a record into rows, the outermost first: `RowLengths`, `RowSplits`, `ValueRowIds`,
        `RowLimits`, `RowStarts` or `UniformRowLength`. A partition that does not match the values is an error.
    row_splits_dtype, validate
        Accepted for compatibility with TensorFlow, without effect: row splits are int64 and always checked.
    values : RawFeature, TensorFeature, ImageFeature or TextFeature, optional
        Feature of each bytes value, of a known shape: values are decoded to arrays or text. The dtype is then
        ``"bytes"``, and sequence features do not accept it.

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
        ) -> None: ...

    def __post_init__(self) -> None:
        dtype = checked_parsed_dtype(self.dtype, "RaggedFeature")
        expected = "a partition, for example RowLengths(key)"
        partitions = tuple(
            of_this_library(each, Partition, PARTITIONS, "RaggedFeature", expected) for each in self.partitions
        )
        if self.value_key is not None:
            checked_key(self.value_key, "RaggedFeature")
        splits = numpy_dtype(self.row_splits_dtype, "RaggedFeature: row_splits_dtype").name
        if splits not in ("int32", "int64"):
            raise SchemaError(f"RaggedFeature: expected row_splits_dtype int32 or int64; got {self.row_splits_dtype!r}")
        if self.values is not None:
            _check_values(self.values, dtype)
        self._set(dtype=dtype, partitions=partitions, row_splits_dtype=splits, validate=bool(self.validate))

    @property
    def shape(self) -> tuple[int, ...]:
        """-1 for each level of rows, then the sizes of the innermost uniform partitions."""
        inner = self.item_shape
        return (*(-1,) * self.ragged_rank, *inner)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of the values of a block: that of decoded arrays, or object for bytes."""
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
