"""Properties of plans: each row is in one chunk, in order, and selections match NumPy's."""

from __future__ import annotations

import dask.array as da
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dask_tfrecord as dtf
from dask_tfrecord.records.index import ShardIndex
from dask_tfrecord.rows.chunk_borders import (
    MOST_CHUNKS,
    at_entries,
    borders_by_bytes,
    borders_by_rows,
    distinct,
    finer_borders,
)
from dask_tfrecord.rows.collection import Collection, RowNumbers, row_runs
from dask_tfrecord.shards.shard import Shards

counts_of_shards = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def shards(sizes: list[int]) -> Shards:
    paths = tuple(f"/data/{number}" for number in range(len(sizes)))
    return Shards(paths, np.array(sizes, np.int64), ("1",) * len(sizes), None, {})


@st.composite
def collections(draw: st.DrawFn) -> Collection:
    """Collections of ten bytes per record, with some index entries, or with counts only."""
    counts = draw(counts_of_shards)
    files = shards([count * 10 for count in counts])
    if draw(st.booleans()):
        return Collection.from_counts(files, counts)
    indexes = []
    for count in counts:
        marked = {0} | (draw(st.sets(st.integers(0, count - 1))) if count else set())
        records = np.array(sorted(marked), np.int64)
        compression = draw(st.sampled_from([None, None, "gzip"]))
        indexes.append(ShardIndex(count, records, records * 10, count * 10, compression))
    return Collection.from_indexes(files, indexes)


def records_of(collection: Collection, rows: RowNumbers) -> list[tuple[str, int]]:
    """Return the file and the record number of every row, by counting."""
    number = 0
    all_records = []
    for path, count in zip(collection.shards.paths, collection.counts.tolist(), strict=True):
        all_records += [(path, record) for record in range(count)]
        number += count
    return [all_records[row] for row in rows]


def runs_of(collection: Collection, rows: RowNumbers) -> list[tuple[str, int]]:
    """Return the same from the runs, and check each run."""
    read = []
    for run in row_runs(collection, rows):
        assert run.count is not None
        assert run.count > 0
        shard = collection.shards.paths.index(run.shard.path)
        assert run.offset == run.entry_record * 10
        assert 0 <= run.entry_record <= run.first
        numbers = [run.record_number(place) for place in range(run.count)]
        assert numbers[0] == run.first
        assert run.stop_offset >= (numbers[-1] + 1) * 10
        assert run.ends_shard == (numbers[-1] + 1 == collection.counts[shard])
        read += [(run.shard.path, number) for number in numbers]
    return read


@given(st.data(), collections())
def test_runs_read_just_the_rows_wanted(data: st.DataObject, collection: Collection) -> None:
    start = data.draw(st.integers(0, collection.nrows))
    some = data.draw(st.sets(st.sampled_from(range(collection.nrows))) if collection.nrows else st.just(set()))
    picks: list[RowNumbers] = [
        range(collection.nrows),
        range(start, data.draw(st.integers(start, collection.nrows))),
        np.array(sorted(some), np.int64),
        range(0, collection.nrows, data.draw(st.integers(1, 5))),
    ]
    for rows in picks:
        assert runs_of(collection, rows) == records_of(collection, rows)


def check_borders(borders: NDArray[np.int64], rows: int) -> None:
    """Check that each row is in one chunk, and that chunks are empty only without rows."""
    assert borders.dtype == np.int64
    assert (borders[0], borders[-1]) == (0, rows)
    assert (np.diff(borders) > 0).all() if rows else borders.tolist() == [0, 0]


@given(collections(), st.integers(1, 30))
def test_borders_by_shard_and_by_rows(collection: Collection, rows: int) -> None:
    borders = distinct(collection.starts)
    check_borders(borders, collection.nrows)
    assert np.diff(borders).tolist() == ([count for count in collection.counts.tolist() if count] or [0])
    borders = borders_by_rows(collection.nrows, rows)
    check_borders(borders, collection.nrows)
    assert (np.diff(borders)[:-1] == rows).all()
    assert np.diff(borders)[-1] <= rows


