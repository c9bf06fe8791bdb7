"""Rows that are appended to a store: as if all rows had been converted at once, and not at all until they are whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray
import zarr
from cases import COLUMNS
from support.faults import FaultError, Faults, Killed
from support.few import mostly_slow
from support.store_round_trip import assert_same

import dask_tfrecord as dtf


def assert_like(store: Any, reference: Any) -> None:
    """Assert that all readers find the same in two stores."""
    found, wanted = dtf.from_zarr(store), dtf.from_zarr(reference)
    assert (found.schema, found.nrows) == (wanted.schema, wanted.nrows)
    assert_same(found.compute(), wanted.compute())
    groups = [zarr.open_group(each, mode="r") for each in (store, reference)]
    first, second = ({name: array[:] for name, array in group.arrays()} for group in groups)
    assert_same(dict(sorted(first.items())), dict(sorted(second.items())))
    for name in second:
        # Chunks of flat values depend on the rows that a store began with.
        one, other = ({**group[name].metadata.to_dict(), "chunk_grid": 0, "codecs": 0} for group in groups)
        assert one == other
    opened = [xarray.open_zarr(each) for each in (store, reference)]
    assert opened[0].sizes == opened[1].sizes
    assert_same(*({str(name): each[name].to_numpy() for name in sorted(each.variables)} for each in opened))


GRIDS: list[dict[str, int]] = [{"chunks": 3}, {"chunks": 2, "shards": 4}]


@pytest.mark.parametrize(
    ("case", "options"),
    mostly_slow([(case, GRIDS[number % 2]) for number, case in enumerate(["every layout", "items", *COLUMNS])], 6),
)
def test_appended_rows_are_those_of_one_conversion(
    case: str, options: dict[str, Any], golden: Path, tmp_path: Path
) -> None:
    build, argument = COLUMNS[case]
    ds = build(golden, argument)
    total = ds.nrows or 0
    cuts = [total // 2, total // 2, max(total - 1, 0)]
    ds.to_zarr(tmp_path / "whole", **options)
    for start, stop in zip([0, *cuts], [*cuts, total], strict=True):
        ds.rows[start:stop].to_zarr(tmp_path / "grown", append_dim="record", **options)
    assert_like(tmp_path / "grown", tmp_path / "whole")


# Rows of a store, and rows that follow: the last chunk of each array holds both.
OLD, NEW = 5, 6


def columns(start: int, stop: int) -> dict[str, Any]:
    """Return rows of numbers, of text and of lists, none of which are the fill value."""
    numbers = range(start + 1, stop + 1)
    return {
        "x": np.array(numbers),
        "text": np.array([f"row {number}" for number in numbers], np.dtypes.StringDType()),
        "tokens": [[number] * (1 + number % 3) for number in numbers],
    }


def assert_rows(store: Any, *counts: int) -> None:
    """Assert that every reader finds one of these numbers of rows, with the right values."""
    found = dtf.from_zarr(store).compute()
    assert len(found["x"]) in counts
    opened = xarray.open_zarr(store)
    group = zarr.open_group(store, mode="r")
    for x, text, splits, values in [
        (*(found[name] for name in ("x", "text")), np.append(0, np.cumsum([*map(len, found["tokens"])])), None),
        [opened[name].to_numpy() for name in ("x", "text", "tokens.row_splits", "tokens.values")],
        [group[name][:] for name in ("x", "text", "tokens.row_splits", "tokens.values")],
    ]:
        rows = len(x)
        wanted = columns(0, rows)
        assert rows in counts
        assert x.tolist() == wanted["x"].tolist()
        assert text.tolist() == wanted["text"].tolist()
        assert np.diff(splits).tolist() == [*map(len, wanted["tokens"])]
        assert values is None or values.tolist() == [token for row in wanted["tokens"] for token in row]
    assert [row.tolist() for row in found["tokens"]] == columns(0, len(found["x"]))["tokens"]


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Killed, FaultError])
def test_readers_find_the_old_rows_or_all_of_them(every: int, kind: type[BaseException], tmp_path: Path) -> None:
    target, rest, at = tmp_path / "x.zarr", columns(OLD, OLD + NEW), 1
    dtf.to_zarr(columns(0, OLD), tmp_path / "old.zarr", chunks=4)
    with dask.config.set(scheduler="synchronous"):
        while True:
            shutil.copytree(tmp_path / "old.zarr", target)
            faults = Faults(at, kind, lambda path: str(path).startswith(f"{target}"))
            try:
                with faults.injected():
                    dtf.to_zarr(rest, target, append_dim="record", resume=at % 3 == 0)
            except (Exception, Killed):
                assert_rows(target, OLD, OLD + NEW)
            finished = faults.calls < at
            if dtf.from_zarr(target).nrows == OLD:
                dtf.to_zarr(rest, target, append_dim="record", resume=at % 2 == 0)
            # What is appended already is not appended again.
            dtf.to_zarr(rest, target, append_dim="record", resume=True)
            assert_rows(target, OLD + NEW)
            assert not [
                path for path in target.iterdir() if path.name.startswith(".dask") and path.suffix != ".partial"
            ]
            shutil.rmtree(target)
            if finished:
                break
            at += every
    assert at > 60
