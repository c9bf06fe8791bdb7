"""Selected rows: the same rows as NumPy selects from the oracle's, and few other bytes are read."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.bits import assert_blocks_equal
from support.images import png
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, ShardChangedError, ShardNotFoundError
from dask_tfrecord.features import FixedLenFeature, ImageFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.shards.streams import StoredStream

SCHEMA = Schema(
    {
        "number": FixedLenFeature((), "int64"),
        "text": TextFeature(),
        "raw": RawFeature((2,), ">i2"),
        "values": VarLenFeature("float32"),
        "bytes": FixedLenFeature((2,), "bytes"),
    }
)
# Records and compression of each shard.
SHARDS = ((37, None), (0, None), (1, "gzip"), (90, "gzip"), (0, "zlib"), (61, None), (24, "zlib"), (2, None))
NROWS = sum(count for count, _ in SHARDS)


def payload(number: int) -> bytes:
    """Return an Example of 60 to about 400 bytes."""
    size = random.Random(number).randrange(60)
    text = ("ä" * size).encode()
    return example(
        number=[number], text=[text], raw=[bytes(4)], values=[number / 2] * (size // 3), bytes=[b"\0" * size, text]
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A data set and the expected values of all rows."""

    ds: dtf.Dataset
    expected: dict[str, NDArray[Any]]

    def check(self, ds: dtf.Dataset, picked: NDArray[np.int64]) -> None:
        assert_blocks_equal(ds.compute(), {name: array[picked] for name, array in self.expected.items()})


def write_shards(folder: Path) -> list[bytes]:
    payloads = [payload(number) for number in range(NROWS)]
    first = 0
    for number, (count, compression) in enumerate(SHARDS):
        oracle.write_oracle(folder / f"part-{number}", payloads[first : first + count], compression)
        first += count
    return payloads


