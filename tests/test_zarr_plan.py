"""Plans of conversions: what they show is what is written, and what they state is what it takes."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import oracle
import pytest
import zarr
import zarr.codecs
from click.testing import CliRunner
from dask.distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.few import mostly_slow

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.columns import encoded_values
from dask_tfrecord.columns.blocks import BytesBlock
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.images.pixels import decode_image
from dask_tfrecord.stores.units import RowSizes
from dask_tfrecord.stores.zarr.plan import ChunkRequest

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


def payloads(count: int) -> Iterator[bytes]:
    for row in range(count):
        message = messages.Example()
        held = message.features.feature
        held["label"].int64_list.value.append(row)
        held["vector"].float_list.value.extend([row, 1, 2])
        held["title"].bytes_list.value.append(b"title")
        held["tokens"].int64_list.value.extend(range(row % 7))
        held["words"].bytes_list.value.extend([b"x" * row] * (row % 3))
        yield message.SerializeToString()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    oracle.write_oracle(folder / "part-0", list(payloads(37)))
    oracle.write_oracle(folder / "part-1", list(payloads(25)))
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


@pytest.mark.parametrize("options", mostly_slow(OPTIONS, 3), ids=str)
def test_what_is_planned_is_what_is_written(ds: dtf.Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    plan = ds.plan_zarr(**options)
    plan.to_zarr(tmp_path / "planned.zarr")
    ds.to_zarr(tmp_path / "at_once.zarr", **options)
    for store in ("planned.zarr", "at_once.zarr"):
        group = zarr.open_group(tmp_path / store, mode="r")
        assert {name for name, _ in group.arrays()} == {array.name for array in plan.arrays}
        for array in plan.arrays:
            made: Any = group[array.name]
            assert (made.shape, made.chunks, made.shards) == (array.shape, array.chunks, array.shards)
            assert made.metadata.dimension_names == array.dimensions
            assert not array.exact or made.nbytes == array.nbytes
        back = dtf.from_zarr(tmp_path / store).compute()
        for name, wanted in ds.compute().items():
            assert [np.asarray(row).tolist() for row in back[name]] == [np.asarray(row).tolist() for row in wanted]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tasks_are_as_many_as_planned(ds: dtf.Dataset, tmp_path: Path, options: dict[str, Any]) -> None:
    plan = ds.plan_zarr(**options)
    written = plan.to_zarr(tmp_path / "store.zarr", compute=False)
    tasks = [key for key in dict(written.dask) if isinstance(key, tuple) and "write-units" in key[0]]
    assert len(tasks) == plan.tasks <= plan.write_units
    noted: Any = zarr.open_group(tmp_path / "store.zarr").attrs["dask_tfrecord"]
    assert plan.unit_rows == noted["unit_rows"]


def test_nothing_is_written_and_nothing_counted_twice(
    ds: dtf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ds.plan_zarr()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("dask_tfrecord.stores.units.count_items", lambda *_: pytest.fail("it was counted again"))
    plan.to_zarr("one.zarr")
    plan.to_zarr("other.zarr")
    assert dtf.from_zarr("one.zarr").nrows == dtf.from_zarr("other.zarr").nrows == 62


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, 2, 3, 6, 12, 60]), max_size=4),
    st.none() | st.integers(1, 5000),
    st.none() | st.integers(1, 50_000),
    st.integers(0, 300),
    st.floats(1, 1000),
)
def test_features_share_a_unit_of_rows(
    chunks: dict[str, int], chunk_nbytes: int | None, shard_nbytes: int | None, rows: int, row_nbytes: float
) -> None:
    schema = dtf.Schema(dict.fromkeys("abcd", dtf.FixedLenFeature((), "int64")))
    sizes = RowSizes(dict.fromkeys("abcd", row_nbytes), row_nbytes, 4 * row_nbytes, 4 * row_nbytes)
    request = ChunkRequest(chunks, None, chunk_nbytes, shard_nbytes)
    if any(max(chunks.values()) % size for size in chunks.values()):
        with pytest.raises(ValueError, match="features share a unit of rows"):
            request.resolve(schema, rows, sizes)
        return
    grid, cuts = request.resolve(schema, rows, sizes)
    for name, (chunk, write) in cuts.rows.items():
        assert chunk == chunks.get(name, chunk)
        assert write % chunk == 0
        assert grid.unit % write == 0
        assert shard_nbytes is not None or write == chunk
    if not chunks and shard_nbytes is not None and rows:
        assert grid.unit <= rows + grid.chunk


def test_targets_are_met() -> None:
    arrays = {"x": np.zeros((100_000, 16)), "y": np.zeros(100_000)}
    plan = dtf.plan_zarr(arrays, chunks="1 MiB", shards="8 MiB")
    assert max(math.prod(array.chunks) * 8 for array in plan.arrays) == MIB
    assert max(math.prod(array.shards or ()) * 8 for array in plan.arrays) == 8 * MIB


def test_chunks_of_many_columns_are_not_small() -> None:
    def table(rows: int) -> dict[str, Any]:
        return {f"column_{number}": np.zeros(rows, "i4") for number in range(40)}

    plan = dtf.plan_zarr(table(500_000))
    (chunk,) = {array.chunks for array in plan.arrays}
    # 80 MB are three units of as many rows each, of four times the bytes that one large array would have in a chunk.
    assert chunk == (166_667,)
    assert 3.9 * 8 * MIB > 40 * 4 * chunk[0] > 3 * 8 * MIB
    assert dtf.plan_zarr({"large": np.zeros((10_000, 1024), "f8"), **table(10_000)}).arrays[0].chunks == (1_000, 1024)


# --------------------------------------------------------------------------------------------------------- codecs


def test_codecs_by_feature_and_by_array(ds: dtf.Dataset, tmp_path: Path) -> None:
    plan = ds.plan_zarr(
        compressors={"label": None, "vector": zarr.codecs.ZstdCodec(level=1), "tokens.values": zarr.codecs.GzipCodec()},
        filters={"vector": zarr.codecs.TransposeCodec(order=(1, 0))},
    )
    plan.to_zarr(tmp_path / "store.zarr")
    group = zarr.open_group(tmp_path / "store.zarr", mode="r")
    made = {name: codecs(array) for name, array in group.arrays()}
    blosc = ["BloscCodec"]
    assert made == {
        "label": [],
        "vector": ["TransposeCodec", "ZstdCodec"],
        "title": blosc,
        "tokens.values": ["GzipCodec"],
        "tokens.row_splits": blosc,
        **dict.fromkeys(["words.values", "words.row_splits", "words.byte_splits"], blosc),
    }
    assert dtf.from_zarr(tmp_path / "store.zarr")["vector"].compute().tolist() == ds["vector"].compute().tolist()
    assert json.loads(plan.to_json())["arrays"][1]["compressors"][0]["name"] == "zstd"


def test_row_splits_have_codecs_of_their_own(tmp_path: Path) -> None:
    values = {"tokens": np.array([np.arange(n) for n in range(9)], object), "label": np.arange(9)}
    dtf.to_tfrecord(values, tmp_path / "some.tfrecord")
    plan = dtf.read_tfrecord(tmp_path / "some.tfrecord").plan_zarr(compressors={"tokens.row_splits": None})
    assert [array.name for array in plan.arrays if not array.compressors] == ["tokens.row_splits"]


@pytest.mark.parametrize("given", [np.arange(3), None, [1]])
def test_arguments_that_are_not_mappings(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SchemaError, match="arrays must be a Dataset, a mapping of names to arrays"):
        dtf.to_zarr(given, tmp_path / "store.zarr")
    with pytest.raises(TypeError, match="store is a path"):
        dtf.to_zarr({"x": np.arange(3)}, None)


def test_a_codec_may_be_a_mapping(tmp_path: Path) -> None:
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    dtf.to_zarr({"name": np.arange(5)}, tmp_path / "codec.zarr", compressors=gzip)
    dtf.to_zarr({"name": np.arange(5)}, tmp_path / "feature.zarr", compressors={"name": None})
    made = [zarr.open_array(tmp_path / f"{store}.zarr", path="name") for store in ("codec", "feature")]
    assert [codecs(array) for array in made] == [["GzipCodec"], []]


def test_items_are_shuffled_by_their_size(tmp_path: Path) -> None:
    dtf.to_zarr({"x": np.arange(5)}, tmp_path / "store.zarr")
    (blosc,) = zarr.open_array(tmp_path / "store.zarr", path="x").compressors
    assert isinstance(blosc, zarr.codecs.BloscCodec)
    # From zarr 3.4 on the names are plain strings.
    cname, shuffle = (getattr(name, "value", name) for name in (blosc.cname, blosc.shuffle))
    assert (blosc.typesize, cname, shuffle) == (8, "lz4", "shuffle")


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *((option, "lable") for option in ("chunks", "shards", "compressors", "filters")),
        ("chunks", "tokens.row_splits"),
        ("shards", "tokens.row_splits"),
    ],
)
def test_unknown_names_in_options(ds: dtf.Dataset, option: str, name: str) -> None:
    options: dict[str, Any] = {option: {name: 4}}
    with pytest.raises(UnknownFeatureError, match=rf"{option}: .*{name}"):
        ds.plan_zarr(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunks": {"label": 0}}, r"chunks\['label'\] must be a number of rows"),
        ({"chunks": {"label": 4}, "shards": {"label": 6}}, "6 rows are not a multiple of 4"),
        ({"chunks": {"label": 4, "vector": 6}}, "4 rows of 'label' do not divide 6 of 'vector'"),
        ({"shards": {"tokens.values": 6}}, r"chunks=\{'tokens.values'"),
        ({"chunks": "0 B"}, "chunks must be a number of rows or a size"),
        ({"shards": True}, "shards must be a number of rows"),
        ({"memory_limit": 0}, "memory_limit is a number of bytes"),
    ],
)
def test_invalid_options(ds: dtf.Dataset, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
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
        said = r"of its 450.00 MiB.*3 \* 50.00 MiB unit of rows.*chunks="
        with pytest.raises(ValueError, match=said):
            plan.to_zarr(tmp_path / "store.zarr")
        with pytest.raises(ValueError, match=said):
            dtf.to_zarr(arrays, tmp_path / "store.zarr", chunks=400, memory_limit="450 MiB")
    assert not list(tmp_path.iterdir())
    assert "DOES NOT FIT" in repr(plan)
    assert "DOES NOT FIT" in plan._repr_html_()
    assert dtf.plan_zarr(arrays, chunks=400).fits


def test_more_threads_take_more() -> None:
    arrays = {"x": da.zeros((4000, 1000), chunks=(10, -1))}
    peaks = []
    for threads in (1, 2, 7):
        with dask.config.set(scheduler="threads", num_workers=threads):
            memory = dtf.plan_zarr(arrays).memory
        assert memory.threads == threads
        peaks.append(memory.added_nbytes)
    assert peaks[2] - peaks[0] == 6 * (peaks[1] - peaks[0])
    with dask.config.set(scheduler="sync"):
        assert dtf.plan_zarr(arrays).memory.threads == 1


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
        with pytest.raises(ValueError, match=r"of its 3\.00 GiB"):
            plan.to_zarr(tmp_path / "store.zarr")
        assert dtf.plan_zarr(arrays, chunks=1000, memory_limit=None).fits
        assert dtf.plan_zarr(arrays, chunks=10).fits
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------- people


class Cells(HTMLParser):
    """Collects the text of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.within = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.within = tag in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.within:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.within = False


