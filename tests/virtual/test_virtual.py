"""Virtual Zarr: zarr, xarray, dask and Icechunk read the columns of `read_tfrecord` out of the shards."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.reference import LazyReferenceMapper
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import write_oracle
from support import golden as tensorflow
from support.any_columns import any_features, dataset_of, fitting_rows, written_as
from support.bits import bits
from support.commands import run
from support.corpus import EXAMPLES, FOREIGN, SEQUENCES
from support.few import mostly_slow, rising
from support.message_files import real_type
from support.object_stores import make_store
from support.paths import DATA
from support.store_round_trip import assert_same
from support.virtual_groups import UNEQUAL, arrays_of, assert_group, one_chunk_or, unequal_chunks
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, SchemaError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores.virtual.references import VirtualZarr
from dask_tfrecord.stores.zarr.codec import TFRecordCodec

Columns = Mapping[str, NDArray[Any]]
FEATURES: dict[str, Any] = {
    "label": dtf.FixedLenFeature((), "int64"),
    "vector": dtf.FixedLenFeature((2, 2), "float32"),
    "raw/big": dtf.RawFeature((3,), ">i2"),
    "name": dtf.TextFeature(),
    "data": dtf.FixedLenFeature((), "bytes"),
    "image": dtf.ImageFeature((2, 3, 3)),
}
RAGGED = {"tokens": dtf.VarLenFeature("int64"), "words": dtf.VarLenFeature("bytes")}
ROWS = 5


def write_shards(folder: Path, sizes: tuple[int, ...], *, compression: str | None = None) -> str:
    """Write shards of these numbers of records, with `FEATURES` and `RAGGED`; return their glob."""
    rng, done = np.random.default_rng(0), 0
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        columns = {
            "label": np.arange(done, done + size),
            "vector": rng.normal(size=(size, 2, 2)).astype("f4"),
            "raw/big": rng.integers(-999, 999, (size, 3)).astype("i2"),
            "name": [f"ä{row}" * (row % 3) for row in range(done, done + size)],
            "data": [rng.bytes(row % 7) for row in range(size)],
            "image": rng.integers(0, 256, (size, 2, 3, 3), np.uint8),
            "tokens": [np.arange(row % 4) for row in range(size)],
            "words": [[b"w"] * (row % 3) for row in range(size)],
        }
        path = folder / f"x-{number}.tfrecord"
        dtf.to_tfrecord(columns, path, features={**FEATURES, **RAGGED}, compression=compression)
        done += size
    return f"{folder}/x-*.tfrecord"


@pytest.fixture(scope="module")
def urlpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five shards, one of them empty, that chunks of five rows divide."""
    return write_shards(tmp_path_factory.mktemp("virtual") / "a b%20c", (10, 0, 15, 5, 7))


@pytest.fixture(scope="module")
def wanted(urlpath: str) -> Columns:
    return dtf.read_tfrecord(urlpath, FEATURES).compute()


@pytest.fixture(scope="module")
def virtual(urlpath: str) -> VirtualZarr:
    return dtf.virtual_zarr(urlpath, FEATURES, rows_per_chunk=ROWS)


def check(virtual: VirtualZarr, wanted: Columns) -> dtf.Dataset:
    return assert_group("reference://", wanted, options={"fo": virtual.references()})


def check_icechunk(virtual: VirtualZarr, wanted: Columns, folder: Path) -> None:
    repository = repository_of(folder, virtual)
    virtual.to_icechunk(repository.writable_session("main"))
    assert_group(repository.readonly_session("main").store, wanted)


# ------------------------------------------------------------------------------------------------------- equal columns


@pytest.mark.parametrize("case", mostly_slow(tensorflow.CASES, 3))
def test_answers_of_tensorflow(golden: Path, case: str) -> None:
    path, spec = tensorflow.shard(golden, case), tensorflow.spec(golden, case)
    with unequal_chunks():
        virtual = dtf.virtual_zarr(path, **spec, rows_per_chunk=one_chunk_or(7))
        opened = dtf.from_zarr("reference://", storage_options={"fo": virtual.references()})
        found = opened.compute()
        answers = tensorflow.expected(golden, case)
        assert {name: bits(found[name]) for name in answers} == {name: bits(each) for name, each in answers.items()}
        group: Any = zarr.open_group("reference://", mode="r", storage_options={"fo": virtual.references()})
        for name, array in arrays_of(opened.schema, {name: answers[name] for name in opened if name in answers}):
            assert bits(np.asarray(group[name][...])) == bits(array), name


# zarr 3.1 has only regular grids: then a chunk holds all rows.
@pytest.mark.parametrize("case", [*mostly_slow(tensorflow.CASES, 6)])
def test_answers_of_tensorflow_in_icechunk(golden: Path, tmp_path: Path, case: str) -> None:
    path, spec = tensorflow.shard(golden, case), tensorflow.spec(golden, case)
    with unequal_chunks():
        virtual = dtf.virtual_zarr(path, **spec, rows_per_chunk=one_chunk_or(7))
        columns = dtf.read_tfrecord(path, **spec).compute()
        answers = tensorflow.expected(golden, case)
        assert {name: bits(columns[name]) for name in answers} == {name: bits(each) for name, each in answers.items()}
        check_icechunk(virtual, columns, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXAMPLES, *SEQUENCES])
def test_files_of_the_corpus_in_icechunk(corpus: Path, tmp_path: Path, name: str) -> None:
    schema = dtf.infer_schema(corpus / name, sample=None)
    with unequal_chunks():
        virtual = dtf.virtual_zarr(corpus / name, schema, rows_per_chunk=one_chunk_or(20))
        check_icechunk(virtual, dtf.read_tfrecord(corpus / name, schema).compute(), tmp_path)


