"""Reading, writing and counting of records, and errors for damaged records and other formats."""

import gzip
import pickle
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import borders, framed, read_payloads, write_oracle
from support.few import mostly_slow

from dask_tfrecord.errors import CorruptRecordError, Location, ShardNotFoundError
from dask_tfrecord.records.framing import RecordWriter, read_records
from dask_tfrecord.records.index import ShardIndex, scan_shard
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard

PACK = {None: bytes, "gzip": lambda data: gzip.compress(data, 1), "zlib": lambda data: zlib.compress(data, 1)}
UNPACK = {None: bytes, "gzip": gzip.decompress, "zlib": zlib.decompress}
SIZES = {
    "small": [random.Random(0).randrange(300) for _ in range(30_000)],
    "large": [random.Random(0).randrange(200_000, 900_000) for _ in range(20)],
    "mixed": [random.Random(0).choice([0, 10, 3_000, 700_000, 2_500_000]) for _ in range(30)],
    "one": [5 << 20],
    "none": [],
}


def shard_at(path: Path, data: bytes, compression: str | None = None) -> Shard:
    path.write_bytes(PACK[compression](data))
    return find_shards(path, compression=compression)[0]


def failure(path: Path, **options: bool) -> tuple[int, CorruptRecordError]:
    """Return the number of records before the error, and the error."""
    count = 0
    with pytest.raises(CorruptRecordError) as caught:
        for _ in read_records(path, **options):
            count += 1
    return count, caught.value


def scan_failure(shard: Shard, **options: bool) -> CorruptRecordError:
    with pytest.raises(CorruptRecordError) as caught:
        scan_shard(shard, **options)
    return caught.value


def check_index(index: ShardIndex, sizes: Sequence[int]) -> None:
    offsets = np.cumsum([0, *(size + 16 for size in sizes)])
    assert (index.count, index.nbytes) == (len(sizes), offsets[-1])
    assert index.offsets.tolist() == offsets[index.records].tolist()
    assert index.records[0] == index.offsets[0] == 0
    gaps = np.diff([*index.offsets.tolist(), index.nbytes])
    assert (gaps[:-1] >= 1 << 20).all()
    # Entries are only as far apart as spacing, block size and record size require.
    assert (gaps <= (2 << 20) + 2 * (max(sizes, default=0) + 16)).all()


# -- intact files ------------------------------------------------------------------------------------------------------


def test_shards_follow_each_other_and_a_missing_path_fails_at_once(tmp_path: Path) -> None:
    for index in (2, 10, 1):
        write_oracle(tmp_path / f"x-{index}", [f"{index}.{record}".encode() for record in range(2)])
    assert list(read_records(tmp_path / "x-*")) == [b"1.0", b"1.1", b"2.0", b"2.1", b"10.0", b"10.1"]
    with pytest.raises(ShardNotFoundError):
        read_records(tmp_path / "x")


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("kind", mostly_slow(SIZES, 2))
def test_counts_and_entries(tmp_path: Path, kind: str, compression: str | None, memory: Callable[..., str]) -> None:
    write_oracle(tmp_path / "x", map(bytes, SIZES[kind]), compression)
    [shard] = find_shards(tmp_path / "x")
    for check_crc in (True, False):
        index = pickle.loads(pickle.dumps(scan_shard(shard, check_crc=check_crc)))
        check_index(index, SIZES[kind])
        assert index.compression == compression
    if compression is None:
        check_index(scan_shard(find_shards(memory(x=(tmp_path / "x").read_bytes()))[0]), SIZES[kind])


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_cut_at_every_byte(tmp_path: Path, compression: str | None) -> None:
    payloads = [b"", b"a", b"some bytes", bytes(40), b"end"]
    data, at = framed(payloads), borders(payloads)
    path = tmp_path / "x"
    for cut in range(0, len(data) + 1, 3 if compression else 1):
        shard = shard_at(path, data[:cut], compression)
        whole = sum(border <= cut for border in at) - 1
        if cut in at:
            assert list(read_records(path)) == payloads[:whole]
            assert scan_shard(shard).count == whole
            continue
        count, error = failure(path)
        assert (count, error.place) == (whole, Location(str(path), whole, at[whole]))
        there, length = cut - at[whole], len(payloads[whole])
        if there < 12:
            part, expected, found = "header", 12, there
        elif there < 12 + length:
            part, expected, found = "payload", length, there - 12
        else:
            part, expected, found = "footer", 4, there - 12 - length
        noun = "byte" if expected == 1 else "bytes"
        assert f"truncated {part}: expected {expected} {noun}, found {found} before" in error.message
        assert str(scan_failure(shard)) == str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("missing", mostly_slow([1, 17], 2))
