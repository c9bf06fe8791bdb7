"""Engine "tfrecord" of xarray: `open_dataset`, `open_datatree` and `open_groups` of shards, indexed lazily.

xarray imports this module to list its engines, so it imports the reader when shards are opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray
from numpy.typing import NDArray
from xarray.backends import BackendArray, BackendEntrypoint

# Backends index by these classes: https://docs.xarray.dev/en/stable/internals/how-to-add-new-backend.html
from xarray.core import indexing

if TYPE_CHECKING:
    from dask_tfrecord.extras.interop.xarray import VariableSpec
    from dask_tfrecord.rows.sources import CountedRows


_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
# Options for files of other formats.
_DECODERS = frozenset(
    {"mask_and_scale", "decode_times", "decode_timedelta", "use_cftime", "concat_characters", "decode_coords"}
)


class IndexedColumn(BackendArray):
    """Column that is read when it is indexed: the selected records only, with every value of a selected record."""

    def __init__(self, source: CountedRows, column: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.source = source
        self.column = column
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Read a selection; of a vectorised one, xarray requests the outer one and applies the rest to the result."""
        if isinstance(key, indexing.BasicIndexer | indexing.OuterIndexer):
            # xarray fails to divide an empty slice with a negative step into a positive one and its reverse.
            return self._read(key.tuple)
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """Read the rows of an outer index, and index their other axes one by one."""
        from dask_tfrecord.blocks import to_array

        rows, *inner = key
        is_single = not isinstance(rows, slice) and np.ndim(rows) == 0
        wanted = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows, np.int64))
        array = to_array(self.source.read((self.column,), wanted)[self.column])
        if self.dtype.metadata:
            array = array.view(self.dtype)
        elif array.dtype != self.dtype:
            array = array.astype(self.dtype)
        # From the last axis on: an int removes its axis.
        for axis in range(len(inner), 0, -1):
            array = array[(slice(None),) * axis + (inner[axis - 1],)]
        if is_single:
            # An object would lose its array.
            array = array.reshape(array.shape[1:])
        return array


