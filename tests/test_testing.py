"""The oracle is judged by TensorFlow's own answers, by protobuf, and by bytes written by hand."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import bits
from google.protobuf.internal import api_implementation
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dask_tfrecord import testing
from dask_tfrecord.errors import CorruptRecordError, FeatureError
from dask_tfrecord.features import FixedLenFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.messages import BytesList, Example, Feature, Features, FloatList, Int64List
from dask_tfrecord.schema import Schema
from dask_tfrecord.testing.strategies import CLASSES, STEPS

judged_by_upb = pytest.mark.skipif(
    api_implementation.Type() == "python", reason="pure Python protobuf does not know over-long tags"
)
# One record, payload b"abc"; its CRCs are those that TensorFlow writes.
FRAMED = bytes.fromhex("0300000000000000b099490e") + b"abc" + bytes.fromhex("6e57f121")


def example(**features: list[Any]) -> Example:
    """An Example of ints, floats and bytes, by what the lists hold."""
    made = {}
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            made[name] = Feature(bytes_list=BytesList(value=values))
        elif values and isinstance(values[0], float):
            made[name] = Feature(float_list=FloatList(value=values))
        else:
            made[name] = Feature(int64_list=Int64List(value=values))
    return Example(features=Features(feature=made))


def golden_bytes(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A bytes array of an .npz, as objects."""
    data, splits = arrays[f"{name}.bytes"].tobytes(), arrays[f"{name}.byte_splits"]
    values = np.empty(len(splits) - 1, object)
    values[:] = [data[begin:end] for begin, end in pairwise(splits)]
    return values.reshape(-1, *shape)


def assert_same_bits(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind in "OT":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "file",
    [
        "scalars.tfrecord",
        "scalars_gzip.tfrecord.gz",
        "scalars_zlib.tfrecord.zlib",
        "one_record.tfrecord",
        "fixed_shapes.tfrecord",
        "unicode_names.tfrecord",
        "wire_encodings.tfrecord",
        "empty_file.tfrecord",
    ],
)
def test_fixed_lengths_equal_tensorflow(golden: Path, file: str) -> None:
    stem = file.split(".")[0]
    spec = json.loads((golden / f"{stem}.json").read_text("utf-8"))
    schema = {name: FixedLenFeature(feature["shape"], feature["dtype"]) for name, feature in spec["features"].items()}
    columns = testing.expected_columns(testing.read_payloads(golden / file), schema)
    with np.load(golden / f"{stem}.npz") as arrays:
        for name, feature in schema.items():
            stored = golden_bytes(arrays, name, feature.shape) if feature.dtype == "bytes" else arrays[name]
            if stem == "wire_encodings":
                # TensorFlow refuses three of the nine; they all mean the first one.
                stored = np.broadcast_to(stored[:1], (9, *stored.shape[1:]))
            assert_same_bits(columns[name], stored)
    assert len(testing.read_oracle(golden / file)) == spec["records"]


def test_variable_lengths_equal_tensorflow(golden: Path) -> None:
    schema = {name: VarLenFeature(kind) for name, kind in (("b", "bytes"), ("f", "float32"), ("i", "int64"))}
    columns = testing.expected_columns(testing.read_payloads(golden / "ragged.tfrecord"), schema)
    with np.load(golden / "ragged.npz") as arrays:
        for name in schema:
            values = golden_bytes(arrays, "b.values", ()) if name == "b" else arrays[f"{name}.values"]
            splits = arrays[f"{name}.row_splits0"]
            assert columns[name].shape == (len(splits) - 1,)
            for row, begin, end in zip(columns[name], splits[:-1], splits[1:], strict=True):
                assert_same_bits(row, values[begin:end])


def test_raw_bytes_equal_tensorflow(golden: Path) -> None:
    dtypes = {"be_i2": ">i2", "f2": "float16", "f4": "float32", "f8": "float64", "u1": "uint8"}
    schema = {name: RawFeature((4, 5), dtype) for name, dtype in dtypes.items()}
    columns = testing.expected_columns(testing.read_payloads(golden / "decode_raw.tfrecord"), schema)
    with np.load(golden / "decode_raw.npz") as arrays:
        for name in schema:
            assert_same_bits(columns[name], arrays[name])


def test_text() -> None:
    payloads = [example(t=[text.encode()]).SerializeToString() for text in ("", "größe", "nul\0", "日本")]
    column = testing.expected_columns(payloads, {"t": TextFeature()})["t"]
    assert column.dtype == np.dtypes.StringDType()
    assert column.tolist() == ["", "größe", "nul\0", "日本"]


def test_every_block_has_the_dtype_and_shape_of_its_feature_even_without_records() -> None:
    schema = Schema(
        {
            "fixed": FixedLenFeature((2, 3), "bytes"),
            "varlen": VarLenFeature("int64", shape=(-1, 4)),
            "raw": RawFeature((2,), ">f4"),
            "text": TextFeature(),
        }
    )
    found = {name: (column.dtype, column.shape) for name, column in testing.expected_columns([], schema).items()}
    assert found == {
        "fixed": (np.dtype(object), (0, 2, 3)),
        "varlen": (np.dtype(object), (0,)),
        "raw": (np.dtype("float32"), (0, 2)),
        "text": (np.dtypes.StringDType(), (0,)),
    }


