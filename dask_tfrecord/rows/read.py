"""`read_tfrecord`: find shards, count records, infer features and plan the chunks of a lazy `Dataset`."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.decoder import Decoder, decode_blocks
from dask_tfrecord.columns.records import features_of_columns, named_columns, wanted_schema
from dask_tfrecord.errors import CorruptRecordError, Location, SchemaError, TFRecordError, plural, warn_caller
from dask_tfrecord.features import Feature
from dask_tfrecord.features.images.codecs import require_pillow
from dask_tfrecord.features.listed import FixedLenSequenceFeature, is_padded
from dask_tfrecord.features.metadata.labels import read_labels
from dask_tfrecord.features.metadata.splits import ResolvedPath, resolve_collection
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.messages import DecodeError, SequenceExample
from dask_tfrecord.options import SAMPLE
from dask_tfrecord.records.index import RecordRange, iterate_payloads
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.chunk_borders import (
    MOST_CHUNKS,
    ByteChunks,
    borders_by_bytes,
    checked_chunks,
    choose_borders,
    chunk_size,
)
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.rows.counting import find_unsplittable, index_entries_of_shards, index_shards
from dask_tfrecord.rows.damaged_records import checked_errors, intact_records, runs_of_shard, warn_of_damage
from dask_tfrecord.rows.lengths import Measuring, kept_lengths
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows, RecordSource, UncountedSource, decoded_ratio, probe_rows
from dask_tfrecord.rows.steps import Partitioned, StepRows
from dask_tfrecord.rows.value_errors import FilledSource, ValueErrors, checked_modes
from dask_tfrecord.rows.where import Filters, filter_rows, where
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.listing import find_partitions, within_folders
from dask_tfrecord.shards.shard import Shards

# Stored bytes that a task reads, and that it decodes at once.
_BLOCK_NBYTES = 4 << 20
# Records that are searched for feature lists when some are requested.
_EXAMPLES_PROBED = 8


def _count_lengths(collection: Collection, schema: Schema, check_crc: bool) -> Schema:
    """Set missing lengths to the longest record's, counted in parallel on the active scheduler."""
    wanted = open_lengths(schema)
    if not wanted:
        return schema
    stored = np.maximum(collection.nbytes / np.maximum(collection.counts, 1), 1.0)
    borders = borders_by_bytes(collection, stored, limits().count_task_nbytes, coalesce=True)
    rows = max(1, int(_BLOCK_NBYTES / stored.max()))
    spans = pairwise(borders.tolist())
    calls = [partial(_longest_record, rows=rows, check_crc=check_crc, start=start, stop=stop) for start, stop in spans]
    found = compute_with_progress(calls, "Counting steps", collection, Decoder(schema.select(wanted), "steps"))
    lengths = {name: max(block[name] for block in found) for name in wanted}
    counted = {name: replace(feature, length=lengths[name]) for name, feature in wanted.items()}
    return schema.replaced({**schema, **counted}, records=schema)


def _longest_record(
    collection: Collection, decoder: Decoder, rows: int, check_crc: bool, start: int, stop: int
) -> dict[str, int]:
    """Return the steps of the longest record of some rows, decoded `rows` at a time."""
    names = tuple(decoder.columns)
    longest = dict.fromkeys(names, 0)
    blocks_of_runs: Iterator[tuple[Iterable[RecordRange], int, dict[str, NDArray[Any]]]] = (
        (collection.runs(first, min(first + rows, stop)), min(rows, stop - first), {})
        for first in range(start, stop, rows)
    )
    for blocks in decode_blocks(blocks_of_runs, decoder, names, check_crc=check_crc):
        for name, block in blocks.items():
            longest[name] = max(longest[name], int(np.asarray(block).max(initial=0)))
    return longest


_log = logging.getLogger(__name__)

# Ratio of decoded to stored bytes that only crafted data exceeds: smaller shards need no probe.
_MOST_RATIO = 64