@pytest.fixture(scope="module", params=["marks", "one mark", "chunks", "access points", "lost"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Shards with an index entry every few records, read in blocks smaller than the larger records."""
    folder = tmp_path_factory.mktemp("rows")
    payloads = write_shards(folder)
    options: dict[str, Any] = {"chunks": "shard"}
    spacing = {} if request.param == "one mark" else {"entry_nbytes": 1500}
    if request.param in ("marks", "one mark"):
        # Records are read on their own, in any order, once their offsets are known.
        spacing |= {"gap_nbytes": 0, "large_row_nbytes": 0}
    with replaced_limits(first_window_nbytes=64, window_nbytes=700, **spacing):
        match request.param:
            case "one mark":
                options["counts"] = [count for count, _ in SHARDS]
            case "chunks":
                options["chunks"] = 50
            case "access points":
                pytest.importorskip("indexed_gzip")
                # zlib shards cannot have access points.
                dtf.build_index([folder / f"part-{n}" for n, (_, how) in enumerate(SHARDS) if how != "zlib"])
            case "lost":
                options["errors"] = "skip"
                payloads = damage(folder / "part-0", payloads, [3, 20])
        with dask.config.set(scheduler="sync"):
            yield Case(dtf.read_tfrecord(folder, SCHEMA, **options), oracle.expected_columns(payloads, SCHEMA))


def damage(path: Path, payloads: list[bytes], lost: list[int]) -> list[bytes]:
    """Overwrite the headers of some records; return the payloads of the others."""
    data = bytearray(path.read_bytes())
    for number in lost:
        start = sum(len(one) + 16 for one in payloads[:number])
        data[start : start + 12] = bytes(12)
    path.write_bytes(data)
    return [one for number, one in enumerate(payloads) if number not in lost]


Key = Callable[[int], Any]


def keys() -> st.SearchStrategy[Key]:
    """Functions from a number of rows to a key: far apart, close together, in any order, repeated."""
    number = st.integers(0, 10**6)
    numbers = st.lists(number, min_size=1, max_size=40)
    # A number of rows is added and subtracted, so that negative row numbers occur too.
    some = numbers.map(lambda drawn: lambda size: [one % (2 * size) - size for one in drawn])
    ascending = numbers.map(lambda drawn: lambda size: sorted(one % (2 * size) - size for one in drawn))
    bounds = st.tuples(st.none() | number, st.none() | number, st.integers(-40, 40).filter(bool))
    steps = bounds.map(
        lambda drawn: (
            lambda size: slice(*(None if one is None else one % (2 * size) - size for one in drawn[:2]), drawn[2])
        )
    )
    seed = st.integers(0, 2**32)
    masks = st.tuples(seed, st.floats(0, 1)).map(
        lambda drawn: lambda size: np.random.default_rng(drawn[0]).random(size) < drawn[1]
    )
    shuffled = st.tuples(seed, number).map(
        lambda drawn: lambda size: np.random.default_rng(drawn[0]).permutation(size)[: 1 + drawn[1] % size]
    )
    return some | ascending | steps | masks | shuffled


# All values are drawn before the test runs, and without a database: each run and each case draws the same ones. Draws
# between computations would turn an error of a computation into `FlakyStrategyDefinition`.
@settings(derandomize=True, database=None, max_examples=max(6, settings().max_examples // 5))
@given(first=keys(), second=keys(), name=st.sampled_from(list(SCHEMA)))
def test_rows_are_those_that_numpy_picks(case: Case, first: Key, second: Key, name: str) -> None:
    rows = np.arange(len(case.expected["number"]))
    key = first(len(rows))
    picked = case.ds.rows[key]
    case.check(picked, rows[key])
    if len(rows[key]):
        again = second(len(rows[key]))
        case.check(picked.rows[again], rows[key][again])
        assert_blocks_equal({name: picked[name].compute()}, {name: case.expected[name][rows[key]]})


# ---- what is read


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """Shard of 20 MiB: records of about 4 KiB, and an index entry per 256 records."""
    block = bytes(4 << 10)
    oracle.write_oracle(tmp_path / "x", (example(number=[number], rest=[block]) for number in range(5_000)))
    # Shards of `case` last until the end of the module.
    with replaced_limits(**asdict(Limits())):
        yield tmp_path / "x"


NUMBER = {"number": FixedLenFeature((), "int64")}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads, in order, as the library requests them: the system counts them for all files together."""
    readinto, done = StoredStream.readinto, []

    def noted(self: StoredStream, buffer: memoryview) -> int:
        done.append(readinto(self, buffer))
        return done[-1]

    monkeypatch.setattr(StoredStream, "readinto", noted)
    return done


def test_shuffled_rows_are_gathered_in_one_pass(large: Path, reads: list[int]) -> None:
    ds = dtf.read_tfrecord(large, NUMBER, chunks=500)
    shuffled = np.random.default_rng(0).permutation(5_000)
    for key in (shuffled, np.repeat(shuffled[:2_500], 2), slice(None, None, -1)):
        rows = ds.rows[key]
        assert rows.npartitions == 10
        reads.clear()
        assert rows.compute()["number"].tolist() == np.arange(5_000)[key].tolist()
        # Each chunk starts at an index entry.
        assert sum(reads) <= large.stat().st_size + 10 * (5 << 18)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of all reads of records whose offsets are known."""
    read_ranges, done = StoredStream.read_ranges, []

    def noted(self: StoredStream, begins: Any, ends: Any, out: Any) -> None:
        read_ranges(self, begins, ends, out)
        done.append(len(out))

    monkeypatch.setattr(StoredStream, "read_ranges", noted)
    return done


def test_rows_that_were_passed_are_read_alone(large: Path, reads: list[int], ranges: list[int]) -> None:
    ds = dtf.read_tfrecord(large, NUMBER, chunks=5_000)
    rows = ds.as_sequence()
    assert [row["number"] for row in rows.__getitems__(range(100, 5_000, 500))] == list(range(100, 5_000, 500))
    reads.clear()
    # All records between two index entries were passed.
    picked = [4_600, 3, 3, 103, 2_110]
    assert [row["number"] for row in rows.__getitems__(picked)] == picked
    assert ds.rows[picked].compute()["number"].tolist() == picked
    assert [rows[row]["number"] for row in picked] == picked
    size = large.stat().st_size // 5_000
    assert reads == []
    assert sum(ranges) <= (4 + 4 + 5) * (size + 100)
    # Rows close to each other are read together.
    with replaced_limits(gap_nbytes=8 << 10):
        for _ in range(2):
            ranges.clear()
            assert ds.rows[::2].compute()["number"].tolist() == list(range(0, 5_000, 2))
    assert ranges == []


def test_offsets_take_bounded_memory(large: Path, ranges: list[int]) -> None:
    other = large.with_name("y")
    other.write_bytes(large.read_bytes())
    rows, others = (dtf.read_tfrecord(path, NUMBER).as_sequence() for path in (large, other))

    def read_alone(rows: Any) -> int:
        ranges.clear()
        assert [rows[row]["number"] for row in (10, 20, 30, 40)] == [10, 20, 30, 40]
        return len(ranges)

    with replaced_limits(offsets_nbytes=8 * 5_000):
        assert read_alone(rows) == 0
    with replaced_limits(offsets_nbytes=8 * 5_001):
        # The second read walks to the next index entry.
        assert [read_alone(rows), read_alone(rows), read_alone(others), read_alone(rows)] == [2, 4, 2, 2]


# ---- what is wrong, and where

PAYLOADS = [example(number=[number], text=[b"t" * (number % 50)]) for number in range(3_000)]
OFFSETS = np.cumsum([0, *(len(one) + 16 for one in PAYLOADS)])
PICKED = [7, 40, 1_000, 1_002, 2_500, 2_998]


def opened(path: Path, **options: Any) -> dtf.Dataset:
    """Open with specified counts, so that no byte is read before rows are."""
    return dtf.read_tfrecord(path, NUMBER, **{"counts": [len(PAYLOADS)], **options})


def stored(path: Path, compression: str | None, *, stop: int | None = None, flipped: Sequence[int] = ()) -> Path:
    """Write a shard that is truncated, or with the lowest bit of some bytes flipped."""
    oracle.write_oracle(path, PAYLOADS)
    data = bytearray(path.read_bytes()[:stop])
    for place in flipped:
        data[place] ^= 1
    path.write_bytes(gzip.compress(data, 1) if compression else data)
    return path


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_damage_is_found_where_it_is(tmp_path: Path, compression: str | None) -> None:
    """Payloads are checked where they are picked, headers on the way, and the end of a shard."""
    cases: list[tuple[dict[str, Any], list[int], int, str]] = [
        ({"flipped": [int(OFFSETS[2_000]) + 13]}, [*PICKED, 2_000], 2_000, "the CRC of the payload does not match"),
        ({"flipped": [int(OFFSETS[1_001]) + 8]}, PICKED, 1_001, "the CRC of the length does not match"),
        ({"stop": int(OFFSETS[2_001]) + 5}, PICKED, 2_001, "truncated header"),
        ({"stop": int(OFFSETS[2_001]) + 30}, PICKED, 2_001, "truncated payload"),
    ]
    for damage, picked, record, message in cases:
        path = stored(tmp_path / "x", compression, **damage)
        with pytest.raises(CorruptRecordError, match=message) as caught:
            opened(path).rows[picked].compute()
        assert caught.value.place == Location(str(path), record, int(OFFSETS[record]))
    path = stored(tmp_path / "x", compression, flipped=[int(OFFSETS[number]) + 13 for number in (1_001, 2_000)])
    assert opened(path).rows[PICKED]["number"].compute().tolist() == PICKED
    path = stored(tmp_path / "x", compression, flipped=[int(OFFSETS[1_001]) + 8])
    assert opened(path, check_crc=False).rows[PICKED]["number"].compute().tolist() == PICKED
    path = stored(tmp_path / "x", compression, stop=int(OFFSETS[2_001]))
    with pytest.raises(CorruptRecordError, match="3,000 records expected, 2,001 found") as caught:
        opened(path).rows[PICKED].compute()
    assert caught.value.place == Location(str(path))


@pytest.mark.parametrize("known", [False, True], ids=["on the way", "at known offsets"])
def test_a_record_that_does_not_fit_is_named_where_it_is_picked(tmp_path: Path, known: bool) -> None:
    """An invalid image is found after all records of the rows are read."""
    image = png(np.zeros((2, 2, 3), np.uint8), 8, 2)
    payloads = [example(number=[n] * (1 + (n == 70)), image=[b"none" if n == 80 else image]) for n in range(100)]
    offsets = np.cumsum([0, *(len(one) + 16 for one in payloads)])
    oracle.write_oracle(tmp_path / "x", [example(number=[n], image=[image]) for n in range(100)])
    oracle.write_oracle(tmp_path / "y", payloads)
    # Offsets that a read passed are kept where records were counted by a scan.
    counts: Any = "auto" if known else [100, 100]
    ds = dtf.read_tfrecord(tmp_path, {**NUMBER, "image": ImageFeature((2, 2, 3))}, counts=counts)
    with replaced_limits(**({"gap_nbytes": 0, "large_row_nbytes": 0} if known else {})):
        if known:
            ds[["number"]].rows[[1, 99, 101, 199]].compute()
        for name, record in (("number", 70), ("image", 80)):
            for rest in ([], [198], [199, 3], [5, 7, 99, 105, 181]):
                picked = [*rest, 100 + record, 104]
                with pytest.raises(FeatureError, match=f"feature '{name}'") as caught:
                    ds[[name]].rows[picked].compute()
                assert caught.value.place == Location(str(tmp_path / "y"), record, int(offsets[record]), name)
        found = ds.rows[[181, 105, 99, 5]].compute()
        assert (found["number"].tolist(), found["image"].shape) == ([81, 5, 99, 5], (4, 2, 2, 3))


@pytest.mark.parametrize("picked", [[2_000], [2_000, 3, 2_998], PICKED], ids=["one", "any order", "ascending"])
def test_damage_after_a_read_is_found_where_it_is(tmp_path: Path, picked: list[int]) -> None:
    """Files are damaged in place, with the size and time that they had."""
    path = stored(tmp_path / "x", None)
    status, begin = path.stat(), int(OFFSETS[2_000])
    with replaced_limits(gap_nbytes=0, large_row_nbytes=0):
        ds = opened(path, counts="auto")
        for place, message in ((13, "the CRC of the payload"), (8, "the CRC of the length"), (0, "the CRC of the len")):
            assert ds.rows[[*picked, 2_000]].compute()["number"].tolist() == [*picked, 2_000]
            stored(path, None, flipped=[begin + place])
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            with pytest.raises(CorruptRecordError, match=message) as caught:
                ds.rows[[*picked, 2_000] if len(picked) > 1 else picked].compute()
            assert caught.value.place == Location(str(path), 2_000, begin)
            stored(path, None)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        rows = ds.as_sequence()
        assert rows[2_000]["number"] == 2_000
        # In place, replaced, and gone.
        path.write_bytes(path.read_bytes())
        with pytest.raises(ShardChangedError, match="has changed"):
            rows[2_000]
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert rows[2_000]["number"] == 2_000
        stored(tmp_path / "y", None, stop=begin).replace(path)
        with pytest.raises(ShardChangedError, match="truncated or replaced"):
            rows[2_000]
        path.unlink()
        with pytest.raises(ShardNotFoundError, match="gone since"):
            rows[2_000]


def test_damage_beyond_the_rows_is_no_error(tmp_path: Path) -> None:
    path = stored(tmp_path / "x", None)
    status, ds = path.stat(), opened(path, counts="auto")
    stored(path, None, flipped=[int(OFFSETS[2_600]) + 8])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for picked in ([5, 2_300], [2_300, 2_599]):
        assert ds.rows[picked].compute()["number"].tolist() == picked
    with pytest.raises(CorruptRecordError, match="the CRC of the length") as caught:
        ds.rows[[5, 2_700]].compute()
    assert caught.value.place == Location(str(path), 2_600, int(OFFSETS[2_600]))


def test_columns_of_an_axis_of_length_0_are_assigned(tmp_path: Path) -> None:
    features = {"u": dtf.FixedLenFeature((), "int64"), "z": dtf.FixedLenFeature((2, 0), "int64")}
    dtf.to_tfrecord({"u": np.arange(3), "z": np.zeros((3, 2, 0), "int64")}, tmp_path / "a", features=features)
    ds = dtf.read_tfrecord(tmp_path / "a", features, chunks=2)
    for added in (ds["z"], ds["z"].rechunk((1, 1, -1)), np.zeros((3, 0), "float32")):
        found = ds.assign(y=added).compute()
        assert found["y"].shape == added.shape and found["u"].tolist() == [0, 1, 2]
