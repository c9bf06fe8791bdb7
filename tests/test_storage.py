"""Search for shards, decompressed streams, and publication of complete files."""

import gzip
import os
import pickle
import random
import socket
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.few import rising

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, ShardChangedError, ShardNotFoundError
from dask_tfrecord.storage import streams
from dask_tfrecord.storage.listing import find_shards
from dask_tfrecord.storage.shard import Shard, Shards
from dask_tfrecord.storage.streams import create_stream, detect_compression, masked_crc32c, open_stream


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Store files in a directory of the memory file system; return its URL."""
    fs = fsspec.filesystem("memory")
    folder = f"{request.node.name}".replace("[", "-").replace("]", "")

    def put(**files: bytes) -> str:
        for name, data in files.items():
            fs.pipe_file(f"/{folder}/{name}", data)
        return f"memory://{folder}"

    yield put
    if fs.exists(f"/{folder}"):
        fs.rm(f"/{folder}", recursive=True)


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each of the inflating libraries, as if the other were not installed."""
    library: ModuleType = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(streams, "_inflate", library)


def touch(folder: Path, *names: str, data: bytes = b"") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def names(urlpath: Any, **options: Any) -> list[str]:
    return [Path(path).name for path in find_shards(urlpath, **options).paths]


def read(urlpath: Any, *, size: int = 5000, start: int = 0, **options: Any) -> bytes:
    """Read the decompressed bytes of one file in steps."""
    [shard] = find_shards(urlpath, **options)
    buffer = memoryview(bytearray(size))
    parts = []
    with open_stream(shard) as stream:
        assert stream.seek(start) == stream.position == start
        while count := stream.readinto(buffer):
            parts.append(bytes(buffer[:count]))
            assert stream.position == start + sum(map(len, parts))
    return b"".join(parts)


