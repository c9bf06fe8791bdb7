"""Tests of the oracle against TensorFlow's results, protobuf, and bytes written by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
import pytest
from google.protobuf.internal import api_implementation
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.encodings import WireEncoder
from oracle.messages import Example, SequenceExample
from oracle.strategies import STEPS
from support.bits import bits
from support.golden import CASES, check, expected, shard, spec
from support.wire import example, sequence_example

from dask_tfrecord import read_tfrecord
from dask_tfrecord.errors import FeatureError, Location
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
from dask_tfrecord.features.schema import Schema

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
    record: SequenceExample = SequenceExample.FromString(sequence_example({"c": [7]}, **lists))
    return record


@pytest.mark.filterwarnings("ignore:.* ha(s|ve) no feature lists:UserWarning")
def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The library refuses what the oracle refuses."""
    cases = [(example(**held), Schema({"x": of}), says) for of, held, says in REFUSED]
    cases += [
        (steps_of(**held).SerializeToString(), Schema({}, sequence_features={"x": of}), says)
        for of, held, says in STEPS_REFUSED
    ]
    for payload, schema, says in cases:
        with pytest.raises(oracle.Refusal, match=f"record 0: feature 'x' {says}") as refused:
            oracle.expected_columns([payload], schema)
        assert (refused.value.record, refused.value.feature) == (0, "x")
        oracle.write_oracle(tmp_path / "x", [payload])
        with pytest.raises(FeatureError) as caught:
            read_tfrecord(tmp_path / "x", schema, counts=[1]).compute()
        assert caught.value.place == Location(str(tmp_path / "x"), 0, 0, "x"), says


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_framing_by_hand(tmp_path: Path, compression: str | None) -> None:
    oracle.write_oracle(tmp_path / "x", [b"abc"], compression)
    assert oracle.read_payloads(tmp_path / "x") == [b"abc"]
    assert compression is not None or (tmp_path / "x").read_bytes() == FRAMED


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


MEANT = (Example.FromString(example(k=[5, 6], other=[1.0, 2.0, 3.0])), steps_of(k=[[5], [6]], m=[[4]]))


@judged_by_upb
@pytest.mark.parametrize("oddity", ["unpacked", "chunked", "shuffled", "split", "overwritten", "unknown", "overlong"])
@pytest.mark.parametrize("meant", MEANT, ids=["Example", "SequenceExample"])
def test_every_oddity_encodes_the_same_message_in_other_bytes(meant: Any, oddity: str) -> None:
    payloads = {WireEncoder({oddity}, random.Random(seed)).record(meant) for seed in range(100)}
    assert len(payloads - {meant.SerializeToString(deterministic=True)}) > 1
    for payload in payloads:
        read = type(meant).FromString(payload)
        read.DiscardUnknownFields()
        assert read == meant
