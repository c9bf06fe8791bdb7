"""Stores are read by programs without this library: the reader on the page on formats, and other packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from support.any_columns import FEATURES, dataset_of, rows_like
from support.bits import bits
from support.few import mostly_slow
from support.pages import blocks
from support.paths import REPOSITORY

import dask_tfrecord as dtf

ROWS = 25
# Rows of chunks and shards.
GRIDS: dict[str, dict[str, Any]] = {"plain": {"chunks": 10}, "sharded": {"chunks": 5, "shards": 10}}


@pytest.fixture(params=mostly_slow(reversed(GRIDS), 2), scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dtf.Dataset]:
    """A store with columns of every layout, and the data set that it was written from."""
    rng = np.random.default_rng(5)
    dataset = dataset_of({name: rows_like(each, ROWS, rng) for name, each in FEATURES.items()}, FEATURES, [ROWS])
    path = tmp_path_factory.mktemp("readers") / "store.zarr"
    dataset.to_zarr(path, **GRIDS[request.param])
    return path, dataset


def page_reader() -> Callable[[Any], Mapping[str, Any]]:
    """Return the function that the page on formats defines."""
    [block] = [each for each in blocks("docs/explanation/formats.md", "python") if "def read_columns" in each.text]
    namespace: dict[str, Any] = {}
    exec(compile(block.text, str(REPOSITORY / "docs/explanation/formats.md"), "exec"), namespace)
    return namespace["read_columns"]  # type: ignore[no-any-return]


def nested(rows: Any) -> Any:
    """Return rows as lists of lists, with the bits of the innermost arrays."""
    if isinstance(rows, list) or (isinstance(rows, np.ndarray) and rows.dtype == object):
        return [nested(row) for row in rows]
    return bits(rows)


def test_the_reader_of_the_page_has_the_rows(store: tuple[Path, dtf.Dataset]) -> None:
    path, dataset = store
    found, wanted = page_reader()(path), dataset.compute()
    assert {*found} == {*wanted}
    for name, column in wanted.items():
        assert nested(found[name]) == nested(column), name


def test_the_reader_of_the_page_knows_groups(tmp_path: Path) -> None:
    lengths = [3, 0, 2]
    columns = {f"steps/{name}": [np.arange(size) + number for size in lengths] for number, name in enumerate("ab")}
    dtf.to_zarr(columns, tmp_path / "store.zarr", groups={"steps": "steps"})
    found = page_reader()(tmp_path / "store.zarr")
    assert {name: nested(rows) for name, rows in found.items()} == {
        name: nested(rows) for name, rows in columns.items()
    }


def arrays_of(path: Path, kinds: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a store by zarr, of these kinds of dtypes."""
    return {name: array[:] for name, array in zarr.open_group(path, mode="r").arrays() if array.dtype.kind in kinds}


def test_tensorstore(store: tuple[Path, dtf.Dataset]) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    for name, array in arrays_of(store[0], "biufc").items():
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store[0] / name)}}
        assert bits(tensorstore.open(spec, read=True).result().read().result()) == bits(array), name


def test_zarrs(store: tuple[Path, dtf.Dataset]) -> None:
    pytest.importorskip("zarrs")
    wanted = arrays_of(store[0], "biufcT")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        found = arrays_of(store[0], "biufcT")
    assert {name: bits(array) for name, array in found.items()} == {name: bits(array) for name, array in wanted.items()}


@pytest.mark.slow
def test_xarray(store: tuple[Path, dtf.Dataset]) -> None:
    xarray = pytest.importorskip("xarray")
    with xarray.open_zarr(store[0]) as opened:
        found = {str(name): opened[name].values for name in opened.variables}
    for name, array in arrays_of(store[0], "biufc").items():
        assert bits(found[name]) == bits(array), name


SCRIPT = """
import { writeFileSync } from "node:fs";
import * as zarr from "zarrita";
import FileSystemStore from "@zarrita/storage/fs";
const [path, folder, ...names] = process.argv.slice(2);
const root = zarr.root(new FileSystemStore(path));
for (const name of names) {
  const array = await zarr.open(root.resolve(name), { kind: "array" });
  const { data, shape } = await zarr.get(array);
  writeFileSync(`${folder}/${name}.json`, JSON.stringify(shape));
  writeFileSync(`${folder}/${name}.bin`, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
}
"""


@pytest.mark.integration
def test_zarrita(store: tuple[Path, dtf.Dataset], tmp_path: Path) -> None:
    modules = os.environ.get("DASK_TFRECORD_ZARRITA")
    if modules is None or shutil.which("node") is None:
        pytest.skip("needs node, and DASK_TFRECORD_ZARRITA, a folder in which npm installed zarrita")
    # JavaScript lacks arrays of halves, booleans and complex numbers, and zarrita can't select from empty ones.
    numbers = arrays_of(store[0], "iuf")
    wanted = {name: array for name, array in numbers.items() if array.size and array.dtype != np.float16}
    script = Path(modules) / "read_store.mjs"
    script.write_text(SCRIPT)
    subprocess.run(["node", script, store[0], tmp_path, *wanted], check=True, timeout=300)
    for name, array in wanted.items():
        shape = json.loads((tmp_path / f"{name}.json").read_text())
        found = np.frombuffer((tmp_path / f"{name}.bin").read_bytes(), array.dtype).reshape(shape)
        assert bits(found) == bits(array), name
