"""Streams of record batches: `Dataset.to_arrow_batches` and the PyCapsule protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Self

import pyarrow as pa

from dask_tfrecord.arrays.compute import iterate_chunks
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Chunk
from dask_tfrecord.stores.arrow.record_batches import BatchMaker

__all__ = ["ArrowBatches"]


class ArrowBatches(Iterator[pa.RecordBatch]):
    """Iterator of record batches, one per chunk, decoded ahead.

    It is closed at its end, by `close`, by ``with``, and when it is deleted. It exports itself as an Arrow stream too,
    which reads the remaining batches.

    Parameters
    ----------
    dataset : Dataset
        The rows.
    tensors : bool
        Use the tensor type for shapes of several axes; otherwise nested lists.
    """

    def __init__(self, dataset: Dataset, tensors: bool) -> None:
        make = BatchMaker(dataset.schema, tensors)
        make.check_columns(dataset.nrows)
        self._schema = make.arrow
        self._batches = (
            iterate_chunks(dataset.merged(), tuple(dataset), partial(_batch, make)) if make.schema else iter(())
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self._schema

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Stop the tasks."""
        if hasattr(self._batches, "close"):
            self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the remaining batches by the PyCapsule protocol.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            Types that the consumer prefers; columns are cast to them.

        Raises
        ------
        ValueError, pyarrow.ArrowException
            If the names differ, or Arrow has no such cast.
        """
        return pa.RecordBatchReader.from_batches(self._schema, self._until_end()).__arrow_c_stream__(requested_schema)

    def _until_end(self) -> Iterator[pa.RecordBatch]:
        # A consumer that stops early releases the stream, which closes this generator.
        with closing(self):
            yield from self


def _batch(make: BatchMaker, chunk: Chunk, number: int) -> pa.RecordBatch:
    return make(chunk)
