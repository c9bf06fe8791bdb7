"""Stores with wrong attributes: `from_zarr` names the store and the attribute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.few import mostly_slow
from support.numbered_shards import write_shards

import dask_tfrecord as dtf
from dask_tfrecord.errors import IncompleteStoreError

ROWS = 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder, 2, ROWS // 2)
    return folder


@pytest.fixture(params=[True, False], ids=["consolidated", "not consolidated"])
def store(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    path = tmp_path / "store.zarr"
    dtf.read_tfrecord(source).to_zarr(path, chunks=7, consolidated=request.param)
    return path


def change(store: Path, edit: Callable[[dict[str, Any]], object], file: str = "zarr.json") -> None:
    document = json.loads((store / file).read_text())
    edit(document)
    (store / file).write_text(json.dumps(document))


def refused(store: Path, said: str) -> None:
    with pytest.raises(IncompleteStoreError, match=said) as caught:
        dtf.from_zarr(store)
    assert str(store) in str(caught.value)


def test_an_unchanged_store_is_read(store: Path) -> None:
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"], np.arange(ROWS))


@pytest.mark.parametrize(
    ("name", "value"),
    mostly_slow(
        [
            *(("records", value) for value in (-1, 10**15, 2**70, ROWS - 1, "20", 20.0, None, True, [20])),
            *(("unit_rows", value) for value in (0, -7, 2**70, "7", None, True)),
            *(("schema", value) for value in (None, [], "x", {}, {"features": 3}, {"features": [{"name": "label"}]})),
            ("schema", {"features": [{"name": "label", "class": "Schema"}]}),
            ("schema", {"features": [{"name": "label", "class": "FixedLenFeature", "shape": [-3], "dtype": "int64"}]}),
            *(("source", value) for value in (None, [], "x", 3, {"schema": 3}, {"schema": {"features": [1]}})),
            *(("complete", value) for value in ("yes", 1, None, [])),
            *(("id", value) for value in (None, 3, {})),
        ],
        5,
    ),
)
def test_a_wrong_attribute_is_reported(store: Path, name: str, value: Any) -> None:
    change(store, lambda document: document["attributes"]["dask_tfrecord"].update({name: value}))
    refused(store, rf"dask_tfrecord\.{name}")


@pytest.mark.parametrize("name", ["records", "unit_rows", "schema", "id", "complete"])
def test_a_missing_attribute_is_reported(store: Path, name: str) -> None:
    change(store, lambda document: document["attributes"]["dask_tfrecord"].pop(name))
    refused(store, rf"dask_tfrecord\.{name} of the group is missing")


def test_a_deep_schema_is_refused(store: Path) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    change(store, lambda document: document["attributes"]["dask_tfrecord"]["schema"].update(features=deep))
    refused(store, r"dask_tfrecord\.schema")


def test_more_units_than_fit_in_memory_are_refused(store: Path) -> None:
    def enlarge(document: dict[str, Any]) -> None:
        document["attributes"]["dask_tfrecord"].update(records=10**15, unit_rows=1, schema={"features": []})

    change(store, enlarge)
    refused(store, r"dask_tfrecord\.unit_rows of the group is 1 for 1,000,000,000,000,000 records; expected at most")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ("label", r"array 'label' has shape \(21,\) .* expect \(20\) and int64"),
        ("tokens.row_splits", r"array 'tokens.row_splits' has shape \(21, 2\) .* expect \(21\) and int64"),
        ("tokens.values", "array 'tokens.values' has shape .* and dtype float32; .* expect .*any length"),
    ],
)
def test_an_array_of_another_shape_or_dtype_is_reported(store: Path, array: str, said: str) -> None:
    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    attributes = dict(group.attrs)
    shape, dtype = {"label": ((21,), "i8"), "tokens.row_splits": ((21, 2), "i8"), "tokens.values": ((3,), "f4")}[array]
    group.create_array(array, shape=shape, dtype=dtype, overwrite=True)
    # Without consolidated metadata, which would still describe the other array.
    zarr.open_group(store, mode="r+", use_consolidated=False).attrs.put(attributes)
    change(store, lambda document: document.pop("consolidated_metadata", None))
    refused(store, said)


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", "{}", '{"zarr_format": 3, "node_type": "group", "attributes": []}']
)
def test_metadata_of_another_kind_is_refused(store: Path, text: str) -> None:
    (store / "zarr.json").write_text(text)
    with pytest.raises((IncompleteStoreError, FileNotFoundError), match=str(store)):
        dtf.from_zarr(store)


@pytest.mark.parametrize("text", ["[]", "null", "{}", "{", '{"zarr_format": 3, "node_type": "array"}'])
def test_metadata_of_an_array_that_cannot_be_read_names_it(store: Path, text: str) -> None:
    change(store, lambda document: document.pop("consolidated_metadata", None))
    (store / "label" / "zarr.json").write_text(text)
    refused(store, "'label'")


def test_a_missing_array_is_reported(store: Path) -> None:
    change(store, lambda document: document.pop("consolidated_metadata", None))
    (store / "label" / "zarr.json").unlink()
    refused(store, "'label' is not an array of the group")
