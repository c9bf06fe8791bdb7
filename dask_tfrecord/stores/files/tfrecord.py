"""`to_tfrecord` and `copy_tfrecord`: write columns, or records as they are, to TFRecord shards, one task per shard.

`dask_tfrecord.columns.encode` chooses the feature of each column and encodes the records.
`dask_tfrecord.stores.files.publish` makes each shard appear whole.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Unpack, cast

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, block_nbytes
from dask_tfrecord.columns.encode import Encoder, RecordStream, record_schema
from dask_tfrecord.columns.message_encode import ExampleEncoder, MessageEncoder, message_schema
from dask_tfrecord.columns.records import written_schema
from dask_tfrecord.errors import (
    FeatureError,
    Location,
    MemoryLimitError,
    SchemaError,
    Spelled,
    UnknownFeatureError,
    explain_missing,
    near_misses,
    plural,
    redact_url,
    warn_caller,
)
from dask_tfrecord.features import RawFeature
from dask_tfrecord.features.default_feature import listed_feature
from dask_tfrecord.features.images.codecs import require_pillow
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.inference.payload_type import parse_record, payload_error
from dask_tfrecord.features.metadata.labels import SUFFIX, read_labels
from dask_tfrecord.features.metadata.splits import ResolvedPath, resolve_collection
from dask_tfrecord.features.metadata.tfds_writer import TFDSMetadata, TFDSNames, tfds_groups
from dask_tfrecord.features.schema import Schema, schema_from_arguments
from dask_tfrecord.identity import file_key
from dask_tfrecord.options import CopyOptions, ShardOptions, TFRecordOptions, complete, with_options
from dask_tfrecord.records.framing import write_record
from dask_tfrecord.records.index import full_run, iterate_payloads
from dask_tfrecord.rows.chunk_borders import borders_by_rows, joined_parts
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.rows.damaged_records import checked_errors, intact_records, runs_left, warn_of_damage
from dask_tfrecord.rows.inputs import Inputs
from dask_tfrecord.rows.partitions import RecordPartition, inspect_shards, record_partitions
from dask_tfrecord.rows.read import read_rows
from dask_tfrecord.rows.rows import HasRows, Rows
from dask_tfrecord.rows.sources import CountedRows, GrowingSpans, RecordSource
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.compressions import has_access_points, normalize_compression, useless_index
from dask_tfrecord.shards.listing import find_sidecars
from dask_tfrecord.shards.objects import directory_of
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.shards.streams import ByteSink, indexing_library
from dask_tfrecord.stores.files.publish import Files, FileWrite, ShardNames
from dask_tfrecord.stores.files.samples import is_samples, with_empty_lists, write_blocks
from dask_tfrecord.stores.output import ShardWriteReport, WriteWork, check_mode, check_number
from dask_tfrecord.stores.output_names import warn_of_suffix
from dask_tfrecord.stores.units import RowTasks, check_group_lengths

# Decoded bytes of the blocks that a task reads at once.
_BLOCK_NBYTES = 2 << 20
# Larger blocks are read again in smaller spans: their rows are larger than the previous ones.
_MAX_BLOCK_NBYTES = 8 * _BLOCK_NBYTES

Encodings = str | Mapping[str, Any]


@with_options("dtf.to_tfrecord(ds, 'train.tfrecord')", ShardOptions, TFRecordOptions)
def to_tfrecord(
    arrays: Mapping[str, Any] | Iterator[Mapping[str, Any]] | list[Mapping[str, Any]],
    urlpath: str | os.PathLike[str],
    **options: Unpack[TFRecordOptions],
) -> Delayed | None:
    """Write rows to TFRecord shards, as Examples, SequenceExamples or other messages, in one task per shard.

    Parameters
    ----------
    arrays : Dataset, mapping of str to array-like, xarray Dataset or DataFrame of pandas or dask
        Rows to write, the same number in each array: dask, NumPy, Zarr and HDF5 arrays, lists, pandas Series, and
        ragged rows (lists of lists, `RaggedBlock`, object arrays of arrays). ``bytes``, ``bytearray`` and
        ``memoryview`` count as bytes. Numbers in Python lists get the dtype of their feature. Coordinates of an xarray
        Dataset along the rows become columns; dates are stored as int64, float64 as bytes, and ``FILE.xarray.json``
        next to each shard stores the dimensions, the other coordinates, dtypes and attributes. You can also pass the
        rows one by one, as a list or an iterator (like a generator) of mappings from names to values. Their features
        are `features`, or inferred from the first rows. Memory is bounded: records wait in the temporary directory of
        this machine until the iterator ends, and are then copied to the shards.
    urlpath : str or os.PathLike
        A template such as ``"out/train-{shard:05d}-of-{shards:05d}.tfrecord"``; a name without ``{shard}`` for a single
        shard; or a directory, which exists or whose name ends in ``/``. Missing directories are created.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If a shard exists and `mode` is ``"w-"``, or if there are shards of the same template with a different total
        number.
    SchemaError
        If the dtype or shape of a column does not fit its feature, or if a column needs a feature, because an Example
        can't store float64. If `message` has no field for a column, or a map lacks its keys. Also if an array contains
        masked or missing values, if an xarray Dataset has coordinates along other dimensions, or if the index of a
        DataFrame is not the row numbers.
    FeatureError
        If a value does not fit its feature: an integer is out of range for its dtype, or float32 would round a float.
        Also if columns of items, of a repeated message or, with `tfds`, of a group differ in their number of items in a
        record.
    ValueError
        If rows are not counted, if the name lacks ``{shard}`` but there are several shards, or if shards would replace
        their own input.
    ImportError
        If there are images to write and Pillow is not installed.

    Warns
    -----
    UserWarning
        If arrays have attributes, because records do not store them; for an xarray Dataset, only those that JSON can't
        represent. With `tfds`, if a group can't be written, because the name of a feature does not begin with that of
        the group, or because the feature does not list its items.

    Notes
    -----
    Shards are written to a hidden folder, and renamed when all of them are complete; after a failure, readers find what
    they found before. A task keeps one block of 2 MiB of rows and one block of records in memory, and for arrays in
    chunks also the chunks that contain its rows.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> ds.to_tfrecord("again/train-{shard:05d}-of-{shards:05d}.tfrecord", compression="gzip", mode="w")
    >>> dtf.read_tfrecord("again/train-*.tfrecord").nrows == ds.nrows
    True
    """
    options = complete(TFRecordOptions, options)
    if is_samples(arrays):
        _write_samples(cast(Any, arrays), urlpath, options)
        return None
    return plan_tfrecord(cast(Mapping[str, Any], arrays), urlpath, options).run()


def plan_tfrecord(
    arrays: Mapping[str, Any], urlpath: str | os.PathLike[str], options: TFRecordOptions, job: str | None = None
) -> FileWrite:
    """Plan what `to_tfrecord` writes, or the job of a token."""
    compression, tfds, storage_options = check_options(options), options["tfds"], options["storage_options"]
    given = schema_from_arguments(
        options["features"], options["sequence_features"], options["example_features"], options["message"]
    )
    rows, schema, labels = _rows_and_schema(arrays, given, keeps_float64=tfds is None)
    if tfds is not None and schema.message_type is not None:
        raise SchemaError(f"TFDS reads Examples, and the records are messages {schema.message_type.name}: omit tfds=")
    rows.check_counted()
    if not schema and rows.nrows:
        raise SchemaError(f"{plural(rows.nrows, 'record')} without a feature would be empty: there is no column")
    schema = schema.with_groups({} if tfds is None else _stored_groups(schema))
    encoder_class = ExampleEncoder if schema.message_type is None else MessageEncoder
    # The pixels of messages have the feature of their column.
    images = schema if schema.message_type is None else rows.schema
    encoder = encoder_class(schema, rows.schema, _image_encodings(options["encoding"], images))
    _check_pillow(images, encoder.encoding)
    metadata: TFDSMetadata | None = None
    if tfds is None:
        names = ShardNames.from_urlpath(urlpath, storage_options)
        _warn_of_name(names, "to_tfrecord", compression)
    else:
        assert isinstance(encoder, Encoder)
        names, metadata = _tfds_names(urlpath, tfds, encoder, options)
    names, mode = names.in_mode(options["mode"])
    if metadata is not None and metadata.listed not in (None, names.first):
        raise FileExistsError(
            f"{plural(names.first, 'shard')} of the split exist, and dataset_info.json lists {metadata.listed:,}: a "
            f"write that was killed left the others in {redact_url(names.directory)}, or shards are lost; remove those "
            f"that are not listed"
        )
    row_tasks = RowTasks(rows, uuid.uuid4().hex)
    borders = shard_borders(row_tasks.borders, options["records_per_shard"], names, lambda: row_tasks.row_sizes().read)
    spans = list(pairwise(borders.tolist()))
    files = Files(
        row_tasks.token,
        names,
        len(spans),
        mode,
        options["compute"],
        compression,
        options["index"],
        labels,
        metadata,
        resumable=job,
    )
    files.check_free()
    files.refuse_other_split()
    refuse_sources(files, rows.origin.get("files", ()))
    columns, paths = rows.names, files.paths
    units = [(span, columns, (path, *span)) for span, path in zip(spans, paths, strict=True)]
    return FileWrite.of_rows(files, row_tasks, write_shard, (encoder,), units, names.display(paths))


def _write_samples(
    samples: Iterable[Mapping[str, Any]], urlpath: str | os.PathLike[str], options: TFRecordOptions
) -> None:
    """Write rows of an iterator: to temporary shards, block by block, whose records are copied to the shards."""
    check_options(options)
    for name, value in (("tfds", options["tfds"]), ("compute", None if options["compute"] else False)):
        if value is not None:
            raise ValueError(f"{name}={value!r} needs arrays or a Dataset, and the rows come from an iterator")
    names, mode = ShardNames.from_urlpath(urlpath, options["storage_options"]).in_mode(options["mode"])
    # Refuse existing shards before the iterator is run.
    Files(uuid.uuid4().hex, names, 1, mode, compute=True).check_free()
    features = ("features", "sequence_features", "example_features", "message")
    given: dict[str, Any] = {name: options[name] for name in (*features, "encoding")}  # type: ignore[literal-required]
    kept: dict[str, Any] = {name: options[name] for name in ("compression", "index", "mode", "storage_options")}

    def write(columns: dict[str, list[Any]], path: Path, first: int) -> None:
        try:
            if not first and not any(given[name] for name in features[1:]):
                known = schema_from_arguments(given["features"], None, None, None)
                inferred = {name: values for name, values in columns.items() if name not in known}
                given["features"] = known
                if inferred:
                    found = _rows_and_schema(with_empty_lists(inferred), Schema({}), keeps_float64=True)[1]
                    given["features"] = {name: (known if name in known else found)[name] for name in columns}
            to_tfrecord(columns, path, **given)
        except (SchemaError, FeatureError) as error:
            error.add_note(f"in a block of rows that begins with row {first:,}, counted from 0")
            raise

    def finish(folder: Path, rows: int) -> None:
        per_shard = options["records_per_shard"] or (rows if names.allows_many else None)
        copy_tfrecord(str(folder), urlpath, records_per_shard=per_shard, **kept)

    write_blocks(samples, write, finish)


def check_options(options: ShardOptions) -> str | None:
    """Check options before any file is read; return the compression, normalized."""
    if options["mode"] != "a":
        check_mode(options["mode"], "a shard")
    compression, records_per_shard = normalize_compression(options["compression"]), options["records_per_shard"]
    if options["index"] and compression is not None:
        if not has_access_points(compression):
            raise ValueError(useless_index(compression))
        indexing_library()
    if records_per_shard is not None:
        check_number("records_per_shard", records_per_shard, 1, " of records")
    return compression


def _rows_and_schema(
    arrays: Mapping[str, Any],
    given: Schema,
    *,
    keeps_float64: bool,
) -> tuple[Rows, Schema, str | None]:
    """Convert the input to rows; find the features of its records, and the text of its labels."""
    if isinstance(arrays, HasRows):
        rows = arrays.as_rows()
        schema = written_schema(rows.schema, given)
        kept = rows.labels() if schema.message_type is None else None
        return rows, schema, None if kept is None else kept.of_records(schema).to_json()
    if given.message_type is not None:
        inputs = Inputs.from_arrays(arrays, message_schema(dict.fromkeys(arrays), None, given))
        inputs.warn_of_attributes()
        return inputs.rows, message_schema(inputs.rows.schema, None, given), None
    inputs = Inputs.from_arrays(arrays, given, keep_constants=True)
    schema = record_schema(inputs.rows.schema, None, given)
    specified = {*given}
    if inputs.labels.rows is not None and keeps_float64:
        # The labels have the feature, so that readers find the bytes of values that an Example does not list.
        for name, feature in schema.items():
            dtype = feature.item_dtype
            if isinstance(feature, RawFeature) and (dtype == np.float64 or dtype.kind == "c"):
                specified.add(name)
    schema = schema.replaced(
        {name: feature if name in specified else listed_feature(name, feature) for name, feature in schema.items()}
    )
    labels = inputs.written_labels(schema)
    return inputs.rows, schema, None if labels is None else labels.to_json()


def _stored_groups(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the groups that the metadata of TFDS can describe; warn of the others."""
    groups = tfds_groups(schema)
    if lost := [group for group in schema.groups if group not in groups]:
        warn_caller(
            f"group {lost[0]!r} is not written: TFDS has groups of features whose names begin with {lost[0] + '/'!r} "
            f"and that list their items, and no feature {lost[0]!r}; got {', '.join(schema.groups[lost[0]])}"
        )
    return groups


