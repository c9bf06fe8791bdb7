"""`Dataset`: the columns of a collection as lazy dask arrays, and a dask collection itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import dask
import dask.array as da
import dask.local
import dask.threaded
import numpy as np
from dask.base import DaskMethodsMixin, get_scheduler, normalize_token
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dask_tfrecord.arrays.backing import Backing, Held, Lazy, as_array, as_column, held_arrays
from dask_tfrecord.arrays.checking import verify_rows
from dask_tfrecord.arrays.compute import compute_in_place, count_rows, first_rows, gather
from dask_tfrecord.arrays.display import html_table, text_table
from dask_tfrecord.arrays.graph import refuse_query_planning
from dask_tfrecord.arrays.ragged import padded_column, ragged_column
from dask_tfrecord.arrays.source import BlockFunction, Source, infer_template
from dask_tfrecord.arrays.writable import Writable
from dask_tfrecord.columns.conform import feature_of
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["Dataset"]


class Dataset(Mapping[str, da.Array], Writable, DaskMethodsMixin):
    """Columns of records: a mapping from feature name to dask array, in shared chunks of rows.

    Made by `read_tfrecord` and `from_zarr`, not by hand. Arrays asked for together are decoded together::

        ds["label"]                   # a dask array; decodes label alone, and just the rows that slices leave
        ds["image", "label"]          # a tuple of arrays: one decode per chunk
        ds[["image", "label"]]        # a Dataset of fewer columns
        ds.rows[1000:2000]            # a Dataset of fewer rows

    Parameters
    ----------
    backing : Lazy or Held
        What the columns are read from.
    names : sequence of str
        The columns, in order.
    assigned : mapping of str to dask array
        Columns that come from elsewhere.
    """

    __slots__ = ("_assigned", "_backing", "_names")

    def __init__(self, backing: Backing, names: Sequence[str], assigned: Mapping[str, da.Array] | None = None) -> None:
        refuse_query_planning()
        self._backing = backing
        self._names = tuple(names)
        self._assigned = dict(assigned or {})

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The features of all columns."""
        own = self._backing.schema
        features: dict[str, Feature] = {}
        for name in self._names:
            array = self._assigned.get(name)
            features[name] = own[name] if array is None else feature_of(array, f"column {name!r}")
        whole = not self._assigned and set(self._names) == set(own)
        kept = {name: own.classes[name] for name in self._names if name in own.classes and name not in self._assigned}
        return Schema(features, own.sampling if whole else None, classes=kept)

    @property
    def nrecords(self) -> int | None:
        """Number of rows; None where ``counts=None`` left them uncounted."""
        total = float(np.sum(self._backing.sizes))
        return None if np.isnan(total) else int(total)

    @property
    def npartitions(self) -> int:
        """Number of chunks of rows."""
        return len(self._backing.sizes)

    @property
    def chunks(self) -> tuple[float, ...]:
        """Rows of each chunk, NaN where they are not counted."""
        return self._backing.sizes

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where the rows come from: files with sizes and versions, and the schema they were read by, as JSON values."""
        return self._backing.origin

    @property
    def source(self) -> Source | None:
        """What rows are read from on demand; None after `persist`, or where columns were assigned."""
        return self._backing.source if isinstance(self._backing, Lazy) and not self._assigned else None

    @property
    def borders(self) -> NDArray[np.int64] | None:
        """First row of each chunk and the number of rows; None where they are not counted."""
        if self.nrecords is None:
            return None
        return np.concatenate([[0], np.cumsum(self.chunks)]).astype(np.int64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

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
            return self._assigned[key] if key in self._assigned else self._backing.array(key)
        if not isinstance(key, list | tuple):
            raise TypeError(f"columns are picked by a name, a tuple or a list of names; got {key!r}")
        self._check_names(key)
        if isinstance(key, list):
            return Dataset(self._backing, key, {name: self._assigned[name] for name in key if name in self._assigned})
        arrays = self._together(key)
        return tuple(arrays[name] for name in key)

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._names:
                raise UnknownFeatureError(f"no column {name!r}{near_misses(name, self._names)}")
        if len(set(names)) < len(names):
            raise SchemaError(f"columns are picked once each; got {list(names)}")

    def _together(self, names: Sequence[str]) -> dict[str, da.Array]:
        own = [name for name in names if name not in self._assigned]
        arrays = self._backing.arrays(own) if len(own) != 1 else {own[0]: self._backing.array(own[0])}
        return arrays | {name: self._assigned[name] for name in names if name in self._assigned}

    # -- other rows and columns ------------------------------------------------------------------------------------

    @property
    def rows(self) -> _Rows:
        """Fewer rows: ``ds.rows[key]`` for an int, a slice, a list of ints or a mask, as a Dataset.

        The plan is made anew, so exactly those records are read and decoded.
        """
        return _Rows(self)

    def sample(self, n: int, seed: Any = None) -> Dataset:
        """Draw rows at random, all of them equally likely and none twice.

        Parameters
        ----------
        n : int
            How many.
        seed : int or whatever `numpy.random.default_rng` takes, optional
            The same seed draws the same rows; by default other ones each time.

        Returns
        -------
        Dataset
            In the order of the records. Like `rows`, it reads those records alone, each in one range.

        Raises
        ------
        ValueError
            If there are not as many rows, or ``counts=None`` left them uncounted.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.sample(3, seed=1)["label"].compute().shape
        (3,)
        """
        if self.nrecords is None:
            raise ValueError("a sample is drawn from rows that are counted: open with counts='auto', not counts=None")
        if not 0 <= n <= self.nrecords:
            raise ValueError(f"a sample of {self.nrecords} rows has 0 to {self.nrecords} of them; got {n}")
        drawn = np.random.default_rng(seed).choice(self.nrecords, n, replace=False, shuffle=False)
        return self.rows[np.sort(drawn)]

    def assign(self, **arrays: Any) -> Dataset:
        """Columns added or replaced.

        Parameters
        ----------
        **arrays : array-like
            Dask, NumPy or Zarr arrays with as many rows as the data set.

        Raises
        ------
        SchemaError
            If an array has another number of rows, or is of objects: what those are can't be known. Where rows are
            not counted, only arrays that follow from the columns, chunk by chunk, have as many.
        """
        added = {name: as_column(given, self.chunks, f"column {name!r}") for name, given in arrays.items()}
        return Dataset(self._backing, list(dict.fromkeys([*self._names, *added])), self._assigned | added)

    def map_blocks(self, func: BlockFunction, template: Mapping[str, Any] | None = None) -> Dataset:
        """Pass the rows through a function, block by block, within the task that decodes them.

        Parameters
        ----------
        func : callable
            From a dict of blocks of n rows to a dict of blocks of n rows, columns free to change. Blocks are NumPy
            arrays; rows of differing length come as `RaggedBlock` (``values`` and ``row_splits``) and may be returned
            so. It is called with blocks of any number of rows, so each row has to be treated by itself.
        template : mapping, optional
            What the function returns: for each name a feature class, or an array without rows of the right dtype and
            shape. By default the function is called once with blocks of no rows to find out.

        Returns
        -------
        Dataset
            Lazy; nothing is decoded yet.

        Raises
        ------
        ValueError
            If no template is given and the function fails on blocks of no rows.
        """
        made = template if template is not None else infer_template(func, self.schema, self._names)
        if not isinstance(made, Mapping):
            raise SchemaError(f"map_blocks is for functions from and to dicts of blocks; got {type(made).__name__}")
        features = {
            name: like if isinstance(like, Feature) else feature_of(like, f"map_blocks returned {name!r}")
            for name, like in made.items()
        }
        schema = Schema(features)
        return Dataset(self.merged().map(func, self._names, schema), list(schema))

    def merged(self) -> Backing:
        """One backing of all columns, assigned ones too."""
        if not self._assigned:
            return self._backing
        schema = self.schema
        added = held_arrays(self._assigned, schema.select(self._assigned), self._backing.sizes, self._backing.origin)
        own = [name for name in self._names if name not in self._assigned]
        return self._backing.joined(own, added, schema) if own else added

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Dataset:
        """Arrays of as many rows each, as a data set in the chunks of the first one that is not NumPy's.

        Raises
        ------
        SchemaError
            If there are none, they differ in their number of rows, or one is of a dtype that no feature has.
        """
        given = {name: as_array(each) for name, each in arrays.items()}
        schema = Schema({name: feature_of(array, f"array {name!r}") for name, array in given.items()})
        rows = {name: array.shape[0] for name, array in given.items()}
        if len(set(rows.values())) != 1 or np.isnan(next(iter(rows.values()))):
            said = f"a data set is made of one or more arrays of as many rows each, which are known; got {rows}"
            raise SchemaError(said)
        whole = tuple(set(rows.values()))
        sizes = next((array.chunks[0] for array in given.values() if isinstance(array, da.Array)), whole)
        found = {name: as_column(array, sizes, f"array {name!r}") for name, array in given.items()}
        return cls(held_arrays(found, schema, sizes, {}), list(found))

    def ragged(self, name: str) -> tuple[da.Array, ...]:
        """Values and row splits of a column whose rows differ in length or shape.

        Parameters
        ----------
        name : str
            A column of ragged rows, at any number of levels, or of arrays that each have a shape of their own.

        Returns
        -------
        values : dask array of shape (nvalues, *inner)
            All values; the sizes of its chunks are not known before they are computed.
        *row_splits : dask arrays of int64, shape (nrecords + 1,) for the first
            One for each level, the outermost first: row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, or those
            rows of the next level, as in `tf.RaggedTensor`.
        shapes : dask array of int64, shape (nrecords, axes)
            Of arrays of their own shapes alone, whose values are flat.
        """
        return ragged_column(self._backing, name, self._of_rows(name))

    def padded(self, name: str, length: int | tuple[int, ...], value: Any = None) -> da.Array:
        """Fill up the rows of a column that differ in length to a dense array.

        Parameters
        ----------
        name : str
            A column of ragged rows.
        length : int or tuple of int
            Values per row, for each level of rows; a row that holds more is an error when it is computed, nothing is
            cut off.
        value : scalar, optional
            What fills shorter rows, by default 0 or ``b""``.

        Returns
        -------
        dask array of shape (nrecords, *length, *inner)
        """
        feature = self._of_rows(name)
        if feature.own_shapes:
            raise SchemaError(f"column {name!r} is {feature}, of arrays: only rows of differing length are padded")
        return padded_column(self._backing, name, feature, length, value)

    def _of_rows(self, name: str) -> Feature:
        self._check_names([name])
        feature = self.schema[name]
        if not feature.ragged_rank and not feature.own_shapes:
            raise SchemaError(f"column {name!r} is {feature}, of one shape in all rows: it is an array as it is")
        return feature

    # -- values ----------------------------------------------------------------------------------------------------

    def head(self, n: int = 5) -> dict[str, NDArray[Any]]:
        """Compute the first `n` rows, or as many as there are; just those records are decoded if rows are counted."""
        if n < 0:
            raise ValueError(f"the head of a data set has no or more rows; got {n}")
        if self.nrecords is not None:
            return self.rows[:n].compute()
        return first_rows(self.merged().chunks(self._names), self.schema, n)

    def compute(self, **kwargs: Any) -> dict[str, NDArray[Any]]:
        """All columns as NumPy arrays, in a dict.

        On threads the records are decoded straight into the results, so the memory needed is the results' and little
        more; other schedulers send flat buffers and join them here.

        Parameters
        ----------
        **kwargs
            What `dask.compute` takes, such as ``scheduler=``.

        Returns
        -------
        dict of str to ndarray
        """
        scheduler = get_scheduler(collections=[self], scheduler=kwargs.get("scheduler"))
        borders = self.borders
        local = scheduler in (dask.threaded.get, dask.local.get_sync)
        if local and borders is not None and isinstance(self._backing, Lazy):
            return compute_in_place(self._backing.source, borders, self.schema, self._assigned, kwargs)
        (result,) = dask.compute(self, **kwargs)
        columns: dict[str, NDArray[Any]] = result
        return columns

    def persist(self, **kwargs: Any) -> Dataset:
        """Decode every chunk now and keep the flat buffers, on the workers where there is a cluster.

        Parameters
        ----------
        **kwargs
            What `dask.persist` takes.
        """
        (kept,) = dask.persist(self, **kwargs)
        dataset: Dataset = kept
        return dataset

    def count(self) -> int:
        """Return the number of records; counted now where ``counts=None`` left them uncounted."""
        if self.nrecords is not None:
            return self.nrecords
        return count_rows(self.merged().chunks(self._names[:1]))

    verify = verify_rows

    # -- a dask collection -----------------------------------------------------------------------------------------

    def _parts(self) -> list[da.Array]:
        own = [name for name in self._names if name not in self._assigned]
        return [self._backing.chunks(own), *(self._assigned[name] for name in self._names if name in self._assigned)]

    def __dask_graph__(self) -> HighLevelGraph:
        return HighLevelGraph.merge(*(part.__dask_graph__() for part in self._parts()))

    def __dask_keys__(self) -> list[Any]:
        return [part.__dask_keys__() for part in self._parts()]

    def __dask_layers__(self) -> tuple[str, ...]:
        return tuple(layer for part in self._parts() for layer in part.__dask_layers__())

    def __dask_tokenize__(self) -> object:
        arrays = [array.name for array in self._assigned.values()]
        return normalize_token(("dask_tfrecord.Dataset", self._backing, self._names, list(self._assigned), arrays))

    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)
    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    def __dask_postcompute__(self) -> tuple[Callable[..., dict[str, NDArray[Any]]], tuple[Any, ...]]:
        finalizers = [part.__dask_postcompute__() for part in self._parts()[1:]]
        names = [name for name in self._names if name in self._assigned]
        return gather, (self._names, self.schema, dict(zip(names, finalizers, strict=True)))

    def __dask_postpersist__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        rebuilders = [part.__dask_postpersist__() for part in self._parts()]
        backing = self._backing
        own = backing.schema.select(name for name in self._names if name not in self._assigned)
        held = (own, backing.sizes, backing.origin)
        assigned = [name for name in self._names if name in self._assigned]
        return _rebuild, (self._names, assigned, rebuilders, held)

    # -- for people ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return html_table(self)


class _Rows:
    """The indexer behind `Dataset.rows`."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Dataset:
        dataset = self._dataset
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            key = [int(key)]
        if not isinstance(key, slice):
            # A mask may be a dask array, and is computed here; an empty list is one of ints.
            key = np.asarray(None if isinstance(key, tuple) else key)
            key = key if key.size else key.astype(np.int64)
        picked = dataset._backing.rows(key)
        return Dataset(picked, dataset._names, {name: array[key] for name, array in dataset._assigned.items()})


def _rebuild(
    dsk: Any,
    names: Sequence[str],
    assigned: Sequence[str],
    rebuilders: Sequence[tuple[Any, tuple[Any, ...]]],
    held: tuple[Schema, tuple[float, ...], Mapping[str, Any]],
    *,
    rename: Mapping[str, str] | None = None,
) -> Dataset:
    rebuilt = [rebuild(dsk, *state, rename=rename) for rebuild, state in rebuilders]
    return Dataset(Held(rebuilt[0], *held), names, dict(zip(assigned, rebuilt[1:], strict=True)))
