"""Columns of protobuf messages, compared with the messages that were written."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2
from oracle import framed, write_oracle
from support.store_round_trip import files_of

import dask_tfrecord as dtf
from dask_tfrecord import ProtoFeature
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.messages import Example, ExampleListWithContext, SequenceExample

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


def batches_of_scenes() -> list[list[Any]]:
    return [scenes()[start : start + start % 3] for start in range(6)]


def test_messages_in_examples_and_sequences(tmp_path: Path) -> None:
    examples, sequences, lists = [], [], []
    for scene in scenes():
        example = Example()
        example.features.feature["scene"].bytes_list.value.append(scene.SerializeToString())
        examples.append(example.SerializeToString())
    for batch in batches_of_scenes():
        sequence, items = SequenceExample(), ExampleListWithContext()
        steps = sequence.feature_lists.feature_list["scene"]
        steps.SetInParent()
        for scene in batch:
            steps.feature.add().bytes_list.value.append(scene.SerializeToString())
            items.examples.add().features.feature["scene"].bytes_list.value.append(scene.SerializeToString())
        sequences.append(sequence.SerializeToString())
        lists.append(items.SerializeToString())
    field = {"scene": ProtoFeature(Scene)}
    nested = [[[[state.x for state in track.states] for track in scene.tracks] for scene in scenes()]]
    batches = [
        [[[state.x for state in track.states] for track in scene.tracks] for scene in batch]
        for batch in batches_of_scenes()
    ]
    for number, (payloads, options, name, expected) in enumerate(
        [
            (examples, {"features": field}, "scene", nested[0]),
            (sequences, {"features": {}, "sequence_features": field}, "scene", batches),
            (lists, {"features": {}, "example_features": field}, "examples/scene", batches),
        ]
    ):
        shard, store = tmp_path / f"{number}.tfrecord", str(tmp_path / f"{number}.zarr")
        write_oracle(shard, payloads)
        dataset = dtf.read_tfrecord(shard, **options, chunks=2)
        dataset.to_zarr(store)
        for each in (dataset, dtf.from_zarr(store)):
            assert rows(each, f"{name}.tracks.states.x") == expected
        flat = dataset.explode(next(iter(dataset.schema.groups)))
        inner = f"{name}.tracks.id" if payloads is examples else f"{name}.id"
        assert rows(flat, inner) == [item for row in rows(dataset, inner) for item in row]


def test_damaged_records_are_dropped_or_have_defaults(tmp_path: Path) -> None:
    path = tmp_path / "damaged.tfrecord"
    payloads = [scene.SerializeToString() for scene in scenes()]
    data = bytearray(framed(payloads))
    data[len(framed(payloads[:3])) + 13] ^= 0xFF
    path.write_bytes(data)
    ids = [scene.id for scene in scenes()]
    with pytest.raises(dtf.CorruptRecordError, match="record 3"):
        dtf.read_tfrecord(path, message=Scene, chunks=4).compute()
    kept = dtf.read_tfrecord(path, message=Scene, chunks=4, errors="skip")
    assert rows(kept, "id") == [*ids[:3], *ids[4:]]
    filled = dtf.read_tfrecord(path, message=Scene, chunks=4, errors="fill", fill_values={"id": "lost"})
    assert rows(filled, "id") == [*ids[:3], "lost", *ids[4:]]
    for name, default in {
        "tracks.states.x": [],
        "choice": "",
        "at": np.datetime64(0, "ns"),
        "a": 0,
        "raw": b"",
    }.items():
        assert rows(filled, name)[3] == default


def test_times_are_compared(path: str) -> None:
    dataset = dtf.read_tfrecord(path, message=Scene, chunks=4)
    later = dataset.where([("at", ">", np.datetime64(10**18 + 3, "ns"))])
    assert rows(later, "id") == [scene.id for scene in scenes() if scene.at.ToNanoseconds() > 10**18 + 3]


def test_writing_messages_as_examples_is_explicit(path: str, tmp_path: Path) -> None:
    dataset = dtf.read_tfrecord(path, message=Scene)[["id", "a"]]
    dataset.to_tfrecord(str(tmp_path / "x-{shard}.tfrecord"), features={"id": dtf.TextFeature()})
    back = dtf.read_tfrecord(str(tmp_path / "x-*.tfrecord"), {"id": dtf.TextFeature()})
    assert rows(back, "id") == [scene.id for scene in scenes()]


@pytest.mark.integration
def test_a_cluster_writes_the_same_store(path: str, tmp_path: Path, client: Client) -> None:
    dataset = dtf.read_tfrecord(path, message=Scene, chunks=2)
    check(dataset)
    with dask.config.set(scheduler="threads"):
        dataset.to_zarr(str(tmp_path / "threads.zarr"), chunks=2)
    dataset.to_zarr(str(tmp_path / "cluster.zarr"), chunks=2)
    assert files_of(tmp_path / "cluster.zarr") == files_of(tmp_path / "threads.zarr")


def test_a_conversion_is_resumed(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["id", "tracks.states.x", "choice"]
    dataset = dtf.read_tfrecord(path, message=Scene, chunks=2)[names]
    store = str(tmp_path / "resumed.zarr")
    mapped = dataset.map_blocks(fails_late, dict(dataset.schema))
    monkeypatch.setattr(sys.modules[__name__], "FAILING", {"s7"})
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(RuntimeError, match="this row is no good"):
            mapped.to_zarr(store, chunks=2, resume=True)
        monkeypatch.setattr(sys.modules[__name__], "FAILING", set())
        mapped.to_zarr(store, chunks=2, resume=True)
    for name in names:
        assert rows(dtf.from_zarr(store), name) == rows(dataset, name)


FAILING: set[str] = set()


def fails_late(blocks: dict[str, Any]) -> dict[str, Any]:
    if FAILING & {*blocks["id"].tolist()}:
        raise RuntimeError("this row is no good")
    return blocks


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
