"""Decoding of serialized tensors, compared with protobuf and `tf.io.parse_tensor`: every form of a TensorProto."""

from __future__ import annotations

import math
import pickle
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import write_oracle
from oracle.tensors import LISTS, tensor_of
from oracle.values import Mismatch, oracle_dtype
from support import tensor_messages as made
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord._native import DataType
from dask_tfrecord.errors import FeatureError, SchemaError
from dask_tfrecord.features.tensor import TENSOR_DTYPES

SHAPES: list[tuple[int, ...]] = [(), (5,), (2, 3), (-1,), (-1, 2), (2, -1, 3), (0,)]
# Types of the default tests: one of each form of values in a message.
FEW_DTYPES = ("float32", "int64", "bytes", "bfloat16", "complex64")


def read(path: Path, encoded: list[bytes], dtype: str, shape: tuple[int, ...], **options: Any) -> NDArray[Any]:
    write_oracle(path, [example(t=[one]) for one in encoded])
    column: NDArray[Any] = dtf.read_tfrecord(path, {"t": dtf.TensorFeature(shape, dtype)}, **options)["t"].compute()
    return column


def rows(column: NDArray[Any], shape: tuple[int, ...], dtype: str) -> list[NDArray[Any]]:
    """One array per record, whether the block is dense or not."""
    if -1 in shape:
        assert column.dtype == object and column.ndim == 1
        return list(column)
    assert column.shape[1:] == shape and column.dtype == oracle_dtype(dtype)
    return [np.asarray(row, column.dtype) for row in column]


def bits(array: NDArray[Any]) -> Any:
    """Return the content of an array; protobuf in Python loses the payload of a NaN."""
    if array.dtype == object:
        return (array.shape, array.ravel().tolist())
    if array.dtype.kind in "fc":
        parts = array.ravel().view(array.real.dtype)
        return (array.dtype, array.shape, np.where(np.isnan(parts), math.nan, parts).astype(parts.dtype).tobytes())
    return (array.dtype, array.shape, array.tobytes())


