"""`read_tfrecord`: from paths to a `Dataset`. Files are found, records counted, features inferred; none is decoded."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import dask
import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Lazy
from dask_tfrecord.arrays.checking import HeldRecords
from dask_tfrecord.arrays.counting import closed_shards, index_shards, mark_shards
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.filled import FilledSource
from dask_tfrecord.arrays.folders import Found, find_collection
from dask_tfrecord.arrays.graph import refuse_query_planning
from dask_tfrecord.arrays.lengths import open_lengths, with_lengths
from dask_tfrecord.arrays.plan import (
    MOST_CHUNKS,
    ByteChunks,
    Collection,
    borders_by_bytes,
    borders_by_rows,
    borders_by_shard,
)
from dask_tfrecord.arrays.source import RecordSource, probe_rows
from dask_tfrecord.arrays.uncounted import UncountedSource, decoded_ratio
from dask_tfrecord.columns.blocks import block_nbytes
from dask_tfrecord.columns.infer import infer_examples
from dask_tfrecord.columns.metadata import read_schema
from dask_tfrecord.columns.recipes import Parser
from dask_tfrecord.errors import CorruptRecordError, Place, SchemaError
from dask_tfrecord.features import Feature
from dask_tfrecord.records.framing import Window
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.files import Shard, Shards

__all__ = ["checked_chunks", "count_records", "read_tfrecord"]

# Stored bytes become at most so many times as many, unless somebody means to: nobody has to look at small shards.
_MOST_RATIO = 64


def read_tfrecord(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
    *,
    sequence_features: Mapping[str, Feature] | None = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    chunks: str | int = "auto",
    counts: str | Sequence[int] | None = "auto",
    compression: str | None = "infer",
    errors: str = "raise",
    fill_values: Mapping[str, Any] | None = None,
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Open TFRecord shards as lazy dask arrays.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, ``name@8`` or ``name-?????-of-00008`` template, or a list. Shards come in
        natural order; a list keeps its own. A directory that TensorFlow Datasets wrote (``…/mnist/3.0.1``, or
        ``…/mnist`` if there is one version) is read by its metadata.
    features : mapping of str to feature, Schema, str or os.PathLike, optional
        What to read, as for `tf.io.parse_example`: feature classes of this library or of `tf.io`; or the path of a
        file that says so, as for `read_schema` (``"schema.pbtxt"``). By default what the metadata of TFDS say, or
        inferred from the first records of some shards. The lengths of `FixedLenSequenceFeature` that are not given are
        counted: those features are read once.
    sequence_features : mapping of str to feature, optional
        The feature lists of SequenceExamples, as for `tf.io.parse_sequence_example`; `features` are then those of the
        context. The number of steps is ``NAME.lengths``.
    columns : sequence of str, optional
        Only these features.
    split : str, optional
        The split of a TFDS data set, as `tensorflow_datasets.load` takes it: ``"train"``, ``"train+test"``,
        ``"train[:10%]"``, ``"train[100:200]"``, ``"test[2shard]"``, ``"all"``. Needed if there are several.
    chunks : "auto", "shard", int or str, default "auto"
        Rows per chunk: ``"auto"`` takes a chunk per shard, splits those whose block would pass dask's
        ``array.chunk-size`` and joins tiny ones past 20,000 chunks; ``"shard"`` takes exactly one per shard; an int is
        that many rows, across shards; a size such as ``"64 MiB"`` splits and joins to that many decoded bytes.
    counts : "auto", "scan", sequence of int or None, default "auto"
        Records per shard. ``"scan"`` walks the record headers of every shard, in parallel on the active scheduler, and
        so does ``"auto"``, unless the metadata of TFDS tell, or an index beside the shard that fits it
        (`build_index`); metadata, or a sequence, are taken at their word, and checked when shards are read. None counts
        nothing, and chunks are of unknown sizes: uncompressed shards are cut by bytes, and each task finds the first
        record that begins in its part by the CRC of the header.
    compression : {"infer", None, "gzip", "zlib"}
        ``"infer"`` looks at the bytes, never at the name.
    errors : {"raise", "skip", "fill"}
        What becomes of records whose framing or CRCs are damaged. ``"skip"`` drops them, and ``"fill"`` puts rows of
        default values in their places: as many as are known to be lost (an index tells, see `build_index`), else one
        for each range of bytes. For both every record is checked now, in parallel on the active scheduler, so that the
        number of rows is exact; neither goes with ``check_crc=False``, ``counts=None`` or a sequence of counts.
        `verify` says what is lost. A record that holds and is not what the features say is an error in any case.
    fill_values : mapping of str to value, optional
        For ``errors="fill"``: the value of a lost row, for columns whose features have no ``default_value`` or another
        one is wanted.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    Dataset
        Nothing is decoded yet, but for a few records where chunks are cut by size and rows differ in length.

    Raises
    ------
    ShardNotFoundError
        If nothing is there. A `FileNotFoundError` too.
    SchemaError
        If features can't be inferred, a column is not among them, there is no such split, or a column has no value to
        fill lost rows with.
    CorruptRecordError
        If a record header does not hold, or a shard is cut off, and ``errors="raise"``.
    ValueError
        If an argument has another value than those above.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> ds["label"].mean().compute() >= 0
    np.True_
    """
    # All that can be said of the arguments by themselves comes before files are looked at.
    refuse_query_planning()
    rows_or_bytes = checked_chunks(chunks, counts is not None)
    _check_columns(columns)
    _check_errors(errors, fill_values, check_crc, counts)
    found = find_collection(urlpath, split, compression=compression, storage_options=storage_options)
    if isinstance(features, str | os.PathLike):
        features = read_schema(features, storage_options=storage_options)
    if errors != "raise":
        held = HeldRecords.find(found.shards)
        schema = _schema(found, features, sequence_features, columns, held.infer)
        return _mended(found, held, schema, rows_or_bytes, None if errors == "skip" else fill_values or {})
    schema = _schema(found, features, sequence_features, columns, lambda: infer_examples(found.shards))
    told = found.counts(counts)
    if told is None:
        return _uncounted(found, schema, check_crc, rows_or_bytes)
    if told is counts or isinstance(told, str):
        collection = count_records(found.shards, told, check_crc)
    else:
        # What the metadata say is enough to plan; indexes say where records are.
        collection = Collection.indexed(*mark_shards(found.shards, _checked(told, found.shards), check_crc=check_crc))
    found.check(collection)
    schema = with_lengths(collection, schema, check_crc)
    source = RecordSource.make(collection, Parser(schema), range(collection.nrows), check_crc)
    backing = _planned(source, found, rows_or_bytes)
    return Dataset(backing, list(source.schema))


