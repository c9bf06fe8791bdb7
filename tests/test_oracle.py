"""Tests of the oracle against TensorFlow's results, protobuf, and bytes written by hand."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from google.protobuf.internal import api_implementation
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.encodings import WireEncoder
from oracle.strategies import STEPS
from support.bits import bits
from support.golden import CASES, check, expected, shard, spec
from support.wire import example

from dask_tfrecord import read_tfrecord
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location
from dask_tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    SparseFeature,
    TensorFeature,
    TextFeature,
    UniformRowLength,
    ValueRowIds,
    VarLenFeature,
)
from dask_tfrecord.messages import Example, SequenceExample
from dask_tfrecord.schema import Schema

judged_by_upb = pytest.mark.skipif(
    api_implementation.Type() == "python", reason="pure Python protobuf does not know over-long tags"
)
# One record with payload b"abc", with the CRCs that TensorFlow writes.
FRAMED = bytes.fromhex("0300000000000000b099490e") + b"abc" + bytes.fromhex("6e57f121")


@pytest.mark.parametrize("case", [case for case in CASES if case != "images"])
def test_columns_equal_tensorflow(golden: Path, case: str) -> None:
    said = spec(golden, case)
    schema = Schema(said["features"], sequence_features=said.get("sequence_features"))
    check(oracle.expected_columns(oracle.read_payloads(shard(golden, case)), schema), expected(golden, case))


def ragged(*partitions: Any) -> RaggedFeature:
    return RaggedFeature("int64", value_key="v", partitions=partitions)


SPARSE = SparseFeature("i", "v", "int64", 5)
REFUSED: list[tuple[Any, dict[str, list[Any]], str]] = [
    (FixedLenFeature((2,), "int64"), {"x": [1]}, r"holds 1 values, not \(2,\)"),
    (FixedLenFeature((), "float32"), {"x": [1]}, "is a int64_list, not a float_list"),
    *((of, {"x": []}, "is missing") for of in (FixedLenFeature((0,), "int64"), RawFeature((), "int8"), TextFeature())),
    (TensorFeature((), "int8"), {}, "is missing"),
    (VarLenFeature("int64", shape=(-1, 2)), {"x": [1]}, "holds 1 values, no multiple"),
    (FixedLenFeature((), "int8"), {"x": [128]}, "holds 128, which int8 can't hold"),
    (VarLenFeature("bool"), {"x": [0, 2]}, "holds 2, which bool can't hold"),
    (VarLenFeature("float16"), {"x": [65520.0]}, "holds 65520.0, which float16 can't hold"),
    (FixedLenSequenceFeature((), "int64", True, length=1), {"x": [1, 2]}, "holds 2 steps, more than 1"),
    (FixedLenSequenceFeature((2,), "int64", True), {"x": [1, 2, 3]}, "holds 3 values, no multiple"),
    (SPARSE, {"i": [1], "v": [1, 2]}, r"holds \[1\] indices for 2 values"),
    (SPARSE, {"i": [5], "v": [1]}, r"holds an index \(5,\) outside of \(5,\)"),
    (SPARSE, {"i": [-1], "v": [1]}, r"holds an index \(-1,\)"),
    (ragged(UniformRowLength(2)), {"v": [1, 2, 3]}, r"holds 3 values, which do not divide into rows of \(2,\)"),
    (ragged(UniformRowLength(2), RowLengths("p")), {"v": [1], "p": [1]}, "has rows"),
    (ragged(RowLengths("p")), {"v": [1, 2], "p": [1]}, r"has rows \[1\] by RowLengths\('p'\) for 2 values"),
    (ragged(RowLengths("p")), {"v": [1, 2], "p": [3, -1]}, r"has rows \[3, -1\]"),
    (ragged(RowSplits("p")), {"v": [1, 2], "p": [0, 1]}, r"has rows \[1\]"),
    (ragged(RowSplits("p")), {"v": [1, 2], "p": [1, 2]}, "has rows that begin at 1"),
    (ragged(RowLimits("p")), {"v": [1, 2], "p": [2, 1]}, r"has rows \[2, -1\]"),
    (ragged(RowStarts("p")), {"v": [1, 2], "p": [0, 3]}, r"has rows \[3, -1\]"),
    (ragged(RowStarts("p")), {"v": [1, 2]}, r"has rows \[\]"),
    (ragged(ValueRowIds("p")), {"v": [1, 2], "p": [1, 0]}, r"has row ids \[1, 0\] for 2 values"),
    (ragged(ValueRowIds("p")), {"v": [1], "p": [2**40]}, "has row ids"),
    (RawFeature((2,), "uint8"), {"x": [b"abc"]}, "holds 3 bytes, not 2"),
    (RawFeature((-1, 2), "uint8"), {"x": [b"abc"]}, "holds 3 bytes, not a multiple of 2"),
    (RawFeature((-1,), "bool"), {"x": [b"\0\2"]}, "holds a byte that is no bool"),
    (TextFeature(), {"x": [b"\xff"]}, "is not UTF-8"),
    (TensorFeature((), "int64"), {"x": [b"\xff"]}, "is not a TensorProto"),
    (TensorFeature((), "int64"), {"x": [b"\x08\1"]}, "is a tensor of dtype number 1"),
    (TensorFeature((), "float32"), {"x": [b"\x08\1\x12\4\x12\2\x08\1"]}, r"is a tensor of shape \[1\]"),
    (TensorFeature((), "float32"), {"x": [b"\x08\1\x22\1x"]}, "is a tensor with 1 bytes for 1 values"),
    (TensorFeature((), "bool"), {"x": [b"\x08\x0a\x22\1x"]}, "is a tensor with a byte that is no bool"),
    (TensorFeature((), "uint8"), {"x": [b"\x08\4\x38\x80\2"]}, "is a tensor with a value beyond uint8"),
    (TensorFeature((), "uint8"), {"x": [b"\x08\4\x38\1\x38\1"]}, "is a tensor with 2 values for 1"),
    (TensorFeature((), "uint8"), {"x": [b"\x08\4\x50\1"]}, "is a tensor whose values are in the list of another"),
    (TensorFeature((), "bytes"), {"x": [b"\x08\7\x22\2\2x"]}, "is a tensor with 2 bytes that are not 1 strings"),
]
STEPS_REFUSED: list[tuple[Any, dict[str, list[Any]], str]] = [
    (FixedLenSequenceFeature((), "int64"), {}, "is missing"),
    (FixedLenSequenceFeature((), "int64"), {"x": [[1], [1, 2]]}, "holds 2 values, not"),
    (VarLenFeature("int64"), {"x": [[1], [b""]]}, "is a bytes_list, not a int64_list"),
    (VarLenFeature("int64", shape=(-1, 2)), {"x": [[1]]}, "holds 1 values, no multiple"),
    (FixedLenSequenceFeature((), "int64", length=1), {"x": [[1], [1]]}, "holds 2 steps, more than 1"),
    (ragged(RowLengths("p")), {"v": [[1], [1]], "p": [[1]]}, "has another number of steps"),
    (ragged(RowLengths("p")), {"v": [[1], [1]], "p": [[2], [0]]}, r"has rows \[2\]"),
    (ragged(RowSplits("p")), {"v": [[1, 2], [1, 2, 3]], "p": [[1, 3], [0, 3]]}, "has rows that begin at 1"),
]


def steps_of(**lists: list[list[Any]]) -> SequenceExample:
    """Return a SequenceExample of steps."""
    record = SequenceExample(context=Example.FromString(example(c=[7])).features)
    for name, steps in lists.items():
        for step in steps:
            made = Example.FromString(example(s=step)).features.feature["s"]
            record.feature_lists.feature_list[name].feature.add().CopyFrom(made)
    return record


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The library refuses what the oracle refuses."""
    cases = [(example(**held), Schema({"x": of}), says) for of, held, says in REFUSED]
    cases += [
        (steps_of(**held).SerializeToString(), Schema({}, sequence_features={"x": of}), says)
        for of, held, says in STEPS_REFUSED
    ]
    for payload, schema, says in cases:
        with pytest.raises(FeatureError, match=f"record 0: feature 'x' {says}") as caught:
            oracle.expected_columns([payload], schema)
        assert caught.value.place == Location("payloads", 0, None, "x")
        oracle.write_oracle(tmp_path / "x", [payload])
        with pytest.raises(FeatureError) as caught:
            read_tfrecord(tmp_path / "x", schema, counts=[1]).compute()
        assert caught.value.place == Location(str(tmp_path / "x"), 0, 0, "x"), says


