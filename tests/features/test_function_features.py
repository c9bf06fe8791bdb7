"""`FunctionFeature`: functions of a user decode and encode bytes values."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest
from google.protobuf import wrappers_pb2
from support.any_columns import dump_npy, load_npy
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError

BYTES = dtf.FixedLenFeature((), "bytes")


def write(folder: Path, rows: list[Any], name: str = "x") -> str:
    """Write .npy files, one in each record."""
    values = np.empty(len(rows), object)
    values[:] = [row if isinstance(row, bytes) else dump_npy(row) for row in rows]
    dtf.to_tfrecord({name: values}, folder / "in.tfrecord", features={name: BYTES})
    return str(folder / "in.tfrecord")


def scale(value: bytes, factor: int) -> Any:
    """Read and multiply."""
    return load_npy(value) * factor


@pytest.mark.integration
def test_partial_functions_and_lambdas_decode_on_workers(tmp_path: Path) -> None:
    path = write(tmp_path, [np.arange(3), np.arange(1)])
    offset = np.arange(1)
    features = {"x": dtf.FunctionFeature(functools.partial(scale, factor=2), (None,), "int64")}
    ds = dtf.read_tfrecord(path, features, chunks=1)
    with dask.config.set(scheduler="processes", num_workers=1):
        assert [row.tolist() for row in ds["x"].compute()] == [[0, 2, 4], [0]]
    local = dtf.read_tfrecord(path, {"x": dtf.FunctionFeature(lambda value: load_npy(value) + offset, (-1,), "int64")})
    assert [row.tolist() for row in local["x"].compute()] == [[0, 1, 2], [0]]


def test_features_are_equal_if_their_functions_do_the_same() -> None:
    def adding(number: int) -> Any:
        return lambda value: load_npy(value) + number

    one, same, other = (dtf.FunctionFeature(adding(n), (2,), "int64") for n in (1, 1, 2))
    assert one == same and hash(one) == hash(same)
    assert one != other
    assert cloudpickle.loads(cloudpickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(dtf.FunctionFeature(load_npy, (2,), "int64"))).decode is load_npy
    schemas = [dtf.Schema({"x": feature}) for feature in (one, same, other)]
    tokens = [dask.base.tokenize(schema) for schema in schemas]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.integration
def test_files_name_functions_and_reading_one_imports_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, [np.arange(3), np.arange(2)])
    feature = dtf.FunctionFeature(load_npy, (-1,), "int64", dump_npy)
    ds = dtf.read_tfrecord(path, {"x": feature})
    assert dtf.Schema.from_json(ds.schema.to_json()) == ds.schema
    ds.to_zarr(tmp_path / "out.zarr")
    ds.to_tfrecord(tmp_path / "again")
    code = """
import sys, dask_tfrecord as dtf
ds = dtf.from_zarr(sys.argv[1])
print([row.tolist() for row in ds["x"].compute()])
schema = dtf.Schema.from_json(sys.argv[3])
assert "support.any_columns" not in sys.modules
try:
    dtf.read_tfrecord(sys.argv[2], schema).compute()
except dtf.FeatureError as error:
    print(error)