def _mended(
    found: Found,
    held: HeldRecords,
    schema: Schema,
    chunks: str | int | float,
    fill_values: Mapping[str, Any] | None,
) -> Dataset:
    """Open the records that hold; with rows in the places of the others, if there are values for them."""
    collection = held.collection
    schema = with_lengths(collection, schema, True)
    records = RecordSource.make(collection, Parser(schema), range(collection.nrows), True)
    source = records if fill_values is None else FilledSource.make(records, held.reports, fill_values)
    found.check(source.collection)
    return Dataset(_planned(source, found, chunks), list(source.schema))


def _planned(source: RecordSource | FilledSource, found: Found, chunks: str | int | float) -> Lazy:
    """Cut the rows into chunks; those of a part of the shards are cut as the shards would be."""
    rows = found.rows
    if rows is not None and isinstance(chunks, int):
        source, rows = source.select(rows), None
    borders = _borders(source, chunks)
    backing = Lazy(source, borders, len(borders) - 1)
    return backing if rows is None else backing.rows(rows)


def _uncounted(found: Found, schema: Schema, check_crc: bool, chunks: str | int | float) -> Dataset:
    if found.rows is not None:
        raise ValueError("a part of a split needs counted records: counts=None reads whole splits alone")
    shards = found.shards
    for name, feature in open_lengths(schema).items():
        raise SchemaError(f"feature {name!r}: with counts=None nothing is counted; say how long {feature} is: length=")
    parser = Parser(schema)
    size = chunks if isinstance(chunks, float) else _chunk_size()
    small = len(shards) <= MOST_CHUNKS and shards.sizes.max() * _MOST_RATIO <= size
    if chunks == "shard" or (chunks == "auto" and small):
        plan = ByteChunks.by_shard(shards)
    else:
        ratio = decoded_ratio(shards, parser, check_crc)
        closed = closed_shards(shards, size / ratio)
        plan = ByteChunks.planned(shards, ratio, size, closed, coalesce=chunks != "auto")
    source = UncountedSource(plan, parser, check_crc)
    return Dataset(Lazy(source, None, len(plan.borders) - 1), list(source.schema))


def _chunk_size() -> float:
    return _nbytes(dask.config.get("array.chunk-size", "128 MiB")) or 128 << 20


def _check_columns(columns: Sequence[str] | None) -> None:
    if isinstance(columns, str):
        raise SchemaError(f"columns is a list of names; got the string {columns!r}")
    if columns is not None and len(set(columns)) < len(columns):
        raise SchemaError(f"columns are picked once each; got {list(columns)}")


def _check_errors(
    errors: str, fill_values: Mapping[str, Any] | None, check_crc: bool, counts: str | Sequence[int] | None
) -> None:
    if errors not in ("raise", "skip", "fill"):
        raise ValueError(f"errors is 'raise', 'skip' or 'fill'; got {errors!r}")
    if fill_values is not None and errors != "fill":
        raise ValueError(f"fill_values are for errors='fill'; got errors={errors!r}")
    if errors == "raise":
        return
    if not check_crc:
        raise ValueError(f"errors={errors!r} finds damage by CRCs: it does not go with check_crc=False")
    if counts is None:
        raise ValueError(f"errors={errors!r} needs counted records: it does not go with counts=None")
    if not isinstance(counts, str):
        raise ValueError(
            f"errors={errors!r} counts the records that hold: counts is 'auto' or 'scan'; got {counts!r:.100}"
        )


