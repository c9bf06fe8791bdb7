"""Serialized tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.dtypes import Shape, checked_dtype, checked_shape, numpy_dtype
from dask_tfrecord.features.encoded import Encoded, checked_count


class TensorDType(NamedTuple):
    """Representation of a dtype in a serialized TensorProto."""

    number: int  # value of the enum DataType
    itemsize: int  # bytes per value in `tensor_content`; 0 for strings, which are not stored there
    values_field: int  # number of the field that lists values one by one


# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto and tensor.proto.
TENSOR_DTYPES = {
    "float32": TensorDType(1, 4, 5),
    "float64": TensorDType(2, 8, 6),
    "int32": TensorDType(3, 4, 7),
    "uint8": TensorDType(4, 1, 7),
    "int16": TensorDType(5, 2, 7),
    "int8": TensorDType(6, 1, 7),
    "bytes": TensorDType(7, 0, 8),
    "complex64": TensorDType(8, 8, 9),
    "int64": TensorDType(9, 8, 10),
    "bool": TensorDType(10, 1, 11),
    "bfloat16": TensorDType(14, 2, 13),
    "uint16": TensorDType(17, 2, 7),
    "complex128": TensorDType(18, 16, 12),
    "float16": TensorDType(19, 2, 13),
    "uint32": TensorDType(22, 4, 16),
    "uint64": TensorDType(23, 8, 17),
}


@dataclass(frozen=True, slots=True, repr=False)
class TensorFeature(Encoded):
    """A tensor stored as a serialized TensorProto, as `tf.io.parse_tensor` reads it.

    Parameters
    ----------
    shape : tuple of int or None
        Shape of one tensor. None or -1 accepts any size: each row is then an array of its own shape.
    dtype : str or dtype
        The tensor's dtype: numeric, bool, ``"bfloat16"``, or ``"bytes"`` for strings. Another dtype in a record is an
        error; values are not cast.
    count : int, optional
        Number of tensors per record, each in a bytes value of its own: rows have the shape ``(count, *shape)``. -1 for
        any number, zero included. By default a record holds one tensor.

    Examples
    --------
    >>> TensorFeature((None, 3), "float32").shape
    (-1, 3)
    >>> TensorFeature((4, 3), "float32", count=2).block_shape
    (2, 4, 3)
    """

    shape: tuple[int, ...]
    dtype: str
    count: int | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, shape: Shape, dtype: Any, *, count: int | None = None) -> None: ...

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, "TensorFeature", open_sizes=100)
        count = checked_count(self.count, "TensorFeature")
        if count not in (None, -1) and -1 in shape:
            raise SchemaError(f"TensorFeature: a fixed number of tensors per record needs a known shape; got {shape}")
        dtype: Any = self.dtype
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
        if dtype in (bytes, object) or name in ("bytes", "string", "object"):
            dtype = "bytes"
        else:
            dtype = checked_dtype(dtype, "TensorFeature")
            if not numpy_dtype(dtype, "TensorFeature").isnative:
                raise SchemaError(f"TensorFeature: a TensorProto has one byte order, little-endian; got {dtype}")
        self._set(shape=shape, dtype=dtype, count=count)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for strings."""
        return np.dtype(object) if self.dtype == "bytes" else numpy_dtype(self.dtype, "TensorFeature")

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.shape

    @property
    def own_shapes(self) -> int:
        """Number of axes if a size is open, otherwise 0."""
        return len(self.shape) if -1 in self.shape else 0
