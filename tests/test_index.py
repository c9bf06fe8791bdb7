"""Counts and offsets of a shard, found by walking its headers."""

import gzip
import pickle
import random
from itertools import accumulate
from pathlib import Path

import fsspec
import numpy as np
import pytest
from oracle import read_payloads, write_oracle
from support.few import mostly_slow

from dask_tfrecord.errors import CorruptRecordError, Location
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import ShardIndex, scan_shard
from dask_tfrecord.storage.listing import find_shards

SIZES = {
    "small": [random.Random(0).randrange(300) for _ in range(30_000)],
    "large": [random.Random(0).randrange(200_000, 900_000) for _ in range(40)],
    "mixed": [random.Random(0).choice([0, 10, 3_000, 700_000, 2_500_000]) for _ in range(60)],
    "one": [5 << 20],
    "none": [],
}


def check(index: ShardIndex, sizes: list[int]) -> None:
    """Compare the index with the sizes of the records."""
    offsets = list(accumulate((size + 16 for size in sizes), initial=0))
    assert (index.count, index.nbytes) == (len(sizes), offsets[-1])
    assert index.offsets.tolist() == [offsets[record] for record in index.records.tolist()]
    assert index.records[0] == index.offsets[0] == 0
    assert index.records.dtype == index.offsets.dtype == np.int64
    gaps = np.diff([*index.offsets.tolist(), index.nbytes])
    assert (gaps[:-1] >= 1 << 20).all()
    # Entries are only as far apart as spacing, block size and record size require.
    assert (gaps <= (2 << 20) + 2 * (max(sizes, default=0) + 16)).all()


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("kind", SIZES)
def test_counts_and_entries(tmp_path: Path, kind: str, check_crc: bool, compression: str | None) -> None:
    write_oracle(tmp_path / "x", map(bytes, SIZES[kind]), compression)
    [shard] = find_shards(tmp_path / "x")
    index = scan_shard(shard, check_crc=check_crc)
    check(index, SIZES[kind])
    # The detected compression of an empty file is None.
    assert index.compression == compression


def test_entries_lead_to_their_records(tmp_path: Path) -> None:
    payloads = [str(record).encode() * random.Random(record).randrange(2_000) for record in range(3_000)]
    write_oracle(tmp_path / "x", payloads)
    [shard] = find_shards(tmp_path / "x")
    index = scan_shard(shard)
    assert len(index.records) > 3
    for record, offset in zip(index.records.tolist(), index.offsets.tolist(), strict=True):
        with Window(shard, offset) as window:
            size = len(payloads[record])
            assert window.fill(size + 16)
            assert bytes(window.view(12, 12 + size)) == payloads[record]


def test_remote_and_local_agree(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for kind, sizes in SIZES.items():
        write_oracle(tmp_path / "x", map(bytes, sizes))
        fs.put_file(str(tmp_path / "x"), f"/agree/{kind}")
        check(scan_shard(find_shards(f"memory://agree/{kind}")[0]), sizes)
    fs.rm("/agree", recursive=True)


def test_golden(golden: Path) -> None:
    for path in sorted(golden.glob("*.tfrecord*")):
        if not path.name.startswith("damaged_") or "none" in path.name:
            check(scan_shard(find_shards(path)[0]), [len(payload) for payload in read_payloads(path)])


@pytest.mark.parametrize(
    ("name", "record", "offset"),
    [
        ("huge_length", 7, 5723),
        ("length_bit", 7, 5723),
        ("length_crc", 7, 5723),
        ("not_a_tfrecord", 0, 0),
        ("trailing_garbage", 20, 6789),
        ("truncated_footer", 12, 6120),
        ("truncated_header", 12, 6120),
        ("truncated_payload", 12, 6120),
    ],
)
def test_damaged(golden: Path, name: str, record: int, offset: int) -> None:
    [shard] = find_shards(golden / f"damaged_{name}.tfrecord")
    with pytest.raises(CorruptRecordError) as caught:
        scan_shard(shard)
    assert caught.value.place == Location(shard.path, record, offset)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("kind", ["small", "large", "mixed", "one"])
@pytest.mark.parametrize("missing", mostly_slow([1, 4, 5, 17, 15, 100], 3))
def test_a_truncated_shard_is_an_error(tmp_path: Path, kind: str, missing: int, compression: str | None) -> None:
    sizes = SIZES[kind]
    write_oracle(tmp_path / "x", map(bytes, sizes))
    data = (tmp_path / "x").read_bytes()[:-missing]
    (tmp_path / "x").write_bytes(gzip.compress(data, 1) if compression else data)
    [shard] = find_shards(tmp_path / "x")
    offsets = list(accumulate(size + 16 for size in sizes))
    record = sum(offset <= len(data) for offset in offsets)
    with pytest.raises(CorruptRecordError, match=r"truncated (header|payload|footer)") as caught:
        scan_shard(shard)
    assert caught.value.place == Location(shard.path, record, [0, *offsets][record])


def test_large_records_are_skipped_unread(tmp_path: Path) -> None:
    proc = Path("/proc/self/io")
    if not proc.exists():
        pytest.skip("only Linux counts what is read")

    def bytes_read() -> int:
        return int(proc.read_text().split("rchar: ")[1].split()[0])

    write_oracle(tmp_path / "x", [bytes(1 << 20)] * 50)
    [shard] = find_shards(tmp_path / "x")
    before = bytes_read()
    assert scan_shard(shard).count == 50
    assert bytes_read() - before < 2 << 20


def test_an_index_pickles(golden: Path) -> None:
    index = scan_shard(find_shards(golden / "scalars_gzip.tfrecord.gz")[0])
    again = pickle.loads(pickle.dumps(index))
    assert (again.count, again.nbytes, again.compression) == (97, 13410, "gzip")
    assert again.offsets.tolist() == index.offsets.tolist()
