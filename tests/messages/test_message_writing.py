"""Messages written from their columns, compared with the messages that were read, as protobuf serializes both."""

from __future__ import annotations

import gzip
import random
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from google.protobuf import any_pb2, duration_pb2, text_format, timestamp_pb2, wrappers_pb2
from oracle import messages, read_payloads, write_oracle
from oracle.message_columns import Unrolled
from oracle.message_types import message_class, random_message
from support.any_columns import listed
from support.commands import run, shown
from support.few import mostly_slow
from support.message_files import descriptors, real_type
from support.repeating import Repeating
from support.wire import delimited, example, sequence_example
from test_message_oracle import holds, types_of

import dask_tfrecord as dtf

pytestmark = pytest.mark.usefixtures("in_this_thread")
BYTES = dtf.FixedLenFeature((), "bytes")


def opened(path: Path, message: Any, payloads: Sequence[bytes], features: Any = None, chunks: int = 7) -> dtf.Dataset:
    write_oracle(path, payloads)
    return dtf.read_tfrecord(path, features, message=message, counts=[len(payloads)], chunks=chunks, compression=None)


def legal_messages(cls: type[Any], unrolled: Unrolled, rng: random.Random, count: int) -> list[Any]:
    """Draw messages whose columns hold all of their content."""
    found: list[Any] = []
    while len(found) < count:
        message = random_message(cls, rng)
        if holds(unrolled, unrolled.parse(message.SerializePartialToString())):
            found.append(message)
    return found


def with_presence(unrolled: Unrolled, messages: Sequence[bytes]) -> dict[str, dtf.ProtoFeature]:
    """Return the features of all fields, and of the presence of those that have one."""
    parsed = [unrolled.parse(payload) for payload in messages]
    features = {name: dtf.ProtoFeature(name) for name in unrolled.columns(parsed)}
    features |= {name: dtf.ProtoFeature(name, values=BYTES) for name in unrolled.opaque}
    return features | {f"{name} is set": dtf.ProtoFeature(name, presence=True) for name in unrolled.presences(parsed)}


def check_round_trip(folder: Path, message: Any, cls: type[Any], unrolled: Unrolled, messages: Sequence[Any]) -> int:
    """Compare what is written with what columns hold of the messages; return how many they hold as a whole."""
    payloads = [one.SerializePartialToString() for one in messages]
    ds = opened(folder / "read", message, payloads, with_presence(unrolled, payloads))
    ds.to_tfrecord(folder / "written-{shard}", mode="w")
    written = [*dtf.read_records(folder / "written-*")]
    assert len(written) == len(payloads)
    whole = 0
    for row, (payload, original) in enumerate(zip(written, payloads, strict=True)):
        expected = serialized(cls, unrolled.held(original))
        whole += expected == serialized(cls, original)
        assert serialized(cls, payload) == expected, f"row {row}: {original.hex()}, {payload.hex()}"
        # Only entries of maps, members of a oneof and extensions may have another order.
        assert sorted(payload) == sorted(expected), f"row {row}: {original.hex()}, {payload.hex()}"
    return whole


def serialized(cls: type[Any], payload: bytes) -> bytes:
    """Return what protobuf writes of the message in a record."""
    return bytes(cls.FromString(payload).SerializePartialToString(deterministic=True))


@pytest.mark.parametrize(
    ("seed", "rows"),
    [
        (0, 10),
        *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(1, 30)),
        *(pytest.param(seed, 40, marks=pytest.mark.nightly) for seed in range(30, 100)),
    ],
)
def test_messages_are_written_as_they_were_read(seed: int, rows: int, tmp_path: Path) -> None:
    whole = 0
    for drawn, files, unrolled in types_of(f"writing {seed}", 5, columns=150):
        cls = message_class(files)
        rng = random.Random(drawn)
        try:
            whole += check_round_trip(tmp_path, cls, cls, unrolled, legal_messages(cls, unrolled, rng, rows))
        except AssertionError as error:
            raise AssertionError(f"type {drawn}: {error}") from error
    assert whole > rows


@pytest.mark.parametrize("name", ["tensorflow.Event", "nucleus.genomics.v1.Variant", "waymo.open_dataset.Scenario"])
def test_messages_of_other_projects(name: str, tmp_path: Path) -> None:
    message, cls, unrolled = real_type(name)
    messages = [random_message(cls, random.Random(f"{name} {row}"), fill=0.8) for row in range(10)]
    assert check_round_trip(tmp_path, message, cls, unrolled, messages) == len(messages)


# ---- a type with one field of each kind