@given(collections(), st.integers(1, 200), st.booleans(), st.data())
def test_borders_by_bytes(collection: Collection, size: int, coalesce: bool, data: st.DataObject) -> None:
    each = data.draw(st.lists(st.floats(1, 60), min_size=len(collection.shards), max_size=len(collection.shards)))
    row_nbytes = np.array(each)
    borders = borders_by_bytes(collection, row_nbytes, float(size), coalesce=coalesce)
    check_borders(borders, collection.nrows)
    sizes = np.repeat(row_nbytes, collection.counts)
    for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        # A chunk keeps to its size, as far as pieces of equal rows can: one row more, and never less than a row.
        assert sizes[start:stop].sum() <= size + max(sizes[start:stop], default=0) + 1e-6
        if not coalesce and stop > start:
            assert {path for path, _ in records_of(collection, range(start, stop))} == {
                records_of(collection, [start])[0][0]  # type: ignore[arg-type]
            }


@given(st.integers(1, 8), st.integers(1, 100))
def test_chunks_of_a_size_are_filled(per_chunk: int, number: int) -> None:
    collection = Collection.from_counts(shards([10] * number), [1] * number)
    borders = borders_by_bytes(collection, np.full(number, 10.0), per_chunk * 10.0, coalesce=True)
    assert len(borders) - 1 == -(-number // per_chunk)


def test_tiny_shards_are_joined_past_the_most_chunks() -> None:
    number = 5 * MOST_CHUNKS
    collection = Collection.from_counts(shards([100] * number), [10] * number)
    borders = borders_by_bytes(collection, np.full(number, 10.0), 1e6, coalesce=False)
    check_borders(borders, 10 * number)
    assert MOST_CHUNKS / 4 < len(borders) - 1 <= MOST_CHUNKS
    # Shards are joined evenly, so that no chunk is much larger than others.
    assert np.diff(borders)[:-1].min() * 2 >= np.diff(borders).max()


def test_large_chunks_are_never_joined() -> None:
    number = 2 * MOST_CHUNKS
    collection = Collection.from_counts(shards([1000] * number), [10] * number)
    borders = borders_by_bytes(collection, np.full(number, 100.0), 1000.0, coalesce=False)
    assert len(borders) - 1 == number


@given(collections(), st.integers(1, 200))
def test_borders_move_to_marks_that_are_near(collection: Collection, size: int) -> None:
    borders = borders_by_bytes(collection, np.full(len(collection.shards), 8.0), float(size), coalesce=False)
    moved = at_entries(collection, borders)
    check_borders(moved, collection.nrows)
    assert len(moved) == len(borders)
    rows, changed = np.diff(borders), moved != borders
    assert set(moved[changed].tolist()) <= set(collection.entry_rows(1).tolist())
    assert (np.abs(np.diff(moved) - rows) * 4 <= rows).all()


@given(collections(), st.integers(1, 20), st.integers(1, 60))
def test_finer_borders_keep_the_given_ones_and_lie_at_marks(collection: Collection, rows: int, nbytes: int) -> None:
    borders = borders_by_rows(collection.nrows, rows)
    finer = finer_borders(collection, range(collection.nrows), borders, nbytes)
    check_borders(finer, collection.nrows)
    assert set(borders.tolist()) <= set(finer.tolist())
    for row in {*finer.tolist()} - {*borders.tolist()}:
        for run in collection.runs(row, row + 1):
            assert run.first == run.entry_record


@given(st.sets(st.integers(0, 29)).map(sorted), st.integers(1, 7), st.integers(1, 15))
def test_ascending_rows_stay_in_their_chunks(rows: list[int], step: int, size: int) -> None:
    ds = dtf.Dataset.from_arrays({"x": da.arange(30, chunks=size)})
    for key in (rows, slice(None, None, step)):
        chunks = np.arange(30)[key] // size
        assert ds.rows[key].chunks == (tuple(np.unique(chunks, return_counts=True)[1].tolist()) or (0,))