@pytest.mark.parametrize("most", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["an ExampleListWithContext", "a nucleus Variant"])
def test_lists_and_messages_in_icechunk(corpus: Path, tmp_path: Path, kind: str, most: int | None) -> None:
    path, options = corpus / next(name for name, each in FOREIGN.items() if each == kind), dict[str, Any]()
    if "nucleus" in kind:
        options = {"message": real_type("nucleus.genomics.v1.Variant")[0]}
        options["columns"] = list(dtf.read_tfrecord(path, **options))[:most]
    else:
        schema = dtf.infer_schema(path, sample=None)
        options = {"features": schema.select(list(schema)[:most])}
    with unequal_chunks():
        virtual = dtf.virtual_zarr(path, **options, rows_per_chunk=one_chunk_or(5))
        check_icechunk(virtual, dtf.read_tfrecord(path, **options).compute(), tmp_path)


@pytest.mark.parametrize("name", [*mostly_slow([*EXAMPLES, *SEQUENCES], 18)])
def test_files_of_the_corpus(corpus: Path, name: str) -> None:
    schema = dtf.infer_schema(corpus / name, sample=None)
    ds = dtf.read_tfrecord(corpus / name, schema)
    with unequal_chunks():
        check(dtf.virtual_zarr(corpus / name, schema, rows_per_chunk=one_chunk_or(20)), ds.compute())


@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)])
def test_lists_of_examples(corpus: Path, most: int | None) -> None:
    path = corpus / next(name for name, kind in FOREIGN.items() if kind == "an ExampleListWithContext")
    schema = dtf.infer_schema(path, sample=None)
    schema = schema.select(list(schema)[:most])
    with unequal_chunks():
        virtual = dtf.virtual_zarr(path, schema, rows_per_chunk=one_chunk_or(5))
        opened = check(virtual, dtf.read_tfrecord(path, schema).compute())
        items = dtf.read_tfrecord(path, schema).explode("examples")
        assert_same(opened.explode("examples").compute(), items.compute())


@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)])
def test_messages(corpus: Path, most: int | None) -> None:
    path = corpus / next(name for name, kind in FOREIGN.items() if kind == "a nucleus Variant")
    message, _, _ = real_type("nucleus.genomics.v1.Variant")
    names = list(dtf.read_tfrecord(path, message=message))[:most]
    wanted = dtf.read_tfrecord(path, message=message, columns=names).compute()
    with unequal_chunks():
        virtual = dtf.virtual_zarr(path, message=message, columns=names, rows_per_chunk=one_chunk_or(2))
        check(virtual, wanted)


@pytest.mark.parametrize("count", rising(3, 60, 200))
def test_any_features(count: int) -> None:
    @settings(max_examples=count)
    @given(st.lists(any_features(), min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 4), st.integers())
    def run(features: list[Any], rows: int, chunk: int, seed: int) -> None:
        named, rng = {f"c{number}": each for number, each in enumerate(features)}, np.random.default_rng(abs(seed))
        ds = dataset_of({name: fitting_rows(each, rows, rng) for name, each in named.items()}, named, (rows,))
        with tempfile.TemporaryDirectory() as folder, unequal_chunks(), dask.config.set(scheduler="sync"):
            schema = written_as(named, steps=False)
            dtf.to_tfrecord(ds, f"{folder}/x", features=schema)
            check(dtf.virtual_zarr(f"{folder}/x", schema, rows_per_chunk=one_chunk_or(chunk)), ds.compute())

    run()


@pytest.mark.parametrize("compression", mostly_slow([None, "gzip", "zlib"], 3))
def test_shards(tmp_path: Path, compression: str | None) -> None:
    """Chunks end with their shards; a compressed shard is one chunk."""
    url = write_shards(tmp_path, (8, 8, 8), compression=compression)
    features = {**FEATURES, **RAGGED} if UNEQUAL else FEATURES
    with unequal_chunks():
        virtual = dtf.virtual_zarr(url, features, rows_per_chunk=4)
        opened = check(virtual, dtf.read_tfrecord(url, features).compute())
        assert opened["label"].chunks[0] == ((4,) * 6 if compression is None else (8,) * 3)


def test_records_and_empty_shards(urlpath: str, virtual: VirtualZarr, wanted: Columns) -> None:
    check(virtual, wanted)
    refs = virtual.references()["refs"]
    file, offset, nbytes = refs["vector/c/2/0/0"]
    assert file.endswith("x-2.tfrecord") and offset == 0
    assert len(dtf.read_tfrecord(file, FEATURES).rows[:ROWS].compute()["label"]) == ROWS
    assert Path(file).read_bytes()[nbytes:][:8] != b""
    assert repr(virtual) == "<VirtualZarr: 37 records of 5 files: label, vector, raw/big, name, data, image>"
    assert virtual.nchunks == 8 * len(FEATURES)
    assert dtf.Schema.from_json(json.dumps(json.loads(virtual.attributes["dask_tfrecord"])["schema"])) == FEATURES


def test_a_group_is_a_data_set(urlpath: str, virtual: VirtualZarr) -> None:
    """Rows are picked, filtered, batched and written as in other groups."""
    ds = dtf.read_tfrecord(urlpath, FEATURES)
    opened = dtf.from_zarr("reference://", storage_options={"fo": virtual.references()})
    rows = [30, 2, 2, 11]
    assert_same(opened.rows[rows].compute(), ds.rows[rows].compute())
    assert_same(opened.where([("label", ">", 20)]).compute(), ds.where([("label", ">", 20)]).compute())
    found = np.concatenate([each["label"] for each in opened.batches(4, shuffle="full", seed=1)])
    assert sorted(found.tolist()) == list(range(37))


