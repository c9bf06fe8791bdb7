"""Columns of protobuf messages, compared with the messages that were written."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2

import dask_tfrecord as dtf
from dask_tfrecord import ProtoFeature
from dask_tfrecord.cli.main import tfrecord

SCENE = """
name: "scene.proto" package: "demo" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
enum_type { name: "Kind" value { name: "CAR" number: 0 } value { name: "BIKE" number: 1 } }
message_type { name: "State"
  field { name: "x" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
message_type { name: "Track"
  field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "states" number: 2 type: TYPE_MESSAGE type_name: ".demo.State" label: LABEL_REPEATED }
  field { name: "kind" number: 3 type: TYPE_ENUM type_name: ".demo.Kind" label: LABEL_OPTIONAL } }
message_type { name: "Scene"
  field { name: "id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "tracks" number: 2 type: TYPE_MESSAGE type_name: ".demo.Track" label: LABEL_REPEATED }
  field { name: "at" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "a" number: 4 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "b" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "raw" number: 6 type: TYPE_BYTES label: LABEL_OPTIONAL }
  oneof_decl { name: "choice" } }
"""


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = text_format.Parse(SCENE, descriptor_pb2.FileDescriptorProto())
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Scene = message_class("demo.Scene")


def scenes() -> list[Any]:
    made = []
    for number in range(9):
        scene = Scene(id=f"s{number}", raw=bytes([number] * 4))
        for track in range(number % 3):
            added = scene.tracks.add(id=track, kind=track)
            for state in range(track + number % 2):
                added.states.add(x=number + state / 4)
        scene.at.FromNanoseconds(10**18 + number)
        if number % 2:
            scene.b = "b"
        made.append(scene)
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "scenes.tfrecord")
    with dtf.RecordWriter(found) as writer:
        for scene in scenes():
            writer.write(scene.SerializeToString())
    return found


def rows(dataset: dtf.Dataset, name: str) -> list[Any]:
    def plain(value: Any) -> Any:
        return [plain(each) for each in value] if isinstance(value, np.ndarray) else value

    return [plain(value) for value in np.asarray(dataset[name].compute())]


def check(dataset: dtf.Dataset) -> None:
    written = scenes()
    assert rows(dataset, "id") == [scene.id for scene in written]
    assert rows(dataset, "tracks.id") == [[track.id for track in scene.tracks] for scene in written]
    assert rows(dataset, "tracks.states.x") == [
        [[state.x for state in track.states] for track in scene.tracks] for scene in written
    ]
    assert rows(dataset, "choice") == [scene.WhichOneof("choice") or "" for scene in written]
    moments = dataset["at"].compute()
    assert moments.dtype == np.dtype("datetime64[ns]")
    assert moments.view(np.int64).tolist() == [scene.at.ToNanoseconds() for scene in written]


def test_all_fields_are_columns_here_and_in_a_store(path: str, tmp_path: Path) -> None:
    dataset = dtf.read_tfrecord(path, message=Scene, chunks=4)
    check(dataset)
    check(pickle.loads(pickle.dumps(dataset)))
    dataset.to_zarr(str(tmp_path / "scenes.zarr"))
    stored = dtf.from_zarr(str(tmp_path / "scenes.zarr"))
    check(stored)
    assert stored.schema == dataset.schema
    for each in (dataset, stored):
        states = each.explode("tracks").explode("tracks.states")
        expected = [state.x for scene in scenes() for track in scene.tracks for state in track.states]
        assert rows(states, "tracks.states.x") == expected


def test_types_come_from_a_descriptor_set(path: str, tmp_path: Path) -> None:
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
        for file in (timestamp_pb2.DESCRIPTOR, Scene.DESCRIPTOR.file)
    ]
    file = tmp_path / "scene.desc"
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
    check(dtf.read_tfrecord(path, message=f"{file}:demo.Scene"))
    with pytest.raises(dtf.SchemaError, match=r"no message 'demo.Scena'; did you mean"):
        dtf.read_tfrecord(path, message=f"{file}:demo.Scena")


@pytest.mark.parametrize("command", ["head", "to-zarr"])
def test_commands_take_a_message(command: str, path: str, tmp_path: Path) -> None:
    files = [timestamp_pb2.DESCRIPTOR.serialized_pb, Scene.DESCRIPTOR.file.serialized_pb]
    protos = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
    file, store = tmp_path / "scene.desc", str(tmp_path / "scenes.zarr")
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=protos).SerializeToString())
    target = [store] if command == "to-zarr" else ["-n", "9", "--json"]
    result = CliRunner().invoke(tfrecord, [command, path, *target, "--message", f"{file}:demo.Scene"])
    assert result.exit_code == 0, result.output
    if command == "to-zarr":
        check(dtf.from_zarr(store))
    else:
        ids = [json.loads(line)["tracks.id"] for line in result.stdout.splitlines()]
        assert ids == [[track.id for track in scene.tracks] for scene in scenes()]


def test_features_select_fields_and_describe_values(path: str) -> None:
    features = {
        "kind": ProtoFeature("tracks.kind", values=dtf.TextFeature()),
        "raw": ProtoFeature("raw", values=dtf.RawFeature((2,), "uint16")),
        "has_b": ProtoFeature("b", presence=True),
    }
    dataset = dtf.read_tfrecord(path, features, message=Scene)
    names = [[("CAR", "BIKE")[track.kind] for track in scene.tracks] for scene in scenes()]
    assert rows(dataset, "kind") == names
    assert rows(dataset, "raw") == [[number * 257] * 2 for number in range(9)]
    assert rows(dataset, "has_b") == [scene.HasField("b") for scene in scenes()]
    for wrong, text in (("nope", "no field 'nope'"), ("tracks.id", "has no presence")):
        with pytest.raises(dtf.SchemaError, match=text):
            dtf.read_tfrecord(path, {"x": ProtoFeature(wrong, presence=True)}, message=Scene)


def test_filters_keep_records(path: str) -> None:
    expected = [scene.id for scene in scenes() if len(scene.tracks) > 1]
    for counts in ("auto", None):
        dataset = dtf.read_tfrecord(path, message=Scene, counts=counts, filters=[("len(tracks.id)", ">", 1)])
        assert rows(dataset, "id") == expected


def test_an_error_names_record_and_field(tmp_path: Path) -> None:
    path = str(tmp_path / "damaged.tfrecord")
    with dtf.RecordWriter(path) as writer:
        writer.write(Scene(id="a").SerializeToString())
        writer.write(b"\x0a\x02\xff\xff")
    with pytest.raises(dtf.FeatureError, match=r"damaged.tfrecord.*record 1.*field 'id'.*UTF-8"):
        dtf.read_tfrecord(path, message=Scene)["id"].compute()


def test_schemas_keep_the_message() -> None:
    schema = dtf.Schema({"tracks": ProtoFeature("tracks")}, message=Scene)
    assert dtf.Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))
    with pytest.raises(dtf.SchemaError, match="lacks the type"):
        dtf.Schema({"tracks": ProtoFeature("tracks")})
