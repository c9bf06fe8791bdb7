"""Arrays, text and images of which a record, a feature list or a partition holds any number."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from oracle.partitions import objects
from support import tensor_messages
from support.any_columns import listed as listed_of
from support.images import png
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import FeatureError, Location, SchemaError
from dask_tfrecord.schema import Schema

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
        (dtf.RawFeature((2,), "int8", count=2), [b"ab"] * 3, "holds 3 values where .* takes 2"),
        (dtf.TextFeature(count=4), [b"ab"] * 3, "holds 3 values where .* takes 4"),
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


# Features of one item, and the item of a number; several have arrays of any size.
ITEMS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "zlib": (dtf.RawFeature((4,), "float64", compression_type="ZLIB"), lambda n: np.linspace(0, n, 4)),
    "fixed tensors": (dtf.TensorFeature((2,), "bytes"), lambda n: objects([b"a" * n, b"\0"])),
    "fixed images": (dtf.ImageFeature((2, 5, 3)), lambda n: np.full((2, 5, 3), n, np.uint8)),
    "images": (dtf.ImageFeature(), lambda n: np.full((n + 1, 2, 3), n, np.uint8)),
    "tensors": (dtf.TensorFeature((-1, 2), "float64"), lambda n: np.full((n, 2), n / 3)),
    "strings": (dtf.TensorFeature((-1,), "bytes"), lambda n: np.array([b"\0" * n] * n, object)),
    "raw": (dtf.RawFeature((2, -1), "<i4", compression_type="ZLIB"), lambda n: np.full((2, n), n, np.int32)),
}


@pytest.mark.parametrize("name", ITEMS)
def test_lists_and_steps_of_arrays(tmp_path: Path, name: str) -> None:
    """Random schemas have all of these but images: `test_oracle` and `test_round_trips`."""
    feature, array = ITEMS[name]
    arrays = [array(number) for number in (2, 0, 3, 1, 4, 4, 0, 0, 5)]
    own = -1 in feature.value_shape or feature == dtf.ImageFeature()
    cuts = [0, 3, 3, 4, 6, 9]
    rows = objects([objects(arrays[a:b]) if own or a == b else np.stack(arrays[a:b]) for a, b in pairwise(cuts)])
    listed = replace(feature, shape=(-1, *feature.value_shape)) if "image" in name else replace(feature, count=-1)
    dtf.to_tfrecord({"x": rows}, tmp_path / "list", features={"x": listed})
    dtf.to_tfrecord({"x": rows}, tmp_path / "steps", sequence_features={"x": feature})
    for ds in (
        dtf.read_tfrecord(tmp_path / "list", {"x": listed}, chunks=2),
        dtf.read_tfrecord(tmp_path / "steps", sequence_features={"x": feature}, chunks=2)[["x"]],
    ):
        assert ds.schema["x"] == listed
        for columns in (ds, ds.persist(), dtf.Dataset.from_arrays(ds.to_dataframe())):
            assert [listed_of(row) for row in columns["x"].compute()] == [listed_of(row) for row in rows]
        items = ds.explode("x")
        assert items.schema["x"] == feature
        assert listed_of(items["x"].compute()) == [*map(listed_of, arrays)]
        assert listed_of(items.rows[3:9]["x"].compute()) == [*map(listed_of, arrays[3:9])]
        if own:
            values, splits, sizes, shapes = dask.compute(*ds.ragged("x"))
            assert splits.tolist() == cuts
            assert len(shapes) == len(sizes) - 1 == 9
            assert sizes[-1] == len(values) == shapes.prod(axis=1).sum()
            with pytest.raises(SchemaError, match="of arrays: only rows of differing length are padded"):
                ds.padded("x", 3)


def test_partitions_group_images(tmp_path: Path) -> None:
    partitions = [dtf.RaggedFeature.RowLengths("lengths")]
    features = {"x": dtf.RaggedFeature("bytes", partitions=partitions, values=dtf.ImageFeature((2, 5, 3)))}
    image = ITEMS["fixed images"][1]
    rows = [[[image(1), image(2)], []], [], [[image(3)]]]
    dtf.to_tfrecord(
        {"x": [[np.array(of).reshape(-1, 2, 5, 3) for of in row] for row in rows]}, tmp_path / "x", features=features
    )
    ds = dtf.read_tfrecord(tmp_path / "x", features, chunks=2)
    assert dtf.Schema.from_json(ds.schema.to_json()) == ds.schema
    assert listed_of(ds["x"].compute()) == [[[*map(listed_of, of)] for of in row] for row in rows]


def test_combinations_without_a_meaning_are_refused() -> None:
    partitions = [dtf.RaggedFeature.RowLengths("lengths")]

    def grouped(values: Any, dtype: str = "bytes") -> dtf.RaggedFeature:
        return dtf.RaggedFeature(dtype, partitions=partitions, values=values)

    for make, says in [
        (lambda: grouped(dtf.FixedLenFeature((), "bytes")), "values is a RawFeature, TensorFeature"),
        (lambda: grouped(dtf.RawFeature((-1,), "int8")), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature(count=2)), "values have one known shape"),
        (lambda: grouped(dtf.TextFeature("x")), "need no default_value"),
        (lambda: grouped(dtf.RawFeature((), "int8"), "int64"), "expected dtype 'bytes'"),
        (lambda: Decoder(Schema({}, sequence_features={"x": grouped(dtf.TextFeature())})), "not supported in sequence"),
        (lambda: dtf.TextFeature(count=0), "expected count=-1"),
        (lambda: dtf.TextFeature("x", count=-1), "default_value is for one string"),
        (lambda: dtf.TensorFeature((-1,), "int8", count=2), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", compression_type="LZ4"), "'ZLIB', 'GZIP' or None"),
        (lambda: dtf.RawFeature((-1, 2), "int8", count=3), "needs a known shape"),
        (lambda: dtf.RawFeature((2,), "int8", count=True), "expected count=-1"),
    ]:
        with pytest.raises(SchemaError, match=says):
            make()
