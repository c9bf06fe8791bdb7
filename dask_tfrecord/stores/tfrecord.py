"""Writing TFRecord shards from arrays: one task per shard, and each shard appears whole.

What records hold is decided in `dask_tfrecord.columns.record_schema`, and made in `dask_tfrecord.columns.encode`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import dask
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.progress import tell
from dask_tfrecord.arrays.writable import register_store
from dask_tfrecord.columns.blocks import Block, block_nbytes, release_memory
from dask_tfrecord.columns.encode import Encoder, RecordStream
from dask_tfrecord.columns.image_writing import ImageEncoding
from dask_tfrecord.columns.record_schema import listed_features, record_schema
from dask_tfrecord.columns.tfds_writing import TFDSNames
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import ImageFeature
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.access import indexing_library
from dask_tfrecord.storage.compression import create_stream
from dask_tfrecord.stores.array_likes import as_dataset
from dask_tfrecord.stores.failure import called_off_on_failure, named
from dask_tfrecord.stores.feed import Feed, Pieces
from dask_tfrecord.stores.progress import Reading, Work, shown
from dask_tfrecord.stores.publishing import CalledOff, Publisher
from dask_tfrecord.stores.shard_names import ShardNames
from dask_tfrecord.stores.tfds import TFDSMetadata
from dask_tfrecord.stores.write_report import WriteReport, peak_memory

__all__ = [
    "ShardJob",
    "ShardPlan",
    "begin",
    "check_options",
    "refuse_sources",
    "shard_borders",
    "to_tfrecord",
    "write_shard",
]

# Decoded bytes that a task has in hand at once.
_PIECE_NBYTES = 2 << 20
# Where there are more chunks than this, small neighbours share a shard of about so many decoded bytes.
_MOST_SHARDS = 1_000
_SHARED_NBYTES = 64 << 20

Encodings = str | Mapping[str, Any]
Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to write.

    Attributes
    ----------
    path : str
        Path or URL.
    start, stop : int
        Its rows.
    """

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlan:
    """What all tasks share; it travels once to each worker.

    Attributes
    ----------
    encoder : Encoder
        Makes records of columns.
    publisher : Publisher
        Lets shards appear.
    """

    encoder: Encoder
    publisher: Publisher