def _schema(
    found: Found,
    features: Mapping[str, Feature] | None,
    sequence_features: Mapping[str, Feature] | None,
    columns: Sequence[str] | None,
    infer: Callable[[], Schema],
) -> Schema:
    for name, given in (("features", features), ("sequence_features", sequence_features)):
        if given is not None and not isinstance(given, Mapping):
            raise SchemaError(f"{name} is a mapping of names to features, or a Schema; got {given!r:.100}")
    if features is None and sequence_features is None:
        schema = found.schema() or infer()
    elif isinstance(features, Schema) and sequence_features is None:
        schema = features
    else:
        schema = Schema(features or {}, sequence_features=sequence_features)
    return schema if columns is None else schema.select(columns)


def count_records(shards: Shards, counts: str | Sequence[int], check_crc: bool) -> Collection:
    """Count the records of shards, in parallel on the active scheduler, or take the user's counts."""
    if not isinstance(counts, str):
        return Collection.counted(shards, _checked(counts, shards))
    if counts not in ("auto", "scan"):
        raise ValueError(f"counts is 'auto', 'scan', a sequence of ints or None; got {counts!r}")
    return Collection.indexed(*index_shards(shards, sidecars=counts == "auto", check_crc=check_crc))


def _checked(counts: Sequence[int], shards: Shards) -> list[int]:
    numbers = _numbers(counts, len(shards))
    # A shard without records is never read, so nothing would tell of records that it has.
    for place in np.flatnonzero((np.array(numbers, np.int64) == 0) & (shards.sizes > 0)).tolist():
        _check_empty(shards[place])
    return numbers


def _numbers(counts: Sequence[int], shards: int) -> list[int]:
    try:
        numbers = [operator.index(count) for count in counts]
    except TypeError:
        raise ValueError(f"counts is 'auto', 'scan', a sequence of ints or None; got {counts!r:.100}") from None
    if len(numbers) != shards:
        raise ValueError(f"counts is one number of records per shard, {shards} of them; got {len(numbers)}")
    if min(numbers, default=0) < 0:
        raise ValueError(f"counts is no or more records per shard; got {min(numbers)}")
    return numbers


def _check_empty(shard: Shard) -> None:
    with Window(shard) as window:
        if not window.exhausted:
            raise CorruptRecordError(
                "no records were expected, and bytes are there: the counts given are wrong", Place(shard.path, 0, 0)
            )


def checked_chunks(chunks: object, counted: bool) -> str | int | float:
    """Check the argument `chunks`: a number of rows, bytes as a float, "auto" or "shard"."""
    valid = f"chunks is 'auto', 'shard', a number of rows or a size such as '64 MiB'; got {chunks!r}"
    if isinstance(chunks, bool) or not isinstance(chunks, str | Integral):
        raise ValueError(valid)
    if chunks in ("auto", "shard"):
        return str(chunks)
    if not isinstance(chunks, str):
        if not counted:
            raise ValueError(f"chunks={chunks!r} needs counted records; with counts=None chunks are cut by bytes")
        if chunks < 1:
            raise ValueError(f"a chunk has one row or more; got chunks={chunks}")
        return int(chunks)
    # Without a number dask would take one of the unit.
    nbytes = _nbytes(chunks) if any(char.isdigit() for char in chunks) else None
    if nbytes is None:
        raise ValueError(valid)
    if nbytes < 1:
        raise ValueError(f"a chunk has one byte or more; got chunks={chunks!r}")
    return nbytes


def _nbytes(size: str | int) -> float | None:
    """Bytes of a size such as "64 MiB", None if it is no size."""
    try:
        return float(parse_bytes(size))
    except ValueError:
        return None


def _borders(source: RecordSource | FilledSource, chunks: str | int | float) -> NDArray[np.int64]:
    collection = source.collection
    if isinstance(chunks, int):
        return borders_by_rows(source.nrows, chunks)
    if chunks == "shard":
        return borders_by_shard(collection)
    if isinstance(chunks, float):
        return borders_by_bytes(collection, _row_nbytes(source), chunks, coalesce=True)
    return borders_by_bytes(collection, _row_nbytes(source), _chunk_size(), coalesce=False)


def _row_nbytes(source: RecordSource | FilledSource) -> NDArray[np.float64]:
    """Guess the decoded bytes of each shard's rows: known where they are dense, else in the ratio of the first ones."""
    collection = source.collection
    features = source.schema.values()
    dense = sum(feature.block_dtype.itemsize * int(np.prod(feature.block_shape)) for feature in features)
    if all(feature.block_dtype.kind not in "OT" for feature in features):
        return np.full(len(collection.shards), float(max(dense, 1)))
    if not collection.nrows:
        return np.ones(len(collection.shards))
    blocks = probe_rows(source, tuple(source.schema))
    probed = len(next(iter(blocks.values())))
    stored = collection.nbytes / np.maximum(collection.counts, 1)
    shard = int(np.flatnonzero(collection.counts)[0])
    ratio = sum(map(block_nbytes, blocks.values())) / probed / stored[shard]
    nbytes: NDArray[np.float64] = np.maximum(stored * ratio, 1.0)
    return nbytes
