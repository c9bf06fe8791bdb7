"""Virtual Zarr: zarr and xarray read the values of `read_tfrecord` through references into the shards."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dask
import fsspec
import numpy as np
import oracle
import pytest
import zarr
from fsspec.implementations.reference import LazyReferenceMapper
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import write_oracle
from support.bits import bits
from support.commands import run
from support.golden import expected, shard, spec
from support.object_stores import make_store
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import CorruptRecordError, FeatureError, SchemaError
from dask_tfrecord.settings import Limits
from dask_tfrecord.stores.virtual.references import VirtualZarr

COUNTER = itertools.count()
FEATURES: dict[str, Any] = {
    "vector": dtf.FixedLenFeature((2, 2), "float32"),
    "scalar": dtf.FixedLenFeature((), "float32"),
    "raw/big": dtf.RawFeature((3,), ">i2"),
    "flag": dtf.RawFeature((), "bool"),
    "wave": dtf.RawFeature((2,), "complex64"),
    "": dtf.RawFeature((2, 1), "float16"),
}
# Features of the golden files with one byte range per record.
GOLDEN = {
    "scalars": ["f"],
    "fixed_shapes": ["m"],
    "one_record": ["f"],
    "unicode_names": ["a/b c"],
    "decode_raw": ["be_i2", "f2", "f4", "f8", "u1"],
}


def record_of(number: int, *, others: int = 0, order: int = 1) -> bytes:
    """Return a record of `FEATURES`, with keys in either order and other keys before and between them."""
    rng = np.random.default_rng(number)
    features: dict[str, list[Any]] = {
        "vector": rng.normal(size=4).tolist(),
        "scalar": [float(number)],
        "raw/big": [rng.integers(-999, 999, 3).astype(">i2").tobytes()],
        "flag": [bytes([number % 2])],
        "wave": [(rng.normal(size=2) + 1j).astype("<c8").tobytes()],
        "": [np.array([number, np.nan], "<f2").tobytes()],
        "label": [number],
    }
    features |= {f"other-{other}": [bytes(rng.integers(0, 400))] for other in range(others)}
    # protobuf merges concatenated messages.
    return b"".join(example(**{key: features[key]}) for key in list(features)[::order])


@pytest.fixture(scope="module")
def urlpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five shards, one of them empty, with records of several layouts."""
    directory, record = tmp_path_factory.mktemp("a b%20c"), itertools.count()
    for number, size in enumerate((3, 0, 7, 1, 4)):
        payloads = [record_of(next(record), others=(n * number) % 4, order=1 - 2 * (n % 2)) for n in range(size)]
        write_oracle(directory / f"x-{number}.tfrecord", payloads)
    return str(directory / "x-*.tfrecord")


@pytest.fixture(scope="module")
def wanted(urlpath: str) -> dict[str, NDArray[Any]]:
    return dtf.read_tfrecord(urlpath, FEATURES).compute()


@pytest.fixture(scope="module")
def virtual(urlpath: str) -> VirtualZarr:
    return dtf.virtual_zarr(urlpath, FEATURES)


def read_zarr(fo: Any, **options: Any) -> dict[str, NDArray[Any]]:
    group = zarr.open_group("reference://", mode="r", storage_options={"fo": fo, **options})
    return {name: np.asarray(array[...]) for name, array in group.arrays()}  # type: ignore[index]


def read_xarray(fo: Any, *, consolidated: bool | None = None, **options: Any) -> dict[str, NDArray[Any]]:
    xarray = pytest.importorskip("xarray")
    opened = xarray.open_dataset(
        "reference://", engine="zarr", consolidated=consolidated, storage_options={"fo": fo, **options}
    )
    with opened as dataset:
        return {str(name): array.values for name, array in dataset.items()}


def bits_of(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: bits(array) for name, array in columns.items()}


