"""Index files: writing, search, verification, and access points into gzip data."""

import gzip
import io
import os
import random
import re
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from oracle import write_oracle

from dask_tfrecord.arrays.counting import build_index, index_shards
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import CorruptRecordError, ShardNotFoundError, TFRecordError
from dask_tfrecord.records.framing import Window, read_records
from dask_tfrecord.records.index import CountedShard, ShardIndex, index_shard, scan_shard, write_sidecars
from dask_tfrecord.settings import Limits
from dask_tfrecord.storage import streams
from dask_tfrecord.storage.listing import find_shards, find_sidecars, sidecar_path
from dask_tfrecord.storage.shard import Shard
from dask_tfrecord.storage.streams import access_points, align_bits, open_stream, read_access_points

PAYLOADS = [random.Random(number).randbytes(random.Random(number).randrange(3000)) for number in range(2_000)]


def lines(payloads: list[bytes]) -> str:
    """Return the index file that both `tfrecord2idx` tools write."""
    offsets = accumulate((len(payload) + 16 for payload in payloads), initial=0)
    return "".join(f"{offset} {len(payload) + 16}\n" for offset, payload in zip(offsets, payloads, strict=False))


def shard_of(path: Path, payloads: list[bytes] = PAYLOADS, compression: str | None = None) -> Shard:
    write_oracle(path, payloads, compression)
    return find_shards(path)[0]


def indexed(shard: Shard) -> CountedShard:
    """Index a shard with its sidecars."""
    shard = replace(shard, access=find_sidecars([shard], ".gzidx") != [None])
    [sidecar] = find_sidecars([shard], ".idx")
    return index_shard(shard, sidecar)


def check(index: ShardIndex, payloads: list[bytes]) -> None:
    offsets = list(accumulate((len(payload) + 16 for payload in payloads), initial=0))
    assert (index.count, index.nbytes) == (len(payloads), offsets[-1])
    assert index.offsets.tolist() == [offsets[record] for record in index.records.tolist()]
    assert (np.diff(index.offsets) >= 1 << 20).all()


