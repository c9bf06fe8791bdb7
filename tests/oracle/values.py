"""Values of one Feature message, read with protobuf and cast to the requested dtype."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import messages

# Lists of a Feature message by kind, in the order of their field numbers.
FIELDS = {"bytes": "bytes_list", "float32": "float_list", "int64": "int64_list"}


class Mismatch(Exception):
    """Mismatch between a record and a schema; the text is the predicate of a sentence about the feature or record.

    `tensorflow` is true for a tensor that `tf.io.parse_tensor` refuses immediately, too.
    """

    def __init__(self, text: str, *, tensorflow: bool = False) -> None:
        super().__init__(text)
        self.tensorflow = tensorflow


def oracle_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of values: object for bytes."""
    if dtype == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(object if dtype == "bytes" else dtype)


def kind_of(dtype: str) -> str:
    """Return the kind in which values of a dtype are stored: a key of `FIELDS`."""
    if dtype == "bytes":
        return dtype
    return "int64" if dtype == "bool" or dtype.startswith(("int", "uint")) else "float32"


def values_of(message: messages.Feature, dtype: str) -> NDArray[Any]:
    """Return the values of a message as a flat array of the dtype."""
    field, wanted = message.WhichOneof("kind"), FIELDS[kind_of(dtype)]
    if field not in (None, wanted) and len(getattr(message, field).value):
        raise Mismatch(f"is a {field}, not a {wanted}")
    values = stored_values(message, kind_of(dtype))
    if dtype in FIELDS:
        return values
    items = values.view(np.uint32).tolist() if wanted == "float_list" else values.tolist()
    cast = _whole if wanted == "int64_list" else _FLOATS[dtype]
    return np.array([cast(item, dtype) for item in items], _BITS.get(dtype, dtype)).view(oracle_dtype(dtype))


def stored_values(message: messages.Feature, kind: str) -> NDArray[Any]:
    """Return the values of the list of that kind without a cast; floats keep their bits."""
    values = np.empty(len(getattr(message, FIELDS[kind]).value), object if kind == "bytes" else kind)
    if kind == "float32":
        values[:] = np.array(float_bits(message), np.uint32).view("float32")
    else:
        values[:] = list(getattr(message, FIELDS[kind]).value)
    return values


def float_bits(message: messages.Feature) -> list[int]:
    """Return the bits of the floats of a message: conversion to Python floats would turn signalling NaNs quiet."""
    count = len(message.float_list.value)
    if not count:
        return []
    # A serialized list ends with its packed values.
    bare = messages.FloatList.FromString(message.float_list.SerializeToString())
    bare.DiscardUnknownFields()
    return list(struct.unpack(f"<{count}I", bare.SerializeToString()[-4 * count :]))


def _whole(value: int, dtype: str) -> int:
    bounds = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not bounds[0] <= value <= bounds[1]:
        raise Mismatch(f"holds {value}, which {dtype} can't hold")
    return value


def _float(bits: int) -> float:
    [value] = struct.unpack("<f", bits.to_bytes(4, "little"))
    return float(value)


def _double(bits: int, dtype: str) -> float:
    return _float(bits)


def _half(bits: int, dtype: str) -> int:
    """Round to IEEE half precision; a NaN keeps its sign and the upper bits of its payload."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 & 0x8000 | 0x7C00 | (bits >> 13 & 0x3FF or 1)
    try:
        return int.from_bytes(struct.pack("<e", _float(bits)), "little")
    except OverflowError:
        raise Mismatch(f"holds {_float(bits)}, which {dtype} can't hold") from None


def _bfloat16(bits: int, dtype: str) -> int:
    """Round to the upper 16 bits, ties to even; a NaN keeps its sign and the upper bits of its payload."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 & 0xFF80 | (bits >> 16 & 0x7F or 1)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and bits & 0x7FFFFFFF != 0x7F800000:
        raise Mismatch(f"holds {_float(bits)}, which {dtype} can't hold")
    return rounded


_FLOATS: dict[str, Any] = {"float16": _half, "bfloat16": _bfloat16, "float64": _double}
_BITS = {"float16": "uint16", "bfloat16": "uint16"}
