"""`Dataset`: columns of records as lazy dask arrays. It is a dask collection itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import dask
import dask.array as da
import dask.local
import dask.threaded
import numpy as np
from dask.base import DaskMethodsMixin, get_scheduler, normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.array_likes import aligned_column, columns_from_arrays
from dask_tfrecord.arrays.collection import checked_number
from dask_tfrecord.arrays.compute import compute_in_place, count_rows, first_rows, gather
from dask_tfrecord.arrays.display import html_dataset, text_dataset
from dask_tfrecord.arrays.explode import explode_rows
from dask_tfrecord.arrays.mapped_source import BlockFunction, infer_template, mapped_schema
from dask_tfrecord.arrays.ragged import padded_column, ragged_column
from dask_tfrecord.arrays.rows import Rows, without_empty_chunks
from dask_tfrecord.arrays.sources import Source
from dask_tfrecord.arrays.uncounted_source import UncountedSource
from dask_tfrecord.arrays.verification import verify_rows
from dask_tfrecord.arrays.writers import DatasetWriters
from dask_tfrecord.columns.blocks import to_array
from dask_tfrecord.columns.record_schema import column_forms
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature
from dask_tfrecord.runtime.dask_private import refuse_query_planning
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["Dataset"]


class Dataset(DatasetWriters, DaskMethodsMixin):
    """Columns of records: a mapping from feature name to dask array, in shared chunks of rows.

    `read_tfrecord`, `from_zarr` and `from_arrays` create data sets. Arrays requested together are decoded together::

        ds["label"]                   # a dask array; decodes only label, and only the rows that remain after slicing
        ds["image", "label"]          # a tuple of arrays: one decode per chunk
        ds[["image", "label"]]        # a Dataset of fewer columns
        ds.rows[1000:2000]            # a Dataset of fewer rows

    Parameters
    ----------
    rows : Rows
        The rows, without assigned columns.
    names : sequence of str
        Names of the columns, in order.
    assigned : mapping of str to dask array
        Columns that `assign` added.
    features : mapping of str to Feature
        Features of the assigned columns.
    """

    __slots__ = ("_assigned", "_features", "_names", "_rows")

    def __init__(
        self,
        rows: Rows,
        names: Sequence[str],
        assigned: Mapping[str, da.Array] | None = None,
        features: Mapping[str, Feature] | None = None,
    ) -> None:
        refuse_query_planning()
        self._rows = rows
        self._names = tuple(names)
        self._assigned = {name: without_empty_chunks(array) for name, array in (assigned or {}).items()}
        self._features = dict(features or {})

    @property
    def schema(self) -> Schema:
        """Features of all columns."""
        own = self._rows.schema
        features = {name: (self._features if name in self._assigned else own)[name] for name in self._names}
        whole = not self._assigned and set(self._names) == set(own)
        kept = {name: own.classes[name] for name in self._names if name in own.classes and name not in self._assigned}
        groups = own.groups_of([name for name in self._names if name not in self._assigned])
        return Schema(features, own.sampling if whole else None, classes=kept, groups=groups, report=own.report)

    @property
    def nrows(self) -> int | None:
        """Number of rows; None if they are not counted (``counts=None``)."""
        return self._rows.nrows

    @property
    def npartitions(self) -> int:
        """Number of chunks of rows."""
        return self._rows.nchunks

    @property
    def chunks(self) -> tuple[float, ...]:
        """Rows of each chunk; NaN if they are not counted."""
        return self._rows.sizes

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows as JSON values: files with sizes and versions, and the schema of the records."""
        return self._rows.origin

    @property
    def source(self) -> Source | None:
        """Source of rows that are read on demand; None after `persist` and for data sets with assigned columns."""
        return None if self._assigned else self._rows.source

    @property
    def borders(self) -> NDArray[np.int64] | None:
        """First row of each chunk, and the number of rows; None if they are not counted."""
        return self._rows.borders

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getattr__(self, name: str) -> Any:
        hint = "" if name.startswith("_") or name not in self._names else f"; its column is ds[{name!r}]"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        # Mapping would compare arrays, elementwise and lazily.
        return self is other

    @overload
    def __getitem__(self, key: str) -> da.Array: ...
    @overload
    def __getitem__(self, key: tuple[str, ...]) -> tuple[da.Array, ...]: ...
    @overload
    def __getitem__(self, key: list[str]) -> Dataset: ...
    def __getitem__(self, key: str | tuple[str, ...] | list[str]) -> da.Array | tuple[da.Array, ...] | Dataset:
        if isinstance(key, str):
            self._check_names([key])
            return self._assigned[key] if key in self._assigned else self._rows.array(key)
        if not isinstance(key, list | tuple) or not all(isinstance(name, str) for name in key):
            raise TypeError(
                f"columns are picked by a name, a tuple or a list of names; got {key!r:.100}; ds.rows picks rows"
            )
        self._check_names(key)
        if isinstance(key, list):
            assigned = {name: self._assigned[name] for name in key if name in self._assigned}
            return Dataset(self._rows, key, assigned, self._features)
        own = [name for name in key if name not in self._assigned]
        arrays = self._rows.arrays(own) if len(own) != 1 else {own[0]: self._rows.array(own[0])}
        return tuple(self._assigned[name] if name in self._assigned else arrays[name] for name in key)

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._names:
                raise UnknownFeatureError(
                    f"no column {name!r}{near_misses(name, self._names, self._rows.schema.sampling)}"
                )
        if len(set(names)) < len(names):
            raise SchemaError(f"columns are picked once each; got {list(names)}")

    @property
    def rows(self) -> _RowIndexer:
        """Select rows: ``ds.rows[key]`` for an int, a slice, a list of ints or a mask returns a Dataset.

        Only the selected records are read and decoded.
        """
        return _RowIndexer(self)

    def sample(self, n: int, seed: Any = None) -> Dataset:
        """Draw rows at random, uniformly and without replacement.

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int or other argument of `numpy.random.default_rng`, optional
            The same seed draws the same rows; without a seed they differ between calls.

        Returns
        -------
        Dataset
            The rows in the order of the records. Like `rows`, it reads only those records.

        Raises
        ------
        ValueError
            If the data set has fewer rows, or they are not counted (``counts=None``).

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.sample(3, seed=1)["label"].compute().shape
        (3,)
        """
        if self.nrows is None:
            raise ValueError("a sample is drawn from rows that are counted: open with counts='auto', not counts=None")
        n = checked_number("n", n, self.nrows)
        drawn = np.random.default_rng(seed).choice(self.nrows, n, replace=False, shuffle=False)
        return self.rows[np.sort(drawn)]

    def assign(self, **arrays: Any) -> Dataset:
        """Add or replace columns. A replaced column leaves its group.

        Parameters
        ----------
        **arrays : array-like
            Arrays with as many rows as the data set, of the kinds that `dask_tfrecord.to_tfrecord` accepts.

        Raises
        ------
        SchemaError
            If an array has another number of rows, holds masked or missing values, or is a dask array of objects. If
            rows are not counted, only arrays computed chunk by chunk from the columns are accepted.
        """
        added = {name: aligned_column(given, self.chunks, f"column {name!r}") for name, given in arrays.items()}
        features = self._features | {name: feature for name, (feature, _) in added.items()}
        assigned = self._assigned | {name: array for name, (_, array) in added.items()}
        return Dataset(self._rows, list(dict.fromkeys([*self._names, *added])), assigned, features)

    def map_blocks(self, func: BlockFunction, template: Mapping[str, Any] | None = None) -> Dataset:
        """Pass the rows through a function, block by block, within the task that decodes them.

        Parameters
        ----------
        func : callable
            Function from a dict of blocks of n rows to a dict of blocks of n rows. It may change, add and drop columns.
            Blocks are NumPy arrays; ragged rows are a `RaggedBlock` (``values`` and ``row_splits``), which the function
            may return as well. Blocks may have any number of rows, so each row must be processed independently.
        template : mapping, optional
            Output of the function: a feature class for each name, or an empty array of the right dtype and shape. A
            Schema, such as ``ds.schema``, keeps its groups. By default `map_blocks` calls the function once with empty
            blocks.

        Returns
        -------
        Dataset
            Lazy. A column that is returned under its name with the same dtype and shape keeps its feature class, so
            that `to_tfrecord` writes the same kind of values. Without a Schema as `template`, no column is in a group,
            because the function may change lengths: `to_zarr` takes ``groups=``.

        Raises
        ------
        ValueError
            If no template is given and the function fails on empty blocks.
        """
        made = template if template is not None else infer_template(func, self.schema, self._names)
        schema = mapped_schema(made, self.schema)
        return Dataset(self.merged().map(func, self._names, schema), list(schema))

    def merged(self) -> Rows:
        """Return the rows with all columns, including assigned ones."""
        if not self._assigned:
            return self._rows
        schema = self.schema
        added = Rows.of_arrays(self._assigned, schema.select(self._assigned), self._rows.sizes, self._rows.origin)
        own = [name for name in self._names if name not in self._assigned]
        return self._rows.join(own, added, schema) if own else added

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], features: Mapping[str, Any] | None = None) -> Dataset:
        """Create a data set from arrays with the same number of rows.

        Parameters
        ----------
        arrays : mapping of str to array-like
            Arrays with rows along the first axis.
        features : mapping of str to feature, optional
            Features of columns, which arrays of objects need. `FixedLenSequenceFeature` stands for rows without
            padding.

        Raises
        ------
        SchemaError
            If there are no arrays, their numbers of rows differ, no feature describes the dtype of an array, or an
            array does not have the form of its feature.
        UnknownFeatureError
            If a feature has no array.
        FeatureError
            If a number of a list does not fit the dtype of its feature.
        """
        rows = columns_from_arrays(arrays, column_forms(features), exact=True)
        return cls(rows, list(rows.schema))

    def ragged(self, name: str) -> tuple[da.Array, ...]:
        """Return flat values and row splits of a column whose rows differ in length or shape.

        Parameters
        ----------
        name : str
            Column of ragged rows, at any number of levels, or of arrays with a shape per row.

        Returns
        -------
        values : dask array of shape (nvalues, *inner)
            All values, in chunks of unknown sizes.
        *row_splits : dask arrays of int64, shape (nrows + 1,) for the first
            One array per level, the outermost first. Row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, or those
            rows of the next level, as in `tf.RaggedTensor`.
        shapes : dask array of int64, shape (nrows, axes), or (narrays, axes) for lists of arrays
            Only for arrays with shapes of their own, whose values are flattened. The last row splits divide the values
            among the arrays.
        """
        self._check_names([name])
        return ragged_column(self[[name]].merged(), name, self.schema[name])

    def padded(self, name: str, length: int | tuple[int, ...], value: Any = None) -> da.Array:
        """Pad the ragged rows of a column to a dense array.

        Parameters
        ----------
        name : str
            Column of ragged rows.
        length : int or tuple of int
            Values per row, for each level of rows. A longer row raises `FeatureError` when it is computed: rows are
            never cut.
        value : scalar, optional
            Padding, by default 0 or ``b""``.

        Returns
        -------
        dask array of shape (nrows, *length, *inner)

        Raises
        ------
        SchemaError, ValueError
            If the rows are not ragged, or the column has other levels or a dtype that cannot represent `value`.
        """
        self._check_names([name])
        return padded_column(self[[name]].merged(), name, self.schema[name], length, value)

    def head(self, n: int = 5) -> dict[str, NDArray[Any]]:
        """Compute the first `n` rows, or all if there are fewer.

        Only those are decoded, except by `map_blocks` and `explode` of rows that are not counted (``counts=None``).
        """
        n = checked_number("n", n)
        if isinstance(self.source, UncountedSource) and self._names:
            first = dask.delayed(UncountedSource.first, pure=False)(self.source, tuple(self._names), n)
            return {name: to_array(block) for name, block in first.compute().items()}
        if self.nrows is not None:
            return self.rows[:n].compute()
        return first_rows(self.merged().chunks(self._names), self.schema, n)

    def compute(self, **kwargs: Any) -> dict[str, NDArray[Any]]:
        """Compute all columns as NumPy arrays.

        The threaded scheduler decodes records directly into the results and needs little memory beyond them. Other
        schedulers send flat buffers, which are concatenated here. Keyword arguments are those of `dask.compute`.

        Rows of different lengths are views on the values of all records that were read at once. To keep a few rows and
        free the others, copy them.
        """
        scheduler = get_scheduler(collections=[self], scheduler=kwargs.get("scheduler"))
        local = scheduler in (dask.threaded.get, dask.local.get_sync)
        source, borders = self._rows.source, self._rows.borders
        if local and borders is not None and source is not None:
            return compute_in_place(source, borders, self.schema, self._assigned, kwargs)
        columns: dict[str, NDArray[Any]] = dask.compute(self, **kwargs)[0]
        return columns

    def persist(self, **kwargs: Any) -> Dataset:
        """Decode all chunks now and keep the flat buffers in memory, on the workers of a cluster.

        Keyword arguments are those of `dask.persist`.
        """
        dataset: Dataset = dask.persist(self, **kwargs)[0]
        return dataset

    def count(self) -> int:
        """Return the number of records; count them now if they are not counted (``counts=None``)."""
        if self.nrows is not None:
            return self.nrows
        return count_rows(self.merged().chunks(self._names[:1]))

    explode = explode_rows
    verify = verify_rows

    def _parts(self) -> list[da.Array]:
        own = [name for name in self._names if name not in self._assigned]
        return [self._rows.chunks(own), *(self._assigned[name] for name in self._names if name in self._assigned)]

    def __dask_graph__(self) -> dict[Any, Any]:
        return {key: task for part in self._parts() for key, task in part.__dask_graph__().items()}

    def __dask_keys__(self) -> list[Any]:
        return [part.__dask_keys__() for part in self._parts()]

    def __dask_tokenize__(self) -> object:
        arrays = [array.name for array in self._assigned.values()]
        return normalize_token(("dask_tfrecord.Dataset", self._rows, self._names, list(self._assigned), arrays))

    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)
    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    def __dask_postcompute__(self) -> tuple[Callable[..., dict[str, NDArray[Any]]], tuple[Any, ...]]:
        finalizers = [part.__dask_postcompute__() for part in self._parts()[1:]]
        names = [name for name in self._names if name in self._assigned]
        return gather, (self._names, self.schema, dict(zip(names, finalizers, strict=True)))

    def __dask_postpersist__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        rebuilders = [part.__dask_postpersist__() for part in self._parts()]
        rows = self._rows
        own = rows.schema.select(name for name in self._names if name not in self._assigned)
        assigned = [name for name in self._names if name in self._assigned]
        return _rebuild, (self._names, assigned, self._features, rebuilders, (own, rows.sizes, rows.origin))

    def __repr__(self) -> str:
        return text_dataset(self)

    def _repr_html_(self) -> str:
        return html_dataset(self)