class TestWrite:
    def test_lines_are_those_of_both_tools(self, tmp_path: Path) -> None:
        shard = shard_of(tmp_path / "x")
        written = write_sidecars(shard)
        assert written.paths == (f"{tmp_path}/x.idx",)
        assert written.count == len(PAYLOADS)
        assert (tmp_path / "x.idx").read_text() == lines(PAYLOADS)
        # The format that the reader of vahidk/tfrecord expects.
        assert np.loadtxt(tmp_path / "x.idx", dtype=np.int64).shape == (len(PAYLOADS), 2)

    def test_records_larger_than_a_block(self, tmp_path: Path) -> None:
        payloads = [bytes(size) for size in (0, 3 << 20, 5, 1 << 20, 0)]
        write_sidecars(shard_of(tmp_path / "x", payloads))
        assert (tmp_path / "x.idx").read_text() == lines(payloads)

    def test_a_shard_without_records(self, tmp_path: Path) -> None:
        shard = shard_of(tmp_path / "x", [])
        write_sidecars(shard)
        assert (tmp_path / "x.idx").read_text() == ""
        assert indexed(shard).stale is None

    def test_a_damaged_shard_gets_none(self, golden: Path, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes((golden / "damaged_truncated_payload.tfrecord").read_bytes())
        (tmp_path / "x.idx").write_text("old")
        with pytest.raises(CorruptRecordError, match="record 12"):
            write_sidecars(find_shards(tmp_path / "x")[0])
        assert (tmp_path / "x.idx").read_text() == "old"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.idx"]

    def test_zlib_has_no_index(self, tmp_path: Path) -> None:
        with pytest.raises(TFRecordError, match="an index of zlib data is useless, because inflating starts"):
            write_sidecars(shard_of(tmp_path / "x", compression="zlib"))

    def test_urls_of_web_servers_are_refused(self) -> None:
        for url in ("http://127.0.0.1:9/x", "https://127.0.0.1:9/x?signed=yes"):
            with pytest.raises(TFRecordError, match="cannot write an index file next to this URL"):
                write_sidecars(Shard(url, 1, "v", None))

    def test_a_collection(self, tmp_path: Path) -> None:
        for number in (10, 9):
            shard_of(tmp_path / f"x-{number}")
        assert build_index(str(tmp_path / "x-*")) == (f"{tmp_path}/x-9.idx", f"{tmp_path}/x-10.idx")
        with pytest.raises(ShardNotFoundError):
            build_index(tmp_path / "nowhere")

    def test_remote(self, tmp_path: Path) -> None:
        fs = fsspec.filesystem("memory")
        shard_of(tmp_path / "x")
        fs.pipe_file("/sidecars/x", (tmp_path / "x").read_bytes())
        try:
            assert build_index("memory://sidecars/x") == ("memory://sidecars/x.idx",)
            assert fs.cat_file("/sidecars/x.idx").decode() == lines(PAYLOADS)
            assert indexed(find_shards("memory://sidecars")[0]).stale is None
        finally:
            fs.rm("/sidecars", recursive=True)


class TestRead:
    @pytest.mark.parametrize("newer", [True, False])
    def test_a_fitting_index_is_used(self, tmp_path: Path, newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """An index of other tools may be older than a shard that was copied later."""
        shard = shard_of(tmp_path / "x")
        (tmp_path / "x.idx").write_text(lines(PAYLOADS))
        date = (tmp_path / "x").stat().st_mtime_ns
        os.utime(tmp_path / "x.idx", ns=(0, date + (1 if newer else -1)))
        monkeypatch.setattr("dask_tfrecord.records.index.scan_shard", lambda *_, **__: pytest.fail("it was scanned"))
        counted = indexed(shard)
        assert counted.stale is None
        check(counted.index, PAYLOADS)
        assert len(counted.index.records) > 2

    @pytest.mark.parametrize(("between", "after"), [(" ", "\r\n"), ("\t", "\n"), ("  ", "\n\n")])
    def test_other_whitespace_is_accepted(self, tmp_path: Path, between: str, after: str) -> None:
        shard = shard_of(tmp_path / "x")
        text = lines(PAYLOADS).rstrip("\n").replace(" ", between).replace("\n", after)
        (tmp_path / "x.idx").write_bytes(text.encode())
        assert indexed(shard).stale is None

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "end at byte 0"),
            (lines(PAYLOADS[:-1]), "its records end at byte"),
            (lines([*PAYLOADS, b""]), "its records end at byte"),
            (lines(PAYLOADS).replace("\n", "\n\n", 1).replace("0 ", "7 ", 1), "record 0 does not begin where"),
            ("\n".join(lines(PAYLOADS).split("\n")[1:]), "record 0 does not begin where"),
            ("\n".join(lines(PAYLOADS).split("\n")[:7] + lines(PAYLOADS).split("\n")[8:]), "record 7 does not begin"),
            (lines(PAYLOADS) + "5", "not a text with two numbers"),
            ("records: many", "not a text with two numbers"),
            ("1" * 200, "not a text with two numbers"),
            ("99999999999999999999 1\n", "does not begin where"),
            ("0 -16\n", "not a text with two numbers"),
        ],
    )
    def test_an_index_that_does_not_fit_is_not_used(self, tmp_path: Path, text: str, said: str) -> None:
        shard = shard_of(tmp_path / "x")
        (tmp_path / "x.idx").write_text(text)
        counted = indexed(shard)
        assert counted.stale is not None
        assert counted.stale.startswith(f"{tmp_path}/x.idx: ")
        assert said in counted.stale
        check(counted.index, PAYLOADS)

    @pytest.mark.parametrize(("newer", "place"), [(True, 0), (True, -1), (False, 0), (False, -1), (False, 1000)])
    def test_a_shard_written_anew_with_the_same_size(self, tmp_path: Path, newer: bool, place: int) -> None:
        """Of a newer index file, the first and last record are compared; of an older one, all entries."""
        shard_of(tmp_path / "x")
        write_sidecars(find_shards(tmp_path / "x")[0])
        moved = list(PAYLOADS)
        if place in (0, -1):
            other = 1 if place == 0 else -2
            moved[place], moved[other] = moved[place][:-1], moved[other] + b"x"
        else:
            # A record in the middle is longer by one byte, and one in the next MiB is shorter.
            moved[300], moved[1200] = moved[300] + b"x", moved[1200][:-1]
        shard = shard_of(tmp_path / "x", moved)
        date = (tmp_path / "x").stat().st_mtime_ns
        os.utime(tmp_path / "x.idx", ns=(0, date + (1 if newer else -1)))
        counted = indexed(shard)
        assert counted.stale is not None
        assert "but does not" in counted.stale
        check(counted.index, moved)

    def test_a_truncated_record_in_an_index_of_other_tools(self, tmp_path: Path) -> None:
        """Both tools write the remaining length for a truncated record."""
        shard_of(tmp_path / "x")
        data = (tmp_path / "x").read_bytes()[:-5]
        (tmp_path / "x").write_bytes(data)
        text = lines(PAYLOADS[:-1])
        end = sum(len(payload) + 16 for payload in PAYLOADS[:-1])
        (tmp_path / "x.idx").write_text(f"{text}{end} {len(data) - end}\n")
        with pytest.raises(CorruptRecordError, match="truncated"):
            indexed(find_shards(tmp_path / "x")[0])

    def test_memory_is_one_entry_per_mebibyte(self, tmp_path: Path) -> None:
        shard = shard_of(tmp_path / "x", [bytes(20)] * 200_000)
        write_sidecars(shard)
        index = indexed(shard).index
        assert index.count == 200_000
        assert len(index.records) == 7

    def test_stale_sidecars_of_a_collection_are_one_warning(self, tmp_path: Path) -> None:
        for number in range(3):
            shard_of(tmp_path / f"x-{number}")
            (tmp_path / f"x-{number}.idx").write_text("0 1\n")
        shards = find_shards(tmp_path)
        with pytest.warns(UserWarning, match=r"x-0.idx: record 0 .*\(2 more like it\).* `dask-tfrecord") as caught:
            found, indexes = index_shards(shards, sidecars=True)
        assert len(caught) == 1
        assert [index.count for index in indexes] == [len(PAYLOADS)] * 3
        assert found.compressions == (None, None, None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index_shards(shards, sidecars=False)


class TestPatience:
    """Hints for operations that take long."""

    def test_a_hint_at_the_index(
        self, tmp_path: Path, set_limits: Callable[..., Limits], caplog: pytest.LogCaptureFixture
    ) -> None:
        shard_of(tmp_path / "x")
        shards = find_shards(tmp_path / "x")
        caplog.set_level("INFO", "dask_tfrecord.arrays.counting")

        def hints() -> list[str]:
            caplog.clear()
            index_shards(shards, sidecars=True)
            return [message for message in caplog.messages if "`dask-tfrecord index`" in message]

        assert not hints()
        set_limits(display_delay=-1)
        assert len(hints()) == 1
        build_index(tmp_path / "x")
        assert not hints()


class TestCommand:
    def test_index(self, tmp_path: Path) -> None:
        for number in range(2):
            shard_of(tmp_path / f"x-{number}")
        result = CliRunner().invoke(tfrecord, ["index", str(tmp_path / "x-*")], prog_name="dask-tfrecord")
        assert result.exit_code == 0, result.output
        assert re.fullmatch(r"Wrote 2 files: index of 4,000 records in [0-9.]+ s\n", result.stdout)
        assert (tmp_path / "x-1.idx").read_text() == lines(PAYLOADS)

    def test_a_damaged_shard(self, golden: Path, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes((golden / "damaged_length_bit.tfrecord").read_bytes())
        result = CliRunner().invoke(tfrecord, ["index", str(tmp_path / "x")], prog_name="dask-tfrecord")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: {tmp_path}/x: record 7 (byte 5723): ")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


class TestFind:
    @pytest.mark.parametrize(
        ("path", "beside"),
        [
            ("/a/x", "/a/x.idx"),
            ("s3://b/x", "s3://b/x.idx"),
            ("zip://d/x::file:///z.zip", "zip://d/x.idx::file:///z.zip"),
            ("simplecache::s3://b/x", "simplecache::s3://b/x.idx"),
            ("https://h/x?signed=1", None),
        ],
    )
    def test_names(self, path: str, beside: str | None) -> None:
        assert sidecar_path(path, ".idx") == beside

    @pytest.mark.parametrize("count", [3, 30])
    def test_one_listing_of_a_remote_directory(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = fsspec.filesystem("memory")
        for number in range(count):
            fs.pipe_file(f"/looks/x{number:02}", b"a")
            if number % 2:
                fs.pipe_file(f"/looks/x{number:02}.idx", b"0 1")
        shards = find_shards("memory://looks")
        asked = []
        for name in ("ls", "info"):
            call = getattr(fs, name)
            monkeypatch.setattr(fs, name, lambda *a, call=call, **o: asked.append(1) or call(*a, **o))
        try:
            found = find_sidecars(shards, ".idx")
            assert [side is not None for side in found] == [bool(number % 2) for number in range(count)]
            # Listing a memory file system calls `info` for the directory too.
            assert len(asked) <= 3
        finally:
            fs.rm("/looks", recursive=True)


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each of the inflating libraries."""
    library: ModuleType = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(streams, "_inflate", library)


@pytest.fixture
def dense(set_limits: Callable[..., Limits]) -> None:
    """Write many access points into little data."""
    pytest.importorskip("indexed_gzip")
    set_limits(access_point_nbytes=64 << 10)


def text_like(size: int, seed: int = 0) -> bytes:
    """Return bytes that deflate stores in blocks of every type, ending at any bit."""
    rng = random.Random(seed)
    parts = []
    while sum(map(len, parts)) < size:
        kind = rng.randrange(3)
        length = rng.randrange(200, 20_000)
        words = [rng.randbytes(rng.randrange(1, 9)) for _ in range(20)]
        if kind == 0:
            parts.append(rng.randbytes(length))
        elif kind == 1:
            parts.append(b"".join(rng.choices(words, k=length // 5)))
        else:
            parts.append(bytes(rng.choices(range(64), k=length)))
    return b"".join(parts)[:size]


@pytest.mark.usefixtures("dense", "inflater")
class TestAccessPoints:
    @pytest.mark.parametrize("members", [1, 3])
    @pytest.mark.parametrize("level", [1, 6, 9])
    def test_any_offset_is_reached(self, tmp_path: Path, members: int, level: int) -> None:
        data = text_like(1_500_000)
        cut = len(data) // members + 1
        (tmp_path / "x").write_bytes(
            b"".join(gzip.compress(data[at : at + cut], level) for at in range(0, len(data), cut))
        )
        [shard] = find_shards(tmp_path / "x", compression="gzip")
        streams.write_access_points(shard, f"{shard.path}.gzidx")
        shard = replace(shard, access=True)
        points = access_points(shard)
        assert points is not None
        assert (points.size, points.nbytes) == (shard.size, len(data))
        assert len(points.table) > 10
        bits = set()
        for number in range(len(points.table)):
            start = points.inflated(number) + 100
            bits.add(points.load(number).bits)
            if start < len(data):
                self.assert_read(shard, data, start, 3000)
        assert len(bits) > 3
        for start in random.Random(0).choices(range(len(data)), k=20):
            self.assert_read(shard, data, start, 200_000)
        # To the end, across all following members.
        with open_stream(shard, 700_000) as stream:
            assert read_all(stream) == data[700_000:]
        with open_stream(shard, len(data) + 1) as stream:
            assert stream.position == len(data)

    @staticmethod
    def assert_read(shard: Shard, data: bytes, start: int, length: int) -> None:
        with open_stream(shard, start, start + length) as stream:
            assert stream.position == start
            buffer = memoryview(bytearray(length))
            done = 0
            while done < length and (count := stream.readinto(buffer[done:])):
                done += count
            assert bytes(buffer[:done]) == data[start : start + length]

    def test_going_on_jumps_ahead_too(self, tmp_path: Path) -> None:
        payloads = [text_like(100_000, number) for number in range(30)]
        shard = shard_of(tmp_path / "x", payloads, "gzip")
        write_sidecars(shard)
        index = indexed(shard)
        assert index.stale is None
        assert index.index.reachable
        check(index.index, payloads)
        shard = replace(shard, access=True)
        with Window(shard) as window:
            for record in (2, 17, 29):
                assert window.advance(record * 100_016 - window.offset)
                assert window.fill(100_016)
                assert bytes(window.view(12, 100_012)) == payloads[record]

    def test_bytes_before_the_access_point_are_not_read(self, tmp_path: Path) -> None:
        payloads = [random.Random(number).randbytes(100_000) for number in range(100)]
        fs = fsspec.filesystem("memory")
        shard_of(tmp_path / "x", payloads, "gzip")
        fs.pipe_file("/middle/x", (tmp_path / "x").read_bytes())
        try:
            build_index("memory://middle/x")
            [shard] = find_shards("memory://middle")
            with Window(replace(shard, access=True, compression="gzip"), 90 * 100_016, stop=91 * 100_016) as window:
                assert window.fill(100_016)
                assert bytes(window.view(12, 100_012)) == payloads[90]
                stored = window._stream._stored  # type: ignore[attr-defined]
                assert stored._source._range_start > 0.8 * shard.size
                assert len(stored._source._range) < 0.1 * shard.size
        finally:
            fs.rm("/middle", recursive=True)

    @pytest.mark.parametrize("damage", ["cut", "magic", "other", "gone", "order"])
    def test_points_that_do_not_fit_are_not_used(self, tmp_path: Path, damage: str) -> None:
        shard = shard_of(tmp_path / "x", PAYLOADS, "gzip")
        write_sidecars(shard)
        path = tmp_path / "x.gzidx"
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        elif damage == "other":
            shard = shard_of(tmp_path / "x", [*PAYLOADS, b"more"], "gzip")
        else:
            order = data[:35] + data[53:71] + data[35:53] + data[71:]
            path.write_bytes({"cut": data[:-1], "magic": b"X" + data[1:], "order": order}[damage])
        counted = indexed(shard)
        assert counted.stale is not None
        assert ".gzidx" in counted.stale
        assert not counted.index.reachable
        assert counted.index.count == len(PAYLOADS) + (damage == "other")
        with open_stream(replace(shard, access=True), 1_000_000) as stream:
            assert read_all(stream) == gzip.decompress((tmp_path / "x").read_bytes())[1_000_000:]

    def test_rewritten_points_are_used(self, tmp_path: Path) -> None:
        shard = shard_of(tmp_path / "x", PAYLOADS, "gzip")
        (tmp_path / "x.gzidx").write_bytes(b"no points")
        assert not indexed(shard).index.reachable
        write_sidecars(shard)
        assert indexed(shard).index.reachable

    def test_a_tail_cut_off_is_found(self, tmp_path: Path) -> None:
        shard = shard_of(tmp_path / "x", PAYLOADS, "gzip")
        write_sidecars(shard)
        data = (tmp_path / "x").read_bytes()
        points = access_points(replace(shard, access=True))
        assert points is not None
        for missing in (1, 8, 9, 100):
            stream_end = data[:-missing]
            cut = tmp_path / "cut"
            cut.write_bytes(stream_end)
            [short] = find_shards(cut, compression="gzip")
            with open_stream(short) as stream:
                stream._points = points  # type: ignore[attr-defined]
                with pytest.raises(CorruptRecordError, match="truncated"):
                    stream.seek(points.nbytes + 1)

    @given(st.binary(min_size=1, max_size=300), st.integers(1, 7), st.integers(0, 127), st.integers(0, 9))
    def test_a_part_of_a_byte(self, data: bytes, bits: int, low: int, level: int) -> None:
        """Deflate data that begins within a byte inflates to the same bytes."""
        deflater = zlib.compressobj(level, wbits=-15)
        packed = deflater.compress(data) + deflater.flush()
        if (packed[0] >> 1) & 3 == 0:
            return  # stored blocks end at byte borders and cannot be shifted
        shifted = (int.from_bytes(packed, "little") << (8 - bits)) | (low & ((1 << (8 - bits)) - 1))
        moved = shifted.to_bytes(len(packed) + 1, "little")
        inflater = streams._inflate.decompressobj(wbits=-15, zdict=b"abc")
        assert inflater.decompress(align_bits(moved[0], bits) + moved[1:]) == data


def read_all(stream: object) -> bytes:
    buffer = memoryview(bytearray(100_000))
    parts = []
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        parts.append(bytes(buffer[:count]))
    return b"".join(parts)


def test_without_indexed_gzip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of(tmp_path / "x", compression="gzip")
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(
        TFRecordError, match=r"access points into gzip need indexed_gzip: pip install 'dask-tfrecord\[gz"
    ):
        write_sidecars(shard)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_indexed_gzip_reads_what_was_written(tmp_path: Path) -> None:
    indexed_gzip = pytest.importorskip("indexed_gzip")
    shard = shard_of(tmp_path / "x", [text_like(1 << 20, number) for number in range(20)], "gzip")
    write_sidecars(shard)
    with indexed_gzip.IndexedGzipFile(str(tmp_path / "x"), index_file=str(tmp_path / "x.gzidx")) as file:
        file.seek(17_000_000)
        assert file.read(1000) == gzip.decompress((tmp_path / "x").read_bytes())[17_000_000:17_001_000]
    points = read_access_points(find_sidecars([shard], ".gzidx")[0].file)  # type: ignore[union-attr]
    # The last point is the end of the data.
    assert np.diff(points.table["inflated"][:-1].astype(np.int64)).min() >= 8 << 20


class TestBombs:
    @pytest.mark.parametrize("compression", ["gzip", "zlib"])
    def test_data_that_inflate_without_end(self, tmp_path: Path, compression: str) -> None:
        made = io.BytesIO()
        deflater = zlib.compressobj(9, wbits=31 if compression == "gzip" else 15)
        for _ in range(100):
            made.write(deflater.compress(bytes(1 << 20)))
        made.write(deflater.flush())
        (tmp_path / "x").write_bytes(made.getvalue())
        [shard] = find_shards(tmp_path / "x")
        with open_stream(shard) as stream:
            with pytest.raises(CorruptRecordError, match="more than 1000 times its size, like a decompression bomb"):
                stream.seek(1 << 30)
            assert stream.position <= 65 << 20

    def test_a_record_larger_than_allowed(self, tmp_path: Path) -> None:
        for compression in (None, "gzip"):
            shard_of(tmp_path / "x", [b"small", bytes(100_000), b"after"], compression)
            records = read_records(tmp_path / "x", max_record_bytes=99_999)
            assert next(records) == b"small"
            with pytest.raises(CorruptRecordError, match=r"record 1 .byte 21.: the record has 100,000 bytes .* 99,999"):
                next(records)
            assert len(list(read_records(tmp_path / "x", max_record_bytes=100_000))) == 3


def test_scanning_agrees(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "x")
    write_sidecars(shard)
    scanned, read = scan_shard(shard), indexed(shard).index
    assert (scanned.count, scanned.nbytes, scanned.compression) == (read.count, read.nbytes, read.compression)
