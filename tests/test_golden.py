"""From file to NumPy: the arrays of TensorFlow, bit for bit; damage is always reported."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support.few import mostly_slow
from support.golden import CASES, check, expected, shard, spec

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, SchemaError, TFRecordError

# Some sizes do not divide any number of records.
CHUNKS = ["auto", "shard", 1, 7, 13, 1000, "200 B", "64 MiB"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunks", mostly_slow(CHUNKS, 3))
def test_golden_files_equal_tensorflow(golden: Path, case: str, chunks: Any) -> None:
    features, wanted = spec(golden, case), expected(golden, case)
    ds = dtf.read_tfrecord(shard(golden, case), **features, chunks=chunks)
    assert ds.nrows == (9 if case == "wire_encodings" else json.loads((golden / f"{case}.json").read_text())["records"])
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
        with pytest.raises(SchemaError, match=r"'bbox': counts=None counts no lengths: specify length= of "):
            dtf.read_tfrecord(shard(golden, case), **features, counts=None)
    for group in features.values():
        group |= {
            name: replace(given, length=wanted[name].shape[1])
            for name, given in group.items()
            if isinstance(given, dtf.FixedLenSequenceFeature)
        }
    ds = dtf.read_tfrecord(shard(golden, case), **features, chunks=chunks, counts=None)
    assert ds.nrows is None
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
    # A record does not store the shape of its values.
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
    # Otherwise comparing bits would prove little.
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
# Damage that the header scan finds. The eighth record begins at byte 5723, the thirteenth at byte 6120.
AT_OPEN = [
    ("huge_length", 7, 5723, r"the CRC of the length does not hold|truncated payload"),
    ("length_bit", 7, 5723, "the CRC of the length does not hold"),
    ("length_crc", 7, 5723, "the CRC of the length does not hold"),
    ("not_a_tfrecord", 0, 0, "not a TFRecord file"),
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
    assert ds.nrows == 20
    assert all(len(column) == 20 for column in ds.compute().values())


@pytest.mark.parametrize(("name", "record", "offset", "message"), AT_OPEN, ids=[case[0] for case in AT_OPEN])
def test_damaged_framing_is_reported_at_open(golden: Path, name: str, record: int, offset: int, message: str) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    with pytest.raises(CorruptRecordError, match=message) as caught:
        dtf.read_tfrecord(path, damaged_features(golden))
    assert caught.value.place == Location(str(path), record, offset)
    assert str(caught.value).startswith(f"{path}: record {record} (byte {offset}): ")


@pytest.mark.parametrize(
    ("name", "record", "offset", "message"), AT_OPEN + WHEN_READ, ids=[case[0] for case in AT_OPEN + WHEN_READ]
)
def test_damage_is_reported_when_it_is_read(golden: Path, name: str, record: int, offset: int, message: str) -> None:
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
        # Without a scan, the task that reads the damage reports the same record and byte.
        with pytest.raises(CorruptRecordError, match=message) as caught:
            read(dtf.read_tfrecord(path, features, counts=None))
        assert caught.value.place == Location(str(path), record, offset), way


@pytest.mark.parametrize(("name", "record", "offset", "message"), WHEN_READ, ids=[case[0] for case in WHEN_READ])
def test_damaged_payloads_affect_only_tasks_that_read_them(
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
        assert caught.value.place == Location(str(path), record, offset)


def test_a_payload_that_fails_its_crc_may_be_read_without_it(golden: Path) -> None:
    features = damaged_features(golden)
    whole = dtf.read_tfrecord(golden / "damaged_none.tfrecord", features).compute()
    # Only the stored CRC is wrong here.
    path = golden / "damaged_payload_crc.tfrecord"
    check(dtf.read_tfrecord(path, features, check_crc=False).compute(), whole)


@pytest.mark.parametrize("counts", ["scan", None, "given"])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_no_tail_is_dropped_silently(
    golden: Path, tmp_path: Path, counts: Any, compression: str | None, step: int
) -> None:
    """A cut of the last two records is an error, unless it falls between records; by default not every payload byte."""
    features = damaged_features(golden)
    data = (golden / "damaged_none.tfrecord").read_bytes()
    offsets = json.loads((golden / "damaged.json").read_text())["record_offsets"]
    path = tmp_path / "cut.tfrecord"
    borders = [*offsets[18:], len(data)]
    for length in range(offsets[18], len(data)):
        if length % step and all(not -6 <= length - border <= 14 for border in borders):
            continue
        cut = data[:length]
        path.write_bytes(gzip.compress(cut, 1) if compression else cut)
        whole = [19, 18][length < offsets[19]]
        given = [20] if counts == "given" else counts
        if length in offsets and counts != "given":
            assert dtf.read_tfrecord(path, features, counts=given).count() == whole
            continue
        with pytest.raises(CorruptRecordError) as caught:
            dtf.read_tfrecord(path, features, counts=given).compute()
        assert caught.value.place == Location(str(path), whole, offsets[whole])


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
            assert caught.value.place == Location(str(path), 0, 0)
            data[place] ^= 0x10


@pytest.mark.parametrize("counts", ["scan", None])
def test_other_files_are_refused(golden: Path, tmp_path: Path, counts: str | None) -> None:
    (tmp_path / "png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    (tmp_path / "gzip").write_bytes(gzip.compress(b"a text, and no records at all" * 10))
    (tmp_path / "zeros").write_bytes(bytes(1000))
    says = {"png": "a PNG image", "gzip": "inflated from gzip, begins with text", "zeros": "zero bytes"}
    for name, message in says.items():
        for features in (None, {"x": dtf.FixedLenFeature((), "int64")}):
            with pytest.raises(CorruptRecordError, match=message) as caught:
                dtf.read_tfrecord(tmp_path / name, features, counts=counts).compute()
            assert caught.value.place == Location(str(tmp_path / name), 0, 0)


def test_a_file_that_changes_after_it_was_counted(golden: Path, tmp_path: Path) -> None:
    features = damaged_features(golden)
    path = tmp_path / "data.tfrecord"
    data = (golden / "damaged_none.tfrecord").read_bytes()
    path.write_bytes(data)
    ds = dtf.read_tfrecord(path, features)
    ds.compute()
    # A file that another program appends to is refused.
    path.write_bytes(data + data[:56])
    with pytest.raises(CorruptRecordError, match=r"had 6,789 bytes when it was listed .* read the collection again"):
        ds.compute()
    assert dtf.read_tfrecord(path, features).nrows == 21
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
def test_sequence_examples_are_refused_as_examples(golden: Path, counts: str | None) -> None:
    path = shard(golden, "sequence_example")
    for features in ({"id": dtf.FixedLenFeature((), "int64")}, {"id": dtf.VarLenFeature("int64")}):
        with pytest.raises(FeatureError, match="expected an Example, found a SequenceExample") as caught:
            dtf.read_tfrecord(path, features, counts=counts).compute()
        assert caught.value.place == Location(str(path), 0, 0)
    with pytest.raises(FeatureError, match=r"expected an Example, found a SequenceExample .*infer_schema"):
        dtf.read_tfrecord(path, counts=counts)


def test_empty_records_never_become_rows_silently(golden: Path) -> None:
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


def test_invalid_utf8_is_refused(golden: Path, tmp_path: Path) -> None:
    path = shard(golden, "scalars")
    texts = expected(golden, "scalars")["b"].tolist()
    bad = next(number for number, text in enumerate(texts) if not is_utf8(text))
    with pytest.raises(FeatureError, match="is not valid UTF-8 where TextFeature") as caught:
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
        ([41, 40, 41], 40, "40 records expected, and more bytes follow"),
        ([41, 42, 41], 41, "the shard ends where 1 more record"),
        ([41, 0, 41], 0, "expected no records, found bytes"),
        ([41, 1, 41], 1, "1 record.* expected, and more bytes follow"),
        ([41, 10**6, 41], 41, "the shard ends where 999,959 more record"),
    ]:
        for column in (None, "v"):
            with pytest.raises(CorruptRecordError, match=message) as caught:
                ds = dtf.read_tfrecord(paths, features, counts=counts, chunks="shard")
                assert ds.nrows == sum(counts)
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
        ([-1], "counts must not be negative; got -1"),
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
            "it is a feature of the context: specify it in features",
        ),
        (
            "sequence_example",
            {"features": {"frames": dtf.FixedLenFeature((), "int64")}, "sequence_features": {}},
            "it is a feature list: specify it in sequence_features",
        ),
        (
            "scalars",
            {"features": {}, "sequence_features": {"i": dtf.FixedLenSequenceFeature((), "int64")}},
            "the record lacks feature lists: read Examples without",
        ),
        (
            "ragged_partitions",
            {"features": {"r": dtf.RaggedFeature("int64", "vals", [dtf.RaggedFeature.RowLengths("lenz")])}},
            "has no values in 'lenz'",
        ),
        (
            "ragged_partitions",
            {"features": {"r": dtf.RaggedFeature("int64", "vals", [dtf.RaggedFeature.RowSplits("lens")])}},
            "holds [1, 2, 1, 0, 1] as RowSplits('lens'), which do not split its 5 values",
        ),
    ],
)
def test_errors_of_missing_keys_list_the_present_ones(
    golden: Path, case: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(FeatureError, match=re.escape(said)) as caught:
        dtf.read_tfrecord(shard(golden, case), **arguments).compute()
    assert caught.value.place is not None
    assert caught.value.place.record == 0
