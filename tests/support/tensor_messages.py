"""TensorProto messages for tests: a reference reader, and strategies for every way to write one.

The reader follows `tf.io.parse_tensor` and shares only the message classes with the library. A refusal records whether
TensorFlow refuses the message too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dask_tfrecord.messages import DecodeError, TensorProto, TensorShapeProto


@dataclass(frozen=True)
class Dtype:
    number: int  # of TensorFlow's DataType
    field: str  # which lists its values
    tag: int  # of a value that is not packed


DTYPES = {
    "float32": Dtype(1, "float_val", 5 << 3 | 5),
    "float64": Dtype(2, "double_val", 6 << 3 | 1),
    "int32": Dtype(3, "int_val", 7 << 3),
    "uint8": Dtype(4, "int_val", 7 << 3),
    "int16": Dtype(5, "int_val", 7 << 3),
    "int8": Dtype(6, "int_val", 7 << 3),
    "bytes": Dtype(7, "string_val", 8 << 3 | 2),
    "complex64": Dtype(8, "scomplex_val", 9 << 3 | 5),
    "int64": Dtype(9, "int64_val", 10 << 3),
    "bool": Dtype(10, "bool_val", 11 << 3),
    "bfloat16": Dtype(14, "half_val", 13 << 3),
    "uint16": Dtype(17, "int_val", 7 << 3),
    "complex128": Dtype(18, "dcomplex_val", 12 << 3 | 1),
    "float16": Dtype(19, "half_val", 13 << 3),
    "uint32": Dtype(22, "uint32_val", 16 << 3),
    "uint64": Dtype(23, "uint64_val", 17 << 3),
}
LISTS = sorted({dtype.field for dtype in DTYPES.values()})
# Limit for repeating a single value where the shape comes from the message.
MOST_REPEATED = 1 << 28


class Refused(Exception):
    """Refusal of a message; `tensorflow` is true if TensorFlow refuses it immediately too."""

    def __init__(self, why: str, *, tensorflow: bool) -> None:
        super().__init__(why)
        self.tensorflow = tensorflow


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype({"bytes": object, "bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype))
    return found


# ---- what a message means


def parsed(encoded: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The tensor of a message, which has to be of this dtype and shape; -1 is any size."""
    try:
        message = TensorProto.FromString(encoded)
    except DecodeError:
        raise Refused("malformed", tensorflow=True) from None
    if message.dtype != DTYPES[dtype].number:
        raise Refused("dtype", tensorflow=True)
    sizes = tuple(dim.size for dim in message.tensor_shape.dim)
    each = numpy_dtype(dtype).itemsize
    if any(size < 0 for size in sizes):
        raise Refused("negative size", tensorflow=True)
    if math.prod(size or 1 for size in sizes) * each >= 2**63 or len(sizes) > 64:
        raise Refused("no array has such a shape", tensorflow=False)  # it waits ten seconds for the memory
    if message.tensor_shape.unknown_rank:
        raise Refused("unknown rank", tensorflow=False)
    if len(sizes) != len(shape) or any(asked not in (-1, size) for asked, size in zip(shape, sizes, strict=True)):
        raise Refused("another shape", tensorflow=False)
    count = math.prod(sizes)
    if message.tensor_content:
        values = _stored(message.tensor_content, dtype, count)
    else:
        values = _listed(message, dtype, count, open_sizes=-1 in shape)
    return values.reshape(sizes)


def _stored(content: bytes, dtype: str, count: int) -> NDArray[Any]:
    if dtype == "bytes":
        return _objects(_stored_strings(content, count))
    if len(content) != count * numpy_dtype(dtype).itemsize:
        raise Refused("size of the content", tensorflow=count > 0)
    if dtype == "bool" and content.strip(b"\0\1"):
        raise Refused("no bool", tensorflow=True)
    return np.frombuffer(content, numpy_dtype(dtype))


