"""Index files: writing, search, verification, and access points into gzip data."""

import gzip
import io
import json
import os
import random
import re
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from oracle import borders, framed, write_oracle
from support.commands import run
from support.few import mostly_slow

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, ShardNotFoundError, TFRecordError
from dask_tfrecord.records.index import ShardIndex, index_shard, scan_shard, write_sidecars
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.counting import build_index, index_shards
from dask_tfrecord.settings import Limits
from dask_tfrecord.shards import streams
from dask_tfrecord.shards.listing import find_shards, find_sidecars, sidecar_path
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.shards.streams import access_points, open_stream

PAYLOADS = [random.Random(number).randbytes(random.Random(number).randrange(3000)) for number in range(2_000)]


def lines(payloads: list[bytes]) -> str:
    """Return the index file that both `tfrecord2idx` tools write."""
    return "".join(
        f"{offset} {len(payload) + 16}\n" for offset, payload in zip(borders(payloads), payloads, strict=False)
    )


TEXT = lines(PAYLOADS)


def shard_of(path: Path, payloads: list[bytes] = PAYLOADS, compression: str | None = None) -> Shard:
    write_oracle(path, payloads, compression)
    return find_shards(path)[0]


def indexed(shard: Shard) -> ShardIndex:
    """Index a shard with its sidecars."""
    shard = replace(shard, access=find_sidecars([shard], ".gzidx") != [None])
    [sidecar] = find_sidecars([shard], ".idx")
    return index_shard(shard, sidecar)


def set_age(folder: Path, newer: bool) -> None:
    date = (folder / "x").stat().st_mtime_ns
    os.utime(folder / "x.idx", ns=(0, date + (1 if newer else -1)))


def check(index: ShardIndex, payloads: list[bytes]) -> None:
    offsets = borders(payloads)
    assert (index.count, index.nbytes) == (len(payloads), offsets[-1])
    assert index.offsets.tolist() == [offsets[record] for record in index.records.tolist()]
    assert (np.diff(index.offsets) >= 1 << 20).all()


# -- writing -----------------------------------------------------------------------------------------------------------


# The last payloads are larger than a block.
@pytest.mark.parametrize("payloads", [PAYLOADS, [], [bytes(size) for size in (0, 3 << 20, 5, 1 << 20, 0)]], ids=len)
def test_lines_are_those_of_other_tools(tmp_path: Path, payloads: list[bytes]) -> None:
    shard = shard_of(tmp_path / "x", payloads)
    files, count = write_sidecars(shard)
    assert (list(files), count) == ([f"{tmp_path}/x.idx"], len(payloads))
    assert (tmp_path / "x.idx").read_text() == lines(payloads)
    scanned, counted = scan_shard(shard), indexed(shard)
    assert counted.stale is None
    check(counted, payloads)
    assert scanned.compression == counted.compression


def test_damaged_shards_get_no_index(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((golden / "damaged_truncated_payload.tfrecord").read_bytes())
    (tmp_path / "x.idx").write_text("old")
    result = run("index", tmp_path / "x")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path}/x: record 12 (byte 6120): ")
    assert (tmp_path / "x.idx").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.idx"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda path: shard_of(path, compression="zlib"),
            "an index of zlib data is useless, because these can only be read",
        ),
        (lambda path: Shard("http://127.0.0.1:9/x", 1, "v", None), "cannot write an index file next to this URL"),
        (lambda path: Shard("https://127.0.0.1:9/x?s=1", 1, "v", None), "cannot write an index file next to this URL"),
    ],
)
def test_shards_without_an_index(tmp_path: Path, made: Callable[[Path], Shard], said: str) -> None:
    with pytest.raises(TFRecordError, match=said):
        write_sidecars(made(tmp_path / "x"))


def test_a_collection(tmp_path: Path) -> None:
    for number in (10, 9):
        shard_of(tmp_path / f"x-{number}")
    result = run("index", tmp_path / "x-*")
    assert re.fullmatch(r"Wrote 2 files: index of 4,000 records in [0-9.]+ s\n", result.stdout), result.output
    assert (tmp_path / "x-10.idx").read_text() == TEXT
    assert build_index(str(tmp_path / "x-*")) == (f"{tmp_path}/x-9.idx", f"{tmp_path}/x-10.idx")
    with pytest.raises(ShardNotFoundError):
        build_index(tmp_path / "nowhere")


def test_remote(memory: Callable[..., str]) -> None:
    url = memory(x=framed(PAYLOADS))
    assert build_index(f"{url}/x") == (f"{url}/x.idx",)
    assert fsspec.filesystem("memory").cat_file(f"{url}/x.idx").decode() == TEXT
    assert indexed(find_shards(url)[0]).stale is None