@pytest.mark.parametrize("split", ["train", "test+train[1:4]"])
def test_parts_of_splits(split: str) -> None:
    folder, names = DATA / "tfds" / "every", ["tensor", "scalar/float32"]
    with unequal_chunks():
        virtual = dtf.virtual_zarr(folder, split=split, columns=names, rows_per_chunk=1)
        check(virtual, dtf.read_tfrecord(folder, split=split, columns=names).compute())


def test_lengths_of_steps_are_counted(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [example(k=[1, 2]), example(k=[3]), example(k=[])])
    features = {"k": dtf.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    virtual = dtf.virtual_zarr(tmp_path / "x", features)
    check(virtual, {"k": np.array([[1, 2], [3, 0], [0, 0]])})


@pytest.mark.parametrize("rows", [0, 1])
def test_zeros_are_values_and_no_records_are_arrays(tmp_path: Path, rows: int) -> None:
    features: Any = {"f": dtf.FixedLenFeature((), "float32"), "v": dtf.VarLenFeature("int64")}
    columns = {"f": np.zeros(rows, "f4"), "v": [[]] * rows}
    dtf.to_tfrecord(columns, tmp_path / "x", features=features)
    check(dtf.virtual_zarr(tmp_path / "x", features), dtf.read_tfrecord(tmp_path / "x", features).compute())


def test_schedulers(urlpath: str, virtual: VirtualZarr, set_limits: Callable[..., Limits]) -> None:
    set_limits(index_window_nbytes=300, scan_task_nbytes=1000)
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            pieces = dtf.virtual_zarr(urlpath, FEATURES, rows_per_chunk=ROWS)
        assert pieces.references() == virtual.references()


# ------------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize(
    ("sizes", "given", "rows"),
    [
        ((100, 100, 30), "1 TiB", [100, 100, 30]),
        ((100, 100, 100), "3 kB", [10] * 30),
        ((100, 100, 7), 50, [50] * 4 + [7]),
        ((60,), 25, [25, 25, 10]),
    ],
)
def test_rows_of_chunks(tmp_path: Path, sizes: tuple[int, ...], given: Any, rows: list[int]) -> None:
    for number, size in enumerate(sizes):
        write_oracle(tmp_path / f"{number}", [example(k=[b"x" * 250])] * size)
    virtual = dtf.virtual_zarr(f"{tmp_path}/*", {"k": dtf.FixedLenFeature((), "bytes")}, rows_per_chunk=given)
    assert virtual.arrays[0].edges.tolist() == rows
    for wrong in (0, "much", {"k": 3}, 1.5):
        with pytest.raises(ValueError, match="rows_per_chunk"):
            dtf.virtual_zarr(f"{tmp_path}/*", {"k": dtf.FixedLenFeature((), "bytes")}, rows_per_chunk=wrong)


def test_unequal_chunks_need_a_setting_of_zarr(tmp_path: Path) -> None:
    url = write_shards(tmp_path, (4, 6, 5))
    with pytest.raises(
        SchemaError, match=r"the chunks of 'label' differ .*rows_per_chunk=2 makes equal chunks"
    ) as raised:
        dtf.virtual_zarr(url, {"label": FEATURES["label"]}, rows_per_chunk=3)
    assert "zarr.config.set({'array.rectilinear_chunks': True})" in str(raised.value)
    with pytest.raises(SchemaError, match=r"'tokens', 'words' differ .*columns=\['label'\] leaves them out"):
        dtf.virtual_zarr(url, {"label": FEATURES["label"], **RAGGED}, rows_per_chunk=2)


# ---------------------------------------------------------------------------------------------------- changed shards


def changed(kind: str, data: bytes, other: bytes) -> bytes:
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 16 + int.from_bytes(data[ends[-1] : ends[-1] + 8], "little"))
    match kind:
        case "a bit of a payload":
            return data[:30] + bytes([data[30] ^ 1]) + data[31:]
        case "a bit of a length":
            return bytes([data[0] ^ 1]) + data[1:]
        case "within a record":
            return data[: ends[7] + 5]
        case "between records":
            return data[: ends[7]]
        case "nothing left":
            return b""
        case _:
            return other


KINDS = ("a bit of a payload", "a bit of a length", "within a record", "between records", "nothing left", "swapped")


