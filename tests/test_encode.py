"""Blocks become records: protobuf reads what was written, the same schema the same rows, and misfits are named."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import masked_crc

import dask_tfrecord as dtf
from dask_tfrecord import _native, messages
from dask_tfrecord._native import Kind
from dask_tfrecord.columns.blocks import Block, RaggedBlock
from dask_tfrecord.columns.encode import Encoder, RecordStream, listed_features
from dask_tfrecord.columns.user_blocks import conform, feature_of
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.images.pixels import ImageEncoding, decode_image
from dask_tfrecord.schema import Schema

R = dtf.RaggedFeature


def framed(
    schema: Schema, blocks: Mapping[str, Block], columns: Mapping[str, Any] | None = None, **options: Any
) -> bytes:
    """All records of some blocks, as a file has them."""
    known = Schema(columns or {name: feature_of(block, name) for name, block in blocks.items()})
    stream = RecordStream(Encoder(schema, known, **options), "some.tfrecord")
    return b"".join(bytes(part) for part in stream.framed(blocks))


def payloads(data: bytes) -> list[bytes]:
    """The payloads of records, CRCs checked, in plain Python."""
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8) == (masked_crc(data[at : at + 8]),)
        payload = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length) == (masked_crc(payload),)
        found.append(payload)
        at += 16 + length
    return found


def one(feature: Any, array: Any, **options: Any) -> list[bytes]:
    return payloads(framed(Schema({"x": feature}), {"x": array}, **options))


def values(payload: bytes) -> tuple[str | None, list[Any]]:
    """The kind and the values of the feature x."""
    held = messages.Example.FromString(payload).features.feature["x"]
    kind = held.WhichOneof("kind")
    return kind, list(getattr(held, kind).value) if kind else []


@given(
    numbers=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=20), max_size=5),
    room=st.integers(0, 400),
)
def test_integers_of_any_size_are_protobufs(numbers: list[list[int]], room: int) -> None:
    """Records equal those of protobuf, for every size of the output buffer."""
    flat = np.array([number for row in numbers for number in row], np.int64)
    ends = np.cumsum([0, *map(len, numbers)]).astype(np.int64)
    encoder = _native.Encoder([_native.Field(b"x", Kind.INT64, flat.view(np.uint8), row_splits=ends)], len(numbers))
    out, made, row = np.empty(room, np.uint8), b"", 0
    while True:
        written = encoder.encode(row, out)
        made, row = made + out[: written.nbytes].tobytes(), row + written.records
        if row == len(numbers):
            assert written.need == 0
            break
        assert written.need > len(out) - written.nbytes
        out = np.empty(max(written.need, len(out)), np.uint8)
    wanted = [messages.Example() for _ in numbers]
    for message, row_ in zip(wanted, numbers, strict=True):
        message.features.feature["x"].int64_list.value.extend(row_)
    assert payloads(made) == [message.SerializeToString() for message in wanted]


def test_keys_follow_the_schema_order_and_output_is_deterministic() -> None:
    names = ["zebra", "ant", "é", "", "m"]
    blocks = {name: np.arange(3, dtype=np.int64) + number for number, name in enumerate(names)}
    schema = Schema({name: dtf.FixedLenFeature((), "int64") for name in names})
    data = framed(schema, blocks)
    assert data == framed(schema, blocks)
    at = [payloads(data)[0].index(b"\x0a" + bytes([len(name.encode())]) + name.encode() + b"\x12") for name in names]
    assert at == sorted(at)


@pytest.mark.parametrize(
    ("feature", "array", "kind", "wanted"),
    [
        (dtf.FixedLenFeature((), "bool"), np.array([True, False]), "int64_list", [[1], [0]]),
        (dtf.FixedLenFeature((), "int8"), np.array([-3, 4], np.int8), "int64_list", [[-3], [4]]),
        (dtf.FixedLenFeature((2,), "uint16"), np.array([[1, 65535]], np.uint16), "int64_list", [[1, 65535]]),
        (dtf.FixedLenFeature((), "int64"), np.array([7], ">i4"), "int64_list", [[7]]),
        (dtf.FixedLenFeature((), "uint64"), np.array([2**63 - 1], np.uint64), "int64_list", [[2**63 - 1]]),
        (dtf.FixedLenFeature((), "float16"), np.array([0.5], np.float16), "float_list", [[0.5]]),
        (dtf.FixedLenFeature((), "float32"), np.array([0.1], np.float64), "float_list", [[float(np.float32(0.1))]]),
        (dtf.FixedLenFeature((), "float64"), np.array([0.25], np.float64), "float_list", [[0.25]]),
        (dtf.FixedLenFeature((), "float32"), np.array([3], np.int64), "float_list", [[3.0]]),
        (dtf.FixedLenFeature((0,), "int64"), np.zeros((2, 0), np.int64), "int64_list", [[], []]),
        (dtf.VarLenFeature("int64"), np.arange(6).reshape(2, 3), "int64_list", [[0, 1, 2], [3, 4, 5]]),
        (dtf.TextFeature(), np.array(["é", ""], np.dtypes.StringDType()), "bytes_list", [["é".encode()], [b""]]),
        (dtf.FixedLenFeature((), "bytes"), np.array(["a"], np.dtypes.StringDType()), "bytes_list", [[b"a"]]),
        (dtf.FixedLenFeature((), "bfloat16"), np.array([1.5, -2], ml_dtypes.bfloat16), "float_list", [[1.5], [-2.0]]),
        (dtf.RawFeature((2,), ">i2"), np.array([[1, 2]], np.int16), "bytes_list", [[b"\0\1\0\2"]]),
        (dtf.RawFeature((-1,), "<u2"), np.array([[1, 2]], np.uint8), "bytes_list", [[b"\1\0\2\0"]]),
        (dtf.FixedLenSequenceFeature((), "int64", True), np.array([[1, 0]]), "int64_list", [[1, 0]]),
    ],
)
def test_listed_values(feature: Any, array: NDArray[Any], kind: str, wanted: list[list[Any]]) -> None:
    assert [values(payload) for payload in one(feature, array)] == [(kind, row) for row in wanted]


def test_arrays_of_bytes_are_listed_by_their_rows() -> None:
    given = {
        "one": dtf.RawFeature((2,), "int16"),
        "some": dtf.RawFeature((2,), "int16", count=3),
        "any": dtf.RawFeature((2,), "int16", count=-1),
        "open": dtf.RawFeature((-1, 2), "int16"),
    }
    assert listed_features(given) == {
        "one": dtf.FixedLenFeature((2,), "int16"),
        "some": dtf.FixedLenFeature((3, 2), "int16"),
        "any": dtf.VarLenFeature("int16", shape=(-1, 2)),
        "open": dtf.VarLenFeature("int16", shape=(-1, 2)),
    }
    for count, shape in ((None, (2, -1)), (-1, (-1, 2))):
        with pytest.raises(SchemaError, match="array 'a' has rows of different shapes"):
            listed_features({"a": dtf.RawFeature(shape, "int16", count=count)})


@pytest.mark.parametrize(
    ("feature", "array", "row", "said"),
    [
        (dtf.FixedLenFeature((), "int8"), np.array([1, 300]), 1, "holds 300, which does not fit int8"),
        (dtf.FixedLenFeature((), "uint8"), np.array([-1]), 0, "holds -1, which does not fit uint8"),
        (dtf.FixedLenFeature((), "uint64"), np.array([0, -1]), 1, "holds -1, which does not fit uint64"),
        (dtf.FixedLenFeature((), "bool"), np.array([2]), 0, "holds 2, which does not fit bool"),
        (dtf.FixedLenFeature((), "int64"), np.array([2**63], np.uint64), 0, "which does not fit int64"),
        (dtf.FixedLenFeature((), "uint64"), np.array([2**63], np.uint64), 0, "which exceeds int64"),
        (
            dtf.FixedLenFeature((2,), "float32"),
            np.array([[0, 1], [1e300, 0]]),
            1,
            r"1e\+300, which does not fit float32",
        ),
        (dtf.FixedLenFeature((), "float32"), np.array([1, 2**24 + 1]), 1, "which does not fit float32"),
        (dtf.FixedLenFeature((), "float64"), np.array([0.5, 0.1]), 1, "which float32, the floats of an Example, can"),
        (dtf.VarLenFeature("int8"), RaggedBlock(np.array([1, 2, 300]), np.array([0, 2, 2, 3])), 2, "does not fit int8"),
    ],
)
def test_values_that_do_not_fit_are_named(feature: Any, array: Any, row: int, said: str) -> None:
    with pytest.raises(FeatureError, match=said) as caught:
        one(feature, array)
    assert caught.value.place is not None
    assert (caught.value.place.record, caught.value.place.feature) == (row, "x")


@pytest.mark.parametrize(
    ("feature", "array", "said"),
    [
        (dtf.FixedLenFeature((), "int64"), np.zeros(2), "is of float64, which FixedLenFeature"),
        (dtf.FixedLenFeature((), "float32"), np.zeros(2, complex), "RawFeature or TensorFeature of complex128"),
        (dtf.FixedLenFeature((2,), "float32"), np.zeros((2, 3)), r"rows of shape \(3,\) where"),
        (dtf.FixedLenFeature((), "bytes"), np.zeros(2), "which FixedLenFeature"),
        (dtf.TextFeature(), np.zeros(2, np.int64), "is of int64, which TextFeature"),
        (dtf.ImageFeature(), np.zeros((2, 3, 3, 1), np.float32), "is of float32, which ImageFeature"),
        (dtf.FixedLenFeature((3,), "int64"), RaggedBlock(np.arange(3), np.array([0, 3])), r"\(-1,\) where"),
    ],
)
def test_columns_that_can_not_fit_are_refused_before_a_row_is_seen(feature: Any, array: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        Encoder(Schema({"x": feature}), Schema({"x": feature_of(array, "x")}))


def test_nothing_is_left_out_in_silence() -> None:
    column = dtf.FixedLenFeature((), "int64")
    with pytest.raises(SchemaError, match="'y' belongs to no feature"):
        Encoder(Schema({"x": column}), Schema({"x": column, "y": column}))
    with pytest.raises(SchemaError, match=r"feature 'x': the column that .* is written from is missing"):
        Encoder(Schema({"x": column}), Schema({"y": column}))
    with pytest.raises(SchemaError, match="only an ImageFeature has an encoding"):
        Encoder(Schema({"x": column}), Schema({"x": column}), {"x": ImageEncoding()})


def test_features_that_share_a_key_have_to_agree() -> None:
    schema = Schema({"v": dtf.VarLenFeature("float32"), "s": dtf.SparseFeature("i", "v", "float32", 9)})
    rows = np.array([0, 2])
    blocks: dict[str, Block] = {
        "v": RaggedBlock(np.array([1, 2], np.float32), rows),
        "s.indices": RaggedBlock(np.array([[3], [5]]), rows),
        "s.values": RaggedBlock(np.array([1, 2], np.float32), rows),
    }
    message = messages.Example.FromString(payloads(framed(schema, blocks))[0])
    assert sorted(message.features.feature) == ["i", "v"]
    blocks["s.values"] = RaggedBlock(np.array([1, 3], np.float32), rows)
    with pytest.raises(SchemaError, match="share the key 'v'"):
        framed(schema, blocks)


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        (R("int64", partitions=[R.UniformRowLength(2), R.RowLengths("n")]), "a row of 1 items, which UniformRowLength"),
        (R("int64", partitions=[R.ValueRowIds("n"), R.RowLengths("m")]), "ends with an empty row"),
    ],
)
def test_partitions_that_do_not_determine_rows(feature: Any, said: str) -> None:
    inner = RaggedBlock(np.arange(2), np.array([0, 1, 2]))
    good = RaggedBlock(RaggedBlock(inner, np.array([0, 2])), np.array([0, 1]))
    assert one(feature, good)
    bad = RaggedBlock(RaggedBlock(inner, np.array([0, 1, 2, 2])), np.array([0, 1, 3]))
    with pytest.raises(FeatureError, match=said):
        one(feature, bad)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"x.indices": [[[9]]]}, r"outside of size"),
        ({"x.indices": [[[1], [2]]]}, "holds 2 indices for 1 values"),
        ({"x.shape": [[8]]}, "has shape"),
    ],
)
def test_sparse_columns_have_to_fit_each_other(column: dict[str, Any], said: str) -> None:
    feature = dtf.SparseFeature("i", "v", "float32", 9)
    given: dict[str, Any] = {"x.indices": [[[1]]], "x.values": [[1.0]], "x.shape": [[9]]} | column
    blocks = {
        name: conform(form, given[name], name) for name, form in feature.columns("x").items() if name != "x.shape"
    }
    blocks["x.shape"] = np.array(given["x.shape"])
    with pytest.raises(FeatureError, match=said):
        framed(Schema({"x": feature}), blocks)


def test_the_step_of_a_value_is_named() -> None:
    steps = RaggedBlock(RaggedBlock(np.array([1, 2**63], np.uint64), np.array([0, 1, 2])), np.array([0, 0, 2]))
    with pytest.raises(FeatureError, match=r"record 1: feature 'x' holds .* exceeds int64, .*, in step 1"):
        framed(Schema({}, sequence_features={"x": dtf.VarLenFeature("uint64")}), {"x": steps})


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_have_to_fit_the_padded_rows(length: int) -> None:
    schema = Schema({}, sequence_features={"x": dtf.FixedLenSequenceFeature((), "int64")})
    blocks: dict[str, Block] = {"x": np.arange(6).reshape(2, 3), "x.lengths": np.array([3, length])}
    with pytest.raises(FeatureError, match=f"its lengths column has {length}"):
        framed(schema, blocks)
    blocks["x.lengths"] = np.array([0, 2])
    found = [messages.SequenceExample.FromString(payload) for payload in payloads(framed(schema, blocks))]
    steps = [[list(step.int64_list.value) for step in one.feature_lists.feature_list["x"].feature] for one in found]
    assert steps == [[], [[3], [4]]]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float16"])
def test_png_is_lossless(channels: int, dtype: str) -> None:
    levels = np.random.default_rng(channels).integers(0, 256, (2, 5, 7, channels))
    array = levels.astype(dtype)
    if dtype == "uint16":
        array = (levels * 257).astype(dtype)
        array[0, 0, 0, 0] = 12345
    elif dtype != "uint8":
        # As reading leaves them, which multiplies.
        array = (levels.astype(np.float32) * np.float32(1 / 255)).astype(dtype)
    for feature in (dtf.ImageFeature(dtype=dtype), dtf.ImageFeature((5, 7, channels), dtype)):
        for row, payload in enumerate(one(feature, array)):
            (data,) = values(payload)[1]
            assert (decode_image(data, dtype=dtype) == array[row]).all()


def test_images_of_other_formats() -> None:
    frames = RaggedBlock(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 0, 3]))
    encoding = {"x": ImageEncoding.from_argument({"format": "JPG", "quality": 95}, "x")}
    feature = dtf.ImageFeature((-1, 8, 8, 3))
    empty, three = one(feature, frames, columns={"x": feature}, encoding=encoding)
    assert values(empty) == ("bytes_list", [])
    assert [data[:3] for data in values(three)[1]] == [b"\xff\xd8\xff"] * 3


@pytest.mark.parametrize(
    ("image", "encoding", "said"),
    [
        (np.zeros((1, 2, 2, 4), np.uint8), "jpeg", "4 channels; jpeg stores 1 or 3"),
        (np.zeros((1, 2, 2, 3), np.uint16), "webp", "16 bits per channel; webp stores 8"),
        (np.zeros((1, 0, 2, 3), np.uint8), "png", "without pixels"),
        (np.full((1, 2, 2, 3), 0.1234567, np.float32), "png", "would be rounded"),
        (np.full((1, 2, 2, 3), np.nan, np.float32), "png", "would be rounded"),
    ],
)
def test_images_that_would_change_are_refused(image: NDArray[Any], encoding: str, said: str) -> None:
    feature = dtf.ImageFeature(dtype=image.dtype)
    with pytest.raises(FeatureError, match=said):
        one(feature, image, encoding={"x": ImageEncoding.from_argument(encoding, "x")})


@pytest.mark.parametrize("given_", ["tiff", 7, {"quality": 3}])
def test_invalid_encodings_are_refused(given_: Any) -> None:
    with pytest.raises(SchemaError, match="encoding of 'x'"):
        ImageEncoding.from_argument(given_, "x")


INT = {"kind": Kind.INT64}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"kind": Kind.NONE}, 1),
        ({**INT, "prefix": b"a"}, 1),
        ({"kind": Kind.BYTES}, 1),
        ({**INT, "list": True}, 1),
        (INT, 2),
        *(({**INT, "row_splits": np.array(splits)}, 1) for splits in ([0, 2], [1, 0], [-1, 0], [0])),
        ({**INT, "count": 1 << 58}, 1 << 58),
        ({"kind": Kind.BYTES, "value_splits": np.array([0, 9])}, 1),
    ],
)
def test_the_native_encoder_refuses_splits_beyond_the_values(options: dict[str, Any], rows: int) -> None:
    with pytest.raises(ValueError):
        _native.Encoder([_native.Field(b"x", values=np.zeros(8, np.uint8), **options)], rows)


def test_a_key_is_encoded_once() -> None:
    with pytest.raises(ValueError):
        _native.Encoder([_native.Field(b"x", Kind.INT64, np.zeros(8, np.uint8))] * 2, 1)


def test_a_record_larger_than_protobuf_takes_is_an_error() -> None:
    # All fields view the same MiB, so that 1 MiB of memory represents a record of 2 GiB.
    piece = np.zeros(1 << 20, np.uint8)
    keyed = [_native.Field(b"%d" % n, Kind.BYTES, piece, value_splits=np.array([0, 1 << 20])) for n in range(2050)]
    written = _native.Encoder(keyed, 1).encode(0, np.empty(1 << 20, np.uint8))
    assert (written.records, written.nbytes) == (0, 0)
    assert written.need > 1 << 31


def test_splits_that_change_after_validation_are_not_read() -> None:
    values, splits = np.arange(4, dtype=np.int64), np.array([0, 1, 4])
    encoder = _native.Encoder([_native.Field(b"x", Kind.INT64, values.view(np.uint8), row_splits=splits)], 2)
    out = np.zeros(1000, np.uint8)
    nbytes = encoder.encode(0, out).nbytes
    wanted = out[:nbytes].tobytes()
    splits[:] = 2**40
    out[:] = 0
    assert encoder.encode(0, out).nbytes == nbytes
    assert out[:nbytes].tobytes() == wanted


def test_values_that_another_thread_changes_stay_within_the_buffer() -> None:
    """The encoder computes sizes first, so values that grow meanwhile are an error or still fit."""
    values = np.zeros(50_000, np.int64)
    encoder = _native.Encoder([_native.Field(b"x", Kind.INT64, values.view(np.uint8), count=len(values))], 1)
    memory = np.zeros(10 * len(values) + 4096, np.uint8)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            values[:] = -1
            values[:] = 0

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for size in [len(values) + 100, 2 * len(values), 10 * len(values) + 100] * 20:
            memory[size:] = 7
            try:
                assert encoder.encode(0, memory[:size]).nbytes <= size
            except RuntimeError as error:
                assert "values changed while they were encoded" in str(error)
            assert (memory[size:] == 7).all()
    finally:
        done.set()
        writer.join()


def test_an_encoder_works_for_one_thread_at_a_time() -> None:
    values = np.full(500_000, -1)
    encoder = _native.Encoder([_native.Field(b"x", Kind.INT64, values.view(np.uint8), count=len(values))], 1)
    outputs = [np.zeros(10 * len(values) + 4096, np.uint8) for _ in range(2)]
    errors: list[str] = []

    def encode(out: NDArray[np.uint8]) -> None:
        try:
            encoder.encode(0, out)
        except RuntimeError as error:
            errors.append(str(error))

    for _ in range(100):
        threads = [threading.Thread(target=encode, args=(out,)) for out in outputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            break
    assert "in use by another thread" in errors[0]
