"""TensorProto messages for tests: strategies for every way to write one. `oracle.tensors` decodes them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle.messages import TensorProto, TensorShapeProto
from oracle.partitions import objects
from oracle.tensors import LISTS
from oracle.values import oracle_dtype

from support.wire import delimited, varint

# Tags of values that are not packed, by dtype.
TAGS = {
    "float32": 5 << 3 | 5,
    "float64": 6 << 3 | 1,
    **dict.fromkeys(("int32", "uint8", "int16", "int8", "uint16"), 7 << 3),
    "bytes": 8 << 3 | 2,
    "complex64": 9 << 3 | 5,
    "int64": 10 << 3,
    "bool": 11 << 3,
    "bfloat16": 13 << 3,
    "complex128": 12 << 3 | 1,
    "float16": 13 << 3,
    "uint32": 16 << 3,
    "uint64": 17 << 3,
}


def header(dtype: str, sizes: Iterable[int]) -> bytes:
    """The fields that say what a tensor is, without values."""
    message = TensorProto(dtype=LISTS[dtype][0])
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
    fields: dict[str, Any] = {LISTS[dtype][1]: values}
    return TensorProto(**fields).SerializeToString()


def unpacked(dtype: str, values: list[Any]) -> bytes:
    """Each value of a list as a field of its own."""
    if dtype == "bytes":
        return packed(dtype, values)
    tag = varint(TAGS[dtype])
    return b"".join(tag + packed(dtype, [value])[len(tag) + 1 :] for value in values)


def arrays(dtype: str, count: int) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of one dimension with any bits that the dtype has."""
    if dtype == "bytes":
        return st.lists(st.binary(max_size=200), min_size=count, max_size=count).map(objects)
    known = oracle_dtype(dtype)
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
