"""From file to NumPy, judged by TensorFlow: its arrays bit for bit, and damage that is told, never passed over."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from numpy.typing import NDArray

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place, SchemaError, TFRecordError
from dask_tfrecord.messages import SequenceExample
from dask_tfrecord.testing import read_payloads

CASES = [
    "scalars",
    "scalars_gzip",
    "scalars_zlib",
    "one_record",
    "fixed_shapes",
    "varlen",
    "ragged",
    "decode_raw",
    "unicode_names",
    "empty_file",
    "wire_encodings",
    "defaults",
    "empty_records",
    "fixed_len_sequence",
    "sparse_feature",
    "ragged_partitions",
    "sequence_example",
    "sequence_ragged_gzip",
    "serialized_tensors",
    "images",
]
# Rows of a record in some that divide nothing.
CHUNKS = ["auto", "shard", 1, 7, 13, 1000, "200 B", "64 MiB"]

Columns = Mapping[str, NDArray[Any]]


def shard(golden: Path, case: str) -> Path:
    [path] = golden.glob(f"{case}.tfrecord*")
    return path


Features = dict[str, Any]
Arguments = dict[str, Features]


def spec(golden: Path, case: str) -> Arguments:
    """The features of a case, as this library calls what TensorFlow parsed it by."""
    said: dict[str, Any] = json.loads((golden / f"{case}.json").read_text("utf-8"))
    if case == "images":
        return {"features": {name: image(name) for name in said["features"]}}
    if said["kind"] == "Example":
        return {"features": {name: feature(given) for name, given in said["features"].items()}}
    return {
        "features": {name: feature(given) for name, given in said["context_features"].items()},
        "sequence_features": {name: feature(given) for name, given in said["sequence_features"].items()},
    }


def feature(given: dict[str, Any]) -> Any:
    given = dict(given)
    if "out_type" in given and "shape" in given:
        return dtf.TensorFeature(given["shape"], given["out_type"])
    if "out_type" in given:
        order = "<" if given.get("little_endian", True) else ">"
        return dtf.RawFeature((4, 5), np.dtype(given["out_type"]).newbyteorder(order))
    cls = getattr(dtf, given.pop("class"))
    if isinstance(given.get("default_value"), dict):
        given["default_value"] = given["default_value"]["bytes"].encode()
    if "partitions" in given:
        given["partitions"] = [partition(part) for part in given["partitions"]]
    return cls(**given)


def partition(given: dict[str, Any]) -> Any:
    given = dict(given)
    return getattr(dtf.RaggedFeature, given.pop("class"))(**given)


def image(name: str) -> dtf.ImageFeature:
    channels = {"png16": 1, "png_gray": 1, "png_rgba": 4}.get(name, 3)
    return dtf.ImageFeature((24, 32, channels), "uint16" if name == "png16" else "uint8")


def expected(golden: Path, case: str) -> dict[str, NDArray[Any]]:
    """TensorFlow's arrays; a sparse or ragged tensor as an object array with one array per record."""
    with np.load(golden / f"{case}.npz") as stored:
        parts = {re.sub("^(context|sequence)/", "", name): stored[name] for name in stored}
    for name in [name.removesuffix(".bytes") for name in parts if name.endswith(".bytes")]:
        data, splits = parts.pop(f"{name}.bytes").tobytes(), parts.pop(f"{name}.byte_splits").tolist()
        values = np.empty(len(splits) - 1, object)
        values[:] = [data[start:stop] for start, stop in pairwise(splits)]
        parts[name] = values.reshape(parts.pop(f"{name}.shape"))
    for name in [name.removesuffix(".indices") for name in parts if name.endswith(".indices")]:
        parts |= from_sparse(golden, case, name, *(parts.pop(f"{name}.{part}") for part in SPARSE_PARTS))
    for name in [name.removesuffix(".row_splits0") for name in parts if name.endswith(".row_splits0")]:
        values = parts.pop(f"{name}.values")
        if f"{name}.row_splits1" in parts:
            values = pieces(values, parts.pop(f"{name}.row_splits1"))
        parts[name] = pieces(values, parts.pop(f"{name}.row_splits0"))
    for name in [name.removeprefix("length/") for name in parts if name.startswith("length/")]:
        parts[f"{name}.lengths"] = parts.pop(f"length/{name}")
    for name in spec(golden, case).get("sequence_features", {}):
        # TensorFlow tells the lengths of dense feature lists alone.
        parts.setdefault(f"{name}.lengths", np.array([len(steps) for steps in parts[name]], np.int64))
    if case == "wire_encodings":
        # TensorFlow refuses three of the nine encodings; protobuf reads all of them as the same message.
        said = json.loads((golden / f"{case}.json").read_text("utf-8"))["rows"]
        parts = {name: np.array([row["protobuf"][name] for row in said], parts[name].dtype) for name in parts}
    return parts


