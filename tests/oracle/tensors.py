"""Array of a serialized tensor, parsed with protobuf and interpreted by the rules of `tf.io.parse_tensor`.

Like the library, the oracle raises an error for values that TensorFlow would drop, wrap or invent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import messages
from oracle.partitions import objects
from oracle.values import Mismatch, oracle_dtype

# By dtype: its number in TensorFlow, and the field of TensorProto that lists its values.
LISTS = {
    "float32": (1, "float_val"),
    "float64": (2, "double_val"),
    "int32": (3, "int_val"),
    "uint8": (4, "int_val"),
    "int16": (5, "int_val"),
    "int8": (6, "int_val"),
    "bytes": (7, "string_val"),
    "complex64": (8, "scomplex_val"),
    "int64": (9, "int64_val"),
    "bool": (10, "bool_val"),
    "bfloat16": (14, "half_val"),
    "uint16": (17, "int_val"),
    "complex128": (18, "dcomplex_val"),
    "float16": (19, "half_val"),
    "uint32": (22, "uint32_val"),
    "uint64": (23, "uint64_val"),
}
# Limits the bytes that a repeated value fills if only the message determines the number of repetitions.
MAX_REPEATED = 1 << 28


def tensor_of(encoded: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Return the array of a serialized tensor, which must have this dtype and shape; -1 permits any size."""
    try:
        message = messages.TensorProto.FromString(encoded)
    except messages.DecodeError:
        raise Mismatch("is not a TensorProto", tensorflow=True) from None
    sizes = [dim.size for dim in message.tensor_shape.dim]
    if message.dtype != LISTS[dtype][0]:
        raise Mismatch(f"is a tensor of dtype number {message.dtype}", tensorflow=True)
    if message.tensor_shape.unknown_rank or len(sizes) != len(shape) or min(sizes, default=0) < 0:
        raise Mismatch(f"is a tensor of shape {sizes}", tensorflow=min(sizes, default=0) < 0)
    if any(wanted not in (-1, size) for wanted, size in zip(shape, sizes, strict=True)):
        raise Mismatch(f"is a tensor of shape {sizes}")
    each = 8 if dtype == "bytes" else oracle_dtype(dtype).itemsize
    if math.prod(size or 1 for size in sizes) * each >= 1 << 63:
        raise Mismatch(f"is a tensor of shape {sizes}, which no array has")
    count = math.prod(sizes)
    if message.tensor_content:
        return _stored(message.tensor_content, dtype, count).reshape(sizes)
    return _listed(message, dtype, count, is_open=-1 in shape).reshape(sizes)


def _stored(content: bytes, dtype: str, count: int) -> NDArray[Any]:
    if dtype == "bytes":
        return _strings(content, count)
    if len(content) != count * oracle_dtype(dtype).itemsize:
        raise Mismatch(f"is a tensor with {len(content)} bytes for {count} values", tensorflow=count > 0)
    if dtype == "bool" and max(content) > 1:
        raise Mismatch("is a tensor with a byte that is no bool", tensorflow=True)
    return np.frombuffer(bytearray(content), oracle_dtype(dtype))


def _strings(content: bytes, count: int) -> NDArray[Any]:
    """Read strings in the format of TensorFlow: the sizes of all strings as varints, then their bytes."""
    sizes, size, shift, at = list[int](), 0, 0, 0
    while len(sizes) < count and at < len(content) and shift < 35:
        size, shift = size | (content[at] & 0x7F) << shift, shift + 7
        if content[at] < 0x80:
            sizes.append(size)
            size, shift = 0, 0
        at += 1
    ends = list(accumulate(sizes, initial=at))
    if len(sizes) < count or ends[-1] != len(content):
        text = f"is a tensor with {len(content)} bytes that are not {count} strings"
        raise Mismatch(text, tensorflow=count > 0)
    return objects([content[start:end] for start, end in pairwise(ends)])


def _listed(message: messages.TensorProto, dtype: str, count: int, *, is_open: bool) -> NDArray[Any]:
    fields = sorted({field for _, field in LISTS.values()})
    given: list[Any] = list(getattr(message, LISTS[dtype][1]))
    if not given and any(getattr(message, field) for field in fields):
        raise Mismatch("is a tensor whose values are in the list of another dtype")
    if dtype.startswith("complex"):
        if len(given) % 2:
            raise Mismatch("is a tensor with half of a complex number")
        given = [complex(*pair) for pair in zip(given[::2], given[1::2], strict=True)]
    if len(given) > count:
        raise Mismatch(f"is a tensor with {len(given)} values for {count}")
    least, most = _bounds(dtype)
    if any(not least <= value <= most for value in given if dtype in _NARROW):
        raise Mismatch(f"is a tensor with a value beyond {dtype}")
    default: Any = b"" if dtype == "bytes" else 0
    last = given[-1] if given else default
    each = len(last) + 8 if dtype == "bytes" else oracle_dtype(dtype).itemsize
    if (is_open or dtype == "bytes") and (count - len(given)) * each > MAX_REPEATED:
        raise Mismatch("is a tensor that repeats a value too often")
    given += [last] * (count - len(given))
    if dtype == "bytes":
        return objects(given)
    if dtype in ("float16", "bfloat16"):
        return np.array([value & 0xFFFF for value in given], np.uint16).view(oracle_dtype(dtype))
    return np.array(given, dtype)


# Dtypes whose values are listed as int32. The 16-bit floats are listed as their bits, which may be signed.
_NARROW = ("int8", "uint8", "int16", "uint16", "float16", "bfloat16")


def _bounds(dtype: str) -> tuple[int, int]:
    if dtype in _NARROW and "float" not in dtype:
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -(1 << 15), (1 << 16) - 1
