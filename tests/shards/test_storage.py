"""Search for shards, decompressed streams, and publication of complete files."""

import contextlib
import gzip
import os
import pickle
import random
import socket
import tempfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.few import mostly_slow, rising
from support.privileges import without_privileges

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, ShardChangedError, ShardNotFoundError
from dask_tfrecord.shards.checksums import masked_crc32c
from dask_tfrecord.shards.compressions import detect_compression
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard, Shards
from dask_tfrecord.shards.streams import open_sink, open_stream

PACK = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}
UNPACK = {None: bytes, "gzip": gzip.decompress, "zlib": zlib.decompress}
PACKED = {"gzip": "scalars_gzip.tfrecord.gz", "zlib": "scalars_zlib.tfrecord.zlib"}
TEMPLATE = [f"t-{index:05}-of-00003" for index in range(3)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str, data: bytes = b"") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)


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


# -- search ------------------------------------------------------------------------------------------------------------

SIDE = ["_SUCCESS", ".hidden", "a.tfrecord.idx", "a.gzidx", "dataset_info.json", "schema.pbtxt"]
NESTED = ["a.tfrecord", "d/b.tfrecord", "d/_temporary/c.tfrecord", "_SUCCESS", "a.tfrecord.idx"]


@pytest.mark.parametrize(
    ("files", "urlpath", "found"),
    [
        # Natural order, within each pattern of a list.
        (["p-10", "p-9", "p-1", "p-02", "q", "p-1.5"], "*", ["p-1", "p-1.5", "p-02", "p-9", "p-10", "q"]),
        (["b-10", "b-2", "a"], ["b-*", Path("a"), "b-2"], ["b-2", "b-10", "a", "b-2"]),
        # Directories and globs exclude other files, unless the glob contains their names.
        (["a.tfrecord", "plain", "nested/y", *SIDE], ".", ["a.tfrecord", "plain"]),
        (["a.tfrecord", "plain", "nested/y", *SIDE], "./", ["a.tfrecord", "plain"]),
        (NESTED, "a*", ["a.tfrecord"]),
        (NESTED, "**", ["a.tfrecord", "b.tfrecord"]),
        (NESTED, "**/*.tfrecord", ["a.tfrecord", "b.tfrecord"]),
        (NESTED, "*.idx", ["a.tfrecord.idx"]),
        (NESTED, "_*", ["_SUCCESS"]),
        (NESTED, "d/_*/*", ["c.tfrecord"]),
        (["a/x", "b/x", "b/y"], "b/../*/x", ["x", "x"]),
        # A literal path wins over glob and template.
        *(([path, "w1.x", "aXb", *TEMPLATE], path, [path]) for path in ("w[1].x", "a*b", "t@3", "t-?????-of-00003")),
        (["run[1]/x"], "run[1]", ["x"]),
        (["run[1]/x", "run1/y"], "run[1]/*", ["x"]),
        (["run1/y"], "run[1]/*", ["y"]),
        (["run[1]/x", "run[1]/x.idx"], ["run[1]/x", "run[1]/x.idx"], ["x"]),
        *(([f"run[1]/{name}" for name in TEMPLATE], f"run[1]/t{mask}", TEMPLATE) for mask in ("@3", "-?????-of-00003")),
        # Templates.
        *(([*TEMPLATE, "t-00000-of-00004", "u-00000-of-00003"], path, TEMPLATE) for path in ("t@3", "t@03")),
        ([*TEMPLATE, "t-00000-of-00003.idx"], "t-?????-of-00003", TEMPLATE),
        ([f"{name}.gz" for name in TEMPLATE], "t@3.gz", [f"{name}.gz" for name in TEMPLATE]),
        ([f"{name}.gz" for name in TEMPLATE], "t-?????-of-00003.gz", [f"{name}.gz" for name in TEMPLATE]),
        # A name that reads like a URL.
        (["a::b.tfrecord"], "a::b.tfrecord", ["a::b.tfrecord"]),
    ],
)
def test_files_are_found(here: Path, files: list[str], urlpath: Any, found: list[str]) -> None:
    touch(*files)
    assert names(urlpath) == found