def test_a_truncated_shard_of_many_blocks(tmp_path: Path, missing: int, compression: str | None) -> None:
    data = framed(map(bytes, SIZES["mixed"]))[:-missing]
    offsets = np.cumsum([0, *(size + 16 for size in SIZES["mixed"])])
    record = int(np.searchsorted(offsets, len(data), side="right")) - 1
    error = scan_failure(shard_at(tmp_path / "x", data, compression))
    assert error.place == Location(str(tmp_path / "x"), record, int(offsets[record]))


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("length", [1000, 2**31, 2**62, 2**63, 2**64 - 1])
def test_a_length_that_is_signed_and_false(tmp_path: Path, compression: str | None, length: int) -> None:
    # The CRC matches, so only the end of the file shows that the length is wrong.
    head = struct.pack("<Q", length)
    path = tmp_path / "x"
    shard = shard_at(path, framed([b"first"]) + head + framed([head])[20:] + b"rest", compression)
    for check in (True, False):
        tracemalloc.start()
        count, error = failure(path, check_crc=check)
        scanned = scan_failure(shard, check_crc=check)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (count, error.place) == (1, Location(str(path), 1, 21))
        assert f"truncated payload: expected {length:,} bytes, found 4" in error.message
        assert str(scanned) == str(error)
        assert peak < 8 << 20


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(range(100)), "a PNG image"),
        (b"\xff\xd8\xff\xe0" + bytes(100), "a JPEG image"),
        (b"PK\x03\x04" + bytes(100), "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a Git LFS pointer"),
        (b"feature,label\n1,2\n3,4\n", "the text 'feature,label"),
        ("größe,straße,".encode() * 10, "the text 'größe"),
        (bytes(1000), "zero bytes"),
        (b"\x00\x01\x02\x03" * 20, "unknown format"),
        (b"hi", "the text 'hi'"),
    ],
)
def test_files_of_other_formats(tmp_path: Path, data: bytes, said: str) -> None:
    for compression in PACK:
        shard_at(tmp_path / "x", data, compression)
        count, error = failure(tmp_path / "x")
        assert count == 0
        assert said in error.message
        assert compression is None or len(data) <= 12 or f"inflated from {compression}" in error.message


def test_errors_of_intact_data(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError, match="begins with gzip data"):
        list(read_records(golden / "scalars_gzip.tfrecord.gz", compression=None))
    for compression in (None, "gzip"):
        shard_at(tmp_path / "x", framed([b"small", bytes(100_000), b"after"]), compression)
        records = read_records(tmp_path / "x", max_record_bytes=99_999)
        assert next(records) == b"small"
        with pytest.raises(CorruptRecordError, match=r"record 1 .byte 21.: the record has 100,000 bytes, .* 99,999"):
            next(records)
        assert len(list(read_records(tmp_path / "x", max_record_bytes=100_000))) == 3


@given(st.binary(max_size=200), st.sampled_from([*PACK]))
def test_any_bytes_are_records_or_an_error(tmp_path: Path, data: bytes, compression: str | None) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    [shard] = find_shards(path, compression=compression)
    for check in (True, False):
        try:
            count = len(list(read_records(path, compression=compression, check_crc=check)))
        except CorruptRecordError as error:
            assert error.place is not None
            assert error.place.file == str(path)
        else:
            assert scan_shard(shard, check_crc=check).count == count


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", PACK)
def test_what_is_written_is_read(golden: Path, tmp_path: Path, compression: str | None) -> None:
    payloads = [b"", b"x", bytes(100_000), random.Random(0).randbytes(3 << 20)]
    payloads += read_payloads(golden / "ragged.tfrecord")
    with RecordWriter(tmp_path / "x", compression) as writer:
        for payload in payloads:
            writer.write(payload)
    stored = UNPACK[compression]((tmp_path / "x").read_bytes())
    assert stored == framed(payloads)
    assert stored.endswith((golden / "ragged.tfrecord").read_bytes())
    assert read_payloads(tmp_path / "x") == list(read_records(tmp_path / "x")) == payloads


def test_records_are_anything_that_is_bytes_and_a_refused_one_leaves_the_writer_usable(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "x")
    writer.write(bytearray(b"abc"))
    with pytest.raises(TypeError, match="records must be bytes, bytearray or memoryview"):
        writer.write("text")  # type: ignore[arg-type]
    writer.write(memoryview(b"abc")[1:])
    writer.write(memoryview(np.arange(3, dtype="<i2")))
    for end in (writer.close, writer.close, writer.discard):
        end()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"two")
    assert list(read_records(tmp_path / "x")) == [b"abc", b"bc", b"\0\0\1\0\2\0"]


def test_an_error_in_the_block_keeps_the_old_file(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [b"old"])
    with pytest.raises(KeyError), RecordWriter(tmp_path / "x") as writer:
        writer.write(b"new")
        raise KeyError
    assert list(read_records(tmp_path / "x")) == [b"old"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit the size of files to one MiB."""
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_disk_that_fills_up(tmp_path: Path, small_disk: None, compression: str | None) -> None:
    write_oracle(tmp_path / "x", [b"old"])
    writer = RecordWriter(tmp_path / "x", compression)
    with pytest.raises(OSError, match="File too large"):
        for _ in range(20):
            writer.write(random.Random(0).randbytes(1 << 18))
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"more")
    writer.close()
    assert list(read_records(tmp_path / "x")) == [b"old"]
    assert len(list(tmp_path.iterdir())) == 1
