"""Detection of payload types and inference of schemas."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import oracle
import pytest
from google.protobuf.internal import api_implementation
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle.messages import Example, Feature, Int64List
from support.corpus import SEQUENCES
from support.store_round_trip import assert_same
from support.wire import delimited, example, feature, sequence_example

from dask_tfrecord import infer_schema, read_tfrecord
from dask_tfrecord.errors import (
    CorruptRecordError,
    FeatureError,
    Location,
    SchemaError,
    ShardNotFoundError,
    UnknownFeatureError,
)
from dask_tfrecord.features import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from dask_tfrecord.features.inference.payload_type import detect_payload_type, is_probably_example, payload_error
from dask_tfrecord.features.inference.report import Report
from dask_tfrecord.features.inference.survey import survey
from dask_tfrecord.features.schema import Sampling, Schema

judged_by_upb = pytest.mark.skipif(
    api_implementation.Type() == "python", reason="pure Python protobuf does not know over-long tags"
)
NO_INTS = Feature(int64_list=Int64List())
SCALAR, ANY = FixedLenFeature((), "int64"), VarLenFeature("int64")


def infer_from(*payloads: bytes) -> Schema:
    records = ((Location("some.tfrecord", number, 100 * number), payload) for number, payload in enumerate(payloads))
    return Report.from_survey(survey(records)).schema


def sampling_of(schema: Schema) -> Sampling:
    assert schema.sampling is not None
    return schema.sampling


def write(folder: Path, shards: Iterable[Iterable[bytes]]) -> str:
    for number, payloads in enumerate(shards):
        oracle.write_oracle(folder / f"part-{number:05d}", payloads)
    return str(folder)


# ---------------------------------------------------------------------------------------------------- payload types

EVENT = struct.pack("<Bd", 9, 1.7e9) + b"\x10\x05"
SIMPLE_VALUE = delimited(1, b"loss") + struct.pack("<Bf", 0x15, 0.5)
VARIANT = delimited(6, b"ACG") + delimited(7, b"A") + delimited(14, b"chr1") + b"\x68\x0d\x80\x01\x0a"
STATE = struct.pack("<BdBdBd", 0x11, 1, 0x19, 2, 0x21, 3) + b"".join(
    struct.pack("<Bf", number << 3 | 5, 0.5) for number in range(5, 11)
)
SCENARIO = (
    delimited(5, b"637f20cafde22ff8")
    + struct.pack("<BdBd", 9, 0.0, 9, 0.1)
    + delimited(2, b"\x08\x07\x10\x01" + delimited(3, STATE + b"\x58\x01") * 2)
)
NOT_UTF8 = example(key=[1]).replace(b"key", b"k\xffy")
PAYLOAD_TYPES = {
    "an empty record": [b""],
    "an Example": [
        example(a=[1]),
        example(a=[]),
        example(),
        example(a=[1]) + b"\x48\x05\x53\x54",  # unknown fields, including a group
        delimited(1, b"\x08\x07") + example(a=[1]),
    ],
    "a damaged Example": [example(a=[1]) + delimited(1, b"\x0a\x01"), NOT_UTF8],
    "a SequenceExample": [
        sequence_example({"id": [b"x"]}, s=[[1.5]]),
        sequence_example(s=[[1.5]]),
        example(a=[1]) + delimited(2, b""),
    ],
    "an ExampleListWithContext": [
        delimited(1, example(a=[1])) + delimited(1, example(b=[2])),
        delimited(1, example(a=[1])) + delimited(2, example(query=[b"q"])),
        delimited(2, example(query=[b"q"])),
    ],
    "a tf.Event": [EVENT + delimited(3, b"brain.Event:2"), EVENT + delimited(5, delimited(1, SIMPLE_VALUE))],
    "a nucleus Variant": [VARIANT],
    "a Waymo Scenario": [SCENARIO],
    # Messages that have the fields of a well-known one, without values that prove it.
    "a protobuf message of another kind": [
        EVENT + delimited(3, b"a name"),
        EVENT + delimited(5, b"\x0a\x00"),
        struct.pack("<Bd", 9, 2.5) + b"\x10\x05" + delimited(3, b"brain.Event:2"),
        VARIANT.replace(b"ACG", b"xyz"),
        VARIANT + b"\x68\x0c",
        SCENARIO + struct.pack("<Bd", 9, 0.15),
        SCENARIO.replace(b"\x58\x01", b"\x60\x01"),
        struct.pack("<Bd", 9, -1.0),
        delimited(1, b"a name") + b"\x10\x2a",
        delimited(1, b"") + b"\x10\x2a",
        b"\x10\x2a",
        b"\x18\x01" * 5_000,
    ],
    "JSON text": [b'{"label": 3}', b' ["a", 1]\n'],
    "UTF-8 text": [b"{no json}", b"[" * 20_000, b"17", "größe\t1\r\n".encode(), b"\nnew line first"],
    "a PNG image": [b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"],
    "a JPEG image": [b"\xff\xd8\xff\xe0\x00\x10JFIF"],
    "a GIF image": [b"GIF89a\x01\x00"],
    "gzip data": [b"\x1f\x8b\x08\x00\x00"],
    "a NumPy .npy file": [b"\x93NUMPY\x01\x00v\x00"],
    "an Arrow file": [b"ARROW1\x00\x00"],
    "an Arrow stream": [b"\xff\xff\xff\xff\x08\x00\x00\x00" + bytes(8)],
    "an Avro file": [b"Obj\x01\x04"],
    "a Parquet file": [b"PAR1\x15"],
    "a zip archive": [b"PK\x03\x04\x14\x00"],
    "a pickle": [pickle.dumps({"label": [1, 2]}, protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)],
    "raw bytes": [
        b"\x80\x04 no end",
        bytes(range(256)),
        bytes(100),
        b"\x0a\x05abc",  # truncated
        b"\x0b" * 1000,  # groups that never end
        b"\xff" * 20,  # a varint that never ends
        b"\x1b" + b"\x18\x01" * 200_000 + b"\x1c",
    ],
}


@pytest.mark.parametrize("looks", PAYLOAD_TYPES)
def test_payload_types_are_detected_and_have_advice(looks: str) -> None:
    for payload in PAYLOAD_TYPES[looks]:
        assert detect_payload_type(payload) == looks
        assert is_probably_example(payload) == (looks in ("an Example", "a damaged Example"))
    said = {"JSON text": "json.loads", "a SequenceExample": "infer_schema(urlpath)", "a tf.Event": "tensorflow.Event"}
    error = payload_error(PAYLOAD_TYPES[looks][0], Location("x"))
    assert said.get(looks, "") in error.message
    assert re.search(r"read_bag\(urlpath|read_records\(urlpath\)|features=", error.message)
    assert not re.search(r"[^-]features=|infer_schema", error.for_commands())


@judged_by_upb
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_every_legal_encoding_is_detected(data: st.DataObject) -> None:
    message = data.draw(oracle.examples(data.draw(oracle.schemas(min_size=1))))
    assume(any(held.ByteSize() > 2 for held in message.features.feature.values()))
    _, payload = data.draw(oracle.wire_encodings(message))
    assert detect_payload_type(payload) == "an Example"


@given(payload=st.binary(max_size=300))
def test_any_bytes_have_a_payload_type(payload: bytes) -> None:
    assert is_probably_example(payload) == (detect_payload_type(payload) in ("an Example", "a damaged Example"))


# ------------------------------------------------------------------------------------------------------ inference


def test_constant_counts_are_fixed() -> None:
    record = example(one=[1], four=[1.0, 2.0, 3.0, 4.0], two=[b"a", b""], png=[b"\x89PNG\r\n\x1a\n"])
    schema = infer_from(record, record)
    assert list(schema.items()) == [
        ("four", FixedLenFeature((4,), "float32")),
        ("one", SCALAR),
        ("png", FixedLenFeature((), "bytes")),
        ("two", FixedLenFeature((2,), "bytes")),
    ]
    assert schema.sampling == Sampling(2, 1, (("four", 2), ("one", 2), ("png", 2), ("two", 2)))


# Records of features or of feature lists `x`, the feature that is inferred, and the number of records that set it.
INFERRED: dict[str, tuple[list[bytes], Any, int]] = {
    "absent": ([example(x=[1], k=[1]), example(k=[1])], ANY, 1),
    "an empty record": ([example(x=[1], k=[1]), b""], ANY, 1),
    "unset": ([example(x=[], k=[1]), example(x=[1], k=[1])], ANY, 1),
    "a kind without values": ([example(x=NO_INTS)] * 2, ANY, 2),
    "counts differ": ([example(x=[1]), example(x=[1, 2]), example(x=[1])], ANY, 3),
    "an unknown field in an entry": (
        [delimited(1, delimited(1, delimited(1, b"x") + delimited(5, b"?") + delimited(2, b"\x1a\x03\x0a\x01\x01")))],
        *(SCALAR, 1),
    ),
    "steps of one size": (
        [sequence_example(x=[[1.5, 2.5]] * 3), sequence_example(x=[[0.5, 0.5]])],
        *(FixedLenSequenceFeature((2,), "float32"), 2),
    ),
    "no steps": ([sequence_example(x=[[1], [2]]), sequence_example(x=[])], FixedLenSequenceFeature((), "int64"), 2),
    **{
        name: ([sequence_example(x=[[1], [2]]), other], FixedLenSequenceFeature((), "int64", allow_missing=True), 1)
        for name, other in {
            "another list": sequence_example(other=[[1]]),
            "an empty message": b"",
            "an empty SequenceExample": b"\x0a\x00\x12\x00",
            "context only": example(id=[1]),
        }.items()
    },
    "a step without a kind": ([sequence_example(x=[[1]]), sequence_example(x=[[]])], ANY, 2),
    "an empty step": ([sequence_example(x=[[1]]), sequence_example(x=[NO_INTS])], ANY, 2),
    "steps of several sizes": ([sequence_example(x=[[1]]), sequence_example(x=[[1, 2]])], ANY, 2),
}


@pytest.mark.parametrize("case", INFERRED)
def test_records_that_differ(case: str) -> None:
    records, wanted, present = INFERRED[case]
    for order in (records, records[::-1]):
        schema = infer_from(*order)
        assert schema["x"] == (schema.sequence_features or schema)["x"] == wanted
        assert dict(sampling_of(schema).present)["x"] == present


def test_context_and_feature_lists_are_inferred() -> None:
    first = sequence_example({"id": [7], "tag": [b"a"]}, one=[[1]], empty=[], unset=[[]])
    schema = infer_from(first, sequence_example({"id": [8]}, one=[[2], [3]]))
    assert schema.context_features == {"id": SCALAR, "tag": VarLenFeature("bytes")}
    assert schema.sequence_features == {"one": FixedLenSequenceFeature((), "int64")}
    assert sampling_of(schema).unset == ("empty", "unset")


def test_keys_without_a_kind_are_not_features(tmp_path: Path) -> None:
    schema = infer_from(example(lable=[], label=[1]), example(b=[], label=[1]), example(b=NO_INTS, label=[1]))
    assert (list(schema), sampling_of(schema).unset) == (["b", "label"], ("lable",))
    assert "(never set)" in repr(schema)
    url = write(tmp_path, [[example(lable=[], label=[number]) for number in range(2)]])
    ds = read_tfrecord(url)
    never = "'lable': none of the 2 records looked at sets this key, so its kind is unknown; give features="
    for read in (lambda: read_tfrecord(url, columns=["lable"]), lambda: ds["lable"], lambda: ds[["label", "lable"]]):
        with pytest.raises(UnknownFeatureError) as caught:
            read()
        assert never in str(caught.value)
    with pytest.raises(UnknownFeatureError, match="did you mean 'label'"):
        read_tfrecord(url, columns=["labell"])
    assert list(map(list, read_tfrecord(url, {"lable": ANY})["lable"].compute())) == [[], []]


@pytest.mark.parametrize(
    ("payloads", "said"),
    [
        (
            [example(x=[1]), example(y=[1]), example(x=[b"a"]), example(x=[2])],
            r"record 2 .byte 200.: feature 'x' holds values of 2 kinds, and a column has one: int64 in 2 records; "
            r"bytes in 1 record\. Read the records of one kind .* give features=",
        ),
        ([example(x=[1]), example(x=[b""])], r"'x' holds values of 2 kinds.* int64 in 1 .* bytes in 1 "),
        ([sequence_example(s=[[1], [1.5]])], "feature 's' holds values of 2 kinds, and a column has one"),
        ([sequence_example({"s": [1]}, s=[[1]])], "'s' is both a context feature and a feature list"),
        ([], "no record to infer features from: give features="),
        ([b"", example(a=[]), example()], "no feature is set in 3 records: give features="),
    ],
)
def test_records_without_a_schema_are_refused(payloads: list[bytes], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        infer_from(*payloads)


@pytest.mark.parametrize("payload", [EVENT, b"text", example(a=[1])[:-1], NOT_UTF8])
def test_other_payload_types_are_refused(payload: bytes) -> None:
    with pytest.raises(FeatureError) as caught:
        infer_from(example(a=[1]), payload)
    assert caught.value.place == Location("some.tfrecord", 1, 100)
    assert f"found {detect_payload_type(payload)} of {len(payload)} bytes" in caught.value.message


@judged_by_upb
@pytest.mark.parametrize("steps", [None, [VarLenFeature, FixedLenSequenceFeature]], ids=["features", "lists"])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_an_inferred_schema_fits_its_records(steps: list[type[Any]] | None, data: st.DataObject) -> None:
    schema = data.draw(oracle.schemas(min_size=1, max_size=3, steps=steps))
    drawn = (oracle.sequence_examples if steps else oracle.examples)(schema)
    records = data.draw(st.lists(drawn, min_size=1, max_size=4))
    held = [features_of(record) for record in records]
    assume(any(feature.WhichOneof("kind") for each in held for feature in chain(*each.values())))
    assume(steps is None or any(record.feature_lists.feature_list for record in records))
    payloads = [record.SerializeToString() for record in records]
    inferred = infer_from(*payloads)
    columns = oracle.expected_columns(payloads, inferred)
    lengths = {f"{name}.lengths" for name in inferred if f"{name}.lengths" in columns}
    assert {*columns, *sampling_of(inferred).unset} == {name for each in held for name in each} | lengths
    encoded = [data.draw(oracle.wire_encodings(record))[1] for record in records]
    if steps or all(map(is_probably_example, encoded)):
        assert infer_from(*encoded) == inferred
        assert infer_from(*encoded).sampling == inferred.sampling


def features_of(record: Any) -> dict[str, list[Any]]:
    """Parse a record into its features and the steps of its feature lists."""
    if isinstance(record, Example):
        return {name: [feature] for name, feature in record.features.feature.items()}
    lists = {name: [*steps.feature] for name, steps in record.feature_lists.feature_list.items()}
    return {name: [feature] for name, feature in record.context.feature.items()} | lists


def test_entries_with_unknown_fields_are_inferred_as_the_decoder_reads_them(tmp_path: Path) -> None:
    """The upb parser treats a whole map entry with an unknown field as unknown."""

    def entry(key: bytes, value: bytes, odd: bytes = delimited(5, b"?")) -> bytes:
        return delimited(1, delimited(1, key) + odd + delimited(2, value))

    one, two, half = (feature(values).SerializeToString() for values in ([1], [2], [0.0]))
    long = b"long" * 50
    # The last entry of a key is valid, with or without an unknown field.
    payloads = [
        delimited(1, entry(b"a", half, b"") + entry(b"a", one) + entry(long, two)),
        delimited(1, entry(long, two) + entry(b"a", one)),
    ]
    assert dict(infer_from(*payloads)) == {"a": SCALAR, long.decode(): SCALAR}
    read = read_tfrecord(write(tmp_path, [payloads]))
    assert {name: column.tolist() for name, column in read.compute().items()} == {"a": [1, 1], long.decode(): [2, 2]}
    found = infer_from(delimited(1, entry(b"a", one)) + delimited(2, entry(b"s", delimited(1, one))))
    assert (found.message, found["s"]) == ("SequenceExample", FixedLenSequenceFeature((), "int64"))


# ------------------------------------------------------------------------------------------------------- sampling


def test_a_sample_is_spread_over_shards(tmp_path: Path) -> None:
    # Each record has a feature of its own, so that the schema identifies the records that were read.
    shards = [[example(**{f"s{shard:02d}r{record:02d}": [1]}) for record in range(20)] for shard in range(30)]
    seen = list(infer_schema(write(tmp_path, shards), sample=24))
    sampled = sorted({name[:3] for name in seen})
    assert (len(seen), len(sampled), sampled[0], sampled[-1]) == (24, 8, "s00", "s29")
    gaps = [int(after[1:]) - int(before[1:]) for before, after in pairwise(sampled)]
    assert max(gaps) - min(gaps) <= 1
    assert {name[3:] for name in seen} == {"r00", "r01", "r02"}


@pytest.mark.parametrize(
    ("counts", "sample", "records", "shards"),
    [
        ((1, 0, 100), 30, 30, 2),  # later shards make up for short ones
        ((1,) * 20, 3, 3, 3),
        ((0, 2, *(0,) * 18), 16, 2, 1),  # shards outside the sample
    ],
)
def test_samples_of_uneven_shards(
    tmp_path: Path, counts: tuple[int, ...], sample: int, records: int, shards: int
) -> None:
    url = write(tmp_path, [[example(a=[1])] * count for count in counts])
    found = sampling_of(infer_schema(url, sample=sample))
    assert (found.records, found.shards) == (records, shards)


def test_all_records_are_read_on_request(tmp_path: Path) -> None:
    shards = [[example(x=[1])] * 300 for _ in range(12)]
    shards[7][250] = example(x=[1, 2], rare=[0.5])
    url = write(tmp_path, shards)
    assert dict(infer_schema(url)) == {"x": SCALAR}
    schema = infer_schema(url, sample=None)
    assert dict(schema) == {"rare": VarLenFeature("float32"), "x": ANY}
    assert schema.sampling == Sampling(3600, 12, (("rare", 1), ("x", 3600)))


@pytest.mark.parametrize("sample", [0, -1, True, 1.5, "all"])
def test_invalid_samples(tmp_path: Path, sample: Any) -> None:
    with pytest.raises(SchemaError, match="sample must be a number of records"):
        infer_schema(write(tmp_path, [[example(a=[1])]]), sample=sample)


def test_the_result_prints_as_a_table() -> None:
    schema = infer_from(example(image=[b"x"], label=[3]), example(image=[b"y"], label=[4], boxes=[0.5, 1.0]))
    assert repr(schema).splitlines()[1:] == [
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
    path = tmp_path / "part-00000"
    oracle.write_oracle(path, [good] * 3)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptRecordError, match="record 2"):
        infer_schema(path)
    assert infer_schema(path, sample=2) == {"a": SCALAR}
    with pytest.raises(ShardNotFoundError):
        infer_schema(tmp_path / "nothing")


# ---------------------------------------------------------------------------------------------- golden and corpus files


@pytest.mark.parametrize("name", SEQUENCES)
def test_corpus_sequence_examples_are_read_as_inferred(corpus: Path, name: str) -> None:
    schema = infer_schema(corpus / name, sample=None)
    wanted = oracle.expected_columns(oracle.read_payloads(corpus / name), schema)
    assert_same(read_tfrecord(corpus / name, schema).compute(), wanted)