def _image_encodings(encoding: Encodings | None, schema: Schema) -> dict[str, ImageEncoding]:
    """Return the encoding of each image feature that has one."""
    if encoding is None:
        return {}
    if isinstance(encoding, str):
        encoding = {name: encoding for name in schema if schema[name].is_image}
    return {name: ImageEncoding.from_argument(each, name) for name, each in encoding.items()}


def _check_pillow(schema: Schema, encodings: Mapping[str, ImageEncoding]) -> None:
    """Report a missing Pillow on the client. PNG of 16 bits per channel is written without it."""
    for name, feature in schema.items():
        encoding = encodings.get(name, ImageEncoding())
        if feature.is_image and (encoding.format != "png" or feature.item_dtype != np.uint16):
            with explain_missing(f"feature {name!r} is {feature}: encoding images needs", "Pillow", "image"):
                require_pillow()


def _tfds_names(
    directory: str | os.PathLike[str],
    tfds: Mapping[str, Any],
    encoder: Encoder,
    options: TFRecordOptions,
) -> tuple[ShardNames, TFDSMetadata]:
    """Return the names of the shards of a TFDS split, and the metadata files to write next to them."""
    split = TFDSNames.from_mapping(tfds)
    names = ShardNames.from_directory(directory, split.template(), options["storage_options"]).recovered()
    formats = {name: encoding.format for name, encoding in encoder.encoding.items()}
    metadata = TFDSMetadata.from_schema(names.directory, split, encoder.schema, formats)
    if options["mode"] == "a":
        metadata = metadata.appending(names.storage_options)
        names = ShardNames.from_directory(directory, split.template(metadata.template), options["storage_options"])
        names.recovered()
    metadata.check(names.storage_options)
    return names, metadata


