"""Reading and writing of records, the window on a shard, and errors for damaged records and other formats."""

import gzip
import os
import pickle
import random
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import read_payloads, write_oracle

from dask_tfrecord.errors import CorruptRecordError, Location, ShardNotFoundError
from dask_tfrecord.records.framing import RecordWriter, Window, framing_error, read_records
from dask_tfrecord.records.index import scan_shard
from dask_tfrecord.storage.listing import find_shards
from dask_tfrecord.storage.shard import Shard

# Records and bytes that TensorFlow read before its error (from `damaged.json`), and the error of this library.
DAMAGED = {
    "huge_length": (7, 5723, "the CRC of the length does not hold"),
    "length_bit": (7, 5723, "the CRC of the length does not hold"),
    "length_crc": (7, 5723, "the CRC of the length does not hold"),
    "not_a_tfrecord": (0, 0, "not a TFRecord file.*zip archive"),
    "payload_bit": (7, 5723, "the CRC of the payload does not hold"),
    "payload_crc": (7, 5723, "the CRC of the payload does not hold"),
    "trailing_garbage": (20, 6789, "truncated header: expected 12 bytes, found 8"),
    "truncated_footer": (12, 6120, "truncated footer: expected 4 bytes, found 2"),
    "truncated_header": (12, 6120, "truncated header: expected 12 bytes, found 5"),
    "truncated_payload": (12, 6120, "truncated payload: expected 74 bytes, found 3"),
}


def framed(*payloads: bytes) -> bytes:
    """Frame payloads as the format specifies."""

    def crc(data: bytes) -> bytes:
        value = crc32c.crc32c(data)
        return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) % 2**32)

    lengths = [struct.pack("<Q", len(payload)) for payload in payloads]
    return b"".join(
        length + crc(length) + payload + crc(payload) for length, payload in zip(lengths, payloads, strict=True)
    )


def borders(payloads: list[bytes]) -> list[int]:
    """Return the offset of each record, and of the end."""
    return list(accumulate((len(payload) + 16 for payload in payloads), initial=0))


def failure(path: Path, **options: bool) -> tuple[int, CorruptRecordError]:
    """Return the number of records before the error, and the error."""
    count = 0
    with pytest.raises(CorruptRecordError) as caught:
        for _ in read_records(path, **options):
            count += 1
    return count, caught.value


def small_window(shard: Shard, block_size: int, start: int = 0) -> Window:
    return Window(shard, start, block_size=block_size)