@pytest.mark.parametrize(
    ("urlpath", "said"),
    [
        ("t@3", "missing: t-00001-of-00003, t-00002-of-00003; unexpected: t-00007-of-00003"),
        ("t-?????-of-00003", "missing: t-00001-of-00003, t-00002-of-00003; unexpected: t-00007-of-00003"),
        ("t@8", r"none of the 8 shards .* 't@3'"),
        ("t@0", "no file or directory 't@0'"),
        ("t@99999999999", "no file or directory"),
        ("trian.tfrecord", r"did you mean 'train\.tfrecord'"),
        ("trian*.tfrecord", r"no file matches the pattern .* 'train\.tfrecord'"),
        ("nowhere/x", "is empty or not a directory"),
        ("train.tfrecord/x", "is empty or not a directory"),
        ("d", r"only _SUCCESS, e \(hidden .*; to search its subfolders, write d/\*\*/\*"),
        ("empty", "the directory has no shards: it is empty"),
        ("emp*", "only directories"),
        ([], "empty list"),
        (["x.idx"], "the list contains only sidecars"),
        ("", "empty string"),
        ("a\0b", "NUL"),
        ("some.zarr", r"some\.zarr: the directory is a Zarr store, .*; write dtf.from_zarr"),
    ],
    ids=str,
)
def test_files_that_are_missing(here: Path, urlpath: Any, said: str) -> None:
    touch("t-00000-of-00003", "t-00007-of-00003", "train.tfrecord", "d/_SUCCESS", "d/e/x", "some.zarr/zarr.json")
    (here / "empty").mkdir()
    with pytest.raises(ShardNotFoundError, match=said) as caught:
        find_shards(urlpath)
    assert isinstance(caught.value, FileNotFoundError)