def shard_borders(
    borders: NDArray[np.int64], records: int | None, names: ShardNames, row_nbytes: Callable[[], float]
) -> NDArray[np.int64]:
    """Assign rows to shards; return the first row of each, at least one, and the number of rows.

    `borders` separate chunks, and `records` is the size of a shard, if the user specified it. `row_nbytes` returns the
    decoded bytes of a row if there are more than `Limits.max_chunk_shards` chunks. Raises ValueError if several shards
    are needed, and `names` allows one.
    """
    rows = int(borders[-1])
    if records is not None:
        if not names.allows_many and rows > records:
            raise names.too_many(f"{rows:,} records in shards of {records:,}")
        return borders_by_rows(rows, records)
    if not names.allows_many:
        return np.array([0, rows])
    if len(borders) - 1 <= limits().max_chunk_shards:
        return borders
    shard_rows = max(1, int(limits().shard_nbytes / max(row_nbytes(), 1.0)))
    return borders[joined_parts((borders.tolist(), shard_rows))]


def refuse_sources(files: Files, sources: Sequence[str]) -> None:
    """Raise if a shard that is read would be replaced, or if a directory would hold every record twice."""
    read = set(map(file_key, sources))
    for path in files.paths:
        if file_key(path) in read:
            raise ValueError(f"{redact_url(path)} can't be replaced by what is read from it: write to another path")
    directory = files.names.directory
    if files.names.has_default_name and file_key(directory) in map(file_key, {directory_of(path) for path in sources}):
        raise ValueError(
            f"shards are read from {redact_url(directory)}, which would hold every record twice: write to another "
            f"directory, or give a template of names"
        )