class TFRecordBackendEntrypoint(BackendEntrypoint):
    """Engine "tfrecord": columns of TFRecord shards as lazily indexed variables."""

    description: ClassVar[str] = "Open TFRecord shards lazily, without TensorFlow"
    url: ClassVar[str] = "https://github.com/dask-tfrecord/dask-tfrecord/blob/main/docs/how-to/xarray.md"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        "drop_variables",
        "features",
        "sequence_features",
        "example_features",
        "columns",
        "split",
        "partitioning",
        "counts",
        "compression",
        "errors",
        "value_errors",
        "fill_values",
        "check_crc",
        "storage_options",
        "coords",
        "dimension_names",
        "group",
    )
    supports_groups: ClassVar[bool] = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return True for names that end in .tfrecord, .tfrecords or .tfrec, with .gz or without."""
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        name = os.fspath(filename_or_obj)
        return isinstance(name, str) and name.lower().removesuffix(".gz").endswith(_SUFFIXES)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        coords: Sequence[str] = (),
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> xarray.Dataset:
        """Open shards as one Dataset.

        Parameters
        ----------
        filename_or_obj : str, os.PathLike or list of these
            As `urlpath` of `dask_tfrecord.read_tfrecord`.
        drop_variables : str or iterable of str, optional
            Variables or features that are neither opened nor decoded; unknown names are ignored.
        group : str, optional
            Features with this prefix only (``"steps"`` for ``steps/reward``), under the rest of their names.
        coords : sequence of str, optional
            Features that are coordinates.
        dimension_names : mapping of str to sequence of str, optional
            Names of the axes of a row, by feature.
        **options
            Further arguments of `dask_tfrecord.read_tfrecord`, except `chunks`, which belongs to xarray.

        Returns
        -------
        xarray.Dataset
            Variables are read when they are indexed, and ``chunks={}`` makes one chunk of each shard.

        Raises
        ------
        ValueError
            If records are not counted (``counts=None``), or an argument has an invalid value.
        SchemaError, TFRecordError
            As `read_tfrecord` raises them.
        """
        from dask_tfrecord.extras.interop.xarray import in_groups

        opened = _Opened(filename_or_obj, drop_variables, coords, dimension_names, options)
        if group is None:
            return opened.dataset(opened.specs)
        groups = in_groups(opened.specs)
        path = "/" + group.strip("/")
        if path not in groups:
            raise ValueError(f"no group {group!r}; there are {', '.join(map(repr, groups))}")
        return opened.dataset(groups[path])

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        coords: Sequence[str] = (),
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> dict[str, xarray.Dataset]:
        """Open shards as a Dataset per group: the feature ``steps/reward`` is the variable reward of ``/steps``.

        The arguments are as for `open_dataset`.
        """
        from dask_tfrecord.extras.interop.xarray import in_groups

        opened = _Opened(filename_or_obj, drop_variables, coords, dimension_names, options)
        return {path: opened.dataset(specs, is_root=path == "/") for path, specs in in_groups(opened.specs).items()}

    def open_datatree(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None, **options: Any
    ) -> xarray.DataTree:
        """Open shards as a tree of the groups of `open_groups_as_dict`."""
        groups = self.open_groups_as_dict(filename_or_obj, drop_variables=drop_variables, **options)
        return xarray.DataTree.from_dict(groups)


class _Opened:
    """Opened shards: their rows and variables, by the arguments of `open_dataset`."""

    def __init__(
        self,
        given: Any,
        drop_variables: str | Iterable[str] | None,
        coords: Sequence[str],
        dimension_names: Mapping[str, Sequence[str]] | None,
        options: Mapping[str, Any],
    ) -> None:
        from dask_tfrecord.advice import unknown_option
        from dask_tfrecord.extras.interop.xarray import variable_name, variable_specs
        from dask_tfrecord.features.schema import ITEMS, Schema
        from dask_tfrecord.rows.read import read_rows

        names = [given] if isinstance(given, str | os.PathLike) else given
        if not isinstance(names, list | tuple) or not all(isinstance(name, str | os.PathLike) for name in names):
            raise TypeError(f"engine 'tfrecord' opens paths and URLs of shards; got {type(given).__name__}")
        self.paths = list(map(os.fspath, names))
        self.dropped = dropped = {drop_variables} if isinstance(drop_variables, str) else {*(drop_variables or ())}

        def remains(name: str) -> bool:
            return not {name, variable_name(name)} & dropped

        kept = dict(options)
        for option in ("features", "sequence_features"):
            features = kept.get(option)
            if isinstance(features, Schema):
                kept[option] = features.select(name for name in features if remains(name))
            elif isinstance(features, Mapping):
                kept[option] = {name: feature for name, feature in features.items() if remains(name)}
        items = kept.get("example_features")
        if isinstance(items, Mapping):
            kept["example_features"] = {key: feature for key, feature in items.items() if remains(f"{ITEMS}/{key}")}
        known = TFRecordBackendEntrypoint.open_dataset_parameters
        for option in options:
            if option not in known and option not in _DECODERS:
                raise unknown_option("open_dataset", option, known, options[option])
        # Values of shards are decoded by their features.
        kept = {option: value for option, value in kept.items() if option not in _DECODERS}
        rows = read_rows(given, chunks="shard", **kept)
        rows = rows.select_columns([name for name in rows.names if remains(name)])
        dimension_names = {name: axes for name, axes in (dimension_names or {}).items() if name not in dropped}
        coords = coords if isinstance(coords, str) else [name for name in coords if name not in dropped]
        self.rows, self.labels = rows, rows.labels()
        self.specs = variable_specs(rows.schema, rows.nrows, coords, dimension_names, self.labels)

    def dataset(self, specs: Mapping[str, VariableSpec], *, is_root: bool = True) -> xarray.Dataset:
        """Return a Dataset of some variables, lazily indexed and without indexes, which xarray creates."""
        from dask_tfrecord.errors import redact_url
        from dask_tfrecord.extras.interop.xarray import assembled, boxed_dtype, written_as

        source = self.rows.counted_source
        assert source is not None
        sizes = tuple(int(size) for size in self.rows.sizes if size) or (0,)
        variables = {}
        for name, spec in specs.items():
            feature = self.rows.schema[spec.column]
            dtype = boxed_dtype(feature, spec.dtype)
            array = indexing.LazilyIndexedArray(IndexedColumn(source, spec.column, spec.shape, dtype))
            encoding = {"preferred_chunks": {spec.dims[0]: sizes}}
            encoding |= written_as(feature, spec.dtype)
            variables[name] = xarray.Variable(spec.dims, array, dict(spec.attributes), encoding)
        labels = self.labels
        if labels is not None and not is_root:
            labels = replace(labels, constants={}, collection_attributes={})
        found = assembled(variables, specs, labels, self.dropped)
        # By default xarray stores the given name, with the credentials of a URL.
        found.encoding["source"] = ", ".join(path if os.path.exists(path) else redact_url(path) for path in self.paths)  # noqa: PTH110
        return found
