"""Bags of decoded payloads: each record once, in order, on threads, processes and a cluster."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import dask
import oracle
import pytest
from support.damage import flip

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, ShardNotFoundError
from dask_tfrecord.records.index import full_run, iterate_payloads
from dask_tfrecord.shards.listing import find_shards

# Workers cannot import this module: its functions are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHARDS = 3


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    # The default scheduler of bags starts processes, which only some tests need.
    with dask.config.set(scheduler="threads"):
        yield


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Shards of JSON lines, the second compressed, which number themselves."""
    for shard in range(SHARDS):
        records = [json.dumps({"row": 100 * shard + row, "text": "x" * row}).encode() for row in range(40)]
        oracle.write_oracle(tmp_path / f"part-{shard}", records, "gzip" if shard == 1 else None)
    return tmp_path


ROWS = [100 * shard + row for shard in range(SHARDS) for row in range(40)]


def row(payload: bytes) -> int:
    number: int = json.loads(payload)["row"]
    return number


def failing(payload: bytes) -> int:
    number = row(payload)
    if number == 205:
        raise KeyError("five")
    return number


# -- every record once, in order --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "npartitions"), [("auto", 3), ("shard", 3), (50, 3), (7, 18), (1000, 1), ("2 kiB", None), ("1 GiB", 1)]
)
def test_every_record_is_there_once_whatever_the_partitions(
    lines: Path, chunks: str | int, npartitions: int | None
) -> None:
    bag = dtf.read_bag(lines, decode=row, chunks=chunks)
    assert bag.compute() == ROWS
    oracle.write_oracle(lines / "empty", [])
    assert dtf.read_bag(lines / "empty", chunks=chunks).compute() == []
    assert npartitions is None or bag.npartitions == npartitions


def test_large_plain_shards_are_split_and_compressed_ones_are_not(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 40_000 for number in range(120)]
    oracle.write_oracle(tmp_path / "a", payloads)
    oracle.write_oracle(tmp_path / "b", [os.urandom(40_000) for _ in range(120)], "gzip")
    with dask.config.set({"array.chunk-size": "1 MiB"}):
        bag = dtf.read_bag(tmp_path)
        assert bag.npartitions == 6
        assert bag.take(120, npartitions=5) == tuple(payloads)
        assert bag.map(len).sum().compute() == 240 * 40_000
    assert dtf.read_bag(tmp_path, chunks="1 MiB").npartitions == 6


def test_compression_and_other_arguments_reach_the_files(lines: Path) -> None:
    with pytest.raises(CorruptRecordError):
        dtf.read_bag(lines / "part-1", compression=None).compute()
    with pytest.raises(ShardNotFoundError):
        dtf.read_bag(lines / "nothing")
    with pytest.raises(ValueError, match="chunks must be 'auto', 'shard'"):
        dtf.read_bag(lines, chunks="many")
    with pytest.raises(ValueError, match="decode must be a function of a payload, or None; got 'json'"):
        dtf.read_bag(lines, "json")  # type: ignore[arg-type]


# -- one at a time --------------------------------------------------------------------------


class Held:
    """Counts how many of its kind are alive."""

    alive = most = 0

    def __init__(self, payload: bytes) -> None:
        Held.alive += 1
        Held.most = max(Held.most, Held.alive)

    def __del__(self) -> None:
        Held.alive -= 1


def test_values_are_made_as_they_are_consumed(lines: Path) -> None:
    with dask.config.set(scheduler="sync"):
        assert dtf.read_bag(lines, decode=Held).map(lambda held: 1).sum().compute() == len(ROWS)
    assert 1 <= Held.most <= 3


def test_values_that_are_not_requested_are_not_decoded(lines: Path) -> None:
    assert dtf.read_bag(lines / "part-2", decode=failing).take(5) == (200, 201, 202, 203, 204)


# -- errors --------------------------------------------------------------------------


def test_a_failing_function_is_reported_with_its_record(lines: Path) -> None:
    path = str(lines / "part-2")
    offset = sum(len(payload) + 16 for payload in oracle.read_payloads(path)[:5])
    for chunks in ("auto", 7):
        with pytest.raises(FeatureError, match="looks like JSON text") as caught:
            dtf.read_bag(lines, decode=failing, chunks=chunks).compute()
        assert caught.value.place == Location(path, 5, offset)
        assert "decode (failing) raised KeyError('five') on a payload of" in caught.value.message
        assert isinstance(caught.value.__cause__, KeyError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.place) == (str(caught.value), caught.value.place)


def test_damage_is_met_where_it_is(lines: Path) -> None:
    path = lines / "part-2"
    flip(path, -6)
    bag = dtf.read_bag(path, decode=row)
    assert bag.take(39) == tuple(range(200, 239))
    with pytest.raises(CorruptRecordError, match="record 39"):
        bag.compute()
    assert len(dtf.read_bag(path, check_crc=False).compute()) == 40


@pytest.mark.parametrize(
    ("count", "said"), [(41, "1 more record should follow after 40 records"), (39, "more bytes follow")]
)
def test_wrong_counts_are_reported_at_the_end_of_a_shard(tmp_path: Path, count: int, said: str) -> None:
    oracle.write_oracle(tmp_path / "file", [b"payload"] * 40)
    (shard,) = find_shards(tmp_path)
    with pytest.raises(CorruptRecordError, match=said):
        list(iterate_payloads([replace(full_run(shard), count=count)]))


@pytest.mark.slow
def test_in_processes(lines: Path) -> None:
    with dask.config.set(scheduler="processes", num_workers=2):
        assert dtf.read_bag(lines, decode=row, chunks=50).compute() == ROWS
        with pytest.raises(FeatureError, match=r"decode \(failing\) raised KeyError\('five'\)") as caught:
            dtf.read_bag(lines, decode=failing).compute()
    assert caught.value.place is not None
    assert (caught.value.place.file, caught.value.place.record) == (str(lines / "part-2"), 5)


def test_names_of_bags_follow_the_files(lines: Path) -> None:
    bag = dtf.read_bag(lines, decode=row)
    assert dtf.read_bag(lines, decode=row).name == bag.name
    for other in (dtf.read_bag(lines), dtf.read_bag(lines, row, chunks=50), dtf.read_bag(lines / "part-0", row)):
        assert other.name != bag.name
    oracle.write_oracle(lines / "part-0", [b'{"row": 1}'])
    assert dtf.read_bag(lines, decode=row).name != bag.name
