"""`to_parquet`: one Parquet file per chunk, published as shards of `to_tfrecord` are.

A task writes a temporary file and renames it; a repeated task recognises its file. The client verifies the size of each
file, and the row count in its footer.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack, get_args

from dask.delayed import Delayed

from dask_tfrecord.blocks import block_nbytes
from dask_tfrecord.errors import IncompleteStoreError, Location, near_misses, plural
from dask_tfrecord.options import ParquetCodec, ParquetOptions, complete, with_options
from dask_tfrecord.rows.inputs import Inputs
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.shards.remote import url_to_fs
from dask_tfrecord.shards.streams import ByteSink
from dask_tfrecord.stores.files.publish import Files, FileWrite, ShardNames
from dask_tfrecord.stores.output import ShardWriteReport, check_mode
from dask_tfrecord.stores.output_names import warn_of_suffix
from dask_tfrecord.stores.units import RowTasks

if TYPE_CHECKING:
    from dask_tfrecord.rows.arrow import BatchMaker

# The names of dask; readers sort files by name, so numbers have leading zeros.
TEMPLATE = "part.{shard:05d}.parquet"
# Footers that are read at the same time.
_FOOTER_THREADS = 8


@with_options("dtf.to_parquet(ds, 'train')", ParquetOptions)
def to_parquet(
    arrays: Mapping[str, Any], path: str | os.PathLike[str], **options: Unpack[ParquetOptions]
) -> Delayed | None:
    """Write rows to Parquet files, one per chunk.

    Parameters
    ----------
    arrays : Dataset, mapping of str to array-like, xarray Dataset or DataFrame of pandas or dask
        Rows to write; anything but a Dataset is converted by `Dataset.from_arrays`.
    path : str or os.PathLike
        Directory or URL. Its files are named ``part.00000.parquet``, ``part.00001.parquet`` and so on, in the order of
        the rows.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If a file exists and `mode` is ``"w-"``, or if the directory has more files with such names.
    IncompleteStoreError
        If the size or the row count of a file is wrong after writing.
    ImportError
        If pyarrow is not installed.
    SchemaError, ValueError
        If rows are not counted or lack columns, or an argument has an invalid value.

    Notes
    -----
    Columns have the types of `Dataset.to_arrow_batches`. Files appear when all of them are complete; after a failure,
    readers find what they found before. A task keeps one chunk and its file in memory.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> ds.to_parquet("train.parquet", mode="w")
    >>> import pyarrow.parquet
    >>> pyarrow.parquet.read_table("train.parquet").num_rows
    20
    """
    return plan_parquet(arrays, path, complete(ParquetOptions, options)).run()


def plan_parquet(
    arrays: Mapping[str, Any], path: str | os.PathLike[str], options: ParquetOptions, job: str | None = None
) -> FileWrite:
    """Plan what `to_parquet` writes, or the job of a token."""
    # Without pyarrow, this import raises an error that names the extra.
    from dask_tfrecord.rows.arrow import BatchMaker

    if options["mode"] != "a":
        check_mode(options["mode"], "a file")
    codec = _checked_codec(options["compression"])
    rows = Inputs.from_arrays(arrays, exact=True).rows
    rows.check_counted()
    make = BatchMaker(rows.schema, options["tensors"])
    make.check_columns(rows.nrows)
    names, mode = ShardNames.from_directory(path, TEMPLATE, options["storage_options"]).in_mode(options["mode"])
    row_tasks = RowTasks(rows, uuid.uuid4().hex)
    spans = list(pairwise(row_tasks.borders.tolist()))
    files = Files(row_tasks.token, names, len(spans), mode, options["compute"], check=check_rows, resumable=job)
    files.check_free()
    warn_of_suffix(os.fspath(path), "to_parquet", ".parquet")
    columns, paths = rows.names, files.paths
    units = [(span, columns, (path, span)) for span, path in zip(spans, paths, strict=True)]
    location = names.display(paths, "file")
    return FileWrite.of_rows(files, row_tasks, write_parquet_file, (make, codec), units, location)


def _checked_codec(compression: str | None) -> str:
    import pyarrow as pa

    codec = "none" if compression is None else compression
    known = [each for each in get_args(ParquetCodec) if each == "none" or pa.Codec.is_available(each)]
    if codec not in known:
        raise ValueError(f"pyarrow can't write the compression {compression!r}{near_misses(compression, known)}")
    return codec


def write_parquet_file(
    files: Files, make: BatchMaker, codec: str, path: str, rows: tuple[int, int], source: CountedRows
) -> ShardWriteReport:
    """Write a range of rows of a source to the file `path`."""
    import pyarrow as pa
    from pyarrow import parquet

    def write_content(sink: ByteSink) -> tuple[int, int]:
        nbytes = 0
        file = pa.PythonFile(_SinkFile(sink), mode="w")
        with parquet.ParquetWriter(file, make.arrow, compression=codec) as writer:
            for blocks in source.read_spans(tuple(make.schema), [rows] if rows[0] < rows[1] else []):
                nbytes += sum(map(block_nbytes, blocks.values()))
                writer.write_batch(make.from_blocks(blocks))
        return rows[1] - rows[0], nbytes

    return files.write(path, write_content)


class _SinkFile(io.RawIOBase):
    """File object over a sink, which the publisher closes."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sink.write(data)
        return len(data)


def check_rows(paths: Sequence[str], reports: Sequence[ShardWriteReport], storage_options: Mapping[str, Any]) -> None:
    """Compare the rows of each file, by its footer, with the rows that its task wrote."""
    import pyarrow as pa
    from pyarrow import parquet

    def stored_rows(path: str) -> int:
        fs, inside = url_to_fs(path, **storage_options)
        try:
            with fs.open(inside, "rb") as file:
                return int(parquet.read_metadata(file).num_rows)
        except (FileNotFoundError, pa.ArrowException) as error:
            raise IncompleteStoreError(
                f"the Parquet file that a task wrote cannot be read ({error}): another program changed it, or the "
                f"workers write to a file system that this process does not share",
                Location(path),
            ) from error

    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        found = list(pool.map(stored_rows, paths))
    for path, report, stored in zip(paths, reports, found, strict=True):
        if stored != report.records:
            raise IncompleteStoreError(
                f"the file has {plural(stored, 'row')}; expected {report.records:,}: another program changed it",
                Location(path),
            )
