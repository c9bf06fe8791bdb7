"""Sizes of rows without values: splits, shapes and errors equal those of decoding, and values need no memory.

`test_every_class` compares both for records of every feature class.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from support.any_columns import FEATURES, fitting_rows, written_as
from support.bits import bits
from support.golden import shard, spec
from support.wire import example, mutate

import dask_tfrecord as dtf
from dask_tfrecord.arrays.sources import RecordSource
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.columns.decoder import Decoder, decode
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.records.index import Run
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.listing import find_shards


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


def outcome(path: Path, parser: Decoder, count: int) -> Any:
    """Return the sizes of all columns, or the error and its record."""
    [found] = find_shards(path)
    run = Run(found, 0, count, 0, 0, found.size, ends_shard=True)
    try:
        blocks = decode([run], parser, list(parser.columns), rows=count)
    except TFRecordError as error:
        return type(error), str(error), error.place
    return {name: sizes(block) for name, block in blocks.items()}


def compare_sizes(path: Path, schema: Schema, payloads: list[bytes]) -> bool:
    """Count and decode the same records; return whether they raise."""
    oracle.write_oracle(path, payloads)
    wanted = outcome(path, Decoder(schema), len(payloads))
    assert outcome(path, Decoder(schema, "sizes"), len(payloads)) == wanted
    return not isinstance(wanted, dict)


# ---- the same sizes


@pytest.mark.parametrize("case", ["varlen", "ragged_partitions", "sequence_example", "serialized_tensors"])
def test_mutated_records(golden: Path, case: str, tmp_path: Path) -> None:
    source = dtf.read_tfrecord(shard(golden, case), **spec(golden, case))._source
    assert isinstance(source, RecordSource)
    payloads, rng = oracle.read_payloads(shard(golden, case)), random.Random(case)
    refused = 0
    for _ in range(60):
        payload = rng.choice(payloads)
        for _ in range(rng.choice((1, 1, 2))):
            payload = mutate(payload, rng.choice(payloads), rng)
        refused += compare_sizes(tmp_path / "x", source.decoder.schema, [payload])
    assert 6 < refused < 60


# ---- what is kept, and what is not


def blocks_of(path: Path, parser: Decoder, count: int) -> dict[str, Block]:
    [found] = find_shards(path)
    return decode([Run(found, 0, count, 0, 0, found.size, ends_shard=True)], parser, list(parser.columns), rows=count)


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


def test_bytes_that_are_to_be_booleans_are_looked_at(tmp_path: Path) -> None:
    schema = Schema({"b": dtf.RawFeature((-1,), "bool")})
    assert not compare_sizes(tmp_path / "x", schema, [example(b=[b"\0\1"]), example(b=[b""])])
    assert compare_sizes(tmp_path / "x", schema, [example(b=[b"\0\1"]), example(b=[b"\1\2"])])


def test_images_have_their_headers_read(golden: Path) -> None:
    ds = dtf.read_tfrecord(shard(golden, "images"), {"jpeg": dtf.ImageFeature()})
    assert ds._source is not None
    blocks = ds._source.measure().read(["jpeg"], slice(None))
    assert sizes(blocks["jpeg"]) == sizes(ds._source.read(["jpeg"], slice(None))["jpeg"])
    assert not any(flat(blocks["jpeg"]).strides)


# ---- sources


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
