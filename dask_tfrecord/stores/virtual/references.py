"""Zarr references to values within uncompressed shards: `virtual_zarr`, its kerchunk output, and a VirtualiZarr parser.

A reference is the byte range of a value; each record is one chunk. The metadata are Zarr v2, the only version that
kerchunk's Parquet form and its xarray engine support; zarr 3 reads it. Formats:
https://fsspec.github.io/kerchunk/spec.html. pandas is imported when Parquet is written, VirtualiZarr, and zarr with it,
when the parser is called.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask
import fsspec
import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Collection, row_numbers
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.arrays.sources import RecordSource
from dask_tfrecord.columns.decoder import Decoder, location_nbytes, why_not_located
from dask_tfrecord.errors import Location, SchemaError, plural, printable, redact_url
from dask_tfrecord.features import Feature
from dask_tfrecord.records.framing import detected_compression
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.remote import url_to_fs
from dask_tfrecord.storage.shard import Shard, Shards, is_local
from dask_tfrecord.storage.streams import write_file
from dask_tfrecord.stores.units import BorderCounts
from dask_tfrecord.stores.zarr.plan import RowGrid, zarr_layout

# Readers choose the format by these suffixes.
JSON_SUFFIXES = (".json",)


PARQUET_SUFFIXES = (".parquet", ".parq")


_CONSOLIDATED = ".zmetadata"


@dataclass(frozen=True, slots=True, eq=False)
class VirtualArray:
    """Array with one chunk per record."""

    name: str
    shape: tuple[int, ...]  # the first axis is records
    dtype: str  # with the byte order of the files
    dimensions: tuple[str, ...]
    nbytes: int  # of a chunk
    offsets: NDArray[np.int64]  # byte offset of each chunk in its file

    @property
    def metadata(self) -> dict[str, Any]:
        """Content of ``.zarray``."""
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": [1, *self.shape[1:]],
            "dtype": self.dtype,
            "compressor": None,
            "filters": None,
            # xarray would decode values that equal a fill value as missing.
            "fill_value": None,
            "order": "C",
        }

    def keys(self) -> Iterator[str]:
        """Iterate over the keys of the chunks, in the order of records."""
        rest = ".0" * (len(self.shape) - 1)
        return (f"{self.name}/{record}{rest}" for record in range(self.shape[0]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VirtualZarr:
    """Zarr group without data: each chunk is a byte range within a record of a shard.

    Returned by `virtual_zarr`. zarr and xarray open the output of `to_json`, `to_parquet` and `references` through
    fsspec's reference file system.

    Attributes
    ----------
    files : tuple of str
        Shards: absolute paths, or URLs without credentials.
    file_numbers : ndarray of int64, shape (records,)
        Index in `files` of each record.
    arrays : tuple of VirtualArray
        One array per feature.
    attributes : mapping of str to JSON values
        Attributes of the group.
    """

    files: tuple[str, ...]
    file_numbers: NDArray[np.int64]
    arrays: tuple[VirtualArray, ...]
    attributes: Mapping[str, Any]

    def __repr__(self) -> str:
        names = printable(", ".join(array.name for array in self.arrays))
        return (
            f"<VirtualZarr: {plural(len(self.file_numbers), 'record')} of {plural(len(self.files), 'file')}: {names}>"
        )

    @property
    def nrecords(self) -> int:
        """Number of records, and of the chunks of each array."""
        return len(self.file_numbers)

    def references(self) -> dict[str, Any]:
        """Return all references as a dict in kerchunk's format, version 1.

        Returns
        -------
        dict
            ``version`` and ``refs``: metadata as JSON texts, and ``[file, offset, length]`` of each chunk.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
        >>> import xarray
        >>> stored = xarray.open_dataset(
        ...     "reference://", engine="zarr", storage_options={"fo": virtual.references()}, consolidated=True
        ... )
        >>> stored["image"].shape[1:]
        (8, 8, 3)
        """
        metadata = self._metadata()
        refs: dict[str, Any] = {key: json.dumps(value) for key, value in metadata.items()}
        refs[_CONSOLIDATED] = json.dumps(_consolidated(metadata))
        files = [self.files[number] for number in self.file_numbers.tolist()]
        for array in self.arrays:
            chunks = zip(array.keys(), files, array.offsets.tolist(), strict=True)
            refs.update((key, [file, offset, array.nbytes]) for key, file, offset in chunks)
        return {"version": 1, "refs": refs}

    def to_json(self, urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Write the references as kerchunk JSON, which readers load as a whole.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or URL that ends in ``.json``; readers choose the format by the suffix.
        storage_options : mapping, optional
            Options of fsspec for the URL.

        Raises
        ------
        ValueError
            If the name has another suffix.
        FileExistsError
            If the file exists.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
        >>> virtual.to_json("images.json")
        """
        check_target(urlpath, JSON_SUFFIXES, storage_options)
        write_file(urlpath, json.dumps(self.references(), separators=(",", ":")).encode(), storage_options)

    def to_parquet(
        self,
        urlpath: str | os.PathLike[str],
        *,
        record_size: int = 100_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the references as kerchunk Parquet, for millions of records: readers load the files that they need.

        Needs pandas and pyarrow: ``pip install 'dask-tfrecord[virtual]'``. fsspec reads a directory that is given by
        name with fastparquet. To read it with pyarrow, pass
        ``fsspec.implementations.reference.LazyReferenceMapper(urlpath, engine="pyarrow")`` instead of the name.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or URL of a directory to create. It ends in ``.parquet`` or ``.parq``; readers choose the format by the
            suffix.
        record_size : int, default 100,000
            Number of chunks of an array in one file.
        storage_options : mapping, optional
            Options of fsspec for the URL.

        Raises
        ------
        ValueError
            If the name has another suffix, or if `record_size` is not a positive integer.
        FileExistsError
            If the directory exists.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
        >>> virtual.to_parquet("images.parquet")
        """
        if isinstance(record_size, bool) or not isinstance(record_size, int) or record_size < 1:
            raise ValueError(f"record_size is a number of chunks, 1 or more; got {record_size!r}")
        fs, root = check_target(urlpath, PARQUET_SUFFIXES, storage_options)
        fs.makedirs(root)
        try:
            for array in self.arrays:
                fs.makedirs(f"{root}/{array.name}", exist_ok=True)
                for number, start in enumerate(range(0, self.nrecords, record_size)):
                    table = self._parquet_file(array, slice(start, start + record_size))
                    fs.pipe_file(f"{root}/{array.name}/refs.{number}.parq", table)
            # Last, so that readers can't open an incomplete directory.
            metadata = {**_consolidated(self._metadata()), "record_size": record_size}
            fs.pipe_file(f"{root}/{_CONSOLIDATED}", json.dumps(metadata).encode())
        except BaseException:
            fs.rm(root, recursive=True)
            raise

    def _metadata(self) -> dict[str, Any]:
        """Return the metadata of the group and of the arrays by store key."""
        metadata: dict[str, Any] = {".zgroup": {"zarr_format": 2}, ".zattrs": dict(self.attributes)}
        for array in self.arrays:
            metadata[f"{array.name}/.zarray"] = array.metadata
            metadata[f"{array.name}/.zattrs"] = {"_ARRAY_DIMENSIONS": list(array.dimensions)}
        return metadata

    def _parquet_file(self, array: VirtualArray, rows: slice) -> bytes:
        """Encode the references to some rows as one file."""
        import pandas

        used, codes = np.unique(self.file_numbers[rows], return_inverse=True)
        paths = pandas.Categorical.from_codes(codes, categories=[self.files[number] for number in used.tolist()])
        offsets = array.offsets[rows]
        frame = pandas.DataFrame({"path": paths, "offset": offsets, "size": np.full(len(offsets), array.nbytes)})
        buffer = io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow", index=False, compression="zstd")
        return buffer.getvalue()


def _consolidated(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_consolidated_format": 1, "metadata": dict(metadata)}


def check_target(
    urlpath: str | os.PathLike[str], suffixes: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Any, str]:
    """Check the suffix of a target, and that the target does not exist; return its file system and path."""
    target = str(stringify_path(urlpath))
    shown = redact_url(target)
    if not target.endswith(tuple(suffixes)):
        raise ValueError(f"expected a name that ends in {' or '.join(suffixes)}; got {shown!r}")
    fs, path = url_to_fs(target, **(storage_options or {}))
    if fs.exists(path):
        raise FileExistsError(f"{shown} exists: remove it, or give another path")
    return fs, path


def virtual_zarr(
    urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
    *,
    sequence_features: Mapping[str, Feature] | None = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    counts: str | Sequence[int] = "auto",
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> VirtualZarr:
    """Refer to the values within TFRecord shards as a Zarr group, without copying them.

    Every record is one chunk, a byte range of its shard. This requires uncompressed shards, and values that are one
    byte range of the same length in every record: `FixedLenFeature` of float32, which writers pack, and `RawFeature` of
    a known shape.

    Parameters
    ----------
    urlpath, features, sequence_features, columns, split, counts, compression, storage_options
        As in `read_tfrecord`; records must be counted. Use `columns` to leave out features without these byte ranges.

    Returns
    -------
    VirtualZarr
        `VirtualZarr.to_json` and `VirtualZarr.to_parquet` write it.

    Raises
    ------
    SchemaError
        If features lack these byte ranges (the error lists them, each with the reason), or a shard is compressed.
    FeatureError
        If a record lacks a feature, has another number of values, or stores them in several runs.
    CorruptRecordError
        If a CRC does not match. Every record is read on the active scheduler, and both of its CRCs are checked.
    ValueError
        If shards are in several file systems, or are specified by chained URLs.

    Notes
    -----
    The references are valid as long as the shards do not change; the attributes hold the sizes and versions of the
    shards. Each record is read by its own request, so that a pass over all records is slower than with `read_tfrecord`
    or with a store written by `to_zarr`. Values keep the byte order of the file. Options of fsspec are not stored;
    readers specify them as ``remote_options``.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
    <VirtualZarr: 20 records of 2 files: image>
    """
    if counts is None:
        raise ValueError("a chunk for each record needs counted records: counts is 'auto', 'scan' or a sequence")
    dataset = read_tfrecord(
        urlpath,
        features,
        sequence_features=sequence_features,
        columns=columns,
        split=split,
        chunks="shard",
        counts=counts,
        compression=compression,
        storage_options=storage_options,
    )
    source = dataset._source
    assert isinstance(source, RecordSource)
    shards, schema = source.collection.shards, source.decoder.schema
    _check_features(schema)
    _check_files(shards)
    files = tuple(map(redact_url, shards.paths))
    _check_distinct(files, shards.paths)
    offsets = _offsets(source, np.asarray(dataset._borders))
    rows = row_numbers(source.rows)
    numbers = _shard_numbers(source.collection, rows)
    attributes = {"dask_tfrecord": {"schema": json.loads(schema.to_json()), "source": dict(source.origin)}}
    return VirtualZarr(files, numbers, tuple(_arrays(schema, offsets, len(rows))), attributes)


def _shard_numbers(collection: Collection, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the shard of each row."""
    return np.searchsorted(collection.starts, rows, side="right") - 1


def _arrays(schema: Schema, offsets: Mapping[str, NDArray[np.int64]], rows: int) -> list[VirtualArray]:
    # The layout of `to_zarr`, except for dtypes: the byte order is that of the file.
    layout = zarr_layout(schema, rows, RowGrid(1, 1, 1), BorderCounts.concatenate(schema, []))
    arrays = []
    for array in layout.arrays:
        feature = schema[array.feature]
        dtype = feature.stored_dtype.str
        nbytes = location_nbytes(feature)
        arrays.append(VirtualArray(array.name, array.shape, dtype, array.dimensions, nbytes, offsets[array.feature]))
    return arrays


def _check_features(schema: Schema) -> None:
    """Raise if a feature lacks a byte range; the error lists all of them, and the remaining features."""
    reasons = {name: _why_not(name, schema) for name in schema}
    refused = [f"{name!r}: {reason}" for name, reason in reasons.items() if reason is not None]
    if refused:
        left = [name for name, reason in reasons.items() if reason is None]
        hint = f"columns={left} refers to the others" if left else "to_zarr copies them"
        raise SchemaError(f"no byte range of a record is the value of {'; of '.join(refused)}. {hint}")


def _why_not(name: str, schema: Schema) -> str | None:
    feature = schema[name]
    if feature.item_dtype.name == "bfloat16" and why_not_located(name, schema) is None:
        return "Zarr has no name for bfloat16: RawFeature(shape, '<u2') refers to its bits"
    return why_not_located(name, schema)


def _check_files(shards: Shards) -> None:
    """Raise if references can't address the files: readers support one file system, and no compression."""
    protocols = set()
    for shard in shards:
        local = is_local(shard.path)
        if ("://" if local else "::") in shard.path:
            raise ValueError(
                f"{redact_url(shard.path)}: readers of references take a plain path, or a URL of one file system"
            )
        if "store" in shard.storage_options:
            raise ValueError("readers of references take URLs, which paths in storage_options['store'] are not")
        protocols.add("file" if local else fsspec.core.split_protocol(shard.path)[0])
        if shard.compression != "infer":
            _check_uncompressed(shard, shard.compression)
    if len(protocols) > 1:
        raise ValueError(f"readers of references have one file system; the shards are in {sorted(protocols)}")


def _check_distinct(files: Sequence[str], paths: Sequence[str]) -> None:
    """Raise if URLs differ only in user info or query, which references do not store."""
    known: dict[str, str] = {}
    for file, path in zip(files, paths, strict=True):
        if known.setdefault(file, path) != path:
            raise ValueError(
                f"{file}: several shards have this URL and differ in user info or query, which references do not hold "
                f"because they may be credentials; refer to shards by URLs that differ in their paths"
            )


def _check_uncompressed(shard: Shard, compression: str | None) -> None:
    if compression is not None:
        raise SchemaError(
            f"the shard is compressed ({compression}), so no byte range of it is a value: to_zarr copies the values",
            Location(shard.path),
        )


def _offsets(source: RecordSource, borders: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the offset of the value in every record for each feature; computed on the active scheduler."""
    decoder = Decoder(source.decoder.schema, "offsets")
    locations = RecordSource.from_collection(source.collection, decoder, source.rows, check_crc=True)
    node = dask.delayed(locations, traverse=False)
    task = dask.delayed(_scan_rows, pure=False)
    cuts = source.refine(borders, limits().scan_task_nbytes).tolist()
    found = dask.compute(*(task(node, start, stop) for start, stop in pairwise(cuts)))
    return {name: np.concatenate([np.zeros(0, np.int64), *(rows[name] for rows in found)]) for name in decoder.columns}


def _scan_rows(source: RecordSource, start: int, stop: int) -> dict[str, NDArray[np.int64]]:
    """Return the offsets of the values of some rows."""
    rows, collection = slice(start, stop), source.collection
    for number in np.unique(_shard_numbers(collection, row_numbers(source.rows[rows]))).tolist():
        shard = collection.shards[number]
        # With counts from the user, the compression has not been detected.
        if shard.compression == "infer":
            _check_uncompressed(shard, detected_compression(shard))
    blocks = source.read(tuple(source.schema), rows)
    return {name: np.asarray(block, np.int64) for name, block in blocks.items()}


class TFRecordParser:
    """Parser of TFRecord shards for `virtualizarr.open_virtual_dataset`.

    Needs VirtualiZarr: ``pip install 'dask-tfrecord[virtualizarr]'``.

    Parameters
    ----------
    features, columns, storage_options
        As in `virtual_zarr`; by default features are inferred. Records are scanned through fsspec, with
        `storage_options`. Values are read through the stores of VirtualiZarr's registry.
    """

    def __init__(
        self,
        features: Mapping[str, Feature] | str | os.PathLike[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.features, self.columns, self.storage_options = features, columns, storage_options

    def __call__(self, url: str, registry: Any) -> Any:
        """Scan the records of shards and return references to their values.

        Parameters
        ----------
        url : str
            A path, URL, glob, directory or template of shards.
        registry : obspec_utils.registry.ObjectStoreRegistry
            Object stores of the shards.

        Returns
        -------
        virtualizarr.manifests.ManifestStore

        Raises
        ------
        SchemaError, FeatureError, CorruptRecordError, ValueError
            As in `virtual_zarr`. ValueError also if a file name has a ``?`` or ``#``, which VirtualiZarr does not find.
        """
        from virtualizarr.manifests import ManifestGroup, ManifestStore

        virtual = virtual_zarr(url, self.features, columns=self.columns, storage_options=self.storage_options)
        odd = next((path for path in virtual.files if set(path) & set("?#")), None)
        if odd is not None:
            raise ValueError(f"{odd}: VirtualiZarr reads ? and # in a file name as parts of a URL; rename the file")
        # VirtualiZarr identifies files by URLs, without escapes.
        files = [f"file://{path}" if is_local(path) else path for path in virtual.files]
        paths = np.array(files, np.dtypes.StringDType())[virtual.file_numbers]
        arrays = {array.name: _manifest_array(array, paths) for array in virtual.arrays}
        return ManifestStore(ManifestGroup(arrays=arrays, attributes=dict(virtual.attributes)), registry=registry)


def _manifest_array(array: VirtualArray, paths: NDArray[Any]) -> Any:
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    # One chunk per record; the chunk spans all other axes.
    grid = (array.shape[0], *(1 for _ in array.shape[1:]))
    metadata = create_v3_array_metadata(
        shape=array.shape,
        data_type=np.dtype(array.dtype),
        chunk_shape=(1, *array.shape[1:]),
        dimension_names=array.dimensions,
    )
    # VirtualiZarr types the paths as text, which NumPy's stubs can't express for every version.
    text: Any = paths.reshape(grid)
    manifest = ChunkManifest.from_arrays(
        paths=text,
        offsets=array.offsets.astype(np.uint64).reshape(grid),
        lengths=np.full(grid, array.nbytes, np.uint64),
        validate_paths=False,
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)