@pytest.mark.parametrize("kind", KINDS)
def test_changed_shards_raise(tmp_path: Path, kind: str) -> None:
    """Also a shard whose records are intact and as long as before; the error names shard, record and byte."""
    for number in range(2):
        records = [example(k=[np.int64(100 + number).tobytes() * 3, bytes([row])][:1]) for row in range(10)]
        write_oracle(tmp_path / f"{number}", records)
    features = {"k": dtf.FixedLenFeature((), "bytes")}
    virtual = dtf.virtual_zarr([tmp_path / "0", tmp_path / "1"], features, rows_per_chunk=5)
    first, second = ((tmp_path / name).read_bytes() for name in "01")
    (tmp_path / "1").write_bytes(changed(kind, second, first))
    options = {"fo": virtual.references()}
    array: Any = zarr.open_group("reference://", mode="r", storage_options=options)["k"]
    # Ten records of one size in two chunks. A swapped shard has intact records of the other shard.
    record = {"within a record": 7, "between records": 5, "nothing left": 0}.get(kind, 0)
    chunk = 10 + record // 5 * 5
    rows = slice(chunk, chunk + 5)
    reads = [lambda: array[:], dtf.from_zarr("reference://", storage_options=options).compute, lambda: array[rows][1:]]
    for read in reads:
        with pytest.raises(CorruptRecordError) as raised:
            read()
        place = raised.value.place
        if kind != "nothing left":
            # Both chunks of a swapped shard are wrong, and one of them is read first.
            found = place.record if kind == "swapped" and place.record == 5 else record
            assert place == Location(f"{tmp_path}/1", found, found * len(second) // 10, "k")
        assert pickle.loads(pickle.dumps(raised.value)).place == place
    if "payload" in kind:
        assert len(array[12:]) == 8  # payloads are checked where they are read
    assert len(array[:10]) == 10
    unchecked = dtf.virtual_zarr([tmp_path / "1"], features, check_crc=False) if kind == "swapped" else virtual
    assert unchecked.arrays[0].codec.check_crc is (kind != "swapped")


@pytest.mark.parametrize("output", ["json", "parquet", "icechunk", "earlier version"])
@pytest.mark.parametrize(
    ("column", "feature"), [("x", dtf.VarLenFeature("int64")), ("c", dtf.FixedLenFeature((2,), "int64", (0, 0)))]
)
def test_swapped_shards_are_refused_by_every_reader(
    tmp_path: Path, output: str, column: str, feature: dtf.Feature
) -> None:
    """Records are intact and as long as before; metadata do not depend on the shard, and appends add chunks."""
    for number in range(2):
        # The first two records are empty and lack a chunk of values.
        write_oracle(tmp_path / f"{number}", [example(), example(), *(example(**{column: [3, number]}) for _ in "ab")])
    both, *parts = (
        dtf.virtual_zarr([tmp_path / name for name in names], {column: feature}, rows_per_chunk=2)
        for names in ("01", "0", "1")
    )
    options: Any = None
    match output:
        case "json":
            store, component, options = "reference://", None, {"fo": both.references()}
        case "parquet":
            both.to_parquet(tmp_path / "refs.parquet")
            store, component, options = "reference://", None, {"fo": by_pyarrow(tmp_path / "refs.parquet")}
        case _:
            repository, component = repository_of(tmp_path, both), "a"
            first = with_chunks_in_metadata(parts[0]) if output == "earlier version" else parts[0]
            first.to_icechunk(repository.writable_session("main"), component=component)
            parts[1].to_icechunk(repository.writable_session("main"), component=component, append_dim="record")
            store = repository.readonly_session("main").store

    def opened() -> Any:
        group: Any = zarr.open_group(store, mode="r", path=component, storage_options=options)
        return group[f"{column}.values" if feature.ragged_rank else column]

    assert np.ravel(opened()[:]).tolist()[-4:] == [3, 1, 3, 1]
    data = (tmp_path / "0").read_bytes()
    (tmp_path / "1").write_bytes(data)
    array = opened()
    assert np.ravel(array[: array.shape[0] // 2]).tolist()[-4:] == [3, 0, 3, 0]
    with pytest.raises(CorruptRecordError, match="not those that the store refers to") as raised:
        array[array.shape[0] - 1 :]
    assert raised.value.place == Location(f"{tmp_path}/1", 2, 2 * len(example()) + 32, column)


def with_chunks_in_metadata(virtual: VirtualZarr) -> VirtualZarr:
    """Return references as earlier versions wrote them: the codec of each array has the checksums of its chunks."""
    entry = np.dtype([("checksum", "<u4"), ("shard", "<u4"), ("record", "<u8"), ("byte", "<u8")])
    arrays = []
    for array in virtual.arrays:
        rows = virtual.chunks["rows" if array.spec.part == "dense" else array.name]
        chunks = np.array([tuple(row) for row in rows.tolist()], entry).tobytes()
        arrays.append(replace(array, codec=replace(array.codec, chunks=chunks)))
    return replace(virtual, arrays=tuple(arrays), chunks={})


def test_metadata_do_not_grow_with_the_data(tmp_path: Path) -> None:
    """Codecs are the same for all chunks of all shards; an append to Icechunk stores little more than what is new."""
    features: dict[str, Any] = {"x": dtf.FixedLenFeature((), "float32"), "y": dtf.FixedLenFeature((), "int64")}
    for number in range(2):
        values = np.arange(40000) + number
        dtf.to_tfrecord({"x": values.astype("f4"), "y": values}, tmp_path / f"{number}", features=features)
    sizes, codecs = [], []
    for rows in (4000, 4):
        virtual = dtf.virtual_zarr(tmp_path / "0", features, rows_per_chunk=rows)
        objects = virtual.objects(consolidated=True)
        sizes.append(sum(len(value) for key, value in objects.items() if key.endswith("zarr.json")))
        codecs.append([array.codec for array in virtual.arrays])
        assert sum(map(len, objects.values())) < sizes[-1] + 200 + 10 * 40000 / rows
    assert sizes[1] < sizes[0] + 20 and codecs[0] == codecs[1]
    assert codecs[0] == [array.codec for array in dtf.virtual_zarr(tmp_path / "1", features).arrays]


@pytest.mark.parametrize("output", ["json", "parquet", "icechunk", "gzip"])
def test_errors_name_the_shard(tmp_path: Path, output: str) -> None:
    """A record that does not fit is named by its number and byte in its shard, however the group is stored."""
    compression = output if output == "gzip" else None
    features: Any = {"k": dtf.FixedLenFeature((2,), "int64"), "other": dtf.FixedLenFeature((), "int64", 0)}
    for number in range(3):
        records = [example(k=[1, row], other=[1]) for row in range(8)]
        records[6] = example(k=[1, 2] if number < 2 else [1, 2, 3])
        write_oracle(tmp_path / f"{number}", records, compression)
    parts = [
        dtf.virtual_zarr(urls, features, rows_per_chunk=4)
        for urls in ([tmp_path / "0"], [tmp_path / "1", tmp_path / "2"])
    ]
    both = dtf.virtual_zarr([tmp_path / name for name in "012"], features, rows_per_chunk=4)
    options: Any = None
    match output:
        case "json" | "gzip":
            store, component, options = "reference://", None, {"fo": both.references()}
        case "parquet":
            both.to_parquet(tmp_path / "refs.parquet")
            store, component, options = "reference://", None, {"fo": by_pyarrow(tmp_path / "refs.parquet")}
        case _:
            repository, component = repository_of(tmp_path, both), "a/b"
            parts[0].to_icechunk(repository.writable_session("main"), component=component)
            parts[1].to_icechunk(repository.writable_session("main"), component=component, append_dim="record")
            store = repository.readonly_session("main").store
    group: Any = zarr.open_group(store, mode="r", path=component, storage_options=options)
    byte = 6 * (16 + len(example(k=[1, 1], other=[1])))
    for read in (lambda: group["k"][:], dtf.from_zarr(store, component=component, storage_options=options).compute):
        with pytest.raises(FeatureError, match="feature 'k' holds 3 values, but") as raised:
            read()
        assert raised.value.place == Location(f"{tmp_path}/2", 6, byte, "k")
    assert group["k"][:22].tolist() == [[1, row % 8] if row % 8 != 6 else [1, 2] for row in range(22)] or compression


def test_a_missing_shard_raises(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [example(k=[1])])
    virtual = dtf.virtual_zarr(tmp_path / "x", {"k": dtf.FixedLenFeature((), "int64")})
    (tmp_path / "x").unlink()
    array: Any = zarr.open_group("reference://", mode="r", storage_options={"fo": virtual.references()})["k"]
    with pytest.raises(Exception, match=r"missing|unreachable|not reachable|No such file"):
        array[:]


def test_records_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [example(k=[1]), example(k=[b"text"])])
    virtual = dtf.virtual_zarr(tmp_path / "x", {"k": dtf.FixedLenFeature((), "int64")})
    array: Any = zarr.open_group("reference://", mode="r", storage_options={"fo": virtual.references()})["k"]
    assert array[:1].tolist() == [1]
    with pytest.raises(FeatureError, match=r"record 1 \(byte 30\): feature 'k' holds a bytes list") as raised:
        array[:]
    assert raised.value.place is not None
    with pytest.raises(FeatureError, match="record 1"):
        dtf.virtual_zarr(tmp_path / "x", {"k": dtf.VarLenFeature("int64")})


def test_damaged_headers_are_named_by_the_scan(golden: Path) -> None:
    for path in sorted(golden.glob("damaged_*.tfrecord")):
        if path.stem in ("damaged_none", "damaged_payload_bit", "damaged_payload_crc"):
            continue
        with pytest.raises(CorruptRecordError):
            dtf.virtual_zarr(path, {"k": dtf.FixedLenFeature((), "int64", 0)})


# -------------------------------------------------------------------------------------------------------------- codec


def test_the_codec() -> None:
    feature = dtf.Schema({"k": dtf.VarLenFeature("int64")}).to_json()
    codec = TFRecordCodec(feature, "k", "values", chunks=b"\1\2\3\4" * 6)
    for each in (codec, replace(codec, chunks=b"")):
        assert TFRecordCodec.from_dict(each.to_dict()) == each == pickle.loads(pickle.dumps(each))
    records = [example(k=[1, 2]), example(k=[])]
    with tempfile.TemporaryDirectory() as folder:
        write_oracle(Path(folder) / "x", records)
        data = (Path(folder) / "x").read_bytes()
    store: dict[str, Any] = {}
    array: Any = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=(2,),
        chunks=(2,),
        dtype="int64",
        serializer=replace(codec, chunks=b""),
        compressors=None,
    )
    store["c/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(data)
    assert array[:].tolist() == [1, 2]
    with pytest.raises(NotImplementedError, match="to_tfrecord writes"):
        array[:] = 3
    with pytest.raises(ValueError, match="part must be one of rows, values;"):
        replace(codec, part="rest")


def test_a_client_without_this_package_gets_the_error_of_zarr(virtual: VirtualZarr, tmp_path: Path) -> None:
    """The page on virtual Zarr names the cure."""
    virtual.to_json(tmp_path / "refs.json")
    program = f"""
import importlib.metadata as metadata

def others(**selected):
    points = (point for package in metadata.distributions() for point in package.entry_points)
    kept = (point for point in points if point.group != "zarr.codecs" or "dask_tfrecord" not in point.value)
    return metadata.EntryPoints(kept).select(**selected)

metadata.entry_points = others
import zarr
try:
    zarr.open_group("reference://", mode="r", storage_options={{"fo": {str(tmp_path / "refs.json")!r}}})["label"][:]
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert "tfrecord" in done.stdout, done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------------------ outputs


# fsspec caches file systems by the addresses of mappers.
MAPPERS: list[LazyReferenceMapper] = []


def by_pyarrow(path: Path) -> LazyReferenceMapper:
    pytest.importorskip("pandas")
    MAPPERS.append(LazyReferenceMapper(str(path), engine="pyarrow"))
    return MAPPERS[-1]


@pytest.mark.parametrize("opened", mostly_slow([str, by_pyarrow], 2))
def test_files_of_references(tmp_path: Path, urlpath: str, wanted: Columns, opened: Callable[[Path], Any]) -> None:
    columns: dict[str, Any] = {**FEATURES, **RAGGED} if UNEQUAL else FEATURES
    with unequal_chunks():
        virtual = dtf.virtual_zarr(urlpath, columns, rows_per_chunk=ROWS)
        target = tmp_path / ("refs.json" if opened is str else "refs.parquet")
        if opened is str:
            virtual.to_json(target)
        else:
            pytest.importorskip("pyarrow")
            virtual.to_parquet(target, record_size=3)
            assert len(list((target / "vector").iterdir())) == 3
        assert_group("reference://", dtf.read_tfrecord(urlpath, columns).compute(), options={"fo": opened(target)})


@pytest.mark.parametrize(("column", "most"), mostly_slow([("label", 20_000), ("tokens", 2_000_000)], 2))
def test_a_million_records_have_small_references(tmp_path: Path, column: str, most: int) -> None:
    """Lengths of ragged rows follow no pattern."""
    records = []
    for length in range(10):
        write_oracle(tmp_path / "one", [example(label=[length], tokens=[1] * length)])
        records.append((tmp_path / "one").read_bytes())
    lengths = np.random.default_rng(0).integers(0, 10, 1_000_000)
    (tmp_path / "x").write_bytes(b"".join(map(records.__getitem__, lengths.tolist())))
    features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
    with unequal_chunks():
        rows: Any = "16 MiB" if UNEQUAL else one_chunk_or(1)
        virtual = dtf.virtual_zarr(tmp_path / "x", features, columns=[column], rows_per_chunk=rows)
        virtual.to_json(tmp_path / "refs.json")
        assert (tmp_path / "refs.json").stat().st_size < most
        opened = dtf.from_zarr("reference://", storage_options={"fo": str(tmp_path / "refs.json")})
        assert opened.nrows == 1_000_000
        if column == "tokens":
            assert opened.ragged(column)[1][-1].compute() == lengths.sum()


@pytest.fixture
def registry() -> Any:
    """Registry of VirtualiZarr with the local file system."""
    pytest.importorskip("virtualizarr")
    stores = pytest.importorskip("obstore.store")
    return pytest.importorskip("obspec_utils.registry").ObjectStoreRegistry({"file://": stores.LocalStore()})


def test_virtualizarr(urlpath: str, registry: Any, wanted: Columns) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    names = ["label", "vector", "raw/big", "image"]
    parser = dtf.TFRecordParser(FEATURES, columns=names, rows_per_chunk=ROWS)
    with pytest.importorskip("xarray").open_dataset(
        parser(urlpath, registry), engine="zarr", zarr_format=3, consolidated=False
    ) as dataset:
        for name in names:
            assert bits(dataset[name.replace("/", ".")].values) == bits(wanted[name])
    with virtualizarr.open_virtual_dataset(f"file://{urlpath}", registry=registry, parser=parser) as dataset:
        assert dataset.sizes["record"] == 37
        assert dataset["vector"].data.manifest.nbytes > 0
    with unequal_chunks(), pytest.raises(SchemaError, match="'tokens'"):
        dtf.TFRecordParser(RAGGED, columns=["tokens"])(urlpath, registry)


def test_shards_are_joined_by_xarray(tmp_path: Path, registry: Any) -> None:
    """One data set for each shard, as VirtualiZarr is used; Icechunk refuses shards that change later."""
    virtualizarr, xarray = pytest.importorskip("virtualizarr"), pytest.importorskip("xarray")
    urls = [f"file://{write_shards(tmp_path / name, (10,))}".replace("*", "0") for name in "ab"]
    parser = dtf.TFRecordParser({name: FEATURES[name] for name in ("label", "vector")}, rows_per_chunk=5)
    parts = [virtualizarr.open_virtual_dataset(url, registry=registry, parser=parser) for url in urls]
    joined = xarray.concat(parts, dim="record", coords="minimal", compat="override")
    for url in urls:
        os.utime(url.removeprefix("file://"), (time.time() - 100,) * 2)
    references = dtf.virtual_zarr(tmp_path / "*" / "*.tfrecord", parser.features)
    session = repository_of(tmp_path, references).writable_session("main")
    joined.vz.to_icechunk(session.store, last_updated_at=datetime.now(UTC))
    read: Any = zarr.open_group(session.store, mode="r")
    assert read["label"][:].tolist() == [*range(10), *range(10)]
    shard = tmp_path / "b" / "x-0.tfrecord"
    os.utime(shard, (time.time() + 100,) * 2)
    with pytest.raises(Exception, match=r"checksum of the object|modified"):
        read["label"][:]


def test_names_that_virtualizarr_does_not_find(tmp_path: Path, registry: Any) -> None:
    write_oracle(tmp_path / "x#1", [example(k=[1])])
    with pytest.raises(ValueError, match=r"x#1: VirtualiZarr reads \? and # in a file name"):
        dtf.TFRecordParser({"k": dtf.FixedLenFeature((), "int64")})(str(tmp_path / "x#1"), registry)


def repository_of(folder: Path, virtual: VirtualZarr) -> Any:
    """Return a repository of Icechunk that may read the shards."""
    icechunk = pytest.importorskip("icechunk")
    config = icechunk.RepositoryConfig.default()
    for url in virtual.locations:
        shards = icechunk.local_filesystem_store(url.removeprefix("file://"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, shards))
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # None in Icechunk 1
    allowed = icechunk.containers_credentials(dict.fromkeys(virtual.locations, access))
    storage = icechunk.local_filesystem_storage(str(folder / "repository"))
    return icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)


def test_icechunk_grows_by_commits(tmp_path: Path) -> None:
    features: Any = {**FEATURES, **RAGGED} if UNEQUAL else FEATURES
    urls = [write_shards(tmp_path / f"part {number}", sizes) for number, sizes in enumerate([(10, 10), (20, 5)])]
    with unequal_chunks():
        parts = [dtf.virtual_zarr(url, features, rows_per_chunk=ROWS) for url in urls]
        repository = repository_of(tmp_path, parts[0])
        first = parts[0].to_icechunk(repository.writable_session("main"), component="train")
        second = parts[1].to_icechunk(repository.writable_session("main"), component="train", append_dim="record")
        assert [each.id for each in repository.ancestry(branch="main")][:2] == [second, first]
        both = dtf.read_tfrecord(urls, features).compute()
        assert_group(repository.readonly_session("main").store, both, component="train")
        old = repository.readonly_session(snapshot_id=first).store
        assert_group(old, dtf.read_tfrecord(urls[0], features).compute(), component="train")
        session = repository.writable_session("main")
        for append_dim, error, said in (
            (None, FileExistsError, "append_dim='record' adds"),
            ("record", ValueError, "already refers to"),
            ("row", ValueError, "append_dim must be 'record'"),
        ):
            with pytest.raises(error, match=said):
                parts[1].to_icechunk(session, component="train", append_dim=append_dim)
        other = dtf.virtual_zarr(write_shards(tmp_path / "other", (5,)), {"label": FEATURES["label"]})
        with pytest.raises(SchemaError, match="no references to records with these features"):
            other.to_icechunk(session, component="train", append_dim="record")
        assert not session.has_uncommitted_changes
    with pytest.raises(ValueError, match="expected a session of Icechunk"):
        other.to_icechunk(tmp_path)


def test_icechunk_of_a_path_with_dots(tmp_path: Path) -> None:
    url = write_shards(tmp_path / "shards", (5,))
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    for spelled in (f"{tmp_path}/real/../shards", f"{tmp_path}/link/../../shards"):
        virtual = dtf.virtual_zarr(f"{spelled}/{Path(url).name}", FEATURES)
        folder = tmp_path / spelled.rpartition("/")[0][len(f"{tmp_path}/") :].replace("/", "-")
        check_icechunk(virtual, dtf.read_tfrecord(url, FEATURES).compute(), folder)


def test_icechunk_needs_a_container(tmp_path: Path) -> None:
    parts = [
        dtf.virtual_zarr(write_shards(tmp_path / name, (5,)), {"label": FEATURES["label"]}) for name in ("in", "out")
    ]
    if "%" in tmp_path.as_uri():
        pytest.skip("containers of Icechunk end before an escaped character, so one serves both directories")
    session = repository_of(tmp_path, parts[0]).writable_session("main")
    with pytest.raises(ValueError, match=r"no virtual chunk container for file://.*/out/"):
        parts[1].to_icechunk(session)
    assert not session.has_uncommitted_changes


def test_urls_of_icechunk(virtual: VirtualZarr) -> None:
    files = ("s3://b/d/x", "s3a://b/d/y", "gs://b/x", "https://host/d/x", "/a/b c/x", "/a/x")
    expected = ("s3://b/d/", "gcs://b/", "https://host/d/", "file:///a/")
    assert replace(virtual, files=files).locations == expected


@pytest.mark.slow
def test_memory(urlpath: str, wanted: Columns, tmp_path: Path) -> None:
    for path in Path(urlpath).parent.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/virtual/{path.name}", path.read_bytes())
    virtual = dtf.virtual_zarr("memory://virtual/x-*", FEATURES, rows_per_chunk=ROWS)
    check(virtual, wanted)
    virtual.to_json("memory://virtual/refs.json")
    assert_group("reference://", wanted, options={"fo": "memory://virtual/refs.json"})
    write_oracle(tmp_path / "x", [example(label=[1])])
    with pytest.raises(ValueError, match="one file system"):
        dtf.virtual_zarr([tmp_path / "x", "memory://virtual/x-0.tfrecord"], {"label": FEATURES["label"]})
    with pytest.raises(ValueError, match="a URL of one file system"):
        dtf.virtual_zarr("simplecache::memory://virtual/x-0.tfrecord", FEATURES)


@pytest.mark.integration
@pytest.mark.slow
def test_an_object_store(urlpath: str, wanted: Columns, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        store = make_store("s3", request, stack)
        for path in Path(urlpath).parent.iterdir():
            store.put(path.name, path.read_bytes())
        virtual = dtf.virtual_zarr(f"{store.url}/x-*", FEATURES, rows_per_chunk=ROWS, storage_options=store.options)
        virtual.to_json(f"{store.url}/refs.json", storage_options=store.options)
        remote = {"remote_options": {**store.options, "asynchronous": True}, "target_options": store.options}
        for options in ({"fo": virtual.references(), **remote}, {"fo": f"{store.url}/refs.json", **remote}):
            assert_group("reference://", wanted, options=options)


# ---------------------------------------------------------------------------------------------------------- refusals


def test_a_dtype_without_a_name_in_zarr(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    write_oracle(tmp_path / "x", [])
    with pytest.raises(SchemaError, match="Zarr has no name for dtype bfloat16"):
        dtf.virtual_zarr(tmp_path / "x", {"h": dtf.RawFeature((2,), "bfloat16")})


def test_a_part_of_a_compressed_shard(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a.gz", [example(k=[1])], "gzip")
    write_oracle(tmp_path / "b", [example(k=[1])])
    with pytest.raises(SchemaError, match="compressed in several ways"):
        dtf.virtual_zarr([tmp_path / "a.gz", tmp_path / "b"], {"k": dtf.FixedLenFeature((), "int64")})


def test_arguments(tmp_path: Path, virtual: VirtualZarr) -> None:
    with pytest.raises(ValueError, match=r"ends in .json"):
        virtual.to_json(tmp_path / "refs")
    with pytest.raises(ValueError, match=r"ends in .parquet or .parq"):
        virtual.to_parquet(tmp_path / "refs")
    for size in (0, True, 1.5):
        with pytest.raises(ValueError, match="record_size"):
            virtual.to_parquet(tmp_path / "refs.parquet", record_size=size)  # type: ignore[arg-type]
    (tmp_path / "refs.json").touch()
    with pytest.raises(FileExistsError, match=r"refs.json exists"):
        virtual.to_json(tmp_path / "refs.json")
    (tmp_path / "refs.parquet").mkdir()
    with pytest.raises(FileExistsError, match=r"refs.parquet exists"):
        virtual.to_parquet(tmp_path / "refs.parquet")


def test_a_failed_write_leaves_no_file(tmp_path: Path, virtual: VirtualZarr, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")

    def fail(*args: object, **options: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pandas.DataFrame, "to_parquet", fail)
    with pytest.raises(OSError, match="no space left"):
        virtual.to_parquet(tmp_path / "refs.parquet")
    monkeypatch.setattr(VirtualZarr, "references", fail)
    with pytest.raises(OSError, match="no space left"):
        virtual.to_json(tmp_path / "refs.json")
    assert not list(tmp_path.iterdir())


def test_references_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """A file with a value of a record a chunk and metadata of Zarr v2, as versions before the codec wrote it."""
    folder = DATA / "virtual"
    text = (folder / "values.json").read_text("utf-8").replace("FOLDER", str(folder))
    (tmp_path / "refs.json").write_text(text, "utf-8")
    options = {"fo": str(tmp_path / "refs.json")}
    group: Any = zarr.open_group("reference://", mode="r", storage_options=options)
    features: dict[str, Any] = {
        "vector": dtf.FixedLenFeature((2, 2), "float32"),
        "raw": dtf.RawFeature((4,), ">i2"),
    }
    wanted = dtf.read_tfrecord(f"{folder}/x-*.tfrecord", features).compute()
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset("reference://", engine="zarr", storage_options=options) as dataset:
        for name, array in wanted.items():
            assert len(array) == 6
            assert np.array_equal(group[name][:], array) and np.array_equal(dataset[name].values, array)


def test_checksums_in_metadata_are_read(tmp_path: Path) -> None:
    """References of versions that kept checksums in the metadata of each array."""
    folder = tmp_path / "shards"
    shutil.copytree(DATA / "virtual", folder)
    references = json.loads((folder / "codec_chunks.json").read_text("utf-8").replace("FOLDER", str(folder)))
    features: dict[str, Any] = {
        "vector": dtf.FixedLenFeature((2, 2), "float32"),
        "raw": dtf.RawFeature((4,), ">i2"),
    }
    wanted = dtf.read_tfrecord(f"{folder}/x-*.tfrecord", features).compute()
    assert_group("reference://", wanted, options={"fo": references})
    (folder / "x-0.tfrecord").write_bytes((folder / "x-1.tfrecord").read_bytes())
    with pytest.raises(CorruptRecordError, match="not those that the store refers to"):
        dtf.from_zarr("reference://", storage_options={"fo": references}).compute()


# -------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_the_command(tmp_path: Path, urlpath: str, wanted: Columns, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    target = tmp_path / f"refs.{suffix}"
    (tmp_path / "schema.json").write_text(dtf.Schema(FEATURES).to_json(), "utf-8")
    names = ["label", "image"]
    result = run("virtual", urlpath, target, "--features", tmp_path / "schema.json", "--columns", ",".join(names))
    assert result.exit_code == 0, result.stderr
    assert f"Wrote {target}: references to 37 records of 2 features in " in result.stdout
    opened = str(target) if suffix == "json" else by_pyarrow(target)
    assert_group("reference://", {name: wanted[name] for name in names}, options={"fo": opened})
    # A target is refused before shards are read.
    for name, said in (("refs", "ends in .json or .parquet or .parq"), (target.name, f"{target.name} exists")):
        result = run("virtual", tmp_path / "nothing", tmp_path / name)
        assert result.exit_code == 1
        assert said in result.stderr


def test_text_is_decoded_to_bytes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtf.to_tfrecord({"t": ["a", "näme", ""]}, tmp_path / "s.tfrecord")
    references = dtf.virtual_zarr(tmp_path / "s.tfrecord", {"t": dtf.TextFeature()}).references()

    def assemble(*_: object) -> None:
        raise AssertionError("zarr takes bytes: text would be made of them and turned back")

    monkeypatch.setattr(dtf.TextFeature, "assemble", assemble)
    group = zarr.open_group("reference://", storage_options={"fo": references}, mode="r")
    assert group["t"][:].tolist() == [b"a", "näme".encode(), b""]