def test_it_prints(ds: dtf.Dataset) -> None:
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = ds.plan_zarr(chunks=20)
    title, header, *lines = repr(plan).split("\n")
    assert title.startswith("<dask_tfrecord.ZarrPlan: 62 rows, 8 arrays, about ")
    assert "16 write units, those of rows with 20 rows each, in 4 tasks" in title
    assert header.split() == ["array", "dtype", "shape", "dimensions", "chunks", "shards", "bytes", "codecs"]
    vector = next(line for line in lines if line.split()[0] == "vector")
    assert re.split(" {2,}", vector.strip())[1:7] == ["<f4", "62 x 3", "record, vector.dim_1", "20 x 3", "-", "744 B"]
    assert "(no limit): 200.00 MiB imports + 100.00 MiB reading and codecs + 2 threads * (3 * " in lines[-1]


def test_html_has_a_line_per_array_the_codecs_once_and_the_memory_as_a_table(ds: dtf.Dataset) -> None:
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = ds.plan_zarr(chunks=20)
    html, cells = plan._repr_html_(), Cells()
    cells.feed(html)
    header, *_, last = (cells.found[start : start + 6] for start in range(0, 6 * (len(plan.arrays) + 1), 6))
    assert header == ["array", "dtype", "shape", "chunks", "shards", "bytes"]
    assert last[0] == plan.arrays[-1].name
    memory = cells.found[6 * (len(plan.arrays) + 1) :]
    assert memory[:4] == ["memory", "bytes", "imports", "200.00 MiB"]
    assert memory[-2] == "peak of a worker, no limit"
    assert html.count("blosc(") == 1
    assert "ZarrPlan" not in html and "Zarr group: 62 rows, 8 arrays, about " in html


