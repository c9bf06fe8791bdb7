"""References: a Zarr group whose chunks are byte ranges of other files, as kerchunk JSON or Parquet.

The metadata are Zarr v2, the only version that kerchunk's Parquet form and its xarray engine support; zarr 3 reads it.
Formats: https://fsspec.github.io/kerchunk/spec.html. pandas is imported when Parquet is written.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.errors import plural, printable, redact_url
from dask_tfrecord.storage.clients import url_to_fs
from dask_tfrecord.storage.streams import write_file

__all__ = ["JSON_SUFFIXES", "PARQUET_SUFFIXES", "VirtualArray", "VirtualZarr", "check_target"]

# Readers choose the format by these suffixes.
JSON_SUFFIXES = (".json",)
PARQUET_SUFFIXES = (".parquet", ".parq")

_CONSOLIDATED = ".zmetadata"


@dataclass(frozen=True, slots=True, eq=False)
class VirtualArray:
    """Array with one chunk per record.

    Attributes
    ----------
    name : str
        Name in the group.
    shape : tuple of int
        Shape; the first axis is records.
    dtype : str
        NumPy dtype with the byte order of the files.
    dimensions : tuple of str
        Names of the axes.
    nbytes : int
        Bytes of a chunk.
    offsets : ndarray of int64, shape (records,)
        Byte offset of each chunk in its file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dimensions: tuple[str, ...]
    nbytes: int
    offsets: NDArray[np.int64]

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
    """Check the suffix of a target, and that the target does not exist.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or URL to write to.
    suffixes : sequence of str
        Accepted suffixes.
    storage_options : mapping, optional
        Options of fsspec for the URL.

    Returns
    -------
    fs : fsspec file system
        File system of the target.
    path : str
        Path of the target in that file system.
    """
    target = str(stringify_path(urlpath))
    shown = redact_url(target)
    if not target.endswith(tuple(suffixes)):
        raise ValueError(f"expected a name that ends in {' or '.join(suffixes)}; got {shown!r}")
    fs, path = url_to_fs(target, **(storage_options or {}))
    if fs.exists(path):
        raise FileExistsError(f"{shown} exists: remove it, or give another path")
    return fs, path