def test_every_mismatch_is_reported() -> None:
    payloads = [example(x=[1], y=[1]), example(y=[1.0]), example(x=[1], y=[1]), example(x=[b""], y=[1])]
    payloads += [b"\x12\0", b"\x18\1", b"\xff"]
    schema = {"x": FixedLenFeature((), "int64"), "y": VarLenFeature("int64")}
    places = [error.place for error in oracle.expected_refusals(payloads, schema)]
    found = [(1, "x"), (1, "y"), (3, "x"), (4, None), (5, None), (6, None)]
    assert places == [Location("payloads", record, None, feature) for record, feature in found]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_floats_are_rounded_as_numpy_does(dtype: str) -> None:
    known = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    random = np.random.default_rng(7)
    # All exponents, and numbers half way between two neighbours.
    found = random.integers(0, 2**32, 20_000, np.uint32)
    found[::2] &= 0xFFFF8000
    found[1::4] &= 0xFFFFF000
    floats = np.concatenate([found.view(np.float32), np.array([0.0, -0.0, np.inf, -np.inf], np.float32)])
    floats = floats[~np.isnan(floats)]
    with np.errstate(over="ignore"):
        rounded = floats.astype(known)
    held = np.isinf(floats) | ~np.isinf(rounded)
    column = oracle.expected_columns([example(x=floats[held].tolist())], {"x": VarLenFeature(dtype)})["x"]
    assert bits(column[0]) == bits(rounded[held])
    payloads = [example(x=[value]) for value in floats[~held][:200].tolist()]
    assert len(oracle.expected_refusals(payloads, {"x": VarLenFeature(dtype)})) == len(payloads)


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_framing_by_hand(tmp_path: Path, compression: str | None) -> None:
    oracle.write_oracle(tmp_path / "x", [b"abc"], compression)
    assert oracle.read_payloads(tmp_path / "x") == [b"abc"]
    assert compression is not None or (tmp_path / "x").read_bytes() == FRAMED


