"""Arrays become records: protobuf reads what was written, and misfits are named. Round trips read the same rows again.

`encode_tests.cpp` tests the native encoder: buffers of any size, splits beyond the values, and values that change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import messages, read_payloads

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock
from dask_tfrecord.columns.encode import Encoder
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.features.default_feature import listed_feature
from dask_tfrecord.features.images.pixels import decode_image
from dask_tfrecord.features.schema import Schema

R = dtf.RaggedFeature


def written(folder: Path, arrays: Mapping[str, Any], schema: Schema, **options: Any) -> list[bytes]:
    """Write arrays, and return the payloads of the records."""
    dtf.to_tfrecord(arrays, folder / "x", features=schema, mode="w", **options)
    return read_payloads(folder / "x")


def one(folder: Path, feature: Any, array: Any, **options: Any) -> list[tuple[str | None, list[Any]]]:
    """Write the feature x; return the kind and the values of each record."""
    found = []
    for payload in written(folder, {"x": array}, Schema({"x": feature}), **options):
        held = messages.Example.FromString(payload).features.feature["x"]
        kind = held.WhichOneof("kind")
        found.append((kind, list(getattr(held, kind).value) if kind else []))
    return found


def test_keys_follow_the_schema_order_and_output_is_deterministic(tmp_path: Path) -> None:
    names = ["zebra", "ant", "é", "", "m"]
    arrays = {name: np.arange(3) + number for number, name in enumerate(names)}
    schema = Schema(dict.fromkeys(names, dtf.FixedLenFeature((), "int64")))
    payloads = written(tmp_path, arrays, schema)
    assert payloads == written(tmp_path, arrays, schema)
    at = [payloads[0].index(b"\x0a" + bytes([len(name.encode())]) + name.encode() + b"\x12") for name in names]
    assert at == sorted(at)


@pytest.mark.parametrize(
    ("feature", "array", "kind", "wanted"),
    [
        (dtf.FixedLenFeature((), "int64"), np.array([7], ">i4"), "int64_list", [[7]]),
        (dtf.FixedLenFeature((), "uint64"), np.array([2**63 - 1], np.uint64), "int64_list", [[2**63 - 1]]),
        (dtf.FixedLenFeature((), "float32"), np.array([0.1], np.float64), "float_list", [[float(np.float32(0.1))]]),
        (dtf.FixedLenFeature((), "float64"), np.array([0.25], np.float64), "float_list", [[0.25]]),
        (dtf.FixedLenFeature((), "float32"), np.array([3], np.int64), "float_list", [[3.0]]),
        (dtf.FixedLenFeature((0,), "int64"), np.zeros((2, 0), np.int64), "int64_list", [[], []]),
        (dtf.VarLenFeature("int64"), np.arange(6).reshape(2, 3), "int64_list", [[0, 1, 2], [3, 4, 5]]),
        (dtf.FixedLenFeature((), "bytes"), np.array(["é"], np.dtypes.StringDType()), "bytes_list", [["é".encode()]]),
        (dtf.RawFeature((2,), ">i2"), np.array([[1, 2]], np.int16), "bytes_list", [[b"\0\1\0\2"]]),
        (dtf.RawFeature((-1,), "<u2"), np.array([[1, 2]], np.uint8), "bytes_list", [[b"\1\0\2\0"]]),
    ],
)
def test_arrays_of_other_dtypes(
    feature: Any, array: NDArray[Any], kind: str, wanted: list[list[Any]], tmp_path: Path
) -> None:
    assert one(tmp_path, feature, array) == [(kind, row) for row in wanted]


def test_arrays_of_bytes_are_listed_by_their_rows() -> None:
    given = {
        "one": dtf.RawFeature((2,), "int16"),
        "some": dtf.RawFeature((2,), "int16", count=3),
        "any": dtf.RawFeature((2,), "int16", count=-1),
        "open": dtf.RawFeature((-1, 2), "int16"),
    }
    assert {name: listed_feature(name, feature) for name, feature in given.items()} == {
        "one": dtf.FixedLenFeature((2,), "int16"),
        "some": dtf.FixedLenFeature((3, 2), "int16"),
        "any": dtf.VarLenFeature("int16", shape=(-1, 2)),
        "open": dtf.VarLenFeature("int16", shape=(-1, 2)),
    }
    for count, shape in ((None, (2, -1)), (-1, (-1, 2))):
        with pytest.raises(SchemaError, match="array 'a' has rows of different shapes"):
            listed_feature("a", dtf.RawFeature(shape, "int16", count=count))


@pytest.mark.parametrize(
    ("feature", "array", "row", "said"),
    [
        (dtf.FixedLenFeature((), "int8"), np.array([1, 300]), 1, "holds 300, which does not fit int8"),
        (dtf.FixedLenFeature((), "uint64"), np.array([0, -1]), 1, "holds -1, which does not fit uint64"),
        (dtf.FixedLenFeature((), "bool"), np.array([2]), 0, "holds 2, which does not fit bool"),
        (dtf.FixedLenFeature((), "int64"), np.array([2**63], np.uint64), 0, "which does not fit int64"),
        (dtf.FixedLenFeature((), "uint64"), np.array([2**63], np.uint64), 0, "which exceeds int64"),
        (dtf.FixedLenFeature((2,), "float32"), np.array([[0, 1], [1e300, 0]]), 1, r"1e\+300, which does not fit"),
        (dtf.FixedLenFeature((), "float32"), np.array([1, 2**24 + 1]), 1, "which does not fit float32"),
        (dtf.FixedLenFeature((), "float64"), np.array([0.5, 0.1]), 1, "which float32, the floats of an Example, can"),
        (dtf.VarLenFeature("int8"), RaggedBlock(np.array([1, 2, 300]), np.array([0, 2, 2, 3])), 2, "does not fit int8"),
    ],
)
def test_values_that_do_not_fit_are_named(feature: Any, array: Any, row: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match=said) as caught:
        one(tmp_path, feature, array)
    assert caught.value.place is not None
    assert (caught.value.place.record, caught.value.place.feature) == (row, "x")


@pytest.mark.parametrize(
    ("feature", "array", "said"),
    [
        (dtf.FixedLenFeature((), "int64"), np.zeros(2), "is of float64, which FixedLenFeature"),
        (dtf.FixedLenFeature((), "float32"), np.zeros(2, complex), "RawFeature or TensorFeature of complex128"),
        (dtf.FixedLenFeature((2,), "float32"), np.zeros((2, 3)), r"rows of shape \(3,\), but"),
        (dtf.FixedLenFeature((), "bytes"), np.zeros(2), "which FixedLenFeature"),
        (dtf.TextFeature(), np.zeros(2, np.int64), "is of int64, which TextFeature"),
        (dtf.ImageFeature(), np.zeros((2, 3, 3, 1), np.float32), "is of float32, which ImageFeature"),
        (dtf.FixedLenFeature((3,), "int64"), RaggedBlock(np.arange(3), np.array([0, 3])), r"\(-1,\), but"),
    ],
)
def test_columns_that_can_not_fit_are_refused_before_a_row_is_seen(
    feature: Any, array: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SchemaError, match=said):
        one(tmp_path, feature, array)


def test_nothing_is_left_out_in_silence() -> None:
    column = dtf.FixedLenFeature((), "int64")
    with pytest.raises(SchemaError, match="'y' belongs to no feature"):
        Encoder(Schema({"x": column}), Schema({"x": column, "y": column}))
    with pytest.raises(SchemaError, match=r"feature 'x': the column that .* is written from is missing"):
        Encoder(Schema({"x": column}), Schema({"y": column}))


def test_features_that_share_a_key_have_to_agree(tmp_path: Path) -> None:
    schema = Schema({"v": dtf.VarLenFeature("float32"), "s": dtf.SparseFeature("i", "v", "float32", 9)})
    arrays = {"v": [[], [1.0, 2.0]], "s.indices": [[], [[3], [5]]], "s.values": [[], [1.0, 2.0]]}
    message = messages.Example.FromString(written(tmp_path, arrays, schema)[1])
    assert sorted(message.features.feature) == ["i", "v"]
    with pytest.raises(SchemaError, match="share the key 'v'"):
        written(tmp_path, arrays | {"s.values": [[], [1.0, 3.0]]}, schema)


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        (R("int64", partitions=[R.UniformRowLength(2), R.RowLengths("n")]), "a row of 1 items, which UniformRowLength"),
        (R("int64", partitions=[R.ValueRowIds("n"), R.RowLengths("m")]), "ends with an empty row"),
    ],
)
def test_partitions_that_do_not_determine_rows(feature: Any, said: str, tmp_path: Path) -> None:
    assert one(tmp_path, feature, [[[[0], [1]]]])
    with pytest.raises(FeatureError, match=said):
        one(tmp_path, feature, [[[[0]]], [[[1]], []]])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"x.indices": [[[9]]]}, r"outside of size"),
        ({"x.indices": [[[1], [2]]]}, "holds 2 indices for 1 values"),
        ({"x.shape": np.array([[8]])}, "has shape"),
    ],
)
def test_sparse_columns_have_to_fit_each_other(column: dict[str, Any], said: str, tmp_path: Path) -> None:
    fitting = {"x.indices": [[[1]]], "x.values": [[1.0]], "x.shape": np.array([[9]])}
    with pytest.raises(FeatureError, match=said):
        written(tmp_path, fitting | column, Schema({"x": dtf.SparseFeature("i", "v", "float32", 9)}))


def test_the_step_of_a_value_is_named(tmp_path: Path) -> None:
    steps = RaggedBlock(RaggedBlock(np.array([1, 2**63], np.uint64), np.array([0, 1, 2])), np.array([0, 0, 2]))
    with pytest.raises(FeatureError, match=r"record 1: feature 'x' holds .* exceeds int64, .*, in step 1"):
        written(tmp_path, {"x": steps}, Schema({}, sequence_features={"x": dtf.VarLenFeature("uint64")}))


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_have_to_fit_the_padded_rows(length: int, tmp_path: Path) -> None:
    schema = Schema({}, sequence_features={"x": dtf.FixedLenSequenceFeature((), "int64")})
    arrays = {"x": np.arange(6).reshape(2, 3), "x.lengths": np.array([3, length])}
    with pytest.raises(FeatureError, match=f"its lengths column has {length}"):
        written(tmp_path, arrays, schema)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float16"])
def test_png_is_lossless(channels: int, dtype: str, tmp_path: Path) -> None:
    levels = np.random.default_rng(channels).integers(0, 256, (2, 5, 7, channels))
    array = levels.astype(dtype)
    if dtype == "uint16":
        array = (levels * 257).astype(dtype)
        array[0, 0, 0, 0] = 12345
    elif dtype != "uint8":
        # As reading leaves them, which multiplies.
        array = (levels.astype(np.float32) * np.float32(1 / 255)).astype(dtype)
    for row, (_, [data]) in enumerate(one(tmp_path, dtf.ImageFeature((5, 7, channels), dtype), array)):
        assert (decode_image(data, dtf.ImageFeature(dtype=dtype)) == array[row]).all()


def test_images_of_other_formats(tmp_path: Path) -> None:
    frames = RaggedBlock(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 0, 3]))
    encoding = {"x": {"format": "JPG", "quality": 95}}
    empty, (_, three) = one(tmp_path, dtf.ImageFeature((-1, 8, 8, 3)), frames, encoding=encoding)
    assert empty == ("bytes_list", [])
    assert [data[:3] for data in three] == [b"\xff\xd8\xff"] * 3


@pytest.mark.parametrize(
    ("image", "encoding", "said"),
    [
        (np.zeros((1, 2, 2, 4), np.uint8), "jpeg", "4 channels; jpeg stores 1 or 3"),
        (np.zeros((1, 2, 2, 3), np.uint16), "webp", "16 bits per channel; webp stores 8"),
        (np.zeros((1, 0, 2, 3), np.uint8), "png", "without pixels"),
        (np.full((1, 2, 2, 3), 0.1234567, np.float32), "png", "would be rounded"),
        (np.full((1, 2, 2, 3), np.nan, np.float32), "png", "would be rounded"),
        *((np.zeros((1, 2, 2, 3), np.uint8), wrong, "encoding of 'x'") for wrong in ("tiff", 7, {"quality": 3})),
    ],
)
def test_images_that_would_change_and_invalid_encodings_are_refused(
    image: NDArray[Any], encoding: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises((FeatureError, SchemaError), match=said):
        one(tmp_path, dtf.ImageFeature(dtype=image.dtype), image, encoding={"x": encoding})