class TestRead:
    def test_golden(self, golden: Path) -> None:
        for path in sorted(golden.glob("*.tfrecord*")):
            if not path.name.startswith("damaged_") or "none" in path.name:
                assert list(read_records(path)) == read_payloads(path), path

    def test_corpus(self, corpus: Path) -> None:
        rows = [line.split("|") for line in (corpus / "INDEX.md").read_text().splitlines() if line.startswith("| ")]
        files = [(row[1].strip(), row[4].strip(), int(row[5])) for row in rows[2:]]
        assert len(files) > 30
        for name, compression, count in files:
            payloads = list(read_records(corpus / name))
            assert payloads == read_payloads(corpus / name), name
            [shard] = find_shards(corpus / name)
            index = scan_shard(shard)
            assert (index.count, str(index.compression).lower()) == (count, compression), name

    def test_shards_follow_each_other(self, tmp_path: Path) -> None:
        for index in (2, 10, 1):
            write_oracle(tmp_path / f"x-{index}", [f"{index}.{record}".encode() for record in range(2)])
        assert list(read_records(tmp_path / "x-*")) == [b"1.0", b"1.1", b"2.0", b"2.1", b"10.0", b"10.1"]

    def test_a_missing_path_fails_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ShardNotFoundError):
            read_records(tmp_path / "x")

    def test_without_crcs(self, golden: Path) -> None:
        payloads = read_payloads(golden / "damaged_none.tfrecord")
        for name in ("payload_crc", "length_crc"):
            assert list(read_records(golden / f"damaged_{name}.tfrecord", check_crc=False)) == payloads
        flipped = list(read_records(golden / "damaged_payload_bit.tfrecord", check_crc=False))
        assert [index for index in range(20) if flipped[index] != payloads[index]] == [7]


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGED)
    def test_golden(self, golden: Path, name: str) -> None:
        path = golden / f"damaged_{name}.tfrecord"
        record, offset, said = DAMAGED[name]
        count, error = failure(path)
        assert count == record
        assert error.place == Location(str(path), record, offset)
        assert re.search(said, error.message)
        assert isinstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.place) == (str(error), error.place)

    @pytest.mark.parametrize("name", ["huge_length", "length_bit"])
    def test_damaged_lengths_without_crcs(self, golden: Path, name: str) -> None:
        # Without CRCs, a wrong length is detected only at the next header.
        count, error = failure(golden / f"damaged_{name}.tfrecord", check_crc=False)
        assert count >= 7
        assert "CRC of the length does not hold" in error.message

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_cut_at_every_byte(self, tmp_path: Path, compression: str | None) -> None:
        payloads = [b"", b"a", b"some bytes", bytes(40), b"end"]
        data, at = framed(*payloads), borders(payloads)
        path = tmp_path / "x"
        for cut in range(len(data) + 1):
            path.write_bytes(gzip.compress(data[:cut], 1) if compression else data[:cut])
            [shard] = find_shards(path, compression=compression)
            whole = sum(border <= cut for border in at) - 1
            if cut in at:
                assert list(read_records(path)) == payloads[:whole]
                assert scan_shard(shard).count == whole
                continue
            count, error = failure(path)
            assert count == whole
            assert error.place == Location(str(path), whole, at[whole])
            there = cut - at[whole]
            part, expected, found = (
                ("header", 12, there)
                if there < 12
                else ("payload", len(payloads[whole]), there - 12)
                if there < 12 + len(payloads[whole])
                else ("footer", 4, there - 12 - len(payloads[whole]))
            )
            noun = "byte" if expected == 1 else "bytes"
            assert f"truncated {part}: expected {expected} {noun}, found {found} before" in error.message
            with pytest.raises(CorruptRecordError) as caught:
                scan_shard(shard)
            assert str(caught.value) == str(error)

    @pytest.mark.parametrize("compression", [None, "zlib"])
    def test_every_byte_flipped(self, golden: Path, tmp_path: Path, compression: str | None) -> None:
        payloads = read_payloads(golden / "unicode_names.tfrecord")
        data, at = (golden / "unicode_names.tfrecord").read_bytes(), borders(payloads)
        path = tmp_path / "x"
        for flip in range(len(data)):
            flipped = bytearray(data)
            flipped[flip] ^= 1 << flip % 8
            path.write_bytes(zlib.compress(flipped, 1) if compression else flipped)
            record = next(index for index, (_, end) in enumerate(pairwise(at)) if flip < end)
            count, error = failure(path)
            assert count == record
            assert error.place == Location(str(path), record, at[record])
            which = "length" if flip - at[record] < 12 else "payload"
            assert f"CRC of the {which} does not hold" in error.message
            [shard] = find_shards(path)
            if which == "length":
                with pytest.raises(CorruptRecordError) as caught:
                    scan_shard(shard)
                assert str(caught.value) == str(error)
            else:
                assert scan_shard(shard).count == len(payloads)

    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize("length", [1000, 2**31, 2**62, 2**63, 2**64 - 1])
    def test_a_length_that_is_signed_and_false(self, tmp_path: Path, compression: str | None, length: int) -> None:
        # The CRC matches, so only the end of the file shows that the length is wrong.
        head = struct.pack("<Q", length)
        data = framed(b"first") + head + framed(head)[20:] + b"rest"
        path = tmp_path / "x"
        path.write_bytes(gzip.compress(data) if compression else data)
        [shard] = find_shards(path)
        for check in (True, False):
            tracemalloc.start()
            count, error = failure(path, check_crc=check)
            with pytest.raises(CorruptRecordError) as caught:
                scan_shard(shard, check_crc=check)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert count == 1
            assert error.place == Location(str(path), 1, 21)
            assert f"truncated payload: expected {length:,} bytes, found 4" in error.message
            assert str(caught.value) == str(error)
            assert peak < 8 << 20

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"\x89PNG\r\n\x1a\n" + bytes(range(100)), "a PNG image"),
            (b"\xff\xd8\xff\xe0" + bytes(100), "a JPEG image"),
            (b"PK\x03\x04" + bytes(100), "a zip archive"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a Git LFS pointer"),
            (b"feature,label\n1,2\n3,4\n", "text: 'feature,label"),
            ("größe,straße,".encode() * 10, "text: 'größe"),
            (bytes(1000), "zero bytes"),
            (b"\x00\x01\x02\x03" * 20, "unknown format"),
            (b"hi", "text: 'hi'"),
        ],
    )
    @pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
    def test_files_of_other_formats(self, tmp_path: Path, data: bytes, said: str, compression: str | None) -> None:
        packed = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}[compression](data)
        (tmp_path / "x").write_bytes(packed)
        count, error = failure(tmp_path / "x")
        assert count == 0
        assert said in error.message
        if compression is not None and len(data) > 12:
            assert f"inflated from {compression}" in error.message

    def test_gzip_read_as_plain_is_reported(self, golden: Path) -> None:
        with pytest.raises(CorruptRecordError, match="begins with gzip data"):
            list(read_records(golden / "scalars_gzip.tfrecord.gz", compression=None))

    def test_a_refused_record_that_is_intact(self, golden: Path) -> None:
        [shard] = find_shards(golden / "scalars.tfrecord")
        with Window(shard) as window:
            assert "is intact when read again" in str(framing_error(window, 0))

    @given(st.binary(max_size=200), st.sampled_from([None, "gzip", "zlib"]))
    def test_any_bytes_are_records_or_an_error(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes, compression: str | None
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "any"
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


class TestWindow:
    @pytest.fixture
    def shard(self, tmp_path: Path) -> Callable[..., Shard]:
        def write(data: bytes, compression: str | None = None) -> Shard:
            (tmp_path / "x").write_bytes(gzip.compress(data, 1) if compression else data)
            return find_shards(tmp_path / "x", compression=compression)[0]

        return write

    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize("block_size", [16, 100, 4096])
    def test_any_walk_sees_the_stream(
        self, shard: Callable[..., Shard], compression: str | None, block_size: int
    ) -> None:
        data = random.Random(1).randbytes(20_000)
        steps = random.Random(block_size)
        for start in (0, 1, 19_999, 20_000):
            with small_window(shard(data, compression), block_size, start) as window:
                at = start
                while at < len(data):
                    need = steps.choice([1, 5, block_size, 3 * block_size])
                    assert window.offset == at
                    assert window.fill(need) == (at + need <= len(data))
                    seen = window.buffer[window.begin : window.end].tobytes()
                    assert seen == data[at : at + len(seen)]
                    assert bytes(window.view(1, 4)) == seen[1:4]
                    step = steps.choice([0, 1, len(seen), len(seen) + 1, 2 * block_size])
                    assert window.advance(step) == (at + step <= len(data))
                    at = min(at + step, len(data))
                assert window.exhausted
                assert not window.fill()
                assert window.offset == len(data)

    def test_the_buffer_grows_with_what_arrives_and_is_kept(self, shard: Callable[..., Shard]) -> None:
        with small_window(shard(bytes(100_000), "gzip"), 1000) as window:
            assert window.fill(1000)
            kept = window.buffer
            for _ in range(20):
                window.advance(1000)
                assert window.fill(1000)
            assert window.buffer is kept
            assert window.fill(10_000)
            assert 10_000 <= len(window.buffer) <= 20_000
            # Impossible lengths are refused, and memory is proportional to the bytes of the file.
            assert not window.fill(2**64 - 1)
            assert not window.fill(10**12)
            assert len(window.buffer) <= 400_000

    def test_an_uncompressed_file_is_not_read_past_its_size(self, shard: Callable[..., Shard]) -> None:
        with small_window(shard(bytes(100_000)), 1000) as window:
            assert not window.fill(100_001)
            assert len(window.buffer) == 1000
            assert window.fill(100_000)
            assert len(window.buffer) <= 200_000

    @pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts system calls")
    def test_one_read_per_block(self, shard: Callable[..., Shard]) -> None:
        def calls() -> int:
            return int(Path("/proc/self/io").read_text().split("syscr: ")[1].split()[0])

        with small_window(shard(bytes(4 << 20)), 1 << 16) as window:
            calls()
            before = calls()
            overhead = calls() - before
            before, blocks = calls(), 0
            while window.fill(window.end - window.begin + 1):
                blocks += 1
                window.advance(window.end - window.begin - 7)
                if (4 << 20) - window.offset == 7:
                    break
            assert blocks <= (4 << 20) // ((1 << 16) - 7) + 1
            assert calls() - before - overhead <= blocks

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_a_start_past_the_end(self, shard: Callable[..., Shard], compression: str | None) -> None:
        with pytest.raises(CorruptRecordError, match="expected at least 101 bytes, the stream ends after 100"):
            Window(shard(bytes(100), compression), 101)

    def test_truncated_between_two_blocks(self, shard: Callable[..., Shard]) -> None:
        found = shard(framed(*[bytes(1000)] * 100))
        with small_window(found, 5000) as window:
            assert window.fill()
            os.truncate(found.path, 7000)
            window.advance(4 * 1016)
            with pytest.raises(CorruptRecordError, match="ends after 7,000 now"):
                while window.fill(1016):
                    window.advance(1016)


class TestWrite:
    @pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
    def test_round_trip(self, tmp_path: Path, compression: str | None) -> None:
        payloads = [b"", b"x", bytes(100_000), random.Random(0).randbytes(3 << 20)]
        with RecordWriter(tmp_path / "x", compression) as writer:
            for payload in payloads:
                writer.write(payload)
        stored = (tmp_path / "x").read_bytes()
        inflated = {None: bytes, "gzip": gzip.decompress, "zlib": zlib.decompress}[compression](stored)
        assert inflated == framed(*payloads)
        assert read_payloads(tmp_path / "x") == list(read_records(tmp_path / "x")) == payloads

    def test_golden_bytes(self, golden: Path, tmp_path: Path) -> None:
        with RecordWriter(tmp_path / "x") as writer:
            for payload in read_payloads(golden / "ragged.tfrecord"):
                writer.write(payload)
        assert (tmp_path / "x").read_bytes() == (golden / "ragged.tfrecord").read_bytes()

    def test_anything_that_is_bytes(self, tmp_path: Path) -> None:
        with RecordWriter(tmp_path / "x") as writer:
            writer.write(bytearray(b"abc"))
            writer.write(memoryview(b"abc")[1:])
            writer.write(memoryview(np.arange(3, dtype="<i2")))
        assert list(read_records(tmp_path / "x")) == [b"abc", b"bc", b"\0\0\1\0\2\0"]

    def test_a_refused_record_leaves_the_writer_usable(self, tmp_path: Path) -> None:
        with RecordWriter(tmp_path / "x") as writer:
            writer.write(b"one")
            with pytest.raises(TypeError):
                writer.write("text")  # type: ignore[arg-type]
            writer.write(b"two")
        assert list(read_records(tmp_path / "x")) == [b"one", b"two"]

    def test_an_error_in_the_block_keeps_the_old_file(self, tmp_path: Path) -> None:
        write_oracle(tmp_path / "x", [b"old"])
        with pytest.raises(KeyError), RecordWriter(tmp_path / "x") as writer:
            writer.write(b"new")
            raise KeyError
        assert list(read_records(tmp_path / "x")) == [b"old"]
        assert len(list(tmp_path.iterdir())) == 1

    def test_after_the_end(self, tmp_path: Path) -> None:
        writer = RecordWriter(tmp_path / "x")
        writer.write(b"one")
        writer.close()
        writer.close()
        writer.discard()
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"two")
        assert list(read_records(tmp_path / "x")) == [b"one"]

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_a_disk_that_fills_up(self, tmp_path: Path, compression: str | None) -> None:
        resource = pytest.importorskip("resource")
        signal = pytest.importorskip("signal")
        write_oracle(tmp_path / "x", [b"old"])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            writer = RecordWriter(tmp_path / "x", compression)
            with pytest.raises(OSError, match="File too large"):
                for _ in range(20):
                    writer.write(random.Random(0).randbytes(1 << 18))
            with pytest.raises(ValueError, match="closed"):
                writer.write(b"more")
            writer.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert list(read_records(tmp_path / "x")) == [b"old"]
        assert len(list(tmp_path.iterdir())) == 1