def native(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return bits_of({name: array.astype(array.dtype.newbyteorder("=")) for name, array in columns.items()})


def check(virtual: VirtualZarr, wanted: Mapping[str, NDArray[Any]]) -> None:
    """Compare arrays bit by bit, including NaN payloads and signs of zeros, independent of the byte order."""
    names = {name.replace("/", ".") or "%": bits(array) for name, array in wanted.items()}
    for read in (read_zarr, read_xarray):
        assert native(read(virtual.references())) == names


@pytest.mark.parametrize("case", GOLDEN)
def test_shards_of_tensorflow(golden: Path, case: str) -> None:
    virtual = dtf.virtual_zarr(shard(golden, case), **spec(golden, case), columns=GOLDEN[case])
    wanted = expected(golden, case)
    check(virtual, {name: wanted[name] for name in GOLDEN[case]})


def test_shards_and_records_of_any_layout(urlpath: str, virtual: VirtualZarr, wanted: dict[str, NDArray[Any]]) -> None:
    assert virtual.file_numbers.tolist() == [0] * 3 + [2] * 7 + [3] + [4] * 4
    check(virtual, wanted)
    payloads = [each for path in sorted(Path(urlpath).parent.iterdir()) for each in oracle.read_payloads(path)]
    check(virtual, oracle.expected_columns(payloads, FEATURES))
    refs = virtual.references()["refs"]
    for record, value in enumerate(wanted["vector"]):
        file, offset, size = refs[f"vector/{record}.0.0"]
        assert Path(file).read_bytes()[offset : offset + size] == value.tobytes()
    assert len(chunks_of(virtual)) == virtual.nrecords * len(FEATURES) == 15 * len(FEATURES)
    assert repr(virtual) == "<VirtualZarr: 15 records of 5 files: vector, scalar, raw.big, flag, wave, %>"
    group = zarr.open_group("reference://", mode="r", storage_options={"fo": virtual.references()})
    own: Any = group.attrs["dask_tfrecord"]
    assert dtf.Schema.from_json(json.dumps(own["schema"])) == FEATURES
    assert own["source"] == dict(dtf.read_tfrecord(urlpath, FEATURES).origin)
    assert group["raw.big"].attrs["_ARRAY_DIMENSIONS"] == ["record", "raw.big.dim_1"]


def chunks_of(virtual: VirtualZarr) -> list[str]:
    return [key for key in virtual.references()["refs"] if not key.rpartition("/")[2].startswith(".z")]


SOME = dtf.Schema({"f": FEATURES["vector"], "r": FEATURES["raw/big"]})
ENCODINGS = oracle.examples(SOME, others=True).flatmap(oracle.wire_encodings).map(lambda drawn: drawn[1])


@settings(max_examples=max(8, settings().max_examples // 4))
@given(payloads=st.lists(ENCODINGS, min_size=1, max_size=4))
def test_any_legal_encoding_is_read_or_refused(tmp_path: Path, payloads: list[bytes]) -> None:
    path = tmp_path / f"{next(COUNTER)}.tfrecord"
    write_oracle(path, payloads)
    wanted = oracle.expected_columns(payloads, SOME)
    try:
        virtual = dtf.virtual_zarr(path, SOME)
    except FeatureError as error:
        assert "holds its values in several runs" in str(error)
        assert error.place is not None
        assert error.place.feature == "f"
        # Bytes are always one run.
        virtual, wanted = dtf.virtual_zarr(path, SOME, columns=["r"]), {"r": wanted["r"]}
    assert native(read_zarr(virtual.references())) == bits_of(wanted)


def test_schedulers_and_partial_shards(tmp_path: Path, set_limits: Callable[..., Limits]) -> None:
    write_oracle(tmp_path / "x", [record_of(record, others=record % 3) for record in range(400)])
    whole = dtf.virtual_zarr(tmp_path / "x", FEATURES)
    set_limits(entry_nbytes=1000, index_window_nbytes=2000, scan_task_nbytes=10_000)
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            pieces = dtf.virtual_zarr(tmp_path / "x", FEATURES)
        for one, other in zip(pieces.arrays, whole.arrays, strict=True):
            assert one.offsets.tolist() == other.offsets.tolist()
    # Tasks of processes receive a copy of the decoder.
    decoder = Decoder(dtf.Schema(FEATURES), "offsets")
    assert dask.base.tokenize(pickle.loads(pickle.dumps(decoder))) == dask.base.tokenize(decoder)


def test_a_part_of_a_split() -> None:
    folder, names = Path(__file__).parent / "data" / "tfds" / "every", ["tensor", "scalar/float32"]
    for split in ("train", "test+train[1:4]"):
        virtual = dtf.virtual_zarr(folder, split=split, columns=names)
        check(virtual, dtf.read_tfrecord(folder, split=split, columns=names).compute())


@pytest.mark.parametrize("rows", [0, 1])
def test_zeros_are_values_and_no_records_are_arrays(tmp_path: Path, rows: int) -> None:
    features: Any = {"f": dtf.FixedLenFeature((), "float32"), "i": dtf.RawFeature((), "int32")}
    columns = {"f": np.zeros(rows, "f4"), "i": np.zeros(rows, "i4")}
    dtf.to_tfrecord(columns, tmp_path / "x", features=features)
    check(dtf.virtual_zarr(tmp_path / "x", features), columns)


def test_contexts_of_sequence_examples(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [sequence_example({"f": [1.0, 2.0]}, steps=[[3.0]])])
    given: Any = {"features": {"f": dtf.FixedLenFeature((2,), "float32")}}
    steps: Any = {"steps": dtf.FixedLenSequenceFeature((), "float32")}
    virtual = dtf.virtual_zarr(tmp_path / "x", **given, sequence_features=steps, columns=["f"])
    assert read_zarr(virtual.references())["f"].tolist() == [[1, 2]]
    with pytest.raises(SchemaError, match="'steps': the steps of a feature list are not contiguous"):
        dtf.virtual_zarr(tmp_path / "x", **given, sequence_features=steps)


# ----------------------------------------------------------------------------------------------------------- storage


def by_pyarrow(path: Path) -> LazyReferenceMapper:
    pytest.importorskip("pandas")
    return LazyReferenceMapper(str(path), engine="pyarrow")


def by_fastparquet(path: Path) -> str:
    pytest.importorskip("fastparquet")
    return str(path)


@pytest.mark.parametrize("opened", [str, by_pyarrow, by_fastparquet])
@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
def test_files_of_references(tmp_path: Path, virtual: VirtualZarr, opened: Callable[[Path], Any]) -> None:
    target = tmp_path / ("refs.json" if opened is str else "refs.parquet")
    if opened is str:
        virtual.to_json(target)
    else:
        pytest.importorskip("pyarrow")
        virtual.to_parquet(target, record_size=4)
        assert len(list((target / "vector").iterdir())) == 4
    for consolidated in (True, False, None):
        found = read_xarray(opened(target), consolidated=consolidated)
        assert bits_of(found) == bits_of(read_xarray(virtual.references()))
    assert bits_of(read_zarr(opened(target))) == bits_of(read_zarr(virtual.references()))


@pytest.fixture
def registry() -> Any:
    """Registry of VirtualiZarr with the local file system."""
    pytest.importorskip("virtualizarr")
    stores = pytest.importorskip("obstore.store")
    return pytest.importorskip("obspec_utils.registry").ObjectStoreRegistry({"file://": stores.LocalStore()})


def read_manifests(store: Any) -> dict[str, Any]:
    with pytest.importorskip("xarray").open_dataset(store, engine="zarr", zarr_format=3, consolidated=False) as dataset:
        return {str(name): bits(array.values) for name, array in dataset.items()}


def test_virtualizarr_reads_references(tmp_path: Path, urlpath: str, registry: Any) -> None:
    parser = pytest.importorskip("virtualizarr.parsers").KerchunkJSONParser()
    if quote(str(tmp_path)) != str(tmp_path):
        pytest.skip("this parser encodes spaces and percent signs of local paths, and then finds no such file")
    # The directory of `urlpath` has some.
    shutil.copytree(Path(urlpath).parent, tmp_path / "shards")
    virtual = dtf.virtual_zarr(tmp_path / "shards", FEATURES)
    virtual.to_json(tmp_path / "refs.json")
    found = read_manifests(parser(url=f"file://{tmp_path}/refs.json", registry=registry))
    assert found == bits_of(read_xarray(virtual.references()))


def test_virtualizarr_by_the_parser(urlpath: str, registry: Any) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    virtual = dtf.virtual_zarr(urlpath, FEATURES, columns=["vector", "raw/big", "flag"])
    parser = dtf.TFRecordParser(FEATURES, columns=["vector", "raw/big", "flag"])
    assert read_manifests(parser(urlpath, registry)) == bits_of(read_xarray(virtual.references()))
    with virtualizarr.open_virtual_dataset(f"file://{urlpath}", registry=registry, parser=parser) as dataset:
        assert dataset.sizes["record"] == 15
        assert dataset["vector"].data.manifest.nbytes > 0
        again = dataset.vz.to_kerchunk(format="dict")["refs"]
    ours = virtual.references()["refs"]
    assert {key: again[key] for key in chunks_of(virtual)} == {key: ours[key] for key in chunks_of(virtual)}


def test_names_that_virtualizarr_does_not_find(tmp_path: Path, registry: Any) -> None:
    write_oracle(tmp_path / "x#1", [record_of(0)])
    with pytest.raises(ValueError, match=r"x#1: VirtualiZarr reads \? and # in a file name"):
        dtf.TFRecordParser(FEATURES)(str(tmp_path / "x#1"), registry)


def test_memory(tmp_path: Path, urlpath: str, wanted: dict[str, NDArray[Any]]) -> None:
    for path in Path(urlpath).parent.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/virtual/{path.name}", path.read_bytes())
    virtual = dtf.virtual_zarr("memory://virtual/x-*", FEATURES)
    check(virtual, wanted)
    virtual.to_json("memory://virtual/refs.json")
    assert set(read_zarr("memory://virtual/refs.json")) == {array.name for array in virtual.arrays}
    write_oracle(tmp_path / "x", [record_of(0)])
    with pytest.raises(ValueError, match="one file system"):
        dtf.virtual_zarr([tmp_path / "x", "memory://virtual/x-0.tfrecord"], FEATURES)
    with pytest.raises(ValueError, match="a URL of one file system"):
        dtf.virtual_zarr("simplecache::memory://virtual/x-0.tfrecord", FEATURES)


@pytest.mark.integration
@pytest.mark.slow
def test_an_object_store(urlpath: str, wanted: dict[str, NDArray[Any]], request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        store = make_store("s3", request, stack)
        for path in Path(urlpath).parent.iterdir():
            store.put(path.name, path.read_bytes())
        virtual = dtf.virtual_zarr(f"{store.url}/x-*", FEATURES, storage_options=store.options)
        virtual.to_json(f"{store.url}/refs.json", storage_options=store.options)
        options = {"remote_options": {**store.options, "asynchronous": True}}
        found = read_zarr(virtual.references(), **options)
        assert bits_of(read_zarr(f"{store.url}/refs.json", target_options=store.options, **options)) == bits_of(found)
        assert native({"vector": found["vector"]}) == bits_of({"vector": wanted["vector"]})


# ------------------------------------------------------------------------------------------------------ refusals

REFUSED: dict[str, tuple[Any, str]] = {
    "i": (dtf.FixedLenFeature((), "int64"), "varints"),
    "o": (dtf.FixedLenFeature((), "bool"), "varints"),
    "b": (dtf.FixedLenFeature((), "bytes"), "any length: use RawFeature"),
    "d": (dtf.FixedLenFeature((), "float64"), "use 'float32'"),
    "v": (dtf.VarLenFeature("float32"), "vary in length"),
    "g": (dtf.RaggedFeature("float32"), "vary in length"),
    "s": (dtf.SparseFeature("si", "sv", "float32", 9), "vary in length"),
    "q": (dtf.FixedLenSequenceFeature((), "float32", allow_missing=True, length=3), "vary in length"),
    "r": (dtf.RawFeature((-1,), "uint8"), "vary in length"),
    "z": (dtf.RawFeature((0,), "uint8"), "take no bytes"),
    "e": (dtf.FixedLenFeature((2, 0), "float32"), "take no bytes"),
    "t": (dtf.TextFeature(), "text varies"),
    "n": (dtf.TensorFeature((2,), "float32"), "serialized tensor"),
    "p": (dtf.ImageFeature((2, 2, 3)), "images are encoded"),
    "h": (dtf.RawFeature((2,), "bfloat16"), "Zarr has no name for bfloat16: RawFeature"),
}


def test_features_without_a_byte_range_are_named(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    write_oracle(tmp_path / "x", [])
    features = {**FEATURES, **{name: feature for name, (feature, _) in REFUSED.items()}}
    with pytest.raises(SchemaError) as raised:
        dtf.virtual_zarr(tmp_path / "x", features)
    for name, (_, reason) in REFUSED.items():
        part = next(part for part in str(raised.value).split("; of ") if f"{name!r}: " in part)
        assert reason in part
    assert f"columns={list(FEATURES)} refers to the others" in str(raised.value)
    with pytest.raises(SchemaError, match="to_zarr copies them"):
        dtf.virtual_zarr(tmp_path / "x", {"i": REFUSED["i"][0]})
    with pytest.raises(SchemaError, match="feature 'i': integers"):
        Decoder(dtf.Schema({"i": REFUSED["i"][0]}), "offsets")


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"counts": [1]}], ids=str)
def test_compressed_shards_are_named(tmp_path: Path, options: dict[str, Any]) -> None:
    write_oracle(tmp_path / "x", [record_of(0)], "gzip")
    with pytest.raises(SchemaError, match=r"x: the shard is compressed \(gzip\)"):
        dtf.virtual_zarr(tmp_path / "x", FEATURES, **options)


@pytest.mark.parametrize(
    ("payload", "feature", "said"),
    [
        (b"", dtf.FixedLenFeature((1,), "float32"), "is missing where"),
        (b"", dtf.FixedLenFeature((1,), "float32", 0.0), "the file does not hold the default value of"),
        (b"\x12\x07\x0a\x05\x05\0\0\0\x0d", dtf.FixedLenFeature((1,), "float32"), "a damaged Example of 18 bytes"),
        (b"\x12\x0a\x0d\0\0\0\0\x0d\0\0\0\0", dtf.FixedLenFeature((2,), "float32"), "in several runs"),
        (b"\x12\x0c\x0a\x04\0\0\0\0\x0a\x04\0\0\0\0", dtf.FixedLenFeature((2,), "float32"), "in several runs"),
        (b"\x12\x06\x0a\x04\0\0\0\0", dtf.FixedLenFeature((2,), "float32"), "holds 1 value where .* takes 2"),
        (b"\x0a\x03\x0a\x01\x02", dtf.RawFeature((), "bool"), "holds a byte 2 where"),
        (b"\x0a\x03\x0a\x01\x02", dtf.RawFeature((), "int16"), "holds 1 byte where .* takes 2"),
        (b"\x0a\x06\x0a\x01\x02\x0a\x01\x02", dtf.RawFeature((), "uint8"), "holds 2 values where .* takes 1"),
        (b"\x0a\x03\x0a\x01\x02", dtf.FixedLenFeature((), "float32"), "holds a bytes list where .* takes a float list"),
    ],
)
def test_records_that_do_not_fit_are_named(tmp_path: Path, payload: bytes, feature: Any, said: str) -> None:
    good = [bytes(feature.nbytes)] if isinstance(feature, dtf.RawFeature) else [1.0] * int(np.prod(feature.shape))
    entry = b"\x0a\x01k\x12" + bytes([len(payload)]) + payload
    bad = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    write_oracle(tmp_path / "x", [example(k=good), bad])
    with pytest.raises(FeatureError, match=said) as raised:
        dtf.virtual_zarr(tmp_path / "x", {"k": feature})
    assert raised.value.place is not None
    assert raised.value.place.record == 1
    stored = bytearray((tmp_path / "x").read_bytes())
    stored[-5] ^= 1
    (tmp_path / "x").write_bytes(stored)
    with pytest.raises(CorruptRecordError, match="CRC of the payload") as damaged:
        dtf.virtual_zarr(tmp_path / "x", {"k": feature})
    assert damaged.value.place is not None
    assert damaged.value.place.record == 1


def test_arguments(tmp_path: Path, urlpath: str, virtual: VirtualZarr) -> None:
    with pytest.raises(ValueError, match="needs counted records"):
        dtf.virtual_zarr(urlpath, FEATURES, counts=None)  # type: ignore[arg-type]
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

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(VirtualZarr, "_parquet_file", fail)
    with pytest.raises(OSError, match="no space left"):
        virtual.to_parquet(tmp_path / "refs.parquet")
    monkeypatch.setattr(VirtualZarr, "references", fail)
    with pytest.raises(OSError, match="no space left"):
        virtual.to_json(tmp_path / "refs.json")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_the_command(tmp_path: Path, urlpath: str, wanted: dict[str, NDArray[Any]], suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    target = tmp_path / f"refs.{suffix}"
    (tmp_path / "schema.json").write_text(dtf.Schema(FEATURES).to_json(), "utf-8")
    result = run("virtual", urlpath, target, "--features", tmp_path / "schema.json", "--columns", "vector,flag")
    assert result.exit_code == 0, result.stderr
    assert f"Wrote {target}: references to 15 records of 2 features in " in result.stdout
    found = read_zarr(str(target) if suffix == "json" else by_pyarrow(target))
    assert bits_of(found) == bits_of({name: wanted[name] for name in ("vector", "flag")})
    # A target is refused before shards are read.
    for name, said in (("refs", "ends in .json or .parquet or .parq"), (target.name, f"{target.name} exists")):
        result = run("virtual", tmp_path / "nothing", tmp_path / name)
        assert result.exit_code == 1
        assert said in result.stderr
    result = run("virtual", urlpath, tmp_path / f"more.{suffix}")
    assert "'label': integers are stored as varints" in result.stderr
    assert not (tmp_path / f"more.{suffix}").exists()
