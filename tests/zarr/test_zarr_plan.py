"""Plans of conversions: what they show is what is written, and what they state is what it takes.

Names of axes, fill values and attributes are read by zarr and xarray.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
import zarr.codecs
from dask.callbacks import Callback
from dask.distributed import Client, LocalCluster
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import servers
from support.commands import run, shown
from support.few import mostly_slow
from support.object_stores import open_obstore
from support.store_round_trip import assert_same, files_of
from support.tasks import tasks_of

import dask_tfrecord as dtf
from dask_tfrecord.errors import UnknownFeatureError
from dask_tfrecord.features.images.registry import FORMATS
from dask_tfrecord.stores.zarr.zarr_plan import Requests

xr = pytest.importorskip("xarray")

SCHEMA = dtf.Schema(
    {
        "label": dtf.FixedLenFeature((), "int64"),
        "vector": dtf.FixedLenFeature((3,), "float32"),
        "title": dtf.TextFeature(),
        "tokens": dtf.VarLenFeature("int64"),
        "words": dtf.VarLenFeature("bytes"),
    }
)
MIB = 2**20


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    columns = {
        "label": np.arange(62),
        "vector": np.array([[row, 1, 2] for row in range(62)], "f4"),
        "title": ["title"] * 62,
        "tokens": [list(range(row % 7)) for row in range(62)],
        "words": [[b"x" * (row % 37)] * (row % 3) for row in range(62)],
    }
    dtf.to_tfrecord(columns, f"{folder}/part-{{shard}}", features=SCHEMA, records_per_shard=37)
    return folder


@pytest.fixture
def ds(shards: Path) -> dtf.Dataset:
    return dtf.read_tfrecord(shards, SCHEMA)


def codecs(array: Any) -> list[str]:
    return [type(codec).__name__ for codec in (*array.filters, *array.compressors)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"chunks": 7},
    {"chunks": 4, "shards": 20},
    {"shards": 30},
    {"chunks": {"label": 5}},
    {"chunks": {"label": 5, "tokens": 20}, "shards": {"tokens": 40}},
    {"chunks": {"tokens.values": 11, "vector": 1}},
    {"chunks": {"words.byte_splits": 3}, "shards": {"words.byte_splits": 9, "title": 6}},
    {"chunks": "200 B"},
    {"chunks": "100 B", "shards": "1 kB"},
    {"chunks": {"vector": 3}, "shards": "1000 B"},
    {"shards": "1 GiB"},
]


@pytest.mark.parametrize("options", mostly_slow(OPTIONS, 5), ids=str)
def test_what_is_planned_is_what_is_written(ds: dtf.Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    with tasks_of("tfrecord-count-items") as counted:
        plan = ds.plan_zarr(**options)
    assert counted
    ds.to_zarr(tmp_path / "at_once.zarr", **options)
    with tasks_of("tfrecord-count-items") as counted, tasks_of("tfrecord-write-units") as tasks:
        written = plan.to_zarr(tmp_path / "planned.zarr", compute=False)
        assert written is not None
        written.compute()
    assert not counted
    assert len(tasks) == plan.tasks <= plan.write_units
    assert files_of(tmp_path / "planned.zarr") == files_of(tmp_path / "at_once.zarr")
    group: Any = zarr.open_group(tmp_path / "planned.zarr", mode="r")
    assert json.loads(group.attrs["dask_tfrecord"])["unit_rows"] == plan.unit_rows
    assert set(group.array_keys()) == {array.name for array in plan.arrays}
    for array in plan.arrays:
        made = group[array.name]
        assert (made.shape, made.chunks, made.shards) == (array.shape, array.chunks, array.shards)
        assert made.metadata.dimension_names == array.dimensions
        assert not array.exact or made.nbytes == array.nbytes
    assert_same(dtf.from_zarr(tmp_path / "planned.zarr").compute(), ds.compute())


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, 2, 3, 6, 12, 60]), max_size=4),
    st.none() | st.integers(1, 50_000),
    st.integers(0, 300),
    st.integers(1, 100),
)
@example({"a": 2, "b": 3}, None, 10, 1)
def test_features_share_a_unit_of_rows(chunks: dict[str, int], shards: int | None, rows: int, width: int) -> None:
    arrays = {name: np.zeros((rows, width)) for name in "abcd"}
    options: dict[str, Any] = {"chunks": chunks, "shards": None if shards is None else f"{shards} B"}
    if any(max(chunks.values()) % size for size in chunks.values()):
        with pytest.raises(ValueError, match="one task writes whole chunks of all features"):
            dtf.plan_zarr(arrays, **options)
        return
    plan = dtf.plan_zarr(arrays, **options)
    for array in plan.arrays:
        chunk, write = array.chunks[0], (array.shards or array.chunks)[0]
        assert chunk == chunks.get(array.name, chunk)
        assert write % chunk == 0 and 0 in (plan.unit_rows % write, write % plan.unit_rows)


def test_small_columns_have_few_chunks(tmp_path: Path, set_limits: Any) -> None:
    """Labels in memory fill their chunks; labels of shards are written with the rows that one task reads."""
    arrays = {"image": np.zeros((3750, 128, 128, 3), "u1"), "label": np.zeros(3750, "i8")}
    chunks = {array.name: array.chunks[0] for array in dtf.plan_zarr(arrays).arrays}
    assert chunks["image"] < 100 and chunks["label"] >= 3750
    # Rows that are not small have objects of a MiB, whatever rows are next to them.
    wide = {"target": np.zeros((40, 1 << 21), "f4"), "sequence": np.zeros((40, 1 << 17), "f4")}
    assert {array.name: array.chunks[0] for array in dtf.plan_zarr(wide).arrays} == {"target": 1, "sequence": 2}
    set_limits(write_unit_nbytes=1 << 14, least_unit_nbytes=1 << 12, small_rows_nbytes=1 << 10, chunk_nbytes=1 << 11)
    features: Any = {"x": dtf.RawFeature((256,), "uint8"), "label": dtf.FixedLenFeature((), "int64")}
    columns = {"x": np.zeros((1024, 256), "u1"), "label": np.arange(1024)}
    dtf.to_tfrecord(columns, tmp_path / "x", features=features)
    plan = dtf.read_tfrecord(tmp_path / "x", features).plan_zarr()
    chunks = {array.name: array.chunks[0] for array in plan.arrays}
    assert chunks == {"x": 16, "label": 128}
    assert plan.tasks == 8


def test_targets_are_met() -> None:
    arrays = {"x": np.zeros((100_000, 16)), "y": np.zeros(100_000)}
    plan = dtf.plan_zarr(arrays, chunks="1 MiB", shards="8 MiB")
    assert max(math.prod(array.chunks) * 8 for array in plan.arrays) == MIB
    assert max(math.prod(array.shards or ()) * 8 for array in plan.arrays) == 8 * MIB


# --------------------------------------------------------------------------------------------------------- codecs


def test_codecs_by_feature_and_by_array(ds: dtf.Dataset, tmp_path: Path) -> None:
    plan = ds.plan_zarr(
        compressors={
            "label": None,
            "vector": zarr.codecs.ZstdCodec(level=1),
            "tokens.values": zarr.codecs.GzipCodec(),
            "words.row_splits": None,
        },
        filters={"vector": zarr.codecs.TransposeCodec(order=(1, 0))},
    )
    plan.to_zarr(tmp_path / "store.zarr")
    group = zarr.open_group(tmp_path / "store.zarr", mode="r")
    others = {name: ["BloscCodec"] for name in ("title", "tokens.row_splits", "words.values", "words.byte_splits")}
    assert {name: codecs(array) for name, array in group.arrays()} == others | {
        "label": [],
        "vector": ["TransposeCodec", "ZstdCodec"],
        "tokens.values": ["GzipCodec"],
        "words.row_splits": [],
    }
    # Items are shuffled by their size.
    (blosc,) = zarr.open_array(tmp_path / "store.zarr", path="tokens.row_splits").compressors
    # From zarr 3.4 on the names are plain strings.
    cname, shuffle = (getattr(name, "value", name) for name in (blosc.cname, blosc.shuffle))
    assert (blosc.typesize, cname, shuffle) == (8, "lz4", "shuffle")
    assert dtf.from_zarr(tmp_path / "store.zarr")["vector"].compute().tolist() == ds["vector"].compute().tolist()
    assert json.loads(plan.to_json())["arrays"][1]["compressors"][0]["name"] == "zstd"


def test_bits_of_small_numbers_are_compressed(tmp_path: Path) -> None:
    """Pixels, bases and masks; not text in bytes, and not larger numbers."""
    rows = 3
    arrays = {
        "u1": np.zeros((rows, 4), "u1"),
        "i1": np.zeros((rows, 4), "i1"),
        "bool": np.zeros((rows, 4), bool),
        "u2": np.zeros((rows, 4), "u2"),
        "f4": np.zeros((rows, 4), "f4"),
        "name": [b"ab"] * rows,
        "text": np.array(["ab"] * rows, np.dtypes.StringDType()),
    }
    dtf.to_zarr(arrays, tmp_path / "store.zarr")
    group = zarr.open_group(tmp_path / "store.zarr", mode="r")
    shuffles = {
        name: array.metadata.to_dict()["codecs"][-1]["configuration"]["shuffle"] for name, array in group.arrays()
    }
    by_bits = {name for name, shuffle in shuffles.items() if getattr(shuffle, "value", shuffle) == "bitshuffle"}
    assert by_bits == {"u1", "i1", "bool"} and "name.values" in shuffles


@pytest.mark.parametrize(
    ("compressors", "wanted"), [({"name": "gzip", "configuration": {"level": 1}}, ["GzipCodec"]), ({"name": None}, [])]
)
def test_a_codec_may_be_a_mapping(tmp_path: Path, compressors: Any, wanted: list[str]) -> None:
    """A feature may have the name of its key."""
    dtf.to_zarr({"name": np.arange(5)}, tmp_path / "store.zarr", compressors=compressors)
    assert codecs(zarr.open_array(tmp_path / "store.zarr", path="name")) == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({option: {"lable": 4}}, f"{option}: .*lable") for option in ("chunks", "shards", "compressors", "filters")),
        *(({option: {"tokens.row_splits": 4}}, f"{option}: .*tokens.row_splits") for option in ("chunks", "shards")),
        ({"dimension_names": {"vektor": ("x",)}}, "dimension_names: unknown feature 'vektor'; did you mean 'vector'"),
        ({"fill_values": {"lable": 1}}, "fill_values: unknown feature or flat array 'lable'; did you mean 'label'"),
    ],
)
def test_unknown_names_in_options(ds: dtf.Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownFeatureError, match=said):
        ds.plan_zarr(**options)


# --------------------------------------------------------------------------------------------------------- memory


def test_a_conversion_beyond_the_memory_limit_is_refused(tmp_path: Path) -> None:
    arrays = {"x": da.zeros((4000, 1 << 14), chunks=(100, -1))}
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = dtf.plan_zarr(arrays, chunks=400, memory_limit="450 MiB")
        assert not plan.fits
        # 300 MiB whatever is written; two threads, three times 50 MiB and what they read.
        assert plan.memory.unit_nbytes == 400 * (1 << 17) == 50 * MIB
        assert plan.memory.peak_nbytes == 300 * MIB + 2 * (3 * 50 * MIB + plan.memory.read_nbytes)
        said = r"and has 450.00 MiB. Units of rows may take.*chunks=.* Raise the memory limit to 732 MiB"
        with pytest.raises(ValueError, match=said):
            plan.to_zarr(tmp_path / "store.zarr")
        with pytest.raises(ValueError, match=said):
            dtf.to_zarr(arrays, tmp_path / "store.zarr", chunks=400, memory_limit="450 MiB")
    assert not list(tmp_path.iterdir())
    assert "DOES NOT FIT" in repr(plan)
    assert "DOES NOT FIT" in plan._repr_html_()
    assert dtf.plan_zarr(arrays, chunks=400).fits
    with dask.config.set(scheduler="sync"):
        assert dtf.plan_zarr(arrays, chunks=400).memory.threads == 1


def test_many_tasks_take_memory_where_they_are_held() -> None:
    arrays = {"x": np.zeros(20_000)}

    def overhead(scheduler: str, chunks: int) -> int:
        with dask.config.set(scheduler=scheduler, num_workers=2):
            return dtf.plan_zarr(arrays, chunks=chunks).memory.overhead_nbytes

    few, many = overhead("threads", 5), overhead("threads", 1)
    assert (few, overhead("processes", 1)) == (100 * MIB, 100 * MIB)
    # 8 KiB per task; the overhead already includes 40 MiB of them.
    assert many == 60 * MIB + 20_000 * 8192


@pytest.mark.integration
def test_the_limit_is_that_of_the_workers(tmp_path: Path) -> None:
    arrays = {"x": da.zeros((4000, 1 << 17), chunks=(10, -1))}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, memory_limit="3 GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        plan = dtf.plan_zarr(arrays, chunks=1000)
        assert (plan.memory.threads, plan.memory_limit) == (3, 3072 * MIB)
        with pytest.raises(ValueError, match=r"and has 3\.00 GiB"):
            plan.to_zarr(tmp_path / "store.zarr")
        assert dtf.plan_zarr(arrays, chunks=1000, memory_limit=None).fits
        assert dtf.plan_zarr(arrays, chunks=10).fits
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------- requests


@pytest.mark.integration
@pytest.mark.parametrize("rows", ["shards", "few", "many", "constant"])
def test_the_requests_are_those_that_an_object_store_gets(
    rows: str, ds: dtf.Dataset, bucket: tuple[Any, str, servers.Log], set_limits: Callable[..., None]
) -> None:
    # A process checks its claim once, however slow this machine is.
    set_limits(owner_check=1e9, heartbeat=1e9)
    source: Any = {
        "shards": ds,
        "few": {"x": np.arange(30)},
        "many": {"x": np.arange(30), "empty": np.zeros((30, 0))},
        "constant": xr.Dataset({"x": ("record", np.arange(30))}, {"band": ("band", [3, 4])}),
    }[rows]
    _, address, log = bucket
    store = zarr.storage.ObjectStore(open_obstore(address, "b", prefix=f"plan-{rows}"))
    plan = dtf.plan_zarr(source, chunks=1 if rows == "many" else 10)
    log.clear()
    plan.to_zarr(store)
    found = Counter(
        "LIST" if "list-type" in each.path else each.method for each in log.asked if "delete" not in each.path
    )
    assert plan.requests == Requests(found["PUT"], found["GET"] + found["HEAD"], found["LIST"])


def test_requests_have_a_price_and_a_local_store_has_none(shards: Path, tmp_path: Path) -> None:
    assert str(Requests(1_000_000, 9, 1_000)) == (
        "1,000,000 PUT, 9 GET and 1,000 LIST requests, about 5.01 US dollars on S3"
    )
    plan = dtf.read_tfrecord(shards, SCHEMA)[["label"]].plan_zarr(chunks=20)
    line = "on an object store: 13 PUT, 8 GET and 3 LIST requests, less than 0.01 US dollars on S3"
    assert line in repr(plan).splitlines() and line in plan._repr_html_()
    assert json.loads(plan.to_json())["requests"] == {"put": 13, "get": 8, "list": 3}
    for store, printed in (("memory://a", True), (tmp_path / "a", False), (f"file://{tmp_path}/a", False)):
        assert ("LIST" in shown("to-zarr", shards, store, "--plan")) is printed


# --------------------------------------------------------------------------------------------------------- people


def test_it_is_displayed_as_text_as_html_and_as_json(ds: dtf.Dataset) -> None:
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = ds.plan_zarr(chunks=20)
    title, header, *lines = repr(plan).split("\n")
    assert title.startswith("<dask_tfrecord.ZarrPlan: 62 rows, 8 arrays, about ")
    assert "in 16 write units of up to 20 rows, by 4 tasks" in title
    assert header.split() == ["array", "dtype", "shape", "dimensions", "chunks", "shards", "bytes", "codecs"]
    vector = next(line for line in lines if line.split()[0] == "vector")
    assert re.split(" {2,}", vector.strip())[1:7] == [
        "float32",
        "62 x 3",
        "record, vector.dim_1",
        "20 x 3",
        "-",
        "744 B",
    ]
    assert "(no limit): 200.00 MiB imports + 100.00 MiB reading and codecs + 2 threads * (3 * " in lines[-1]
    # A line for each array, the codecs once, and the memory as a table.
    html = plan._repr_html_()
    cells = re.findall(r"<t[dh][^>]*>([^<]+)</t[dh]>", html)
    header, *_, last = (cells[start : start + 6] for start in range(0, 6 * (len(plan.arrays) + 1), 6))
    assert header == ["array", "dtype", "shape", "chunks", "shards", "bytes"]
    assert last[0] == plan.arrays[-1].name
    memory = cells[6 * (len(plan.arrays) + 1) :]
    assert memory[:4] == ["memory", "bytes", "imports", "200.00 MiB"]
    assert memory[-2] == "peak of a worker, no limit"
    assert html.count("blosc(") == 1
    assert "ZarrPlan" not in html and "Zarr group: 62 rows, 8 arrays, about " in html
    assert "<b>" not in dtf.plan_zarr({"<b>&": np.zeros(3)})._repr_html_()
    found = json.loads(plan.to_json())
    assert (found["nrows"], found["unit_rows"], found["write_units"]) == (62, 20, plan.write_units)
    assert found["nbytes"] == sum(array["nbytes"] for array in found["arrays"])
    assert found["memory"]["peak_nbytes"] == plan.memory.peak_nbytes


def test_the_command_prints_it_and_writes_nothing(shards: Path, tmp_path: Path) -> None:
    command = ["to-zarr", shards, tmp_path / "store.zarr", "--memory-limit"]
    text = shown(*command, "1GB", "--plan", "--chunks", 20)
    assert text.startswith("Zarr group: 62 rows") and "(limit 0.93 GiB)" in text
    result = run(*command, "1MB")
    assert result.exit_code == 1 and "Smaller chunks do not help" in result.stderr
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------- images


class Counted(dtf.ImageFormat):
    """Format whose decoded files are counted: a line of height and width, then pixels of RGB."""

    name = "Counted"

    def __init__(self) -> None:
        self.decoded = 0

    def is_start(self, data: bytes) -> bool:
        return data.startswith(b"counted ")

    def read_shape(self, data: bytes) -> tuple[int, int, int]:
        _, height, width = data.split(b"\n")[0].split()
        return int(height), int(width), 3

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        self.decoded += 1
        return np.frombuffer(data.split(b"\n", 1)[1], np.uint8).reshape(self.read_shape(data))


def counted_picture(width: int, height: int) -> bytes:
    return b"counted %d %d\n" % (height, width) + bytes(range(width * height * 3))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    # Other tests of this process list the formats.
    monkeypatch.setattr(FORMATS, "added", {})
    dtf.register_image_format(found := Counted())
    return found


@pytest.mark.parametrize(
    "feature", [dtf.ImageFeature(), dtf.ImageFeature((-1, 4, 5, 3)), dtf.ImageFeature(size=(7, 3))], ids=str
)
def test_images_are_decoded_once(tmp_path: Path, counted: Counted, feature: dtf.ImageFeature) -> None:
    files = [
        [counted_picture(5, 4)] * (row % 3) if feature.ragged_rank else [counted_picture(row % 20 + 1, 4)]
        for row in range(30)
    ]
    dtf.to_tfrecord({"image": files}, tmp_path / "shard", features={"image": dtf.VarLenFeature("bytes")})
    ds = dtf.read_tfrecord(tmp_path / "shard", {"image": feature})
    wanted = ds["image"].compute()
    # Rows across the end of a task would be read by two tasks.
    plan = ds.plan_zarr(chunks={"image": 7, "image.values": 100_000})  # looks at the first rows
    counted.decoded = 0
    with dask.config.set(scheduler="sync"):
        plan.to_zarr(tmp_path / "store.zarr")
    assert counted.decoded == sum(map(len, files))
    found = dtf.from_zarr(tmp_path / "store.zarr")["image"].compute()
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_counting_decodes_no_image(tmp_path: Path, counted: Counted) -> None:
    files = [counted_picture(row % 9 + 1, 3) for row in range(200)]
    dtf.to_tfrecord({"image": files}, tmp_path / "shard")
    ds = dtf.read_tfrecord(tmp_path / "shard", {"image": dtf.ImageFeature()})
    plan = ds.plan_zarr()
    # Of the first rows the bytes are measured.
    assert counted.decoded <= 64
    assert {array.name: array.shape for array in plan.arrays} == {
        "image.values": (sum((row % 9 + 1) * 9 for row in range(200)),),
        "image.row_splits": (201,),
        "image.shapes": (200, 3),
    }


# ------------------------------------------------------------------------------- what others read of a store

LABELLED = dtf.Schema(
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
AXES = {"image": ("height", "width", "channel"), "depth": ["height", "width"], "boxes": ("corner",)}
ROWS = 11


LABELS = [-1 if row % 3 == 0 else row % 2 for row in range(ROWS)]


@pytest.fixture(scope="module")
def labelled() -> dtf.Dataset:
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
    return dtf.Dataset.from_arrays(columns, LABELLED).map_blocks(dict, LABELLED)


# ---------------------------------------------------------------------------------------------------- names of axes


def test_axes_have_the_names_given(labelled: dtf.Dataset, tmp_path: Path) -> None:
    plan = labelled.plan_zarr(dimension_names=AXES)
    labelled.to_zarr(tmp_path / "store.zarr", dimension_names=AXES, chunks=3)
    with xr.open_zarr(tmp_path / "store.zarr") as opened:
        assert not opened.coords
        dims = {name: array.dims for name, array in opened.items()}
        assert dims == {array.name: array.dimensions for array in plan.arrays}
        assert dims["image"] == ("record", "height", "width", "channel")
        assert dims["boxes.values"] == ("boxes.value", "corner")
        assert dims["raw.row_splits"] == ("raw.row_split",)
        found = opened.isel(height=1, channel=0)["image"].to_numpy().tolist()
        assert found == [[row + 6, row + 8, row + 10] for row in range(ROWS)]
    assert "record, height, width, channel" in repr(plan)
    told = {array["name"]: array["dimensions"] for array in json.loads(plan.to_json())["arrays"]}
    assert told["boxes.values"] == ["boxes.value", "corner"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"image": ("height", "width")}, r"has 2 names, \('height', 'width'\), where a row has the shape"),
        ({"boxes": ()}, "has 0 names, .*, where an item has the shape"),
        ({"raw": ("x",)}, "has 1 names, .*, where an item has the shape"),
        ({"image": "hwc"}, "tuple of names, one for each axis; got 'hwc'"),
        ({"boxes": (1,)}, r"tuple of names, one for each axis; got \(1,\)"),
        ({"boxes": ("",)}, "tuple of names"),
        ({"image": ("x", "y", "x")}, "gives two axes of an array the same name"),
        ({"image": ("height", "width", "c"), "depth": ("width", "height")}, "'width' has length 3 in 'image' and len"),
        ({"boxes": ("depth.dim_2",)}, "'depth.dim_2' has length .* in 'depth' and length .* in 'boxes'"),
        ({"boxes": ("kinds.row_splits",)}, "'kinds.row_splits' is an array of the group, which xarray would read as"),
        ({"boxes": ("kinds.value",)}, "'kinds.value' is the first dimension of 'kinds.values'"),
        (["height"], "must map features to names"),
    ],
)
def test_names_that_do_not_fit(labelled: dtf.Dataset, names: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        labelled.plan_zarr(dimension_names=names)


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


def test_fill_values_are_those_given_else_defaults_else_zero(labelled: dtf.Dataset, tmp_path: Path) -> None:
    plan = labelled.plan_zarr(fill_values={"image": 255, "boxes": float("-inf"), "title": "?"}, chunks=3)
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


def test_nothing_is_masked_and_nothing_left_out(labelled: dtf.Dataset, tmp_path: Path) -> None:
    # Values that are the fill value are values, for xarray too, and chunks of them alone are written.
    given = {"depth": 1.0, "kinds": 1, "boxes": 3.0, "image": 7}
    labelled.to_zarr(tmp_path / "store.zarr", fill_values=given, chunks=2, shards=6)
    labelled.to_zarr(tmp_path / "plain.zarr", chunks=2, shards=6)
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
        ({"image": 256}, r"fill_values\['image'\]: 256 is not a value of dtype |u1"),
        ({"image": 1.5}, "1.5 is not a value"),
        ({"label": True}, "True is not a value"),
        ({"label": [1]}, r"\[1\] is not a value"),
        ({"depth": 1e39}, r"1e\+39 is not a value"),
        ({"depth": 1j}, "1j is not a value"),
        ({"title": 0}, "0 is not a value of dtype string"),
        ({"kinds.values": 0.5}, r"fill_values\['kinds.values'\]: 0.5 is not a value"),
        (-1, "must map features or flat arrays"),
    ],
)
def test_fill_values_that_do_not_fit(labelled: dtf.Dataset, values: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        labelled.plan_zarr(fill_values=values)


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


# ----------------------------------------------------------------------------------- attributes of the group


@pytest.mark.parametrize("consolidated", [True, False])
def test_consolidated_metadata_may_be_left_out(labelled: dtf.Dataset, tmp_path: Path, consolidated: bool) -> None:
    plan = labelled.plan_zarr(consolidated=consolidated)
    plan.to_zarr(tmp_path / "store.zarr")
    assert json.loads(plan.to_json())["consolidated"] is consolidated
    assert ("consolidated_metadata" in json.loads((tmp_path / "store.zarr/zarr.json").read_text())) == consolidated
    with xr.open_zarr(tmp_path / "store.zarr", consolidated=consolidated) as opened:
        assert opened["image"].shape == (ROWS, 4, 3, 2)
    assert dtf.from_zarr(tmp_path / "store.zarr")["label"].compute().tolist() == LABELS


def test_attributes_of_arrays(labelled: dtf.Dataset, tmp_path: Path) -> None:
    renamed = labelled.map_blocks(lambda blocks: {"a/b": blocks["label"]})
    renamed.to_zarr(tmp_path / "renamed.zarr")
    labelled.to_zarr(tmp_path / "store.zarr")
    with xr.open_zarr(tmp_path / "renamed.zarr") as opened:
        assert opened["a.b"].attrs == {"feature": "a/b", "feature_class": "FixedLenFeature"}
    with xr.open_zarr(tmp_path / "store.zarr") as opened:
        assert opened["label"].attrs["class_names"] == ["cat", "wild dog"]
        assert opened["kinds.values"].attrs["class_names"] == ["a", "b"]
        assert "class_names" not in opened["kinds.row_splits"].attrs | opened["image"].attrs
        assert opened["image"].attrs["feature_class"] == "RawFeature"


@pytest.mark.parametrize("installed", [True, False])
def test_the_group_records_the_release(
    labelled: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    def version(name: str) -> str:
        if name == "dask-tfrecord" and not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return f"1.2.3 of {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    labelled.to_zarr(tmp_path / "store.zarr")
    noted = json.loads(str(zarr.open_group(tmp_path / "store.zarr", mode="r").attrs["dask_tfrecord"]))
    assert noted["version"] == ("1.2.3 of dask-tfrecord" if installed else None)


# ---------------------------------------------------------------------------------------- arrays cut in another way


def test_a_rechunk_is_announced(tmp_path: Path, set_limits: Any) -> None:
    set_limits(small_rechunk_nbytes=0)
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


class Alive(Callback):  # type: ignore[misc]
    """Counts the whole chunks of a data set that are there at once, where tasks run one at a time."""

    def __init__(self) -> None:
        super().__init__(posttask=self._look)
        self.most = self.seen = 0

    def _look(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        names = [str(key[0]) for key in state["cache"] if isinstance(key, tuple)]
        chunks = sum(
            name.startswith(("tfrecord-read-and-join-", "tfrecord-join-", "tfrecord-collect-")) for name in names
        )
        self.seen += any(name.startswith("tfrecord-cut-") for name in names)
        self.most = max(self.most, chunks)


@pytest.mark.slow
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