def _stored_strings(content: bytes, count: int) -> list[bytes]:
    """All sizes as varints, then all bytes."""
    wrong = Refused("content of strings", tensorflow=count > 0)
    at = 0
    sizes: list[int] = []
    while len(sizes) < count:
        start = at
        while at < len(content) and content[at] > 0x7F:
            at += 1
        at += 1
        if at > len(content) or at - start > 5:
            raise wrong
        sizes.append(sum((byte & 0x7F) << 7 * place for place, byte in enumerate(content[start:at])))
    if at + sum(sizes) != len(content):
        raise wrong
    ends = np.cumsum([at, *sizes]).tolist()
    return [content[start:end] for start, end in pairwise(ends)]


def _listed(message: TensorProto, dtype: str, count: int, *, open_sizes: bool) -> NDArray[Any]:
    given: list[Any] = list(getattr(message, DTYPES[dtype].field))
    if not given and any(getattr(message, field) for field in LISTS):
        raise Refused("values of another dtype alone", tensorflow=False)
    if dtype in ("complex64", "complex128"):
        if len(given) % 2:
            raise Refused("half of a complex number", tensorflow=False)
        given = [complex(*pair) for pair in zip(given[::2], given[1::2], strict=True)]
    if len(given) > count:
        raise Refused("more values than elements", tensorflow=False)
    if dtype in ("int8", "uint8", "int16", "uint16"):
        bounds = np.iinfo(dtype)
        if any(not bounds.min <= value <= bounds.max for value in given):
            raise Refused("beyond the dtype", tensorflow=False)
    if dtype in ("float16", "bfloat16"):
        if any(not -(1 << 15) <= value < 1 << 16 for value in given):
            raise Refused("beyond 16 bits", tensorflow=False)
        given = [value & 0xFFFF for value in given]
    each = (len(given[-1]) if given else 0) + 8 if dtype == "bytes" else numpy_dtype(dtype).itemsize
    if (open_sizes or dtype == "bytes") and (count - len(given)) * each > MOST_REPEATED:
        raise Refused("a value that is repeated too often", tensorflow=False)
    given += [given[-1] if given else b"" if dtype == "bytes" else 0] * (count - len(given))
    if dtype == "bytes":
        return _objects(given)
    if dtype in ("float16", "bfloat16"):
        return np.array(given, np.uint16).view(numpy_dtype(dtype))
    return np.array(given, dtype)


def _objects(items: list[bytes]) -> NDArray[Any]:
    array = np.empty(len(items), object)
    array[:] = items
    return array


