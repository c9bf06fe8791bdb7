"""A Zarr group whose chunks are byte ranges of other files, in the two forms that kerchunk has given it.

Metadata are those of Zarr v2: the Parquet form, kerchunk's engine for xarray and VirtualiZarr know no other, and zarr 3
reads them. Nothing here imports zarr; pandas is imported where Parquet is written.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
from fsspec.utils import stringify_path
from numpy.typing import NDArray

from dask_tfrecord.storage.streams import open_sink

__all__ = ["JSON_SUFFIXES", "PARQUET_SUFFIXES", "VirtualArray", "VirtualZarr", "check_target"]

# By these readers tell what they open.
JSON_SUFFIXES = (".json",)
PARQUET_SUFFIXES = (".parquet", ".parq")

_CONSOLIDATED = ".zmetadata"


@dataclass(frozen=True, slots=True, eq=False)
class VirtualArray:
    """An array with a chunk for each record.

    Attributes
    ----------
    name : str
        Its name in the group.
    shape : tuple of int
        Its shape, records first.
    dtype : str
        A NumPy dtype with the byte order of the files.
    dimensions : tuple of str
        Names of the axes.
    nbytes : int
        Bytes of a chunk.
    offsets : ndarray of int64, shape (records,)
        The byte of its file where each chunk begins.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dimensions: tuple[str, ...]
    nbytes: int
    offsets: NDArray[np.int64]

    @property
    def metadata(self) -> dict[str, Any]:
        """What ``.zarray`` says."""
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": [1, *self.shape[1:]],
            "dtype": self.dtype,
            "compressor": None,
            "filters": None,
            # xarray would take values that are equal to one for missing.
            "fill_value": None,
            "order": "C",
        }

    def keys(self) -> Iterator[str]:
        """Name the chunks, record by record."""
        rest = ".0" * (len(self.shape) - 1)
        return (f"{self.name}/{record}{rest}" for record in range(self.shape[0]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VirtualZarr:
    """A Zarr group that holds no data: each chunk is a byte range within a record of a shard.

    Made by `virtual_zarr`. zarr and xarray open what `to_json` and `to_parquet` write, or `references` itself, through
    fsspec's file system of references.

    Attributes
    ----------
    files : tuple of str
        The shards: absolute paths, or URLs.
    file_numbers : ndarray of int64, shape (records,)
        Which of the files each record is in.
    arrays : tuple of VirtualArray
        One for each feature.
    attributes : mapping of str to JSON values
        Of the group.
    """

    files: tuple[str, ...]
    file_numbers: NDArray[np.int64]
    arrays: tuple[VirtualArray, ...]
    attributes: Mapping[str, Any]

    def __repr__(self) -> str:
        names = ", ".join(array.name for array in self.arrays)
        return f"<VirtualZarr: {len(self.file_numbers):,} records of {len(self.files):,} files: {names}>"

    @property
    def nrecords(self) -> int:
        """Records, and chunks of each array."""
        return len(self.file_numbers)

    def references(self) -> dict[str, Any]:
        """Every chunk in a dict, which is kerchunk's format of version 1.

        Returns
        -------
        dict
            ``version`` and ``refs``: JSON texts of metadata, and ``[file, byte, bytes]`` of each chunk.

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
            places = zip(array.keys(), files, array.offsets.tolist(), strict=True)
            refs.update((key, [file, offset, array.nbytes]) for key, file, offset in places)
        return {"version": 1, "refs": refs}

    def to_json(self, urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Write the references as kerchunk JSON, of which readers load all at once.

        Parameters
        ----------
        urlpath : str or os.PathLike
            A path or URL; ``.json`` at its end tells readers what it is.
        storage_options : mapping, optional
            What fsspec takes beside a URL.

        Raises
        ------
        ValueError
            If the name does not end so.
        FileExistsError
            If it is there.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> virtual = dtf.virtual_zarr("train-*.tfrecord", {"image": dtf.RawFeature((8, 8, 3), "uint8")})
        >>> virtual.to_json("images.json")
        """
        check_target(urlpath, JSON_SUFFIXES, storage_options)
        sink = open_sink(urlpath, storage_options)
        try:
            sink.write(json.dumps(self.references(), separators=(",", ":")).encode())
        except BaseException:
            sink.discard()
            raise
        sink.close()

    def to_parquet(
        self,
        urlpath: str | os.PathLike[str],
        *,
        record_size: int = 100_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the references as kerchunk Parquet, of which readers load what they need: for millions of records.

        Needs pandas and pyarrow: ``pip install 'dask-tfrecord[virtual]'``. Given the name of such a directory, fsspec
        reads it by fastparquet; by pyarrow it does through
        ``fsspec.implementations.reference.LazyReferenceMapper(urlpath, engine="pyarrow")`` in place of the name.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or URL of a directory, which is made; ``.parquet`` or ``.parq`` at its end tells readers what it is.
        record_size : int, default 100,000
            Chunks of an array in one file.
        storage_options : mapping, optional
            What fsspec takes beside a URL.

        Raises
        ------
        ValueError
            If the name does not end so, or `record_size` is no positive number.
        FileExistsError
            If it is there.

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
                for part, start in enumerate(range(0, self.nrecords, record_size)):
                    table = self._table(array, slice(start, start + record_size))
                    fs.pipe_file(f"{root}/{array.name}/refs.{part}.parq", table)
            # Without it nothing can be opened, so it comes last.
            metadata = {**_consolidated(self._metadata()), "record_size": record_size}
            fs.pipe_file(f"{root}/{_CONSOLIDATED}", json.dumps(metadata).encode())
        except BaseException:
            fs.rm(root, recursive=True)
            raise

    def _metadata(self) -> dict[str, Any]:
        """Metadata of the group and the arrays, by their keys in a store."""
        metadata: dict[str, Any] = {".zgroup": {"zarr_format": 2}, ".zattrs": dict(self.attributes)}
        for array in self.arrays:
            metadata[f"{array.name}/.zarray"] = array.metadata
            metadata[f"{array.name}/.zattrs"] = {"_ARRAY_DIMENSIONS": list(array.dimensions)}
        return metadata

    def _table(self, array: VirtualArray, part: slice) -> bytes:
        """Make one file of references."""
        import pandas

        used, codes = np.unique(self.file_numbers[part], return_inverse=True)
        paths = pandas.Categorical.from_codes(codes, categories=[self.files[number] for number in used.tolist()])
        offsets = array.offsets[part]
        frame = pandas.DataFrame({"path": paths, "offset": offsets, "size": np.full(len(offsets), array.nbytes)})
        buffer = io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow", index=False, compression="zstd")
        return buffer.getvalue()


def _consolidated(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_consolidated_format": 1, "metadata": dict(metadata)}


def check_target(
    urlpath: str | os.PathLike[str], suffixes: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Any, str]:
    """Refuse a name that readers would take for something else, and what is there.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Where references are to be written.
    suffixes : sequence of str
        One of these ends the name.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    fs : fsspec file system
        Where that is.
    path : str
        As the file system spells it.
    """
    target = str(stringify_path(urlpath))
    if not target.endswith(tuple(suffixes)):
        raise ValueError(f"a name that ends in {' or '.join(suffixes)} tells readers what it is; got {target!r}")
    fs, path = fsspec.core.url_to_fs(target, **(storage_options or {}))
    if fs.exists(path):
        raise FileExistsError(f"{target} exists: remove it, or give another path")
    return fs, path