def test_damage_is_refused(tmp_path: Path, golden: Path) -> None:
    path = tmp_path / "damaged"
    for at in range(1, len(FRAMED)):
        for data in (FRAMED[:at], FRAMED[:at] + bytes([FRAMED[at] ^ 0x40]) + FRAMED[at + 1 :]):
            path.write_bytes(FRAMED + data)
            with pytest.raises(CorruptRecordError, match=rf"record 1 \(byte {len(FRAMED)}\)"):
                oracle.read_payloads(path)
    damaged = json.loads((golden / "damaged.json").read_text("utf-8"))
    for name, told in damaged["files"].items():
        with pytest.raises(CorruptRecordError, match=f"record {told['records_before_error']} "):
            oracle.read_payloads(golden / f"damaged_{name}.tfrecord")


@judged_by_upb
@pytest.mark.parametrize("steps", [None, STEPS], ids=["Example", "SequenceExample"])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_encodings_parse_as_their_message(data: st.DataObject, steps: Sequence[type[Any]] | None) -> None:
    schema = data.draw(oracle.schemas(max_size=3, steps=steps))
    records = oracle.examples if steps is None else oracle.sequence_examples
    message = data.draw(records(schema, others=True))
    parsed, payload = data.draw(oracle.wire_encodings(message))
    # Compare serialized messages: `==` is false for NaN.
    plain = message.SerializeToString(deterministic=True)
    assert parsed.SerializeToString(deterministic=True) == plain
    found, meant = (oracle.expected_columns([one], schema) for one in (payload, plain))
    assert {name: bits(column) for name, column in found.items()} == {name: bits(meant[name]) for name in meant}


