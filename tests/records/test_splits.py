"""Byte splits: for every division of a shard, each record is read exactly once, and little of the shard is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import borders, framed, read_payloads, write_oracle
from oracle.messages import Example
from support.few import mostly_slow, rising
from support.tasks import tasks_of
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.blocks import to_array
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.errors import CorruptRecordError, FeatureError, TFRecordError
from dask_tfrecord.records.framing import iterate_records
from dask_tfrecord.records.index import (
    ByteSplit,
    check_following_splits,
    even_splits,
    find_entry,
    find_entry_by_walk,
    join_entries,
    scan_shard,
    split_entries,
)
from dask_tfrecord.rows import counting
from dask_tfrecord.rows.chunk_borders import ByteChunks
from dask_tfrecord.rows.sources import UncountedSource
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.shard import Shard

CORPUS = [
    "google__trax/trax/data/testdata/para_crawl/ende/1.2.0/para_crawl-train.tfrecord-00000-of-00001",
    "pytorch__data/test/_fakedata/tfrecord/example.tfrecord",
    "google__nucleus/nucleus/testdata/test_sites.vcf.golden.tfrecord",
    pytest.param(
        "google__trax/trax/data/testdata/squad/v1.1/3.0.0/squad-train.tfrecord-00000-of-00001", marks=pytest.mark.slow
    ),
]
FEATURES = {"id": dtf.FixedLenFeature((), "int64"), "inner": dtf.FixedLenFeature((), "bytes", default_value=b"")}
# Distance of the cuts that are tried.
STEPS = rising(29, 5, 1)
IO = Path("/proc/self/io")
counts_reads = pytest.mark.skipif(not IO.exists(), reason="the system does not count the bytes that are read")


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shard whose payloads are TFRecord files, or Examples with nested TFRecord files."""
    inmost = framed(example(id=[300 + number], inner=[b""]) for number in range(3))
    inner = framed(example(id=[200 + number], inner=[inmost]) for number in range(3))
    payloads = [
        inner,
        example(id=[100], inner=[inner]),
        example(id=[101], inner=[b"plain"]),
        inner + inner,
        example(id=[102], inner=[inmost]),
        b"",
        inner,
    ]
    path = tmp_path_factory.mktemp("nested") / "nested.tfrecord"
    write_oracle(path, payloads)
    return path


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shard of Examples; some contain TFRecord files of Examples with the same schema."""
    inner = framed(example(id=[200 + number], inner=[b"inner"]) for number in range(5))
    path = tmp_path_factory.mktemp("examples") / "examples.tfrecord"
    write_oracle(path, [example(id=[n], inner=[inner if n % 3 else b"x" * n]) for n in range(12)])
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Shard of 20 equal Examples, which a test damages."""
    write_oracle(tmp_path / "a", [example(id=[number], inner=[b"y" * 30]) for number in range(20)])
    return tmp_path / "a"


def whole(path: Path) -> Shard:
    [shard] = find_shards(path, compression=None)
    return shard


def borders_of(path: Path) -> list[int]:
    return borders(read_payloads(path))


def cuts_of(path: Path, step: int) -> list[int]:
    """Return offsets within a shard: all around the borders of records, and others at a distance."""
    borders = borders_of(path)
    near = {border + place for border in borders for place in (-4, -1, 0, 1, 11, 12, 13)}
    return sorted(near.union(range(1, borders[-1], step)) & {*range(1, borders[-1])})


def records_of(shard: Shard, split: ByteSplit, *, check_crc: bool = True) -> list[int]:
    """Return the offsets of the records of a split, as a task finds them."""
    entry = find_entry(shard, split, check_crc=check_crc)
    if entry is None or entry.offset >= split.stop:
        return []
    found = []
    for offset, _ in iterate_records(shard, offset=entry.offset, check_crc=check_crc):
        if offset >= split.stop:
            break
        found.append(offset)
    return found


