"""The values of one Feature message, as protobuf has them, in the dtype that is asked for."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import messages

__all__ = ["FIELDS", "Misfit", "float_bits", "kind_of", "numpy_dtype", "stored_values", "values_of"]

# The lists that a Feature message may hold, in the order of their numbers.
FIELDS = {"bytes": "bytes_list", "float32": "float_list", "int64": "int64_list"}


class Misfit(Exception):
    """What one feature of one record has that it must not have, as the rest of a sentence."""


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Name the NumPy dtype of values: object for bytes."""
    if dtype == "bfloat16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    return np.dtype(object if dtype == "bytes" else dtype)


def kind_of(dtype: str) -> str:
    """Name the list that values of a dtype are stored in: a key of `FIELDS`."""
    if dtype == "bytes":
        return dtype
    return "int64" if dtype == "bool" or dtype.startswith(("int", "uint")) else "float32"


def values_of(message: messages.Feature, dtype: str) -> NDArray[Any]:
    """Read the values of a message, flat, and cast them.

    Raises
    ------
    Misfit
        If they are of another kind, or one is beyond the dtype.
    """
    field, wanted = message.WhichOneof("kind"), FIELDS[kind_of(dtype)]
    if field not in (None, wanted):
        raise Misfit(f"is a {field}, not a {wanted}")
    values = stored_values(message, kind_of(dtype))
    if dtype in FIELDS:
        return values
    items = values.view(np.uint32).tolist() if wanted == "float_list" else values.tolist()
    cast = _whole if wanted == "int64_list" else _FLOATS[dtype]
    return np.array([cast(item, dtype) for item in items], _BITS.get(dtype, dtype)).view(numpy_dtype(dtype))


def stored_values(message: messages.Feature, kind: str) -> NDArray[Any]:
    """Read the list of that kind as it is stored; floats keep their bits."""
    values = np.empty(len(getattr(message, FIELDS[kind]).value), object if kind == "bytes" else kind)
    if kind == "float32":
        values[:] = np.array(float_bits(message), np.uint32).view("float32")
    else:
        values[:] = list(getattr(message, FIELDS[kind]).value)
    return values


def float_bits(message: messages.Feature) -> list[int]:
    """Read the bits of a message's floats: as floats of Python, signalling NaNs would turn quiet."""
    count = len(message.float_list.value)
    if not count:
        return []
    # Serialised, a list ends with its packed values.
    bare = messages.FloatList.FromString(message.float_list.SerializeToString())
    bare.DiscardUnknownFields()
    return list(struct.unpack(f"<{count}I", bare.SerializeToString()[-4 * count :]))


def _whole(value: int, dtype: str) -> int:
    bounds = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not bounds[0] <= value <= bounds[1]:
        raise Misfit(f"holds {value}, which {dtype} can't hold")
    return value


def _float(bits: int) -> float:
    [value] = struct.unpack("<f", bits.to_bytes(4, "little"))
    return float(value)


def _double(bits: int, dtype: str) -> float:
    return _float(bits)


def _half(bits: int, dtype: str) -> int:
    """Round to the 16 bits of IEEE; of a NaN its sign and the upper bits of its payload stay."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 & 0x8000 | 0x7C00 | (bits >> 13 & 0x3FF or 1)
    try:
        return int.from_bytes(struct.pack("<e", _float(bits)), "little")
    except OverflowError:
        raise Misfit(f"holds {_float(bits)}, which {dtype} can't hold") from None


def _brain(bits: int, dtype: str) -> int:
    """Round to the upper 16 bits, ties to even; of a NaN its sign and the upper bits of its payload stay."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 & 0xFF80 | (bits >> 16 & 0x7F or 1)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and bits & 0x7FFFFFFF != 0x7F800000:
        raise Misfit(f"holds {_float(bits)}, which {dtype} can't hold")
    return rounded


_FLOATS: dict[str, Any] = {"float16": _half, "bfloat16": _brain, "float64": _double}
_BITS = {"float16": "uint16", "bfloat16": "uint16"}
