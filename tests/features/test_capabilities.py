"""Which feature classes have which capability: each works, or is refused by an error that names it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from oracle import messages, write_oracle
from support.any_columns import dump_npy, dump_text, listed, load_npy, load_text
from support.images import png
from support.wire import delimited, example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.features import FloatImageFeature, UniformRowLength


@dataclass(frozen=True)
class Kind:
    """A class: a feature with options, what two records store, and its column."""

    make: Callable[..., Any]
    stored: list[list[Any]]
    column: list[Any]
    keys: str = "value_key"  # argument that names the key


def tensor(values: list[int]) -> bytes:
    message = messages.TensorProto(dtype=9, int64_val=values)
    message.tensor_shape.dim.add(size=len(values))
    return bytes(message.SerializeToString())


def floats(value: float) -> Any:
    return np.full((1, 2, 1), value, "float32")


PIXELS = [np.full((1, 2, 3), level, "uint8") for level in (7, 9)]
ARRAYS = [np.array([1, 2]), np.array([3, 4])]
NUMBERS = [array.tolist() for array in ARRAYS]
KINDS = {
    "FixedLen": Kind(lambda dtype="int64", **of: dtf.FixedLenFeature((2,), dtype, **of), NUMBERS, NUMBERS),
    "VarLen": Kind(lambda dtype="int64", **of: dtf.VarLenFeature(dtype, **of), [[1], [2, 3]], [[1], [2, 3]]),
    "Steps": Kind(
        lambda dtype="int64", **of: dtf.FixedLenSequenceFeature((), dtype, allow_missing=True, **of),
        [[1], [2, 3]],
        [[1, 0], [2, 3]],
    ),
    "Ragged": Kind(
        lambda dtype="int64", **of: dtf.RaggedFeature(dtype, partitions=[UniformRowLength(1)], **of),
        [[1], [2, 3]],
        [[[1]], [[2], [3]]],
    ),
    "Raw": Kind(
        lambda dtype="int64", **of: dtf.RawFeature(of.pop("shape", (2,)), dtype, **of),
        [[array.tobytes()] for array in ARRAYS],
        NUMBERS,
    ),
    "Tensor": Kind(
        lambda dtype="int64", **of: dtf.TensorFeature((2,), dtype, **of),
        [[tensor(values)] for values in NUMBERS],
        NUMBERS,
    ),
    "Image": Kind(
        lambda dtype="uint8", **of: dtf.ImageFeature((1, 2, 3), dtype, **of),
        [[png(image)] for image in PIXELS],
        [image.tolist() for image in PIXELS],
    ),
    "FloatImage": Kind(
        lambda **of: FloatImageFeature((1, 2, 1), **of),
        [[png(floats(value).view("uint8"))] for value in (0.5, 2)],
        [floats(value).tolist() for value in (0.5, 2)],
    ),
    "Text": Kind(lambda **of: dtf.TextFeature(**of), [[b"a"], ["\xe4".encode()]], ["a", "\xe4"]),
    "Function": Kind(
        lambda dtype="int64", **of: dtf.FunctionFeature(load_npy, (2,), dtype, dump_npy, **of),
        [[dump_npy(array)] for array in ARRAYS],
        NUMBERS,
    ),
    "Proto": Kind(
        lambda **of: dtf.ProtoFeature(Int64Value, "value", **of),
        [[Int64Value(value=value).SerializeToString()] for value in (5, 6)],
        [5, 6],
        keys="key",
    ),
}
SECONDS = [np.array(array, "M8[s]") for array in ARRAYS]


def read(folder: Path, features: dict[str, Any], records: list[bytes], **options: Any) -> dict[str, Any]:
    write_oracle(folder / "a", records)
    ds = dtf.read_tfrecord(folder / "a", features, **options)
    return {name: listed(column) for name, column in ds.compute().items()}


def records_of(kind: Kind, **others: Any) -> list[bytes]:
    return [example(x=stored, **others) for stored in kind.stored]


def shared_key(kind: Kind, folder: Path) -> None:
    """Read one key as two columns of one class."""
    found = read(folder, {"x": kind.make(), "y": kind.make(**{kind.keys: "x"})}, records_of(kind))
    columns = {name: column for name, column in found.items() if name[0] in "xy"}
    assert [*columns.values()] == [kind.column] * 2
    ds = dtf.read_tfrecord(folder / "a", {"y": kind.make(**{kind.keys: "x"})})
    ds.to_tfrecord(folder / "b")
    assert listed(dtf.read_tfrecord(folder / "b", ds.schema).compute()["y"]) == kind.column


def two_ways(kind: Kind, folder: Path) -> None:
    """Read one key as the bytes that it stores, too."""
    features = {"x": kind.make(), "stored": dtf.FixedLenFeature((), "bytes", value_key="x")}
    found = read(folder, features, records_of(kind))
    assert (found["x"], [[value] for value in found["stored"]]) == (kind.column, kind.stored)


def any_count(kind: Kind, folder: Path) -> None:
    """Read any number of values of each record."""
    stored = [value for values in kind.stored for value in values]
    found = read(folder, {"x": kind.make(count=-1)}, [example(x=stored), example()])
    assert found["x"] == [kind.column, []]


def sizes_in_keys(kind: Kind, folder: Path) -> None:
    """Read the shape of each array from a key that lists it."""
    feature = kind.make(shape=(-1, -1), size_keys=["sizes"])
    found = read(folder, {"x": feature}, [example(x=of, sizes=[2, 1]) for of in kind.stored[:1] * 2])
    assert np.shape(found["x"][0]) == (2, 1)


def times(kind: Kind, folder: Path) -> None:
    """Read seconds since 1970."""
    feature, stored = kind.make(dtype="datetime64[s]"), kind.stored
    if isinstance(feature, dtf.FunctionFeature):
        stored = [[dump_npy(array)] for array in SECONDS]
    found = read(folder, {"x": feature}, [example(x=of) for of in stored])
    assert "1970" in str(np.array(found["x"][0]).ravel().astype("M8[s]")[0])


def text(kind: Kind, folder: Path) -> None:
    """Read text."""
    feature = kind.make(dtype=str)
    if isinstance(feature, dtf.FunctionFeature):
        feature = dtf.FunctionFeature(load_text, (2,), str, dump_text)
    found = read(folder, {"x": feature}, [example(x=[b'["a", "b"]'])])
    assert found["x"] == [["a", "b"]]


def fast(kind: Kind, folder: Path) -> None:
    """Decode JPEG by the fast DCT."""
    assert kind.make(fast=True).fast


def default(kind: Kind, folder: Path) -> None:
    """Fill records without the key."""
    value = "d" if isinstance(kind.make(), dtf.TextFeature) else 7
    found = read(folder, {"x": kind.make(default_value=value)}, [*records_of(kind), example()])
    assert np.array(found["x"][2]).ravel()[0] in ("d", 7, "7")


def mixed(kind: Kind, folder: Path) -> None:
    """Read integers and floats."""
    found = read(folder, {"x": kind.make(dtype="float64", mixed=True)}, records_of(kind))
    assert found["x"] == kind.column


def steps(kind: Kind, folder: Path) -> None:
    """Read a value in each step of a SequenceExample."""
    record = sequence_example({}, x=kind.stored)
    found = read(folder, {}, [record], sequence_features={"x": kind.make()})
    assert len(next(iter(found.values()))[0]) == 2


def items(kind: Kind, folder: Path) -> None:
    """Read a value in each Example of a list."""
    record = b"".join(delimited(1, example(x=stored)) for stored in kind.stored)
    found = read(folder, {}, [record], example_features={"x": kind.make()})
    assert len(next(iter(found.values()))[0]) == 2


CAPABILITIES: dict[Callable[[Kind, Path], None], str] = {
    shared_key: "FixedLen VarLen Steps Ragged Raw Tensor Image FloatImage Text Function Proto",
    two_ways: "Raw Tensor Image FloatImage Text Function Proto",
    any_count: "Raw Tensor FloatImage Text Function",
    sizes_in_keys: "Raw",
    times: "FixedLen VarLen Steps Ragged Function",
    text: "Function",
    fast: "Image",
    default: "FixedLen Steps Text",
    mixed: "FixedLen VarLen Steps Ragged",
    steps: "VarLen Ragged Raw Tensor Image FloatImage Text Function Proto",
    items: "FixedLen VarLen Ragged Raw Tensor Image FloatImage Text Function Proto",
}
CELLS = [(kind, capability) for capability in CAPABILITIES for kind in KINDS]


@pytest.mark.parametrize(("kind", "capability"), CELLS, ids=lambda of: getattr(of, "__name__", of))
def test_each_capability_works_or_is_refused_by_name(
    kind: str, capability: Callable[[Kind, Path], None], tmp_path: Path
) -> None:
    if kind in CAPABILITIES[capability].split():
        capability(KINDS[kind], tmp_path)
        return
    with pytest.raises((TFRecordError, TypeError)) as caught:
        capability(KINDS[kind], tmp_path)
    assert "Feature" in str(caught.value) or "argument" in str(caught.value) or "'x'" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_is_read_from_json(kind: str) -> None:
    feature = KINDS[kind].make(**{KINDS[kind].keys: "other"})
    schema = dtf.Schema({"x": feature})
    assert dtf.Schema.from_json(schema.to_json()) == schema != dtf.Schema({"x": KINDS[kind].make()})
    with pytest.raises(dtf.SchemaError, match="expected a string as key"):
        KINDS[kind].make(**{KINDS[kind].keys: 3})


def test_integers_are_read_as_times_too(tmp_path: Path) -> None:
    features = {
        "x": dtf.VarLenFeature("int64"),
        "at": dtf.VarLenFeature("datetime64[s]", value_key="x"),
        "took": dtf.VarLenFeature("timedelta64[ms]", value_key="x"),
    }
    write_oracle(tmp_path / "a", [example(x=[1, 2]), example(x=[3])])
    found = dtf.read_tfrecord(tmp_path / "a", features).compute()
    assert [column[0].view("int64").tolist() for column in found.values()] == [[1, 2]] * 3
    assert [column[0].dtype.name for column in found.values()] == ["int64", "datetime64[s]", "timedelta64[ms]"]


MOMENT = datetime.datetime(2024, 1, 2, 3)


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"),
    [
        (np.datetime64("2024-01-02"), "datetime64[s]", "2024-01-02T00:00:00"),
        (MOMENT, "datetime64[ms]", "2024-01-02T03:00:00.000"),
        (datetime.date(2024, 1, 2), "datetime64[D]", "2024-01-02"),
        (datetime.timedelta(seconds=3), "timedelta64[ms]", "3000 milliseconds"),
        (MOMENT, "datetime64[D]", None),
        (np.datetime64(1, "ns"), "datetime64[us]", None),
        (None, "datetime64[s]", None),
        (5, "datetime64[s]", None),
        (np.str_("a\0"), str, "a\0"),
        (["a"], str, None),
        (b"a", str, None),
    ],
)
def test_functions_return_times_and_text_without_a_loss(given: Any, dtype: Any, wanted: Any, tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(x=[b""])])
    ds = dtf.read_tfrecord(tmp_path / "a", {"x": dtf.FunctionFeature(lambda _: given, (), dtype)})
    if wanted is not None:
        assert str(ds["x"].compute()[0]) == wanted
        return
    with pytest.raises(dtf.FeatureError, match=r"record 0 .*feature 'x'"):
        ds.compute()