KINDS = """
name: "kinds.proto" package: "kinds" syntax: "proto2"
dependency: ["google/protobuf/timestamp.proto", "google/protobuf/duration.proto", "google/protobuf/any.proto",
             "google/protobuf/wrappers.proto"]
enum_type { name: "Color" value { name: "RED" number: 0 } value { name: "BLUE" number: 2 } }
message_type { name: "Empty" }
message_type { name: "Part"
  field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
  field { name: "names" number: 2 type: TYPE_STRING label: LABEL_REPEATED } }
message_type { name: "All" extension_range { start: 100 end: 200 }
  field { name: "number" number: 1 type: TYPE_SINT32 label: LABEL_OPTIONAL default_value: "7" }
  field { name: "color" number: 2 type: TYPE_ENUM type_name: ".kinds.Color" label: LABEL_OPTIONAL }
  field { name: "part" number: 3 type: TYPE_MESSAGE type_name: ".kinds.Part" label: LABEL_OPTIONAL }
  field { name: "parts" number: 4 type: TYPE_MESSAGE type_name: ".kinds.Part" label: LABEL_REPEATED }
  field { name: "text" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "empty" number: 6 type: TYPE_MESSAGE type_name: ".kinds.Empty" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "at" number: 7 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "took" number: 8 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_REPEATED }
  field { name: "any" number: 9 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_OPTIONAL }
  field { name: "limit" number: 10 type: TYPE_MESSAGE type_name: ".google.protobuf.FloatValue" label: LABEL_OPTIONAL }
  field { name: "counts" number: 11 type: TYPE_MESSAGE type_name: ".kinds.All.CountsEntry" label: LABEL_REPEATED }
  field { name: "run" number: 12 type: TYPE_GROUP type_name: ".kinds.All.Run" label: LABEL_REPEATED }
  field { name: "inner" number: 13 type: TYPE_MESSAGE type_name: ".kinds.All" label: LABEL_OPTIONAL }
  field { name: "pixels" number: 14 type: TYPE_BYTES label: LABEL_REPEATED }
  nested_type { name: "CountsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL } }
  nested_type { name: "Run" field { name: "x" number: 1 type: TYPE_DOUBLE label: LABEL_REPEATED } }
  oneof_decl { name: "kind" } }
extension { name: "extra" number: 100 type: TYPE_UINT64 label: LABEL_OPTIONAL extendee: ".kinds.All" }
"""


FILES = descriptors(KINDS, timestamp_pb2, duration_pb2, any_pb2, wrappers_pb2)
All: Any = message_class(FILES, "kinds.All")
EXTRA = All.DESCRIPTOR.file.extensions_by_name["extra"]
ROWS = """
number: 5 color: BLUE part { id: 0 names: "a" } parts { id: 1 } parts { id: 2 names: ["b", ""] } text: "x"
at { seconds: -1 nanos: 500000000 } took { seconds: -1 nanos: -500000000 } took {} took { nanos: -1 }
any { type_url: "type.googleapis.com/kinds.Empty" value: "\\n" } limit { value: 0.5 } counts { key: "b" value: 1 }
counts { key: "a" } Run { x: [1, 2] } Run {} [kinds.extra]: 9 pixels: ["ab", "cd"]
inner { number: 0 inner { number: 1 inner { number: 2 } } }
---
---
empty {} pixels: "xy"
---
number: 0 text: "" took { seconds: 3 nanos: 4 }
"""


def all_kinds() -> list[Any]:
    return [text_format.Parse(text, All()) for text in ROWS.split("---")]