# -- reading -----------------------------------------------------------------------------------------------------------


# An index of other tools may be older than a shard that was copied later.
@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize(("between", "after"), [(" ", "\n"), (" ", "\r\n"), ("\t", "\n"), ("  ", "\n\n")])
def test_a_fitting_index_is_used(tmp_path: Path, newer: bool, between: str, after: str) -> None:
    # A walk over the headers would stop at this record.
    data, damaged = framed(PAYLOADS), borders(PAYLOADS)[1_000]
    (tmp_path / "x").write_bytes(data[:damaged] + b"damaged" + data[damaged + 7 :])
    [shard] = find_shards(tmp_path / "x")
    text = TEXT.rstrip("\n").replace(" ", between).replace("\n", after)
    (tmp_path / "x.idx").write_bytes(text.encode())
    set_age(tmp_path, newer)
    counted = indexed(shard)
    assert counted.stale is None
    check(counted, PAYLOADS)
    assert len(counted.records) > 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "end at byte 0"),
        (lines(PAYLOADS[:-1]), "its records end at byte"),
        (lines([*PAYLOADS, b""]), "its records end at byte"),
        (TEXT.replace("\n", "\n\n", 1).replace("0 ", "7 ", 1), "record 0 does not begin where"),
        (TEXT.split("\n", 1)[1], "record 0 does not begin where"),
        ("\n".join(TEXT.split("\n")[:7] + TEXT.split("\n")[8:]), "record 7 does not begin"),
        ("99999999999999999999 1\n", "does not begin where"),
        *((text, "not a text with two numbers") for text in (TEXT + "5", "records: many", "1" * 200, "0 -16\n")),
    ],
)
def test_an_index_that_does_not_fit_is_not_used(tmp_path: Path, text: str, said: str) -> None:
    shard = shard_of(tmp_path / "x")
    (tmp_path / "x.idx").write_text(text)
    counted = indexed(shard)
    assert counted.stale is not None
    assert counted.stale.startswith(f"{tmp_path}/x.idx: ")
    assert said in counted.stale
    check(counted, PAYLOADS)


# Of a newer index file, the first and last record are compared; of an older one, all entries.
@pytest.mark.parametrize(
    ("newer", "longer", "shorter"),
    [*((newer, *pair) for newer in (True, False) for pair in ((1, 0), (-2, -1))), (False, 300, 1200)],
)
def test_a_shard_written_anew_with_the_same_size(tmp_path: Path, newer: bool, longer: int, shorter: int) -> None:
    write_sidecars(shard_of(tmp_path / "x"))
    moved = list(PAYLOADS)
    moved[longer], moved[shorter] = moved[longer] + b"x", moved[shorter][:-1]
    shard = shard_of(tmp_path / "x", moved)
    set_age(tmp_path, newer)
    counted = indexed(shard)
    assert counted.stale is not None
    assert "but does not" in counted.stale
    check(counted, moved)


