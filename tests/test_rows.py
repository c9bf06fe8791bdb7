"""Rows that lie apart: what is picked is what NumPy picks of all rows, by the oracle, and little else is read."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_decode import assert_same, example
from test_images import png

import dask_tfrecord as dtf
from dask_tfrecord import testing
from dask_tfrecord.columns import decode as decode_module
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place
from dask_tfrecord.features import FixedLenFeature, ImageFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.records import index
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.streams import StoredStream

SCHEMA = Schema(
    {
        "number": FixedLenFeature((), "int64"),
        "text": TextFeature(),
        "raw": RawFeature((2,), ">i2"),
        "values": VarLenFeature("float32"),
        "bytes": FixedLenFeature((2,), "bytes"),
    }
)
# Records of the shards, and how these are compressed.
SHARDS = ((37, None), (0, None), (1, "gzip"), (90, "gzip"), (0, "zlib"), (61, None), (24, "zlib"), (2, None))
NROWS = sum(count for count, _ in SHARDS)


def payload(number: int) -> bytes:
    """An Example of 60 to some 400 bytes."""
    size = random.Random(number).randrange(60)
    text = ("ä" * size).encode()
    return example(
        number=[number], text=[text], raw=[bytes(4)], values=[number / 2] * (size // 3), bytes=[b"\0" * size, text]
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A data set and all of its rows."""

    ds: dtf.Dataset
    expected: dict[str, NDArray[Any]]

    def check(self, ds: dtf.Dataset, picked: NDArray[np.int64]) -> None:
        assert_same(ds.compute(), {name: array[picked] for name, array in self.expected.items()})


def write_shards(folder: Path) -> list[bytes]:
    payloads = [payload(number) for number in range(NROWS)]
    first = 0
    for number, (count, compression) in enumerate(SHARDS):
        testing.write_oracle(folder / f"part-{number}", payloads[first : first + count], compression)
        first += count
    return payloads


