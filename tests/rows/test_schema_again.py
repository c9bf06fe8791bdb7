"""A Dataset's schema reads other files of the same form."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from oracle import write_oracle
from oracle.message_types import Field, message_class
from support.wire import delimited, example, sequence_example

import dask_tfrecord as dtf

LISTS = {
    "x": dtf.FixedLenSequenceFeature((2,), "float32"),
    "open": dtf.VarLenFeature("int64"),
}
CONTEXT = {"id": dtf.FixedLenFeature((), "int64"), "word": dtf.TextFeature()}


def steps(count: int) -> bytes:
    lists = {"x": [[1.0, 2.0]] * count, "open": [[step] * step for step in range(count)]}
    return sequence_example({"id": [count], "word": [b"a"]}, **lists)


def items(count: int) -> bytes:
    parts = [delimited(1, example(x=[float(item)], open=[item] * item)) for item in range(count)]
    return b"".join(parts) + delimited(2, example(id=[count], word=[b"a"]))


def scene_class() -> type[Any]:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="scene.proto", package="scene", syntax="proto3")
    message = file.message_type.add(name="Scene")
    message.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    message.field.add(name="xs", number=2, type=Field.TYPE_FLOAT, label=Field.LABEL_REPEATED)
    return message_class(files, "scene.Scene")


def forms() -> list[tuple[str, Any, dict[str, Any]]]:
    scene = scene_class()
    sparse = dtf.SparseFeature(["at"], "value", "float32", size=[10])
    items_features = {"x": dtf.FixedLenFeature((), "float32"), "open": dtf.VarLenFeature("int64")}
    return [
        ("SequenceExample", steps, {"features": CONTEXT, "sequence_features": LISTS}),
        ("inferred SequenceExample", steps, {}),
        ("ELWC", items, {"features": CONTEXT, "example_features": items_features}),
        ("message", lambda count: scene(id=count, xs=range(count)).SerializeToString(), {"message": scene}),
        ("Example", lambda count: example(at=[1, 2], value=[0.5, float(count)]), {"features": {"s": sparse}}),
    ]


@pytest.mark.parametrize(("record", "options"), [form[1:] for form in forms()], ids=[form[0] for form in forms()])
def test_a_schema_reads_the_next_file(record: Any, options: dict[str, Any], tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write_oracle(first, [record(2), record(3)])
    write_oracle(second, [record(5)])
    options = options or {"features": dtf.infer_schema(first)}
    ds = dtf.read_tfrecord(first, **options)
    stored = dtf.Schema.from_json(ds.schema.to_json())
    for schema in (ds.schema, pickle.loads(pickle.dumps(ds.schema)), stored):
        assert schema.records == ds.schema.records
        again, wanted = dtf.read_tfrecord(second, schema), dtf.read_tfrecord(second, **options)
        assert [*again] == [*wanted]
        for name, values in wanted.compute().items():
            found = again[name].compute()
            assert found.dtype == values.dtype and found.shape == values.shape
            assert repr(found.tolist()) == repr(values.tolist())
    one = next(iter(ds))
    if one != "s.indices":
        assert one in dtf.read_tfrecord(second, ds[[one]].schema)
        return
    # A part of a sparse feature is written under its own name.
    with pytest.warns(UserWarning, match="the first record has none of the keys 's.indices'"):
        dtf.read_tfrecord(second, ds[[one]].schema)
    ds[[one]].to_tfrecord(tmp_path / "c")
    assert dtf.read_tfrecord(tmp_path / "c", ds[[one]].schema)[one].compute()[0].tolist() == [[1], [2]]


def test_the_schema_of_an_added_column_is_that_of_the_records_with_it(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [steps(2), steps(3)])
    ds = dtf.read_tfrecord(tmp_path / "a", CONTEXT, sequence_features=LISTS)
    changed = ds.assign(double=ds["id"] * 2)
    with pytest.raises(dtf.FeatureError, match="'double' is missing"):
        dtf.read_tfrecord(tmp_path / "a", changed.schema)
    changed.to_tfrecord(tmp_path / "b")
    again = dtf.read_tfrecord(tmp_path / "b", changed.schema)
    assert [*again] == [*ds, "double"] and again["double"].compute().tolist() == [4, 6]


def test_examples_without_feature_lists_warn(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(open=[1, 2]), example(open=[])])
    with pytest.warns(
        UserWarning, match="the first 2 records have no feature lists.*'open' is a feature of an Example"
    ):
        ds = dtf.read_tfrecord(tmp_path / "a", {}, sequence_features={"open": LISTS["open"]})
    assert [len(row) for row in ds["open"].compute()] == [0, 0]
    write_oracle(tmp_path / "b", [sequence_example({"id": [1]}), steps(1)])
    dtf.read_tfrecord(tmp_path / "b", {}, sequence_features={"open": LISTS["open"]})


def test_added_columns_of_a_store_keep_their_features(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [example(at=[1, 2], value=[0.5, 1.0], id=[row]) for row in range(3)])
    features = {"s": dtf.SparseFeature(["at"], "value", "float32", size=[10]), "id": dtf.FixedLenFeature((), "int64")}
    ds = dtf.read_tfrecord(tmp_path / "a", features)
    ds[["id"]].to_zarr(tmp_path / "store")
    ds.drop("id").to_zarr(tmp_path / "store", mode="a")
    stored = dtf.from_zarr(tmp_path / "store")
    assert stored.schema.records is not None and dict(stored.schema.records) == features
    stored.to_tfrecord(tmp_path / "b")
    keys = {name: dtf.VarLenFeature("int64") for name in ("at", "id")}
    assert dtf.read_tfrecord(tmp_path / "b", keys)["at"].compute()[2].tolist() == [1, 2]
    again = dtf.read_tfrecord(tmp_path / "b", stored.schema)
    assert list(again) == list(stored) and again["s.values"].compute()[0].tolist() == [0.5, 1.0]
