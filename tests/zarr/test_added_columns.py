"""Columns that are added to a store: as if it had been written with them, and not at all until all are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray
import zarr
from cases import COLUMNS
from support.commands import run, shown
from support.few import mostly_slow
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.errors import ResumeError, SchemaError, StoreInUseError

ROWS = 11


def old_columns(rows: int = ROWS) -> dict[str, Any]:
    return {"x": np.arange(1, rows + 1), "tokens": [[row + 1] * (row % 3) for row in range(rows)]}


def new_columns(rows: int = ROWS) -> dict[str, Any]:
    return {
        "y": np.arange(1, rows + 1) / 2,
        "text": np.array([f"row {row}" for row in range(rows)], np.dtypes.StringDType()),
        "boxes": [[[row + 1.0, 2.0]] * (row % 2) for row in range(rows)],
    }


def as_lists(columns: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [np.asarray(row).tolist() for row in column] for name, column in columns.items()}


def assert_columns(store: Any, *, added: bool | None) -> None:
    """Assert that every reader finds the old columns, or all of them; `added` says which, None that both may be."""
    found = dtf.from_zarr(store).compute()
    both = {**old_columns(), **new_columns()}
    assert list(found) in [[*old_columns()], [*both]]
    assert added is None or (len(found) == len(both)) == added
    assert as_lists(found) == {name: as_lists(both)[name] for name in found}
    opened, group = xarray.open_zarr(store), zarr.open_group(store, mode="r")
    names = {"x", "tokens.values", "tokens.row_splits"}
    new = {"y", "text", "boxes.values", "boxes.row_splits"}
    assert {*map(str, opened.variables)} == {*group.array_keys()}
    assert {*group.array_keys()} in [names, names | new]
    assert (added is None) or ("y" in group) == added
    for name in ("y", "text") if "y" in group else ():
        assert opened[name].to_numpy().tolist() == group[name][:].tolist() == new_columns()[name].tolist()  # type: ignore[union-attr, index]
        assert group["boxes.row_splits"][-1] == ROWS // 2  # type: ignore[index]
        assert group["boxes.values"][:, 0].tolist() == [*range(2, ROWS + 1, 2)]  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *mostly_slow([(case, [{}, {"chunks": 2, "shards": 4}][number % 2]) for number, case in enumerate(COLUMNS)], 7),
        pytest.param("every layout", {"chunks": 2}, marks=pytest.mark.slow),
    ],
)
def test_added_columns_are_those_of_one_conversion(
    case: str, options: dict[str, Any], golden: Path, tmp_path: Path
) -> None:
    build, argument = COLUMNS[case]
    ds = build(golden, argument)
    # The store has a dimension of that name: a store of one conversion renames it, and here it is an error (see below).
    ds = ds.drop("record") if "record" in ds.schema else ds
    names = list(ds.schema)
    other = dtf.to_zarr({"added number": np.arange(ds.nrows or 0)}, tmp_path / "x.zarr", **options)
    assert other is None
    for name in names:
        ds[[name]].to_zarr(tmp_path / "x.zarr", mode="a", **options)
    found = dtf.from_zarr(tmp_path / "x.zarr")
    assert list(found.schema) == ["added number", *names]
    assert_same(found[names].compute(), ds.compute())
    # They grow together.
    ds.assign({"added number": np.arange(ds.nrows or 0)}).to_zarr(tmp_path / "x.zarr", append_dim="record")
    grown = dtf.from_zarr(tmp_path / "x.zarr")
    assert grown.nrows == 2 * (ds.nrows or 0)
    assert_same(grown.rows[ds.nrows or 0 :][names].compute(), ds.compute())


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    dtf.to_zarr(old_columns(), store, mode="a", chunks=4)
    for given, error, match in [
        (
            {"z": [0] * ROWS, "x": np.arange(ROWS)},
            SchemaError,
            "a column 'x' already, and adding columns never replaces one",
        ),
        ({"z": np.arange(ROWS + 1)}, SchemaError, "the store has 11 rows, and the given columns have 12"),
        ({"record": np.arange(ROWS)}, SchemaError, "'record' would be the name of an array and of a dimension"),
    ]:
        with pytest.raises(error, match=match):
            dtf.to_zarr(given, store, mode="a")
        assert_columns(store, added=False)
    with pytest.raises(ValueError, match="is 'record', and that of the given columns is 'time'"):
        dtf.to_zarr(xarray.Dataset({"z": ("time", np.arange(ROWS))}), store, mode="a")  # type: ignore[arg-type]
    zarr.open_group(store, mode="r+").create_array("foreign", shape=(1,), dtype="int8")
    with pytest.raises(SchemaError, match="has an array 'foreign' that does not belong to its columns"):
        dtf.to_zarr({"foreign": np.arange(ROWS)}, store, mode="a")
    assert list(dtf.from_zarr(store).schema) == [*old_columns()]


def test_one_addition_at_a_time_and_resumed_by_its_own_call_only(tmp_path: Path) -> None:
    store, refused = tmp_path / "x.zarr", []
    dtf.to_zarr(old_columns(), store, chunks=4)
    dtf.to_tfrecord({"z": np.arange(ROWS)}, tmp_path / "z.tfrecord")
    ds = dtf.read_tfrecord(tmp_path / "z.tfrecord", {"z": dtf.FixedLenFeature((), "int64")})

    def fail_meanwhile(blocks: dict[str, Any]) -> dict[str, Any]:
        if not refused:
            for options in ({"mode": "a"}, {"append_dim": "record"}):
                with pytest.raises(StoreInUseError):
                    dtf.to_zarr(old_columns(), store, **options)  # type: ignore[arg-type]
            refused.append(True)
            raise KeyboardInterrupt
        return blocks

    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(KeyboardInterrupt):
            ds.map_blocks(fail_meanwhile, dict(ds.schema)).to_zarr(store, mode="a", resume=True)
        assert refused
        assert_columns(store, added=False)
        with pytest.raises(ResumeError, match="columns were added, and now rows"):
            dtf.to_zarr(old_columns(), store, append_dim="record", resume=True)
        dtf.to_zarr(new_columns(), store, mode="a")
    assert_columns(store, added=True)


def test_without_consolidated_metadata_new_arrays_are_whole(tmp_path: Path) -> None:
    dtf.to_zarr(old_columns(), tmp_path / "x.zarr", chunks=4, consolidated=False)
    dtf.to_zarr(new_columns(), tmp_path / "x.zarr", mode="a")
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    assert group.metadata.consolidated_metadata is None
    assert group["y"][:].tolist() == new_columns()["y"].tolist()  # type: ignore[index, union-attr]
    assert as_lists(dtf.from_zarr(tmp_path / "x.zarr").compute()) == as_lists({**old_columns(), **new_columns()})


def test_shards_are_appended_with_the_features_of_added_columns(tmp_path: Path) -> None:
    features = {"x": dtf.FixedLenFeature((), "int64"), "y": dtf.FixedLenFeature((), "float32")}
    for number in range(3):
        rows = {"x": np.arange(4) + 4 * number, "y": np.arange(4, dtype="float32")}
        dtf.to_tfrecord(rows, tmp_path / f"{number}.tfrecord")
    first = tmp_path / "0.tfrecord"
    dtf.read_tfrecord(first, {"x": features["x"]}).to_zarr(tmp_path / "x.zarr", append_dim="record")
    dtf.read_tfrecord(first, {"y": features["y"]}).to_zarr(tmp_path / "x.zarr", mode="a")
    for _ in range(2):
        shown("to-zarr", f"{tmp_path}/*.tfrecord", tmp_path / "x.zarr", "--append")
        found = dtf.from_zarr(tmp_path / "x.zarr").compute()
        assert found["x"].tolist() == [*range(12)]
        assert found["y"].tolist() == [0.0, 1.0, 2.0, 3.0] * 3


def test_the_command_adds_columns(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(5), "y": np.arange(5) * 2, "z": np.arange(5) * 3}, tmp_path / "0.tfrecord")
    shard, store = tmp_path / "0.tfrecord", tmp_path / "x.zarr"
    shown("to-zarr", shard, store, "--columns", "x")
    shown("to-zarr", shard, store, "--columns", "z", "--add-columns")
    refused = run("to-zarr", shard, store, "--columns", "y,x", "--add-columns")
    assert refused.exit_code == 1 and "has a column 'x' already" in refused.stderr
    shown("to-zarr", shard, store, "--add-columns", "--resume")
    found = dtf.from_zarr(store).compute()
    assert as_lists(found) == {"x": [*range(5)], "z": [*range(0, 15, 3)], "y": [*range(0, 10, 2)]}
    assert "already contains all of these columns: nothing is left to add" in shown(
        "to-zarr", shard, store, "--add-columns"
    )
    wrong = run("to-zarr", shard, store, "--add-columns", "--append")
    assert wrong.exit_code == 2 and "--add-columns adds columns to the store" in wrong.stderr


def test_columns_of_a_store_that_grows_have_chunks_that_do_not_depend_on_its_first_rows(tmp_path: Path) -> None:
    images = np.zeros((3, 64, 64, 3), np.uint8)
    dtf.to_zarr({"image": images}, tmp_path / "x.zarr", append_dim="record")
    added = {"y": np.arange(3.0), "tokens": [[1], [2, 3], []]}
    dtf.to_zarr(added, tmp_path / "x.zarr", mode="a")
    dtf.to_zarr(added, tmp_path / "alone.zarr", append_dim="record")
    (unit, *_), found = (zarr.open_array(tmp_path / f"x.zarr/{name}").chunks for name in ("image", "y"))
    assert unit > 3 and found[0] % unit == 0
    for name in ("y", "tokens.row_splits", "tokens.values"):
        grown, alone = (zarr.open_array(tmp_path / store / name).chunks[0] for store in ("x.zarr", "alone.zarr"))
        assert 0.9 < grown / alone <= 1, name
    for _ in range(2):
        dtf.to_zarr({"image": images + 1, **added}, tmp_path / "x.zarr", append_dim="record")
    both = dtf.from_zarr(tmp_path / "x.zarr").compute()
    assert as_lists(both) == as_lists(
        {"image": np.concatenate([images, images + 1, images + 1]), "y": [*range(3)] * 3, "tokens": added["tokens"] * 3}
    )


def test_metadata_that_are_consolidated_later_grow_too(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    dtf.to_zarr(old_columns(), store, chunks=4, consolidated=False)
    with pytest.warns(RuntimeWarning, match="Failed to open Zarr store with consolidated metadata"):
        xarray.open_zarr(store)
    xarray.open_zarr(store, consolidated=False)
    with pytest.warns(UserWarning, match="Consolidated metadata is currently not part"):
        zarr.consolidate_metadata(store)
    dtf.to_zarr(old_columns(3), store, append_dim="record")
    dtf.to_zarr({"y": np.arange(ROWS + 3)}, store, mode="a")
    assert zarr.open_group(store, mode="r").metadata.consolidated_metadata is not None
    opened = xarray.open_zarr(store)
    assert opened["y"].to_numpy().tolist() == [*range(ROWS + 3)]
    assert opened["x"].to_numpy().tolist() == [*range(1, ROWS + 1), 1, 2, 3]
