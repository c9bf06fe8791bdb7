"""Rows as what readers return and writers take, and sources of chunks against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_tfrecord as dtf
from dask_tfrecord.blocks import to_array
from dask_tfrecord.rows.rows import HasRows, Rows
from dask_tfrecord.rows.sources import ChunkSource, CountedRows, UncountedChunks

ROWS = 7


def shards(path: Path) -> str:
    dtf.to_tfrecord({"x": np.arange(ROWS), "y": [[1] * n for n in range(ROWS)]}, path, mode="w")
    return str(path)


class Holder(HasRows):
    """A collection of another package."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def as_rows(self) -> Rows:
        return self._rows


@pytest.mark.parametrize("held", [lambda rows: rows, Holder])
def test_writers_take_rows(held: Any, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shards(tmp_path / "x"), chunks=3).assign(z=np.arange(ROWS) * 2)
    rows = held(ds[["z", "x"]].as_rows())
    dtf.to_zarr(rows, tmp_path / "z")
    dtf.to_tfrecord(rows, tmp_path / "again")
    for found in (dtf.from_zarr(tmp_path / "z"), dtf.read_tfrecord(tmp_path / "again")):
        columns = found.compute()
        assert set(columns) == {"x", "z"}
        assert columns["z"].tolist() == (2 * np.arange(ROWS)).tolist()
        assert columns["x"].tolist() == list(range(ROWS))


def test_columns_of_rows_are_read_without_the_others(tmp_path: Path) -> None:
    rows = dtf.read_tfrecord(shards(tmp_path / "x"), chunks=3).assign(z=np.arange(ROWS)).as_rows()
    assert rows.source is None
    # An assigned column needs no record, and what is left without it is the source.
    assert not any("decode" in str(key) or "read" in str(key) for key in rows.array("z").__dask_graph__())
    assert isinstance(rows.select_columns(["x"]).source, CountedRows)
    assert rows.select_columns(["z"]).compute()["z"].tolist() == list(range(ROWS))


@pytest.mark.parametrize("counts", ["auto", None])
def test_a_source_has_the_interface_of_its_rows(counts: str | None, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shards(tmp_path / "x"), counts=counts)
    changed = ds.map_blocks(lambda blocks: {"x": blocks["x"] + 1}).rename(x="w")
    for each in (ds, changed, ds.explode(["y"])):
        source = each.as_rows().source
        assert isinstance(source, CountedRows if counts else UncountedChunks)
        assert isinstance(source, CountedRows) != isinstance(source, UncountedChunks)
    assert changed.compute()["w"].tolist() == list(range(1, ROWS + 1))


@given(data=st.data())
def test_chunks_are_read_like_the_array_that_they_are_cut_from(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    borders = [0, *np.cumsum(sizes).tolist()]
    values, read = np.arange(borders[-1]) * 10, []

    def read_chunk(names: Any, number: int) -> dict[str, Any]:
        read.append(number)
        return {"x": values[borders[number] : borders[number + 1]]}

    schema = dtf.Schema({"x": dtf.FixedLenFeature((), "int64")})
    source: CountedRows = ChunkSource.of_all(schema, borders, read_chunk)
    expected = values
    for _ in range(data.draw(st.integers(0, 2))):
        key = data.draw(keys(len(expected)))
        source, expected = source.select(key), expected[key]
    key = data.draw(keys(len(expected)))
    read.clear()
    assert to_array(source.read(["x"], key)["x"]).tolist() == expected[key].tolist()
    assert read == np.unique(np.searchsorted(borders, expected[key] // 10, side="right") - 1).tolist()
    if len(expected):
        row = data.draw(st.integers(0, len(expected) - 1))
        assert source.locate(row, "x").record == expected[row] // 10


def keys(number: int) -> st.SearchStrategy[Any]:
    """Slices and lists of rows."""
    lists = st.lists(st.integers(0, number - 1), max_size=5) if number else st.just([])
    return st.one_of(st.slices(number), lists.map(lambda rows: np.array(rows, np.int64)))
