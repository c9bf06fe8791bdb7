"""Awkward Arrays of a Dataset: equal to NumPy, and without copies."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_columns import FEATURES, any_features, dataset_of, rows_like

import dask_tfrecord as dtf
from dask_tfrecord.columns.blocks import BytesBlock, RaggedBlock
from dask_tfrecord.columns.user_blocks import feature_of
from dask_tfrecord.errors import FeatureError, SchemaError

ak = pytest.importorskip("awkward")
ROOT = Path(__file__).parents[1]


def plain(value: Any) -> Any:
    """A value of NumPy as nested lists and Python values; NaN as text."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def check(ds: dtf.Dataset) -> None:
    chunks = list(ds.to_awkward())
    assert tuple(map(len, chunks)) == ds.chunks
    columns = ds.compute()
    for name, column in columns.items():
        rows = [row for chunk in chunks for row in chunk[name].to_list()]
        if chunks and ak.fields(chunks[0][name]) == ["data", "shape"]:
            # A list of bytes would become an array of other sizes.
            of_lists = ds.schema[name].ragged_rank
            lists = rows if of_lists else [rows]
            arrays = [[shaped(item["data"], item["shape"]) for item in items] for items in lists]
            expected = column if of_lists else [column]
            assert [[a.shape for a in items] for items in arrays] == [[a.shape for a in items] for items in expected]
            rows = arrays if of_lists else arrays[0]
        assert plain(rows) == plain(column), name
    for chunk in chunks:
        assert ak.is_valid(chunk), ak.validity_error(chunk)


def shaped(items: list[Any], shape: list[int]) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def test_every_layout_equals_numpy() -> None:
    rng = np.random.default_rng(1)
    for rows, sizes in ((9, (4, 0, 5)), (0, (0,))):
        check(dataset_of({name: rows_like(each, rows, rng) for name, each in FEATURES.items()}, FEATURES, sizes))


@given(st.data())
def test_any_columns_equal_numpy(data: st.DataObject) -> None:
    features = data.draw(st.dictionaries(st.sampled_from("abc"), any_features(), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks = {name: rows_like(feature, 6, rng) for name, feature in features.items()}
    check(dataset_of(blocks, features, data.draw(st.sampled_from([(6,), (2, 4), (0, 6)]))))


def test_types_of_columns() -> None:
    rng = np.random.default_rng(2)
    wanted = {
        "dense": "2 * float32",
        "text": "string",
        "bytes": "bytes",
        "ragged": "var * int64",
        "boxes": "var * 4 * float32",
        "words": "var * bytes",
        "nested": "var * var * 2 * int8",
        "image": "{data: var * uint8, shape: 3 * int64}",
    }
    ds = dataset_of(
        {name: rows_like(FEATURES[name], 3, rng) for name in wanted}, {name: FEATURES[name] for name in wanted}, (3,)
    )
    (chunk,) = ds.to_awkward()
    assert {name: str(chunk[name].type).removeprefix("3 * ") for name in ds} == wanted


def test_values_and_splits_are_not_copied() -> None:
    numbers, dense = np.arange(12, dtype=np.float32), np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    splits, outer = np.array([0, 5, 5, 9, 12]), np.array([0, 1, 3, 3, 4])
    data, ends = np.frombuffer(b"abcdef", np.uint8), np.array([0, 1, 1, 4, 6])
    made = {
        "ragged": RaggedBlock(numbers, splits),
        "nested": RaggedBlock(RaggedBlock(numbers, splits), outer),
        "bytes": BytesBlock(data, ends, (4,)),
        "tensor": dense,
    }
    rows = dtf.Dataset.from_arrays({"row": np.arange(4)})
    with dask.config.set(scheduler="sync"):
        (chunk,) = rows.map_blocks(
            lambda given: made, {name: feature_of(block, "block") for name, block in made.items()}
        ).to_awkward()

    def addresses(name: str) -> set[int]:
        return {array.ctypes.data for array in ak.to_buffers(chunk[name])[2].values()}

    def of(*arrays: Any) -> set[int]:
        return {array.ctypes.data for array in arrays}

    assert addresses("ragged") == of(splits, numbers)
    assert addresses("nested") == of(outer, splits, numbers)
    assert addresses("bytes") == of(ends, data)
    assert addresses("tensor") == of(dense)


def test_columns_of_a_group_are_lists_of_records(tmp_path: Path) -> None:
    path = tmp_path / "steps.tfrecord"
    features = {
        "steps/a": dtf.VarLenFeature("int64"),
        "id": dtf.FixedLenFeature((), "int64"),
        "steps/b": dtf.VarLenFeature("float32", shape=(-1, 2)),
        "name": dtf.FixedLenFeature((), "int64", default_value=0),
    }
    schema = dtf.Schema(features, groups={"steps": ["steps/a", "steps/b"]})
    b = np.arange(6, dtype=np.float32).reshape(3, 2)
    columns = {"steps/a": [[0], [], [1, 2]], "id": np.arange(3), "steps/b": [b[:1], b[:0], b[1:]]}
    dtf.to_tfrecord(columns, path)
    (chunk,) = dtf.read_tfrecord(path, schema).to_awkward()
    assert ak.fields(chunk) == ["steps", "id", "name"] and ak.fields(chunk["steps"]) == ["a", "b"]
    assert chunk["steps"].to_list()[2] == [{"a": 1, "b": [2.0, 3.0]}, {"a": 2, "b": [4.0, 5.0]}]
    groups = {"name": ["steps/a", "steps/b"]}
    with pytest.raises(SchemaError, match="group 'name' and a column have one name"):
        dtf.read_tfrecord(path, dtf.Schema(features, groups=groups)).to_awkward()
    dtf.to_tfrecord({**columns, "steps/a": [[0], [1], [2]]}, path, mode="w")
    expected = r"record 1 \(byte 74\): feature 'steps/b' has 0 items, expected 1 as in 'steps/a'"
    with pytest.raises(FeatureError, match=expected):
        next(dtf.read_tfrecord(path, schema).to_awkward())
    ds = dtf.read_tfrecord(path, schema, chunks=1)
    for rows, record in ((ds, 1), (ds.rows[[0, 2, 1]], 2)):
        chunks = rows.to_awkward()
        with pytest.raises(FeatureError, match="feature 'steps/b' has") as caught:
            list(chunks)
        assert caught.value.place.file == str(path) and caught.value.place.record == record
    with pytest.raises(FeatureError, match=rf"{path}: row 1 of chunk 0: feature"):
        next(dtf.read_tfrecord(path, schema, counts=None).to_awkward())
    with pytest.raises(FeatureError, match=r"rows in memory: record 1: feature"):
        list(ds.persist().to_awkward())


def test_rows_without_columns_are_refused() -> None:
    with pytest.raises(SchemaError, match="rows without a column"):
        dtf.Dataset.from_arrays({"row": np.arange(3)})[[]].to_awkward()


@pytest.mark.integration
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, str(ROOT / "examples" / "sample_shards.py"), str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "awkward.md").read_text("utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