def read_rows(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
    *,
    sequence_features: Mapping[str, Feature] | None = None,
    example_features: Mapping[str, Feature] | None = None,
    message: Any = None,
    columns: Sequence[str] | None = None,
    filters: Sequence[Any] | None = None,
    split: str | None = None,
    partitioning: str | None = None,
    chunks: str | int = "auto",
    counts: str | Sequence[int] | None = "auto",
    compression: str | None = "infer",
    errors: str = "raise",
    value_errors: Mapping[str, str] | str = "raise",
    fill_values: Mapping[str, Any] | None = None,
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Rows:
    """Open TFRecord shards as lazy dask arrays.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        A path, fsspec URL, glob, directory, template (``name@8``, ``name-?????-of-00008``), or a list of these. Shards
        are in natural order; a list keeps its order. If TensorFlow Datasets wrote the directory (``…/mnist/3.0.1``, or
        ``…/mnist`` with a single version), its metadata are used.
    features : mapping of str to feature, Schema, str or os.PathLike, optional
        Features to read, as for `tf.io.parse_example`: feature classes of this library or of `tf.io`; or the path of a
        schema file, as for `Schema.read` (``"schema.pbtxt"``). By default, they come from TFDS metadata, or from what
        `to_tfrecord` stored next to the shards of an xarray Dataset; otherwise they are inferred from the first records
        of some shards. If a `FixedLenSequenceFeature` lacks a length, its records are read once to find the longest.
    sequence_features : mapping of str to feature, optional
        Feature lists of SequenceExamples, as for `tf.io.parse_sequence_example`; `features` then describe the context.
        The column ``NAME.lengths`` has the number of steps.
    example_features : mapping of str to feature, optional
        Features of each item in ExampleListWithContexts (ELWC) of TF-Ranking, by key; `features` then describe the
        context. Feature ``KEY`` becomes the column ``examples/KEY``, with a row of items per record: a
        `FixedLenFeature` of shape ``s`` becomes ragged with shape ``(-1, *s)``, and a `VarLenFeature` becomes nested
        rows. An item that lacks a key gets the ``default_value``. ``ds.explode("examples")`` makes one row per item.
        Can't be combined with `sequence_features`.
    message : message class, Descriptor or str, optional
        Type of the records if they are protobuf messages other than Examples: a generated class, its descriptor,
        ``"file.desc:package.Message"`` (from a descriptor set that ``protoc --include_imports --descriptor_set_out``
        wrote), or ``"file.proto:package.Message"``, which needs ``pip install 'dask-tfrecord[proto]'``. `features` are
        then `ProtoFeature`; by default, all fields become columns, named by their paths. Fields of a repeated message
        become a group, whose columns have a row of items per record. Fields that the type does not know are skipped.
    columns : sequence of str, optional
        Features to read; by default all.
    filters : list of tuple or list of list of tuple, optional
        Conditions for the rows to keep, as for `Dataset.where`: ``[("label", "==", 3)]``. The columns that they compare
        need not be in `columns`. They are read now, so that the number of rows is exact, unless ``counts=None``.
    split : str, optional
        Split of a TFDS data set, in the syntax of `tensorflow_datasets.load`: ``"train"``, ``"train+test"``,
        ``"train[:10%]"``, ``"train[100:200]"``, ``"test[2shard]"``, ``"all"``. You must give it if there are several
        splits.
    partitioning : {None, "hive"}
        ``"hive"`` adds a text column for each directory ``KEY=VALUE`` in the paths, like ``date=2024-01-31``, as Spark
        and Hive name them; `urlpath` may be the directory above. All shards must have the same keys, each once. Can't
        be combined with ``counts=None`` or `value_errors`.
    chunks : "auto", "shard", int or str, default "auto"
        Rows per chunk. ``"auto"`` makes one chunk per shard, but splits shards that, judging by their first rows, take
        more than 64 MiB (or dask's ``array.chunk-size``, if you changed it from 128 MiB), and joins small shards past
        20,000 chunks. ``"shard"`` makes exactly one chunk per shard. An int is the number of rows, across shards. A
        size such as ``"64 MiB"`` splits and joins shards to that many decoded bytes.
    counts : "auto", "scan", sequence of int or None, default "auto"
        Records per shard. ``"auto"`` takes counts from TFDS metadata or from an index next to the shard
        (`build_index`), and scans the record headers of other shards in parallel on the active scheduler. ``"scan"``
        scans all shards. Counts from metadata are checked when the end of a shard is read. If you give a sequence of
        counts, each is checked when its shard is read: at the end, or by scanning its headers once per process. None
        counts nothing: chunks have unknown sizes, uncompressed shards are split by bytes, and each task finds its first
        record by the CRC of the header.
    compression : {"infer", None, "gzip", "zlib", "zstd"}
        ``"infer"`` detects the compression from the first bytes, not from the file name.
    errors : {"raise", "skip", "fill"}
        Handling of records with damaged framing or CRCs. ``"raise"`` stops with an error, and ``"skip"`` drops the
        records. ``"fill"`` replaces them with rows of default values: as many as were lost if an index lists them (see
        `build_index`), otherwise one per damaged range of bytes. Both check all records now, in parallel on the active
        scheduler, so that the number of rows is exact; they can't be combined with ``check_crc=False``, ``counts=None``
        or a sequence of counts. `verify` reports the damage. An intact record that does not match the features always
        raises an error, unless `value_errors` accepts it.
    value_errors : {"raise", "fill", "mark", "skip"} or mapping of str to these, default "raise"
        Handling of values that have the right kind and number but can't be decoded: a truncated JPEG, bytes of the
        wrong length for a `RawFeature`, text that isn't UTF-8. Give one word for all columns, or a mapping by column.
        ``"skip"`` leaves out the rows of these values. ``"fill"`` replaces the values with fill values, and in a ragged
        group also the same row of the other columns; ``"mark"`` also adds a column ``NAME.valid``, which is False for
        filled values. The columns are decoded now, in parallel on the active scheduler, so that the number of rows is
        exact; with `filters`, the columns that they compare come first, and the others are decoded for the rows that
        remain. A log entry lists how many values were filled or left out, and the first error. Can't be combined with
        ``counts=None``.
    fill_values : mapping of str to value, optional
        Values for the rows that ``errors="fill"`` and `value_errors` fill, for columns whose feature lacks a
        ``default_value``, or to override it.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    storage_options : mapping, optional
        Options for the fsspec file system. ``{"store": store}``, with an obstore store, reads paths in that store.

    Returns
    -------
    Dataset
        Values are decoded when you compute. Only the columns that `filters` compare are decoded now, and a few records
        if chunks are cut by size and rows are ragged.

    Raises
    ------
    ShardNotFoundError
        If no shard is found. This is also a `FileNotFoundError`.
    SchemaError
        If features can't be inferred, if a column or split does not exist, if a column has no value to fill lost rows,
        if a filter does not fit its column, or if the message type or a path in it can't be found.
    CorruptRecordError
        If the header of a record is damaged or a shard is truncated, and ``errors="raise"``.
    ValueError
        If an argument has an invalid value.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> float(ds["label"].mean().compute())
    2.0
    """
    # Arguments are checked before files are opened.
    if isinstance(urlpath, Mapping) and isinstance(features, str | os.PathLike | list):
        raise TypeError(f"the path comes before the features: write dtf.read_tfrecord({features!r:.200}, features)")
    if not isinstance(check_crc, bool):
        raise TypeError(f"check_crc must be True or False; got {check_crc!r:.100}")
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(f"storage_options must be a dict of fsspec options; got {storage_options!r:.100}")
    rows_or_bytes = checked_chunks(chunks, counted=counts is not None)
    _check_columns(columns)
    tolerated = checked_modes(value_errors, counts)
    _check_together(errors, tolerated, fill_values, check_crc, counts, partitioning)
    if filters is not None:
        Filters.parse(filters)
    if partitioning is not None:
        urlpath = within_folders(urlpath, storage_options)
    resolved = resolve_collection(urlpath, split, compression=compression, storage_options=storage_options)
    partitions = {} if partitioning is None else find_partitions(resolved.shards)
    given = wanted_schema(features, sequence_features, example_features, message, storage_options)
    # Filters may test columns that are not read, and directories are columns too.
    whole = filters is not None or bool(partitions)
    picked = None if whole else columns
    if errors != "raise":
        # The intact records, with rows for the lost ones if they are filled.
        collection, reports = intact_records(resolved.shards)
        warn_of_damage(collection.shards, reports, errors)
        schema = _count_lengths(collection, _find_schema(resolved, given, picked, collection), check_crc=True)
        records = RecordSource.from_collection(collection, Decoder(schema), range(collection.nrows), check_crc=True)
        intact = records if errors == "skip" else FilledSource.from_reports(records, reports, fill_values)
        resolved.check(intact.collection.counts)
        rows = _plan_chunks(intact, resolved, rows_or_bytes, partitions)
    else:
        schema, known = _find_schema(resolved, given, picked, None), resolved.counts(counts)
        if known is None:
            rows = _open_uncounted(resolved, schema, check_crc, rows_or_bytes)
        else:
            source = _counted_source(resolved, schema, known, check_crc, is_given=known is counts)
            rows = _plan_chunks(source, resolved, rows_or_bytes, partitions)
    wanted = rows.names
    if columns is not None:
        assert rows.schema.records is not None
        wanted = named_columns(rows.schema.records, columns)
    elif isinstance(features, Schema) and features.records is not None:
        wanted = tuple(features)
        if isinstance(rows.source, RecordSource | FilledSource):
            _warn_of_other_form(rows.source.collection, rows.source.decoder.schema, features.records)
    if tolerated != "raise":
        return _tolerate_values(rows, tolerated, fill_values, wanted, filters)
    kept = rows if filters is None else where(rows, filters)
    return kept if wanted == kept.names else kept.select_columns(wanted)


def _tolerate_values(
    rows: Rows,
    modes: Mapping[str, str] | str,
    fill_values: Mapping[str, Any] | None,
    wanted: tuple[str, ...],
    filters: Sequence[Any] | None,
) -> Rows:
    """Handle values that can't be decoded, first in the columns that filters compare."""
    assert isinstance(rows.source, RecordSource | FilledSource)
    mask = None if filters is None else Filters.parse(filters).resolve(rows.schema)
    tested = () if mask is None else mask.columns
    tolerance = ValueErrors.parse(rows.source.decoder, modes, fill_values, {*wanted, *tested})
    kept = rows if mask is None else filter_rows(tolerance.apply(rows, tested), mask, tested)
    kept = tolerance.apply(kept, [name for name in wanted if name not in tested])
    marks = [name for name in kept.schema if name.removesuffix(".valid") in wanted and name not in rows.schema]
    return kept if (*wanted, *marks) == kept.names else kept.select_columns([*wanted, *marks])


def _counted_source(
    found: ResolvedPath, schema: Schema, counts: str | Sequence[int], check_crc: bool, *, is_given: bool
) -> RecordSource:
    """Count records without damage; `is_given` if the user specified the counts, and not the metadata."""
    if is_given or isinstance(counts, str):
        # Open lengths change the schema.
        collection = count_records(found.shards, counts, check_crc, None if open_lengths(schema) else schema)
    else:
        # Counts of the metadata are enough to plan chunks; indexes add index entries.
        collection = Collection.from_indexes(
            *index_entries_of_shards(found.shards, _checked_counts(counts, found.shards), check_crc=check_crc)
        )
    found.check(collection.counts)
    _warn_of_examples(collection, schema)
    schema = _count_lengths(collection, schema, check_crc)
    return RecordSource.from_collection(collection, Decoder(schema), range(collection.nrows), check_crc=check_crc)


def _first_records(collection: Collection) -> list[Any]:
    """Return the first records as SequenceExamples, which have the context of Examples; an empty list for others."""
    number = min(_EXAMPLES_PROBED, collection.nrows)
    if not number:
        return []
    with closing(iterate_payloads(collection.runs(0, number), check_crc=False)) as payloads:
        try:
            return [SequenceExample.FromString(payload) for _, payload in payloads]
        except (DecodeError, UnicodeDecodeError, TFRecordError):
            return []  # reading the rows raises the error


def _warn_of_other_form(collection: Collection, schema: Schema, read: Schema) -> None:
    """Warn if records lack all keys that a data set made from its columns: rows would be empty."""
    if schema.message not in ("Example", "SequenceExample") or schema == read:
        return
    own = _keys_of(schema) - _keys_of(read)
    records = _first_records(collection) if own else []
    if records and not any(own & {*each.context.feature, *each.feature_lists.feature_list} for each in records):
        listed = ", ".join(map(repr, sorted(own)[:5]))
        warn_caller(
            f"{collection.shards.summary}: {_first_have(len(records))} none of the keys {listed}, which the data set "
            f"of this schema writes: give the features that these records have"
        )


def _first_have(number: int) -> str:
    return "the first record has" if number == 1 else f"the first {number} records have"


def _keys_of(schema: Schema) -> set[str]:
    """Return the keys of records that columns are read from."""
    return {spec.key for column in Decoder(schema).decoders.values() for spec in column.specs}


def _warn_of_examples(collection: Collection, schema: Schema) -> None:
    """Warn if feature lists are read from records without them: rows would be empty."""
    lists = schema.sequence_features
    records = _first_records(collection) if lists else []
    if not lists or not records:
        return
    if not any(record.feature_lists.feature_list for record in records):
        names = [name for name in lists if any(name in each.context.feature for each in records)]
        advice = f"; {names[0]!r} is a feature of an Example: specify it in features" if names else ""
        first = _first_have(len(records))
        warn_caller(
            f"{collection.shards.summary}: {first} no feature lists, so rows of sequence_features have length 0{advice}"
        )


def open_lengths(schema: Schema) -> dict[str, FixedLenSequenceFeature]:
    """Return the features without a length."""
    return {name: feature for name, feature in schema.items() if is_padded(feature) and feature.length is None}


def _plan_chunks(
    source: RecordSource | FilledSource,
    found: ResolvedPath,
    chunks: str | int | float,
    partitions: Mapping[str, Sequence[str]],
) -> Rows:
    """Plan the chunks of all rows; a part of a split keeps the borders that its shards have."""
    rows = found.rows
    if rows is not None and isinstance(chunks, int):
        # Chunks of n rows are counted from the first row of the part.
        source, rows = source.select(rows), None
    borders = choose_borders(source.collection, len(source.rows), chunks, partial(_shard_row_nbytes, source))
    _log_opened(found.shards, f"{source.nrows:,}", len(borders) - 1, source.schema)
    read: CountedRows = source
    if partitions:
        read = StepRows(source, Partitioned.of_shards(source.schema, source.collection.starts, partitions))
    every = Rows.of_source(read, borders)
    return every if rows is None else every.select(rows)


def _open_uncounted(found: ResolvedPath, schema: Schema, check_crc: bool, chunks: str | int | float) -> Rows:
    """Open shards without counting, in chunks of about equal bytes."""
    if found.rows is not None:
        raise ValueError("a part of a split needs counted records: counts=None reads whole splits only")
    shards = found.shards
    for name, feature in open_lengths(schema).items():
        raise SchemaError(
            f"feature {name!r}: counts=None counts no lengths: specify length= of {feature}, or open with counts='auto'"
        )
    plan = Decoder(schema)
    size = chunks if isinstance(chunks, float) else chunk_size()
    small = len(shards) <= MOST_CHUNKS and shards.sizes.max() * _MOST_RATIO <= size
    if chunks == "shard" or (chunks == "auto" and small):
        byte_chunks = ByteChunks.by_shard(shards)
    else:
        ratio = decoded_ratio(shards, plan, check_crc)
        unsplittable = find_unsplittable(shards, size / ratio)
        byte_chunks = ByteChunks.by_size(shards, ratio, size, unsplittable, coalesce=chunks != "auto")
    source = UncountedSource(byte_chunks, plan, check_crc)
    _log_opened(shards, "uncounted", len(byte_chunks.borders) - 1, schema)
    return Rows.of_source(source, None, len(byte_chunks.borders) - 1)


def _log_opened(shards: Shards, records: str, nchunks: int, schema: Schema) -> None:
    if _log.isEnabledFor(logging.INFO):
        nbytes = f"{int(shards.sizes.sum()):,}"
        parts = plural(len(shards), "shard"), nbytes, records, plural(len(schema), "feature"), plural(nchunks, "chunk")
        _log.info("opened %s: %s of %s bytes, %s records of %s, %s", shards.summary, *parts)


def _check_columns(columns: Sequence[str] | None) -> None:
    if isinstance(columns, str):
        raise SchemaError(f"columns must be a list of names; got the string {columns!r}: write columns=[{columns!r}]")
    if columns is not None and len(set(columns)) < len(columns):
        raise SchemaError(f"each column can be picked only once; got {list(columns)}")


def _check_together(
    errors: str,
    tolerated: Mapping[str, str] | str,
    fill_values: Mapping[str, Any] | None,
    check_crc: bool,
    counts: str | Sequence[int] | None,
    partitioning: str | None,
) -> None:
    """Check `errors=` and `partitioning=`, and refuse options that they do not work with."""
    if partitioning not in (None, "hive"):
        raise ValueError(f"partitioning must be None or 'hive'; got {partitioning!r}")
    if partitioning is not None and counts is None:
        raise ValueError("partitioning='hive' needs counted records: it cannot be combined with counts=None")
    if partitioning is not None and tolerated != "raise":
        raise ValueError("partitioning='hive' cannot be combined with value_errors: filter the rows by a function")
    checked_errors(errors, "raise", "skip", "fill")
    modes = tolerated.values() if isinstance(tolerated, Mapping) else (tolerated,)
    if fill_values is not None and errors != "fill" and not {"fill", "mark"} & {*modes}:
        raise ValueError(f"fill_values need errors='fill' or value_errors='fill'; got errors={errors!r}")
    if errors == "raise":
        return
    if not check_crc:
        raise ValueError(f"errors={errors!r} finds damage by CRCs: it cannot be combined with check_crc=False")
    if counts is None:
        raise ValueError(f"errors={errors!r} needs counted records: it cannot be combined with counts=None")
    if not isinstance(counts, str):
        raise ValueError(
            f"errors={errors!r} counts the intact records: counts must be 'auto' or 'scan'; got {counts!r:.100}"
        )


def _find_schema(
    found: ResolvedPath, given: Schema | None, columns: Sequence[str] | None, intact: Collection | None
) -> Schema:
    """Return the schema of the caller, the metadata, the labels of an xarray Dataset, or inference."""
    if given is None:
        schema = found.schema()
        if not schema:
            labels = read_labels(found.shards[0])
            if labels is not None and labels.schema:
                schema = labels.schema
            else:
                schema = found.with_classes(_inferred_schema(found.shards, intact))
        return schema if columns is None else features_of_columns(schema, columns)
    given = given if columns is None else features_of_columns(given, columns)
    # A missing Pillow is reported before anything is computed. Metadata may describe images that are not read.
    for name, feature in given.items():
        if feature.is_image:
            try:
                require_pillow()
            except ImportError as error:
                raise ImportError(f"feature {name!r} is {feature}: {error}", name="PIL") from error
    return given


def _inferred_schema(shards: Shards, intact: Collection | None) -> Schema:
    """Infer the features from a sample of the records, the intact ones if they were looked for."""
    # Imported here: inference loads protobuf, which a known schema does not need.
    from dask_tfrecord.features.inference.report import infer_examples, sample_records

    runs_of = None if intact is None else partial(runs_of_shard, intact)
    return infer_examples(sample_records(shards, SAMPLE, runs_of), shards)


def count_records(
    shards: Shards, counts: str | Sequence[int], check_crc: bool, schema: Schema | None = None
) -> Collection:
    """Count the records of shards in parallel on the active scheduler, or check the counts of the user.

    Remote shards without an index are read whole for it: the ragged columns of a schema are measured with them.
    """
    if not isinstance(counts, str):
        return Collection.from_counts(shards, _checked_counts(counts, shards))
    if counts not in ("auto", "scan"):
        raise ValueError(f"counts must be 'auto', 'scan', a sequence of ints or None; got {counts!r}")
    measuring = None if schema is None else Measuring.of_remote(shards, schema)
    found, indexes = index_shards(shards, sidecars=counts == "auto", check_crc=check_crc, measuring=measuring)
    if measuring is not None:
        kept_lengths.keep(shards, measuring, indexes)
    return Collection.from_indexes(found, indexes)


def _checked_counts(counts: Sequence[int], shards: Shards) -> list[int]:
    """Check the record counts that a user gives, as far as this is possible without reading."""
    try:
        numbers = [operator.index(count) for count in counts]
    except TypeError:
        raise ValueError(f"counts must be 'auto', 'scan', a sequence of ints or None; got {counts!r:.100}") from None
    if len(numbers) != len(shards):
        raise ValueError(
            f"counts must be one number of records per shard, {len(shards):,} of them; got {len(numbers):,}"
        )
    if min(numbers, default=0) < 0:
        raise ValueError(f"counts must not be negative; got {min(numbers)}")
    # A shard with a count of 0 is never read, so a wrong count is only found here.
    for number in np.flatnonzero((np.array(numbers, np.int64) == 0) & (shards.sizes > 0)).tolist():
        with Window(shards[number]) as window:
            if not window.exhausted:
                raise CorruptRecordError(
                    "expected no records, found bytes: the specified count is wrong",
                    Location(shards.paths[number], 0, 0),
                )
    return numbers


def _shard_row_nbytes(source: RecordSource | FilledSource) -> NDArray[np.float64]:
    """Estimate decoded bytes per row of each shard: exact for dense columns, else by the ratio of the first rows."""
    collection = source.collection
    features = source.schema.values()
    dense = sum(feature.block_dtype.itemsize * int(np.prod(feature.block_shape)) for feature in features)
    if all(feature.block_dtype.kind not in "OT" for feature in features):
        return np.full(len(collection.shards), float(max(dense, 1)))
    if not collection.nrows:
        return np.ones(len(collection.shards))
    probed, nbytes_probed = probe_rows(source, tuple(source.schema))
    stored = collection.nbytes / np.maximum(collection.counts, 1)
    shard = int(np.flatnonzero(collection.counts)[0])
    ratio = sum(nbytes_probed.values()) / max(probed, 1) / stored[shard]
    nbytes: NDArray[np.float64] = np.maximum(stored * ratio, 1.0)
    return nbytes