TWO = Example.FromString(example(k=[5, 6], other=[1.0, 2.0, 3.0]))
STEPS_OF_TWO = steps_of(k=[[5], [6]], m=[[4]])
STEP_5, STEP_6 = (b"\x0a\x05\x1a\x03\x0a\x01" + value for value in (b"\5", b"\6"))
# The oddities of an encoder, and bytes that they make: of an Example, then of a SequenceExample.
ODDITIES: list[tuple[Any, str, bytes]] = [
    (TWO, "", re.escape(TWO.SerializeToString(deterministic=True))),
    (TWO, "unpacked", rb"\x08\x05\x08\x06"),
    (TWO, "unpacked", rb"\x0d\x00\x00\x80\x3f\x0d"),
    (TWO, "unpacked chunked", rb"\x0a\x01\x05\x08\x06|\x08\x05\x0a\x01\x06"),
    (TWO, "chunked", rb"\x0a\x01\x05\x0a\x01\x06"),
    (TWO, "chunked", rb"\x0a\x00\x0a\x02\x05\x06"),  # an empty packed run
    (TWO, "shuffled", rb"\x05\x06\x0a\x01k"),  # the value before the key
    (TWO, "split", rb"^\x0a.\x0a.\x0a\x01k.*\x0a.\x0a.\x0a\x05other"),  # `features` twice
    (TWO, "split chunked", rb"\x1a\x03\x0a\x01\x05\x1a\x03\x0a\x01\x06"),  # a list in two
    (TWO, "split", rb"\x12\x00\x12\x06\x1a\x04\x0a\x02\x05\x06"),  # a value in two
    (TWO, "overwritten", rb"another key\x0a\x01k"),
    (TWO, "overwritten", rb"\x0a\x01k\x12.*\x0a\x01k\x12"),  # an entry twice
    (TWO, "overwritten", rb"stale\x0a\x00\x1a\x04\x0a\x02\x05\x06"),  # a list of another kind before
    (TWO, "overwritten", rb"\x07\xf9\xff.*stale"),  # a list of the same kind before that
    (TWO, "unknown", rb"\x7b\x7c|\x23\x24"),  # a group
    (TWO, "overlong", rb"\x8a\x80\x80\x80\x00"),  # a tag
    (TWO, "overlong", rb"\x0a\x82\x80\x80\x80\x00\x05\x06"),  # a length
    (TWO, "overlong", rb"\x05\x86\x80{8}\x00"),  # a value
    (STEPS_OF_TWO, "shuffled", rb"^\x12.*\x0a\x01c\x12\x05\x1a\x03\x0a\x01\x07$"),  # the context last
    (STEPS_OF_TWO, "split", rb"\x12.\x0a.\x0a\x01k.*\x12\x0e\x0a\x0c\x0a\x01m"),  # a list in each FeatureLists
    (STEPS_OF_TWO, "split", b"\x12\x07" + STEP_5 + b"\x12\x07" + STEP_6),  # one list in two
    (STEPS_OF_TWO, "overwritten", rb"\x0a\x01k\x12.*\x0a\x01k\x12"),  # a list twice
    (STEPS_OF_TWO, "overwritten", rb"stale\x0a\x00\x1a\x03\x0a\x01\x05"),  # a step, after one of another kind
    (STEPS_OF_TWO, "shuffled", STEP_5 + STEP_6 + rb"\x0a\x01k"),  # a list before its key
    (STEPS_OF_TWO, "unpacked", rb"\x0a\x04\x1a\x02\x08\x05\x0a\x04\x1a\x02\x08\x06"),
    (STEPS_OF_TWO, "overlong", rb"\x8a\x00"),
]


@judged_by_upb
@pytest.mark.parametrize(("meant", "oddities", "seen"), ODDITIES, ids=range(len(ODDITIES)))
def test_encodings_have_every_oddity(meant: Any, oddities: str, seen: bytes) -> None:
    for seed in range(5000):
        payload = WireEncoder({*oddities.split()}, random.Random(seed)).record(meant)
        read = type(meant).FromString(payload)
        read.DiscardUnknownFields()
        assert read == meant
        if seed > 50 and re.search(seen, payload, re.DOTALL):
            return
    raise AssertionError(seen)
