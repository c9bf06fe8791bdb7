"""Columns of protobuf messages, compared with the messages that were written."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from google.protobuf import timestamp_pb2
from oracle import framed, write_oracle
from oracle.message_types import message_class
from oracle.messages import Example, ExampleListWithContext
from PIL import Image
from support.any_columns import listed
from support.commands import shown
from support.message_files import descriptors
from support.store_round_trip import files_of
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord import ProtoFeature

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


FILES = descriptors(SCENE, timestamp_pb2)
Scene: Any = message_class(FILES, "demo.Scene")


def scene_type(folder: Path) -> str:
    """Write the descriptors, and return the type by its file."""
    (folder / "scene.desc").write_bytes(FILES.SerializeToString())
    return f"{folder / 'scene.desc'}:demo.Scene"


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
    write_oracle(found, [scene.SerializeToString() for scene in scenes()])
    return found


def rows(dataset: dtf.Dataset, name: str) -> list[Any]:
    found: list[Any] = listed(np.asarray(dataset[name].compute()))
    return found


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
    for _ in range(2):
        # The second conversion has the identity of the first one.
        dataset.to_zarr(tmp_path / "scenes.zarr", resume=True)
    stored = dtf.from_zarr(tmp_path / "scenes.zarr")
    check(stored)
    assert stored.schema == dataset.schema
    for each in (dataset, stored):
        states = each.explode("tracks").explode("tracks.states")
        expected = [state.x for scene in scenes() for track in scene.tracks for state in track.states]
        assert rows(states, "tracks.states.x") == expected


def test_types_come_from_a_descriptor_set(path: str, tmp_path: Path) -> None:
    message = scene_type(tmp_path)
    check(dtf.read_tfrecord(path, message=message))
    with pytest.raises(dtf.SchemaError, match=r"no message 'demo.Scena'; did you mean"):
        dtf.read_tfrecord(path, message=message.replace("Scene", "Scena"))
    shown("to-zarr", path, tmp_path / "scenes.zarr", "--message", message)
    check(dtf.from_zarr(tmp_path / "scenes.zarr"))
    lines = shown("head", path, "-n", 9, "--json", "--message", message).splitlines()
    ids = [json.loads(line)["tracks.id"] for line in lines]
    assert ids == [[track.id for track in scene.tracks] for scene in scenes()]


def test_filters_keep_records(path: str) -> None:
    time = np.datetime64(10**18 + 3, "ns")
    several = [scene.id for scene in scenes() if len(scene.tracks) > 1]
    later = [scene.id for scene in scenes() if scene.at.ToNanoseconds() > 10**18 + 3]
    for condition, expected in ((("len(tracks.id)", ">", 1), several), (("at", ">", time), later)):
        for counts in ("auto", None):
            dataset = dtf.read_tfrecord(path, message=Scene, counts=counts, filters=[condition])
            assert rows(dataset, "id") == expected
        assert rows(dtf.read_tfrecord(path, message=Scene, chunks=4).where([condition]), "id") == expected


def test_messages_in_examples_and_sequences(tmp_path: Path) -> None:
    batches = [scenes()[start : start + start % 3] for start in range(6)]
    examples = [example(scene=[scene.SerializeToString()]) for scene in scenes()]
    sequences = [sequence_example(scene=[[scene.SerializeToString()] for scene in batch]) for batch in batches]
    items = [[Example.FromString(example(scene=[scene.SerializeToString()])) for scene in batch] for batch in batches]
    lists = [ExampleListWithContext(examples=each).SerializeToString() for each in items]

    def positions(batch: list[Any]) -> list[Any]:
        return [[[state.x for state in track.states] for track in scene.tracks] for scene in batch]

    field = {"scene": ProtoFeature(Scene)}
    cases: list[tuple[list[bytes], dict[str, Any], str, list[Any]]] = [
        (examples, {"features": field}, "scene", positions(scenes())),
        (sequences, {"features": {}, "sequence_features": field}, "scene", [*map(positions, batches)]),
        (lists, {"features": {}, "example_features": field}, "examples/scene", [*map(positions, batches)]),
    ]
    for number, (payloads, options, name, expected) in enumerate(cases):
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


def test_schemas_keep_the_message_and_know_its_fields(path: str) -> None:
    schema = dtf.Schema({"tracks": ProtoFeature("tracks")}, message=Scene)
    assert dtf.Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))
    with pytest.raises(dtf.SchemaError, match="lacks the type"):
        dtf.Schema({"tracks": ProtoFeature("tracks")})
    for wrong, text in (("nope", "no field 'nope'"), ("tracks.id", "has no presence")):
        with pytest.raises(dtf.SchemaError, match=text):
            dtf.read_tfrecord(path, {"x": ProtoFeature(wrong, presence=True)}, message=Scene)


def test_images_of_other_items_are_not_decoded(tmp_path: Path) -> None:
    text = """name: "cameras.proto" package: "cameras" syntax: "proto3"
    message_type { name: "Camera" field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "image" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL } }
    message_type { name: "Frame"
      field { name: "images" number: 1 type: TYPE_MESSAGE type_name: ".cameras.Camera" label: LABEL_REPEATED } }"""
    cls = message_class(descriptors(text), "cameras.Frame")
    pictures = [np.full((4, 5, 3), row, np.uint8) for row in range(3)]
    payloads = []
    for pixels in pictures:
        frame = cls()
        for name, shape in (("side", (2, 2)), ("front", (4, 5))):
            out = io.BytesIO()
            Image.fromarray(np.full((*shape, 3), pixels[0, 0])).save(out, "PNG")
            frame.images.add(name=name, image=out.getvalue())
        payloads.append(frame.SerializeToString())
    write_oracle(tmp_path / "a", payloads)
    image = dtf.ProtoFeature("images.image", values=dtf.ImageFeature((4, 5, 3)))
    features = {"name": dtf.ProtoFeature("images.name"), "image": image}
    items = dtf.read_tfrecord(tmp_path / "a", features, message=cls, chunks=2).explode("images")
    front = items.where([("name", "==", "front")])
    np.testing.assert_array_equal(front["image"].compute(), pictures)
    np.testing.assert_array_equal(np.concatenate([one["image"] for one in front.batches(2)]), pictures)
    with pytest.raises(dtf.errors.FeatureError, match=r"'image' holds a PNG image of shape \(2, 2, 3\)"):
        items["image"].compute()