def test_control_characters_are_escaped() -> None:
    plan = dtf.plan_zarr({"a\x9b\u202eb": [["x"], []]}, memory_limit="1 MiB")
    for shown in (repr(plan), plan._repr_html_()):
        assert "a\\x9b\\u202eb" in shown
        assert not {"\x9b", "\u202e"} & set(shown)


def test_names_are_escaped_in_html() -> None:
    plan = dtf.plan_zarr({"<b>&": np.zeros(3)})
    assert "<b>" not in plan._repr_html_()


def test_it_is_json(ds: dtf.Dataset) -> None:
    plan = ds.plan_zarr(chunks=20)
    found = json.loads(plan.to_json())
    assert (found["nrows"], found["unit_rows"], found["write_units"]) == (62, 20, plan.write_units)
    assert [array["name"] for array in found["arrays"]] == [array.name for array in plan.arrays]
    assert found["nbytes"] == sum(array["nbytes"] for array in found["arrays"])
    assert found["memory"]["peak_nbytes"] == plan.memory.peak_nbytes


def test_the_command_prints_it_and_writes_nothing(shards: Path, tmp_path: Path) -> None:
    command = [
        "to-zarr",
        str(shards),
        str(tmp_path / "store.zarr"),
        "--plan",
        "--chunks",
        "20",
        "--memory-limit",
        "1GB",
    ]
    result = CliRunner().invoke(tfrecord, command)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("<dask_tfrecord.ZarrPlan: 62 rows")
    assert "(limit 0.93 GiB)" in result.stdout
    assert not list(tmp_path.iterdir())
    result = CliRunner().invoke(tfrecord, ["to-zarr", str(shards), str(tmp_path / "s.zarr"), "--memory-limit", "1MB"])
    assert result.exit_code == 1
    assert "No unit is small enough" in result.stderr
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------- images


