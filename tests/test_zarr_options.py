"""What a store says of itself to others: names of axes, fill values, attributes; and arrays that have to be rechunked.

zarr and xarray read the stores.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.store_round_trip import assert_same, files_of

import dask_tfrecord as dtf
from dask_tfrecord.arrays.rows import Rechunked

xr = pytest.importorskip("xarray")

SCHEMA = dtf.Schema(
    {
        "image": dtf.RawFeature((4, 3, 2), "uint8"),
        "depth": dtf.RawFeature((4, 3), "float32"),
        "label": dtf.FixedLenFeature((), "int64", default_value=-1),
        "score": dtf.FixedLenFeature((), "float32", default_value=float("nan")),
        "title": dtf.TextFeature(default_value="none"),
        "boxes": dtf.VarLenFeature("float32", shape=(-1, 4)),
        "kinds": dtf.VarLenFeature("int64"),
        "raw": dtf.FixedLenFeature((2,), "bytes"),
    },
    classes={"label": ["cat", "wild dog"], "kinds": ["a", "b"]},
)
NAMES = {"image": ("height", "width", "channel"), "depth": ["height", "width"], "boxes": ("corner",)}
ROWS = 11


LABELS = [-1 if row % 3 == 0 else row % 2 for row in range(ROWS)]


@pytest.fixture(scope="module")
def ds() -> dtf.Dataset:
    """Rows whose scalars partly equal the defaults of their features."""
    columns = {
        "image": np.arange(ROWS, dtype="u1").reshape(-1, 1, 1, 1) + np.arange(24, dtype="u1").reshape(4, 3, 2),
        "depth": np.tile(np.arange(12, dtype="f4").reshape(4, 3), (ROWS, 1, 1)),
        "label": LABELS,
        "score": np.array([row if row % 3 else np.nan for row in range(ROWS)], "f4"),
        "title": ["title" if row % 3 else "none" for row in range(ROWS)],
        "boxes": [np.arange(4 * (row % 3), dtype="f4").reshape(-1, 4) for row in range(ROWS)],
        "kinds": [[1] * (row % 2) for row in range(ROWS)],
        "raw": np.array([[b"x", b"yz"]] * ROWS, object),
    }
    # The schema of a function keeps its class names.
    return dtf.Dataset.from_arrays(columns, SCHEMA).map_blocks(dict, SCHEMA)


# ---------------------------------------------------------------------------------------------------- names of axes


def test_axes_have_the_names_given(ds: dtf.Dataset, tmp_path: Path) -> None:
    plan = ds.plan_zarr(dimension_names=NAMES)
    plan.to_zarr(tmp_path / "planned.zarr")
    ds.to_zarr(tmp_path / "store.zarr", dimension_names=NAMES, chunks=3)
    for store in ("planned.zarr", "store.zarr"):
        with xr.open_zarr(tmp_path / store) as opened:
            assert not opened.coords
            assert opened["image"].dims == ("record", "height", "width", "channel")
            assert opened["depth"].dims == ("record", "height", "width")
            assert opened["boxes.values"].dims == ("boxes.value", "corner")
            assert opened["kinds.values"].dims == ("kinds.value",)
            assert opened["raw.row_splits"].dims == ("raw.row_split",)
            assert {name: opened.sizes[name] for name in ("record", "height", "width", "channel", "corner")} == {
                **{"record": ROWS, "height": 4, "width": 3, "channel": 2, "corner": 4},
            }
            assert opened.isel(height=1, channel=0)["image"].to_numpy().tolist() == [
                [row + 6, row + 8, row + 10] for row in range(ROWS)
            ]
            planned = {array.name: array.dimensions for array in plan.arrays}
            assert planned == {name: opened[name].dims for name in opened.data_vars}
    assert "record, height, width, channel" in repr(plan)
    told = {array["name"]: array["dimensions"] for array in json.loads(plan.to_json())["arrays"]}
    assert told["boxes.values"] == ["boxes.value", "corner"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"image": ("height", "width")}, r"has 2 names, \('height', 'width'\), where a row has 3 axes, of shape"),
        ({"boxes": ()}, "has 0 names, .*, where an item has 1 axis"),
        ({"raw": ("x",)}, "has 1 names, .*, where an item has 0 axes"),
        ({"image": "hwc"}, "tuple of names, one for each axis; got 'hwc'"),
        ({"boxes": (1,)}, r"tuple of names, one for each axis; got \(1,\)"),
        ({"boxes": ("",)}, "tuple of names"),
        ({"image": ("x", "y", "x")}, "gives two axes of one array the same name"),
        (
            {"image": ("height", "width", "c"), "depth": ("width", "height")},
            "'width' has length 3 in 'image' and length 4 in",
        ),
        ({"boxes": ("depth.dim_2",)}, "'depth.dim_2' has length .* in 'depth' and length .* in 'boxes'"),
        ({"boxes": ("label",)}, "'label' is an array of the group, which xarray would read as the coordinate"),
        ({"boxes": ("kinds.row_splits",)}, "'kinds.row_splits' is an array of the group"),
        ({"boxes": ("record",)}, "'record' is the first dimension of 'image'"),
        ({"boxes": ("kinds.value",)}, "'kinds.value' is the first dimension of 'kinds.values'"),
        (["height"], "must map features to names"),
    ],
)
def test_names_that_do_not_fit(ds: dtf.Dataset, names: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ds.plan_zarr(dimension_names=names)


def test_names_of_an_xarray_data_set_are_kept(tmp_path: Path) -> None:
    image: NDArray[Any] = np.arange(5 * 2 * 3).reshape(5, 2, 3)
    given = xr.Dataset(
        {
            "image": (("time", "lat", "lon"), image),
            "level": (("time", "z"), np.ones((5, 4))),
            "n": ("time", np.arange(5)),
        }
    )
    for number, arrays in enumerate([given, given.chunk(time=2)]):
        dtf.to_zarr(arrays, tmp_path / f"{number}.zarr", dimension_names={"level": ("height",)})
        with xr.open_zarr(tmp_path / f"{number}.zarr") as opened:
            assert opened["image"].dims == ("time", "lat", "lon")
            assert opened["level"].dims == ("time", "height")
            assert opened["image"].to_numpy().tolist() == image.tolist()
    # Arrays side by side need not agree on the names that xarray makes up.
    beside = {"a": xr.DataArray(np.zeros((5, 2))), "b": xr.DataArray(np.zeros((5, 3)))}
    assert [array.dimensions[1] for array in dtf.plan_zarr(beside).arrays] == ["a.dim_1", "b.dim_1"]


# ------------------------------------------------------------------------------------------------------ fill values


def test_fill_values_are_those_given_else_defaults_else_zero(ds: dtf.Dataset, tmp_path: Path) -> None:
    plan = ds.plan_zarr(fill_values={"image": 255, "boxes": float("-inf"), "title": "?"}, chunks=3)
    plan.to_zarr(tmp_path / "store.zarr")
    group: Any = zarr.open_group(tmp_path / "store.zarr", mode="r")
    found = {name: array.fill_value for name, array in group.arrays()}
    assert np.isnan(found.pop("score"))
    assert found == {
        **{"image": 255, "depth": 0, "label": -1, "title": "?"},
        **{"boxes.values": -np.inf, "boxes.row_splits": 0, "kinds.values": 0, "kinds.row_splits": 0},
        **{"raw.values": 0, "raw.row_splits": 0},
    }
    told = {array["name"]: array["fill_value"] for array in json.loads(plan.to_json())["arrays"]}
    assert (told["score"], told["boxes.values"], told["label"], told["title"]) == ("NaN", "-Infinity", -1, "?")


def test_nothing_is_masked_and_nothing_left_out(ds: dtf.Dataset, tmp_path: Path) -> None:
    # Values that are the fill value are values, for xarray too, and chunks of them alone are written.
    given = {"depth": 1.0, "kinds": 1, "boxes": 3.0, "image": 7}
    ds.to_zarr(tmp_path / "store.zarr", fill_values=given, chunks=2, shards=6)
    ds.to_zarr(tmp_path / "plain.zarr", chunks=2, shards=6)
    with xr.open_zarr(tmp_path / "store.zarr") as opened, xr.open_zarr(tmp_path / "plain.zarr") as plain:
        assert set(opened) == set(plain)
        for name in opened:
            assert opened[name].dtype == plain[name].dtype
            assert "_FillValue" not in opened[name].attrs | opened[name].encoding
            found, wanted = opened[name].to_numpy(), plain[name].to_numpy()
            assert found.tolist() == wanted.tolist() if found.dtype.kind == "T" else found.tobytes() == wanted.tobytes()
        assert opened["label"].to_numpy().tolist() == LABELS
    assert files_of(tmp_path / "store.zarr").keys() == files_of(tmp_path / "plain.zarr").keys()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image": -1}, r"fill_values\['image'\]: -1 is not a value of dtype |u1"),
        ({"image": 256}, "256 is not a value"),
        ({"image": 1.5}, "1.5 is not a value"),
        ({"label": True}, "True is not a value"),
        ({"label": float("nan")}, "nan is not a value"),
        ({"label": "x"}, "'x' is not a value"),
        ({"label": [1]}, r"\[1\] is not a value"),
        ({"label": 2**63}, "9223372036854775808 is not a value"),
        ({"depth": 1e39}, r"1e\+39 is not a value"),
        ({"depth": 1j}, "1j is not a value"),
        ({"title": 0}, "0 is not a value of dtype string"),
        ({"title": None}, "None is not a value of dtype string"),
        ({"kinds.values": 0.5}, r"fill_values\['kinds.values'\]: 0.5 is not a value"),
        (-1, "must map features or flat arrays"),
    ],
)
def test_fill_values_that_do_not_fit(ds: dtf.Dataset, values: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ds.plan_zarr(fill_values=values)


@given(
    st.sampled_from(["?", "i1", "u1", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]),
    st.booleans() | st.integers(-(2**64), 2**64) | st.floats(width=16) | st.complex_numbers(width=64, allow_nan=False),
)
def test_a_fill_value_is_the_value_given_or_refused(dtype: str, value: complex) -> None:
    try:
        [planned] = dtf.plan_zarr({"x": np.zeros(3, dtype)}, fill_values={"x": value}).arrays
    except ValueError:
        # A value that an array of that dtype holds unchanged is never refused.
        if isinstance(value, int) and not isinstance(value, bool) and np.dtype(dtype).kind in "iu":
            assert not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        return
    found: Any = planned.fill_value
    assert np.array_equal(np.asarray(found, dtype), np.asarray(value).astype(dtype), equal_nan=True)
    if np.dtype(dtype).kind in "biu":
        assert found == value


# --------------------------------------------------------------------------------------- what the group says of itself


def test_consolidated_metadata_may_be_left_out(ds: dtf.Dataset, tmp_path: Path) -> None:
    ds.to_zarr(tmp_path / "with.zarr")
    ds.to_zarr(tmp_path / "without.zarr", consolidated=False)
    plan = ds.plan_zarr(consolidated=False)
    plan.to_zarr(tmp_path / "planned.zarr")
    assert json.loads(plan.to_json())["consolidated"] is False
    for store, there in {"with.zarr": True, "without.zarr": False, "planned.zarr": False}.items():
        metadata = json.loads((tmp_path / store / "zarr.json").read_text())
        assert ("consolidated_metadata" in metadata) == there
        assert dtf.from_zarr(tmp_path / store)["label"].compute().tolist() == LABELS
        with xr.open_zarr(tmp_path / store, consolidated=there) as opened:
            assert opened["image"].shape == (ROWS, 4, 3, 2)


def test_attributes_of_arrays(ds: dtf.Dataset, tmp_path: Path) -> None:
    renamed = ds.map_blocks(lambda blocks: {"a/b": blocks["label"]})
    renamed.to_zarr(tmp_path / "renamed.zarr")
    ds.to_zarr(tmp_path / "store.zarr")
    with xr.open_zarr(tmp_path / "renamed.zarr") as opened:
        assert opened["a.b"].attrs == {"feature": "a/b", "feature_class": "FixedLenFeature"}
    with xr.open_zarr(tmp_path / "store.zarr") as opened:
        assert opened["label"].attrs["class_names"] == ["cat", "wild dog"]
        assert opened["kinds.values"].attrs["class_names"] == ["a", "b"]
        assert "class_names" not in opened["kinds.row_splits"].attrs | opened["image"].attrs
        assert opened["image"].attrs["feature_class"] == "RawFeature"


@pytest.mark.parametrize("installed", [True, False])
def test_the_group_records_the_release(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    def version(name: str) -> str:
        if name == "dask-tfrecord" and not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return f"1.2.3 of {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    ds.to_zarr(tmp_path / "store.zarr")
    noted: Any = zarr.open_group(tmp_path / "store.zarr", mode="r").attrs["dask_tfrecord"]
    assert noted["version"] == ("1.2.3 of dask-tfrecord" if installed else None)


# ---------------------------------------------------------------------------------------- arrays cut in another way


def test_arrays_in_the_same_chunks_are_taken_as_they_are() -> None:
    ds = dtf.Dataset.from_arrays({"a": da.arange(40, chunks=10), "b": np.ones((40, 2))})
    same = ds.assign(c=ds["a"] / 255, d=np.arange(40), e=da.zeros((40, 3), chunks=(10, 3)))
    for dataset in (ds, same, same.persist(), same.map_blocks(dict), same.rows[5:25]):
        plan = dataset.plan_zarr()
        assert plan.rechunks == ()
        assert "RECHUNK" not in repr(plan)


def test_a_rechunk_is_announced(tmp_path: Path) -> None:
    whole = np.arange(40.0 * 6).reshape(40, 6)
    ds = dtf.Dataset.from_arrays({"a": da.arange(40, chunks=10)})
    assigned = ds.assign(b=da.from_array(whole, chunks=(7, 6)), d=da.from_array(whole, chunks=(10, 3)))
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = assigned.plan_zarr()
        aligned = ds.assign(b=da.from_array(whole, chunks=(10, 6)), d=da.from_array(whole, chunks=10))
        before = aligned.plan_zarr(chunks=plan.unit_rows).memory
    assert [each.name for each in plan.rechunks] == ["b", "d"]
    assert [each.held_nbytes for each in plan.rechunks] == [21 * 6 * 8, 10 * 6 * 8]
    assert plan.memory.read_nbytes == before.read_nbytes + (21 + 10) * 6 * 8
    line = next(line for line in repr(plan).splitlines() if line.startswith("RECHUNK: 'b'"))
    assert "from 6 chunks of up to 7 x 6 to 4 chunks of up to 10 x 6, which holds 0.98 kiB of it" in line
    assert json.loads(plan.to_json())["rechunks"][1] == {
        "name": "d",
        "from": [10, 3],
        "to": [10, 6],
        "held_nbytes": 480,
    }
    # A plan has reported the rechunk already.
    plan.to_zarr(tmp_path / "planned.zarr")
    with pytest.warns(da.PerformanceWarning) as said:
        assigned.to_zarr(tmp_path / "store.zarr")
    assert [str(warning.message).split()[0] for warning in said] == ["'b'", "'d'"]
    for store in ("planned.zarr", "store.zarr"):
        with xr.open_zarr(tmp_path / store) as opened:
            assert opened["b"].to_numpy().tolist() == opened["d"].to_numpy().tolist() == whole.tolist()
    with pytest.warns(da.PerformanceWarning, match="'c' is rechunked from 2 chunks of up to 20 to 4 chunks"):
        others = dtf.Dataset.from_arrays({"a": da.arange(40, chunks=10), "c": da.arange(40, chunks=20)})
        others.map_blocks(dict).to_zarr(tmp_path / "mapped.zarr")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_rows_held_by_a_rechunk(before: list[int], after: list[int]) -> None:
    rows = min(sum(before), sum(after))
    cut = [_until(sizes, rows) for sizes in (before, after)]
    starts, ends = np.cumsum([0, *cut[0][:-1]]), np.cumsum(cut[0])
    most = 0
    for past, size in zip(np.cumsum(cut[1]).tolist(), cut[1], strict=True):
        touched = [end - start for start, end in zip(starts, ends, strict=True) if start < past and end > past - size]
        most = max(most, sum(touched) if size else 0)
    recut = Rechunked("x", (tuple(cut[0]), (1, 2)), (tuple(cut[1]), (3,)), 8)
    assert recut.held_nbytes == most * 3 * 8


def _until(sizes: list[int], rows: int) -> list[int]:
    found = []
    for size in sizes:
        found.append(min(size, rows))
        rows -= found[-1]
    return found


class Alive(Callback):  # type: ignore[misc]
    """Counts the whole chunks of a data set that are there at once, where tasks run one at a time."""

    def __init__(self) -> None:
        super().__init__(posttask=self._look)
        self.most = self.seen = 0

    def _look(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        names = [str(key[0]) for key in state["cache"] if isinstance(key, tuple)]
        chunks = sum(
            name.startswith(("tfrecord-read_and_join-", "tfrecord-join-", "tfrecord-collect-")) for name in names
        )
        self.seen += any(name.startswith("tfrecord-cut-") for name in names)
        self.most = max(self.most, chunks)


@pytest.mark.parametrize("kind", ["assigned", "arrays"])
def test_chunks_do_not_pile_up(tmp_path: Path, kind: str) -> None:
    rows, size = 400, 40
    dataset = dtf.Dataset.from_arrays(
        {"label": da.arange(rows, chunks=size), "t": da.zeros((rows, 5), chunks=(size, 5))}
    )
    if kind == "assigned":
        dtf.to_tfrecord({"label": np.arange(rows)}, tmp_path / "part")
        read = dtf.read_tfrecord(tmp_path / "part", {"label": dtf.FixedLenFeature((), "int64")}, chunks=size)
        dataset = read.assign(half=read["label"] / 2)
    alive = Alive()
    with dask.config.set(scheduler="sync"), alive:
        # Units lie across the borders of most chunks.
        dataset.to_zarr(tmp_path / "store.zarr", chunks=7)
    assert alive.seen
    assert alive.most <= 2
    assert_same(dtf.from_zarr(tmp_path / "store.zarr").compute(), dataset.compute())
