"""From file to NumPy: the arrays of TensorFlow, bit for bit; damage is always reported."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from oracle import read_payloads
from support.few import mostly_slow
from support.golden import CASES, check, expected, shard, spec

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, SchemaError, TFRecordError

# Some sizes do not divide any number of records. `test_cases` sends the columns through every output.
CHUNKS = ["auto", "shard", 1, 7, 13, 1000, "200 B", "64 MiB"]


def assert_reported(
    place: Location, message: str, function: Callable[[], object], kind: type[TFRecordError] = CorruptRecordError
) -> None:
    """Assert that an error names this place."""
    with pytest.raises(kind, match=message) as caught:
        function()
    found = caught.value.place
    assert found is not None
    assert (found.file, found.record, found.feature) == (place.file, place.record, place.feature)
    assert place.offset in (found.offset, None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunks", mostly_slow(CHUNKS, 3))
def test_golden_files_equal_tensorflow(golden: Path, case: str, chunks: Any) -> None:
    wanted = expected(golden, case)
    ds = dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=chunks)
    assert ds.nrows == (9 if case == "wire_encodings" else json.loads((golden / f"{case}.json").read_text())["records"])
    check(ds.compute(), wanted)
    forms = {name: (array.shape, array.dtype) for name, array in wanted.items()}
    assert {name: (array.shape, array.dtype) for name, array in ds.items()} == forms


@pytest.mark.parametrize(
    ("case", "chunks"), [*((case, "auto") for case in CASES), *mostly_slow(((case, "shard") for case in CASES), 5)]
)
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
    check({name: array.compute() for name, array in ds.items()}, wanted)
    check(ds.persist().compute(), wanted)


def test_resized_images_equal_tensorflow(golden: Path) -> None:
    with np.load(golden / "images_resized.npz") as stored:
        assert len(stored.files) == 8
        for name, levels in stored.items():
            column, height, width, method, antialias = name.split("-")
            filter: Any = {"size": (int(height), int(width)), "method": method, "antialias": antialias == "1"}
            image = dtf.ImageFeature(dtype="uint16" if column == "png16" else "uint8", **filter)
            found = np.stack(dtf.read_tfrecord(shard(golden, "images"), {column: image}).rows[:2].compute()[column])
            wanted = np.clip(np.rint(levels), 0, np.iinfo(found.dtype).max)
            # The sine of another C library rounds a few levels of Lanczos to the other side.
            apart = np.abs(found - wanted)
            assert apart.max() <= (method == "lanczos3") and apart.mean() < 0.01, name


@pytest.mark.integration
def test_golden_files_on_processes(golden: Path) -> None:
    cases = ["unicode_names", "sequence_example", "ragged_partitions", "images"]
    sets = [dtf.read_tfrecord(shard(golden, case), **spec(golden, case), chunks=20) for case in cases]
    for case, found in zip(cases, dask.compute(*sets, scheduler="processes"), strict=True):
        check(found, expected(golden, case))


@pytest.mark.parametrize("case", ["scalars", "fixed_shapes", "one_record", "unicode_names", "varlen", "wire_encodings"])
def test_inferred_features_equal_tensorflow(golden: Path, case: str) -> None:
    # A record does not store the shape of its values.
    wanted = {
        name: array.reshape(len(array), *[-1][: array.ndim - 1]) for name, array in expected(golden, case).items()
    }
    check(dtf.read_tfrecord(shard(golden, case), columns=list(wanted), chunks=17).compute(), wanted)


def test_an_empty_file(golden: Path) -> None:
    path = shard(golden, "empty_file")
    features = {"x": dtf.FixedLenFeature((2,), "int64"), "v": dtf.VarLenFeature("float32")}
    for counts in ("auto", None, [0]):
        ds = dtf.read_tfrecord(path, features, counts=counts)
        check(ds.compute(), {"x": np.empty((0, 2), np.int64), "v": np.empty(0, object)})
        assert ds["x"].sum().compute() == 0
        assert ds.count() == 0
        values, splits = ds.ragged("v")
        assert (values.compute().shape, splits.compute().tolist()) == ((0,), [0])
        assert ds.padded("v", 3).compute().shape == (0, 3)
    assert dtf.read_tfrecord(path, {}).compute() == {}


# -- damage ------------------------------------------------------------------------------------------------------------

# Damage that the header scan finds. The eighth record begins at byte 5723, the thirteenth at byte 6120.
AT_OPEN = {
    "huge_length": (7, 5723, "the CRC of the length does not match|truncated payload"),
    "length_bit": (7, 5723, "the CRC of the length does not match"),
    "length_crc": (7, 5723, "the CRC of the length does not match"),
    "not_a_tfrecord": (0, 0, "not a TFRecord file"),
    "trailing_garbage": (20, 6789, "truncated header: expected 12 bytes, found 8"),
    "truncated_footer": (12, 6120, "truncated footer"),
    "truncated_header": (12, 6120, "truncated header: expected 12 bytes, found 5"),
    "truncated_payload": (12, 6120, "truncated payload"),
}
WHEN_READ = {
    "payload_bit": (7, 5723, "the CRC of the payload does not match"),
    "payload_crc": (7, 5723, "the CRC of the payload does not match"),
}


@pytest.fixture(scope="module")
def features(golden: Path) -> dict[str, Any]:
    """Features of the undamaged file, and of its damaged copies."""
    return dict(dtf.infer_schema(golden / "damaged_none.tfrecord", sample=None))


@pytest.mark.parametrize("name", AT_OPEN | WHEN_READ)
def test_damage_is_reported_when_it_is_read(golden: Path, features: dict[str, Any], name: str) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    record, offset, message = (AT_OPEN | WHEN_READ)[name]
    place = Location(str(path), record, offset)
    advised = message if name == "not_a_tfrecord" else rf'({message}).*errors="skip".* and repair '
    if name in AT_OPEN:
        assert_reported(place, advised, lambda: dtf.read_tfrecord(path, features))
    records: list[bytes] = []
    assert_reported(place, message, lambda: records.extend(dtf.read_records(path)))
    intact = read_payloads(golden / "damaged_none.tfrecord")
    assert records == intact[:record]
    if name in WHEN_READ:
        unchecked = list(dtf.read_records(path, check_crc=False))
        assert [row for row in range(20) if unchecked[row] != intact[row]] == [record][: name == "payload_bit"]
    if "length" in name and name != "length_crc":
        # Without CRCs, a wrong length is detected only at the next header.
        with pytest.raises(CorruptRecordError, match=r"CRC of the length does not match|truncated"):
            list(dtf.read_records(path, check_crc=False))
    ways: list[Callable[[dtf.Dataset], object]] = [
        lambda ds: ds.compute(),
        lambda ds: ds[next(iter(features))].compute(),
        lambda ds: dask.compute(*ds[tuple(features)]),
        lambda ds: ds.persist(),
        lambda ds: ds.count(),
    ]
    for read in ways:
        # Without a scan, the task that reads the damage reports the same record and byte.
        ds = dtf.read_tfrecord(path, features, counts=None)
        assert_reported(place, advised, lambda read=read, ds=ds: read(ds))  # type: ignore[misc]


# -- other features ----------------------------------------------------------------------------------------------------

R = dtf.RaggedFeature
INT, STEPS = dtf.FixedLenFeature((), "int64"), dtf.FixedLenSequenceFeature((), "int64")
# Case, features, sequence features, message.
MISFITS: list[tuple[str, dict[str, Any], dict[str, Any] | None, str]] = [
    ("scalars", {"i": dtf.TextFeature()}, None, "'i' holds an int64 list, but"),
    ("scalars", {"f": dtf.RawFeature((1,), "float32")}, None, "'f' holds a float list, but"),
    ("scalars", {"I": INT}, None, "; there are 'b', 'f', 'i'"),
    ("scalars", {}, {"i": STEPS}, "the record lacks feature lists: read Examples without"),
    ("sequence_example", {}, {"token": STEPS}, "did you mean 'tokens'"),
    ("sequence_example", {}, {"id": STEPS}, "it is a feature of the context: specify it in features"),
    ("sequence_example", {"frames": INT}, {}, "it is a feature list: specify it in sequence_features"),
    ("ragged_partitions", {"r": R("int64", "vals", [R.RowLengths("lenz")])}, None, "has no values in 'lenz'"),
    (
        "ragged_partitions",
        {"r": R("int64", "vals", [R.RowSplits("lens")])},
        None,
        "holds [1, 2, 1, 0, 1] as RowSplits('lens'), which do not split its 5 values",
    ),
]


@pytest.mark.filterwarnings("ignore:.* ha(s|ve) no feature lists:UserWarning")
@pytest.mark.parametrize(("case", "given", "lists", "message"), MISFITS, ids=[message for *_, message in MISFITS])
def test_features_that_records_do_not_have(
    golden: Path, case: str, given: dict[str, Any], lists: dict[str, Any] | None, message: str
) -> None:
    path = shard(golden, case)
    [name] = [*given, *(lists or {})]
    options = {} if lists is None else {"sequence_features": lists}

    def read(counts: str | None) -> object:
        return dtf.read_tfrecord(path, given, **options, counts=counts, chunks="shard").compute()

    for counts in ("scan",) if lists else ("scan", None):
        place = Location(str(path), 0, 0, name)
        assert_reported(place, re.escape(message), lambda counts=counts: read(counts), FeatureError)  # type: ignore[misc]


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_counts_that_are_wrong(golden: Path, tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(compress(shard(golden, "fixed_shapes").read_bytes()))
    features = spec(golden, "fixed_shapes")["features"]
    wanted = {name: np.concatenate([array] * 3) for name, array in expected(golden, "fixed_shapes").items()}
    check(dtf.read_tfrecord(paths, features, counts=[41, 41, 41], chunks=10).compute(), wanted)
    for counts, record, message in [
        ([41, 40, 41], 40, "40 records expected, but more bytes follow"),
        ([41, 42, 41], 41, "the shard ends where 1 more record"),
        ([41, 0, 41], 0, "expected no records, found bytes"),
        ([41, 1, 41], 1, "1 record.* expected, but more bytes follow"),
        ([41, 10**6, 41], 41, "the shard ends where 999,959 more record"),
    ]:
        for column in (None, "v"):
            with pytest.raises(CorruptRecordError, match=message) as caught:
                ds = dtf.read_tfrecord(paths, features, counts=counts, chunks="shard")
                assert ds.nrows == sum(counts)
                ds.compute() if column is None else ds[column].compute()
            assert caught.value.place is not None
            assert (caught.value.place.file, caught.value.place.record) == (str(paths[1]), record)
    for wrong in ([41, 40, 41], [41, 42, 41]):
        ds = dtf.read_tfrecord(paths, features, counts=wrong)
        for part in (ds.rows[44], ds.rows[[46, 42]], ds.rows[43:50], ds["v"][43:50], ds.rows[41:81:10]):
            with pytest.raises(CorruptRecordError, match=r"b: .*the counts that were given are wrong"):
                part.compute()
        with pytest.raises(CorruptRecordError, match="the counts that were given are wrong"):
            ds.rows[43:50].to_zarr(tmp_path / "s.zarr")
        # Other shards are intact.
        check(ds.rows[[5, 1]].compute(), {name: array[[5, 1]] for name, array in wanted.items()})
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