def picture(width: int, height: int) -> bytes:
    file = io.BytesIO()
    pixels = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the bytes of every file that is decoded from now on."""
    decoded: list[int] = []

    def decode(data: memoryview, **how: Any) -> Any:
        decoded.append(len(data))
        return decode_image(data, **how)

    monkeypatch.setattr(encoded_values, "decode_image", decode)
    return decoded


@pytest.mark.parametrize(
    "feature", [dtf.ImageFeature(), dtf.ImageFeature((-1, 4, 5, 3)), dtf.ImageFeature(size=(7, 3))], ids=str
)
def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: dtf.ImageFeature) -> None:
    written: list[bytes] = []
    rows = []
    for row in range(30):
        message = messages.Example()
        files = [picture(5, 4)] * (row % 3) if feature.ragged_rank else [picture(row + 1, 4)]
        message.features.feature["image"].bytes_list.value.extend(files)
        written += files
        rows.append(message.SerializeToString())
    oracle.write_oracle(tmp_path / "shard", rows)
    ds = dtf.read_tfrecord(tmp_path / "shard", {"image": feature})
    wanted = ds["image"].compute()
    # Rows across the end of a task would be read by two tasks.
    plan = ds.plan_zarr(chunks={"image": 7, "image.values": 100_000})  # looks at the first rows
    decoded = counted(monkeypatch)
    with dask.config.set(scheduler="sync"):
        plan.to_zarr(tmp_path / "store.zarr")
    assert len(decoded) == len(written)
    found = dtf.from_zarr(tmp_path / "store.zarr")["image"].compute()
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_counting_decodes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for row in range(200):
        message = messages.Example()
        message.features.feature["image"].bytes_list.value.append(picture(row % 9 + 1, 3))
        rows.append(message.SerializeToString())
    oracle.write_oracle(tmp_path / "shard", rows)
    ds = dtf.read_tfrecord(tmp_path / "shard", {"image": dtf.ImageFeature()})
    decoded = counted(monkeypatch)
    plan = ds.plan_zarr()
    # Of the first rows the bytes are measured.
    assert len(decoded) <= 64
    assert {array.name: array.shape for array in plan.arrays} == {
        "image.values": (sum((row % 9 + 1) * 9 for row in range(200)),),
        "image.row_splits": (201,),
        "image.shapes": (200, 3),
    }


def test_sizes_of_images_take_no_memory() -> None:
    file = picture(1000, 1000)
    files = BytesBlock(np.frombuffer(20 * file, np.uint8), len(file) * np.arange(21), (20,))
    values = encoded_values.image_zeros(dtf.ImageFeature(), files, None).values
    assert isinstance(values, np.ndarray)
    assert values.shape == (20 * 3_000_000,)
    assert values.strides == (0,)
