"""xarray: `Dataset.to_xarray`, and the engine of `open_dataset`, `open_datatree` and `open_mfdataset`."""

from __future__ import annotations

import importlib.util
import io
import pickle
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import borders, read_payloads
from support.engine import PLANNED
from support.few import mostly_slow
from support.pages import blocks
from support.paths import REPOSITORY

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, SchemaError, UnknownFeatureError

xr = pytest.importorskip("xarray")
NROWS, SHARD_ROWS = 23, 10
FEATURES: dict[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "image": dtf.RawFeature((4, 5, 3), "uint8"),
    "text": dtf.TextFeature(),
    "blob": dtf.FixedLenFeature((), "bytes"),
    "tokens": dtf.VarLenFeature("int64"),
    "names": dtf.VarLenFeature("bytes"),
    "tensor": dtf.TensorFeature((None, None), "int16"),
    "steps/reward": dtf.VarLenFeature("float32"),
    "steps/info/id": dtf.FixedLenFeature((), "int32"),
}
AXES = {"image": ("height", "width", "channel")}


def arrays() -> dict[str, Any]:
    tensors = np.empty(NROWS, object)
    tensors[:] = [np.full((row % 3, 2), row, np.int16) for row in range(NROWS)]
    return {
        "label": np.arange(NROWS) * 7 % NROWS,
        "image": np.arange(NROWS * 60).reshape(NROWS, 4, 5, 3).astype(np.uint8),
        "text": [f"ä{row}" for row in range(NROWS)],
        "blob": [b"\0" * (row % 3) for row in range(NROWS)],
        "tokens": [list(range(row % 4)) for row in range(NROWS)],
        "names": [[b"a\0", b""][: row % 3] for row in range(NROWS)],
        "tensor": tensors,
        "steps/reward": [[0.5] * (row % 2) for row in range(NROWS)],
        "steps/info/id": np.arange(NROWS, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    pattern = folder / "train-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord(arrays(), pattern, features=FEATURES, records_per_shard=SHARD_ROWS)
    return folder


@pytest.fixture
def shards(written: Path, tmp_path: Path) -> str:
    """Return the pattern of shards that a test may damage."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "train-*.tfrecord")


@pytest.fixture
def opened(shards: str, xarray_engine: str) -> Any:
    return xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, dimension_names=AXES)


def damage_all_but(shards: str, kept: int) -> None:
    """Change a byte of the payload of every record but one: reading any other record raises an error."""
    row = 0
    for path in sorted(Path(shards).parent.glob("*.tfrecord")):
        data = bytearray(path.read_bytes())
        for offset in borders(read_payloads(path))[:-1]:
            data[offset + 12] ^= row != kept
            row += 1
        path.write_bytes(data)


def assert_same_rows(found: Any, expected: Any) -> None:
    """Compare columns, of objects too."""
    assert found.shape == expected.shape
    for one, other in zip(found.ravel(), expected.ravel(), strict=True):
        assert np.shape(one) == np.shape(other)
        assert np.array_equal(one, other)


@pytest.mark.integration
def test_the_engine_is_an_entry_point() -> None:
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    module, _, name = document["project"]["entry-points"]["xarray.backends"]["tfrecord"].partition(":")
    engine = getattr(importlib.import_module(module), name)
    for installed in entry_points(group="xarray.backends", name="tfrecord"):
        assert installed.load() is engine
    code = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('dask_tfrecord')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not {name.split(".")[1] for name in done.stdout.split()[1:]} & {"arrays", "columns", "_native", "storage"}


def test_the_engine_is_listed_and_guesses_by_the_name(xarray_engine: str, shards: str) -> None:
    engine = xr.backends.list_engines()[xarray_engine]
    assert "TFRecord" in engine.description and engine.url.startswith("https://") and engine.supports_groups
    assert {"filename_or_obj", "drop_variables", "features"} <= set(engine.open_dataset_parameters)
    for suffix in (".tfrecord", ".tfrecords", ".tfrec"):
        assert engine.guess_can_open(f"a{suffix}") and engine.guess_can_open(Path(f"b/a{suffix}.gz"))
    others = "a.tfrecord.zip", "a.gz", "a.nc", "a.tfrecord-00000-of-00001", "tfrecord", io.BytesIO(), ["a.tfrecord"]
    assert not any(map(engine.guess_can_open, others))
    assert xr.open_dataset(shards).sizes["record"] == NROWS


@pytest.mark.parametrize("together", [False, True])
def test_to_xarray_has_named_dimensions_and_attributes(shards: str, together: bool) -> None:
    classes = dtf.Schema(FEATURES, classes={"label": ["cat", "dog"]})
    ds = dtf.read_tfrecord(shards, classes)
    labelled = ds.to_xarray(coords=["label"], dimension_names=AXES, together=together)
    assert set(labelled.coords) == {"label"} and "steps.info.id" in labelled
    assert labelled["image"].dims == ("record", "height", "width", "channel")
    expected = {"feature": "label", "feature_class": "FixedLenFeature", "class_names": ["cat", "dog"]}
    assert labelled["label"].attrs == expected
    assert all(array.chunks[0] == (10, 10, 3) for array in labelled.data_vars.values())
    assert ds.to_xarray()["image"].dims == ("record", "image.dim_1", "image.dim_2", "image.dim_3")
    computed = ds.compute()
    for name in ds:
        assert labelled[name.replace("/", ".")].dtype == computed[name].dtype
        assert_same_rows(labelled[name.replace("/", ".")].values, computed[name])
        # A second selection applies to a chunk, where NumPy would return the object itself.
        for one in (labelled.isel(record=12), labelled.isel(record=[3, 12]).isel(record=1)):
            found = one[name.replace("/", ".")].compute()
            expected_row = computed[name][12]
            assert found.dtype == computed[name].dtype
            assert np.array_equal(found.item() if found.dtype == object else found.values, expected_row)


def test_one_record_is_read_alone(shards: str, xarray_engine: str) -> None:
    expected = xr.open_dataset(shards, engine=xarray_engine, features=FEATURES).isel(record=12).load()
    labels = arrays()["label"]
    damage_all_but(shards, 12)
    lazy = xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, chunks=None)
    chunked = xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, chunks={})
    whole = dtf.read_tfrecord(shards, FEATURES, chunks="shard").to_xarray()
    # dask_array returns an object of one row itself, if it is an array.
    for found in (lazy, whole) if PLANNED else (lazy, chunked, whole):
        row = found.isel(record=12).compute()
        assert row["label"].item() == expected["label"].item()
        assert row["tokens"].item().tolist() == expected["tokens"].item().tolist()
        assert row["image"].equals(expected["image"])
        with pytest.raises(CorruptRecordError):
            found.isel(record=[11, 12]).compute()
        row = found.assign_coords(key=("record", labels)).set_xindex("key").sel(key=labels[12])
        assert row["label"].values == labels[12]


def test_cubed_opens_shards(shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubed = pytest.importorskip("cubed")
    pytest.importorskip("cubed_xarray")
    monkeypatch.chdir(Path(shards).parent)
    (block,) = blocks("docs/how-to/xarray.md", "py")
    found: dict[str, Any] = {"xarray": xr, "features": FEATURES}
    exec(block.text, found)
    np.testing.assert_array_equal(found["opened"]["image"], arrays()["image"])
    dtf.read_tfrecord(shards, FEATURES).to_zarr(tmp_path / "s.zarr")
    stored = xr.open_zarr(tmp_path / "s.zarr", consolidated=False, **found["options"])
    assert all(isinstance(variable.data, cubed.Array) for variable in stored.variables.values())
    assert stored["text"].values.tolist() == arrays()["text"]
    copy = dtf.Dataset.from_arrays(stored[["image", "label"]]).compute()
    for name in copy:
        np.testing.assert_array_equal(copy[name], arrays()[name])


SLICES = [slice(None), slice(3, 20, 4), slice(None, None, -3), slice(5, 5), slice(9, 15, -3)]
KEYS: list[Any] = [0, -1, *SLICES, [], [1, 5, 3, 3, -2], np.arange(NROWS) % 3 == 0]


@pytest.mark.parametrize("chunks", [None, {}])
def test_outer_indexing_equals_numpy(shards: str, xarray_engine: str, chunks: Any) -> None:
    opened = xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, chunks=chunks, cache=False)
    expected = arrays()["image"]

    def numbers(size: int, key: Any) -> Any:
        return np.arange(size)[np.asarray(key, int) if isinstance(key, list) else key]

    for rows in KEYS:
        for inner in (slice(None), 2, [0, -1], [], slice(None, None, -1), slice(1, 3, -1)):
            second = np.take(expected[numbers(NROWS, rows)], numbers(4, inner), 0 if isinstance(rows, int) else 1)
            found = opened["image"][{"record": rows, "image.dim_1": inner}]
            assert found.dtype == np.uint8
            np.testing.assert_array_equal(found.values, second)
    with pytest.raises(IndexError):
        opened["image"].isel(record=NROWS).load()


def test_vectorised_indexing_equals_numpy(opened: Any) -> None:
    expected = arrays()["image"]
    rows, columns = np.array([[1, 22, 1], [-4, 0, 7]]), np.array([[0, -1, 2], [3, 3, 1]])
    pick = {"record": xr.DataArray(rows, dims=("a", "b")), "width": xr.DataArray(columns, dims=("a", "b"))}
    found = opened["image"].isel(pick).transpose("a", "b", "height", "channel")
    np.testing.assert_array_equal(found.values, expected[rows, :, columns])
    np.testing.assert_array_equal(opened["image"].isel(record=pick["record"]).values, expected[rows])
    nested = opened.isel(record=slice(2, 20)).isel(record=[5, 0]).isel(width=slice(1, 4), height=-1)
    np.testing.assert_array_equal(nested["image"].values, expected[2:20][[5, 0]][:, -1, 1:4])
    assert opened["tokens"].isel(record=pick["record"]).values[0, 1].tolist() == [0, 1]
    assert opened["tokens"].isel(record=3).item().tolist() == [0, 1, 2]
    assert opened["blob"].isel(record=2).item() == b"\0\0"
    assert opened["text"].isel(record=[2, 1]).values.tolist() == ["ä2", "ä1"]


def test_a_chunk_is_a_shard(shards: str, xarray_engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": xarray_engine, "features": FEATURES}
    opened = xr.open_dataset(shards, chunks={}, **options)
    together = xr.open_mfdataset(
        sorted(tmp_path.glob("train-*.tfrecord")), combine="nested", concat_dim="record", **options
    )
    for found in (opened, together):
        assert found.chunks["record"] == (10, 10, 3)
        np.testing.assert_array_equal(found["image"].values, arrays()["image"])
    part = xr.open_dataset(shards, chunks={"record": 20}, **options)
    assert part.chunks["record"] == (20, 3)
    assert_same_rows(part["tensor"].values, arrays()["tensor"])


def test_an_opened_dataset_is_pickled_and_not_read(shards: str, opened: Any) -> None:
    damage_all_but(shards, -1)
    again = pickle.loads(pickle.dumps(opened))
    assert again.sizes == opened.sizes and list(again) == list(opened)
    with pytest.raises(dtf.TFRecordError):
        again["label"].load()


def test_dropped_variables_are_not_decoded(shards: str, xarray_engine: str) -> None:
    wrong = {**FEATURES, "label": dtf.FixedLenSequenceFeature((), "float32", allow_missing=True)}
    with pytest.raises(dtf.FeatureError, match="label"):
        # Its longest row is counted when shards are opened.
        xr.open_dataset(shards, engine=xarray_engine, features=wrong)
    dropped = ["label", "steps.reward", "steps/info/id", "unknown"]
    opened = xr.open_dataset(shards, engine=xarray_engine, features=wrong, drop_variables=dropped, coords=["label"])
    assert not {"label", "steps.reward", "steps.info.id"} & {*opened.variables} and "image" in opened
    schema = dtf.Schema(FEATURES)
    assert "image" not in xr.open_dataset(shards, engine=xarray_engine, features=schema, drop_variables="image")


def test_nested_names_become_groups(shards: str, xarray_engine: str) -> None:
    options: dict[str, Any] = {"engine": xarray_engine, "features": FEATURES}
    for chunks in (None, {}):
        tree = xr.open_datatree(shards, coords=["label"], chunks=chunks, **options)
        assert set(tree.groups) == {"/", "/steps", "/steps/info"}
        assert tree["steps/info/id"].values.tolist() == list(range(NROWS))
        assert "label" in tree.coords
        assert_same_rows(tree["image"].values, arrays()["image"])
    groups = xr.open_groups(shards, **options)
    assert {path: len(group) for path, group in groups.items()} == {"/": 7, "/steps": 1, "/steps/info": 1}
    part = xr.open_dataset(shards, group="steps/info", **options)
    assert part["id"].isel(record=-1).item() == NROWS - 1
    with pytest.raises(ValueError, match="no group 'other'; there are '/', '/steps', '/steps/info'"):
        xr.open_dataset(shards, group="other", **options)


def test_names_that_a_tree_or_a_dataset_cannot_have_are_refused(tmp_path: Path, xarray_engine: str) -> None:
    same = {"a": np.arange(2), "a/b": np.arange(2), "a.b": np.arange(2)}
    dtf.to_tfrecord(same, tmp_path / "x.tfrecord")
    with pytest.raises(SchemaError, match=r"columns \['a.b', 'a/b'\] would all be the variable 'a.b'"):
        xr.open_dataset(tmp_path / "x.tfrecord")
    with pytest.raises(SchemaError, match="column 'a' has the name of a group"):
        xr.open_datatree(tmp_path / "x.tfrecord", columns=["a", "a/b"])
    record = dtf.Dataset.from_arrays(
        {"record": np.arange(3), "b": np.ones((3, 2), np.float32), "b.dim_1": np.arange(3)}
    )
    assert record.to_xarray()["b"].dims == ("record%", "b.dim_1%")
    indexed = record.to_xarray(coords=["record"])
    assert indexed.sel(record=2)["b.dim_1"].values == 2


def test_arguments_are_checked(shards: str, xarray_engine: str) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES)
    with pytest.raises(ValueError, match="counts=None"):
        dtf.read_tfrecord(shards, FEATURES, counts=None).to_xarray()
    with pytest.raises(ValueError, match="rows are not counted: open with counts='auto'"):
        xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, counts=None)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"coords": "label"}, ValueError, "coords must be a list of columns"),
        ({"coords": ["lable"]}, UnknownFeatureError, "did you mean 'label'"),
        ({"dimension_names": {"x": ()}}, UnknownFeatureError, "no column 'x'"),
        ({"dimension_names": {"image": ("a", "b")}}, ValueError, "has 2 names"),
        ({"dimension_names": {"image": ("a", "b", "a")}}, ValueError, "the same name"),
        ({"dimension_names": {"image": "abc"}}, ValueError, "a tuple of names"),
        ({"dimension_names": {"image": ("a", "b", "record")}}, ValueError, "the same name"),
    ]
    for options, error, text in wrong:
        with pytest.raises(error, match=text):
            ds.to_xarray(**options)
        with pytest.raises(error, match=text):
            xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, **options)
    two = dtf.Dataset.from_arrays({"a": np.zeros((2, 3), np.int64), "b": np.zeros((2, 4), np.int64)})
    with pytest.raises(ValueError, match="'x' has length 3 in 'a' and length 4 in 'b'"):
        two.to_xarray(dimension_names={"a": ["x"], "b": ["x"]})
    with pytest.raises(TypeError, match="opens paths and URLs of shards; got BytesIO"):
        xr.open_dataset(io.BytesIO(b""), engine=xarray_engine)


@pytest.mark.parametrize("held", mostly_slow([False, True], 2))
def test_flat_columns_are_those_of_a_store(shards: str, tmp_path: Path, held: bool) -> None:
    more: dict[str, Any] = {"steps/x": dtf.VarLenFeature("int64", shape=(-1, 2)), "words": dtf.TextFeature(count=-1)}
    added = {
        "steps/x": [np.full((row % 2, 2), row) for row in range(NROWS)],
        "words": [["a", "bc"][: row % 3] for row in range(NROWS)],
    }
    pattern = tmp_path / "all-{shard:d}.tfrecord"
    dtf.to_tfrecord(arrays() | added, pattern, features=FEATURES | more, records_per_shard=SHARD_ROWS)
    schema = dtf.Schema(FEATURES | more, classes={"tokens": ["x", "y"]}, groups={"steps": ["steps/reward", "steps/x"]})
    ds = dtf.read_tfrecord(tmp_path / "all-*.tfrecord", schema)
    names = {**AXES, "steps/x": ["axis"]}
    flat = (ds.persist() if held else ds).to_xarray(["label"], dimension_names=names, ragged="flat")
    ds.to_zarr(tmp_path / "own.zarr", dimension_names=names)
    flat.to_zarr(tmp_path / "xarray.zarr", consolidated=False)
    written = xr.open_zarr(tmp_path / "xarray.zarr", consolidated=False)
    expected = xr.open_zarr(tmp_path / "own.zarr").set_coords("label")
    expected.attrs.clear()
    assert flat.chunks["record"] == (10, 10, 3)
    for found in (flat, written):
        xr.testing.assert_identical(found.compute(), expected.compute())
        assert {name: array.dtype for name, array in found.items()} == {
            name: array.dtype for name, array in expected.items()
        }
    assert flat["steps.row_splits"].attrs["divides"] == "steps"


def test_flat_columns_of_unusual_data_sets(shards: str) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES)
    coordinates = ds.to_xarray(["blob"], ragged="flat")
    assert coordinates["blob"].dtype == object and "blob.values" not in coordinates
    empty = dtf.Dataset.from_arrays({"a": [[1], []]}).rows[:0].to_xarray(ragged="flat")
    assert empty["a.values"].shape == (0,) and empty["a.row_splits"].values.tolist() == [0]
    grouped = ds[["tokens", "steps/reward"]].schema.with_groups({"both": ["tokens", "steps/reward"]})
    with pytest.raises(dtf.FeatureError, match="features of group 'both' must have the same number of items"):
        dtf.read_tfrecord(shards, grouped).to_xarray(ragged="flat")
    with pytest.raises(ValueError, match="ragged must be 'objects' or 'flat'; got 'padded'"):
        ds.to_xarray(ragged="padded")  # type: ignore[arg-type]


# The last test: the client of a module is used by all tests after the first that requests it.
@pytest.mark.integration
@pytest.mark.usefixtures("client")
def test_chunks_are_computed_on_a_cluster(shards: str, xarray_engine: str) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES)
    opened = xr.open_dataset(shards, engine=xarray_engine, features=FEATURES, chunks={})
    expected = arrays()
    for labelled in (ds.to_xarray(), ds.to_xarray(together=True), opened):
        held = labelled.persist()
        assert_same_rows(held["tensor"].values, expected["tensor"])
        assert_same_rows(held["text"].values, np.array(expected["text"], object))
        if labelled is not opened:
            # The class of its chunks is known to the workers.
            assert held["tokens"].isel(record=3).compute().item().tolist() == [0, 1, 2]
    assert ds.to_xarray(ragged="flat")["tokens.row_splits"].values[-1] == sum(map(len, expected["tokens"]))


NETCDF_ATTRIBUTES = str | bytes | int | float | np.number | np.ndarray | list | tuple


OBJECTS: dict[str, Callable[[Path], xr.Dataset]] = {
    "lazy": lambda path: dtf.read_tfrecord(path).to_xarray(),
    "together": lambda path: dtf.read_tfrecord(path).to_xarray(together=True),
    "persisted": lambda path: dtf.read_tfrecord(path).persist().to_xarray(),
    "loaded": lambda path: dtf.read_tfrecord(path).to_xarray().load(),
    "computed": lambda path: dtf.read_tfrecord(path).to_xarray().compute(),
    "opened": lambda path: xr.open_dataset(path),
    "opened in chunks": lambda path: xr.open_dataset(path, chunks={}),
    "opened and loaded": lambda path: xr.open_dataset(path).load(),
    "selected": lambda path: xr.open_dataset(path).isel(record=[1, 0]),
    "joined": lambda path: xr.concat([xr.open_dataset(path)] * 2, "record"),
}


@pytest.mark.parametrize("name", ["raw", "tokens"])
@pytest.mark.parametrize("way", OBJECTS)
def test_xarray_writes_no_objects_that_it_would_change(tmp_path: Path, way: str, name: str) -> None:
    values = [b"x\0\0", b"", b"\xff\0"]
    dtf.to_tfrecord({"raw": values, "tokens": [[1], [2, 3], []], "n": np.arange(3)}, tmp_path / "a.tfrecord")
    opened = OBJECTS[way](tmp_path / "a.tfrecord")
    assert opened["raw"].dtype == object and opened["raw"].values.tolist()[0] in values
    said = "cut zeros at the end: write ds.to_zarr" if name == "raw" else r"differ in length.*ragged='flat'"
    with pytest.raises(TypeError, match=said):
        opened[[name, "n"]].to_zarr(tmp_path / "b.zarr", consolidated=False)
    if importlib.util.find_spec("h5netcdf"):
        with pytest.raises(TypeError, match=said):
            opened[[name, "n"]].to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    if name == "tokens":
        if way in ("lazy", "together", "persisted"):
            with pytest.raises(TypeError, match=r"differ in length or shape: write ds.to_xarray\(ragged='flat'\)"):
                opened[name].mean().compute()
        return
    with warnings.catch_warnings():
        # zarr does not specify bytes that end at a zero.
        warnings.simplefilter("ignore")
        opened[["raw"]].to_zarr(tmp_path / "c.zarr", consolidated=False, encoding={"raw": {"dtype": "S3"}})
        found = xr.open_zarr(tmp_path / "c.zarr", consolidated=False)["raw"].values.tolist()
    assert found == [value.rstrip(b"\0") for value in opened["raw"].values.tolist()]


@pytest.mark.parametrize("kind", ["to_zarr", "virtual"])
def test_stores_are_saved_as_netcdf(tmp_path: Path, kind: str) -> None:
    """NetCDF does not store mappings as attributes."""
    if kind == "to_zarr":
        dtf.to_zarr({"x": np.ones((3, 2), np.float32), "y": [[1], [2, 3], []]}, tmp_path / "a.zarr")
        opened = xr.open_zarr(tmp_path / "a.zarr")
    else:
        dtf.to_tfrecord({"x": np.ones((3, 2), np.float32)}, tmp_path / "a.tfrecord")
        attributes = dtf.virtual_zarr(tmp_path / "a.tfrecord").attributes
        opened = xr.Dataset({"x": ("r", np.ones(3))}, attrs=dict(attributes))
    for held in (opened.attrs, *(variable.attrs for variable in opened.variables.values())):
        assert all(isinstance(value, NETCDF_ATTRIBUTES) for value in held.values()), held
    if importlib.util.find_spec("h5netcdf"):
        opened.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as read:
            assert "dask_tfrecord" in read.attrs
