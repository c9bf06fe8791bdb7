"""Results of rows as NumPy arrays: threads decode into them in place, or chunks of dask are gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dask
import dask.local
import dask.threaded
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    Arrays,
    Block,
    RaggedBlock,
    allocating,
    concatenate,
    rows_of,
    to_array,
    write_rows,
    zero_rows,
)
from dask_tfrecord.columns.conversions import host_array
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.calls import Attempts, raise_first
from dask_tfrecord.rows.collection import row_numbers
from dask_tfrecord.rows.engine import da, from_graph
from dask_tfrecord.rows.graph import Chunk
from dask_tfrecord.rows.memory import Workers
from dask_tfrecord.rows.sources import CountedRows, RecordSource
from dask_tfrecord.rows.task_names import step_key
from dask_tfrecord.settings import limits


def compute_in_place(
    source: CountedRows,
    borders: NDArray[np.int64],
    schema: Schema,
    assigned: Mapping[str, da.Array],
    options: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """Compute all columns with threads of this process, which decode directly into the results."""
    rows = int(borders[-1])
    results: dict[str, NDArray[Any]] = {}
    for name, feature in schema.items():
        with allocating(name, feature):
            results[name] = np.empty((rows, *feature.block_shape), feature.block_dtype)
    own = {name: array for name, array in results.items() if name not in assigned}
    tasks = []
    written: dict[str, list[int]] = {name: [] for name in schema}
    if own:
        stored, order = _in_stored_order(source)
        borders = stored.refine(borders, _read_nbytes(stored, schema, options))
        reads = _ReadIntoResults(stored, borders, own, order, written)
        tasks.append(reads.tasks(step_key("compute")))
    if assigned:
        targets: list[Any] = [_Unmasked(name, results[name], written[name]) for name in assigned]
        tasks.append(da.store(list(assigned.values()), targets, lock=False, compute=False))
    done = dask.compute(*tasks, **options)
    if own:
        raise_first(done[0])
    for name, counts in written.items():
        # Memory that was not written holds anything. dask does not store arrays without values.
        if results[name].size and sum(counts) != rows:
            raise SchemaError(f"column {name!r}: expected {plural(rows, 'row')}, found {sum(counts):,} in its chunks")
    return results


def _read_nbytes(source: CountedRows, schema: Schema, options: Mapping[str, Any]) -> int:
    """Return the stored bytes of one read.

    Bytes exist twice, as flat buffers and as objects, for one read only. Larger reads cost less Python, for which
    threads wait for each other, and add little to the results of large data. Blocks of functions, and decoded arrays
    of different shapes, may be much larger than what is stored, so their reads stay small.
    """
    least, most = limits().compute_read_nbytes, limits().most_compute_read_nbytes
    total = source.cost(np.array([[0, source.nrows]]))
    if total is None or not isinstance(source, RecordSource) or any(each.own_shapes for each in schema.values()):
        return least
    with dask.config.set({name: options[name] for name in ("scheduler", "num_workers", "pool") if name in options}):
        threads = Workers.of_this_process().threads
    return int(np.clip(total[0] / (limits().reads_of_a_thread * threads), least, most))


def _in_stored_order(source: CountedRows) -> tuple[CountedRows, NDArray[np.int64] | None]:
    """Return a source with the rows in stored order, so that each range of bytes is read once.

    The second value is the original position of each row; None if the order is unchanged.
    """
    rows = source.rows
    if rows.step > 0 if isinstance(rows, range) else (np.diff(rows) >= 0).all():
        return source, None
    order = np.argsort(row_numbers(rows), kind="stable")
    return source.select(order), order


class _Unmasked:
    """Result of an assigned array that refuses masked blocks, and blocks of other shapes, which NumPy would accept."""

    def __init__(self, name: str, result: NDArray[Any], written: list[int]) -> None:
        self.name, self.result, self.written = name, result, written

    def __setitem__(self, key: Any, block: Any) -> None:
        start, target = key[0].start or 0, self.result[key]
        block = host_array(block, f"column {self.name!r}", start)
        if np.shape(block) != target.shape:
            raise SchemaError(
                f"column {self.name!r}: the chunk of row {start} has shape {np.shape(block)}; expected {target.shape}, "
                f"as its array declares"
            )
        self.result[key] = block
        if all((part.start or 0) == 0 for part in key[1:]):
            self.written.append(len(target))


@dataclass(frozen=True, eq=False)
class _ReadIntoResults:
    """Read a source's rows straight into all result columns."""

    source: CountedRows
    borders: NDArray[np.int64]  # first row of each read, and the number of rows
    results: Arrays
    order: NDArray[np.int64] | None  # row of a result for each row of the source; None if they are the same
    written: Mapping[str, list[int]]  # rows that were written, by column
    attempts: Attempts = field(default_factory=Attempts)

    def tasks(self, name: str) -> da.Array:
        """Return a task for each read: an element is its error, so that the first in the order of rows is raised."""
        number = len(self.borders) - 1
        tasks: dict[Any, Any] = {(name, read): (self._attempt, read) for read in range(number)}
        return from_graph(tasks, name, ((1,) * number,), np.empty(0, object))

    def _attempt(self, number: int) -> NDArray[np.object_]:
        done = np.empty(1, np.object_)
        done[0] = self.attempts.call(number, partial(self._read_range, number))
        return done

    def _read_range(self, number: int) -> None:
        """Decode a range of rows to its place in the results; what cannot be decoded there is copied."""
        start, stop = self.borders[number : number + 2].tolist()
        target = slice(start, stop) if self.order is None else self.order[start:stop]
        dense = {}
        if self.order is None:
            dense = {name: array[target] for name, array in self.results.items() if array.dtype.kind in "biufc"}
        blocks = self.source.read(tuple(self.results), slice(start, stop), dense)
        for name, block in blocks.items():
            self.written[name].append(len(block))
            if name not in dense:
                # Only decoded values belong to these rows alone: functions and chunks may return parts of others.
                views = isinstance(self.source, RecordSource)
                if isinstance(target, slice):
                    write_rows(block, self.results[name][target], views=views)
                elif views and isinstance(block, RaggedBlock):
                    self.results[name][target] = block.views()
                else:
                    self.results[name][target] = to_array(block)


