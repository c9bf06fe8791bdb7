"""Output buffers for flat values: values are written to a buffer if they fit, and are equal in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.store_round_trip import assert_same_array
from test_zarr_units import SCHEMA, write_every_kind

import dask_tfrecord as dtf
from dask_tfrecord.blocks import flatten_block, to_array
from dask_tfrecord.stores.units import is_flat

SIZES = (31, 0, 1, 40)
SPANS = ((0, 1), (1, 30), (30, 33), (33, 60), (65, 72))
FLAT = [name for name, feature in SCHEMA.items() if is_flat(feature)]
# Blocks that the decoder returns without a copy.
AS_DECODED = {"bytes", "pair", "ragged", "boxes", "words"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_every_kind(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("records", 0.0),
        ("records", 1.0),
        *(pytest.param("records", part, marks=pytest.mark.slow) for part in (0.5, 2.0)),
        ("picked", 1.0),
        ("mapped", 2.0),
        ("stored", 1.0),
    ],
)
def test_values_are_the_same_in_any_buffer(shards: str, tmp_path: Path, kind: str, part: float) -> None:
    ds = dtf.read_tfrecord(shards, SCHEMA)
    match kind:
        case "picked":
            ds = ds.rows[np.random.default_rng(5).permutation(sum(SIZES))]
        case "mapped":
            ds = ds.map_blocks(dict, dict(SCHEMA))
        case "stored":
            ds.to_zarr(tmp_path / "store.zarr", chunks=40)
            ds = dtf.from_zarr(tmp_path / "store.zarr")
    source: Any = ds.as_rows().source
    wanted = [ds.rows[start:stop].compute() for start, stop in SPANS]
    buffers: dict[tuple[str, tuple[int, int]], NDArray[Any]] = {}
    for span, blocks in zip(SPANS, source.read_spans(FLAT, SPANS), strict=True):
        for name in FLAT if part else ():
            values = flatten_block(blocks[name])[1]
            buffers[name, span] = np.full((int(part * len(values)), *values.shape[1:]), 77, values.dtype)
    out = {name: lambda span, name=name: buffers.get((name, span)) for name in FLAT}
    found = source.read_spans(list(SCHEMA), SPANS, out)
    for span, blocks, rows in zip(SPANS, found, wanted, strict=True):
        for name, block in blocks.items():
            assert_same_array(to_array(block), rows[name])
            values = flatten_block(block)[1]
            if name in AS_DECODED and kind == "records" and len(values):
                lies_there = part > 0 and np.shares_memory(values, buffers[name, span])
                assert lies_there == (part >= 1), (name, span)