SPARSE_PARTS = ("indices", "values", "dense_shape")


def from_sparse(
    golden: Path, case: str, name: str, indices: NDArray[Any], values: NDArray[Any], shape: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """What a sparse tensor is here: rows of values, of steps of values, or the three parts of a `SparseFeature`."""
    rows = np.searchsorted(indices[:, 0], np.arange(shape[0] + 1))
    if case == "sparse_feature":
        sizes = np.tile(shape[1:], (shape[0], 1))
        return {
            f"{name}.indices": pieces(indices[:, 1:], rows),
            f"{name}.values": pieces(values, rows),
            f"{name}.shape": sizes,
        }
    if len(shape) == 2:
        return {name: pieces(values, rows)}
    # Steps without values at the end of a record are not in the tensor.
    found = np.empty(shape[0], object)
    for row, payload in enumerate(read_payloads(shard(golden, case))):
        steps = len(SequenceExample.FromString(payload).feature_lists.feature_list[name].feature)
        here = slice(rows[row], rows[row + 1])
        found[row] = pieces(values[here], np.searchsorted(indices[here, 1], np.arange(steps + 1)))
    return {name: found}


def pieces(values: NDArray[Any], splits: NDArray[Any]) -> NDArray[Any]:
    rows = np.empty(len(splits) - 1, object)
    for row, (start, stop) in enumerate(pairwise(splits)):
        rows[row] = values[start:stop]
    return rows


def check(found: Columns, wanted: Columns) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        if name == "jpeg":
            # Of TensorFlow's accurate DCT; decoders differ by rounding.
            assert np.abs(found[name].astype(int) - array).max() <= 2
        else:
            assert bits(found[name]) == bits(array), name


def bits(array: NDArray[Any]) -> Any:
    """What an array holds, NaN payloads and signs of zeros included."""
    if array.dtype != object:
        return array.tobytes()
    return [(bits(item), item.dtype, item.shape) if isinstance(item, np.ndarray) else item for item in array.ravel()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_golden_files_equal_tensorflow(golden: Path, case: str, chunks: Any) -> None:
    features, wanted = spec(golden, case), expected(golden, case)
    ds = dtf.read_tfrecord(shard(golden, case), **features, chunks=chunks)
    assert ds.nrecords == (
        9 if case == "wire_encodings" else json.loads((golden / f"{case}.json").read_text())["records"]
    )
    check(ds.compute(), wanted)
    together = ds[tuple(wanted)]
    check(dict(zip(wanted, dask.compute(*together), strict=True)), wanted)
    check({name: ds[name].compute() for name in wanted}, wanted)
    assert {name: (array.shape, array.dtype) for name, array in ds.items()} == {
        name: (array.shape, array.dtype) for name, array in wanted.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_golden_files_on_every_path(golden: Path, case: str) -> None:
    features, wanted = spec(golden, case), expected(golden, case)
    ds = dtf.read_tfrecord(shard(golden, case), **features, chunks=13)
    for scheduler in ["sync", "threads"]:
        check(ds.compute(scheduler=scheduler), wanted)
        check(dask.compute(ds, scheduler=scheduler)[0], wanted)
        check(ds.persist(scheduler=scheduler).compute(), wanted)
    check(ds.map_blocks(lambda blocks: blocks).compute(), wanted)
    check(ds.persist().map_blocks(lambda blocks: blocks).compute(), wanted)
    backwards = {name: array[::-1] for name, array in wanted.items()}
    check(ds.rows[::-1].compute(), backwards)
    check(ds.persist().rows[::-1].compute(), backwards)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunks", ["auto", "shard"])
def test_golden_files_without_a_scan(golden: Path, case: str, chunks: str) -> None:
    features, wanted = spec(golden, case), expected(golden, case)
    if case == "fixed_len_sequence":
        with pytest.raises(SchemaError, match=r"'bbox': with counts=None nothing is counted; .* length="):
            dtf.read_tfrecord(shard(golden, case), **features, counts=None)
    for group in features.values():
        group |= {
            name: replace(given, length=wanted[name].shape[1])
            for name, given in group.items()
            if isinstance(given, dtf.FixedLenSequenceFeature)
        }
    ds = dtf.read_tfrecord(shard(golden, case), **features, chunks=chunks, counts=None)
    assert ds.nrecords is None
    check(ds.compute(), wanted)
    check(dict(zip(wanted, dask.compute(*ds[tuple(wanted)]), strict=True)), wanted)
    check({name: array.compute() for name, array in ds.items()}, wanted)
    check(ds.persist().compute(), wanted)


@pytest.mark.slow
def test_golden_files_on_processes(golden: Path) -> None:
    for case in ["scalars_gzip", "varlen", "unicode_names", "sequence_example", "ragged_partitions", "images"]:
        ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=20)
        check(ds.compute(scheduler="processes"), expected(golden, case))


@pytest.mark.parametrize("case", ["scalars", "fixed_shapes", "one_record", "unicode_names", "varlen", "wire_encodings"])
def test_inferred_features_equal_tensorflow(golden: Path, case: str) -> None:
    # Nothing in a record tells the shape of its values.
    wanted = {
        name: array.reshape(len(array), *[-1][: array.ndim - 1]) for name, array in expected(golden, case).items()
    }
    check(dtf.read_tfrecord(shard(golden, case), columns=list(wanted), chunks=17).compute(), wanted)


def test_several_files_at_once(golden: Path) -> None:
    names = ["scalars", "scalars_gzip", "scalars_zlib"]
    one = expected(golden, "scalars")
    ds = dtf.read_tfrecord([shard(golden, name) for name in names], **spec(golden, "scalars"), chunks=61)
    assert ds.chunks == (61, 61, 61, 61, 47)
    check(ds.compute(), {name: np.concatenate([array] * 3) for name, array in one.items()})


def test_special_floats_are_among_the_golden_ones(golden: Path) -> None:
    # Otherwise "bit for bit" above would say little.
    floats = expected(golden, "scalars")["f"]
    assert np.isnan(floats).any()
    assert ((floats == 0) & np.signbit(floats)).any()


def test_an_empty_file(golden: Path) -> None:
    path = shard(golden, "empty_file")
    with pytest.raises(SchemaError, match="no record to infer features from: give features="):
        dtf.read_tfrecord(path)
    features = {
        "x": dtf.FixedLenFeature((2,), "int64"),
        "t": dtf.TextFeature(),
        "v": dtf.VarLenFeature("float32"),
        "b": dtf.FixedLenFeature((), "bytes"),
        "r": dtf.RawFeature((3,), ">i2"),
    }
    for counts in ("auto", None, [0]):
        ds = dtf.read_tfrecord(path, features, counts=counts)
        found = ds.compute()
        assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
            "x": ((0, 2), np.int64),
            "t": ((0,), np.dtypes.StringDType()),
            "v": ((0,), object),
            "b": ((0,), object),
            "r": ((0, 3), np.int16),
        }
        assert ds["x"].sum().compute() == 0
        assert ds.count() == 0
        values, splits = ds.ragged("v")
        assert (values.compute().shape, splits.compute().tolist()) == ((0,), [0])
        assert ds.padded("v", 3).compute().shape == (0, 3)
    assert dtf.read_tfrecord(path, {}).compute() == {}


# -- damage ------------------------------------------------------------------------------------------------------------

FEATURES = {
    "i": dtf.FixedLenFeature((), "int64"),
    "b": dtf.FixedLenFeature((), "bytes"),
}
# What the header scan sees, and where: the eighth record begins at byte 5723, the thirteenth at byte 6120.
AT_OPEN = [
    ("huge_length", 7, 5723, r"the CRC of the length does not hold|truncated payload"),
    ("length_bit", 7, 5723, "the CRC of the length does not hold"),
    ("length_crc", 7, 5723, "the CRC of the length does not hold"),
    ("not_a_tfrecord", 0, 0, "no TFRecord file"),
    ("trailing_garbage", 20, 6789, r"truncated header: expected 12 bytes, found 8"),
    ("truncated_footer", 12, 6120, "truncated footer"),
    ("truncated_header", 12, 6120, "truncated header: expected 12 bytes, found 5"),
    ("truncated_payload", 12, 6120, "truncated payload"),
]
WHEN_READ = [
    ("payload_bit", 7, 5723, "the CRC of the payload does not hold"),
    ("payload_crc", 7, 5723, "the CRC of the payload does not hold"),
]


def damaged_features(golden: Path) -> dict[str, Any]:
    return dict(dtf.infer_schema(golden / "damaged_none.tfrecord", sample=None))


def test_the_undamaged_file_is_read(golden: Path) -> None:
    ds = dtf.read_tfrecord(golden / "damaged_none.tfrecord", damaged_features(golden))
    assert ds.nrecords == 20
    assert all(len(column) == 20 for column in ds.compute().values())


@pytest.mark.parametrize(("name", "record", "offset", "message"), AT_OPEN, ids=[case[0] for case in AT_OPEN])
def test_damaged_framing_is_told_at_open(golden: Path, name: str, record: int, offset: int, message: str) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    with pytest.raises(CorruptRecordError, match=message) as caught:
        dtf.read_tfrecord(path, damaged_features(golden))
    assert caught.value.place == Place(str(path), record, offset)
    assert str(caught.value).startswith(f"{path}: record {record} (byte {offset}): ")


@pytest.mark.parametrize(
    ("name", "record", "offset", "message"), AT_OPEN + WHEN_READ, ids=[case[0] for case in AT_OPEN + WHEN_READ]
)
def test_damage_is_told_when_it_is_read(golden: Path, name: str, record: int, offset: int, message: str) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    features = damaged_features(golden)
    ways: dict[str, Callable[[dtf.Dataset], object]] = {
        "all": lambda ds: ds.compute(),
        "one": lambda ds: ds[next(iter(features))].compute(),
        "together": lambda ds: dask.compute(*ds[tuple(features)]),
        "persist": lambda ds: ds.persist(),
        "count": lambda ds: ds.count(),
    }
    for way, read in ways.items():
        # Without a scan, damage is found by whoever gets there, and its number and place are known all the same.
        with pytest.raises(CorruptRecordError, match=message) as caught:
            read(dtf.read_tfrecord(path, features, counts=None))
        assert caught.value.place == Place(str(path), record, offset), way


@pytest.mark.parametrize(("name", "record", "offset", "message"), WHEN_READ, ids=[case[0] for case in WHEN_READ])
def test_damaged_payloads_hurt_only_who_reads_them(
    golden: Path, name: str, record: int, offset: int, message: str
) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    features = damaged_features(golden)
    whole = dtf.read_tfrecord(golden / "damaged_none.tfrecord", features).compute()
    ds = dtf.read_tfrecord(path, features, chunks=3)
    for rows in [slice(0, record), slice(record + 1, 20)]:
        check(ds.rows[rows].compute(), {key: array[rows] for key, array in whole.items()})
    for rows in [slice(None), slice(record, record + 1), [0, record, 19]]:
        with pytest.raises(CorruptRecordError, match=message) as caught:
            ds.rows[rows].compute()
        assert caught.value.place == Place(str(path), record, offset)


def test_a_payload_that_fails_its_crc_may_be_read_without_it(golden: Path) -> None:
    features = damaged_features(golden)
    whole = dtf.read_tfrecord(golden / "damaged_none.tfrecord", features).compute()
    # Only the stored CRC is wrong here.
    path = golden / "damaged_payload_crc.tfrecord"
    check(dtf.read_tfrecord(path, features, check_crc=False).compute(), whole)


@pytest.mark.parametrize("counts", ["scan", None, "given"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_no_tail_is_lost_in_silence(golden: Path, tmp_path: Path, counts: Any, compression: str | None) -> None:
    """Every cut of the last two records is an error, unless it falls between records."""
    features = damaged_features(golden)
    data = (golden / "damaged_none.tfrecord").read_bytes()
    offsets = json.loads((golden / "damaged.json").read_text())["record_offsets"]
    path = tmp_path / "cut.tfrecord"
    for length in range(offsets[18], len(data)):
        cut = data[:length]
        path.write_bytes(gzip.compress(cut, 1) if compression else cut)
        whole = [19, 18][length < offsets[19]]
        given = [20] if counts == "given" else counts
        if length in offsets and counts != "given":
            assert dtf.read_tfrecord(path, features, counts=given).count() == whole
            continue
        with pytest.raises(CorruptRecordError) as caught:
            dtf.read_tfrecord(path, features, counts=given).compute()
        assert caught.value.place == Place(str(path), whole, offsets[whole])


def test_every_flipped_byte_of_a_file_is_found(golden: Path, tmp_path: Path) -> None:
    data = bytearray((golden / "one_record.tfrecord").read_bytes())
    features = spec(golden, "one_record")["features"]
    path = tmp_path / "flipped.tfrecord"
    for counts in ("scan", None):
        for place in range(len(data)):
            data[place] ^= 0x10
            path.write_bytes(data)
            with pytest.raises(CorruptRecordError) as caught:
                dtf.read_tfrecord(path, features, counts=counts).compute()
            assert caught.value.place == Place(str(path), 0, 0)
            data[place] ^= 0x10


@pytest.mark.parametrize("counts", ["scan", None])
def test_files_that_are_none(golden: Path, tmp_path: Path, counts: str | None) -> None:
    (tmp_path / "png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    (tmp_path / "gzip").write_bytes(gzip.compress(b"a text, and no records at all" * 10))
    (tmp_path / "zeros").write_bytes(bytes(1000))
    says = {"png": "a PNG image", "gzip": "inflated from gzip, begins with text", "zeros": "zero bytes"}
    for name, message in says.items():
        for features in (None, {"x": dtf.FixedLenFeature((), "int64")}):
            with pytest.raises(CorruptRecordError, match=message) as caught:
                dtf.read_tfrecord(tmp_path / name, features, counts=counts).compute()
            assert caught.value.place == Place(str(tmp_path / name), 0, 0)


def test_a_file_that_changes_after_it_was_counted(golden: Path, tmp_path: Path) -> None:
    features = damaged_features(golden)
    path = tmp_path / "data.tfrecord"
    data = (golden / "damaged_none.tfrecord").read_bytes()
    path.write_bytes(data)
    ds = dtf.read_tfrecord(path, features)
    ds.compute()
    # What somebody appends makes it another file.
    path.write_bytes(data + data[:56])
    with pytest.raises(CorruptRecordError, match=r"had 6789 bytes when it was listed .* read the collection again"):
        ds.compute()
    assert dtf.read_tfrecord(path, features).nrecords == 21
    for changed, found in [(data[:-67], "truncated"), (data[:6718], "truncated|ends"), (b"", "truncated|ends")]:
        path.write_bytes(changed)
        with pytest.raises(CorruptRecordError, match=found) as caught:
            ds.compute()
        assert caught.value.place is not None
        assert caught.value.place.file == str(path)
    path.unlink()
    with pytest.raises((TFRecordError, OSError), match=re.escape(str(path))):
        ds.compute()


# -- other kinds and other features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["scan", None])
def test_sequence_examples_are_no_examples(golden: Path, counts: str | None) -> None:
    path = shard(golden, "sequence_example")
    for features in ({"id": dtf.FixedLenFeature((), "int64")}, {"id": dtf.VarLenFeature("int64")}):
        with pytest.raises(FeatureError, match="expected an Example, found a SequenceExample") as caught:
            dtf.read_tfrecord(path, features, counts=counts).compute()
        assert caught.value.place == Place(str(path), 0, 0)
    with pytest.raises(FeatureError, match=r"expected an Example, found a SequenceExample .*infer_schema"):
        dtf.read_tfrecord(path, counts=counts)


def test_empty_records_never_become_rows_in_silence(golden: Path) -> None:
    path = shard(golden, "empty_records")
    with pytest.raises(FeatureError, match="feature 'i' is missing") as caught:
        dtf.read_tfrecord(path, {"i": dtf.FixedLenFeature((), "int64")}).compute()
    assert caught.value.place is not None
    assert (caught.value.place.record, caught.value.place.feature) == (0, "i")


@pytest.mark.parametrize(
    ("name", "feature", "message"),
    [
        ("i", dtf.FixedLenFeature((), "float32"), "holds an int64 list where"),
        ("i", dtf.FixedLenFeature((2,), "int64"), "holds 1 value where"),
        ("i", dtf.VarLenFeature("bytes"), "holds an int64 list where"),
        ("i", dtf.VarLenFeature("int64", shape=(-1, 2)), "a multiple of 2"),
        ("i", dtf.TextFeature(), "holds an int64 list where"),
        ("b", dtf.RawFeature((10_000,), "uint8"), "bytes where"),
        ("f", dtf.RawFeature((1,), "float32"), "holds a float list where"),
        ("I", dtf.FixedLenFeature((), "int64"), "is missing where"),
    ],
)
def test_features_of_another_kind(golden: Path, name: str, feature: Any, message: str) -> None:
    path = shard(golden, "scalars")
    for counts in ("scan", None):
        with pytest.raises(FeatureError, match=f"feature '{name}' .*{message}") as caught:
            dtf.read_tfrecord(path, {name: feature}, counts=counts, chunks="shard").compute()
        place = caught.value.place
        assert place is not None
        assert (place.file, place.record, place.offset, place.feature) == (str(path), 0, 0, name)


def test_text_that_is_none(golden: Path, tmp_path: Path) -> None:
    path = shard(golden, "scalars")
    texts = expected(golden, "scalars")["b"].tolist()
    bad = next(number for number, text in enumerate(texts) if not is_utf8(text))
    with pytest.raises(FeatureError, match="is no UTF-8 where TextFeature") as caught:
        dtf.read_tfrecord(path, {"b": dtf.TextFeature()}).compute()
    assert caught.value.place is not None
    assert (caught.value.place.record, caught.value.place.feature) == (bad, "b")
    with dtf.RecordWriter(tmp_path / "text") as writer:
        for payload, text in zip(dtf.read_records(path), texts, strict=True):
            if is_utf8(text):
                writer.write(payload)
    found = dtf.read_tfrecord(tmp_path / "text", {"b": dtf.TextFeature()}, chunks=9).compute()["b"]
    assert found.tolist() == [text.decode() for text in texts if is_utf8(text)]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_counts_that_are_wrong(golden: Path, tmp_path: Path) -> None:
    for name in "abc":
        shutil.copy(shard(golden, "fixed_shapes"), tmp_path / name)
    paths: Sequence[Path] = [tmp_path / name for name in "abc"]
    features = spec(golden, "fixed_shapes")["features"]
    wanted = {name: np.concatenate([array] * 3) for name, array in expected(golden, "fixed_shapes").items()}
    check(dtf.read_tfrecord(paths, features, counts=[41, 41, 41], chunks=10).compute(), wanted)
    for counts, record, message in [
        ([41, 40, 41], 40, "40 records were expected, and more bytes follow"),
        ([41, 42, 41], 41, "the shard ends where 1 more record"),
        ([41, 0, 41], 0, "no records were expected, and bytes are there"),
        ([41, 1, 41], 1, "1 record.* expected, and more bytes follow"),
        ([41, 10**6, 41], 41, "the shard ends where 999959 more record"),
    ]:
        for column in (None, "v"):
            with pytest.raises(CorruptRecordError, match=message) as caught:
                ds = dtf.read_tfrecord(paths, features, counts=counts, chunks="shard")
                assert ds.nrecords == sum(counts)
                ds.compute() if column is None else ds[column].compute()
            assert caught.value.place is not None
            assert (caught.value.place.file, caught.value.place.record) == (str(paths[1]), record)
    (tmp_path / "none").write_bytes(gzip.compress(b""))
    check(dtf.read_tfrecord([*paths, tmp_path / "none"], features, counts=[41, 41, 41, 0]).compute(), wanted)


def test_counts_of_another_collection(golden: Path) -> None:
    path = shard(golden, "fixed_shapes")
    for counts, message in [
        ([41, 41], "one number of records per shard, 1 of them; got 2"),
        ([], "one number of records per shard, 1 of them; got 0"),
        ([-1], "no or more records per shard; got -1"),
        ([41.0], "a sequence of ints or None"),
        (["41"], "a sequence of ints or None"),
        (41, "a sequence of ints or None"),
        ("all", "a sequence of ints or None; got 'all'"),
    ]:
        with pytest.raises(ValueError, match=message):
            dtf.read_tfrecord(path, **spec(golden, "fixed_shapes"), counts=counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "arguments", "said"),
    [
        ("scalars", {"features": {"I": dtf.FixedLenFeature((), "int64")}}, "there are 'b', 'f', 'i'"),
        (
            "sequence_example",
            {"features": {}, "sequence_features": {"token": dtf.FixedLenSequenceFeature((), "int64")}},
            "did you mean 'tokens'",
        ),
        (
            "sequence_example",
            {"features": {}, "sequence_features": {"id": dtf.FixedLenSequenceFeature((), "int64")}},
            "it is a feature of the context: give it in features",
        ),
        (
            "sequence_example",
            {"features": {"frames": dtf.FixedLenFeature((), "int64")}, "sequence_features": {}},
            "it is a feature list: give it in sequence_features",
        ),
        (
            "scalars",
            {"features": {}, "sequence_features": {"i": dtf.FixedLenSequenceFeature((), "int64")}},
            "the record has no feature lists, as Examples have none",
        ),
        (
            "ragged_partitions",
            {"features": {"r": dtf.RaggedFeature("int64", "vals", [dtf.RaggedFeature.RowLengths("lenz")])}},
            "has nothing in 'lenz'",
        ),
        (
            "ragged_partitions",
            {"features": {"r": dtf.RaggedFeature("int64", "vals", [dtf.RaggedFeature.RowSplits("lens")])}},
            "holds [1, 2, 1, 0, 1] as RowSplits('lens'), which do not cut its 5 values",
        ),
    ],
)
def test_what_is_missing_is_told_beside_what_is_there(
    golden: Path, case: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(FeatureError, match=re.escape(said)) as caught:
        dtf.read_tfrecord(shard(golden, case), **arguments).compute()
    assert caught.value.place is not None
    assert caught.value.place.record == 0