def expected_by_protobuf(encoded: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | Mismatch:
    try:
        return tensor_of(encoded, dtype, shape)
    except Mismatch as refused:
        return refused


@pytest.mark.parametrize(
    ("dtype", "count"),
    [*((dtype, 6) for dtype in FEW_DTYPES), *(pytest.param(dtype, 14, marks=pytest.mark.slow) for dtype in LISTS)],
)
def test_every_form_is_read_as_protobuf_reads_it(tmp_path: Path, dtype: str, count: int) -> None:
    @settings(max_examples=count, derandomize=True, phases=[Phase.generate])
    @given(st.data(), st.sampled_from(SHAPES))
    def agree(data: st.DataObject, shape: tuple[int, ...]) -> None:
        messages = data.draw(st.lists(made.encodings(dtype, shape), min_size=10, max_size=10))
        answers = [(encoded, expected_by_protobuf(encoded, dtype, shape)) for encoded in messages]
        tensors = [(encoded, answer) for encoded, answer in answers if not isinstance(answer, Mismatch)]
        found = read(tmp_path / "good.tfrecord", [encoded for encoded, _ in tensors], dtype, shape)
        for row, (encoded, wanted) in zip(rows(found, shape, dtype), tensors, strict=True):
            assert bits(row) == bits(wanted), encoded
        for encoded, answer in answers:
            if isinstance(answer, Mismatch):
                with pytest.raises(FeatureError, match=r"record 1 \(byte \d+\): feature 't'"):
                    read(tmp_path / "bad.tfrecord", [made.header(dtype, map(abs, shape)), encoded], dtype, shape)

    agree()


def test_dtypes_of_tensors_are_those_of_the_native_decoder() -> None:
    assert {name.upper() for name in TENSOR_DTYPES} == {member.name for member in DataType}


def test_a_tensor_of_more_dimensions_than_numpy_has_is_refused_by_name(tmp_path: Path) -> None:
    path, one = tmp_path / "a", made.packed("float32", [1.5])
    assert read(path, [made.header("float32", [1] * 63) + one], "float32", (1,) * 63).shape == (1,) * 64
    for axes, size in [(64, 1), (64, -1), (65, 1), (65, -1)]:
        write_oracle(path, [example(t=[made.header("float32", [1] * axes) + one])])
        with pytest.raises(SchemaError, match=f"TensorFeature: expected at most 63 axes, .* got {axes}"):
            dtf.TensorFeature((size,) * axes, "float32")
        with pytest.raises(FeatureError, match=r"a: record 0 \(byte 0\): feature 't' holds .*, but TensorFeature"):
            dtf.read_tfrecord(path, {"t": dtf.TensorFeature((1,), "float32")}).compute()
        # No suggestion that would be refused.
        assert "TensorFeature" not in str(dtf.inspect_records(path))


def test_a_few_bytes_never_become_gigabytes(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {"float32": [1.0], "bytes": [b"x" * 100], "uint8": []}
    for dtype, value in values.items():
        bomb = made.header(dtype, (1 << 20, 1 << 20)) + made.packed(dtype, value)
        with pytest.raises(FeatureError, match="1048576, 1048576"):
            read(tmp_path / "t.tfrecord", [bomb], dtype, (-1, -1))


# ---- TensorFlow

# TensorFlow accepts these messages and discards or invents values; here they are errors. `test_tensorflow_table` has
# more of them.
DROPPED = {
    "values of no element": ("int32", (0,), made.packed("int32", [1]), []),
    "content of no element": ("int32", (0,), made.content(np.array([1], np.int32)), []),
    "bits beyond the dtype": ("float16", (1,), made.packed("float16", [0x13C00]), [1.0]),
}


@pytest.mark.parametrize("case", DROPPED)
def test_values_that_tensorflow_drops_or_invents_are_an_error(tmp_path: Path, case: str) -> None:
    dtype, sizes, values, _ = DROPPED[case]
    for shape in [sizes, (-1,)]:
        with pytest.raises(FeatureError, match=r"record 0 .*feature 't'"):
            read(tmp_path / "t.tfrecord", [made.header(dtype, sizes) + values], dtype, shape)


# Shape and bytes (or strings) of the tensors in messages, None where TensorFlow refuses.
PARSE = """
import os, pickle, sys
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
answers_to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
import tensorflow as tf

tf.debugging.disable_traceback_filtering()  # which takes longer than all the rest

def answer(encoded, dtype):
    try:
        array = tf.io.parse_tensor(encoded, tf.as_dtype("string" if dtype == "bytes" else dtype)).numpy()
    except (tf.errors.InvalidArgumentError, ValueError):  # ValueError: NumPy has no such array
        return None
    if dtype == "bytes":
        return (tf.constant(array).shape.as_list(), tf.reshape(array, [-1]).numpy().tolist())
    return (list(array.shape), array.tobytes())

pickle.dump([answer(*case) for case in pickle.load(sys.stdin.buffer)], answers_to)
"""


def ask(python: str, cases: list[Any]) -> list[Any]:
    """Parse cases in the interpreter with TensorFlow."""
    done = subprocess.run([python, "-c", PARSE], input=pickle.dumps(cases), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    answers: list[Any] = pickle.loads(done.stdout)
    return answers


def plain(array: NDArray[Any]) -> Any:
    return (list(array.shape), array.ravel().tolist() if array.dtype == object else array.tobytes())


def some(dtype: str, shape: tuple[int, ...], count: int) -> list[bytes]:
    """Messages in all forms, the same in every run."""
    found: list[bytes] = []

    @settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate])
    @given(made.encodings(dtype, shape))
    def collect(encoded: bytes) -> None:
        found.append(encoded)

    collect()
    return found


@pytest.mark.tensorflow
def test_every_form_is_read_as_tensorflow_reads_it(tensorflow: str, tmp_path: Path) -> None:
    cases = [(one, dtype, shape) for dtype in LISTS for shape in SHAPES for one in some(dtype, shape, 60)]
    answers = [expected_by_protobuf(*case) for case in cases]
    # TensorFlow may exhaust memory on messages that only this library refuses.
    cases = [
        case
        for case, answer in zip(cases, answers, strict=True)
        if not isinstance(answer, Mismatch) or answer.tensorflow
    ]
    seen: Counter[bool] = Counter()
    for case, wanted in zip(cases, ask(tensorflow, [case[:2] for case in cases]), strict=True):
        encoded, dtype, shape = case
        seen[wanted is None] += 1
        try:
            [row] = rows(read(tmp_path / "t.tfrecord", [encoded], dtype, shape), shape, dtype)
            found = plain(row)
        except FeatureError:
            found = None
        assert found == wanted, case
    assert min(seen.values()) > 500


@pytest.mark.tensorflow
def test_tensorflow_reads_dropped_or_invented_values(tensorflow: str) -> None:
    asked = [(made.header(dtype, sizes) + values, dtype) for dtype, sizes, values, _ in DROPPED.values()]
    wanted = [plain(np.array(read, oracle_dtype(dtype))) for dtype, _, _, read in DROPPED.values()]
    assert ask(tensorflow, asked) == wanted