def written(folder: Path, arrays: Any, **options: Any) -> list[Any]:
    """Write rows to one shard and parse it."""
    dtf.to_tfrecord(arrays, folder / "written", mode="w", **options)
    return [All.FromString(payload) for payload in read_payloads(folder / "written")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a shard, of a store of its fields, and of their descriptors."""
    made = tmp_path_factory.mktemp("kinds")
    with dask.config.set(scheduler="synchronous"):
        ds = opened(made / "a", All, [one.SerializeToString() for one in all_kinds()], chunks=2)
        ds[[name for name in ds if not name.startswith("inner.")]].to_zarr(str(made / "store"))
    (made / "kinds.desc").write_bytes(FILES.SerializeToString())
    return made


def arrays_of(ds: dtf.Dataset) -> dict[str, Any]:
    """Return all columns as NumPy arrays, times as their nanoseconds."""
    arrays = ds.compute()
    for name, array in arrays.items():
        if name.endswith("at"):
            arrays[name] = array.view(np.int64)
        elif name.endswith("took"):
            arrays[name] = [row.view(np.int64).tolist() for row in array]
    return dict(arrays)


def without_inner() -> list[Any]:
    messages = all_kinds()
    for one in messages:
        one.ClearField("inner")
    return messages


def test_all_fields_are_written_by_default(folder: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(folder / "a", message=All, chunks=2)
    assert written(tmp_path, ds) == all_kinds()
    assert written(tmp_path, dtf.from_zarr(str(folder / "store"))) == without_inner()
    assert written(tmp_path, arrays_of(ds), message=All) == all_kinds()
    few = ["parts.id", "kind", "any.value", "[kinds.extra]"]
    expected = [
        All(parts=[{"id": part.id} for part in one.parts], any={"value": one.any.value} if one.any.value else None)
        for one in all_kinds()
    ]
    for one, full in zip(expected, all_kinds(), strict=True):
        if full.HasExtension(EXTRA):
            one.Extensions[EXTRA] = full.Extensions[EXTRA]
        if full.HasField("empty"):
            one.empty.SetInParent()
    assert written(tmp_path, ds[few]) == expected


def test_what_is_not_a_column_has_its_default(tmp_path: Path) -> None:
    # A field is present where it differs from its default; a column of its presence, or of its oneof, is exact.
    rows = {"number": [7, 0], "part.id": [0, 3], "limit": [0.0, 2.0], "text": ["", "a"], "at.seconds": [0, 5]}
    expected = [All(), All(number=0, part={"id": 3}, limit={"value": 2}, text="a", at={"seconds": 5})]
    assert written(tmp_path, rows, message=All) == expected
    exact = rows | {"number is set": [True, False], "part is set": [True, False], "kind": ["text", ""]}
    features = {f"{name} is set": dtf.ProtoFeature(name, presence=True) for name in ("number", "part")}
    expected = [All(number=7, part={"id": 0}, text=""), All(limit={"value": 2}, at={"seconds": 5})]
    assert written(tmp_path, exact, features=features, message=All) == expected


def test_values_of_bytes_and_names_are_written(tmp_path: Path) -> None:
    features = {
        "pixels": dtf.ProtoFeature("pixels", values=dtf.RawFeature((1,), "uint16")),
        "any": dtf.ProtoFeature("any.value", values=dtf.TensorFeature((2,), "float64")),
        "color": dtf.ProtoFeature("color", values=dtf.TextFeature()),
        "xs": dtf.ProtoFeature("run.x"),
    }
    tensor = np.array([[0.5, 2], [1, 3]])
    arrays = {
        "pixels": [[[1]], [[258], [3]]],
        "any": tensor,
        "color": ["BLUE", "RED"],
        "xs": [[[], [0.25]], []],
        "inner": [b"", All(number=3).SerializeToString()],
    }
    messages = written(tmp_path, arrays, features=features, message=All)
    assert [list(one.pixels) for one in messages] == [[b"\1\0"], [b"\2\1", b"\3\0"]]
    assert [[[*run.x] for run in one.run] for one in messages] == arrays["xs"]
    assert [one.color for one in messages] == [2, 0]
    assert [one.inner.number for one in messages] == [7, 3]
    back = dtf.read_tfrecord(tmp_path / "written", features, message=All)
    np.testing.assert_array_equal(back["any"].compute(), tensor)
    assert back["color"].compute().tolist() == arrays["color"]
    assert listed(back["pixels"].compute()) == arrays["pixels"]
    # The columns that were read are written under the names of their fields.
    expected = [All(pixels=one.pixels, any=one.any, run=one.run) for one in messages]
    expected[0].color = 2
    back.to_tfrecord(tmp_path / "again")
    assert [All.FromString(payload) for payload in read_payloads(tmp_path / "again")] == expected


WRONG = [
    ({"nombre": [1]}, {}, r"column 'nombre' names no field of kinds\.All.*did you mean 'number'"),
    ({"part": [1]}, {}, r"column 'part' is a message.*part\.id"),
    ({"number": ["a"]}, {}, r"column 'number' is of text, which field 'number' of kinds\.All can't store.*int32"),
    ({"number": [[1, 2]]}, {}, r"column 'number' has rows of shape \(2,\), but field 'number'"),
    ({"number": [1 << 40]}, {}, r"'number': row 0 holds 1099511627776, which does not fit int32"),
    ({"parts.id": [[1]], "parts.names": [[["a"], []]]}, {}, r"record 0.*'parts.names' holds 2 items; expected 1"),
    ({"counts.value": [[1]]}, {}, r"'counts.value' has the entries of a map without their keys.*'counts.key'"),
    ({"color": [1]}, {}, r"'color' holds 1, which enum kinds\.Color lacks"),
    ({"color": ["GREEN"]}, {}, r"'color' holds 'GREEN'; expected one of 'RED', 'BLUE'"),
    ({"kind": ["number"]}, {}, r"'kind' holds 'number'; expected one of"),
    ({"text": [b"a"]}, {}, r"column 'text' is of bytes, which field 'text' of kinds\.All can't store: it takes text"),
    (
        {"url": [b"\xff"]},
        {"url": dtf.ProtoFeature("any.type_url", values=BYTES)},
        r"record 0.*'url' is not valid UTF-8",
    ),
    ({"a": [1], "number": [2]}, {"a": dtf.ProtoFeature("number")}, r"'a' and 'number' hold different values"),
    ({"any": [1]}, {"any": dtf.ProtoFeature("any", values=dtf.ProtoFeature(All, "number"))}, "in bytes"),
]


@pytest.mark.parametrize(("arrays", "features", "text"), WRONG)
def test_errors_name_the_column(arrays: dict[str, Any], features: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(dtf.TFRecordError, match=text):
        dtf.to_tfrecord(arrays, tmp_path / "a", features=features, message=All)
    assert not [*tmp_path.iterdir()]


def in_record(one: bytes) -> bytes:
    return example(p=[one], n=[len(one)])


def in_steps(one: bytes) -> bytes:
    return sequence_example({"n": [len(one)]}, p=[[one]] * (len(one) % 3))


def in_items(one: bytes) -> bytes:
    return delimited(1, example(p=[one])) * (len(one) % 3) + delimited(2, example(n=[len(one)]))


UNITS: dict[str, tuple[Callable[[bytes], bytes], str, Any]] = {
    "a record": (in_record, "features", lambda found: [found.features.feature["p"]]),
    "steps": (in_steps, "sequence_features", lambda found: found.feature_lists.feature_list["p"].feature),
    "items": (in_items, "example_features", lambda found: [each.features.feature["p"] for each in found.examples]),
}
PARSERS = {
    "a record": messages.Example,
    "steps": messages.SequenceExample,
    "items": messages.ExampleListWithContext,
}


@pytest.mark.parametrize(
    ("unit", "compression"), mostly_slow(((unit, each) for unit in UNITS for each in (None, "ZLIB", "GZIP")), 7)
)
def test_messages_in_bytes_are_written_as_they_were_read(unit: str, compression: str | None, tmp_path: Path) -> None:
    hold, argument, values_of = UNITS[unit]
    deflate = {None: bytes, "ZLIB": zlib.compress, "GZIP": gzip.compress}[compression]
    inflate = {None: bytes, "ZLIB": zlib.decompress, "GZIP": gzip.decompress}[compression]
    number = {"n": dtf.FixedLenFeature((), "int64")}
    for drawn, files, unrolled in types_of(f"bytes {unit} {compression}", 3, columns=60):
        cls = message_class(files)
        payloads = [each.SerializePartialToString() for each in legal_messages(cls, unrolled, random.Random(drawn), 9)]
        write_oracle(tmp_path / "read", [hold(deflate(payload)) for payload in payloads])
        paths = with_presence(unrolled, payloads)
        # Every path of the type is a feature of its own, and all of them are one value of the key again.
        features: dict[str, Any] = {
            name: dtf.ProtoFeature(
                cls,
                each.path,
                values=each.values,
                presence=each.presence,
                key="p",
                compression_type=compression,
            )
            for name, each in paths.items()
        }
        given = {"features": features | number} if unit == "a record" else {"features": number, argument: features}
        ds = dtf.read_tfrecord(tmp_path / "read", chunks=4, **given)
        ds.to_tfrecord(tmp_path / "written", mode="w")
        written = [*dtf.read_records(tmp_path / "written")]
        for before, after in zip(dtf.read_records(tmp_path / "read"), written, strict=True):
            pairs = zip(*(values_of(PARSERS[unit].FromString(each)) for each in (before, after)), strict=True)
            for one, other in pairs:
                (expected,), (found,) = one.bytes_list.value, other.bytes_list.value
                held = serialized(cls, unrolled.held(inflate(expected)))
                assert serialized(cls, inflate(found)) == held, drawn


def test_whole_messages_in_bytes_are_written(tmp_path: Path) -> None:
    path, again = tmp_path / "a", tmp_path / "b"
    payloads = [All(number=number, part={"id": 1}).SerializeToString() for number in range(3)]
    dtf.to_tfrecord({"payload": payloads, "n": [1, 2, 3]}, path)
    features = {"payload": dtf.ProtoFeature(All, ""), "n": dtf.FixedLenFeature((), "int64")}
    dtf.read_tfrecord(path, features).to_tfrecord(again)
    found = [messages.Example.FromString(each).features.feature["payload"] for each in dtf.read_records(again)]
    assert [All.FromString(each.bytes_list.value[0]).number for each in found] == [0, 1, 2]
    number = {"payload": dtf.ProtoFeature(All, "number", compression_type="GZIP")}
    dtf.to_tfrecord({"payload": [1, -2]}, again, features=number, mode="w")
    assert dtf.read_tfrecord(again, number)["payload"].compute().tolist() == [1, -2]
    with pytest.raises(dtf.FeatureError, match=r"record 1: feature 'payload' holds .* which does not fit int32"):
        dtf.to_tfrecord({"payload": np.array([1, 1 << 40])}, again, features=number, mode="w")
    part = message_class(FILES, "kinds.Part")
    two = {"a": dtf.ProtoFeature(All, "number", key="p"), "b": dtf.ProtoFeature(part, "id", key="p")}
    with pytest.raises(dtf.SchemaError, match="'a' and 'b' are written to the key 'p' as messages of another type"):
        dtf.to_tfrecord({"a": [1], "b": [1]}, again, features=two, mode="w")


def test_images_are_encoded(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    features = {"image": dtf.ProtoFeature("pixels", values=dtf.ImageFeature((2, 3, 3)))}
    pixels = np.arange(36, dtype=np.uint8).reshape(2, 1, 2, 3, 3)
    written(tmp_path, {"image": pixels}, features=features, message=All, encoding="png")
    back = dtf.read_tfrecord(tmp_path / "written", features, message=All)
    np.testing.assert_array_equal(np.stack([*back["image"].compute()]), pixels)
    back.to_tfrecord(tmp_path / "again", encoding={"image": "png"})
    again = [All.FromString(payload) for payload in read_payloads(tmp_path / "again")]
    assert [len(one.pixels) for one in again] == [1, 1]
    with pytest.raises(dtf.SchemaError, match="encoding of 'number'"):
        dtf.to_tfrecord({"number": [1]}, tmp_path / "b", message=All, encoding={"number": "png"})


def test_columns_that_changed_need_a_decision(tmp_path: Path) -> None:
    ds = opened(tmp_path / "a", All, [one.SerializeToString() for one in all_kinds()])
    with pytest.raises(dtf.SchemaError, match=r"column 'twice' names no field of kinds\.All.*features="):
        ds[["number"]].assign(twice=ds["number"] * 2).to_tfrecord(tmp_path / "b")
    with pytest.raises(dtf.SchemaError, match="ProtoFeature"):
        ds.to_tfrecord(tmp_path / "b", features={"number": dtf.FixedLenFeature((), "int64")}, message=All)


@pytest.mark.parametrize(("source", "given"), [("store", False), ("store", True), ("a", True)])
def test_the_command_writes_messages(source: str, given: bool, folder: Path, tmp_path: Path) -> None:
    options = ["--message", f"{folder / 'kinds.desc'}:kinds.All"] if given else []
    shown("to-tfrecord", folder / source, tmp_path / "b", *options)
    messages = [All.FromString(payload) for payload in read_payloads(tmp_path / "b")]
    assert messages == (all_kinds() if source == "a" else without_inner())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kinds.desc", "no name of a message.*there are .*'kinds.All'"),
        ("kinds.desc:kinds.Al", "no message 'kinds.Al'; did you mean 'kinds.All'"),
        ("other.desc:kinds.All", "cannot read the file.*names a file and its message"),
        ("a:kinds.All", "not a FileDescriptorSet"),
    ],
)
def test_wrong_types_are_refused_before_anything_is_printed(name: str, text: str, folder: Path) -> None:
    result = run("info", folder / "a", "--message", folder / name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(rf"--message '.*{name}': {text}", result.stderr), result.stderr


def test_tasks_that_repeat_write_the_same(tmp_path: Path) -> None:
    messages = [All(number=row, parts=[{"id": part} for part in range(row)]) for row in range(6)]
    ds = opened(tmp_path / "a", All, [one.SerializeToString() for one in messages], chunks=2)
    repeating = Repeating(0, after_last=False)
    with dask.config.set(scheduler=repeating.get()):
        ds.to_tfrecord(tmp_path / "b-{shard}", compression="gzip", index=True)
    assert repeating.runs > 3
    back = dtf.read_tfrecord([tmp_path / f"b-{number}" for number in range(3)], message=All)
    assert back["number"].compute().tolist() == [*range(6)]
    assert [len(row) for row in back["parts.id"].compute()] == [*range(6)]