def check_cuts(path: Path, step: int, *, check_crc: bool = True) -> None:
    shard, borders = whole(path), borders_of(path)
    size = borders[-1]
    for cut in cuts_of(path, step):
        later = [border for border in borders[:-1] if border >= cut]
        assert records_of(shard, ByteSplit(cut, size), check_crc=check_crc) == later
        following = min(border for border in borders if border >= cut)
        check_following_splits(shard, ByteSplit(0, cut, (size,)), following, borders.index(following))
        # The entry of the first split, and one found from the beginning, are certain.
        assert records_of(shard, ByteSplit(0, cut, (size,))) == borders[: -1 - len(later)]
        entry = find_entry_by_walk(shard, ByteSplit(cut, size))
        assert (entry.offset, entry.record) == (following, borders.index(following))


def check_joined(path: Path, nbytes: int) -> None:
    shard, borders = whole(path), borders_of(path)
    parts = even_splits(shard.size, nbytes)
    index = join_entries(shard, parts, [split_entries(shard, part) for part in parts])
    assert (index.count, index.nbytes) == (len(borders) - 1, shard.size)
    assert [borders[record] for record in index.records.tolist()] == index.offsets.tolist()
    assert (np.diff(index.records) > 0).all()


@pytest.mark.parametrize("step", rising(97, 11, 1))
@pytest.mark.parametrize("name", CORPUS)
def test_records_of_real_files_are_found_from_every_byte(corpus: Path, name: str, step: int) -> None:
    check_cuts(corpus / name, step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("check_crc", mostly_slow([True, False], 2))
def test_payloads_that_are_records_are_never_taken_for_records(nested: Path, check_crc: bool, step: int) -> None:
    check_cuts(nested, step, check_crc=check_crc)
    for nbytes in (1, 7, 100, 1000, 10**6):
        check_joined(nested, nbytes)


@pytest.mark.parametrize("step", STEPS)
def test_splits_within_records_larger_than_the_search_are_found(
    nested: Path, examples: Path, set_limits: Callable[..., Limits], step: int
) -> None:
    set_limits(search_counting_nbytes=40, search_decoding_nbytes=40)
    for path in (nested, examples):
        check_cuts(path, step)
        for nbytes in (50, 300):
            check_joined(path, nbytes)


@given(size=st.integers(0, 200), nbytes=st.integers(1, 60))
def test_even_splits_cover_a_shard(size: int, nbytes: int) -> None:
    parts = even_splits(size, nbytes)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == size
    for number, part in enumerate(parts):
        assert part.later_stops == tuple(later.stop for later in parts[number + 1 :])


# -- decoding ----------------------------------------------------------------------------------------------------------


def source_of(path: Path, borders: list[int], schema: Mapping[str, Any] = FEATURES) -> UncountedSource:
    shards = find_shards(path, compression=None)
    return UncountedSource(ByteChunks(shards, np.array(borders)), Decoder(dtf.Schema(schema)), True)


def columns_of(source: UncountedSource) -> dict[str, list[Any]]:
    """All rows, chunk by chunk."""
    columns: dict[str, list[Any]] = {name: [] for name in source.schema}
    for chunk in range(len(source.chunks.borders) - 1):
        for name, block in source.read_chunk(tuple(source.schema), chunk).items():
            columns[name] += to_array(block).tolist()
    return columns


def wanted(path: Path) -> dict[str, list[Any]]:
    messages = [Example.FromString(payload) for payload in read_payloads(path)]
    return {
        "id": [message.features.feature["id"].int64_list.value[0] for message in messages],
        "inner": [message.features.feature["inner"].bytes_list.value[0] for message in messages],
    }


# In splits of many megabytes, wrong headers are detected while records are decoded.
@pytest.mark.parametrize(("cuts", "verified"), [(30, None), (3, 1)])
@given(data=st.data())
def test_any_cuts(examples: Path, data: st.DataObject, cuts: int, verified: int | None) -> None:
    size = examples.stat().st_size
    chosen = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=cuts)))
    with replaced_limits(**({} if verified is None else {"verified_nbytes": verified})):
        try:
            assert columns_of(source_of(examples, [0, *chosen, size])) == wanted(examples)
        except TFRecordError as error:
            # Embedded records fill a whole split: the split where their record begins refuses it.
            assert verified is not None
            assert "contains records throughout" in str(error)