# ---- ways of writing a message


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def delimited(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def header(dtype: str, sizes: Iterable[int]) -> bytes:
    """The fields that say what a tensor is, without values."""
    message = TensorProto(dtype=DTYPES[dtype].number)
    message.tensor_shape.SetInParent()
    for size in sizes:
        message.tensor_shape.dim.add(size=size)
    return message.SerializeToString()


def content(array: NDArray[Any]) -> bytes:
    """An array's elements in one piece."""
    if array.dtype == object:
        items = array.ravel().tolist()
        return TensorProto(
            tensor_content=b"".join([*(varint(len(item)) for item in items), *items])
        ).SerializeToString()
    return TensorProto(tensor_content=array.tobytes()).SerializeToString()


def numbers(array: NDArray[Any]) -> list[Any]:
    """Return the elements of an array as list values."""
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    if array.dtype.itemsize == 2 and array.dtype.kind not in "iu":
        array = array.view(np.uint16)
    # protobuf in Python returns the value of a NaN, not its bits.
    return [math.nan if value != value else value for value in array.ravel().tolist()]


def packed(dtype: str, values: list[Any]) -> bytes:
    fields: dict[str, Any] = {DTYPES[dtype].field: values}
    return TensorProto(**fields).SerializeToString()


def unpacked(dtype: str, values: list[Any]) -> bytes:
    """Each value of a list as a field of its own."""
    if dtype == "bytes":
        return packed(dtype, values)
    tag = varint(DTYPES[dtype].tag)
    return b"".join(tag + packed(dtype, [value])[len(tag) + 1 :] for value in values)


def arrays(dtype: str, count: int) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of one dimension with any bits that the dtype has."""
    if dtype == "bytes":
        return st.lists(st.binary(max_size=200), min_size=count, max_size=count).map(_objects)
    known = numpy_dtype(dtype)
    if dtype == "bool":
        return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda bits: np.array(bits, bool))
    size = count * known.itemsize
    return st.binary(min_size=size, max_size=size).map(lambda data: np.frombuffer(data, known))


@st.composite
def lists(draw: st.DrawFn, dtype: str, values: list[Any]) -> bytes:
    """Write a list in runs, packed or not, with other fields between them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
    runs = [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    written = [draw(st.sampled_from([packed, unpacked]))(dtype, run) for run in runs]
    return draw(st.sampled_from([b"", *NOISE])).join(written)


# Unknown fields, groups within groups, known numbers with other wire types, and what counts for nothing.
NOISE = [
    TensorProto(version_number=-7).SerializeToString(),
    delimited(99, b"\xff") + varint(98 << 3) + b"\x05",
    varint(97 << 3 | 3) + varint(4 << 3 | 3) + varint(4 << 3 | 4) + delimited(8, b"x") + varint(97 << 3 | 4),
    varint(4 << 3) + b"\x03" + delimited(1, b"\x09") + varint(8 << 3) + b"\x07",
    delimited(2, delimited(1, b"x") + varint(2 << 3) + b"\x01"),
    delimited(15, b"") + delimited(18, b"\x01"),
    TensorProto(tensor_shape=TensorShapeProto()).SerializeToString(),
]


@st.composite
def encodings(draw: st.DrawFn, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Messages that mostly are tensors of this dtype and shape, in every form; some are almost."""
    sizes = [draw(st.integers(0, 4)) if size == -1 else size for size in shape]
    count = math.prod(sizes)
    form = draw(st.sampled_from(["content", "list", "few", "both", "resized", "other", "odd", "huge"]))
    if form == "huge" and sizes:
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.sampled_from([1 << 40, 1 << 61, -1]))
        count = draw(st.integers(0, 2))
    array = draw(arrays(dtype, count + draw(st.integers(-1, 1)) * (form == "resized") if count else 0))
    values = numbers(array)
    fields = [header(dtype, sizes)]
    if form in ("content", "both") or (form == "resized" and draw(st.booleans())):
        fields.append(content(array))
    if form in ("both", "list", "resized", "huge"):
        fields.append(draw(lists(dtype, values)))
    if form == "few":
        fields.append(draw(lists(dtype, values[: draw(st.integers(0, len(values)))])))
    if form == "other":
        fields.append(TensorProto(int_val=draw(st.lists(st.integers(-300, 70000), max_size=count))).SerializeToString())
    if form == "odd":
        fields.append(draw(st.sampled_from(_ODDITIES)) + draw(lists(dtype, values)))
    fields += draw(st.lists(st.sampled_from(NOISE), max_size=2))
    encoded = b"".join(draw(st.permutations(fields)))
    if draw(st.integers(0, 7)) == 7:
        at = draw(st.integers(0, len(encoded)))
        encoded = encoded[:at] + draw(st.binary(max_size=2)) + encoded[at + draw(st.integers(0, 2)) :]
    return encoded


_ODDITIES = [
    TensorProto(dtype=9).SerializeToString(),
    *(TensorProto(tensor_content=b"\2" * size).SerializeToString() for size in (1, 5, 6)),
    TensorProto(half_val=[-1, 1 << 16], int_val=[1 << 20]).SerializeToString(),
    TensorProto(tensor_shape=TensorShapeProto(unknown_rank=True)).SerializeToString(),
    *(delimited(2, delimited(2, b"\x08" + varint(size))) for size in (1, 2, -1, 1 << 40, 1 << 62)),
]