"""
    text = ds.schema.to_json()
    found = run_python("-c", code, tmp_path / "out.zarr", path, text).stdout
    assert "[[0, 1, 2], [0, 1]]" in found
    assert "function support.any_columns:load_npy is not known to this process" in found


@pytest.mark.parametrize(
    ("rows", "feature", "message"),
    [
        ([b"no"], dtf.FunctionFeature(load_npy, (-1,), "int64"), r"can't be decoded by FunctionFeature\(load_npy"),
        (
            [np.zeros((2, 2))],
            dtf.FunctionFeature(load_npy, (-1,), "float64"),
            r"an array of float64 and shape \(2, 2\)",
        ),
        ([np.zeros(2, "f4")], dtf.FunctionFeature(load_npy, (-1,), "float64"), "an array of float32"),
    ],
)
def test_errors_name_record_and_feature(rows: list[Any], feature: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, [np.zeros(2, feature.dtype), *rows])
    with pytest.raises(dtf.FeatureError, match=message) as caught:
        dtf.read_tfrecord(path, {"x": feature}).compute()
    assert f"{path}: record 1 (byte " in str(caught.value) and "feature 'x'" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_writing_needs_encode_before_anything_is_written(tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(write(tmp_path, [np.zeros(2)]), {"x": dtf.FunctionFeature(load_npy, (-1,), "float64")})
    with pytest.raises(SchemaError, match=r"has no function encode=.*how to write it"):
        ds.to_tfrecord(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    again = {"x": dtf.RawFeature((-1,), "float64")}
    ds.to_tfrecord(tmp_path / "out", features=again)
    assert dtf.read_tfrecord(tmp_path / "out", again)["x"].compute()[0].tolist() == [0, 0]


def test_steps_and_nested_rows_are_decoded(tmp_path: Path) -> None:
    feature = dtf.FunctionFeature(load_npy, (2,), "int64", dump_npy)
    values = dtf.RaggedBlock(np.arange(6).reshape(3, 2), np.array([0, 1, 3]))
    schema = dtf.Schema({}, sequence_features={"x": feature})
    dtf.to_tfrecord({"x": values}, tmp_path / "a.tfrecord", features=schema)
    found = dtf.read_tfrecord(tmp_path / "a.tfrecord", schema)["x"].compute()
    assert [row.tolist() for row in found] == [[[0, 1]], [[2, 3], [4, 5]]]


def test_values_in_nested_rows_and_in_messages_are_decoded(tmp_path: Path) -> None:
    feature = dtf.FunctionFeature(load_npy, (2,), "int64", dump_npy)
    nested = dtf.RaggedFeature("bytes", partitions=[dtf.RaggedFeature.RowLengths("lengths")], values=feature)
    inner = dtf.RaggedBlock(np.arange(6).reshape(3, 2), np.array([0, 1, 3]))
    rows = {"x": dtf.RaggedBlock(inner, np.array([0, 2]))}
    dtf.to_tfrecord(rows, tmp_path / "nested.tfrecord", features={"x": nested})
    (found,) = dtf.read_tfrecord(tmp_path / "nested.tfrecord", {"x": nested})["x"].compute()
    assert [row.tolist() for row in found] == [[[0, 1]], [[2, 3], [4, 5]]]
    with dtf.RecordWriter(tmp_path / "messages.tfrecord") as writer:
        writer.write(wrappers_pb2.BytesValue(value=dump_npy(np.array([7, 8]))).SerializeToString())
    values = {"value": dtf.ProtoFeature("value", values=feature)}
    ds = dtf.read_tfrecord(tmp_path / "messages.tfrecord", values, message=wrappers_pb2.BytesValue)
    assert ds["value"].compute().tolist() == [[7, 8]]
    ds.to_tfrecord(tmp_path / "again")
    again = dtf.read_tfrecord(tmp_path / "again", values, message=wrappers_pb2.BytesValue)
    assert again["value"].compute().tolist() == [[7, 8]]


def test_a_class_of_another_name_or_kind_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected a dataclass that is a Feature"):
        dtf.register_feature(int)  # type: ignore[type-var]
    with pytest.raises(SchemaError, match="expected a function"):
        dtf.FunctionFeature("load", (), "int64")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2,), (-1,), (-1, -1)])
def test_a_function_may_return_the_same_memory_for_each_value(shape: tuple[int, ...], tmp_path: Path) -> None:
    buffer = np.empty((2,) if len(shape) == 1 else (1, 2), np.uint8)

    def decode(value: bytes) -> Any:
        buffer.reshape(-1)[:] = np.frombuffer(value, np.uint8)
        return buffer

    ds = dtf.read_tfrecord(write(tmp_path, [b"\1\2", b"\3\4"]), {"x": dtf.FunctionFeature(decode, shape, "uint8")})
    found = ds["x"].compute(scheduler="sync")
    assert [np.ravel(row).tolist() for row in found] == [[1, 2], [3, 4]]


def test_masked_values_are_not_decoded_to_what_the_mask_hides(tmp_path: Path) -> None:
    def decode(value: bytes) -> Any:
        return np.ma.masked_equal(np.frombuffer(value, np.uint8), 9)

    path = write(tmp_path, [b"\1\2", b"\3\t"])
    with pytest.raises(dtf.FeatureError, match=r"record 1 .*masked values; fill them"):
        dtf.read_tfrecord(path, {"x": dtf.FunctionFeature(decode, (2,), "uint8")}).compute()


@pytest.mark.parametrize("result", [3, True, [1, 2], np.arange(2), np.int64(3)])
def test_encode_has_to_return_bytes(result: Any, tmp_path: Path) -> None:
    feature = dtf.FunctionFeature(load_npy, (2,), "int64", lambda array: result)
    with pytest.raises(dtf.FeatureError, match=rf"record 0: feature 'x' .*expected bytes; got {type(result).__name__}"):
        dtf.to_tfrecord({"x": np.zeros((1, 2), np.int64)}, tmp_path / "out.tfrecord", features={"x": feature})


@pytest.mark.parametrize("shape", [(2,), (-1,), (-1, -1)])
def test_encode_may_change_its_array(shape: tuple[int, ...], tmp_path: Path) -> None:
    def encode(array: Any) -> bytes:
        array += 1
        return bytes(array.tobytes())

    given = [np.zeros((2,) if len(shape) == 1 else (1, 2), np.uint8) for _ in range(2)]
    rows = {"x": np.array(given) if shape == (2,) else given}
    feature = dtf.FunctionFeature(load_npy, shape, "uint8", encode)
    for _ in range(2):
        dtf.to_tfrecord(rows, tmp_path / "out.tfrecord", features={"x": feature}, mode="w")
        stored = dtf.read_tfrecord(tmp_path / "out.tfrecord", {"x": BYTES})["x"].compute()
        assert stored.tolist() == [b"\1\1"] * 2
    assert not np.any(rows["x"])


MODULE = """
import io
import numpy as np
import functools
CACHED = []