@pytest.fixture(scope="module", params=["marks", "one mark", "chunks", "access points", "lost"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Shards with a mark every few records, and pieces that hold less than one of the larger records."""
    folder = tmp_path_factory.mktemp("rows")
    payloads = write_shards(folder)
    options: dict[str, Any] = {"chunks": "shard"}
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "one mark":
            patch.setattr(index, "BETWEEN_MARKS", 1500)
        patch.setattr(decode_module, "_LEAST", 64)
        patch.setattr(decode_module, "_BLOCK", 700)
        match request.param:
            case "one mark":
                options["counts"] = [count for count, _ in SHARDS]
            case "chunks":
                options["chunks"] = 50
            case "access points":
                pytest.importorskip("indexed_gzip")
                # zlib data have none.
                dtf.build_index([folder / f"part-{n}" for n, (_, how) in enumerate(SHARDS) if how != "zlib"])
            case "lost":
                options["errors"] = "skip"
                payloads = damage(folder / "part-0", payloads, [3, 20])
        with dask.config.set(scheduler="sync"):
            yield Case(dtf.read_tfrecord(folder, SCHEMA, **options), testing.expected_columns(payloads, SCHEMA))


def damage(path: Path, payloads: list[bytes], lost: list[int]) -> list[bytes]:
    """Overwrite the headers of some records; those that are left."""
    data = bytearray(path.read_bytes())
    for number in lost:
        start = sum(len(one) + 16 for one in payloads[:number])
        data[start : start + 12] = bytes(12)
    path.write_bytes(data)
    return [one for number, one in enumerate(payloads) if number not in lost]


def keys(size: int) -> st.SearchStrategy[Any]:
    """All that picks rows; far apart, near each other, in any order, more than once."""
    numbers = st.integers(-size, size - 1)
    some = st.lists(numbers, min_size=1, max_size=40)
    steps = st.builds(slice, st.none() | numbers, st.none() | numbers, st.integers(-40, 40).filter(bool))
    masks = st.builds(
        lambda seed, share: np.random.default_rng(seed).random(size) < share, st.integers(0), st.floats(0, 1)
    )
    shuffled = st.integers(0).map(lambda seed: np.random.default_rng(seed).permutation(size))
    return (
        some | some.map(sorted) | steps | masks | st.tuples(shuffled, st.integers(1, size)).map(lambda o: o[0][: o[1]])
    )


@settings(max_examples=30)
@given(data=st.data())
def test_rows_are_those_that_numpy_picks(case: Case, data: st.DataObject) -> None:
    rows = np.arange(len(case.expected["number"]))
    key = data.draw(keys(len(rows)))
    picked = case.ds.rows[key]
    case.check(picked, rows[key])
    if len(rows[key]):
        again = data.draw(keys(len(rows[key])))
        case.check(picked.rows[again], rows[key][again])
        name = data.draw(st.sampled_from(list(SCHEMA)))
        assert_same({name: picked[name].compute()}, {name: case.expected[name][rows[key]]})


def test_rows_are_gathered_where_they_ascend(case: Case) -> None:
    """What writes a store piece by piece asks for one span after the other."""
    rows = np.arange(len(case.expected["number"]))
    for step in (1, 2, 7):
        source = case.ds.rows[::step].source
        assert source is not None
        wanted = rows[::step]
        spans = [(0, 1), (1, 4), (4, len(wanted) // 2), (len(wanted) // 2, len(wanted))]
        for blocks, (start, stop) in zip(source.pieces(tuple(SCHEMA), spans), spans, strict=True):
            assert_same(blocks, {name: array[wanted[start:stop]] for name, array in case.expected.items()})


# ---- what is read


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """40 MiB: records of some 4 KiB, a mark for every 256 of them."""
    block = bytes(4 << 10)
    testing.write_oracle(tmp_path / "x", (example(number=[number], rest=[block]) for number in range(10_000)))
    return tmp_path / "x"


NUMBER = {"number": FixedLenFeature((), "int64")}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every read, as they come."""
    readinto, done = StoredStream.readinto, []

    def noted(self: StoredStream, buffer: memoryview) -> int:
        done.append(readinto(self, buffer))
        return done[-1]

    monkeypatch.setattr(StoredStream, "readinto", noted)
    return done


@pytest.mark.parametrize("count", [1, 5, 9])
def test_rows_far_apart_are_read_from_the_marks_before_them(large: Path, count: int, reads: list[int]) -> None:
    ds = dtf.read_tfrecord(large, NUMBER)
    picked = np.linspace(600, 9_400, count).astype(int)
    reads.clear()
    assert ds.rows[picked]["number"].compute().tolist() == picked.tolist()
    # A mebibyte and a record from mark to mark.
    assert sum(reads) <= count * (5 << 18)


def test_shuffled_rows_are_gathered_in_one_pass(large: Path, reads: list[int]) -> None:
    ds = dtf.read_tfrecord(large, NUMBER, chunks=500)
    shuffled = np.random.default_rng(0).permutation(10_000)
    for key in (shuffled, np.repeat(shuffled[:5_000], 2), slice(None, None, -1)):
        rows = ds.rows[key]
        assert rows.npartitions == 20
        reads.clear()
        assert rows.compute()["number"].tolist() == np.arange(10_000)[key].tolist()
        # Each of the chunks begins at a mark.
        assert sum(reads) <= large.stat().st_size + 20 * (5 << 18)


# ---- what is wrong, and where

PAYLOADS = [example(number=[number], text=[b"t" * (number % 50)]) for number in range(3_000)]
OFFSETS = np.cumsum([0, *(len(one) + 16 for one in PAYLOADS)])
PICKED = [7, 40, 1_000, 1_002, 2_500, 2_998]


def opened(path: Path, **options: Any) -> dtf.Dataset:
    """Counts are given, so that nothing is looked at before rows are."""
    return dtf.read_tfrecord(path, NUMBER, **{"counts": [len(PAYLOADS)], **options})


def stored(path: Path, compression: str | None, *, stop: int | None = None, flipped: Sequence[int] = ()) -> Path:
    """A shard that ends early, or of which the lowest bit of some bytes is another one."""
    testing.write_oracle(path, PAYLOADS)
    data = bytearray(path.read_bytes()[:stop])
    for place in flipped:
        data[place] ^= 1
    path.write_bytes(gzip.compress(data, 1) if compression else data)
    return path


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_payloads_are_checked_where_they_are_picked(tmp_path: Path, compression: str | None) -> None:
    path = stored(tmp_path / "x", compression, flipped=[int(OFFSETS[number]) + 13 for number in (1_001, 2_000)])
    ds = opened(path)
    assert ds.rows[PICKED]["number"].compute().tolist() == PICKED
    with pytest.raises(CorruptRecordError, match="the CRC of the payload does not hold") as caught:
        ds.rows[[*PICKED, 2_000]].compute()
    assert caught.value.place == Place(str(path), 2_000, int(OFFSETS[2_000]))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_headers_are_checked_on_the_way(tmp_path: Path, compression: str | None) -> None:
    path = stored(tmp_path / "x", compression, flipped=[int(OFFSETS[1_001]) + 8])
    with pytest.raises(CorruptRecordError, match="the CRC of the length does not hold") as caught:
        opened(path).rows[PICKED].compute()
    assert caught.value.place == Place(str(path), 1_001, int(OFFSETS[1_001]))
    assert opened(path, check_crc=False).rows[PICKED]["number"].compute().tolist() == PICKED


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(
    ("left", "message"), [(5, "truncated header"), (30, "truncated payload"), (0, "ends where 998")]
)
def test_shards_that_end_before_what_is_picked(
    tmp_path: Path, left: int, message: str, compression: str | None
) -> None:
    path = stored(tmp_path / "x", compression, stop=int(OFFSETS[2_001]) + left)
    with pytest.raises(CorruptRecordError, match=message) as caught:
        opened(path).rows[PICKED].compute()
    assert caught.value.place == Place(str(path), 2_001, int(OFFSETS[2_001]))


def test_counts_that_are_too_small_are_noticed_at_the_end(tmp_path: Path) -> None:
    testing.write_oracle(tmp_path / "x", PAYLOADS)
    ds = opened(tmp_path / "x", counts=[2_999])
    with pytest.raises(CorruptRecordError, match="2999 records were expected, and more bytes follow them"):
        ds.rows[PICKED].compute()
    assert ds.rows[PICKED[:-1]]["number"].compute().tolist() == PICKED[:-1]


def test_a_record_that_does_not_fit_is_named_where_it_is_picked(tmp_path: Path) -> None:
    wrong = [example(number=[1, 2]) if number == 1_002 else one for number, one in enumerate(PAYLOADS)]
    testing.write_oracle(tmp_path / "x", wrong)
    ds = opened(tmp_path / "x")
    rest = [number for number in PICKED if number != 1_002]
    assert ds.rows[rest[::-1]]["number"].compute().tolist() == rest[::-1]
    with pytest.raises(FeatureError, match="feature 'number' holds 2 values") as caught:
        ds.rows[PICKED[::-1]].compute()
    assert caught.value.place == Place(str(tmp_path / "x"), 1_002, int(OFFSETS[1_002]), "number")


def test_a_row_that_no_column_can_be_made_of_is_named(tmp_path: Path) -> None:
    """What is no image is found when all records of the rows have been read."""
    image = png(np.zeros((2, 2, 3), np.uint8), 8, 2)
    payloads = [example(image=[b"none" if number == 70 else image]) for number in range(100)]
    testing.write_oracle(tmp_path / "x", [example(image=[image])] * 100)
    testing.write_oracle(tmp_path / "y", payloads)
    ds = dtf.read_tfrecord(tmp_path, {"image": ImageFeature((2, 2, 3))})
    assert ds.rows[[5, 99, 105, 180]]["image"].compute().shape == (4, 2, 2, 3)
    with pytest.raises(FeatureError, match="feature 'image'") as caught:
        ds.rows[[5, 7, 99, 105, 170, 180]].compute()
    offset = sum(len(one) + 16 for one in payloads[:70])
    assert caught.value.place == Place(str(tmp_path / "y"), 70, offset, "image")
