"""Records, feature lists and partitions that hold any number of arrays, texts and images."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from support import tensor_messages
from support.images import png
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError
from dask_tfrecord.features.schema import Schema

CONTEXT = {"words": dtf.TextFeature(count=-1), "states": dtf.RawFeature((2, 3), ">i2", count=-1)}
LISTS = {"said": dtf.TextFeature(), "flags": dtf.RawFeature((2,), "bool")}


GOOD = {"words": [b"a"] * 20, "states": [bytes(12)] * 20, "said": [b"x"] * 20, "flags": [b"\0\1"] * 20}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("flags", b"\0", r"in step 17 holds 1 byte; .* needs 2"),
        ("flags", b"\0\7", r"in step 17 holds a byte 7; .* accepts 0 and 1"),
        ("said", b"\xff", "in step 17 is not valid UTF-8"),
        ("states", b"abc", r"in value 17 holds 3 bytes; .* needs 12"),
        ("words", b"a\xff", "in value 17 is not valid UTF-8"),
    ],
)
def test_errors_name_the_step(tmp_path: Path, name: str, value: bytes, says: str) -> None:
    def record(words: list[bytes], states: list[bytes], said: list[bytes], flags: list[bytes]) -> bytes:
        steps = {"said": [[value] for value in said], "flags": [[value] for value in flags]}
        return sequence_example({"words": words, "states": states}, **steps)

    bad = {**GOOD, name: [*GOOD[name][:17], value, *GOOD[name][18:]]}
    payloads = [record(**GOOD)] * 5 + [record(**bad), record(**GOOD)]
    oracle.write_oracle(tmp_path / "x", payloads)
    ds = dtf.read_tfrecord(tmp_path / "x", CONTEXT, sequence_features=LISTS, chunks=4)
    offset = sum(len(payload) + 16 for payload in payloads[:5])
    uncounted = dtf.read_tfrecord(tmp_path / "x", CONTEXT, sequence_features=LISTS, counts=None)
    attempts: list[Callable[[], object]] = [
        ds[name].compute,
        ds.rows[5].compute,
        lambda: ds.explode([name]),
        uncounted.explode([name]).compute,
        lambda: list(ds.batches(100)),
        lambda: ds.to_zarr(tmp_path / "a.zarr", mode="w"),
    ]
    for attempt in attempts:
        with pytest.raises(FeatureError, match=f"feature '{name}' {says}") as caught:
            attempt()
        assert caught.value.place == Location(str(tmp_path / "x"), 5, offset, name)


ZEROS = zlib.compress(bytes(32))
DEFLATED = dtf.RawFeature((4,), "float64", count=-1, compression_type="ZLIB")
PAIRS = dtf.RaggedFeature("bytes", partitions=[dtf.RaggedFeature.RowLengths("n")], values=dtf.RawFeature((2,), "int8"))
SHORTS = tensor_messages.header("uint16", (3,)) + tensor_messages.content(np.zeros(3, np.uint16))


@pytest.mark.parametrize(
    ("feature", "values", "says"),
    [
        (DEFLATED, [ZEROS, ZEROS, zlib.compress(bytes(31))], "in value 2 holds 31 bytes; .* needs 32"),
        (DEFLATED, [ZEROS, ZEROS, zlib.compress(bytes(33))], "in value 2 holds more than 32 bytes"),
        *(
            (DEFLATED, [ZEROS, ZEROS, value], "in value 2 holds damaged ZLIB data")
            for value in (ZEROS[:-1], ZEROS + b"x", b"", bytes(32))
        ),
        (PAIRS, [b"ab", b"cd", b"e"], "in value 2 holds 1 byte; .* needs 2"),
        (dtf.RawFeature((3, -1, 3), "<f4"), [bytes(48)], "holds 48 bytes; .* needs a multiple of 36"),
        (dtf.RawFeature((2,), "int8", count=2), [b"ab"] * 3, "holds 3 values, but .* takes 2"),
        (dtf.TextFeature(count=4), [b"ab"] * 3, "holds 3 values, but .* takes 4"),
        (dtf.TensorFeature((3,), "int16", count=-1), [SHORTS], "in value 0 holds .*a tensor of dtype uint16"),
        (dtf.TensorFeature((2,), "uint16", count=-1), [SHORTS], r"in value 0 holds .*shape \(3,\)"),
        (
            dtf.ImageFeature((-1, 4, 6, 3)),
            [png(np.zeros((4, 5, 3), np.uint8))],
            r"in value 0 holds a PNG image of shape \(4, 5, 3\)",
        ),
    ],
)
def test_damaged_values_are_named(tmp_path: Path, feature: Any, values: list[bytes], says: str) -> None:
    oracle.write_oracle(tmp_path / "x", [example(x=values, n=[1, 2])])
    with pytest.raises(FeatureError, match=f"record 0 .*feature 'x' {says}"):
        dtf.read_tfrecord(tmp_path / "x", {"x": feature}, counts=[1]).compute()


def test_combinations_without_a_meaning_are_refused() -> None:
    partitions = [dtf.RaggedFeature.RowLengths("lengths")]

    def grouped(values: Any, dtype: str = "bytes") -> dtf.RaggedFeature:
        return dtf.RaggedFeature(dtype, partitions=partitions, values=values)

    for make, says in [
        (lambda: grouped(dtf.FixedLenFeature((), "bytes")), "values must be a RawFeature, TensorFeature"),
        (lambda: grouped(dtf.RawFeature((-1,), "int8")), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature(count=2)), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature(default_value="x")), "need no default_value"),
        (lambda: grouped(dtf.RawFeature((), "int8"), "int64"), "expected dtype 'bytes'"),
        (lambda: Decoder(Schema({}, sequence_features={"x": grouped(dtf.TextFeature())})), "not supported in sequence"),
        (lambda: dtf.TextFeature(count=0), "expected count=-1"),
        (lambda: dtf.TextFeature(default_value="x", count=-1), "default_value is for one string"),
        (lambda: dtf.TensorFeature((-1,), "int8", count=2), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", compression_type="LZ4"), "'ZLIB', 'GZIP' or None"),
        (lambda: dtf.RawFeature((-1, 2), "int8", count=3), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", count=True), "expected count=-1"),
    ]:
        with pytest.raises(SchemaError, match=says):
            make()