def write_shard(
    files: Files, encoder: Encoder | MessageEncoder, path: str, start: int, stop: int, source: CountedRows
) -> ShardWriteReport:
    """Write rows `start` to `stop` of a source to the shard `path`."""

    def write_content(sink: ByteSink) -> tuple[int, int]:
        stream, total = RecordStream(encoder, path), 0
        spans = GrowingSpans(start, stop, 1, _BLOCK_NBYTES)
        for blocks in _read_bounded(source, tuple(encoder.columns), spans):
            check_group_lengths(encoder.schema.groups, blocks, partial(source.locate, start=spans.span[0]))
            nbytes = sum(map(block_nbytes, blocks.values()))
            spans.adapt(nbytes)
            total += nbytes
            files.check_running()
            for records in stream.framed(blocks):
                sink.write(records)
        return stop - start, total

    return files.write(path, write_content)


def _read_bounded(source: CountedRows, names: Sequence[str], spans: GrowingSpans) -> Iterator[dict[str, Block]]:
    """Read spans of rows; one that exceeds `_MAX_BLOCK_NBYTES` is read again in smaller spans."""

    def some(*, single: bool) -> Iterator[tuple[int, int]]:
        while spans and (spans.rows == 1) == single:
            yield next(iter(spans))

    limited = source.with_memory_limit(_MAX_BLOCK_NBYTES)
    while spans:
        # A single row may use all memory that the setting of the user allows.
        yield from source.read_spans(names, some(single=True))
        try:
            yield from limited.read_spans(names, some(single=False))
        except MemoryLimitError:
            spans.retry()