def test_equal_lengths_stay_one_array_per_record() -> None:
    payloads = [example(v=[1, 2, 3, 4]).SerializeToString()] * 3
    flat, rows = (
        testing.expected_columns(payloads, {"v": VarLenFeature("int64", shape=shape)})["v"]
        for shape in ((-1,), (-1, 2))
    )
    assert flat.shape == rows.shape == (3,)
    assert [row.shape for row in flat] == [(4,)] * 3
    assert [row.shape for row in rows] == [(2, 2)] * 3
    empty = testing.expected_columns([b""], {"v": VarLenFeature("float32", shape=(-1, 2))})["v"]
    assert (empty[0].shape, empty[0].dtype) == ((0, 2), np.dtype("float32"))


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (FixedLenFeature((2,), "int64"), r"record 1: feature 'x' holds 1 values, not \(2,\)"),
        (FixedLenFeature((), "float32"), "record 0: feature 'x' is a int64_list, not a float_list"),
        (VarLenFeature("int64", shape=(-1, 2)), "record 1: feature 'x' holds 1 values, no multiple"),
        (RawFeature((2,), "int64"), "record 0: feature 'x' is a int64_list, not a bytes_list"),
        (TextFeature(), "record 0: feature 'x' is a int64_list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_that_do_not_fit_are_refused(feature: Any, says: str) -> None:
    payloads = [example(x=[1, 2]).SerializeToString(), example(x=[1]).SerializeToString()]
    with pytest.raises(FeatureError, match=says):
        testing.expected_columns(payloads, {"x": feature})


@pytest.mark.parametrize(
    ("feature", "value", "says"),
    [(RawFeature((2,), "uint8"), b"abc", "holds 3 bytes, not 2"), (TextFeature(), b"\xff", "is no UTF-8")],
)
def test_bytes_that_do_not_fit_are_refused(feature: Any, value: bytes, says: str) -> None:
    with pytest.raises(FeatureError, match=f"record 0: feature 'x' {says}"):
        testing.expected_columns([example(x=[value]).SerializeToString()], {"x": feature})


@pytest.mark.parametrize("feature", [FixedLenFeature((0,), "int64"), RawFeature((), "int8"), TextFeature()])
@pytest.mark.parametrize("record", [Example(), Example(features=Features(feature={"x": Feature()}))])
def test_a_feature_that_is_not_there_is_missing(feature: Any, record: Example) -> None:
    with pytest.raises(FeatureError, match="record 0: feature 'x' is missing"):
        testing.expected_columns([record.SerializeToString()], {"x": feature})


def test_framing_by_hand(tmp_path: Path) -> None:
    testing.write_oracle(tmp_path / "written", [b"abc"])
    assert (tmp_path / "written").read_bytes() == FRAMED
    assert testing.read_payloads(tmp_path / "written") == [b"abc"]


@given(payloads=st.lists(st.binary(max_size=200), max_size=5), compression=st.sampled_from([None, "gzip", "zlib"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], compression: str | None
) -> None:
    path = tmp_path_factory.mktemp("oracle") / "no-telling-name"
    testing.write_oracle(path, payloads, compression)
    assert testing.read_payloads(path) == payloads
    inflate: dict[str | None, Callable[[bytes], bytes]] = {
        None: bytes,
        "gzip": gzip.decompress,
        "zlib": zlib.decompress,
    }
    assert len(inflate[compression](path.read_bytes())) == sum(len(payload) + 16 for payload in payloads)


@pytest.mark.parametrize("end", range(1, len(FRAMED)))
def test_cut_records_are_refused(tmp_path: Path, end: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(FRAMED + FRAMED[:end])
    with pytest.raises(CorruptRecordError, match=rf"record 1 \(byte {len(FRAMED)}\)"):
        testing.read_payloads(path)


@pytest.mark.parametrize("position", range(len(FRAMED)))
def test_flipped_bytes_are_refused(tmp_path: Path, position: int) -> None:
    damaged = bytearray(FRAMED)
    damaged[position] ^= 0x40
    (tmp_path / "flipped").write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match="record 0"):
        testing.read_payloads(tmp_path / "flipped")


def test_damaged_golden_files(golden: Path) -> None:
    damaged = json.loads((golden / "damaged.json").read_text("utf-8"))
    for name, told in damaged["files"].items():
        with pytest.raises(CorruptRecordError, match=f"record {told['records_before_error']} "):
            testing.read_payloads(golden / f"damaged_{name}.tfrecord")
    assert len(testing.read_payloads(golden / f"{damaged['source']}.tfrecord")) == len(damaged["record_offsets"])


def test_corpus_files_read(corpus: Path) -> None:
    # From the corpus' INDEX.md: plain, zlib without a name that says so, gzip named .gz, gzip not named so.
    counts = {
        "NVIDIA__go-tfdata/test/data/tf-train-medium.record": 7,
        "calico__baskerville/tests/data/tiny/mm10/tfrecords/train-7.tfr": 0,
        "calico__baskerville/tests/data/tiny/mm10/tfrecords/train-0.tfr": 4,
        "google__yggdrasil-decision-forests/yggdrasil_decision_forests/test_data/dataset/adult_test.recordio.gz": 9769,
        "google__yggdrasil-decision-forests/yggdrasil_decision_forests/test_data/dataset/sentences.tfe-tfrecord": 2,
    }
    assert {name: len(testing.read_payloads(corpus / name)) for name in counts} == counts


@judged_by_upb
@pytest.mark.parametrize("steps", [None, STEPS], ids=["Example", "SequenceExample"])
@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_encodings_mean_their_message(data: st.DataObject, steps: Sequence[type[Any]] | None) -> None:
    schema = data.draw(testing.schemas(max_size=3, steps=steps))
    records = testing.examples if steps is None else testing.sequence_examples
    message = data.draw(records(schema, others=True))
    parsed, payload = data.draw(testing.wire_encodings(message))
    # Serialised in one order: `==` calls a NaN unequal to itself.
    plain = message.SerializeToString(deterministic=True)
    assert parsed.SerializeToString(deterministic=True) == plain
    found, meant = (testing.expected_columns([one], schema) for one in (payload, plain))
    assert {name: bits(column) for name, column in found.items()} == {name: bits(meant[name]) for name in meant}


TWO = example(k=[5, 6], other=[1.0, 2.0, 3.0]).SerializeToString()


@judged_by_upb
@pytest.mark.parametrize(
    ("oddity", "seen"),
    {
        "canonical": lambda payload: payload == Example.FromString(TWO).SerializeToString(deterministic=True),
        "unpacked int64": lambda payload: b"\x08\x05\x08\x06" in payload,
        "unpacked float": lambda payload: b"\x0d\x00\x00\x80\x3f\x0d" in payload,
        "mixed packing": lambda payload: b"\x0a\x01\x05\x08\x06" in payload or b"\x08\x05\x0a\x01\x06" in payload,
        "two packed chunks": lambda payload: b"\x0a\x01\x05\x0a\x01\x06" in payload,
        "an empty packed chunk": lambda payload: b"\x0a\x00\x0a\x02\x05\x06" in payload,
        "value before key": lambda payload: b"\x05\x06\x0a\x01k" in payload,
        "`features` twice": lambda payload: payload[0] == 10 and len(payload) > payload[1] + 2 < 100,
        "a list in two": lambda payload: b"\x1a\x03\x0a\x01\x05\x1a\x03\x0a\x01\x06" in payload,
        "a value in two": lambda payload: b"\x12\x00\x12\x06\x1a\x04\x0a\x02\x05\x06" in payload,
        "a key twice in an entry": lambda payload: b"another key\x0a\x01k" in payload,
        "an entry twice": lambda payload: payload.count(b"\x0a\x01k\x12") == 2,
        "a oneof of another kind before": lambda payload: b"stale\x0a\x00\x1a\x04\x0a\x02\x05\x06" in payload,
        "the same kind before": lambda payload: payload.find(b"\x07\xf9\xff") < payload.find(b"stale") > 0,
        "an unknown group": lambda payload: b"\x7b\x7c" in payload or b"\x23\x24" in payload,
        "a long tag": lambda payload: b"\x8a\x80\x80\x80\x00" in payload,
        "a long length": lambda payload: b"\x0a\x82\x80\x80\x80\x00\x05\x06" in payload,
        "a long value": lambda payload: b"\x05\x86" + b"\x80" * 8 + b"\x00" in payload,
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encodings_have_every_oddity(oddity: str, seen: Callable[[bytes], bool]) -> None:
    parsed, payload = find(
        testing.wire_encodings(Example.FromString(TWO)),
        lambda pair: seen(pair[1]),
        settings=settings(max_examples=5000, deadline=None, database=None),
    )
    assert seen(payload), oddity
    assert parsed == Example.FromString(TWO)


def test_schemas_have_every_feature_class() -> None:
    seen: set[tuple[bool, type[Any]]] = set()

    @given(testing.schemas(max_size=3, steps=STEPS))
    @settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate])
    def look(schema: Schema) -> None:
        lists = schema.sequence_features or {}
        seen.update((name in lists, type(feature)) for name, feature in schema.items())

    look()
    assert seen == {*((False, cls) for cls in CLASSES), *((True, cls) for cls in STEPS)}


def test_examples_leave_out_what_may_be_missing() -> None:
    schema = {"v": VarLenFeature("int64")}
    for seen in (
        lambda held: "v" not in held,
        lambda held: "v" in held and held["v"].WhichOneof("kind") is None,
        lambda held: "v" in held and held["v"].HasField("int64_list") and not held["v"].int64_list.value,
        lambda held: "v" in held and len(held["v"].int64_list.value) > 1,
    ):
        assert seen(
            find(testing.examples(schema), lambda message, seen=seen: seen(message.features.feature)).features.feature
        )
