"""Zarr groups whose chunks are byte ranges of records: `virtual_zarr` and its outputs.

A chunk is whole records of one shard, which the codec of `dask_tfrecord.stores.zarr.codec` decodes. One pass over the
headers of all records finds where chunks begin and end. Row splits follow from the sizes of rows, and are stored.
Formats of references: https://fsspec.github.io/kerchunk/spec.html.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import numpy as np
from dask.base import tokenize
from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.blocks import splits_of, zero_rows
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.columns.records import wanted_schema
from dask_tfrecord.errors import SchemaError, plural, printable, redact_url
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import canonical_path, file_key
from dask_tfrecord.options import ZarrTargetOptions, complete
from dask_tfrecord.rows.read import open_lengths, read_rows
from dask_tfrecord.rows.sources import RecordSource, UncountedSource, shards_origin
from dask_tfrecord.shards.remote import url_to_fs
from dask_tfrecord.shards.shard import Shards, is_local
from dask_tfrecord.shards.streams import write_file
from dask_tfrecord.stores.output import check_number
from dask_tfrecord.stores.units import BorderCounts, Levels, flat_levels
from dask_tfrecord.stores.virtual.scan import (
    Chunks,
    Sizes,
    choose_rows,
    measure_rows,
    row_pieces,
    scan_records,
    sizes_of,
)
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid, rows_or_size
from dask_tfrecord.stores.zarr.codec import (
    CHUNKS_GROUP,
    CHUNKS_TOGETHER,
    UNEQUAL_CHUNKS,
    TFRecordCodec,
    chunk_lengths,
    group_objects,
    put_objects,
    takes_unequal_chunks,
)
from dask_tfrecord.stores.zarr.free import check_free
from dask_tfrecord.stores.zarr.layout import ArraySpec, array_attributes, check_storable, with_strings, zarr_layout
from dask_tfrecord.stores.zarr.store import FORMAT_VERSION, TargetGroup, stored_attribute, values_of_attribute
from dask_tfrecord.stores.zarr.write import check_session, session_of

# Readers choose the format by these suffixes.
JSON_SUFFIXES = (".json",)
PARQUET_SUFFIXES = (".parquet", ".parq")
# Entries of a chunk of stored splits, and their codec: offsets of eight bytes take about one.
_STORED_ENTRIES = 1 << 17
_STORED_CODEC = {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 5, "shuffle": "shuffle"}}


@dataclass(frozen=True, slots=True, eq=False)
class VirtualArray:
    """Array whose chunks are byte ranges of shards.

    Attributes
    ----------
    spec : ArraySpec
        Name, shape, dtype and dimensions.
    codec : TFRecordCodec
        The codec; the same for the chunks of all shards.
    attributes : mapping
        Attributes of the array.
    edges, files, offsets, nbytes : ndarray of int64
        Length of each chunk along the first axis, and its location: number of the file, first byte, and bytes.
    """

    spec: ArraySpec
    codec: TFRecordCodec
    attributes: Mapping[str, Any]
    edges: NDArray[np.int64]
    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @property
    def name(self) -> str:
        """Name in the group."""
        return self.spec.name

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return (len(self.edges), *(1 for _ in self.spec.shape[1:]))

    def keys(self, prefix: str = "c/", separator: str = "/") -> Iterator[str]:
        """Iterate over the keys of the chunks."""
        rest = f"{separator}0" * (len(self.spec.shape) - 1)
        return (f"{self.name}/{prefix}{number}{rest}" for number in range(len(self.edges)))

    def create_arguments(self) -> dict[str, Any]:
        """Return the arguments of `zarr.create_array`."""
        spec, inner = self.spec, tuple(max(1, size) for size in self.spec.shape[1:])
        text = spec.is_text
        chunks: Any = (int(self.edges[0]) if len(self.edges) else 1, *inner)
        if not is_regular(self.edges):
            chunks = [self.edges.tolist(), *([size] for size in inner)]
        return {
            "shape": spec.shape,
            "dtype": "variable_length_bytes" if text else spec.dtype,
            "chunks": chunks,
            "serializer": self.codec,
            "compressors": None,
            "filters": None,
            "fill_value": b"" if text else np.zeros((), spec.dtype)[()],
            "dimension_names": spec.dimensions,
            "attributes": dict(self.attributes),
        }


def is_regular(edges: NDArray[np.int64]) -> bool:
    """Return whether a regular grid has these chunks: all of one length, and a last one that may be shorter."""
    return len(edges) < 2 or bool((edges[:-1] == edges[0]).all() and edges[-1] <= edges[0])


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """Row splits or shapes of a column: an array that is stored."""

    spec: ArraySpec
    entries: NDArray[np.int64]
    attributes: Mapping[str, Any]

    def create_arguments(self) -> dict[str, Any]:
        """Return the arguments of `zarr.create_array`."""
        own = {"dimension_names": self.spec.dimensions, "attributes": dict(self.attributes)}
        return _stored_arguments(self.entries, _STORED_ENTRIES) | own


def _stored_arguments(entries: NDArray[Any], together: int) -> dict[str, Any]:
    """Return the arguments for an array of numbers next to the references."""
    return {
        "shape": entries.shape,
        "dtype": entries.dtype.name,
        "chunks": (together, *(max(1, size) for size in entries.shape[1:])),
        "compressors": [_STORED_CODEC],
    }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VirtualZarr:
    """Zarr group whose chunks are byte ranges of TFRecord shards; returned by `virtual_zarr`.

    Readers need this library, whose codec they find by its entry point. `from_zarr` opens the group by its features.

    Attributes
    ----------
    files : tuple of str
        Shards: absolute paths, or URLs without credentials.
    nrecords : int
        Number of records.
    arrays : tuple of VirtualArray
        Arrays whose chunks are in the shards.
    stored : mapping of str to StoredArray
        Arrays that are stored: row splits and shapes.
    chunks : mapping of str to ndarray of uint64
        Checksum, shard, first record and first byte of each chunk, which the codec compares and reports.
    attributes : mapping of str to JSON values
        Attributes of the group.
    """

    files: tuple[str, ...]
    nrecords: int
    arrays: tuple[VirtualArray, ...]
    stored: Mapping[str, StoredArray]
    chunks: Mapping[str, NDArray[np.uint64]]
    attributes: Mapping[str, Any]

    def __repr__(self) -> str:
        names = printable(", ".join(values_of_attribute(self.attributes)["features"]))
        return f"<VirtualZarr: {plural(self.nrecords, 'record')} of {plural(len(self.files), 'file')}: {names}>"

    @property
    def nchunks(self) -> int:
        """Number of chunks of all arrays that are in the shards."""
        return sum(len(array.edges) for array in self.arrays)

    def references(self) -> dict[str, Any]:
        """Return all references as a dict in kerchunk's format, version 1.

        Returns
        -------
        dict
            ``version`` and ``refs``: metadata of Zarr v3 as JSON texts, stored chunks in base64, and
            ``[file, offset, length]`` of each other chunk.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", columns=["label"])
        >>> import xarray
        >>> stored = xarray.open_dataset("reference://", engine="zarr", storage_options={"fo": virtual.references()})
        >>> stored["label"].shape
        (20,)
        """
        refs: dict[str, Any] = {}
        for key, value in self.objects(consolidated=True).items():
            refs[key] = value.decode() if key.endswith("zarr.json") else "base64:" + base64.b64encode(value).decode()
        for array in self.arrays:
            files = (self.files[number] for number in array.files.tolist())
            places = zip(files, array.offsets.tolist(), array.nbytes.tolist(), strict=True)
            refs.update(zip(array.keys(), map(list, places), strict=True))
        return {"version": 1, "refs": refs}

    def objects(self, *, consolidated: bool) -> dict[str, bytes]:
        """Return the objects of the store by key, without the chunks that are in the shards."""
        every: tuple[VirtualArray | StoredArray, ...] = (*self.arrays, *self.stored.values())
        arguments = {array.spec.name: array.create_arguments() for array in every}
        for name, chunks in self.chunks.items():
            arguments[f"{CHUNKS_GROUP}/{name}"] = _stored_arguments(chunks, CHUNKS_TOGETHER)
        return group_objects(arguments, self._entries_of_arrays(), self.attributes, consolidated=consolidated)

    def _entries_of_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the entries of all stored arrays, by path in the group."""
        chunks = {f"{CHUNKS_GROUP}/{name}": each for name, each in self.chunks.items()}
        return {**{name: array.entries for name, array in self.stored.items()}, **chunks}

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
        >>> dtf.virtual_zarr("train-*.tfrecord", columns=["image", "label"]).to_json("train.json")
        >>> ds = dtf.from_zarr("reference://", storage_options={"fo": "train.json"})
        >>> ds["label"].shape
        (20,)
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
        """Write the references as kerchunk Parquet, for millions of chunks: readers load the files that they need.

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
        >>> dtf.virtual_zarr("train-*.tfrecord", columns=["image", "label"]).to_parquet("train.parquet")
        """
        check_number("record_size", record_size, 1, " of chunks")
        fs, root = check_target(urlpath, PARQUET_SUFFIXES, storage_options)
        fs.makedirs(root)
        try:
            metadata = {}
            entries = self._entries_of_arrays()
            chunks: dict[str, dict[int, bytes]] = {name: {} for name in entries}
            for key, value in self.objects(consolidated=True).items():
                if key.endswith("zarr.json"):
                    metadata[key] = _with_dotted_keys(json.loads(value))
                else:
                    # The chunks are along the first axis.
                    name, _, index = key.rpartition("/c/")
                    chunks[name][int(index.partition("/")[0])] = value
            for array in self.arrays:
                places = array.files, array.offsets, array.nbytes
                tables = (
                    self._parquet_file(*(each[start : start + record_size] for each in places))
                    for start in range(0, len(array.edges), record_size)
                )
                _write_tables(fs, f"{root}/{array.name}", tables)
                metadata[f"{array.name}/.zarray"] = {"shape": array.grid, "chunks": [1] * len(array.grid)}
            for name, values in chunks.items():
                ordered = [values[number] for number in sorted(values)]
                parts = (ordered[start : start + record_size] for start in range(0, len(ordered), record_size))
                _write_tables(fs, f"{root}/{name}", (_encode_parquet({"raw": part}) for part in parts))
                grid = [len(ordered), *(1 for _ in entries[name].shape[1:])]
                metadata[f"{name}/.zarray"] = {"shape": grid, "chunks": [1] * len(grid)}
            # fsspec searches chunks below each name: groups lack them.
            metadata |= {f"{name}/.zarray": {"shape": [0], "chunks": [1]} for name in ("zarr.json", CHUNKS_GROUP)}
            # Last, so that readers can't open an incomplete directory.
            document = {"metadata": metadata, "record_size": record_size}
            fs.pipe_file(f"{root}/.zmetadata", json.dumps(document).encode())
        except BaseException:
            fs.rm(root, recursive=True)
            raise

    def _parquet_file(self, numbers: NDArray[np.int64], offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> bytes:
        """Encode references as one file."""
        import pandas

        used, codes = np.unique(numbers, return_inverse=True)
        paths = pandas.Categorical.from_codes(codes, categories=[self.files[number] for number in used.tolist()])
        return _encode_parquet({"path": paths, "offset": offsets, "size": nbytes})

    def to_icechunk(self, session: Any, *, component: str | None = None, append_dim: str | None = None) -> str:
        """Write the references to a session of Icechunk, in one commit.

        Icechunk reads chunks in places that the repository has a virtual chunk container for, with a prefix of
        `locations`. A failure leaves the session unchanged.

        Parameters
        ----------
        session : icechunk.Session
            A writable session without uncommitted changes, or its ``session.store``.
        component : str, optional
            Path of the group within the store.
        append_dim : {"record"}, optional
            Add the records to the group, which `to_icechunk` wrote with the same features; earlier snapshots keep what
            they have. By default the group must not exist.

        Returns
        -------
        str
            Identity of the snapshot.

        Raises
        ------
        FileExistsError
            If the group exists, and `append_dim` is None.
        SchemaError
            If the group to extend has other features or options, or its chunks would differ in length where zarr does
            not accept such grids.
        ValueError
            If the group already refers to one of the shards, the repository has no container for them, or the session
            cannot be written.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", columns=["label"])
        >>> virtual.to_icechunk(repository.writable_session("main"))  # doctest: +SKIP
        """
        store, session = session, session_of(session)
        if session is None:
            raise ValueError(f"expected a session of Icechunk; got {type(store).__name__}")
        check_session(session, complete(ZarrTargetOptions, ZarrTargetOptions()))
        if append_dim not in (None, "record"):
            raise ValueError(f"append_dim must be 'record', the dimension of the records; got {append_dim!r}")
        target = TargetGroup.from_arguments(session.store, component, None)
        try:
            if append_dim is None:
                try:
                    check_free(target, "w-", {})
                except FileExistsError as error:
                    raise FileExistsError(
                        "the group exists: append_dim='record' adds records to it, component= writes next to it"
                    ) from error
                put_objects(session.store, target.component, self.objects(consolidated=False), {})
                before = dict.fromkeys((array.name for array in self.arrays), 0)
            else:
                before = self._extend(target)
            for array in self.arrays:
                self._set_icechunk_references(
                    session.store, "/".join(["", *filter(None, [target.component])]), array, before
                )
            count = f"{plural(self.nrecords, 'record')} of {plural(len(self.files), 'shard')}"
            return str(session.commit(f"Refer to {count} with dask_tfrecord"))
        except BaseException:
            if session.has_uncommitted_changes:
                session.discard_changes()
            raise

    @property
    def locations(self) -> tuple[str, ...]:
        """URLs of directories that have the shards, for the virtual chunk containers of Icechunk.

        Icechunk finds no container with an escaped character, so the URL of a local directory ends before one.
        """
        directories = (_icechunk_url(file).partition("%")[0].rpartition("/")[0] + "/" for file in self.files)
        return tuple(dict.fromkeys(directories))

    def _set_icechunk_references(self, store: Any, root: str, array: VirtualArray, before: Mapping[str, int]) -> None:
        """Set the references of an array, after the chunks that it has."""
        path = f"{root}/{array.name}"
        first = (before[array.name], *(0 for _ in array.grid[1:]))
        urls = [_icechunk_url(self.files[number]) for number in array.files.tolist()]
        if hasattr(store, "set_virtual_refs_arr"):
            places = array.offsets.astype(np.uint64), array.nbytes.astype(np.uint64)
            failed = store.set_virtual_refs_arr(path, array.grid, urls, *places, arr_offset=first) if urls else None
        else:
            from icechunk import VirtualChunkSpec

            ranges = zip(urls, array.offsets.tolist(), array.nbytes.tolist(), strict=True)
            specs = [VirtualChunkSpec([first[0] + n, *first[1:]], *each) for n, each in enumerate(ranges)]
            failed = store.set_virtual_refs(path, specs, validate_containers=True)
        if failed:
            raise ValueError(
                f"{array.name}: the repository has no virtual chunk container for {', '.join(self.locations)}"
            )

    def _extend(self, target: TargetGroup) -> dict[str, int]:
        """Append to a group's arrays; return how many chunks each had."""
        group = target.open("r+")
        old, new = target.own_attributes(group), values_of_attribute(self.attributes)
        if "chunk_rows" not in old or any(
            _schema_of_group(old, part) != _schema_of_group(new, part) for part in ("columns", "records")
        ):
            raise SchemaError("the group has no references to records with these features", target.location)
        held = set(map(file_key, old["source"]["files"]))
        if again := [file for file in new["source"]["files"] if file_key(file) in held]:
            raise ValueError(f"the group already refers to {min(again)}")
        # The shards of this one are numbered after the group's.
        shift = np.array([0, len(old["source"]["files"]), 0, 0], np.uint64)
        chunks = {name: each + shift for name, each in self.chunks.items()}
        arrays, before, created = [], {}, {}
        for array in self.arrays:
            stored: Any = group[array.name]
            codec, edges = stored.serializer, chunk_lengths(stored)
            if replace(codec, chunks=b"") != array.codec:
                raise SchemaError(f"array {array.name!r} has other options of the codec", target.location)
            name = codec.array_of_chunks
            if name in chunks and f"{CHUNKS_GROUP}/{name}" not in group:
                # Earlier versions stored them in the metadata of each array.
                created[name] = np.concatenate([codec.chunks_in_metadata(), chunks.pop(name)])
            before[array.name] = len(edges)
            spec = replace(array.spec, shape=(stored.shape[0] + array.spec.shape[0], *array.spec.shape[1:]))
            arrays.append(replace(array, spec=spec, edges=np.append(edges, array.edges)))
        _check_grids(arrays, {})
        rows = np.append(_repeat_runs(old["chunk_rows"]), _repeat_runs(new["chunk_rows"]))
        source = {key: [*old["source"][key], *new["source"][key]] for key in ("files", "sizes", "versions")}
        own = {
            "id": tokenize(old["id"], new["id"]),
            "records": int(rows.sum()),
            "unit_rows": int(rows.max(initial=1)),
            "chunk_rows": _run_lengths(rows),
            "source": old["source"] | source,
        }
        attributes = stored_attribute(old | own)
        extended = replace(self, arrays=tuple(arrays), stored={}, chunks=created, attributes=attributes)
        entries: dict[str, tuple[NDArray[Any], bool]] = {
            name: (array.entries, array.spec.part.startswith("row_splits")) for name, array in self.stored.items()
        }
        entries |= {f"{CHUNKS_GROUP}/{name}": (each, False) for name, each in chunks.items()}
        put_objects(target.store, target.component, extended.objects(consolidated=False), entries)
        return before


def _schema_of_group(attributes: Mapping[str, Any], part: str) -> Any:
    """Return a group's schema: its columns', or its records'."""
    return attributes["schema"] if part == "columns" else attributes["source"]["schema"]


def _icechunk_url(file: str) -> str:
    """Return the URL of a file as Icechunk takes it."""
    if is_local(file):
        # Icechunk removes `..` from the URL of a container, and then does not find it for a file that is spelled so.
        return f"file://{quote(canonical_path(file) if '..' in Path(file).parts else file)}"
    protocol, separator, rest = file.partition("://")
    return {"gs": "gcs", "s3a": "s3"}.get(protocol, protocol) + separator + rest


def _repeat_runs(pairs: Any) -> NDArray[np.int64]:
    """Return the values of `_run_lengths`."""
    return np.array([value for value, number in pairs for _ in range(number)], np.int64)


def _with_dotted_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Return metadata whose chunks have keys like ``0.0``, which fsspec finds in Parquet."""
    if document["node_type"] == "array":
        return document | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    inner = document.get("consolidated_metadata")
    if inner is None:
        return document
    arrays = {name: _with_dotted_keys(each) for name, each in inner["metadata"].items()}
    return document | {"consolidated_metadata": inner | {"metadata": arrays}}


def _write_tables(fs: AbstractFileSystem, folder: str, tables: Iterable[bytes]) -> None:
    fs.makedirs(folder, exist_ok=True)
    for number, table in enumerate(tables):
        fs.pipe_file(f"{folder}/refs.{number}.parq", table)


def _encode_parquet(columns: Mapping[str, Any]) -> bytes:
    """Encode columns as a Parquet file."""
    import pandas

    buffer = io.BytesIO()
    pandas.DataFrame(columns).to_parquet(buffer, engine="pyarrow", index=False, compression="zstd")
    return buffer.getvalue()


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
    example_features: Mapping[str, Feature] | None = None,
    message: Any = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    rows_per_chunk: int | str = "16 MiB",
    compression: str | None = "infer",
    check_crc: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> VirtualZarr:
    """Make a Zarr group that refers to TFRecord shards, without copying values.

    A chunk is a range of whole records in a shard, which this library's Zarr codec ``tfrecord`` decodes when the chunk
    is read, so every column of `read_tfrecord` can be virtual. Columns with rows of one size, bytes or text become one
    array each, text as bytes with the attribute ``_Encoding``. For ragged columns, the values stay in the shards, and
    ``row_splits`` are stored, with 8 bytes per row.

    Parameters
    ----------
    urlpath, features, sequence_features, example_features, message, columns, split, compression, storage_options
        As in `read_tfrecord`. Compressed shards are one chunk each.
    rows_per_chunk : int or str, default "16 MiB"
        Records per chunk, or the bytes of a chunk in its shard, which a reader requests at once. A size is an upper
        limit: preferably, all chunks have the same number of records, one that divides all shards but the last.
    check_crc : bool, default True
        Let readers check the CRCs of records, and that a chunk has the records that were scanned.

    Returns
    -------
    VirtualZarr
        To write it, call `VirtualZarr.to_json`, `VirtualZarr.to_parquet` or `VirtualZarr.to_icechunk`.

    Raises
    ------
    SchemaError
        If the chunks of an array differ in length and zarr does not accept such grids (the error shows how to turn them
        on), if a dtype has no name in Zarr, or if you select a part of a compressed shard.
    CorruptRecordError
        If the header of a record is damaged or a shard is truncated. Readers check payloads later.
    FeatureError
        If rows differ in length and a record contradicts the features.
    ValueError
        If shards are in several file systems, or are given as chained URLs.

    Notes
    -----
    The references are valid as long as the shards do not change; reading a record that has changed raises an error.
    fsspec options are not stored; readers pass them as ``remote_options``.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.virtual_zarr("train-*.tfrecord", columns=["image", "label", "text"])
    <VirtualZarr: 20 records of 2 files: image, label, text>
    """
    rows, size = rows_or_size("rows_per_chunk", rows_per_chunk)
    if isinstance(rows, Mapping):
        raise ValueError(f"rows_per_chunk must be one number or size for all columns; got {rows_per_chunk!r:.100}")
    wanted = wanted_schema(features, sequence_features, example_features, message, storage_options)
    # Parts of splits and lengths of steps need counts; otherwise the records are counted below, in the only pass.
    counts = "auto" if split is not None or open_lengths(wanted or Schema({})) else None
    given = read_rows(
        urlpath,
        features,
        sequence_features=sequence_features,
        example_features=example_features,
        message=message,
        columns=columns,
        split=split,
        chunks="shard",
        counts=counts,
        compression=compression,
        storage_options=storage_options,
    )
    source = given.source
    assert isinstance(source, RecordSource | UncountedSource)
    shards, decoder = source.shards, source.decoder
    schema = decoder.columns
    check_storable(schema)
    _check_files(shards)
    files = tuple(map(redact_url, shards.paths))
    _check_distinct_urls(files, shards.paths)
    scans = scan_records(shards)
    kinds = {scan.compression for scan in scans if len(scan.ends)}
    if len(kinds) > 1:
        raise SchemaError(f"the arrays have one codec, and the shards are compressed in several ways: {kinds}")
    pieces = row_pieces(source, scans)
    chunks = Chunks.plan(pieces, scans, shards, rows or choose_rows(pieces, scans, size or 0))
    measured = measure_rows(shards, decoder, chunks)
    arrays, stored, known = _group_arrays(decoder, chunks, measured, next(iter(kinds), None), check_crc)
    sources = {name: column.source for name, column in decoder.decoders.items()}
    _check_grids(arrays, sources, math.gcd(*(stop - first for _, first, stop in pieces[:-1])))
    own = {
        "format_version": FORMAT_VERSION,
        "id": tokenize(shards, decoder, chunks.counts),
        "complete": True,
        "records": chunks.nrecords,
        "unit_rows": int(chunks.counts.max(initial=1)),
        "chunk_rows": _run_lengths(chunks.counts),
        "features": list(schema),
        "schema": json.loads(schema.to_json()),
        "source": {**shards_origin(shards), "schema": json.loads(decoder.schema.to_json())},
    }
    return VirtualZarr(files, chunks.nrecords, arrays, stored, known, stored_attribute(own))


def _group_arrays(
    decoder: Decoder,
    chunks: Chunks,
    measured: Sequence[Mapping[str, Sizes]],
    compression: str | None,
    check_crc: bool,
) -> tuple[tuple[VirtualArray, ...], dict[str, StoredArray], dict[str, NDArray[np.uint64]]]:
    """Return the arrays of the columns, those in shards and those that are stored, and the chunks of the former."""
    columns, strings = decoder.columns, with_strings(decoder.columns)
    # Without a chunk, an array has the levels of no rows.
    without_rows = {name: sizes_of(zero_rows(strings[name])) for name in flat_levels(strings)}
    sizes_of_chunks = [*measured, without_rows]
    levels = {
        name: [*map(np.concatenate, zip(*(each[name].levels for each in sizes_of_chunks), strict=True))]
        for name in without_rows
    }
    totals = {name: np.array([chunks.nrecords, *(each.sum() for each in levels[name])], np.int64) for name in levels}
    counts = BorderCounts(
        np.array([0, chunks.nrecords]),
        {name: np.stack([np.zeros_like(items), items]) for name, items in totals.items()},
        np.zeros(2, np.int64),
    )
    layout = zarr_layout(strings, chunks.nrecords, RowGrid(1, 1, 1), counts)
    splits = layout.splits_attributes(strings)
    arrays, stored, known = [], {}, {}
    for spec in layout.arrays:
        name, attributes = spec.feature, array_attributes(spec, columns, {}) | splits.get(spec.name, {})
        if spec.part.startswith("row_splits"):
            level = Levels.from_feature(strings[name]).splits.index(spec.part)
            stored[spec.name] = StoredArray(spec, splits_of(levels[name][level]), attributes)
            continue
        if spec.part.endswith("shapes"):
            shapes = np.concatenate([each[name].shapes for each in sizes_of_chunks])
            stored[spec.name] = StoredArray(spec, shapes, attributes)
            continue
        edges = chunks.counts if spec.part == "dense" else np.array([each[name].items for each in measured], np.int64)
        kept = edges > 0
        if columns[name].item_dtype.kind == "T":
            attributes |= {"_Encoding": "utf-8"}  # xarray decodes bytes with this attribute
        codec = TFRecordCodec(
            decoder.schema.select([decoder.decoders[name].source]).to_json(),
            name,
            "rows" if spec.part == "dense" else "values",
            check_crc,
            compression,
        )
        if codec.array_of_chunks not in known:
            known[codec.array_of_chunks] = chunks.of_codec()[kept]
        places = chunks.files[kept], chunks.offsets[kept], chunks.nbytes[kept]
        arrays.append(VirtualArray(spec, codec, attributes, edges[kept], *places))
    return tuple(arrays), stored, known


def _check_grids(arrays: Sequence[VirtualArray], sources: Mapping[str, str], common: int = 0) -> None:
    """Refuse chunks that differ in length where zarr does; `sources` are the features of columns."""
    features = {array: sources.get(array.spec.feature, array.spec.feature) for array in arrays}
    unequal = sorted({feature for array, feature in features.items() if not is_regular(array.edges)})
    if unequal and not takes_unequal_chunks():
        others = [name for name in dict.fromkeys(features.values()) if name not in unequal]
        ways = f"columns={others} leaves them out, " if others and sources else ""
        rows = f"rows_per_chunk={common} makes equal chunks of rows, " if common else ""
        raise SchemaError(
            f"the chunks of {', '.join(map(repr, unequal))} differ in length, for which zarr needs version 3.2 and "
            f"zarr.config.set({{{UNEQUAL_CHUNKS!r}: True}}), for readers too; {ways}{rows}to_zarr copies the values"
        )


def _run_lengths(values: NDArray[np.int64]) -> list[list[int]]:
    """Return consecutive equal values as pairs of value and number."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    numbers = np.diff(np.append(starts, len(values)))
    return [list(pair) for pair in zip(values[starts].tolist(), numbers.tolist(), strict=True)]


def _check_files(shards: Shards) -> None:
    """Raise if references can't address the files: readers support one file system."""
    protocols = set()
    for path in shards.paths:
        local = is_local(path)
        if ("://" if local else "::") in path:
            raise ValueError(
                f"{redact_url(path)}: readers of references take a plain path, or a URL of one file system"
            )
        protocols.add("file" if local else fsspec.core.split_protocol(path)[0])
    if "store" in shards.storage_options:
        raise ValueError("readers of references take URLs, which paths in storage_options['store'] are not")
    if len(protocols) > 1:
        raise ValueError(f"readers of references have one file system; the shards are in {sorted(protocols)}")


def _check_distinct_urls(files: Sequence[str], paths: Sequence[str]) -> None:
    """Raise if URLs differ only in user info or query, which references do not store."""
    known: dict[str, str] = {}
    for file, path in zip(files, paths, strict=True):
        if known.setdefault(file, path) != path:
            raise ValueError(
                f"{file}: several shards have this URL and differ in user info or query, which references do not hold "
                f"because they may be credentials; refer to shards by URLs that differ in their paths"
            )