def test_arguments_that_are_not_paths() -> None:
    for wrong in (5, {"a": 1}, b"bytes", {"a", "b"}):
        with pytest.raises(TypeError, match="urlpath must be a path or a list of paths"):
            find_shards(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int: 5"):
        find_shards(["a", 5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="compression must be one of"):
        find_shards("x", compression="zip")


def test_properties_of_a_file(here: Path) -> None:
    touch("one.tfrecord", data=b"12345")
    for urlpath in ("one.tfrecord", Path("one.tfrecord"), here / "one.tfrecord", f"file://{here}/one.tfrecord"):
        [shard] = find_shards(urlpath)
        assert (shard.path, shard.size, shard.compression) == (str(here / "one.tfrecord"), 5, "infer")
    os.utime("one.tfrecord", ns=(1, 10**18 + 1000))
    after = find_shards("*")[0]
    assert shard.version != after.version
    assert shard != after == find_shards("one.tfrecord")[0]


def test_links(here: Path) -> None:
    touch("store/blob", data=b"12345678")
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
def test_pipes_and_sockets_are_no_shards(here: Path) -> None:
    touch("x")
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for urlpath in ("pipe", "socket"):
            with pytest.raises(ShardNotFoundError, match="expected a regular file"):
                find_shards(urlpath)
        assert names(here) == names("*") == ["x"]


def test_paths_without_permission() -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        Path(directory).chmod(0o755)
        touch("closed/x", "x")
        Path("x").chmod(0)
        Path("closed").chmod(0)
        with without_privileges():
            with pytest.raises(PermissionError, match="x"):
                open_stream(find_shards("x")[0])
            for urlpath in ("closed", "closed/*", "*/x"):
                with pytest.raises(PermissionError, match="closed"):
                    find_shards(urlpath)


class Hosted(MemoryFileSystem):
    """Like sftp and hdfs: the host belongs to the URL, not to the paths of a listing."""

    protocol = "hosted"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hosted://me@host:22").strip("/")


@pytest.mark.parametrize("kind", ["memory", "hosted", "cached", "zip"])
def test_urls_keep_all_of_their_parts(here: Path, memory: Callable[..., str], kind: str) -> None:
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    url, tail = memory(x10=b"a" * 10, x9=b"a" * 9, _SUCCESS=b""), ""
    if kind == "hosted":
        url = url.replace("memory://", "hosted://me@host:22/")
    elif kind == "cached":
        url = f"simplecache::{url}"
    elif kind == "zip":
        with zipfile.ZipFile("z.zip", "w") as archive:
            archive.writestr("d/x9", b"a" * 9)
            archive.writestr("d/x10", b"a" * 10)
        url, tail = "zip://d", f"::file://{here}/z.zip"
    for urlpath in (f"{url}/x*{tail}", f"{url}{tail}"):
        shards = find_shards(urlpath)
        assert shards.paths == (f"{url}/x9{tail}", f"{url}/x10{tail}")
        assert shards.sizes.tolist() == [9, 10]
    assert find_shards(f"{url}/x10{tail}").paths == (f"{url}/x10{tail}",)
    assert read(f"{url}/x10{tail}") == b"a" * 10
    with pytest.raises(ShardNotFoundError, match="x10"):
        find_shards(f"{url}/x100{tail}")


def test_a_sequence_of_shards(here: Path) -> None:
    touch("a", data=b"1")
    touch("b", data=b"22")
    shards = find_shards("*", compression=None)
    assert [shard.size for shard in shards] == [1, 2]
    assert shards[-1] == Shard(str(here / "b"), 2, shards.versions[1], None)
    assert list(shards[1:]) == [shards[1]]
    assert "2 files, 3 bytes" in repr(shards)
    with pytest.raises(IndexError):
        shards[2]
    count = 5_000
    paths = tuple(f"s3://bucket/train-{index:05}-of-99999" for index in range(count))
    many = Shards(paths, np.ones(count, np.int64), ("v",) * count, None, {})
    pickled = pickle.dumps(many)
    assert len(pickled) < 60 * count
    assert list(pickle.loads(pickled)) == list(many)


# -- compression -------------------------------------------------------------------------------------------------------


def test_compression_is_detected(golden: Path) -> None:
    data = (golden / "scalars.tfrecord").read_bytes()
    length = (0x08_8B1F).to_bytes(8, "little")
    looks = length + masked_crc32c(length).to_bytes(4, "little")
    cases: list[tuple[bytes, str | None]] = [
        *((path.read_bytes()[:512], "gzip" if path.suffix == ".gz" else None) for path in golden.glob("*.tfrecord")),
        *((path.read_bytes()[:512], "gzip") for path in golden.glob("*.tfrecord.gz")),
        ((golden / PACKED["zlib"]).read_bytes(), "zlib"),
        # A length whose bytes begin like gzip, and damaged ones that begin like zlib.
        *((looks, None), (looks[:11], "gzip"), (length + b"1234", "gzip")),
        *((b"\x78\x01" + data[2:512], None), (b"\x78\x9c" + data[2:512], None)),
        *((zlib.compress(data, level)[:512], "zlib") for level in range(10)),
        *((zlib.compress(b"", level), "zlib") for level in range(10)),
        *((head, None) for head in (b"", b"\x1f", b"\x78", b"\x89PNG\r\n\x1a\n0000", b"hello, world, hello")),
    ]
    for head, compression in cases:
        assert detect_compression(head) == compression, head[:20]


@pytest.mark.usefixtures("inflater")
class TestInflate:
    def test_golden_whatever_the_name(self, golden: Path, here: Path) -> None:
        plain = (golden / "scalars.tfrecord").read_bytes()
        for compression, name in PACKED.items():
            packed = (golden / name).read_bytes()
            touch("x.tfrecord", data=packed)
            assert read("x.tfrecord") == read(golden / name) == UNPACK[compression](packed)
            assert read("x.tfrecord", compression=None) == packed
            with pytest.raises(CorruptRecordError, match=f"(does not begin like|the) {compression} data"):
                read(golden / "scalars.tfrecord", compression=compression)
        touch("x.gz", data=plain)
        assert read("x.gz") == plain

    @pytest.mark.parametrize("size", [7, 1 << 20])
    @pytest.mark.parametrize("padding", [0, 1, 100_000])
    def test_members_in_a_row(self, here: Path, size: int, padding: int) -> None:
        data = [b"first", b"", bytes(1000), random.Random(0).randbytes(3000), b"last"]
        touch("x", data=b"".join(gzip.compress(part) + bytes(padding) for part in data))
        assert read("x", size=size) == b"".join(data)
        # Blocked gzip has an extra field in each header and an empty member at the end.
        extra = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
        touch("x", data=gzip.compress(b"abc") * 2_000 + extra)
        assert read("x", size=size, compression="gzip") == b"abc" * 2_000

    @pytest.mark.parametrize("compression", PACKED)
    @pytest.mark.parametrize("garbage", [b"x", b"garbage", b"\0\0x", b"\x1f", b"\x78\x9c"])
    def test_garbage_at_the_end(self, here: Path, compression: str, garbage: bytes) -> None:
        touch("x", data=PACK[compression](b"data") + garbage)
        with pytest.raises(CorruptRecordError, match=f"other data follows the end of the {compression} data; 4 bytes"):
            read("x", compression=compression)

    @pytest.mark.parametrize("compression", PACKED)
    def test_cut_anywhere(self, golden: Path, here: Path, compression: str) -> None:
        packed = (golden / PACKED[compression]).read_bytes()
        for cut in [*range(40), *range(40, len(packed) - 40, 97), *range(len(packed) - 40, len(packed))]:
            touch("x", data=packed[:cut])
            with pytest.raises(CorruptRecordError, match=r"/x: .*the file is truncated"):
                read("x", size=1 << 16, compression=compression)

    @pytest.mark.parametrize("step", rising(2393, 37, 5))
    @pytest.mark.parametrize("compression", PACKED)
    def test_a_flipped_bit_is_found_or_changes_nothing(
        self, golden: Path, here: Path, compression: str, step: int
    ) -> None:
        packed = (golden / PACKED[compression]).read_bytes()
        whole = UNPACK[compression](packed)
        # All bytes of header and footer, and some bytes in between.
        places = [*range(16), *range(16, len(packed) - 12, step), *range(len(packed) - 12, len(packed))]
        refused = 0
        for at in places:
            flipped = bytearray(packed)
            flipped[at] ^= 1 << at % 8
            touch("x", data=bytes(flipped))
            try:
                assert read("x", size=1 << 16, compression=compression) == whole, at
            except CorruptRecordError:
                refused += 1
        assert refused >= len(places) - 8

    @pytest.mark.parametrize("sizes", [[1_000_000, *[90] * 3000], [1, 2_000_000, 1], [40_000] * 40])
    def test_members_of_all_sizes(self, here: Path, sizes: list[int]) -> None:
        data = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        touch("x", data=b"".join(gzip.compress(part, 1) for part in data))
        assert read("x", size=70_000) == read("x", size=1 << 20) == b"".join(data)

    @pytest.mark.parametrize("place", [0.02, 0.5, 0.97])
    @pytest.mark.parametrize("size", mostly_slow([3000, 1 << 20], 2))
    def test_all_bytes_before_damage_are_read(self, here: Path, place: float, size: int) -> None:
        # Damage in a large member, after another one.
        text = bytes(random.Random(7).choices(range(40), k=900_000))
        packed = bytearray(gzip.compress(text, 1))
        at = int(len(packed) * place)
        packed[at : at + 8] = b"\xff" * 8
        touch("x", data=gzip.compress(b"first") + packed)
        inflater = zlib.decompressobj(wbits=31)
        intact = b"first" + inflater.decompress(packed[: at - 500])
        [shard] = find_shards("x")
        buffer, found = memoryview(bytearray(size)), bytearray()
        with open_stream(shard) as stream:
            with pytest.raises(CorruptRecordError) as caught:
                while count := stream.readinto(buffer):
                    found += buffer[:count]
            assert stream.position == len(found)
            assert f"; {len(found):,} bytes could be inflated" in str(caught.value)
        assert found.startswith(intact)

    def test_memory_stays_bounded(self, here: Path) -> None:
        touch("bomb", data=gzip.compress(bytes(32 << 20), 1))
        [shard] = find_shards("bomb")
        buffer = memoryview(bytearray(1 << 20))
        with open_stream(shard) as stream:
            tracemalloc.start()
            try:
                while stream.readinto(buffer):
                    pass
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert stream.position == 32 << 20
        assert peak < 4 << 20


# -- positions and changes ---------------------------------------------------------------------------------------------


def test_a_memory_file_is_read_by_many_at_once(memory: Callable[..., str]) -> None:
    [shard] = find_shards(memory(x=bytes(range(256)) * 4096) + "/x")
    one, other = memoryview(bytearray(1000)), memoryview(bytearray(1000))
    with open_stream(shard) as first, open_stream(shard) as second:
        for start in range(0, 1 << 20, 1 << 16):
            first.seek(start)
            second.seek(start + 500)
            assert first.readinto(one) == second.readinto(other) == 1000
            assert one[500:] == other[:500]


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_changes_before_a_shard_is_opened(
    here: Path, memory: Callable[..., str], compression: str | None, where: str
) -> None:
    data = gzip.compress(random.Random(0).randbytes(9000))
    touch("x", data=data)
    [shard] = find_shards("x" if where == "local" else memory(x=data, y=b"") + "/x", compression=compression)
    fs, path = fsspec.url_to_fs(shard.path)
    for size, said in ((100, r"ends after 100 now: it was truncated"), (9999, "ends after 9,999 now: it was appended")):
        fs.pipe_file(path, (data + bytes(9999))[:size])
        with pytest.raises(ShardChangedError, match=rf"had {len(data):,} bytes when it was listed and {said}"):
            open_stream(shard)
    fs.rm(path)
    with pytest.raises(ShardNotFoundError, match="gone since it was listed"):
        open_stream(shard)
    if where == "local":
        (here / "x").mkdir()
        with pytest.raises(IsADirectoryError, match="x"):
            open_stream(shard)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_truncated_while_it_is_read(here: Path, compression: str | None) -> None:
    touch("x", data=gzip.compress(random.Random(0).randbytes(2 << 20), 1))
    [shard] = find_shards("x", compression=compression)
    with open_stream(shard) as stream:
        assert stream.readinto(memoryview(bytearray(1000))) == 1000
        os.truncate("x", 2000)
        with pytest.raises(CorruptRecordError, match="ends after"):
            while stream.readinto(memoryview(bytearray(1 << 16))):
                pass


# -- new files ---------------------------------------------------------------------------------------------------------


def test_links_are_replaced_and_modes_are_the_usual_ones(here: Path) -> None:
    touch("target")
    (here / "link").symlink_to("target")
    sink = open_sink(here / "link")
    sink.write(b"data")
    sink.close()
    assert not (here / "link").is_symlink()
    assert ((here / "link").read_bytes(), (here / "target").read_bytes()) == (b"data", b"")
    assert (here / "link").stat().st_mode == (here / "target").stat().st_mode


def test_unwritable_targets(here: Path) -> None:
    (here / "d").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no such directory to write to.*nowhere"):
        open_sink("nowhere/x")
    with pytest.raises(IsADirectoryError, match="this is a directory"):
        open_sink("d")
    with pytest.raises(ValueError, match="compression must be one of"):
        open_sink("x", "infer")
    assert [path.name for path in here.iterdir()] == ["d"]


@pytest.mark.parametrize("absolute", [True, False])
def test_colons_in_the_name_of_a_file_are_no_chain(
    absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = str(tmp_path / "a::b.tfrecord") if absolute else "a::b.tfrecord"
    dtf.to_tfrecord({"x": [1, 2]}, name, compression="gzip")
    dtf.build_index(name)
    dtf.copy_tfrecord(name, f"{name}.copy")
    assert dtf.read_tfrecord(f"{name}.copy")["x"].compute().tolist() == [1, 2]
    names = {path.name.partition(".tfrecord")[2] for path in tmp_path.iterdir() if path.name.startswith("a::b.")}
    assert names == {"", ".idx", ".gzidx", ".copy"} and len([*tmp_path.iterdir()]) == 4
    with pytest.raises(ValueError, match="zarr takes `::` in a path for a chain of URLs"):
        dtf.read_tfrecord(name).to_zarr(f"{name}.zarr")
