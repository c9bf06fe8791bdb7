"""Detection of payload types and inference of schemas."""

from __future__ import annotations

import json
import math
import pickle
import re
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import oracle
import pytest
from google.protobuf.internal import api_implementation
from hypothesis import assume, given
from hypothesis import strategies as st
from support.corpus import FOREIGN
from support.parsing_cases import delimited as on_wire

from dask_tfrecord import infer_schema, read_tfrecord
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, SchemaError, ShardNotFoundError
from dask_tfrecord.features import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from dask_tfrecord.inspection.payload_type import detect_payload_type, is_probably_example, reading_advice
from dask_tfrecord.inspection.report import infer, infer_examples
from dask_tfrecord.messages import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.listing import find_shards

judged_by_upb = pytest.mark.skipif(
    api_implementation.Type() == "python", reason="pure Python protobuf does not know over-long tags"
)


def feature(values: Sequence[Any] | None, kind: str = "int64") -> Feature:
    """Return a Feature of ints, floats or bytes; without a kind for None, of `kind` for an empty list."""
    if values is None:
        return Feature()
    kind = {int: "int64", float: "float32", bytes: "bytes"}[type(values[0])] if values else kind
    if kind == "bytes":
        return Feature(bytes_list=BytesList(value=values))
    return (
        Feature(float_list=FloatList(value=values))
        if kind == "float32"
        else Feature(int64_list=Int64List(value=values))
    )


def features(**values: Sequence[Any] | None) -> Features:
    return Features(feature={name: feature(value) for name, value in values.items()})


def example(**values: Sequence[Any] | None) -> bytes:
    return Example(features=features(**values)).SerializeToString()


def infer_from(*payloads: bytes) -> Schema:
    return infer((Location("some.tfrecord", number, 100 * number), payload) for number, payload in enumerate(payloads))


def write(folder: Path, shards: Iterable[Iterable[bytes]]) -> str:
    for number, payloads in enumerate(shards):
        oracle.write_oracle(folder / f"part-{number:05d}", payloads)
    return str(folder)