def to_tfrecord(
    arrays: Mapping[str, Any],
    urlpath: str | os.PathLike[str],
    *,
    features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    encoding: Encodings | None = None,
    compression: str | None = None,
    records_per_shard: int | None = None,
    index: bool = False,
    mode: Literal["w", "w-"] = "w-",
    tfds: Mapping[str, Any] | None = None,
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write rows to TFRecord shards as Examples, or SequenceExamples, one task per shard.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is written: a data set, or dask, NumPy or Zarr arrays, rows of differing length (`RaggedBlock`, or object
        arrays of arrays), or an xarray Dataset, of as many rows each.
    urlpath : str or os.PathLike
        A template such as ``"out/train-{shard:05d}-of-{shards:05d}.tfrecord"``; a name without ``{shard}``, which is
        one shard; or a directory (one that exists, or that ends in ``/``). Directories are made where there are none.
    features : mapping of str to feature, optional
        What columns are written as: the spec that reads them. By default a data set is written as it was read
        (the features given to `read_tfrecord`, also where a Zarr store lies between), and what no shard was read by, as
        ``ds.schema`` says; arrays are lists of numbers (integers and bool as int64, float16 and float32 as float32), of
        bytes and of text.
    sequence_features : mapping of str to feature, optional
        Columns that are feature lists: records are SequenceExamples then. ``NAME.lengths``, if there is one, says how
        many steps of a padded column count.
    encoding : str or mapping of str to str or mapping, optional
        How the images of `ImageFeature` are written: ``"png"``, which is lossless and the default, ``"jpeg"`` or
        ``"webp"``, for all or by name; or with the options of Pillow's writer, as
        ``{"photo": {"format": "jpeg", "quality": 90}}``.
    compression : {None, "gzip", "zlib"}
        Of the shards; their names say nothing about it.
    records_per_shard : int, optional
        By default a shard for each chunk; past 1,000 chunks small neighbours share one of about 64 MiB.
    index : bool, default False
        Write ``FILE.idx`` beside each shard, as `build_index` does (for gzip ``FILE.gzidx``, too).
    mode : {"w-", "w"}
        ``"w-"`` fails if one of the shards exists, ``"w"`` replaces them.
    tfds : mapping of str to str, optional
        ``{"name": …, "version": …, "split": …}``: `urlpath` is a directory, shards are named as TFDS names them, and
        `features.json` and `dataset_info.json` are written beside them, or get another split, so that
        ``tensorflow_datasets.builder_from_directory`` opens it.
    compute : bool, default True
        Write now; otherwise a `Delayed` that writes when it is computed is returned, and nothing is touched before.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If a shard exists under ``mode="w-"``, or there are shards of the same template and another number of shards.
    SchemaError
        If a column does not fit its feature by dtype or shape, or nothing says what it is written as: an Example has
        no list of float64.
    FeatureError
        If a value does not fit: an integer past the dtype asked for, a float that float32 does not hold.
    ValueError
        If rows are not counted, a template has no ``{shard}`` for several shards, or shards would replace those that
        are read.

    Notes
    -----
    Shards are written under a hidden name and appear whole; if the writing fails, those that it had finished are
    removed. A task holds a piece of rows of 2 MiB, and a block of records, and of arrays in chunks those chunks that
    its rows lie in.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> ds.to_tfrecord("again/train-{shard:05d}-of-{shards:05d}.tfrecord", compression="gzip", mode="w")
    >>> dtf.read_tfrecord("again/train-*.tfrecord").nrecords == ds.nrecords
    True
    """
    check_options(compression, index, mode, records_per_shard)
    dataset, schema = _described(arrays, features, sequence_features)
    if dataset.nrecords is None:
        raise ValueError("rows have to be counted to be written: open with counts='auto'")
    if not schema and dataset.nrecords:
        raise SchemaError(f"{dataset.nrecords:,} records without a feature would hold nothing: there is no column")
    encoder = Encoder(schema, dataset.schema, _encodings(encoding, schema))
    names, metadata = _names(urlpath, tfds, encoder, storage_options)
    feed = Feed(dataset, uuid.uuid4().hex)
    borders = shard_borders(feed.borders, records_per_shard, names, lambda: feed.row_sizes().read)
    paths = names.paths(len(borders) - 1)
    names.check_free(paths, mode)
    refuse_sources(names, paths, dataset.origin.get("files", ()))
    plan = ShardPlan(encoder, Publisher(feed.token, compression, index, names.storage_options))
    shared = dask.delayed(plan, name=f"tfrecord-plan-{feed.token}", traverse=False)
    begun = dask.delayed(begin, pure=False)(names, paths, mode, shared, dask_key_name=f"tfrecord-begin-{feed.token}")
    spans = list(pairwise(borders.tolist()))
    jobs = ((rows, list(feed.schema), (ShardJob(path, *rows),)) for rows, path in zip(spans, paths, strict=True))
    written = feed.run(write_shard, jobs, _finish, (metadata, paths, names.storage_options), begun)
    if not compute:
        return written
    missing = [path for path in names.directories(paths) if not path.exists()]
    reading = Reading.of(feed.source, dataset.nrecords, spans)
    work = Work(os.fspath(urlpath), feed.tasks(write_shard), dataset.nrecords, len(schema), reading, len(spans))
    with called_off_on_failure(feed.token, lambda: names.remove(paths, missing)), shown(work):
        dask.compute(written)
    return None


def check_options(compression: str | None, index: bool, mode: str, records_per_shard: int | None) -> None:
    """Refuse arguments that can't be, before anything is read."""
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if a shard exists) or 'w' (replace them); got {mode!r}")
    if compression not in (None, "gzip", "zlib"):
        raise ValueError(f"compression is one of None, 'gzip', 'zlib'; got {compression!r}")
    if index and compression == "zlib":
        raise ValueError(
            "zlib data can't be entered but at the beginning, so an index is of no use; write gzip instead"
        )
    if index and compression == "gzip":
        indexing_library()
    if records_per_shard is not None and (
        isinstance(records_per_shard, bool)
        or not isinstance(records_per_shard, int | np.integer)
        or records_per_shard < 1
    ):
        raise ValueError(f"records_per_shard is a number of records, 1 or more; got {records_per_shard!r}")


def _described(
    arrays: Mapping[str, Any], features: Mapping[str, Any] | None, sequence_features: Mapping[str, Any] | None
) -> tuple[Dataset, Schema]:
    """Find the rows, and what records are made of them."""
    if isinstance(arrays, Dataset):
        said = arrays.origin.get("schema")
        read = None if said is None else Schema.from_json(json.dumps(said))
        return arrays, record_schema(arrays.schema, read, features, sequence_features)
    dataset = as_dataset(arrays, features, sequence_features)
    columns = dataset.schema
    said = record_schema(columns, None, features, sequence_features)
    own = {*(features or {}), *(sequence_features or {})}
    listed = listed_features({name: feature for name, feature in said.items() if name not in own})
    return dataset, said.replaced({name: listed.get(name, feature) for name, feature in said.items()})


def _names(
    urlpath: str | os.PathLike[str],
    tfds: Mapping[str, Any] | None,
    encoder: Encoder,
    storage_options: Mapping[str, Any] | None,
) -> tuple[ShardNames, TFDSMetadata | None]:
    """Find where shards go, and what is to be written beside them."""
    if tfds is None:
        return ShardNames.of(urlpath, storage_options), None
    known = TFDSNames.of(tfds)
    names = ShardNames.within(urlpath, known.template, storage_options)
    formats = {name: encoding.format for name, encoding in encoder.encoding.items()}
    metadata = TFDSMetadata.of(names.directory, known, encoder.schema, formats)
    metadata.check(names.storage_options)
    return names, metadata