class TestFind:
    def test_a_path_that_exists(self, here: Path) -> None:
        touch(here, "one.tfrecord", data=b"12345")
        for urlpath in (
            "one.tfrecord",
            Path("one.tfrecord"),
            str(here / "one.tfrecord"),
            f"file://{here}/one.tfrecord",
        ):
            [shard] = find_shards(urlpath)
            assert (shard.path, shard.size, shard.compression) == (str(here / "one.tfrecord"), 5, "infer")

    def test_natural_order(self, here: Path) -> None:
        touch(here, "part-10", "part-9", "part-1", "part-02", "q", "part-1.5")
        assert names("*") == ["part-1", "part-1.5", "part-02", "part-9", "part-10", "q"]

    def test_a_list_keeps_its_order_and_its_patterns_sort_their_own(self, here: Path) -> None:
        touch(here, "b-10", "b-2", "a")
        assert names(["b-*", Path("a"), "b-2"]) == ["b-2", "b-10", "a", "b-2"]

    def test_a_directory_excludes_other_files(self, here: Path) -> None:
        touch(here, "x.tfrecord", "plain", "nested/y.tfrecord")
        touch(here, "_SUCCESS", ".hidden", "x.tfrecord.idx", "x.gzidx", "dataset_info.json", "schema.pbtxt")
        assert names(here) == names(f"{here}/") == ["plain", "x.tfrecord"]

    def test_a_glob_excludes_other_files_unless_it_names_them(self, here: Path) -> None:
        touch(here, "a.tfrecord", "a.tfrecord.idx", "_SUCCESS", ".a", "d/b.tfrecord", "d/_temporary/c.tfrecord")
        assert names("*") == names("a*") == ["a.tfrecord"]
        assert names("**") == names("**/*.tfrecord") == ["a.tfrecord", "b.tfrecord"]
        assert names("*.idx") == ["a.tfrecord.idx"]
        assert names("_*") == ["_SUCCESS"]
        assert names("d/_*/*") == ["c.tfrecord"]

    @pytest.mark.parametrize("literal", ["w[1].x", "a*b", "what?", "t@3", "t-?????-of-00003"])
    def test_a_literal_path_wins_over_glob_and_template(self, here: Path, literal: str) -> None:
        touch(here, literal, "w1.x", "aXb", "whatX", *(f"t-{index:05}-of-00003" for index in range(3)))
        assert names(literal) == [literal]

    def test_a_literal_directory_with_wildcards_in_its_name(self, here: Path) -> None:
        touch(here, "run[1]/x")
        assert names("run[1]") == ["x"]

    @pytest.mark.parametrize(
        ("template", "suffix"),
        [("t@3", ""), ("t@03", ""), ("t-?????-of-00003", ""), ("t@3.gz", ".gz"), ("t-?????-of-00003.gz", ".gz")],
    )
    def test_a_template(self, here: Path, template: str, suffix: str) -> None:
        wanted = [f"t-{index:05}-of-00003{suffix}" for index in range(3)]
        touch(here, *wanted, "t-00000-of-00004", "u-00000-of-00003", "t-00000-of-00003.idx")
        assert names(template) == wanted

    @pytest.mark.parametrize("template", ["t@3", "t-?????-of-00003"])
    def test_shards_of_a_template_that_are_missing_or_too_many(self, here: Path, template: str) -> None:
        touch(here, "t-00000-of-00003", "t-00007-of-00003")
        with pytest.raises(ShardNotFoundError) as caught:
            find_shards(template)
        assert "missing: t-00001-of-00003, t-00002-of-00003" in str(caught.value)
        assert "unexpected: t-00007-of-00003" in str(caught.value)

    def test_a_template_without_files_names_existing_files(self, here: Path) -> None:
        touch(here, "t-00000-of-00008")
        with pytest.raises(ShardNotFoundError, match=r"none of the 3 shards .* 't-00000-of-00008'"):
            find_shards("t@3")

    def test_a_number_after_an_at_that_is_no_count(self, here: Path) -> None:
        with pytest.raises(ShardNotFoundError, match="no file or directory 't@0'"):
            find_shards("t@0")
        with pytest.raises(ShardNotFoundError, match="no file or directory"):
            find_shards("t@99999999999")

    def test_a_typo_is_answered_with_similar_names(self, here: Path) -> None:
        touch(here, "train.tfrecord")
        with pytest.raises(ShardNotFoundError, match=r"did you mean 'train\.tfrecord'"):
            find_shards("trian.tfrecord")
        with pytest.raises(ShardNotFoundError, match=r"no file matches the pattern .* 'train\.tfrecord'"):
            find_shards("trian*.tfrecord")
        with pytest.raises(FileNotFoundError, match="is empty or not a directory"):
            find_shards("nowhere/x")
        with pytest.raises(FileNotFoundError, match="is empty or not a directory"):
            find_shards("train.tfrecord/x")

    def test_paths_without_record_files(self, here: Path) -> None:
        touch(here, "d/_SUCCESS", "d/e/x")
        (here / "empty").mkdir()
        with pytest.raises(ShardNotFoundError, match=r"1 file, hidden or metadata, and 1 subfolder;.*d/\*\*/\*"):
            find_shards("d")
        with pytest.raises(ShardNotFoundError, match="0 files"):
            find_shards("empty")
        with pytest.raises(ShardNotFoundError, match="only directories"):
            find_shards("emp*")
        with pytest.raises(ShardNotFoundError, match="empty list"):
            find_shards([])
        with pytest.raises(ShardNotFoundError, match="empty string"):
            find_shards("")
        with pytest.raises(ShardNotFoundError, match="NUL"):
            find_shards("a\0b")

    def test_a_zarr_store_is_no_shards(self, here: Path) -> None:
        dtf.to_zarr({"x": np.arange(3)}, here / "some.zarr")
        said = r"some\.zarr: the directory is a Zarr store, .*; open it with from_zarr"
        with pytest.raises(ShardNotFoundError, match=said):
            find_shards("some.zarr")

    def test_arguments_that_are_not_paths(self) -> None:
        for wrong in (5, {"a": 1}, b"bytes", {"a", "b"}):
            with pytest.raises(TypeError, match="urlpath must be a path or a list of paths"):
                find_shards(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="int: 5"):
            find_shards(["a", 5])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="compression is one of"):
            find_shards("x", compression="zip")

    def test_links(self, here: Path) -> None:
        touch(here, "store/blob", data=b"12345678")
        (here / "set").mkdir()
        (here / "set" / "x.tfrecord").symlink_to(here / "store" / "blob")
        os.utime(here / "store" / "blob", (1, 1))
        for urlpath in ("set", "set/*", "set/x.tfrecord"):
            [shard] = find_shards(urlpath)
            assert (Path(shard.path).name, shard.size, shard.version.split(" ")[0]) == ("x.tfrecord", 8, "mtime=1.0")
        (here / "set" / "broken").symlink_to("gone")
        for urlpath in ("set", "set/*", "set/broken"):
            with pytest.raises(ShardNotFoundError, match=r"set/broken: broken symbolic link"):
                find_shards(urlpath)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
    def test_pipes_and_sockets_are_no_shards(self, here: Path) -> None:
        touch(here, "x")
        os.mkfifo("pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            for urlpath in ("pipe", "socket"):
                with pytest.raises(ShardNotFoundError, match="expected a regular file"):
                    find_shards(urlpath)
            assert names(here) == names("*") == ["x"]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is permitted to root")
    def test_paths_without_permission(self, here: Path) -> None:
        touch(here, "closed/x", "x")
        (here / "x").chmod(0)
        with pytest.raises(PermissionError, match="x"):
            open_stream(find_shards("x")[0])
        (here / "closed").chmod(0)
        try:
            with pytest.raises(PermissionError, match="closed"):
                find_shards("closed")
            with pytest.raises(ShardNotFoundError, match=r"permission to list .* is denied"):
                find_shards("closed/*")
        finally:
            (here / "closed").chmod(0o700)

    def test_names_that_read_like_urls(self, here: Path) -> None:
        touch(here, "a::b.tfrecord", data=b"xyz")
        [shard] = find_shards("a::b.tfrecord")
        assert shard.size == 3
        with open_stream(shard) as stream:
            assert stream.readinto(memoryview(bytearray(10))) == 3

    def test_versions_change_with_the_content(self, here: Path) -> None:
        touch(here, "x")
        before = find_shards("x")[0]
        os.utime("x", ns=(1, 10**18 + 1000))
        after = find_shards("x")[0]
        assert before.version != after.version
        assert before != after
        assert find_shards("*")[0] == after


class TestUrls:
    def test_memory(self, memory: Callable[..., str]) -> None:
        url = memory(x10=b"a" * 10, x9=b"a" * 9, _SUCCESS=b"")
        for urlpath in (f"{url}/x*", url, f"{url}/"):
            shards = find_shards(urlpath)
            assert shards.paths == (f"{url}/x9", f"{url}/x10")
            assert shards.sizes.tolist() == [9, 10]
        assert find_shards(f"{url}/x9")[0] == find_shards(url)[0]
        with pytest.raises(ShardNotFoundError, match="x10"):
            find_shards(f"{url}/x100")

    def test_a_chained_url_keeps_all_of_it(self, here: Path, memory: Callable[..., str]) -> None:
        with zipfile.ZipFile("z.zip", "w") as archive:
            archive.writestr("d/a.tfrecord", b"aa")
            archive.writestr("d/b.tfrecord", b"bbb")
        tail = f"::file://{here}/z.zip"
        for urlpath in (f"zip://d/*.tfrecord{tail}", f"zip://d{tail}", f"zip://**{tail}"):
            shards = find_shards(urlpath)
            assert shards.paths == (f"zip://d/a.tfrecord{tail}", f"zip://d/b.tfrecord{tail}")
        assert read(f"zip://d/b.tfrecord{tail}") == b"bbb"
        url = memory(x1=b"one", x2=b"two")
        assert find_shards(f"simplecache::{url}/x*").paths == (f"simplecache::{url}/x1", f"simplecache::{url}/x2")
        assert read(f"simplecache::{url}/x2") == b"two"

    def test_hosts_and_users_of_a_url_stay_with_the_files(self, memory: Callable[..., str]) -> None:
        class Hosted(MemoryFileSystem):
            """Like sftp and hdfs: the host belongs to the URL, not to the paths of a listing."""

            protocol = "hosted"

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return "/" + path.removeprefix("hosted://me@host:22").strip("/")

        fsspec.register_implementation("hosted", Hosted, clobber=True)
        url = memory(x9=b"", x10=b"a").replace("memory://", "hosted://me@host:22/")
        assert find_shards(f"{url}/x*").paths == find_shards(url).paths == (f"{url}/x9", f"{url}/x10")
        assert find_shards(f"{url}/x10").paths == (f"{url}/x10",)
        assert read(f"{url}/x10") == b"a"

    def test_many_paths_of_one_directory_are_listed_once(
        self, memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = memory(**{f"x{index}": b"a" * index for index in range(50)})
        fs = fsspec.filesystem("memory")
        asked: list[str] = []
        info = fs.info
        monkeypatch.setattr(fs, "info", lambda path, **options: asked.append(path) or info(path, **options))
        shards = find_shards([f"{url}/x{index}" for index in reversed(range(50))])
        assert shards.sizes.tolist() == list(reversed(range(50)))
        assert not asked


class TestShards:
    def test_sequence(self, here: Path) -> None:
        touch(here, "a", data=b"1")
        touch(here, "b", data=b"22")
        shards = find_shards("*", compression=None)
        assert [shard.size for shard in shards] == [1, 2]
        assert shards[-1] == Shard(str(here / "b"), 2, shards.versions[1], None)
        assert list(shards[1:]) == [shards[1]]
        assert "2 files, 3 bytes" in repr(shards)
        with pytest.raises(IndexError):
            shards[2]

    def test_a_hundred_thousand_files_pickle_compactly(self) -> None:
        count = 100_000
        shards = Shards(
            tuple(f"s3://bucket/train-{index:05}-of-99999" for index in range(count)),
            np.ones(count, np.int64),
            tuple("v" for _ in range(count)),
            None,
            {},
        )
        pickled = pickle.dumps(shards)
        assert len(pickled) < 60 * count
        assert list(pickle.loads(pickled)) == list(shards)


class TestDetectCompression:
    def test_golden(self, golden: Path) -> None:
        found = {path.name: detect_compression(path.read_bytes()[:512]) for path in golden.glob("*.tfrecord*")}
        assert {name for name, what in found.items() if what == "gzip"} == {
            name for name in found if name.endswith(".gz")
        }
        assert {name for name, what in found.items() if what == "zlib"} == {"scalars_zlib.tfrecord.zlib"}

    def test_a_length_that_looks_like_gzip(self, tmp_path: Path) -> None:
        length = (0x08_8B1F).to_bytes(8, "little")
        head = length + masked_crc32c(length).to_bytes(4, "little")
        assert detect_compression(head) is None
        assert detect_compression(head[:11]) == detect_compression(length + b"1234") == "gzip"

    def test_a_damaged_length_that_looks_like_zlib(self, golden: Path) -> None:
        head = (golden / "scalars.tfrecord").read_bytes()[2:512]
        assert detect_compression(b"\x78\x01" + head) is None
        assert detect_compression(b"\x78\x9c" + head) is None

    @pytest.mark.parametrize("level", range(10))
    def test_every_zlib_level(self, golden: Path, level: int) -> None:
        data = (golden / "scalars.tfrecord").read_bytes()
        assert detect_compression(zlib.compress(data, level)[:512]) == "zlib"
        assert detect_compression(zlib.compress(b"", level)) == "zlib"

    @pytest.mark.parametrize("head", [b"", b"\x1f", b"\x78", b"\x89PNG\r\n\x1a\n0000", b"hello, world, hello"])
    def test_everything_else(self, head: bytes) -> None:
        assert detect_compression(head) is None


@pytest.mark.usefixtures("inflater")
class TestInflate:
    def test_golden(self, golden: Path) -> None:
        plain = (golden / "scalars.tfrecord").read_bytes()
        packed = golden / "scalars_gzip.tfrecord.gz"
        assert read(packed) == gzip.decompress(packed.read_bytes())
        deflated = golden / "scalars_zlib.tfrecord.zlib"
        assert read(deflated) == zlib.decompress(deflated.read_bytes())
        assert read(golden / "scalars.tfrecord") == plain

    def test_the_name_does_not_matter(self, golden: Path, tmp_path: Path) -> None:
        packed = (golden / "scalars_gzip.tfrecord.gz").read_bytes()
        (tmp_path / "x.tfrecord").write_bytes(packed)
        assert read(tmp_path / "x.tfrecord") == gzip.decompress(packed)
        (tmp_path / "x.gz").write_bytes((golden / "scalars.tfrecord").read_bytes())
        assert read(tmp_path / "x.gz") == (golden / "scalars.tfrecord").read_bytes()
        assert read(tmp_path / "x.tfrecord", compression=None) == packed

    @pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
    @pytest.mark.parametrize("padding", [0, 1, 100_000])
    def test_members_in_a_row(self, tmp_path: Path, size: int, padding: int) -> None:
        data = [b"first", b"", bytes(1000), random.Random(0).randbytes(3000), b"last"]
        (tmp_path / "x").write_bytes(b"".join(gzip.compress(part) + bytes(padding) for part in data))
        assert read(tmp_path / "x", size=size) == b"".join(data)

    def test_ten_thousand_small_members(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(gzip.compress(b"abc") * 10_000)
        assert read(tmp_path / "x") == b"abc" * 10_000

    def test_members_of_bgzf(self, tmp_path: Path) -> None:
        # Blocked gzip has an extra field in each header and an empty member at the end.
        extra = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
        (tmp_path / "x").write_bytes(gzip.compress(b"abc") + extra)
        assert read(tmp_path / "x", compression="gzip") == b"abc"

    @pytest.mark.parametrize("compression", ["gzip", "zlib"])
    @pytest.mark.parametrize("garbage", [b"x", b"garbage", b"\0\0x", b"\x1f", b"\x78\x9c"])
    def test_garbage_at_the_end(self, tmp_path: Path, compression: str, garbage: bytes) -> None:
        packed = {"gzip": gzip.compress, "zlib": zlib.compress}[compression](b"data")
        (tmp_path / "x").write_bytes(packed + garbage)
        with pytest.raises(CorruptRecordError, match=f"other data follows the end of the {compression} data; 4 bytes"):
            read(tmp_path / "x", compression=compression)

    @pytest.mark.parametrize("name", ["scalars_gzip.tfrecord.gz", "scalars_zlib.tfrecord.zlib"])
    def test_cut_anywhere(self, golden: Path, tmp_path: Path, name: str) -> None:
        packed = (golden / name).read_bytes()
        compression = "gzip" if "gzip" in name else "zlib"
        for cut in [*range(40), *range(40, len(packed) - 40, 97), *range(len(packed) - 40, len(packed))]:
            (tmp_path / "x").write_bytes(packed[:cut])
            with pytest.raises(CorruptRecordError, match="the file is truncated") as caught:
                read(tmp_path / "x", compression=compression)
            assert str(tmp_path / "x") in str(caught.value)

    @pytest.mark.parametrize("step", rising(97, 37, 5))
    @pytest.mark.parametrize("name", ["scalars_gzip.tfrecord.gz", "scalars_zlib.tfrecord.zlib"])
    def test_a_flipped_bit_is_found_or_changes_nothing(
        self, golden: Path, tmp_path: Path, name: str, step: int
    ) -> None:
        packed = (golden / name).read_bytes()
        compression = "gzip" if "gzip" in name else "zlib"
        whole = read(golden / name)
        # All bytes of header and footer, and some bytes in between.
        places = [*range(64), *range(64, len(packed) - 16, step), *range(len(packed) - 16, len(packed))]
        refused = 0
        for at in places:
            flipped = bytearray(packed)
            flipped[at] ^= 1 << at % 8
            (tmp_path / "x").write_bytes(flipped)
            try:
                assert read(tmp_path / "x", size=1 << 16, compression=compression) == whole, at
            except CorruptRecordError:
                refused += 1
        assert refused >= len(places) - 8

    def test_data_that_is_not_compressed(self, golden: Path) -> None:
        for compression in ("gzip", "zlib"):
            with pytest.raises(CorruptRecordError, match=f"the {compression} data is damaged"):
                read(golden / "scalars.tfrecord", compression=compression)

    def test_memory_stays_bounded(self, tmp_path: Path) -> None:
        (tmp_path / "bomb").write_bytes(gzip.compress(bytes(64 << 20)))
        [shard] = find_shards(tmp_path / "bomb")
        buffer = memoryview(bytearray(1 << 20))
        with open_stream(shard) as stream:
            tracemalloc.start()
            try:
                while stream.readinto(buffer):
                    pass
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert stream.position == 64 << 20
        assert peak < 4 << 20


class TestSeek:
    @pytest.mark.parametrize("name", ["scalars.tfrecord", "scalars_gzip.tfrecord.gz", "scalars_zlib.tfrecord.zlib"])
    @pytest.mark.parametrize("where", ["local", "memory", "zip"])
    def test_forward(self, golden: Path, here: Path, memory: Callable[..., str], name: str, where: str) -> None:
        stored = (golden / name).read_bytes()
        whole = read(golden / name)
        url = str(golden / name)
        if where == "memory":
            url = memory(x=stored) + "/x"
        elif where == "zip":
            with zipfile.ZipFile("z.zip", "w") as archive:
                archive.writestr("x", stored)
            url = f"zip://x::file://{here}/z.zip"
        for start in (0, 1, 5000, len(whole) - 1, len(whole)):
            assert read(url, start=start) == whole[start:]
        [shard] = find_shards(url)
        with open_stream(shard) as stream:
            assert stream.seek(len(whole) + 1) == len(whole)
            assert stream.readinto(memoryview(bytearray(8))) == 0

    def test_remote_files_come_in_large_ranges(
        self, memory: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = random.Random(0).randbytes(30 << 20)
        url = memory(x=data) + "/x"
        reads: list[int] = []

        class Counting:
            """File that fsspec opened, which records the size of each read."""

            def __init__(self, file: Any) -> None:
                self.file = file

            def read(self, size: int) -> bytes:
                reads.append(size)
                return self.file.read(size)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        fs = fsspec.filesystem("memory")
        opened = fs.open
        monkeypatch.setattr(fs, "open", lambda path, mode, **options: Counting(opened(path, mode)))
        assert read(url, size=1 << 16) == data
        assert len(reads) < 10
        assert max(reads) <= 8 << 20

    def test_a_memory_file_is_read_by_many_at_once(self, memory: Callable[..., str]) -> None:
        url = memory(x=bytes(range(256)) * 4096) + "/x"
        [shard] = find_shards(url)
        one, other = memoryview(bytearray(1000)), memoryview(bytearray(1000))
        with open_stream(shard) as first, open_stream(shard) as second:
            for start in range(0, 1 << 20, 1 << 16):
                first.seek(start)
                second.seek(start + 500)
                assert first.readinto(one) == second.readinto(other) == 1000
                assert one[500:] == other[:500]


class TestChanges:
    """Files that change after they were listed."""

    def test_gone(self, here: Path, memory: Callable[..., str]) -> None:
        touch(here, "x", data=b"data")
        [shard] = find_shards("x")
        (here / "x").unlink()
        with pytest.raises(ShardNotFoundError, match="gone since it was listed"):
            open_stream(shard)
        [shard] = find_shards(memory(x=b"data", y=b"") + "/x")
        fsspec.filesystem("memory").rm(shard.path)
        with pytest.raises(ShardNotFoundError, match="gone since it was listed"):
            open_stream(shard)

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_shorter_before_it_is_opened(self, here: Path, memory: Callable[..., str], compression: str | None) -> None:
        data = gzip.compress(random.Random(0).randbytes(9000))
        touch(here, "x", data=data)
        url = memory(x=data) + "/x"
        for urlpath in ("x", url):
            [shard] = find_shards(urlpath, compression=compression)
            with fsspec.open(shard.path, "wb") as file:
                file.write(data[:100])
            with (
                pytest.raises(
                    CorruptRecordError, match=rf"had {len(data):,} bytes when it was listed and ends after 100"
                ),
                open_stream(shard) as stream,
            ):
                while stream.readinto(memoryview(bytearray(1000))):
                    pass

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_truncated_while_it_is_read(self, here: Path, compression: str | None) -> None:
        touch(here, "x", data=gzip.compress(random.Random(0).randbytes(2 << 20)))
        [shard] = find_shards("x", compression=compression)
        with open_stream(shard) as stream:
            assert stream.readinto(memoryview(bytearray(1000))) == 1000
            os.truncate("x", 2000)
            with pytest.raises(CorruptRecordError, match="ends after"):
                while stream.readinto(memoryview(bytearray(1 << 16))):
                    pass

    def test_longer_than_it_was(self, here: Path) -> None:
        touch(here, "x", data=b"12345")
        [shard] = find_shards("x")
        with (here / "x").open("ab") as file:
            file.write(b"678")
        with pytest.raises(ShardChangedError, match=r"had 5 bytes .* ends after 8 now: it was appended to"):
            open_stream(shard)

    def test_replaced_by_a_directory(self, here: Path) -> None:
        touch(here, "x", data=b"12345")
        [shard] = find_shards("x")
        (here / "x").unlink()
        (here / "x").mkdir()
        with pytest.raises(IsADirectoryError, match="x"):
            open_stream(shard)

    def test_empty(self, here: Path, memory: Callable[..., str]) -> None:
        touch(here, "x")
        assert read("x") == read(memory(x=b"") + "/x") == b""


class TestCreate:
    @pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
    def test_complete_or_absent(self, here: Path, compression: str | None) -> None:
        touch(here, "x", data=b"old")
        sink = create_stream("x", compression)
        sink.write(b"new" * 100_000)
        assert (here / "x").read_bytes() == b"old"
        assert names(here) == ["x"]
        sink.close()
        opened = {None: bytes, "gzip": gzip.decompress, "zlib": zlib.decompress}[compression]
        assert opened((here / "x").read_bytes()) == b"new" * 100_000
        sink = create_stream("x", compression)
        sink.write(b"newer" * 1_000_000)
        sink.discard()
        assert opened((here / "x").read_bytes()) == b"new" * 100_000
        assert [path.name for path in here.iterdir()] == ["x"]

    def test_remote(self, memory: Callable[..., str]) -> None:
        url = memory(x=b"old")
        sink = create_stream(f"{url}/x", "gzip")
        sink.write(b"new")
        assert read(f"{url}/x") == b"old"
        sink.close()
        assert read(f"{url}/x") == b"new"
        sink = create_stream(f"{url}/y")
        sink.write(b"new")
        sink.discard()
        assert names(url) == ["x"]

    def test_a_link_is_replaced(self, here: Path) -> None:
        touch(here, "target")
        (here / "link").symlink_to("target")
        sink = create_stream(here / "link")
        sink.write(b"data")
        sink.close()
        assert not (here / "link").is_symlink()
        assert (here / "link").read_bytes() == b"data"
        assert (here / "target").read_bytes() == b""

    def test_unwritable_targets(self, here: Path) -> None:
        (here / "d").mkdir()
        with pytest.raises(FileNotFoundError, match=r"no such directory to write to.*nowhere"):
            create_stream("nowhere/x")
        with pytest.raises(IsADirectoryError, match="this is a directory"):
            create_stream("d")
        with pytest.raises(ValueError, match="compression is one of"):
            create_stream("x", "infer")
        assert [path.name for path in here.iterdir()] == ["d"]

    def test_the_mode_is_the_usual_one(self, here: Path) -> None:
        create_stream("x").close()
        touch(here, "y")
        assert (here / "x").stat().st_mode == (here / "y").stat().st_mode