class _RowIndexer:
    """Indexer of `Dataset.rows`."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Dataset:
        dataset = self._dataset
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            key = [int(key)]
        if isinstance(key, tuple):
            raise IndexError(
                f"rows are picked by one int, slice, list or mask; got {key!r:.100}; ds.rows[[1, 2]] picks two"
            )
        if not isinstance(key, slice):
            # Computes a mask that is a dask array. An empty list has dtype float64.
            key = np.asarray(key)
            key = key if key.size else key.astype(np.int64)
        picked = dataset._rows.select(key)
        assigned = {name: array[key] for name, array in dataset._assigned.items()}
        return Dataset(picked, dataset._names, assigned, dataset._features)


def _rebuild(
    dsk: Any,
    names: Sequence[str],
    assigned: Sequence[str],
    features: Mapping[str, Feature],
    rebuilders: Sequence[tuple[Any, tuple[Any, ...]]],
    state: tuple[Schema, tuple[float, ...], Mapping[str, Any]],
    *,
    rename: Mapping[str, str] | None = None,
) -> Dataset:
    rebuilt = [rebuild(dsk, *options, rename=rename) for rebuild, options in rebuilders]
    return Dataset(Rows.of_chunks(rebuilt[0], *state), names, dict(zip(assigned, rebuilt[1:], strict=True)), features)