def test_records_all_through_a_split_are_refused(tmp_path: Path, set_limits: Callable[..., Limits]) -> None:
    set_limits(verified_nbytes=64)
    inner = framed(example(id=[number], inner=[b""]) for number in range(100))
    write_oracle(tmp_path / "a", [example(id=[0], inner=[inner]), example(id=[1], inner=[b""])])
    size = (tmp_path / "a").stat().st_size
    source = source_of(tmp_path / "a", [0, 500, 1500, size])
    with pytest.raises(TFRecordError, match=r"a: byte \d+: the payload contains records throughout bytes 500 to"):
        source.read_chunk(("id",), 0)
    # Without this split, every split contains the start of a record of the shard.
    assert columns_of(source_of(tmp_path / "a", [0, 500, size])) == wanted(tmp_path / "a")


def test_a_large_shard_is_counted_by_several_tasks(examples: Path, set_limits: Callable[..., Limits]) -> None:
    set_limits(count_task_nbytes=200)
    with tasks_of("tfrecord:counting") as tasks:
        looked, [index] = counting.index_shards(find_shards(examples), sidecars=True)
    # The last one collects the results.
    assert len(tasks) == -(-examples.stat().st_size // 200) + 1
    assert (index.count, index.compression, looked[0].compression) == (12, None, None)
    assert dtf.read_tfrecord(examples, FEATURES)["id"].compute().tolist() == list(range(12))


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_uncounted_chunks_of_a_size(examples: Path, scheduler: str) -> None:
    rows = wanted(examples)
    ds = dtf.read_tfrecord([examples, examples], FEATURES, counts=None, chunks="300 B")
    assert ds.npartitions > 2
    assert np.isnan(ds.chunks).all()
    with dask.config.set(scheduler=scheduler):
        assert ds.count() == 24
        assert ds["id"].compute().tolist() == 2 * rows["id"]
        assert ds.head(14)["inner"].tolist() == (2 * rows["inner"])[:14]
        assert {name: array.tolist() for name, array in ds.compute().items()} == {n: 2 * rows[n] for n in rows}
    # Both shards fit into one chunk.
    assert dtf.read_tfrecord([examples, examples], FEATURES, counts=None, chunks="1 MiB").npartitions == 1
    assert dtf.read_tfrecord([examples, examples], FEATURES, counts=None).npartitions == 2
    with dask.config.set({"array.chunk-size": "300 B"}):
        assert dtf.read_tfrecord(examples, FEATURES, counts=None).npartitions > 2


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_compressed_shard_stays_one_chunk(examples: Path, tmp_path: Path, compression: str) -> None:
    path = tmp_path / "x"
    write_oracle(path, read_payloads(examples), compression)
    ds = dtf.read_tfrecord([path, examples], FEATURES, counts=None, chunks="300 B")
    assert ds.npartitions > 2
    assert ds["id"].compute().tolist() == 2 * list(range(12))
    for asked in ("infer", compression):
        assert dtf.read_tfrecord(path, FEATURES, counts=None, chunks="50 B", compression=asked).npartitions == 1


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_damage_is_raised_with_the_number_of_its_record_wherever_it_is(plain: Path, step: int) -> None:
    stored, borders = plain.read_bytes(), borders_of(plain)
    for byte in range(0, len(stored), step):
        plain.write_bytes(stored[:byte] + bytes([stored[byte] ^ 0x55]) + stored[byte + 1 :])
        record = int(np.searchsorted(borders, byte, side="right")) - 1
        with pytest.raises(CorruptRecordError) as raised:
            columns_of(source_of(plain, [0, 300, 700, 1100, len(stored)]))
        assert raised.value.place is not None
        assert (raised.value.place.record, raised.value.place.offset) == (record, borders[record])
        # The index of splits is refused like by a scan.
        shard = whole(plain)
        parts = even_splits(shard.size, 300)
        marks = [split_entries(shard, part) for part in parts]
        try:
            count = scan_shard(shard).count
        except CorruptRecordError as error:
            with pytest.raises(CorruptRecordError) as raised:
                join_entries(shard, parts, marks)
            assert raised.value.place == error.place
        else:
            assert join_entries(shard, parts, marks).count == count


@pytest.mark.parametrize("step", STEPS)
def test_truncated_shards_are_reported(plain: Path, step: int) -> None:
    stored, borders = plain.read_bytes(), borders_of(plain)
    for size in cuts_of(plain, step):
        plain.write_bytes(stored[:size])
        source = source_of(plain, sorted({*range(0, size, 400), size}))
        if size in borders:
            assert columns_of(source)["id"] == list(range(borders.index(size)))
        else:
            with pytest.raises(CorruptRecordError, match="truncated"):
                columns_of(source)


def test_no_record_fits_the_schema_and_the_error_has_its_number(examples: Path) -> None:
    size, borders = examples.stat().st_size, borders_of(examples)
    source = source_of(examples, [0, 700, size], {"absent": dtf.FixedLenFeature((), "int64")})
    first = min(border for border in borders if border >= 700)
    with pytest.raises(FeatureError, match="absent") as raised:
        source.read_chunk(("absent",), 1)
    assert raised.value.place is not None
    assert (raised.value.place.record, raised.value.place.offset) == (borders.index(first), first)


# -- bytes that are read -----------------------------------------------------------------------------------------------


def bytes_read() -> int:
    """Return the bytes that this process has read."""
    return int(IO.read_text("ascii").split("rchar: ")[1].split()[0])


@counts_reads
def test_large_records_are_skipped_unread(tmp_path: Path) -> None:
    write_oracle(tmp_path / "x", [bytes(1 << 20)] * 50)
    [shard] = find_shards(tmp_path / "x")
    before = bytes_read()
    assert scan_shard(shard).count == 50
    assert bytes_read() - before < 2 << 20


@counts_reads
@pytest.mark.parametrize("counts", ["scan", None])
@pytest.mark.parametrize("first", [b"", b"a text file\n" * 40])
def test_a_large_file_that_is_not_a_tfrecord_is_refused_from_its_first_bytes(
    tmp_path: Path, first: bytes, counts: str | None
) -> None:
    path, small = tmp_path / "large.tfrecord", tmp_path / "small.tfrecord"
    path.write_bytes(first)
    os.truncate(path, 8 << 30)
    small.write_bytes(b"a text file\n" * 40)
    with dask.config.set(scheduler="sync"):
        # The first call imports modules, which are more bytes than the limit.
        with suppress(CorruptRecordError):
            dtf.read_tfrecord(small, FEATURES, counts=counts)
        before = bytes_read()
        with pytest.raises(CorruptRecordError, match=r"record 0 \(byte 0\): this is not a"):
            dtf.read_tfrecord(path, FEATURES, counts=counts)
    assert bytes_read() - before < 8 << 20


@counts_reads
def test_a_chunk_of_a_large_file_that_is_not_a_tfrecord_is_refused_after_a_bounded_search(
    examples: Path, tmp_path: Path
) -> None:
    path = tmp_path / "large.tfrecord"
    path.touch()
    os.truncate(path, 4 << 30)
    ds = dtf.read_tfrecord([examples, path], FEATURES, counts=None, chunks="2 GiB")
    before = bytes_read()
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(CorruptRecordError, match=r"record 0 \(byte 0\): this is not a"),
    ):
        ds["id"].blocks[-1].compute()
    assert bytes_read() - before < 80 << 20
