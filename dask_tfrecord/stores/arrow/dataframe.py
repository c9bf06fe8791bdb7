"""`Dataset.to_dataframe`: a dask DataFrame of Arrow-backed columns, one partition per chunk."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Chunk
from dask_tfrecord.stores.arrow.record_batches import BatchMaker

__all__ = ["to_dataframe"]


def to_dataframe(dataset: Dataset) -> Any:
    """Return a dask DataFrame; `Dataset.to_dataframe` documents it."""
    try:
        import dask.dataframe
    except ImportError as error:
        raise ImportError(
            "DataFrames need pandas, which is not installed: pip install 'dask-tfrecord[arrow]'", name="pandas"
        ) from error
    make = BatchMaker(dataset.schema, tensors=False)
    make.check_columns(dataset.nrows)
    # An optimised graph would not refer to the futures of persisted chunks, so that a cluster could release them.
    chunks = dataset.merged().chunks(tuple(dataset)).to_delayed(optimize_graph=False).ravel().tolist()
    borders, divisions = dataset.borders, None
    starts = [0] * len(chunks)
    if borders is not None and borders[-1]:
        # Divisions ascend, so chunks without rows have no partition.
        kept = [number for number, size in enumerate(dataset.chunks) if size]
        chunks, starts = [chunks[number] for number in kept], [int(borders[number]) for number in kept]
        divisions = (*starts, int(borders[-1]) - 1)
    # A persisted data set has the names of the lazy one, and dask would take one DataFrame for the other.
    name = f"tfrecord-dataframe-{uuid.uuid4().hex}"
    convert = dask.delayed(_partition, traverse=False)
    shared = dask.delayed(make, name=f"{name}-schema", traverse=False)
    parts = [
        convert(chunk, shared, start, dask_key_name=(name, number))
        for number, (chunk, start) in enumerate(zip(chunks, starts, strict=True))
    ]
    meta = _frame(make.arrow.empty_table(), 0)
    return dask.dataframe.from_delayed(parts, meta=meta, divisions=divisions, prefix="tfrecord")


def _partition(chunk: Chunk, make: BatchMaker, start: int) -> Any:
    return _frame(pa.Table.from_batches([make(chunk)]), start)


def _frame(table: pa.Table, start: int) -> Any:
    """Convert a table to a pandas DataFrame whose index continues from `start`."""
    import pandas

    frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
    frame.index = pandas.RangeIndex(start, start + table.num_rows)
    return frame
