"""Arrow record batches of all chunks, and dask DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from dask_tfrecord.errors import explain_missing
from dask_tfrecord.extras.chunk_iterator import ChunkIterator
from dask_tfrecord.rows.arrow import BatchMaker
from dask_tfrecord.rows.graph import Chunk
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.task_names import step_key

with explain_missing("Arrow, DataFrames and Parquet need", "pyarrow", "arrow"):
    import pyarrow as pa


class ArrowBatches(ChunkIterator[pa.RecordBatch]):
    """Iterator of record batches, one per chunk, decoded ahead.

    It is closed at its end, by `close`, by ``with``, and when it is deleted. It exports itself as an Arrow stream too,
    which reads the remaining batches.

    Parameters
    ----------
    rows : Rows
        The rows.
    tensors : bool
        Use the tensor type for shapes of several axes; otherwise nested lists.
    """

    def __init__(self, rows: Rows, tensors: bool) -> None:
        make = BatchMaker(rows.schema, tensors)
        make.check_columns(rows.nrows)
        self._schema = make.arrow
        super().__init__(rows, rows.names, make)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self._schema

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the remaining batches by the PyCapsule protocol.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            Types that the consumer prefers; columns are cast to them.

        Raises
        ------
        ValueError, pyarrow.ArrowException
            If the names differ, or Arrow lacks the cast.
        """
        return pa.RecordBatchReader.from_batches(self._schema, self._until_end()).__arrow_c_stream__(requested_schema)

    def _until_end(self) -> Iterator[pa.RecordBatch]:
        # A consumer that stops early releases the stream, which closes this generator.
        with closing(self):
            yield from self


def to_dataframe(rows: Rows) -> Any:
    """Return a dask DataFrame; `Dataset.to_dataframe` documents it."""
    with explain_missing("DataFrames need", "pandas", "arrow"):
        import dask.dataframe
    make = BatchMaker(rows.schema, tensors=False)
    make.check_columns(rows.nrows)
    # An optimised graph would not refer to the futures of persisted chunks, so that a cluster could release them.
    chunks = rows.chunks(rows.names).to_delayed(optimize_graph=False).ravel().tolist()
    borders, divisions = rows.borders, None
    starts = [0] * len(chunks)
    if borders is not None and borders[-1]:
        # Divisions ascend, so chunks without rows do not become partitions.
        kept = [number for number, size in enumerate(rows.sizes) if size]
        chunks = [chunks[number] for number in kept]
        starts = [int(borders[number]) for number in kept]
        divisions = (*starts, int(borders[-1]) - 1)
    # A persisted data set has the names of the lazy one, and dask would take one DataFrame for the other.
    name = step_key("dataframe")
    convert = dask.delayed(_partition_table, traverse=False)
    shared = dask.delayed(make, name=f"{name}-schema", traverse=False)
    parts = [
        convert(chunk, shared, start, dask_key_name=(name, number))
        for number, (chunk, start) in enumerate(zip(chunks, starts, strict=True))
    ]
    meta = _to_dataframe(make.arrow.empty_table(), 0)
    return dask.dataframe.from_delayed(parts, meta=meta, divisions=divisions, prefix="tfrecord")


def _partition_table(chunk: Chunk, make: BatchMaker, start: int) -> Any:
    return _to_dataframe(pa.Table.from_batches([make(chunk)]), start)


def _to_dataframe(table: pa.Table, start: int) -> Any:
    """Convert a table to a pandas DataFrame whose index continues from `start`."""
    import pandas

    # In Arrow NaN is a number, in pandas a missing one: floats keep NumPy's types.
    types = {kind: pandas.ArrowDtype(kind) for kind in table.schema.types if not pa.types.is_floating(kind)}
    frame = table.to_pandas(types_mapper=types.get)
    frame.index = pandas.RangeIndex(start, start + table.num_rows)
    return frame
