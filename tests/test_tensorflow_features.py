"""Features of `tf.io` are converted by their fields, here from substitutes with the same fields.

`test_tensorflow_parsing` uses TensorFlow's own features, if it is installed.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema

FixedLenFeature = namedtuple("FixedLenFeature", ["shape", "dtype", "default_value"])
VarLenFeature = namedtuple("VarLenFeature", ["dtype"])
FixedLenSequenceFeature = namedtuple("FixedLenSequenceFeature", ["shape", "dtype", "allow_missing", "default_value"])
SparseFeature = namedtuple("SparseFeature", ["index_key", "value_key", "dtype", "size", "already_sorted"])
RaggedFeature = namedtuple("RaggedFeature", ["dtype", "value_key", "partitions", "row_splits_dtype", "validate"])
RowLengths = namedtuple("RowLengths", ["key"])
RowSplits = namedtuple("RowSplits", ["key"])
UniformRowLength = namedtuple("UniformRowLength", ["length"])


class DType:
    """A dtype like TensorFlow's, with an attribute for its NumPy dtype."""

    def __init__(self, name: str, as_numpy_dtype: Any) -> None:
        self.name, self.as_numpy_dtype = name, as_numpy_dtype


class TensorShape:
    """A shape that is not a sequence."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def as_list(self) -> list[int]:
        return self.sizes


class Tensor:
    """A tensor that converts to an array."""

    def numpy(self) -> Any:
        return np.array([4, 5])


INT64, FLOAT32, STRING = DType("int64", np.int64), DType("float32", np.float32), DType("string", object)
INT32 = DType("int32", np.int32)
R = dtf.RaggedFeature


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (FixedLenFeature([], INT64, None), dtf.FixedLenFeature((), "int64")),
        (FixedLenFeature(TensorShape([2, 3]), FLOAT32, None), dtf.FixedLenFeature((2, 3), "float32")),
        (FixedLenFeature((2,), INT64, Tensor()), dtf.FixedLenFeature((2,), "int64", (4, 5))),
        (FixedLenFeature(2, STRING, [b"a", "b"]), dtf.FixedLenFeature((2,), "bytes", (b"a", b"b"))),
        (VarLenFeature(STRING), dtf.VarLenFeature("bytes")),
        (VarLenFeature("float32"), dtf.VarLenFeature("float32")),
        (
            FixedLenSequenceFeature([4], FLOAT32, True, -1.0),
            dtf.FixedLenSequenceFeature((4,), "float32", allow_missing=True, default_value=-1.0),
        ),
        (SparseFeature("i", "v", FLOAT32, 10, False), dtf.SparseFeature("i", "v", "float32", 10)),
        (
            SparseFeature(["i", "j"], "v", INT64, [3, 4], True),
            dtf.SparseFeature(("i", "j"), "v", "int64", (3, 4), already_sorted=True),
        ),
        (RaggedFeature(INT64, None, (), INT32, False), R("int64")),
        (
            RaggedFeature(STRING, "v", (RowLengths("l"), UniformRowLength(2), RowSplits("s")), INT64, True),
            R("bytes", "v", [R.RowLengths("l"), R.UniformRowLength(2), R.RowSplits("s")]),
        ),
    ],
)
def test_features_are_converted_by_their_fields(theirs: Any, ours: Any) -> None:
    assert Schema({"a": theirs})["a"] == ours


@pytest.mark.parametrize(
    "wrong",
    [
        "int64",
        dtf.VarLenFeature,
        namedtuple("VarLenFeature", ["type"])(INT64),
        namedtuple("FixedLenFeatures", ["shape", "dtype", "default_value"])((), INT64, None),
        RaggedFeature(INT64, "v", ("l",), INT32, False),
        RaggedFeature(INT64, "v", (namedtuple("RowLengths", ["name"])("l"),), INT32, False),
        RaggedFeature(INT64, "v", (), DType("int16", np.int16), False),
        FixedLenFeature((), DType("variant", object()), None),
    ],
)
def test_objects_without_the_fields_of_a_feature_are_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError, match=r"'a'|RaggedFeature|FixedLenFeature"):
        Schema({"a": wrong})
