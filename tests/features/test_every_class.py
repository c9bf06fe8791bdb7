"""Many records for every feature class, in unusual encodings, some invalid: their arrays, and their sizes alone.

The library reads the same arrays, bit for bit, as the oracle derives from protobuf's parser. Where one refuses a
record, so does the other, and both name the same record and feature. Splits, shapes and errors of rows that are only
counted equal those of decoding, and values need no memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from google.protobuf.internal import api_implementation
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import messages
from oracle.strategies import CLASSES, ITEMS, STEPS
from support.any_columns import FEATURES, fitting_rows, written_as
from support.bits import bits
from support.few import mostly_slow, rising
from support.golden import shard
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.columns.decoder import Decoder, decode
from dask_tfrecord.errors import FeatureError, TFRecordError
from dask_tfrecord.features import RowLengths
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.index import full_run
from dask_tfrecord.shards.listing import find_shards

pytestmark = pytest.mark.skipif(
    api_implementation.Type() == "python", reason="pure Python protobuf does not know over-long tags"
)
Columns = dict[str, NDArray[Any]]
PARTS: dict[str, tuple[Any, ...]] = {
    **{f"Example, {cls.__name__}": (cls, None) for cls in CLASSES},
    **{f"context, {cls.__name__}": (cls, ()) for cls in CLASSES},
    **{f"feature list, {cls.__name__}": (dtf.VarLenFeature, (cls,)) for cls in STEPS},
    **{f"item, {cls.__name__}": (dtf.VarLenFeature, None, (cls,)) for cls in ITEMS},
}
RECORDS = 5  # Per hypothesis example.


@st.composite
def collections(
    draw: st.DrawFn, of: type[Any], steps: Sequence[type[Any]] | None, items: Sequence[type[Any]] | None = None
) -> tuple[Schema, list[bytes]]:
    """Draw a schema of one or two features of a class, and records in any encoding that mostly fit it."""
    most = 1 if steps or items else 2
    schema = draw(oracle.schemas(min_size=1, max_size=most, of=[of], steps=steps or None, items=items))
    if steps == ():
        schema = Schema(schema, sequence_features={})
    records = {"SequenceExample": oracle.sequence_examples, "ExampleListWithContext": oracle.example_lists}.get(
        schema.message, oracle.examples
    )
    misfits = draw(st.integers(0, 3)) > 0
    some = [draw(records(schema, others=True, misfits=misfits)) for _ in range(RECORDS)]
    return schema, [draw(oracle.wire_encodings(one))[1] for one in some]


def sizes(block: Block) -> Any:
    """Return a block with dtype and shape in place of ragged values."""
    if isinstance(block, np.ndarray):
        return bits(block)
    values = block.values
    inner = (values.dtype, values.shape) if isinstance(values, np.ndarray) else sizes(values)
    if isinstance(block, BytesBlock):
        return "bytes", block.shape, bits(block.splits), inner
    if isinstance(block, ArraysBlock):
        return "arrays", bits(block.row_splits), bits(block.shapes), inner
    return "rows", bits(block.row_splits), inner


def flat(block: Block) -> Any:
    """The values of the innermost rows."""
    return block if isinstance(block, np.ndarray) else flat(block.values)


def blocks_of(path: Path, parser: Decoder, count: int) -> dict[str, Block]:
    [shard] = find_shards(path)
    return decode([replace(full_run(shard), count=count)], parser, list(parser.columns), rows=count)


def outcome(path: Path, parser: Decoder, count: int) -> Any:
    """Return the sizes of all columns, or the error and its record."""
    try:
        blocks = blocks_of(path, parser, count)
    except TFRecordError as error:
        return type(error), str(error), error.place
    return {name: sizes(block) for name, block in blocks.items()}


def compare_sizes(path: Path, schema: Schema, payloads: list[bytes]) -> bool:
    """Count and decode the same records; return whether they raise."""
    oracle.write_oracle(path, payloads)
    wanted = outcome(path, Decoder(schema), len(payloads))
    assert outcome(path, Decoder(schema, "sizes"), len(payloads)) == wanted
    return not isinstance(wanted, dict)


class Shards:
    """Payloads in two files, and the location of each."""

    def __init__(self, folder: Path, payloads: Sequence[bytes], rng: random.Random) -> None:
        self.paths = [str(folder / "a"), str(folder / "b")]
        self.numbers: dict[tuple[str, int], int] = {}
        first = rng.randint(0, len(payloads))
        for path, start, stop in zip(self.paths, (0, first), (first, len(payloads)), strict=True):
            oracle.write_oracle(path, payloads[start:stop], rng.choice([None, None, "gzip", "zlib"]))
            ends = accumulate(len(payload) + 16 for payload in payloads[start:stop])
            self.numbers |= {(path, begin): number for number, begin in enumerate([0, *ends][:-1], start)}
        self.first = {self.paths[0]: 0, self.paths[1]: first}

    def number(self, error: FeatureError) -> int:
        """Return the number of the record that an error names, by its byte and by its number in the file."""
        location = error.place
        assert location is not None and location.offset is not None
        number = self.numbers[location.file, location.offset]
        # Without counts, the number of a record in the middle of its file is unknown.
        assert location.record in (None, number - self.first[location.file])
        return number


def read(paths: Sequence[str], schema: Schema, rng: random.Random) -> Columns:
    if rng.random() < 0.4 and not any(map(is_open, schema.values())):
        return dtf.read_tfrecord(paths, schema, counts=None, chunks=rng.choice(["auto", "shard", "1 kiB"])).compute()
    return dtf.read_tfrecord(paths, schema, chunks=rng.choice([1, 3, 7, "shard", "1 kiB"])).compute()


def is_open(feature: Any) -> bool:
    return isinstance(feature, dtf.FixedLenSequenceFeature) and feature.length is None


def check(folder: Path, schema: Schema, payloads: Sequence[bytes], rng: random.Random) -> set[int]:
    """Compare the library with the oracle, and return the numbers of the records that both refuse."""
    compare_sizes(folder / "sizes", schema, list(payloads))
    refusals = {(refusal.record, refusal.feature) for refusal in oracle.expected_refusals(payloads, schema)}
    shards = Shards(folder, payloads, rng)
    if not refusals:
        found, wanted = read(shards.paths, schema, rng), oracle.expected_columns(payloads, schema)
        assert list(found) == list(wanted)
        for name, column in found.items():
            assert bits(column) == bits(wanted[name]), name
        return set()
    with pytest.raises(FeatureError) as caught:
        read(shards.paths, schema, rng)
    assert caught.value.place is not None
    assert (shards.number(caught.value), caught.value.place.feature) in refusals
    return {number for number, _ in refusals}


def compare(folder: Path, made: st.SearchStrategy[tuple[Schema, list[bytes]]], nrecords: int) -> None:
    """Draw records and read them: all together, the valid ones, and each refused one alone."""
    read_records = refused = 0

    @settings(max_examples=nrecords // RECORDS, phases=[Phase.generate], database=None)
    @given(made, st.randoms(use_true_random=False))
    def run(made: tuple[Schema, list[bytes]], rng: random.Random) -> None:
        nonlocal read_records, refused
        schema, payloads = made
        bad = check(folder, schema, payloads, rng)
        if bad:
            good = [one for number, one in enumerate(payloads) if number not in bad]
            assert not check(folder, schema, good, rng)
            for number in bad:
                assert check(folder, schema, [payloads[number]], rng) == {0}
        read_records, refused = read_records + len(payloads) - len(bad), refused + len(bad)

    run()
    assert read_records + refused >= nrecords
    assert read_records
    assert refused or nrecords <= 100  # a few may all be valid


@pytest.mark.filterwarnings("ignore:.* ha(s|ve) no feature lists:UserWarning")
@pytest.mark.parametrize("nrecords", rising(10, 100, 500))
@pytest.mark.parametrize("part", mostly_slow(PARTS, 3))
def test_records_are_read_or_refused_as_by_the_oracle(tmp_path: Path, part: str, nrecords: int) -> None:
    compare(tmp_path, collections(*PARTS[part]), nrecords)


# Keys that several features read, and one that two partitions use.
SHARED = Schema(
    {
        "one": dtf.SparseFeature("i", "v", "float32", 4),
        "two": dtf.SparseFeature(("i", "i"), "w", "bytes", (4, 3)),
        "i": dtf.VarLenFeature("int64"),
        "rows": dtf.RaggedFeature("float32", "v", (RowLengths("p"),)),
        "levels": dtf.RaggedFeature("bytes", "w", (RowLengths("p"), RowLengths("p"))),
    }
)


@st.composite
def sharing(draw: st.DrawFn) -> tuple[Schema, list[bytes]]:
    """Draw records of one or two features that share keys."""
    names = draw(st.lists(st.sampled_from(list(SHARED)), min_size=1, max_size=2, unique=True))
    payloads = []
    for _ in range(RECORDS):
        record = messages.Example()
        held = record.features.feature
        count = draw(st.sampled_from([0, 1, 2, 2]))
        held["i"].int64_list.value.extend(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
        held["v"].float_list.value.extend(range(count))
        held["w"].bytes_list.value.extend(b"abc"[value : value + 1] for value in range(count))
        held["p"].int64_list.value.extend(draw(st.sampled_from([[1] * count, [count], [0, count]])))
        payloads.append(draw(oracle.wire_encodings(record))[1])
    return SHARED.select(names), payloads


def test_keys_that_features_share(tmp_path: Path) -> None:
    compare(tmp_path, sharing(), 60)


@pytest.mark.parametrize("message", ["Example", "SequenceExample"])
@pytest.mark.parametrize(
    "payload", [b"\xff", b"\x0a\x05", b"\x18\x01", b"\x0a\x03\x18\x01\x01", b"\x12\x00"], ids=bytes.hex
)
def test_payloads_of_other_types(tmp_path: Path, payload: bytes, message: str) -> None:
    schema = Schema({"x": dtf.VarLenFeature("int64")}, sequence_features=None if message == "Example" else {})
    bad = {1} if (payload, message) != (b"\x12\x00", "SequenceExample") else set()
    assert check(tmp_path, schema, [b"", payload, b""], random.Random(0)) == bad


@pytest.mark.parametrize("default", [[], b"x"])
def test_defaults_without_bytes_values(tmp_path: Path, default: Any) -> None:
    schema = Schema({"x": dtf.FixedLenFeature((0,), "bytes", default), "y": dtf.FixedLenFeature((0,), "bytes")})
    both, one = messages.Example(), messages.Example()
    for record in (both, one):
        record.features.feature["y"].bytes_list.SetInParent()
    both.features.feature["x"].bytes_list.SetInParent()
    payloads = [record.SerializeToString() for record in (both, one, messages.Example())]
    assert check(tmp_path, schema, payloads[:2], random.Random(0)) == set()
    assert check(tmp_path, schema, payloads, random.Random(0)) == {2}  # y is missing


@pytest.mark.parametrize("default", [0.0, -0.0, None, math.nan])
def test_steps_are_padded_with_the_default_to_the_bit(tmp_path: Path, default: float | None) -> None:
    schema = Schema({"x": dtf.FixedLenSequenceFeature((), "float32", True, default, length=2)})
    assert check(tmp_path, schema, [b"", example(x=[1.0])], random.Random(0)) == set()


# ---- rows that are only counted


COUNTED = ("ragged", "boxes", "words", "bytes", "samples", "nested", "deep", "tensor", "strings")
KEPT = ("dense", "text", "raw", "pairs", "captions")


def test_values_of_rows_that_differ_in_size_take_no_memory(tmp_path: Path) -> None:
    columns = {name: fitting_rows(FEATURES[name], 9, np.random.default_rng(1)) for name in (*COUNTED, *KEPT)}
    schema = written_as({name: FEATURES[name] for name in columns}, steps=False)
    dtf.to_tfrecord(columns, tmp_path / "x", features=schema)
    counted, read = (blocks_of(tmp_path / "x", parser, 9) for parser in (Decoder(schema, "sizes"), Decoder(schema)))
    for name in COUNTED:
        assert sizes(counted[name]) == sizes(read[name]), name
        values = flat(counted[name])
        assert values.size and not any(values.strides), name
        assert not any(values.tobytes()) and any(flat(read[name]).tobytes()), name
    for name in KEPT:
        assert bits(counted[name]) == bits(read[name]), name


@pytest.mark.parametrize("already_sorted", [False, True])
@pytest.mark.parametrize("dtype", ["bytes", "float32"])
def test_sparse_values_are_counted_in_the_order_of_their_places(
    dtype: str, already_sorted: bool, tmp_path: Path
) -> None:
    values: list[Any] = [b"abc", b"", b"d"] if dtype == "bytes" else [1.0, 2.0, 3.0]
    schema = Schema({"s": dtf.SparseFeature("i", "v", dtype, 9, already_sorted=already_sorted)})
    payloads = [example(i=[7, 0, 3], v=values), example(), example(i=[8], v=values[:1])]
    assert not compare_sizes(tmp_path / "x", schema, payloads)
    blocks = blocks_of(tmp_path / "x", Decoder(schema, "sizes"), 3)
    assert flat(blocks["s.indices"]).ravel().tolist() == ([7, 0, 3, 8] if already_sorted else [0, 3, 7, 8])
    assert not any(flat(blocks["s.values"]).strides)
    assert compare_sizes(tmp_path / "x", schema, [example(i=[9], v=values[:1])])
    assert compare_sizes(tmp_path / "x", schema, [example(i=[1, 2], v=values[:1])])


def test_bytes_that_are_to_be_booleans_or_text_are_looked_at(tmp_path: Path) -> None:
    assert compare_sizes(tmp_path / "x", Schema({"t": dtf.TextFeature(count=-1)}), [example(t=[b"\xff"])])
    schema = Schema({"b": dtf.RawFeature((-1,), "bool")})
    assert not compare_sizes(tmp_path / "x", schema, [example(b=[b"\0\1"]), example(b=[b""])])
    assert compare_sizes(tmp_path / "x", schema, [example(b=[b"\0\1"]), example(b=[b"\1\2"])])


def test_images_have_their_headers_read(golden: Path) -> None:
    ds = dtf.read_tfrecord(shard(golden, "images"), {"jpeg": dtf.ImageFeature()})
    source = ds.as_rows().counted_source
    assert source is not None
    blocks = source.measure().read(["jpeg"], slice(None))
    assert sizes(blocks["jpeg"]) == sizes(source.read(["jpeg"], slice(None))["jpeg"])
    assert not any(flat(blocks["jpeg"]).strides)


def repeated(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows whose first value is their length."""
    rows = blocks["i"]
    ends = np.append(0, np.cumsum(rows.values[rows.row_splits[:-1]]))
    return {"o": RaggedBlock(np.ones(ends[-1]), ends)}


def test_functions_are_given_values(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "x", [example(i=[row, 9]) for row in range(10)])
    ds = dtf.read_tfrecord(tmp_path / "x", {"i": dtf.VarLenFeature("int64")})
    ds.map_blocks(repeated, template={"o": dtf.VarLenFeature("float64")}).to_zarr(tmp_path / "z")
    found = dtf.from_zarr(tmp_path / "z")["o"].compute()
    assert [row.tolist() for row in found] == [[1.0] * row for row in range(10)]