# Records that are inspected for names of features.
_SAMPLE = 256
# Records between two checks for cancellation.
_CHECK_INTERVAL = 256


@with_options("dtf.copy_tfrecord('train-*.tfrecord', 'copied/')", ShardOptions, CopyOptions)
def copy_tfrecord(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    **options: Unpack[CopyOptions],
) -> Delayed | None:
    """Copy records to new shards, to change their size or compression, or to keep only some records or features.

    Records with any payload are copied byte for byte. With `columns`, they must be Examples or SequenceExamples; the
    values of the features that you keep are not decoded. xarray's labels next to a shard are copied, too. One task
    writes each new shard, with one record in memory at a time.

    Parameters
    ----------
    urlpath : str, os.PathLike or list of these
        Shards to read, as in `read_tfrecord`, but with all splits of a TFDS data set.
    target : str or os.PathLike
        Shards to write, as in `to_tfrecord`: a template with ``{shard}``, the name of a single shard, or a directory.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    ShardNotFoundError
        If no shard is found.
    FileExistsError
        If a shard exists and `mode` is ``"w-"``, or if there are shards of the same template with a different total
        number.
    CorruptRecordError
        If a record is damaged, and ``errors="raise"``.
    UnknownFeatureError
        If the first records of some shards lack a feature in `columns`, or filters name a column that does not exist.
    FeatureError
        If `columns` is given and a record is neither an Example nor a SequenceExample.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.copy_tfrecord("train-*.tfrecord", "labels.tfrecord", columns=["label"], compression="gzip", mode="w")
    >>> dtf.read_tfrecord("labels.tfrecord")
    <dask_tfrecord.Dataset: 20 rows in 1 chunk of 20, from ...labels.tfrecord>
      column  dtype  shape  read as
      label   int64  (20,)  FixedLenFeature((), 'int64')
    """
    return plan_copy(urlpath, target, complete(CopyOptions, options))[0].run()