def _encodings(given: Encodings | None, schema: Schema) -> dict[str, ImageEncoding]:
    if given is None:
        return {}
    if isinstance(given, str):
        named_: Mapping[str, Any] = {name: given for name in schema if isinstance(schema[name], ImageFeature)}
    else:
        named_ = given
    return {name: ImageEncoding.of(each, name) for name, each in named_.items()}


def shard_borders(
    borders: NDArray[np.int64], records: int | None, names: ShardNames, row_nbytes: Callable[[], float]
) -> NDArray[np.int64]:
    """Cut rows into shards.

    Parameters
    ----------
    borders : ndarray of int64
        First row of each chunk, and the number of rows.
    records : int or None
        Rows of a shard, if the user says so.
    names : ShardNames
        Whether there can be several.
    row_nbytes : callable
        Tells the decoded bytes of a row, if there are very many chunks.

    Returns
    -------
    ndarray of int64
        First row of each shard, and the number of rows; one shard at least.

    Raises
    ------
    ValueError
        If there can be one shard alone, and more are asked for.
    """
    rows = int(borders[-1])
    if records is not None:
        if not names.many and rows > records:
            raise ValueError(
                f"{rows:,} records in shards of {records:,} are several files: give a template with {{shard:05d}} in "
                f"place of {names.template!r}"
            )
        return np.append(np.arange(0, max(rows, 1), records), rows)
    if not names.many:
        return np.array([0, rows])
    if len(borders) - 1 <= _MOST_SHARDS:
        return borders
    each = max(1, int(_SHARED_NBYTES / max(row_nbytes(), 1.0)))
    # The last chunk that ends within so many rows of where the shard begins, or one that is larger.
    cuts = [0]
    while cuts[-1] < len(borders) - 1:
        past = int(np.searchsorted(borders, borders[cuts[-1]] + each, side="right")) - 1
        cuts.append(min(max(past, cuts[-1] + 1), len(borders) - 1))
    return borders[cuts]


def refuse_sources(names: ShardNames, paths: Sequence[str], sources: Sequence[str]) -> None:
    """Refuse to replace what is read, and to fill a directory up with more of the same."""
    read = {os.path.realpath(path) if "://" not in path else path for path in sources}
    for path in paths:
        if (os.path.realpath(path) if "://" not in path else path) in read:
            raise ValueError(f"{path} can't be replaced by what is read from it: write to another path")
    if names.of_directory and names.directory in {os.path.dirname(path) for path in read}:  # noqa: PTH120
        raise ValueError(
            f"shards are read from {names.directory}, which would hold every record twice: write to another directory, "
            f"or give a template of names"
        )


def begin(names: ShardNames, paths: Sequence[str], mode: str, plan: Plan) -> Plan:
    """Let tasks write: nothing is in their way any more."""
    names.check_free(paths, mode)
    names.remove(sorted({*names.found(paths)} & {*paths}))
    names.make_directories(paths)
    return plan


def write_shard(plan: ShardPlan, job: ShardJob, source: Callable[..., Pieces], *rest: Any) -> WriteReport:
    """Write a shard from the rows that ``source(*rest)`` gives."""
    stream, nbytes = RecordStream(plan.encoder, job.path), 0
    try:
        with plan.publisher.shard(job.path, create_stream) as sink:
            steps = _Steps(job.start, job.stop)
            for blocks in source(*rest).pieces(tuple(plan.encoder.columns), steps):
                nbytes += steps.learn(blocks)
                plan.publisher.go_on()
                for records in stream.framed(blocks):
                    with named(job.path):
                        sink.write(records)
    except CalledOff:
        return WriteReport(0, 0)
    finally:
        release_memory()
    report = WriteReport(job.stop - job.start, nbytes, plan.publisher.stored(job.path), peak_memory())
    tell(report)
    return report


class _Steps:
    """Spans of rows, as many at once as the last ones say will not be too large."""

    def __init__(self, start: int, stop: int) -> None:
        self._at, self._stop, self._step = start, stop, 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self._at < self._stop:
            start, self._at = self._at, min(self._at + self._step, self._stop)
            yield start, self._at

    def learn(self, blocks: Mapping[str, Block]) -> int:
        """Take note of how large rows are; give their bytes."""
        nbytes = sum(map(block_nbytes, blocks.values()))
        rows = len(next(iter(blocks.values())))
        self._step = max(1, min(_PIECE_NBYTES * rows // max(nbytes, 1), 8 * rows))
        return nbytes


def _finish(
    metadata: TFDSMetadata | None,
    paths: Sequence[str],
    storage_options: Mapping[str, Any],
    results: Sequence[WriteReport],
) -> None:
    """Say what was written, where that was asked for, once all of it is."""
    if metadata is not None:
        metadata.write(paths, [report.records for report in results], storage_options)


register_store("tfrecord", to_tfrecord)