def test_a_truncated_record_in_an_index_of_other_tools(tmp_path: Path) -> None:
    """Both tools write the remaining length for a truncated record."""
    shard_of(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()[:-5]
    (tmp_path / "x").write_bytes(data)
    end = borders(PAYLOADS)[-2]
    (tmp_path / "x.idx").write_text(f"{lines(PAYLOADS[:-1])}{end} {len(data) - end}\n")
    with pytest.raises(CorruptRecordError, match="truncated"):
        indexed(find_shards(tmp_path / "x")[0])


def test_stale_sidecars_of_a_collection_are_one_warning(tmp_path: Path) -> None:
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


class Screen(io.StringIO):
    """Text that a terminal would show."""

    def isatty(self) -> bool:
        return True


def test_counting_that_takes_long_hints_at_the_index(
    tmp_path: Path, set_limits: Callable[..., Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_of(tmp_path / "x")

    def hints() -> int:
        monkeypatch.setattr(sys, "stderr", screen := Screen())
        dtf.read_tfrecord(tmp_path / "x", {})
        return screen.getvalue().count("`dask-tfrecord index`")

    assert hints() == 0
    set_limits(display_delay=-1)
    assert hints() == 1
    build_index(tmp_path / "x")
    assert hints() == 0


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
def test_names(path: str, beside: str | None) -> None:
    assert sidecar_path(path, ".idx") == beside


@pytest.mark.parametrize("count", [3, 30])
def test_one_listing_of_a_remote_directory(
    count: int, memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(**{f"x{number:02}.idx": b"0 1" for number in range(1, count, 2)})
    shards = find_shards(memory(**{f"x{number:02}": b"a" for number in range(count)}))
    fs, asked = fsspec.filesystem("memory"), []
    for name in ("ls", "info"):
        call = getattr(fs, name)
        monkeypatch.setattr(fs, name, lambda *a, call=call, **o: asked.append(1) or call(*a, **o))
    found = find_sidecars(shards, ".idx")
    assert [side is not None for side in found] == [bool(number % 2) for number in range(count)]
    # Listing a memory file system calls `info` for the directory too.
    assert len(asked) <= 3


# -- access points -----------------------------------------------------------------------------------------------------


@pytest.fixture
def dense(set_limits: Callable[..., Limits]) -> None:
    """Write many access points into little data."""
    pytest.importorskip("indexed_gzip")
    set_limits(access_point_nbytes=64 << 10)


def text_like(size: int, seed: int = 0) -> bytes:
    """Return bytes that deflate stores in blocks of every type, ending at any bit."""
    rng = random.Random(seed)
    data = b""
    while len(data) < size:
        length = rng.randrange(200, 20_000)
        words = [rng.randbytes(rng.randrange(1, 9)) for _ in range(20)]
        data += rng.choice(
            [
                rng.randbytes(length),
                b"".join(rng.choices(words, k=length // 5)),
                bytes(rng.choices(range(64), k=length)),
            ]
        )
    return data[:size]


def read_all(stream: streams.StoredStream | streams.InflatedStream, length: int | None = None) -> bytes:
    buffer = memoryview(bytearray(100_000))
    data = b""
    while (length is None or len(data) < length) and (count := stream.readinto(buffer)):
        data += buffer[:count]
    return data[:length]


@pytest.mark.usefixtures("dense", "inflater")
@pytest.mark.parametrize(("members", "level"), mostly_slow([(1, 6), (3, 9)], 2))
def test_any_offset_is_reached(tmp_path: Path, members: int, level: int) -> None:
    data = text_like(900_000)
    cut = len(data) // members + 1
    (tmp_path / "x").write_bytes(b"".join(gzip.compress(data[at : at + cut], level) for at in range(0, len(data), cut)))
    [shard] = find_shards(tmp_path / "x", compression="gzip")
    streams.write_access_points(shard, f"{shard.path}.gzidx")
    shard = replace(shard, access=True)
    points = access_points(shard)
    assert points is not None
    assert (points.size, points.nbytes) == (shard.size, len(data))
    assert len(points.table) > 10
    assert len({points.load(number).bits for number in range(len(points.table))}) > 3
    starts = [(points.inflated(number) + 100, 3000) for number in range(len(points.table))]
    # Any place, and one to the end across all following members.
    starts += [(start, 200_000) for start in random.Random(0).choices(range(len(data)), k=20)]
    for start, length in [*starts, (700_000, len(data))]:
        if start < len(data):
            with open_stream(shard, start, start + length) as stream:
                assert stream.position == start
                assert read_all(stream, length) == data[start : start + length]
    with open_stream(shard, len(data) + 1) as stream:
        assert stream.position == len(data)
    indexed_gzip = pytest.importorskip("indexed_gzip")
    with indexed_gzip.IndexedGzipFile(shard.path, index_file=f"{shard.path}.gzidx") as file:
        file.seek(700_000)
        assert file.read(1000) == data[700_000:701_000]


@pytest.mark.slow
@pytest.mark.usefixtures("dense", "inflater")
def test_all_bytes_between_an_access_point_and_damage_are_read(tmp_path: Path) -> None:
    data = text_like(900_000)
    stored = bytearray(gzip.compress(data))
    path = tmp_path / "x"
    path.write_bytes(stored)
    [shard] = find_shards(path, compression="gzip")
    streams.write_access_points(shard, f"{shard.path}.gzidx")
    at = len(stored) * 2 // 3
    stored[at : at + 20] = b"\xff" * 20
    intact = zlib.decompressobj(wbits=31).decompress(stored[: at - 500])
    path.write_bytes(stored)
    [shard] = find_shards(path, compression="gzip")
    buffer, found = memoryview(bytearray(1 << 20)), bytearray()
    with (
        open_stream(replace(shard, access=True), 300_001) as stream,
        pytest.raises(CorruptRecordError, match="the gzip data is damaged"),
    ):
        while count := stream.readinto(buffer):
            found += buffer[:count]
    assert found.startswith(intact[300_001:])


@pytest.mark.usefixtures("dense")
def test_bytes_before_the_access_point_are_not_read(memory: Callable[..., str]) -> None:
    payloads = [random.Random(number).randbytes(100_000) for number in range(100)]
    data = gzip.compress(framed(payloads))
    url = memory(x=data)
    build_index(f"{url}/x")
    memory(x=bytes(8_000_000) + data[8_000_000:])
    [shard] = find_shards(url)
    with Window(replace(shard, access=True, compression="gzip"), 90 * 100_016, stop=91 * 100_016) as window:
        assert window.ensure(100_016)
        assert bytes(window.view(12, 100_012)) == payloads[90]


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("damage", mostly_slow(["cut", "magic", "other", "gone", "order"], 3))
def test_points_that_do_not_fit_are_not_used_until_they_are_rewritten(tmp_path: Path, damage: str) -> None:
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
    assert not counted.reachable
    assert counted.count == len(PAYLOADS) + (damage == "other")
    with open_stream(replace(shard, access=True), 1_000_000) as stream:
        assert read_all(stream) == gzip.decompress((tmp_path / "x").read_bytes())[1_000_000:]
    write_sidecars(shard)
    assert indexed(shard).reachable


@pytest.mark.usefixtures("dense", "inflater")
def test_a_tail_cut_off_is_found(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "x", PAYLOADS, "gzip")
    write_sidecars(shard)
    data = (tmp_path / "x").read_bytes()
    points = access_points(replace(shard, access=True))
    assert points is not None
    for missing in (1, 8, 9, 100):
        (tmp_path / "cut").write_bytes(data[:-missing])
        [short] = find_shards(tmp_path / "cut", compression="gzip")
        with open_stream(short) as stream:
            # Opening refuses the sidecar of other bytes: the file may have changed after its points were written.
            stream._points = points  # type: ignore[attr-defined]
            with pytest.raises(CorruptRecordError, match="truncated"):
                stream.seek(points.nbytes + 1)


@pytest.mark.parametrize("compression", mostly_slow(["gzip", "zlib"], 2))
def test_data_that_inflate_without_end(tmp_path: Path, compression: str) -> None:
    deflater = zlib.compressobj(9, wbits=31 if compression == "gzip" else 15)
    parts = [deflater.compress(bytes(1 << 20)) for _ in range(70)]
    (tmp_path / "x").write_bytes(b"".join([*parts, deflater.flush()]))
    with open_stream(find_shards(tmp_path / "x")[0]) as stream:
        with pytest.raises(CorruptRecordError, match="more than 1000 times its size, like a decompression bomb"):
            stream.seek(1 << 30)
        assert stream.position <= 65 << 20


def test_lengths_of_other_rows_do_not_reach_a_store(tmp_path: Path) -> None:
    """Lengths that fit a shard in all but its rows end in an error, not in a store."""
    features = {"x": dtf.VarLenFeature("int64")}
    rows = [[1] * (row % 5) for row in range(102)]
    dtf.to_tfrecord({"x": rows}, tmp_path / "a", features=features)
    dtf.to_tfrecord({"x": rows[::-1]}, tmp_path / "b", features=features)
    build_index(tmp_path / "[ab]", features)
    dtf.read_tfrecord(tmp_path / "a", features).to_zarr(tmp_path / "a.zarr")
    (tmp_path / "b.lengths.idx").replace(tmp_path / "a.lengths.idx")
    with pytest.raises(TFRecordError, match="differs from the earlier count"):
        dtf.read_tfrecord(tmp_path / "a", features).to_zarr(tmp_path / "b.zarr", chunks=7)
    assert not (tmp_path / "b.zarr").exists()


def test_lengths_that_do_not_fit_are_not_used(tmp_path: Path) -> None:
    features = {"x": dtf.VarLenFeature("bytes")}
    rows = [[b"word"] * (row % 5) for row in range(102)]
    dtf.to_tfrecord({"x": rows}, tmp_path / "a", features=features)
    sidecar = Path(build_index(tmp_path / "a", features)[1])
    header, _, body = sidecar.read_bytes().partition(b"\n")
    [[[first, count], [second, items]]] = json.loads(header)["columns"].values()
    others = [
        [[first, -1], [second, items]],
        [[first, count - 1], [second, items + 1]],
        [[first, count], [second, 1 << 62]],
        [[first, count], [3, items]],
        [[first, count], second],
        {},
        None,
    ]
    documents = [
        header.replace(str([[first, count], [second, items]]).encode(), json.dumps(one).encode()) for one in others
    ]
    assert header not in documents
    for number, document in enumerate([*documents, b"", b"[]", b"[" * 100_000, header.replace(b"lengths", b"other")]):
        sidecar.write_bytes(document + b"\n" + body)
        dtf.read_tfrecord(tmp_path / "a", features).to_zarr(tmp_path / f"{number}.zarr", chunks=7)
        assert [*map(list, dtf.from_zarr(tmp_path / f"{number}.zarr")["x"].compute())] == rows
