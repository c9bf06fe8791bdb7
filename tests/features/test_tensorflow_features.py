"""Features of `tf.io` are converted by their fields: of substitutes, and of TensorFlow's own features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.schema import Schema

FixedLenFeature = namedtuple("FixedLenFeature", ["shape", "dtype", "default_value"])
VarLenFeature = namedtuple("VarLenFeature", ["dtype"])
FixedLenSequenceFeature = namedtuple("FixedLenSequenceFeature", ["shape", "dtype", "allow_missing", "default_value"])
SparseFeature = namedtuple("SparseFeature", ["index_key", "value_key", "dtype", "size", "already_sorted"])
RaggedFeature = namedtuple("RaggedFeature", ["dtype", "value_key", "partitions", "row_splits_dtype", "validate"])
RowLengths = namedtuple("RowLengths", ["key"])
RowSplits = namedtuple("RowSplits", ["key"])
UniformRowLength = namedtuple("UniformRowLength", ["length"])


# Objects with the attributes of TensorFlow's features.
INT64 = SimpleNamespace(name="int64", as_numpy_dtype=np.int64)
INT32 = SimpleNamespace(name="int32", as_numpy_dtype=np.int32)
FLOAT32 = SimpleNamespace(name="float32", as_numpy_dtype=np.float32)
STRING = SimpleNamespace(name="string", as_numpy_dtype=object)
SHAPE = SimpleNamespace(as_list=lambda: [2, 3])
TENSOR = SimpleNamespace(numpy=lambda: np.array([4, 5]))
R = dtf.RaggedFeature


OURS = {
    "fixed": dtf.FixedLenFeature((), "int64"),
    "shape": dtf.FixedLenFeature((2, 3), "float32"),
    "whole": dtf.FixedLenFeature((2,), "bytes", (b"a", b"b")),
    "tensor": dtf.FixedLenFeature((2,), "int64", (4, 5)),
    "varlen": dtf.VarLenFeature("bytes"),
    "named": dtf.VarLenFeature("float32"),
    "sparse": dtf.SparseFeature("ix", "val", "float32", 10),
    "sparse2": dtf.SparseFeature(("i", "j"), "v", "int64", (3, 4), already_sorted=True),
    "ragged": R("int64"),
    "cut": R("bytes", "vals", [R.RowLengths("l"), R.UniformRowLength(2), R.RowSplits("s")]),
    "more": R("float32", partitions=[R.ValueRowIds("v"), R.RowLimits("e"), R.RowStarts("b")]),
    "padded": dtf.FixedLenSequenceFeature((4,), "float32", allow_missing=True, default_value=-1.0),
}
SUBSTITUTES = {
    "fixed": FixedLenFeature([], INT64, None),
    "shape": FixedLenFeature(SHAPE, FLOAT32, None),
    "whole": FixedLenFeature(2, STRING, [b"a", "b"]),
    "tensor": FixedLenFeature((2,), INT64, TENSOR),
    "varlen": VarLenFeature(STRING),
    "named": VarLenFeature("float32"),
    "sparse": SparseFeature("ix", "val", FLOAT32, 10, False),
    "sparse2": SparseFeature(["i", "j"], "v", INT64, [3, 4], True),
    "ragged": RaggedFeature(INT64, None, (), INT32, False),
    "cut": RaggedFeature(STRING, "vals", (RowLengths("l"), UniformRowLength(2), RowSplits("s")), INT64, True),
    "padded": FixedLenSequenceFeature([4], FLOAT32, True, -1.0),
}


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_features_are_converted_by_their_fields(name: str) -> None:
    assert Schema({"a": SUBSTITUTES[name]})["a"] == OURS[name]


@pytest.mark.parametrize(
    "wrong",
    [
        "int64",
        dtf.VarLenFeature,
        namedtuple("VarLenFeature", ["type"])(INT64),
        namedtuple("FixedLenFeatures", ["shape", "dtype", "default_value"])((), INT64, None),
        RaggedFeature(INT64, "v", ("l",), INT32, False),
        RaggedFeature(INT64, "v", (namedtuple("RowLengths", ["name"])("l"),), INT32, False),
        RaggedFeature(INT64, "v", (), SimpleNamespace(name="int16", as_numpy_dtype=np.int16), False),
        FixedLenFeature((), SimpleNamespace(name="variant", as_numpy_dtype=object()), None),
    ],
)
def test_objects_without_the_fields_of_a_feature_are_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError, match=r"'a'|RaggedFeature|FixedLenFeature"):
        Schema({"a": wrong})


# Loads only the modules of features, since the interpreter with TensorFlow may lack dependencies of the package. The
# script records the imported modules before it imports TensorFlow.
OBJECTS = f"""
import json, sys, types
package = types.ModuleType("dask_tfrecord")
package.__path__ = [{str(Path(dtf.__file__).parent)!r}]
sys.modules["dask_tfrecord"] = package
from dask_tfrecord.features.schema import Schema
imported = "tensorflow" in sys.modules
import tensorflow as tf
R = tf.io.RaggedFeature
context = {{
    "fixed": tf.io.FixedLenFeature([], tf.int64),
    "shape": tf.io.FixedLenFeature(tf.TensorShape([2, 3]), tf.float32),
    "whole": tf.io.FixedLenFeature(2, tf.string, [b"a", "b"]),
    "tensor": tf.io.FixedLenFeature((2,), tf.int64, tf.constant([4, 5], tf.int64)),
    "varlen": tf.io.VarLenFeature(tf.string),
    "named": tf.io.VarLenFeature("float32"),
    "sparse": tf.io.SparseFeature("ix", "val", tf.float32, 10),
    "sparse2": tf.io.SparseFeature(["i", "j"], "v", tf.int64, [3, 4], already_sorted=True),
    "ragged": R(tf.int64),
    "cut": R(tf.string, "vals", [R.RowLengths("l"), R.UniformRowLength(2), R.RowSplits("s")], tf.int64, True),
    "more": R(tf.float32, partitions=(R.ValueRowIds("v"), R.RowLimits("e"), R.RowStarts("b"))),
    "padded": tf.io.FixedLenSequenceFeature([4], tf.float32, allow_missing=True, default_value=-1.0),
}}
sequences = {{
    "steps": tf.io.FixedLenSequenceFeature([], tf.string),
    "tokens": tf.io.VarLenFeature(tf.int64),
    "words": R(tf.string, "w", [R.RowLengths("n")]),
}}
print(json.dumps([imported, Schema(context).to_json(), Schema(context, sequence_features=sequences).to_json()]))
"""


@pytest.mark.tensorflow
def test_features_of_tensorflow_are_taken_by_their_fields(tensorflow: str) -> None:
    sequences = {
        "steps": dtf.FixedLenSequenceFeature((), "bytes"),
        "tokens": dtf.VarLenFeature("int64"),
        "words": R("bytes", "w", [R.RowLengths("n")]),
    }
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [tensorflow, "-c", OBJECTS], env=os.environ | quiet, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    imported, examples, with_lists = json.loads(done.stdout.splitlines()[-1])
    assert not imported
    assert "tensorflow" not in sys.modules
    assert Schema.from_json(examples) == Schema(OURS)
    assert Schema.from_json(with_lists) == Schema(OURS, sequence_features=sequences)