def plan_copy(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: CopyOptions,
    job: str | None = None,
) -> tuple[FileWrite, Shards]:
    """Plan what `copy_tfrecord` writes, or the job of a token; return the shards that are read, too."""
    compression, errors, check_crc = check_options(options), options["errors"], options["check_crc"]
    features, filters, columns = options["features"], options["filters"], options["columns"]
    records_per_shard = options["records_per_shard"]
    checked_errors(errors, "raise", "skip")
    if features is not None and filters is None:
        raise ValueError("features= are for filters to compare: give filters=, or columns= to copy fewer features")
    found = resolve_collection(
        urlpath, None, compression="infer", storage_options=options["storage_options"], default="all"
    )
    shards = found.shards
    kept = None if columns is None else _checked_columns(columns, shards, errors)
    names, mode = ShardNames.from_urlpath(target, options["target_options"]).in_mode(options["mode"])
    _warn_of_name(names, "copy_tfrecord", compression)
    if filters is None and errors == "raise":
        partitions = _partitions(shards, names, records_per_shard, check_crc)
    else:
        partitions = _partitions_of_rows(*_copied_rows(found, options), names, records_per_shard)
    files = Files(
        uuid.uuid4().hex,
        names,
        len(partitions),
        mode,
        options["compute"],
        compression,
        options["index"],
        resumable=job,
    )
    files.check_free()
    refuse_sources(files, shards.paths)
    labelled = any(find_sidecars(list(shards), SUFFIX))

    def work() -> WriteWork:
        sizes = np.array([sum(run.stop_offset - run.offset for run in each.runs) for each in partitions], np.float64)
        location, tasks = names.display(files.paths), task_name(copy_shard, files.token)
        return WriteWork(location, tasks, None, None, len(partitions), sizes, int(shards.sizes.sum()))

    arguments = list(zip(files.paths, partitions, strict=True))
    return FileWrite(files, copy_shard, (kept, check_crc, labelled), arguments, work), shards


def _warn_of_name(names: ShardNames, writer: str, compression: str | None) -> None:
    """Warn of names whose suffix is that of another format, or of a compression that the files do not have."""
    warn_of_suffix(names.template, writer, ".tfrecord")
    found = {".gz": "gzip", ".zst": "zstd"}.get(PurePath(names.template).suffix)
    if found and compression is None:
        advice = Spelled(f"write compression={found!r}", f"write --compression {found}")
        warn_caller(f"the new files are not compressed, although the name {names.shown!r} says so: " + advice)


def _copied_rows(found: ResolvedPath, options: CopyOptions) -> tuple[Collection, NDArray[np.int64]]:
    """Choose the rows that filters match, or the intact ones; return the collection that they are rows of, too."""
    shards, features, filters = found.shards, options["features"], options["filters"]
    if filters is None:
        collection, reports = intact_records(shards)
        warn_of_damage(collection.shards, reports, options["errors"])
        return collection, np.arange(collection.nrows)
    source = read_rows(
        list(shards.paths),
        found.schema() if features is None else features,
        filters=filters,
        errors=options["errors"],
        check_crc=options["check_crc"],
        storage_options=options["storage_options"],
    ).source
    assert isinstance(source, RecordSource)
    return source.collection, np.asarray(source.rows, np.int64)