class Reader:
    def __init__(self, add):
        self.add = add

    def __call__(self, value):
        return np.frombuffer(value, np.uint8) * np.uint8(2)

reader, options, table = Reader(1), {"scale": [1]}, np.arange(3)

def even(value):
    return odd(value)

def odd(value):
    return even(value) if len(value) > 5 else helper(value)

def helper(value):
    return np.frombuffer(value, np.uint8) * np.uint8(1)

def decode(value):
    return reader(value) + even(value) + options["scale"][0] + table[0] + len([helper(each) for each in ()])
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Reader(1)", "Reader(2)"),
        ('"scale": [1]', '"scale": [2]'),
        ("np.arange(3)", "np.arange(4)"),
        ("np.uint8(1)", "np.uint8(3)"),
        ("np.uint8(2)", "np.uint8(3)"),
        ("len(value) > 5", "len(value) > 6"),
    ],
)
def test_a_function_is_another_one_if_what_it_uses_has_changed(old: str, new: str, tmp_path: Path) -> None:
    def feature(code: str) -> dtf.FunctionFeature:
        names: dict[str, Any] = {"__name__": "module_of_a_user"}
        exec(code, names)
        return dtf.FunctionFeature(names["decode"], (2,), "uint8")

    path = write(tmp_path, [b"\1\2"])
    one, same, other = map(feature, (MODULE, MODULE, MODULE.replace(old, new)))
    assert one == same != other
    keys = [dtf.read_tfrecord(path, {"x": each})["x"].name for each in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]
    assert cloudpickle.loads(cloudpickle.dumps(one)) == one


FILLED: dict[bytes, int] = {}


def test_a_function_that_fills_a_cache_stays_the_same(tmp_path: Path) -> None:
    def decode(value: bytes) -> Any:
        FILLED[value] = len(FILLED)
        return np.frombuffer(value, np.uint8)

    def encode(array: Any) -> bytes:
        FILLED.clear()
        return bytes(array.tobytes())

    feature = dtf.FunctionFeature(decode, (2,), "uint8", encode)
    ds = dtf.read_tfrecord(write(tmp_path, [b"\1\2", b"\3\4"]), {"x": feature}, chunks=1)
    ds.to_zarr(tmp_path / "out.zarr")
    ds.to_zarr(tmp_path / "out.zarr", resume=True)
    ds.to_tfrecord(tmp_path / "again")
    found = dtf.read_tfrecord(tmp_path / "again", {"x": feature})
    assert found.schema == ds.schema
    assert found["x"].compute().tolist() == [[1, 2], [3, 4]]


class OddError(Exception):
    """An error whose text is another error."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_without_a_text_names_the_record(tmp_path: Path) -> None:
    def decode(value: bytes) -> Any:
        raise OddError

    path = write(tmp_path, [b"a"])
    with pytest.raises(dtf.FeatureError, match=r"record 0 .*can't be decoded by FunctionFeature\(.*: OddError"):
        dtf.read_tfrecord(path, {"x": dtf.FunctionFeature(decode, (1,), "uint8")}).compute(scheduler="sync")