def gather(
    results: Sequence[Any], names: Sequence[str], schema: Schema, finalizers: Mapping[str, tuple[Any, Any]]
) -> dict[str, NDArray[Any]]:
    """Concatenate chunks of blocks, and results of assigned arrays, to one array per column."""
    # A worker may hold the same chunk objects for other tasks: they must not be modified.
    chunks: list[dict[str, Block]] = [chunk.blocks for chunk in results[0]]
    rest = dict(zip(finalizers, results[1:], strict=True))
    columns = {}
    for name in names:
        if name in rest:
            finalize, extra = finalizers[name]
            columns[name] = host_array(finalize(rest[name], *extra), f"column {name!r}")
        else:
            columns[name] = to_array(concatenate([zero_rows(schema[name]), *(chunk[name] for chunk in chunks)]))
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        # If rows are not counted, a mismatch is only known now.
        raise SchemaError(f"columns must have the same number of rows; got {rows}")
    return columns


def first_rows(chunks: da.Array, schema: Schema, rows: int) -> dict[str, NDArray[Any]]:
    """Return the first rows of chunks of unknown sizes; chunks are computed one by one until there are enough rows."""
    blocks_of: dict[str, list[Block]] = {name: [zero_rows(feature)] for name, feature in schema.items()}
    for number in range(chunks.numblocks[0] if schema else 0):
        if rows <= 0:
            break
        chunk: Chunk = chunks[number : number + 1].compute()
        for name, block in chunk.blocks.items():
            blocks_of[name].append(rows_of(block, 0, min(rows, len(block))))
        rows -= len(block)
    return {name: to_array(concatenate(blocks)) for name, blocks in blocks_of.items()}


def count_rows(chunks: da.Array) -> int:
    """Count the rows of chunks of unknown sizes."""
    counts = da.map_blocks(_chunk_rows, chunks, dtype=np.int64, meta=np.empty(0, np.int64))
    return int(counts.sum().compute())


def _chunk_rows(chunk: Chunk) -> NDArray[np.int64]:
    for block in chunk.blocks.values():
        return np.array([len(block)], np.int64)
    raise ValueError("rows without a column cannot be counted; open with counts='auto'")