def _checked_columns(columns: Sequence[str], shards: Shards, errors: str) -> frozenset[str]:
    """Check that some records have each of the named features."""
    if isinstance(columns, str) or not columns:
        raise SchemaError(f"columns must be a list with at least one name; got {columns!r}")
    report = inspect_shards(shards, _SAMPLE, runs_of=runs_left(shards, errors))
    if report.refusal is not None:
        raise report.refusal
    known = [feature.name for feature in report.features]
    for name in columns:
        if name not in known:
            raise UnknownFeatureError(
                f"feature {name!r} was not found in {plural(report.records, 'record')}{near_misses(name, known)}"
            )
    return frozenset(columns)


def _partitions(shards: Shards, names: ShardNames, records: int | None, check_crc: bool) -> list[RecordPartition]:
    """Return the records of each new shard; at least one shard."""
    if records is None and not names.allows_many:
        return [RecordPartition(tuple(full_run(shard) for shard in shards), "")]
    partitions = record_partitions(shards, "shard" if records is None else int(records), check_crc)
    if len(partitions) > 1 and not names.allows_many:
        raise names.too_many(f"{len(partitions):,} shards")
    return partitions or [RecordPartition((), "")]


def _partitions_of_rows(
    collection: Collection, rows: NDArray[np.int64], names: ShardNames, records: int | None
) -> list[RecordPartition]:
    """Divide some records of a collection among new shards: by a number, or as they are divided now."""
    if records is not None:
        borders = borders_by_rows(len(rows), records)
    else:
        borders = np.searchsorted(rows, collection.starts) if names.allows_many else np.array([0, len(rows)])
    if len(borders) > 2 and not names.allows_many:
        raise names.too_many(f"{len(borders) - 1:,} shards")
    token = tokenize(collection, rows)
    return [
        RecordPartition(tuple(collection.picks(rows[start:stop])), f"{token}-{start}-{stop}")
        for start, stop in pairwise(borders.tolist())
    ] or [RecordPartition((), "")]


def copy_shard(
    files: Files,
    columns: frozenset[str] | None,
    check_crc: bool,
    labelled: bool,
    path: str,
    partition: RecordPartition,
) -> ShardWriteReport:
    """Copy records to one shard."""

    def write_content(sink: ByteSink) -> tuple[int, int]:
        count = nbytes = 0
        with closing(iterate_payloads(partition.runs, check_crc=check_crc)) as records:
            for location, payload in records:
                kept = payload if columns is None else select_features(payload, columns, location)
                write_record(sink, kept)
                count += 1
                nbytes += len(kept)
                if count % _CHECK_INTERVAL == 0:
                    files.check_running()
        return count, nbytes

    labels = _labels(partition, columns) if labelled else None
    return replace(files, labels=labels).write(path, write_content)


def _labels(partition: RecordPartition, columns: frozenset[str] | None) -> str | None:
    """Return a new shard's labels, copied from the shard that has its first record."""
    labels = read_labels(partition.runs[0].shard) if partition.runs else None
    if labels is None:
        return None
    names = [name for name in labels.schema if columns is None or labels.schema.key_of(name) in columns]
    return labels.of_records(labels.schema.select(names)).to_json() if names else None


def select_features(payload: bytes, keys: Container[str], location: Location) -> bytes:
    """Keep features and feature lists of an Example or SequenceExample, which may lack any of them.

    The keys of the serialized record are sorted. Raises FeatureError for another message.
    """
    record = parse_record(payload)
    if record is None:
        raise payload_error(payload, location, "Example")
    # The features of an Example and the context of a SequenceExample are the same field of the message.
    for found in (record.context.feature, record.feature_lists.feature_list):
        for key in [key for key in found if key not in keys]:
            del found[key]
    return bytes(record.SerializeToString(deterministic=True))