def delimited(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


# ---------------------------------------------------------------------------------------------------- payload types

SEQUENCE = SequenceExample(
    context=features(id=[b"x"]), feature_lists=FeatureLists(feature_list={"s": FeatureList(feature=[feature([1.5])])})
)
EVENT = struct.pack("<Bd", 9, 1.7e9) + b"\x10\x05"


PAYLOAD_TYPES = [
    (b"", "an empty record"),
    (example(a=[1]), "an Example"),
    (example(a=None), "an Example"),
    (Example(features=Features()).SerializeToString(), "an Example"),
    (example(a=[1]) + b"\x48\x05\x53\x54", "an Example"),  # unknown fields, including a group
    (delimited(1, b"\x08\x07") + example(a=[1]), "an Example"),
    (example(a=[1]) + delimited(1, b"\x0a\x01"), "a damaged Example"),
    (example(key=[1]).replace(b"key", b"k\xffy"), "a damaged Example"),
    (SEQUENCE.SerializeToString(), "a SequenceExample"),
    (SequenceExample(feature_lists=SEQUENCE.feature_lists).SerializeToString(), "a SequenceExample"),
    (example(a=[1]) + delimited(2, b""), "a SequenceExample"),
    (delimited(1, example(a=[1])) + delimited(1, example(b=[2])), "an ExampleListWithContext"),
    (delimited(1, example(a=[1])) + delimited(2, example(query=[b"q"])), "an ExampleListWithContext"),
    (delimited(2, example(query=[b"q"])), "an ExampleListWithContext"),
    (EVENT + delimited(3, b"brain.Event:2"), "a tf.Event"),
    (EVENT + delimited(5, b"\x0a\x00"), "a tf.Event"),
    (struct.pack("<Bd", 9, -1.0), "a protobuf message of another kind"),
    (delimited(1, b"a name") + b"\x10\x2a", "a protobuf message of another kind"),
    (delimited(1, b"") + b"\x10\x2a", "a protobuf message of another kind"),
    (b"\x10\x2a", "a protobuf message of another kind"),
    (b'{"label": 3}', "JSON text"),
    (b' ["a", 1]\n', "JSON text"),
    (b"{no json}", "UTF-8 text"),
    (b"[" * 100_000, "UTF-8 text"),
    (b"17", "UTF-8 text"),
    ("größe\t1\r\n".encode(), "UTF-8 text"),
    (b"\nnew line first", "UTF-8 text"),
    (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "a PNG image"),
    (b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image"),
    (b"GIF89a\x01\x00", "a GIF image"),
    (b"\x1f\x8b\x08\x00\x00", "gzip data"),
    (b"\x93NUMPY\x01\x00v\x00", "a NumPy .npy file"),
    (b"ARROW1\x00\x00", "an Arrow file"),
    (b"\xff\xff\xff\xff\x08\x00\x00\x00" + bytes(8), "an Arrow stream"),
    (b"Obj\x01\x04", "an Avro file"),
    (b"PAR1\x15", "a Parquet file"),
    (b"PK\x03\x04\x14\x00", "a zip archive"),
    *((pickle.dumps({"label": [1, 2]}, protocol), "a pickle") for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    (b"\x80\x04 no end", "raw bytes"),
    (bytes(range(256)), "raw bytes"),
    (bytes(100), "raw bytes"),
    (b"\x0a\x05abc", "raw bytes"),  # truncated
    (b"\x0b" * 1000, "raw bytes"),  # groups that never end
    (b"\xff" * 20, "raw bytes"),  # a varint that never ends
]


@pytest.mark.parametrize(("payload", "looks"), PAYLOAD_TYPES)
def test_payload_types(payload: bytes, looks: str) -> None:
    assert detect_payload_type(payload) == looks
    assert is_probably_example(payload) == (looks in ("an Example", "a damaged Example"))


def test_each_payload_type_has_advice() -> None:
    said = {looks: reading_advice(looks) for _, looks in PAYLOAD_TYPES}
    assert all(
        "read_bag(urlpath" in text or "read_records(urlpath)" in text or "features=" in text for text in said.values()
    )
    assert "json.loads" in said["JSON text"]
    assert "infer_schema(urlpath)" in said["a SequenceExample"]
    assert "event_pb2" in said["a tf.Event"]


@judged_by_upb
@given(data=st.data())
def test_every_legal_encoding_is_detected(data: st.DataObject) -> None:
    schema = data.draw(oracle.schemas(min_size=1))
    message = data.draw(oracle.examples(schema))
    assume(any(held.ByteSize() > 2 for held in message.features.feature.values()))
    _, payload = data.draw(oracle.wire_encodings(message))
    assert detect_payload_type(payload) == "an Example"


@given(payload=st.binary(max_size=300))
def test_any_bytes_have_a_payload_type(payload: bytes) -> None:
    assert is_probably_example(payload) == (detect_payload_type(payload) in ("an Example", "a damaged Example"))


def test_millions_of_tiny_fields_take_little_time() -> None:
    assert detect_payload_type(b"\x18\x01" * 2_000_000) == "a protobuf message of another kind"
    assert detect_payload_type(b"\x1b" + b"\x18\x01" * 2_000_000 + b"\x1c") == "raw bytes"


def test_payload_types_of_corpus_records(corpus: Path) -> None:
    for name, looks in FOREIGN.items():
        assert {detect_payload_type(payload) for payload in oracle.read_payloads(corpus / name)} == {looks}


# ------------------------------------------------------------------------------------------------------ inference


def test_constant_counts_are_fixed() -> None:
    record = example(one=[1], four=[1.0, 2.0, 3.0, 4.0], two=[b"a", b""])
    schema = infer_from(record, record)
    assert list(schema.items()) == [
        ("four", FixedLenFeature((4,), "float32")),
        ("one", FixedLenFeature((), "int64")),
        ("two", FixedLenFeature((2,), "bytes")),
    ]
    assert schema.sampling is not None
    assert (schema.sampling.records, schema.sampling.shards, schema.sampling.unset) == (2, 1, ())
    assert dict(schema.sampling.present) == {"four": 2, "one": 2, "two": 2}


@pytest.mark.parametrize(
    ("records", "present"),
    [
        ([example(x=[1], k=[1]), example(k=[1])], 1),  # absent
        ([example(k=[1]), example(x=[1], k=[1])], 1),
        ([example(x=[1], k=[1]), b""], 1),
        ([example(x=[1], k=[1]), example(x=None, k=[1])], 1),  # without a kind
        ([example(x=None, k=[1]), example(x=[1], k=[1])], 1),
        ([example(x=[], k=[1]), example(x=[], k=[1])], 2),  # a kind without values
        ([example(x=[1], k=[1]), example(x=[1, 2], k=[1])], 2),  # counts differ
        ([example(x=[1], k=[1]), example(x=[1, 2], k=[1]), example(x=[1], k=[1])], 3),
    ],
)
def test_everything_else_is_of_variable_length(records: list[bytes], present: int) -> None:
    schema = infer_from(*records)
    assert schema["x"] == VarLenFeature("int64")
    assert schema.sampling is not None
    assert dict(schema.sampling.present)["x"] == present


def test_bytes_stay_bytes() -> None:
    record = example(text=["größe".encode()], png=[b"\x89PNG\r\n\x1a\n"], raw=[bytes(12)])
    assert set(infer_from(record).values()) == {FixedLenFeature((), "bytes")}


def test_keys_without_a_kind_are_not_features() -> None:
    schema = infer_from(example(a=None, z=[1]), example(b=None, z=[1]), example(b=[], z=[1]))
    assert list(schema) == ["b", "z"]
    assert schema.sampling is not None
    assert schema.sampling.unset == ("a",)
    assert "(never set)" in repr(schema)


def test_names_are_sorted_and_any_text() -> None:
    names = ["größe", "", "a/b c", "z", "Z", "0"]
    forward, backward = (infer_from(example(**{name: [1] for name in order})) for order in (names, names[::-1]))
    assert list(forward) == list(backward) == sorted(names)


def test_two_kinds_for_one_key() -> None:
    with pytest.raises(SchemaError, match="feature 'x' holds values of 2 kinds, and a column has one") as caught:
        infer_from(example(x=[1]), example(y=[1]), example(x=[1.0]), example(x=[2]))
    assert caught.value.place == Location("some.tfrecord", 2, 200, "x")
    assert "int64 in 2 records; float32 in 1 record. Read the records of one kind" in caught.value.message
    assert "features=" in caught.value.message


def test_an_empty_list_has_a_kind() -> None:
    empty = Example(features=Features(feature={"x": feature([], "bytes")})).SerializeToString()
    with pytest.raises(SchemaError, match=r"'x' holds values of 2 kinds.* int64 in 1 .* bytes in 1 "):
        infer_from(example(x=[1]), empty)


@pytest.mark.parametrize(
    "payload",
    [EVENT, b"text", example(a=[1])[:-1], example(key=[1]).replace(b"key", b"k\xffy")],
)
def test_other_payload_types_are_refused(payload: bytes) -> None:
    with pytest.raises(FeatureError) as caught:
        infer_from(example(a=[1]), payload)
    assert caught.value.place == Location("some.tfrecord", 1, 100)
    assert f"found {detect_payload_type(payload)} of {len(payload)} bytes" in caught.value.message
    assert reading_advice(detect_payload_type(payload)) in caught.value.message


def test_nothing_to_infer_from() -> None:
    with pytest.raises(SchemaError, match="no record to infer features from: give features="):
        infer_from()
    with pytest.raises(SchemaError, match="no feature is set in 3 records: give features="):
        infer_from(b"", example(a=None), Example(features=Features()).SerializeToString())


@judged_by_upb
@given(data=st.data())
def test_an_inferred_schema_fits_its_records(data: st.DataObject) -> None:
    schema = data.draw(oracle.schemas(min_size=1))
    records = data.draw(st.lists(oracle.examples(schema), min_size=1, max_size=4))
    assume(any(held.WhichOneof("kind") for record in records for held in record.features.feature.values()))
    payloads = [record.SerializeToString() for record in records]
    inferred = infer_from(*payloads)
    columns = oracle.expected_columns(payloads, inferred)
    assert inferred.sampling is not None
    assert set(columns) | set(inferred.sampling.unset) == {name for rec in records for name in rec.features.feature}
    encoded = [data.draw(oracle.wire_encodings(record))[1] for record in records]
    if all(map(is_probably_example, encoded)):
        assert infer_from(*encoded) == inferred
        assert infer_from(*encoded).sampling == inferred.sampling


# ---------------------------------------------------------------------------------------------- sequence examples


def sequence(context: Features | None = None, **lists: Sequence[Sequence[Any] | None]) -> bytes:
    named = {name: FeatureList(feature=[feature(step) for step in steps]) for name, steps in lists.items()}
    return SequenceExample(context=context, feature_lists=FeatureLists(feature_list=named)).SerializeToString()


def test_feature_lists_and_context_are_inferred() -> None:
    first = sequence(features(id=[7], tag=[b"a"]), same=[[1.5, 2.5]] * 3, one=[[1]], differ=[[1], [1, 2]])
    second = sequence(features(id=[8]), same=[[0.5, 0.5]], one=[[2], [3]], differ=[[1]])
    schema = infer_from(first, second)
    assert schema.context_features == {"id": FixedLenFeature((), "int64"), "tag": VarLenFeature("bytes")}
    assert schema.sequence_features == {
        "differ": VarLenFeature("int64"),
        "one": FixedLenSequenceFeature((), "int64"),
        "same": FixedLenSequenceFeature((2,), "float32"),
    }
    assert schema.sampling is not None
    assert dict(schema.sampling.present) == {"differ": 2, "id": 2, "one": 2, "same": 2, "tag": 1}


@pytest.mark.parametrize(
    ("others", "becomes"),
    [
        ([sequence(s=[])], FixedLenSequenceFeature((), "int64")),  # without steps
        ([sequence(other=[[1]])], FixedLenSequenceFeature((), "int64", allow_missing=True)),  # without a list
        ([b""], FixedLenSequenceFeature((), "int64", allow_missing=True)),
        ([b"\x0a\x00\x12\x00"], FixedLenSequenceFeature((), "int64", allow_missing=True)),
        ([example(id=[1])], FixedLenSequenceFeature((), "int64", allow_missing=True)),  # context only
        ([sequence(s=[None])], VarLenFeature("int64")),  # a step without a kind
        ([sequence(s=[[]])], VarLenFeature("int64")),  # an empty step
        ([sequence(s=[[1, 2]])], VarLenFeature("int64")),
    ],
)
def test_steps_that_differ(others: list[bytes], becomes: Any) -> None:
    for records in ([sequence(s=[[1], [2]]), *others], [*others, sequence(s=[[1], [2]])]):
        schema = infer_from(*records)
        assert schema.sequence_features is not None
        assert schema["s"] == schema.sequence_features["s"] == becomes


def test_lists_without_a_kind_are_not_features() -> None:
    schema = infer_from(sequence(features(id=[1]), empty=[], unset=[None], s=[[1]]))
    assert schema.sampling is not None
    assert (list(schema), schema.sampling.unset) == (["id", "s"], ("empty", "unset"))


def test_kinds_of_steps_that_contradict() -> None:
    with pytest.raises(SchemaError, match="feature 's' holds values of 2 kinds, and a column has one"):
        infer_from(sequence(s=[[1], [1.5]]))


def test_one_name_in_context_and_lists() -> None:
    with pytest.raises(SchemaError, match="'s' is both a context feature and a feature list"):
        infer_from(sequence(features(s=[1]), s=[[1]]))


def test_sequence_examples_require_sequence_features(tmp_path: Path) -> None:
    url = write(tmp_path, [[sequence(features(id=[1]), s=[[1]])]])
    assert infer_schema(url).message == "SequenceExample"
    with pytest.raises(FeatureError, match=r"read_tfrecord\(urlpath, infer_schema\(urlpath\)\)") as caught:
        read_tfrecord(url)
    assert "sequence_features=" in caught.value.message


@given(data=st.data())
def test_inferred_lists_fit_their_records(data: st.DataObject) -> None:
    steps = st.lists(st.lists(st.integers(0, 9), max_size=3) | st.none(), max_size=3)
    records = data.draw(st.lists(st.dictionaries(st.sampled_from("ab"), steps), min_size=1, max_size=4))
    every = [record[name] for record in records for name in record]
    assume(any(step is not None for steps in every for step in steps))
    schema = infer_from(*(sequence(**record) for record in records))
    for name, feature in schema.items():
        lists = [record[name] for record in records if name in record]
        counts = {None if step is None else len(step) for steps in lists for step in steps}
        if isinstance(feature, FixedLenSequenceFeature):
            assert counts == {math.prod(feature.shape)}
            assert feature.allow_missing == (len(lists) < len(records))
        else:
            assert len(counts) > 1 or counts == {0}


@pytest.mark.parametrize("name", [name for name, looks in FOREIGN.items() if looks == "a SequenceExample"])
def test_corpus_sequence_examples_are_read_as_inferred(corpus: Path, name: str) -> None:
    schema = infer_schema(corpus / name, sample=None)
    columns = read_tfrecord(corpus / name, schema).compute()
    records = [SequenceExample.FromString(payload) for payload in oracle.read_payloads(corpus / name)]
    assert schema.sequence_features
    for key, feature in schema.sequence_features.items():
        steps = [record.feature_lists.feature_list[key].feature for record in records]
        assert columns[f"{key}.lengths"].tolist() == [len(each) for each in steps]
        kind = {"bytes": "bytes_list", "float32": "float_list", "int64": "int64_list"}[str(feature.dtype)]
        for row, each in zip(columns[key], steps, strict=True):
            held = [value for step in each for value in getattr(step, kind).value]
            assert row.ravel()[: len(held)].tolist() == held


# ------------------------------------------------------------------------------------------------------- sampling


def test_a_sample_is_spread_over_shards(tmp_path: Path) -> None:
    # Each record has a feature of its own, so that the schema identifies the records that were read.
    shards = [[example(**{f"s{shard:02d}r{record:02d}": [1]}) for record in range(20)] for shard in range(30)]
    seen = list(infer_schema(write(tmp_path, shards), sample=24))
    assert len(seen) == 24
    sampled = sorted({name[:3] for name in seen})
    assert len(sampled) == 8
    assert (sampled[0], sampled[-1]) == ("s00", "s29")
    gaps = [int(after[1:]) - int(before[1:]) for before, after in pairwise(sampled)]
    assert max(gaps) - min(gaps) <= 1
    assert {name[3:] for name in seen} == {"r00", "r01", "r02"}


def test_later_shards_make_up_for_short_ones(tmp_path: Path) -> None:
    url = write(tmp_path, [[example(a=[1])] * count for count in (1, 0, 100)])
    sampling = infer_schema(url, sample=30).sampling
    assert sampling is not None
    assert (sampling.records, sampling.shards) == (30, 2)


def test_a_small_sample_of_many_shards(tmp_path: Path) -> None:
    sampling = infer_schema(write(tmp_path, [[example(a=[1])]] * 20), sample=3).sampling
    assert sampling is not None
    assert (sampling.records, sampling.shards) == (3, 3)


def test_all_records_are_read_on_request(tmp_path: Path) -> None:
    shards = [[example(x=[1])] * 300 for _ in range(12)]
    shards[7][250] = example(x=[1, 2], rare=[0.5])
    url = write(tmp_path, shards)
    assert dict(infer_schema(url)) == {"x": FixedLenFeature((), "int64")}
    schema = infer_schema(url, sample=None)
    assert dict(schema) == {"rare": VarLenFeature("float32"), "x": VarLenFeature("int64")}
    assert schema.sampling is not None
    assert (schema.sampling.records, schema.sampling.shards) == (3600, 12)
    assert schema.sampling.present == (("rare", 1), ("x", 3600))


def test_shards_outside_the_sample_are_read_if_it_is_empty(tmp_path: Path) -> None:
    shards: list[list[bytes]] = [[] for _ in range(20)]
    shards[1] = [example(a=[1]), example(a=[2])]
    sampling = infer_schema(write(tmp_path, shards), sample=16).sampling
    assert sampling is not None
    assert (sampling.records, sampling.shards) == (2, 1)


def test_shards_without_any_record(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="give features="):
        infer_schema(write(tmp_path, [[], [], []]))


@pytest.mark.parametrize("sample", [0, -1, True, 1.5, "all"])
def test_invalid_samples(tmp_path: Path, sample: Any) -> None:
    with pytest.raises(SchemaError, match="sample is a number of records"):
        infer_schema(write(tmp_path, [[example(a=[1])]]), sample=sample)


def test_the_result_prints_as_a_table(tmp_path: Path) -> None:
    url = write(tmp_path, [[example(image=[b"x"], label=[3]), example(image=[b"y"], label=[4], boxes=[0.5, 1.0])]])
    assert repr(infer_schema(url)).splitlines()[1:] == [
        "feature  class            dtype    shape  present",
        "boxes    VarLenFeature    float32  (-1,)  1 of 2",
        "image    FixedLenFeature  bytes    ()     2 of 2",
        "label    FixedLenFeature  int64    ()     2 of 2",
    ]


def test_errors_name_file_record_and_byte(tmp_path: Path) -> None:
    good = example(a=[1])
    url = write(tmp_path, [[good], [good, b"not an Example"]])
    with pytest.raises(FeatureError, match=rf"part-00001: record 1 \(byte {len(good) + 16}\): expected an Example"):
        infer_schema(url)
    with pytest.raises(FeatureError, match="record 1"):
        infer_examples(find_shards(url))


def test_damage_is_reported_even_in_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    oracle.write_oracle(path, [example(a=[1])] * 3)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="record 2"):
        infer_schema(path)
    assert infer_schema(path, sample=2)["a"] == FixedLenFeature((), "int64")


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(ShardNotFoundError):
        infer_schema(tmp_path / "nothing")


# ---------------------------------------------------------------------------------------------- golden and corpus files


@pytest.mark.parametrize(
    "file", ["scalars.tfrecord", "scalars_gzip.tfrecord.gz", "fixed_shapes.tfrecord", "unicode_names.tfrecord"]
)
def test_golden_files_have_the_features_they_were_written_with(golden: Path, file: str) -> None:
    spec = json.loads((golden / f"{file.split('.')[0]}.json").read_text("utf-8"))["features"]
    meant = {
        name: FixedLenFeature(math.prod(entry["shape"]) if entry["shape"] else (), entry["dtype"])
        for name, entry in spec.items()
    }
    assert dict(infer_schema(golden / file, sample=None)) == meant


def indexed(corpus: Path) -> dict[str, tuple[int, dict[str, str], str]]:
    """Return number of records, value counts by feature as text, and remarks for each file of Examples in INDEX.md."""
    files = {}
    for line in (corpus / "INDEX.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[5] == "Example":
            counts = dict(re.findall(r"([^ ;]+:\w+)\[([0-9.]+)\]", cells[6]))
            files[cells[0]] = (int(cells[4]), counts, cells[7])
    return files


def test_corpus_files_have_the_features_of_their_index(corpus: Path) -> None:
    files = indexed(corpus)
    assert len(files) == 28
    for name, (records, counts, remarks) in files.items():
        schema = infer_schema(corpus / name, sample=None)
        assert schema.sampling is not None
        assert (schema.sampling.records, schema.sampling.shards) == (records, 1)
        absent = re.findall(r"(\w+)\(\d+\)", remarks)
        for feature_and_kind, count in counts.items():
            key, kind = feature_and_kind.rsplit(":", 1)
            if kind == "unset":
                assert key in schema.sampling.unset
            elif ".." in count or key in absent:
                assert schema[key] == VarLenFeature(kind)
            else:
                assert schema[key] == FixedLenFeature(() if count == "1" else (int(count),), kind)
        for key in re.findall(r"never set: ([^;]+)", remarks):
            assert set(key.split(", ")) <= set(schema.sampling.unset)


@pytest.mark.slow
def test_corpus_files_fit_their_inferred_schema(corpus: Path) -> None:
    for name in indexed(corpus):
        payloads = oracle.read_payloads(corpus / name)
        schema = infer_schema(corpus / name, sample=None)
        present = dict.fromkeys(schema, 0)
        for payload in payloads:
            held = Example.FromString(payload).features.feature
            assert set(schema) | set(schema.sampling.unset if schema.sampling else ()) >= set(held)
            for key in schema:
                present[key] += key in held and held[key].WhichOneof("kind") is not None
        assert schema.sampling is not None
        assert dict(schema.sampling.present) == present
        assert all(len(column) == len(payloads) for column in oracle.expected_columns(payloads, schema).values())


def test_corpus_files_of_one_set_are_inferred_together(corpus: Path) -> None:
    schema = infer_schema(corpus / "tensorflow__tfx/tfx/components/testdata/csv_example_gen/Split-train")
    assert schema.sampling is not None
    assert (len(schema), schema.sampling.records, schema.sampling.shards) == (17, 256, 8)
    assert schema.sampling.unset == ("pickup_census_tract",)


@pytest.mark.parametrize("name", FOREIGN)
def test_corpus_files_without_examples_are_refused(corpus: Path, name: str) -> None:
    read = infer_schema
    if FOREIGN[name] in ("a SequenceExample", "an ExampleListWithContext"):
        read = read_tfrecord  # type: ignore[assignment]
    with pytest.raises(FeatureError, match=rf"record 0 \(byte 0\): expected an Example, found {FOREIGN[name]} of"):
        read(corpus / name)


def test_a_corpus_file_without_records(corpus: Path) -> None:
    folder = corpus / "calico__baskerville/tests/data/tiny/mm10/tfrecords"
    with pytest.raises(SchemaError, match="found no record to infer features from: give features="):
        infer_schema(folder / "train-7.tfr")
    sampling = infer_schema(folder).sampling
    assert sampling is not None
    assert (sampling.records, sampling.shards) == (5, 2)


def entry_with_unknown_field(key: bytes, values: bytes, *, steps: bool = False) -> bytes:
    """Return a map entry with an unknown field, because of which upb treats the whole entry as unknown."""
    value = on_wire(1, values) if steps else values
    return on_wire(1, on_wire(1, key) + on_wire(5, b"?") + on_wire(2, value))


def test_entries_with_unknown_fields_are_inferred_as_the_decoder_reads_them(tmp_path: Path) -> None:
    one, two, half = (on_wire(kind, on_wire(1, data)) for kind, data in ((3, b"\1"), (3, b"\2"), (2, bytes(4))))
    plain = on_wire(1, on_wire(1, b"a") + on_wire(2, half))
    odd = [entry_with_unknown_field(b"a", one), entry_with_unknown_field(b"long" * 50, two)]
    # The last entry of a key is valid, with or without an unknown field.
    examples = [on_wire(1, plain + odd[0] + odd[1]), on_wire(1, odd[1] + odd[0])]
    schema = infer_from(*examples)
    assert dict(schema) == dict.fromkeys(["a", "long" * 50], FixedLenFeature((), "int64"))
    path = tmp_path / "odd.tfrecord"
    oracle.write_oracle(path, examples)
    read = read_tfrecord(path)
    assert {name: column.tolist() for name, column in read.compute().items()} == {"a": [1, 1], "long" * 50: [2, 2]}
    assert dict(read_tfrecord(path, columns=["a"]).schema) == {"a": FixedLenFeature((), "int64")}
    context = on_wire(1, odd[0])
    lists = on_wire(2, entry_with_unknown_field(b"s", one, steps=True))
    found = infer_from(context + lists)
    assert found.message == "SequenceExample"
    assert (found["a"], found["s"]) == (FixedLenFeature((), "int64"), FixedLenSequenceFeature((), "int64"))
