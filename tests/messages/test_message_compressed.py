"""Messages in compressed bytes: errors, limits, and every output."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from oracle import write_oracle
from oracle.message_types import Field, message_class
from support.wire import example

import dask_tfrecord as dtf

pytestmark = pytest.mark.usefixtures("in_this_thread")


def frame_classes() -> tuple[type[Any], type[Any]]:
    """Return a frame with compressed matrices in repeated messages, and a matrix."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="frame.proto", package="frame", syntax="proto2")
    matrix, shape = file.message_type.add(name="Matrix"), file.message_type.add(name="Shape")
    shape.field.add(name="dims", number=1, type=Field.TYPE_INT32, label=Field.LABEL_REPEATED)
    data = matrix.field.add(name="data", number=1, type=Field.TYPE_FLOAT, label=Field.LABEL_REPEATED)
    data.options.packed = True
    of_shape = {"type": Field.TYPE_MESSAGE, "type_name": ".frame.Shape", "label": Field.LABEL_OPTIONAL}
    matrix.field.add(name="shape", number=2, **of_shape)
    frame, laser = file.message_type.add(name="Frame"), file.message_type.add(name="Laser")
    laser.field.add(name="name", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    laser.field.add(name="range", number=2, type=Field.TYPE_BYTES, label=Field.LABEL_OPTIONAL)
    of_laser = {"type": Field.TYPE_MESSAGE, "type_name": ".frame.Laser", "label": Field.LABEL_REPEATED}
    frame.field.add(name="lasers", number=1, **of_laser)
    return message_class(files, "frame.Frame"), message_class(files, "frame.Matrix")


def write_frames(path: Path) -> tuple[dtf.Dataset, list[list[list[float]]]]:
    """Write frames of none to three matrices (one is not set); return them, and the values."""
    frame_class, matrix_class = frame_classes()
    rng, wanted, payloads = np.random.default_rng(0), [], []
    for row in range(8):
        frame = frame_class()
        wanted.append([])
        for laser in range(row % 4):
            made = frame.lasers.add(name=f"laser {laser}")
            values = rng.random((laser, 5)).astype(np.float32)
            if laser != 1:
                matrix = matrix_class(data=values.ravel(), shape={"dims": values.shape})
                made.range = zlib.compress(matrix.SerializeToString())
            wanted[-1].append(values.ravel().tolist() if laser != 1 else [])
        payloads.append(frame.SerializeToString())
    write_oracle(path, payloads)
    ranges = dtf.ProtoFeature("lasers.range", values=dtf.ProtoFeature(matrix_class, "", compression_type="ZLIB"))
    features = {"range": ranges, "name": dtf.ProtoFeature("lasers.name")}
    return dtf.read_tfrecord(path, features, message=frame_class, chunks=3), wanted


def rows_of(values: Any) -> list[list[list[float]]]:
    return [[np.asarray(inner).tolist() for inner in row] for row in values]


def test_matrices_in_every_output(tmp_path: Path) -> None:
    ds, wanted = write_frames(tmp_path / "a")
    assert [*ds] == ["range.data", "range.shape.dims", "name"]
    assert rows_of(ds["range.data"].compute()) == wanted
    ds.to_zarr(tmp_path / "a.zarr")
    assert rows_of(dtf.from_zarr(tmp_path / "a.zarr")["range.data"].compute()) == wanted
    batches = list(ds.to_arrow_batches())
    assert [row for batch in batches for row in batch.column("range.data").to_pylist()] == wanted
    items = ds.explode("lasers")
    assert [np.asarray(row).tolist() for row in items["range.data"].compute()] == [one for row in wanted for one in row]
    assert ds.where([("len(name)", ">", 2)]).nrows == 2
    assert ds.describe()["range.data"].values == sum(len(one) for row in wanted for one in row)
    ds[["name"]].to_tfrecord(tmp_path / "names")
    with pytest.raises(dtf.SchemaError, match=r"'range\.data' is a field of messages in bytes"):
        ds.to_tfrecord(tmp_path / "b")


def test_damaged_bytes_name_record_feature_and_item(tmp_path: Path) -> None:
    frame_class, matrix_class = frame_classes()
    whole = zlib.compress(matrix_class(data=[1, 2]).SerializeToString())
    damaged = [whole[:-3], whole + b"x", b"text", gzip.compress(b""), zlib.compress(b"\xff")]
    ranges = dtf.ProtoFeature("lasers.range", values=dtf.ProtoFeature(matrix_class, "data", compression_type="ZLIB"))
    for number, bad in enumerate(damaged):
        frames = [frame_class(lasers=[{"range": one} for one in row]) for row in ([whole], [whole, bad])]
        write_oracle(tmp_path / str(number), [frame.SerializeToString() for frame in frames])
        ds = dtf.read_tfrecord(tmp_path / str(number), {"r": ranges}, message=frame_class, counts=[2], chunks=2)
        with pytest.raises(dtf.errors.FeatureError, match="'r' in value 1 ") as caught:
            ds.compute()
        assert caught.value.place is not None and caught.value.place.record == 1
        assert ("damaged ZLIB data" in str(caught.value)) == (number < 4)


def test_counting_items_inflates_nothing(tmp_path: Path) -> None:
    frame_class, matrix_class = frame_classes()
    frames = [frame_class(lasers=[{"range": b"damaged", "name": "a"}] * row) for row in range(3)]
    write_oracle(tmp_path / "a", [frame.SerializeToString() for frame in frames])
    ranges = dtf.ProtoFeature("lasers.range", values=dtf.ProtoFeature(matrix_class, "", compression_type="ZLIB"))
    features = {"r": ranges, "name": dtf.ProtoFeature("lasers.name")}
    items = dtf.read_tfrecord(tmp_path / "a", features, message=frame_class, chunks=2).explode("lasers")
    assert items.nrows == 3 and items["name"].compute().tolist() == ["a"] * 3
    with pytest.raises(dtf.errors.FeatureError, match="damaged ZLIB"):
        items["r.data"].compute()


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    frame_class, matrix_class = frame_classes()
    bomb = zlib.compress(bytes(50_000_000))
    write_oracle(tmp_path / "a", [frame_class(lasers=[{"range": bomb}]).SerializeToString()])
    ranges = dtf.ProtoFeature("lasers.range", values=dtf.ProtoFeature(matrix_class, "data", compression_type="ZLIB"))
    with dask.config.set({"tfrecord.decode.memory-limit": "20 MB"}):
        ds = dtf.read_tfrecord(tmp_path / "a", {"r": ranges}, message=frame_class, counts=[1], chunks=1)
        with pytest.raises(dtf.errors.MemoryLimitError):
            ds.compute()


def test_examples_with_compressed_messages(tmp_path: Path) -> None:
    _, matrix_class = frame_classes()
    made = [gzip.compress(matrix_class(data=[row]).SerializeToString()) for row in range(3)]
    write_oracle(tmp_path / "a", [example(m=[one]) for one in [*made, b""]])
    feature = dtf.ProtoFeature(matrix_class, "data", key="m", compression_type="GZIP")
    ds = dtf.read_tfrecord(tmp_path / "a", {"x": feature})
    assert [row.tolist() for row in ds["x"].compute()] == [[0], [1], [2], []]
    assert dtf.Schema.from_json(dtf.Schema({"x": feature}).to_json()) == dtf.Schema({"x": feature})
    assert json.loads(dtf.Schema({"x": feature}).to_json())["features"][0]["compression_type"] == "GZIP"
    again = dtf.read_tfrecord(tmp_path / "a", ds.schema)
    assert [row.tolist() for row in again["x"].compute()] == [[0], [1], [2], []]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("x",), "compression_type is that of messages in bytes"), ((descriptor_pb2.FieldOptions, ""), "'ZLIB', 'GZIP'")],
)
def test_refused_arguments(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(dtf.SchemaError, match=text):
        dtf.ProtoFeature(*arguments, compression_type="ZLIB" if len(arguments) == 1 else "LZ4")
