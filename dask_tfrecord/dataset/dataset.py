"""`Dataset`: columns of records as lazy dask arrays. It is a dask collection itself.

Methods import their reader or writer when they are called: a program pays for zarr, xarray or pyarrow where it uses
them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Unpack, overload

import dask
import numpy as np
from dask.base import DaskMethodsMixin, is_dask_collection, normalize_token
from numpy.typing import NDArray

from dask_tfrecord.advice import advice, explain_arguments, unknown_option, words_of
from dask_tfrecord.columns.conversions import host_array
from dask_tfrecord.dataset.display import FirstRows, dataset_html, dataset_text
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses
from dask_tfrecord.features.schema import Schema, unset_advice
from dask_tfrecord.options import (
    BatchOptions,
    LeRobotOptions,
    ParquetOptions,
    ShardOptions,
    TFRecordOptions,
    ZarrOptions,
    ZarrTargetOptions,
    ZarrWriteOptions,
    checked_integer,
    with_options,
)
from dask_tfrecord.records.shard_check import DamageReport
from dask_tfrecord.rows.damaged_records import check_shards
from dask_tfrecord.rows.engine import da
from dask_tfrecord.rows.explode import explode_rows, step_window
from dask_tfrecord.rows.functions import BlockFunction, OnBackend, infer_template, mapped_schema
from dask_tfrecord.rows.permutation import chosen_seed, shuffled
from dask_tfrecord.rows.ragged_arrays import padded_column, ragged_column
from dask_tfrecord.rows.rows import HasRows, Rows
from dask_tfrecord.rows.where import (
    Filters,
    MaskFunction,
    UserMask,
    as_stored,
    condition_text,
    filter_rows,
    parse_expression,
)

if TYPE_CHECKING:
    import xarray
    from dask.delayed import Delayed

    from dask_tfrecord.extras.batches.iterator import BatchIterator
    from dask_tfrecord.extras.batches.row_reader import RowSequence
    from dask_tfrecord.extras.preview import Preview
    from dask_tfrecord.extras.statistics.statistics import Statistics
    from dask_tfrecord.extras.view.server import Server
    from dask_tfrecord.stores.zarr.zarr_plan import ZarrPlan


class Dataset(Mapping[str, da.Array], DaskMethodsMixin, HasRows):
    """Lazy columns of records: a mapping from feature name to dask array.

    `for` iterates over the names of columns; ``ds.as_sequence()`` is a sequence of rows, each a dict of its values.
    `read_tfrecord`, `from_zarr` and `Dataset.from_arrays` create data sets. Arrays requested together are decoded
    together::

        ds["label"]                   # a dask array; decodes only label, and only the rows that remain after slicing
        ds["image", "label"]          # a tuple of arrays: one decode per chunk
        ds[["image", "label"]]        # a Dataset of fewer columns
        ds.rows[1000:2000]            # a Dataset of fewer rows

    Parameters
    ----------
    rows : Rows
        The columns, and how they are read.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Rows) -> None:
        if not isinstance(rows, Rows):
            path = isinstance(rows, str | os.PathLike)  # type: ignore[unreachable]
            call = f"read_tfrecord({os.fspath(rows)!r})" if path else "Dataset.from_arrays({'label': array})"
            raise TypeError(f"Dataset() takes Rows; got {type(rows).__name__}: write dtf.{call}")
        self._rows = rows

    def as_rows(self) -> Rows:
        """Return the columns as `Rows`, the form that writers and other outputs take."""
        return self._rows

    @property
    def schema(self) -> Schema:
        """Features of all columns."""
        return self._rows.schema

    @property
    def nrows(self) -> int | None:
        """Number of rows; None if rows are not counted (``counts=None``)."""
        return self._rows.nrows

    @property
    def npartitions(self) -> int:
        """Number of chunks of rows."""
        return self._rows.nchunks

    @property
    def chunks(self) -> tuple[float, ...]:
        """Number of rows in each chunk; NaN if rows are not counted."""
        return self._rows.sizes

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows as JSON values: the files with their sizes and versions, and the schema of the records."""
        return self._rows.origin

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.names)

    def __len__(self) -> int:
        return len(self._rows.names)

    def __contains__(self, name: object) -> bool:
        return name in self._rows.names

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # A copy asks for attributes before it has any.
            hint = "" if name.startswith("_") else self._advice(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        # NumPy would make an array of the names of columns.
        raise TypeError(f"a data set has several columns{self._advice('__array__')}")

    def __add__(self, other: object) -> NoReturn:
        if not isinstance(other, Mapping):
            self.__mul__(other)
        raise TypeError(f"data sets can't be added{self._advice('__add__')}")

    def __mul__(self, _: object) -> NoReturn:
        raise TypeError(f"a data set has several columns{self._advice('__mul__')}")

    __rmul__ = __sub__ = __truediv__ = __mul__

    def _advice(self, name: str) -> str:
        """Say what to write for an attribute that a data set lacks, with its own columns."""
        schema = self._rows.schema
        if name in schema:
            return f"; write ds[{name!r}] for this column"
        words = words_of(schema)
        if found := advice("ds", name, {**words, "CONDITION": condition_text(words["NUMBER"], ">", 2)}):
            return found
        near = near_misses(name, schema)
        return f"{near} Columns are written in brackets: ds[NAME]" if near.startswith("; did you mean") else ""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        # Mapping would compare arrays, elementwise and lazily.
        return self is other

    def __setattr__(self, name: str, value: object) -> None:
        if name not in Dataset.__slots__:
            raise AttributeError(
                f"a data set can't be changed: write ds = ds.assign({{{name!r}: array}}) to get a new one with the "
                "column"
            )
        object.__setattr__(self, name, value)

    def __setitem__(self, name: object, _: object) -> NoReturn:
        raise TypeError(
            f"a data set can't be changed: write ds = ds.assign({{{name!r:.100}: array}}) to get a new one with the "
            "column"
        )

    def __delitem__(self, name: object) -> NoReturn:
        raise TypeError(f"a data set can't be changed: write ds = ds.drop({name!r:.100}) for a new one without it")

    @overload
    def __getitem__(self, key: str) -> da.Array: ...
    @overload
    def __getitem__(self, key: tuple[str, ...]) -> tuple[da.Array, ...]: ...
    @overload
    def __getitem__(self, key: list[str]) -> Dataset: ...
    def __getitem__(self, key: str | tuple[str, ...] | list[str]) -> da.Array | tuple[da.Array, ...] | Dataset:
        if isinstance(key, str):
            self._check_names([key])
            array = self._rows.without_others([key]).array(key)
            if array.dtype.kind == "O":
                # zarr lacks arrays of objects.
                setattr(array, "to_zarr", partial(_refuse_objects, key))  # noqa: B010 - mypy refuses the assignment
            return array
        if not isinstance(key, list | tuple) or not all(isinstance(name, str) for name in key):
            raise TypeError(
                f"brackets pick columns, by a name, a tuple or a list of names; got {key!r:.100}: {_rows_advice(key)}"
            )
        self._check_names(key)
        if isinstance(key, list):
            return Dataset(self._rows.without_others(key))
        arrays = self._rows.arrays(key)
        return tuple(arrays[name] for name in key)

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse names of columns that do not exist, or that are given twice."""
        for name in names:
            if name not in self._rows.names:
                advice = unset_advice(name, self._rows.stored_schema.sampling) or near_misses(name, self._rows.names)
                raise UnknownFeatureError(f"no column {name!r}{advice}")
        if len(set(names)) < len(names):
            raise SchemaError(f"each column can be picked only once; got {list(names)}")

    @property
    def rows(self) -> _RowIndexer:
        """Select rows: ``ds.rows[key]`` for an int, a slice, a list of ints or a mask returns a Dataset.

        Only the selected records are read and decoded.
        """
        return _RowIndexer(self._rows)

    @explain_arguments('ds.where("label > 2")')
    def where(self, condition: str | Sequence[Any] | MaskFunction, columns: Sequence[str] | None = None) -> Dataset:
        """Keep the rows that meet a condition.

        The columns that the condition names are read now, in one task per chunk, so that the number of rows is exact.
        The other columns are decoded later, and only for the rows that are kept. If rows are not counted
        (``counts=None``), nothing is read now, and each chunk is filtered when it is read.

        Parameters
        ----------
        condition : str, list of tuple, list of list of tuple, or callable
            Text like ``"label == 3 and len(tokens) > 5"``: conditions that ``and`` and ``or`` join, without
            parentheses, with values in the syntax of Python. Text is compared with columns of bytes as UTF-8.
            Filters in the notation of pyarrow: ``[("label", "==", 3), ("score", ">", 0.5)]`` keeps rows for which all
            hold, and a list of such lists rows for which one of the lists holds. Operators are ``==``, ``!=``, ``<``,
            ``<=``, ``>``, ``>=``, ``in`` and ``not in``. A column with several values per row is compared as
            ``len(NAME)``, ``any(NAME)`` or ``all(NAME)``. Or a function from a dict of blocks of n rows, as in
            `map_blocks`, to a mask: a bool array of shape (n,).
        columns : sequence of str, optional
            Columns to call the function with; by default all.

        Returns
        -------
        Dataset
            The rows that are kept, in their order. Each chunk has the rows that are left of the chunk before.

        Raises
        ------
        UnknownFeatureError
            If a column does not exist.
        SchemaError
            If a value does not have the type of its column, if a column with several values per row is compared without
            ``len``, ``any`` or ``all``, or if the function does not return a mask.
        ValueError
            If filters are not in the notation above.

        Examples
        --------
        >>> ds = dtf.Dataset.from_arrays({"label": [3, 1, 3], "tokens": [[5], [6, 7], []]})
        >>> ds.where([("label", "==", 3)])["tokens"].compute()[0].tolist()
        [5]
        >>> ds.where("len(tokens) > 0")["label"].compute().tolist()
        [3, 1]
        >>> ds.where(lambda blocks: blocks["label"] % 2 == 1, columns=["label"]).nrows
        3
        """
        mask: Filters | UserMask
        if isinstance(columns, str):
            raise ValueError(f"where: columns must be a list of names: write columns=[{columns!r:.100}]")
        if callable(condition):
            tested = self._rows.names if columns is None else tuple(columns)
            self._check_names(tested)
            if not tested:
                raise SchemaError("where: the function needs at least one column")
            mask = UserMask(condition)
        else:
            if columns is not None:
                raise TypeError("where: columns= is only for a function, because conditions name their columns")
            if isinstance(condition, str):
                condition = as_stored(self.schema, parse_expression(condition, self.schema))
            elif isinstance(condition, da.Array | np.ndarray) or _is_mask(condition):
                raise TypeError("where takes a condition or a function: write ds.rows[mask] to pick rows by a mask")
            mask = Filters.parse(condition).resolve(self.schema)
            tested = mask.columns
        return Dataset(filter_rows(self._rows, mask, tested))

    @explain_arguments("ds.rename({'label': 'class_id'})")
    def rename(self, names: Mapping[str, str] | None = None, **others: str) -> Dataset:
        """Give columns new names.

        Parameters
        ----------
        names : mapping of str to str, optional
            New names by the present names.
        **others : str
            New names, for columns whose present names are identifiers.

        Returns
        -------
        Dataset
            The same columns in the same order. Nothing is read until you use them.

        Raises
        ------
        UnknownFeatureError
            If a column does not exist.
        SchemaError
            If two columns would have the same name.

        Examples
        --------
        >>> ds = dtf.Dataset.from_arrays({"label": [3, 1], "x": [1, 2]})
        >>> list(ds.rename(label="class_id"))
        ['class_id', 'x']
        """
        given = {**(names or {}), **others}
        for option, new in others.items():
            if not isinstance(new, str):
                # pandas takes a mapping as `columns`.
                raise (
                    TypeError(f"the new name of {option!r} must be text; got {new!r:.100}")
                    if option in self._rows.names
                    else unknown_option("rename", option, ("names",), new)
                )
        self._check_names(list(given))
        renamed = {given.get(name, name): name for name in self._rows.names}
        if len(renamed) < len(self._rows.names):
            made = [given.get(name, name) for name in self._rows.names]
            twice = sorted({name for name in made if made.count(name) > 1})
            raise SchemaError(f"rename: two columns would have the name {', '.join(map(repr, twice))}")
        return Dataset(self._rows.rename(renamed))

    @explain_arguments("ds.drop('label')")
    def drop(self, *names: str) -> Dataset:
        """Leave columns out; ``ds[[…]]`` selects columns.

        Parameters
        ----------
        *names : str
            Columns to leave out.

        Returns
        -------
        Dataset
            The other columns, in the same order.

        Raises
        ------
        UnknownFeatureError
            If a column does not exist.

        Examples
        --------
        >>> list(dtf.Dataset.from_arrays({"label": [3, 1], "x": [1, 2]}).drop("x"))
        ['label']
        """
        listed = [each for name in names for each in ([name] if isinstance(name, str) else name)]
        self._check_names(listed)
        return self[[name for name in self._rows.names if name not in listed]]

    @explain_arguments("ds.sample(100)")
    def sample(self, n: int, seed: Any = None) -> Dataset:
        """Draw rows at random, uniformly and without replacement.

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int or other argument of `numpy.random.default_rng`, optional
            The same seed draws the same rows. Without a seed, each call draws different rows.

        Returns
        -------
        Dataset
            The rows in the order of the records. As with `rows`, only those records are read.

        Raises
        ------
        ValueError
            If the data set has fewer than `n` rows, or rows are not counted (``counts=None``).

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.sample(3, seed=1)["label"].compute().shape
        (3,)
        """
        if self.nrows is None:
            raise ValueError("only counted rows can be sampled: open with counts='auto', not counts=None")
        n = checked_integer("the number of rows n", n, 0, self.nrows)
        drawn = np.random.default_rng(seed).choice(self.nrows, n, replace=False, shuffle=False)
        return self.rows[np.sort(drawn)]

    @explain_arguments("ds.shuffle(seed=0)")
    def shuffle(self, seed: int | None = None) -> Dataset:
        """Put all rows in random order, to write them in that order or to read some of them at random.

        Tasks get only the seed, and each process that reads rows computes the order from it, which takes 8 bytes and
        about 0.1 µs per row. A task reads rows from all shards. For training, use `batches` instead: an epoch takes its
        rows in one pass over the files, in a different order each time. Unlike in `tf.data.Dataset.shuffle`, the order
        does not depend on a buffer, and it is the same in each pass.

        Parameters
        ----------
        seed : int, optional
            The same seed gives the same order with every release of NumPy: that of the first epoch of
            ``batches(…, shuffle="full", seed=seed)``. Without a seed, each call gives a different order.

        Returns
        -------
        Dataset
            A uniformly random permutation of the rows.

        Raises
        ------
        ValueError
            If rows are not counted (``counts=None``), or the seed is negative.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> first = ds.shuffle(seed=7).rows[:3]["label"].compute()
        >>> first.shape
        (3,)
        """
        if self.nrows is None:
            raise ValueError("only counted rows can be shuffled: open with counts='auto', not counts=None")
        return Dataset(self._rows.select(shuffled(self.nrows, chosen_seed(seed))))

    @explain_arguments("ds.assign({'name': array})")
    def assign(self, variables: Mapping[str, Any] | None = None, /, **arrays: Any) -> Dataset:
        """Add columns, or replace columns, which then leave their group.

        Parameters
        ----------
        variables : mapping of str to array-like, optional
            Arrays by name, for names that are not identifiers: ``ds.assign({"steps/reward": array})``.
        **arrays : array-like
            Arrays with as many rows as the data set, of any kind that `dask_tfrecord.to_tfrecord` accepts.

        Raises
        ------
        SchemaError
            If an array has a different number of rows, contains masked or missing values, or is a dask array of
            objects. If rows are not counted, only arrays that are computed chunk by chunk from the columns are
            accepted.
        """
        from dask_tfrecord.rows.inputs import aligned_column

        if variables is not None and not isinstance(variables, Mapping):
            raise TypeError(f"a column needs a name: write ds.assign(name=array); got {variables!r:.100}")
        columns = {**(variables or {}), **arrays}
        added = {name: aligned_column(given, self.chunks, f"column {name!r}") for name, given in columns.items()}
        return Dataset(self._rows.assign(added))

    @explain_arguments("ds.map_blocks(function)")
    def map_blocks(self, func: BlockFunction, template: Mapping[str, Any] | None = None) -> Dataset:
        """Apply a function to the rows, block by block, within the task that decodes them.

        Parameters
        ----------
        func : callable
            Function that takes a dict of blocks with n rows and returns a dict of blocks with n rows. It may change,
            add and drop columns. Blocks are NumPy arrays; ragged rows are a `RaggedBlock` (``values`` and
            ``row_splits``), which the function may return as well. A block may have any number of rows, so treat each
            row independently. Rows of bytes are converted to objects when the function asks for their block, which is
            slow: ``blocks["label"]`` asks for one block, ``blocks.items()`` for all.
        template : mapping, optional
            What the function returns: for each name a feature class, or an empty array with the right dtype and shape.
            A Schema, like ``ds.schema``, also keeps its groups. By default, `map_blocks` calls the function once with
            empty blocks to find out.

        Returns
        -------
        Dataset
            Nothing is computed yet. A column that the function returns under the same name, with the same dtype and
            shape, keeps its feature class, so that `to_tfrecord` writes the same kind of values. Without a Schema as
            `template`, no column is in a group, because the function may change lengths; give groups to `to_zarr` as
            ``groups=``.

        Raises
        ------
        ValueError
            If you give no template and the function fails on empty blocks.
        """
        if not callable(func):
            raise TypeError(f"map_blocks takes a function from a dict of arrays to a dict of arrays; got {func!r:.100}")
        called = OnBackend(func, self._rows.backend)
        made = template if template is not None else infer_template(called, self.schema, self._rows.names)
        origin = "map_blocks returned" if template is None else "template of map_blocks:"
        return Dataset(self._rows.map(func, mapped_schema(made, self.schema, origin)))

    def to_backend(self, backend: str | None = None) -> Dataset:
        """Move numbers to a dask backend, like ``"cupy"`` for a GPU, as `dask.array.Array.to_backend` does.

        Parameters
        ----------
        backend : str, optional
            Name of the backend; by default, dask's setting ``array.backend``. ``"numpy"`` moves the numbers back.

        Returns
        -------
        Dataset
            The same rows. Columns of numbers with a fixed shape are dask arrays of the backend, and functions in
            `map_blocks` get arrays of the backend, also as the values and row splits of a `RaggedBlock`. They may
            return arrays in either memory. Text and bytes stay in the memory of the process. `compute`, `batches` and
            the writers copy the values to NumPy arrays first.

        Raises
        ------
        ValueError
            If dask does not know the backend.
        ImportError
            If its library is not installed.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.to_backend("numpy")["label"].sum().compute().tolist()
        40
        """
        backend = dask.config.get("array.backend", None) or "numpy" if backend is None else backend
        # Only now does the import of its library fail in this process.
        try:
            da.zeros(1, chunks=1).to_backend(backend)
        except ValueError as error:
            raise ValueError(f"dask has no backend {backend!r:.50}, only 'numpy' and 'cupy'") from error
        return Dataset(replace(self._rows, backend=backend))

    @classmethod
    @explain_arguments("dtf.Dataset.from_arrays({'label': array})")
    def from_arrays(cls, arrays: Any, features: Mapping[str, Any] | None = None) -> Dataset:
        """Create a data set from arrays with the same number of rows, or from a DataFrame.

        Parameters
        ----------
        arrays : mapping of str to array-like, xarray.Dataset, pandas.DataFrame or dask.dataframe.DataFrame
            Arrays with rows along the first axis. The index of a DataFrame must be the row numbers, because a data set
            does not keep an index. For a dask DataFrame, the lengths of its partitions are computed now.
        features : mapping of str to feature, optional
            Features of columns; arrays of objects need them. `FixedLenSequenceFeature` describes rows without padding.

        Returns
        -------
        Dataset
            Columns keep their dtypes. In a DataFrame, Arrow lists become ragged rows, lists of fixed size and tensors
            become dense arrays, and a struct of `data` and `shape` becomes an array per row. So
            ``from_arrays(ds.to_dataframe())`` has the columns of `ds`, except that bfloat16 becomes float32, and
            complex numbers become pairs. Categories are decoded.

        Raises
        ------
        SchemaError
            If `arrays` is empty, if arrays differ in their number of rows, if no feature describes the dtype of an
            array, if an array does not fit its feature, if a value is missing (the error names column and rows), or if
            the index of a DataFrame is not the row numbers.
        UnknownFeatureError
            If the array of a feature is missing.
        FeatureError
            If a number in a list does not fit the dtype of its feature.

        Examples
        --------
        >>> import pandas as pd
        >>> dtf.Dataset.from_arrays(pd.DataFrame({"label": [3, 1], "word": ["one", "two"]}))
        <dask_tfrecord.Dataset: 2 rows in 1 chunk of 2, from memory>
          column  dtype  shape  read as
          label   int64  (2,)   FixedLenFeature((), 'int64')
          word    text   (2,)   TextFeature()
        """
        from dask_tfrecord.rows.inputs import Inputs

        return Dataset(Inputs.from_arrays(arrays, features, exact=True).rows)

    @explain_arguments("ds.ragged('tokens')")
    def ragged(self, name: str) -> tuple[da.Array, ...]:
        """Get the flat values and the row splits of a column whose rows differ in length or shape.

        Parameters
        ----------
        name : str
            Column with ragged rows, at any number of levels, or with arrays whose shapes differ by row.

        Returns
        -------
        values : dask array of shape (nvalues, *inner)
            All values, in chunks of unknown sizes.
        *row_splits : dask arrays of int64, shape (nrows + 1,) for the first
            One array per level, the outermost first. Row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``, or these
            rows of the next level, as in `tf.RaggedTensor`.
        shapes : dask array of int64, shape (nrows, axes), or (narrays, axes) for lists of arrays
            Only for arrays whose shapes differ; their values are flattened. The last row splits say which values belong
            to which array.
        """
        self._check_names([name])
        return ragged_column(self._rows.select_columns([name]), name, self.schema[name])

    @explain_arguments("ds.padded('tokens', 128)")
    def padded(self, name: str, length: int | tuple[int, ...], value: Any = None) -> da.Array:
        """Pad the ragged rows of a column to a dense array.

        Parameters
        ----------
        name : str
            Column with ragged rows.
        length : int or tuple of int
            Number of values per row, for each level of rows. Rows are never cut: a longer row raises `FeatureError`
            when it is computed.
        value : scalar, optional
            Padding, by default 0 or ``b""``.

        Returns
        -------
        dask array of shape (nrows, *length, *inner)

        Raises
        ------
        SchemaError, ValueError
            If the rows are not ragged, if the column has a different number of levels, or if its dtype can't represent
            `value`.
        """
        self._check_names([name])
        return padded_column(self._rows.select_columns([name]), name, self.schema[name], length, value)

    @explain_arguments("ds.head(5), or ds[['label']].head(5) for some columns")
    def head(self, n: int = 5) -> dict[str, NDArray[Any]]:
        """Compute the first `n` rows, or all if there are fewer, as a dict of arrays.

        A notebook shows it as a table. Only these rows are decoded, unless rows are not counted (``counts=None``) and
        come from `map_blocks` or `explode`.
        """
        return FirstRows(self._rows.head(checked_integer("the number of rows n", n, 0)))

    @explain_arguments("ds.compute()")
    def compute(self, *columns: str, **kwargs: Any) -> dict[str, NDArray[Any]]:
        """Compute all columns as NumPy arrays.

        The threaded scheduler decodes records directly into the results, and needs little memory beyond that. Other
        schedulers send flat buffers, which are concatenated here. Keyword arguments go to `dask.compute`.

        Ragged rows are views of the values of all records that were read together. To keep a few rows and free the
        others, copy those rows.
        """
        if columns:
            one = f"ds[{columns[0]!r}]" if len(columns) == 1 else f"ds[{list(columns)}]"
            raise TypeError(f"compute() takes no columns: write {one:.200}.compute()")
        return self._rows.compute(**kwargs)

    def to_delayed(self) -> list[Delayed]:
        """Get a `dask.delayed.Delayed` for each chunk, which computes all columns of its rows as `compute` does.

        Returns
        -------
        list of dask.delayed.Delayed
            One per chunk, in the order of the rows. Each decodes the columns of its chunk together, in one task.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["label"], chunks=10)
        >>> chunks = ds.to_delayed()
        >>> len(chunks), chunks[1].compute()["label"].tolist()
        (2, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4])

        Call a function with the columns of each chunk, on the workers:

        >>> count = dask.delayed(lambda columns: int((columns["label"] > 2).sum()))
        >>> dask.compute(*map(count, chunks))
        (4, 4)
        """
        return self._rows.to_delayed()

    @explain_arguments("ds.persist(), or ds[['label']].persist() for some columns")
    def persist(self, **kwargs: Any) -> Dataset:
        """Decode all chunks now, and keep them in memory, on the workers if there is a cluster.

        Keyword arguments go to `dask.persist`.
        """
        dataset: Dataset = dask.persist(self, **kwargs)[0]
        return dataset

    @explain_arguments("ds.count(), or ds.where('label > 2').count() for some rows")
    def count(self) -> int:
        """Return the number of records, counting them now if they were not counted (``counts=None``)."""
        return self._rows.count()

    @explain_arguments("ds.explode('tokens'), with the name of a ragged column or a group")
    def explode(
        self, group: str | Sequence[str], *, repeat: str | Sequence[str] = (), number: str | None = None
    ) -> Dataset:
        """Turn each item of ragged columns, like a step or a box, into a row.

        Items are counted now, in one pass over the records on the active scheduler that decodes only lengths. Values
        are read later, from the records that contain the requested rows. If rows are not counted (``counts=None``),
        items are not counted either.

        Parameters
        ----------
        group : str or sequence of str
            Columns to divide into items, which must have the same row lengths. Give a group of the schema, or a prefix
            of names: ``"steps"`` means all ragged columns under ``steps/``, for example the fields of a TFDS sequence.
            Or give a list of columns: ragged columns with any number of levels, arrays of a `TensorFeature` that differ
            in their first size, and feature lists that a `FixedLenSequenceFeature` reads, without their padding.
        repeat : str or sequence of str, optional
            Columns to repeat for each item of their record.
        number : str, optional
            Name for a new int64 column that numbers the items of each record, from 0.

        Returns
        -------
        Dataset
            First the columns of the group: items with a fixed shape are dense, bytes are an object column, and nested
            rows are ragged with one level less. Then the columns in `repeat`, and the int64 column ``record``, the row
            of the item in this data set, so that ``ds.rows[record]`` is its record; it is left out if rows are not
            counted. Other columns are left out, and records without items have no rows. A chunk has the items of one
            chunk of records; chunks without items are left out.

        Raises
        ------
        UnknownFeatureError
            If the column or prefix does not exist.
        SchemaError
            If a column of the group is dense, is also in `repeat`, or is named ``record``.
        FeatureError
            If columns of the group differ in length. The error names the file, the record and both lengths.

        Examples
        --------
        >>> ds = dtf.Dataset.from_arrays({"score": [[0.5, 0.25], [], [0.75]], "image": [7, 8, 9]})
        >>> boxes = ds.explode(["score"], repeat=["image"])
        >>> {name: column.tolist() for name, column in boxes.compute().items()}
        {'score': [0.5, 0.25, 0.75], 'image': [7, 7, 9], 'record': [0, 0, 2]}
        """
        return Dataset(explode_rows(self._rows, group, repeat, number=number))

    @explain_arguments("ds.windows('steps', past=1)")
    def windows(
        self,
        group: str | Sequence[str],
        past: int = 0,
        future: int = 0,
        stride: int = 1,
        pad: Literal["edge", "zero", "drop"] = "edge",
        *,
        items: str | Sequence[str] = (),
        repeat: str | Sequence[str] = (),
        number: str | None = None,
    ) -> Dataset:
        """Turn each item into a row with the items around it, like each step of an episode with its history.

        A window never reaches into the next record. Records are read and decoded as by `explode`: once per chunk,
        however many windows share their steps.

        Parameters
        ----------
        group : str or sequence of str
            Columns to divide into items, as in `explode`.
        past, future : int, optional
            Number of steps before and after each item.
        stride : int, optional
            Distance between the steps of a window, in items, as in `tf.data.Dataset.window`.
        pad : {"edge", "zero", "drop"}, optional
            What stands for the steps before the first and after the last item of a record: copies of that item, or
            zeros (empty bytes and text, and ragged rows without values). "drop" leaves out rows whose window is
            incomplete.
        items : str or sequence of str, optional
            Columns with the same row lengths of which a row gets the item alone, without a window: for example the
            image of a step, where the window has its next actions.
        repeat : str or sequence of str, optional
            Columns to repeat for each item of their record.
        number : str, optional
            Name for a new int64 column that numbers the items of each record, from 0.

        Returns
        -------
        Dataset
            First the columns of the group, with the shape ``(past + 1 + future, *shape of an item)``, ordered in time;
            ragged items get one more level of rows. Then the columns in `items` and in `repeat`, the column ``record``
            as in `explode`, and the bool column ``mask``, with one value per step: True for steps of the record, False
            for padding. It is left out with ``pad="drop"``.

        Raises
        ------
        UnknownFeatureError, SchemaError, FeatureError
            As `explode`.
        ValueError
            If `past` or `future` is negative, `stride` is less than 1, or `pad` is unknown.

        Examples
        --------
        >>> ds = dtf.Dataset.from_arrays({"action": [[1, 2, 3], [4]]})
        >>> windows = ds.windows(["action"], past=1, future=1).compute()
        >>> windows["action"].tolist()
        [[1, 1, 2], [1, 2, 3], [2, 3, 3], [4, 4, 4]]
        >>> windows["mask"].tolist()
        [[False, True, True], [True, True, True], [True, True, False], [False, True, False]]
        >>> ds = dtf.Dataset.from_arrays({"action": [[1, 2, 3], [4]], "state": [[5, 6, 7], [8]]})
        >>> ds.windows(["action"], future=1, items=["state"])["state"].compute().tolist()
        [5, 6, 7, 8]
        """
        window = step_window(past, future, stride, pad)
        return Dataset(explode_rows(self._rows, group, repeat, window, number, items))

    def verify(self) -> DamageReport:
        """Check all records in the files of the data set, as they are now; see `dask_tfrecord.verify`."""
        shards = None if self._rows.source is None else self._rows.source.shards
        if shards is None:
            raise ValueError("these rows do not come from TFRecord files; to check files, call dtf.verify(path)")
        return DamageReport(tuple(check_shards(shards)))

    @with_options("ds.plan_zarr(), which takes no path and writes nothing", ZarrOptions)
    def plan_zarr(self, **options: Unpack[ZarrOptions]) -> ZarrPlan:
        """Plan the store that `to_zarr` would write; see `dask_tfrecord.plan_zarr`."""
        from dask_tfrecord.stores.zarr.zarr_plan import plan_zarr

        return plan_zarr(self, **options)

    @with_options("ds.to_zarr('train.zarr')", ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)
    def to_zarr(self, store: Any, **options: Unpack[ZarrWriteOptions]) -> Delayed | None:
        """Write all columns to a Zarr group; see `dask_tfrecord.to_zarr`.

        Parameters
        ----------
        store : str, PathLike, Store or Group
            Path or URL of a Zarr group, or a store of zarr, as for the function.
        """
        from dask_tfrecord.stores.zarr.write import to_zarr

        return to_zarr(self, store, **options)

    @with_options("ds.to_tfrecord('train.tfrecord')", ShardOptions, TFRecordOptions)
    def to_tfrecord(self, urlpath: str | os.PathLike[str], **options: Unpack[TFRecordOptions]) -> Delayed | None:
        """Write all columns to TFRecord shards; see `dask_tfrecord.to_tfrecord`.

        Parameters
        ----------
        urlpath : str or PathLike
            Template of the new shards, or the name of one shard, as for the function.
        """
        from dask_tfrecord.stores.files.tfrecord import to_tfrecord

        return to_tfrecord(self, urlpath, **options)

    @with_options("ds.to_parquet('train')", ParquetOptions)
    def to_parquet(self, path: str | os.PathLike[str], **options: Unpack[ParquetOptions]) -> Delayed | None:
        """Write all columns to Parquet files; see `dask_tfrecord.to_parquet`.

        Parameters
        ----------
        path : str or PathLike
            Directory for the files, or a template of their names, as for the function.
        """
        from dask_tfrecord.stores.files.parquet import to_parquet

        return to_parquet(self, path, **options)

    @with_options("ds.to_lerobot('robot', fps=10)", LeRobotOptions)
    def to_lerobot(self, path: str | os.PathLike[str], **options: Unpack[LeRobotOptions]) -> None:
        """Write frames as a LeRobot data set; see `dask_tfrecord.to_lerobot`.

        Parameters
        ----------
        path : str or PathLike
            Directory of the data set, as for the function.
        """
        from dask_tfrecord.extras.lerobot import to_lerobot

        to_lerobot(self, path, **options)

    def to_arrow_batches(self, *, tensors: bool = True) -> Any:
        """Read the rows as Arrow record batches, one per chunk.

        Chunks are decoded ahead, one for each thread and one more: on the cluster of the active client, otherwise in
        threads of this process. Needs the extra ``arrow``.

        Parameters
        ----------
        tensors : bool, default True
            Give arrays with several axes the type arrow.fixed_shape_tensor. If False, they are nested lists of fixed
            sizes, for libraries that refuse this type, like datasets.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            It has the attribute `schema` and is itself an Arrow stream; `close` stops its tasks early. Bytes are
            large_binary, text is large_string, ragged rows are large_list, and fixed shapes are fixed_size_list (one
            axis) or arrow.fixed_shape_tensor. Values and offsets are not copied. The metadata of a field contain the
            feature, its class, dtype, shape and class names.

        Raises
        ------
        SchemaError
            If the data set has rows but no columns.
        TFRecordError
            While you iterate, as `compute` raises it.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> [batch.num_rows for batch in ds[["label"]].to_arrow_batches()]
        [10, 10]
        """
        from dask_tfrecord.extras.interop.arrow import ArrowBatches

        return ArrowBatches(self._rows, tensors)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the rows by Arrow's PyCapsule protocol, which pyarrow, polars, DuckDB and others read.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            Types that the consumer prefers; columns are cast to them, or an error of pyarrow is raised.
        """
        return self.to_arrow_batches().__arrow_c_stream__(requested_schema)

    @explain_arguments("ds.to_awkward(), or ds[['label']].to_awkward() for some columns")
    def to_awkward(self) -> Any:
        """Read the rows as Awkward Arrays, one record array per chunk.

        Chunks are decoded ahead, as by `to_arrow_batches`. Needs the extra ``awkward``.

        Returns
        -------
        iterator of awkward.Array
            Each array has a field per column. Fixed shapes are lists of fixed sizes, ragged rows are lists, text is
            strings and bytes are bytestrings. Values and offsets are not copied. The columns of a group in the schema
            become one field with lists of records. Arrays whose shapes differ become records with a list `data` and a
            `shape`. `close` stops the tasks early.

        Raises
        ------
        ImportError
            If awkward is not installed.
        SchemaError
            If the data set has rows but no columns, or if a group has the same name as a column outside of it.
        FeatureError
            While you iterate, if columns of a group differ in their number of items.
        TFRecordError
            While you iterate, as `compute` raises it.

        Examples
        --------
        >>> import awkward as ak  # doctest: +SKIP
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> [ak.num(chunk["tokens"], axis=1).to_list()[:4] for chunk in ds.to_awkward()]  # doctest: +SKIP
        [[0, 1, 2, 3], [0, 1, 2, 3]]
        """
        from dask_tfrecord.extras.interop.awkward import AwkwardChunks

        return AwkwardChunks(self._rows)

    @explain_arguments("ds.to_dataframe(), or ds[['label']].to_dataframe() for some columns")
    def to_dataframe(self) -> Any:
        """Turn the rows into a dask DataFrame, with one partition per chunk.

        Nothing is read until you compute. A partition decodes all columns, so select those that you need first, as in
        ``ds[["label"]].to_dataframe()``. Needs the extra ``arrow``.

        Returns
        -------
        dask.dataframe.DataFrame
            Floats have NumPy dtypes, in which NaN counts as missing. Other columns have `pandas.ArrowDtype` with the
            types of `to_arrow_batches`, except that arrays with several axes are nested lists. The index is the row
            number, and divisions are known if rows are counted. Otherwise, each partition numbers its rows from 0.
            Empty chunks are left out.

        Raises
        ------
        ImportError
            If pyarrow or pandas is not installed.
        SchemaError
            If the data set has rows but no columns.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> frame = ds[["label"]].to_dataframe()
        >>> frame.divisions
        (0, 10, 19)
        >>> frame.dtypes["label"]
        int64[pyarrow]
        """
        from dask_tfrecord.extras.interop.arrow import to_dataframe

        return to_dataframe(self._rows)

    @explain_arguments("ds.to_polars(), or ds[['label']].to_polars() for some columns")
    def to_polars(self) -> Any:
        """Turn the rows into a polars LazyFrame, which polars and DuckDB can query.

        A query reads only the columns that it needs. Comparisons with literals, ``is_in``, lengths of lists, and
        combinations of these are tested first, and the other columns are decoded only for the rows that remain. polars
        applies all other predicates to the decoded rows. Each chunk becomes one or more frames, decoded ahead as by
        `to_arrow_batches`. Needs the extra ``polars``.

        Returns
        -------
        polars.LazyFrame
            Columns have the types of `to_arrow_batches`, except that arrays with several axes are nested arrays of
            fixed sizes.

        Raises
        ------
        ImportError
            If polars or pyarrow is not installed.
        SchemaError
            If the data set has rows but no columns.
        TFRecordError
            When a query is run, as `compute` raises it.

        Examples
        --------
        >>> import polars as pl  # doctest: +SKIP
        >>> frame = dtf.read_tfrecord("train-*.tfrecord").to_polars()  # doctest: +SKIP
        >>> frame.filter(pl.col("label") == 1).select("tokens").collect().height  # doctest: +SKIP
        2
        """
        from dask_tfrecord.extras.interop.polars import to_polars

        return to_polars(self._rows)

    @explain_arguments("ds.to_xarray()")
    def to_xarray(
        self,
        coords: Sequence[str] = (),
        *,
        dimension_names: Mapping[str, Sequence[str]] | None = None,
        together: bool = False,
        ragged: Literal["objects", "flat"] = "objects",
    ) -> xarray.Dataset:
        """Turn the columns into an xarray Dataset, backed by dask.

        Nothing is read until you compute. Needs the extra ``xarray``.

        Parameters
        ----------
        coords : sequence of str, optional
            Columns to make coordinates.
        dimension_names : mapping of str to sequence of str, optional
            Names of the axes of a row, by column: ``{"image": ("height", "width", "channel")}``. Axes that share a name
            must have the same length. Defaults to ``NAME.dim_1`` and so on, as in the stores of `to_zarr`.
        together : bool, default False
            If False, each variable decodes its own column, and a selection decodes only the selected records. If True,
            one task per chunk decodes all columns, which is faster if you compute all of them.
        ragged : {"objects", "flat"}, default "objects"
            How to represent bytes, and rows that differ in length or shape. ``"objects"`` makes one object per record.
            ``"flat"`` makes the arrays that `to_zarr` writes, ``NAME.values`` and ``NAME.row_splits``, with dimensions
            of their own, which a selection of records does not change. Their values are counted now, in tasks.
            Coordinates stay objects.

        Returns
        -------
        xarray.Dataset
            Rows have the dimension ``record``. Column ``a/b`` becomes the variable ``a.b``. Each variable has the
            attributes ``feature``, ``feature_class`` and, if known, ``class_names``.

        Raises
        ------
        ImportError
            If xarray is not installed.
        UnknownFeatureError
            If an argument names a column that does not exist.
        ValueError
            If rows are not counted (``counts=None``), or an argument has an invalid value.
        SchemaError
            If two columns would become variables with the same name.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> labelled = ds.to_xarray(coords=["label"])
        >>> labelled["tokens"].dims
        ('record',)
        >>> labelled.isel(record=[3])["label"].shape
        (1,)
        """
        from dask_tfrecord.extras.interop.xarray import to_xarray

        return to_xarray(self._rows, coords, dimension_names, together, ragged)

    @explain_arguments("ds.preview(16), or ds[['label']].preview(16) for some columns")
    def preview(self, n: int = 16) -> Preview:
        """Read the first rows, and show them as pictures, numbers, text and sparklines.

        Image columns, and arrays that are shaped like images, make a contact sheet with labels and class names. Bytes
        that contain encoded images are decoded. Other columns make a table. Images with 8 bits are shown unchanged;
        others are scaled to the range of the rows that are shown, which the column states.

        Parameters
        ----------
        n : int, default 16
            Number of rows, or all if there are fewer. If rows are counted, only these are decoded.

        Returns
        -------
        Preview
            Notebooks show it as HTML; `print` shows text as wide as the terminal. `to_html` and `to_png` write files; a
            PNG needs the extra ``image``.

        Raises
        ------
        TFRecordError
            As `compute` raises it.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> print(ds[["label", "tokens"]].preview(3))
        First 3 of 20 records of 2 files
            label   tokens
            int64   int64 (?)
        ─────────────────────
        0       0   no values
        1       1   48
        2       2   440, 474
        """
        from dask_tfrecord.extras.preview import preview_rows

        given: Any = n
        if isinstance(given, str | os.PathLike | list):
            names = [given] if isinstance(given, str) and given in self else given
            if isinstance(names, list):
                call = f"ds[{names!r:.100}].preview()"
            else:
                call = f"ds.preview({given})" if str(given).isdecimal() else f"ds.preview().to_png({n!r:.100})"
            raise TypeError(f"the number of rows n must be an int; got {n!r:.100}: write {call}")
        return preview_rows(self._rows, n)

    @explain_arguments("ds.view(), or ds.view(port=8080) for a page at this port")
    def view(self, *, port: int = 0, memory_limit: int | str = "512 MiB") -> Server:
        """Show rows, statistics, episodes and bytes on a page in the browser, or below the cell in a notebook.

        A thread of this process serves the page, and only this machine can open it. Needs the extra ``view``.

        Parameters
        ----------
        port : int, default 0
            Port of the page; 0 chooses a free one.
        memory_limit : int or str, default "512 MiB"
            Memory that rows may take, 64 MiB or more.

        Returns
        -------
        Server
            `url` is the address, with a secret token. To stop the server, call `close` or leave its ``with`` statement.

        Raises
        ------
        ImportError
            If Starlette or uvicorn is not installed.
        OSError
            If the port is in use.

        Examples
        --------
        >>> with dtf.read_tfrecord("train-*.tfrecord").view() as view:
        ...     print(view.url.partition(":")[0])
        http
        """
        from dask_tfrecord.extras.view.opened import BlockCache, opened_rows
        from dask_tfrecord.extras.view.server import NOTEBOOKS, Server

        return Server([opened_rows(self._rows, BlockCache(memory_limit))], port, NOTEBOOKS)

    @explain_arguments("ds.describe(), or ds[['label']].describe() for some columns")
    def describe(self) -> Statistics:
        """Compute statistics of all columns in one pass over the rows.

        One task per chunk summarises its columns, and the summaries, whose size is bounded, are merged in a tree. The
        values of ragged rows are counted together, as are those of all items in a group. To decode only some columns,
        select them first, as in ``ds[["label"]].describe()``.

        Returns
        -------
        Statistics
            A mapping from column name to `ColumnStatistics`. It prints as a table; notebooks add histograms. `to_dict`,
            `to_dataframe` and `to_pbtxt` (TensorFlow Metadata) export it, and `compare` lists how two data sets differ.
            The counts of rows, missing values, NaN and other values are exact, and so are extremes, means and standard
            deviations, also along the last axis of a column. The number of distinct values is exact below 4,096, and
            has a standard error of 1.6 % above. Quantiles are exact up to 1,024 values; above, their rank is off by
            less than 0.01. Frequencies of bytes and text are exact up to 1,024 distinct values; above, they may be too
            small by at most ``frequencies.error``.

        Raises
        ------
        TFRecordError
            As `compute` raises it.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds[["label", "tokens"]].describe()
        Statistics of 20 rows, 2 columns
        column  dtype      values  empty  distinct   mean    std  min  median  max  sizes
        label   int64          20                5      2  1.414    0       2    4
        tokens  int64 (?)      90      2        83  543.5  271.6    9     578  988  1 to 9 per row, mean 5
        """
        from dask_tfrecord.extras.statistics.statistics import describe

        return describe(self._rows)

    @with_options("ds.batches(2)", BatchOptions)
    def batches(self, batch_size: int, **options: Unpack[BatchOptions]) -> BatchIterator:
        """Iterate over batches of rows, decoded ahead in threads.

        The order of the rows depends only on the data, the chunks of the data set, the options and the seed, and not on
        the scheduler, the number of threads or the release of NumPy.

        Parameters
        ----------
        batch_size : int
            Number of rows in a batch. A batch never mixes rows of two epochs.

        Returns
        -------
        BatchIterator
            Iterator over dicts with one array of shape ``(batch_size, *shape)`` per column, and the dtypes of
            `compute`. Numbers have ``__dlpack__`` for other array libraries. Text and bytes are not copied to a device.
            You may modify the arrays. `state_dict` and `load_state_dict` save and restore the position.

        Raises
        ------
        ValueError, TypeError
            If an option is invalid, or needs counted rows and ``counts=None`` left them uncounted.
        SchemaError
            If a padded column is not ragged, or columns are missing.
        ImportError
            If `device` needs a library that is not installed.
        TFRecordError
            When you request a batch with a damaged record, or with a record that contradicts the schema.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["label", "tokens"])
        >>> for batch in ds.batches(8, shuffle="window", seed=1, pad={"tokens": None}):
        ...     print(batch["label"].shape, batch["tokens"].shape[0])
        (8,) 8
        (8,) 8
        (4,) 4
        """
        from dask_tfrecord.extras.batches.iterator import BatchIterator

        return BatchIterator((self._rows,), batch_size, **options)

    def as_sequence(self) -> RowSequence:
        """Get the rows as a sequence, for map-style loaders like those of PyTorch and Grain.

        Returns
        -------
        RowSequence
            ``len(rows)`` is the number of rows, ``rows[i]`` is a dict with the values of a row, and
            ``rows.__getitems__(list)`` reads several rows together. The sequence can be pickled.

        Raises
        ------
        ValueError
            If rows are not counted (``counts=None``).

        Examples
        --------
        >>> rows = dtf.read_tfrecord("train-*.tfrecord", columns=["label", "tokens"]).as_sequence()
        >>> len(rows), rows[-1]["tokens"].shape
        (20, (9,))
        """
        from dask_tfrecord.extras.batches.row_reader import RowReader, RowSequence

        return RowSequence(RowReader(self._rows), self.nrows)

    def __dask_graph__(self) -> dict[Any, Any]:
        return self._rows.__dask_graph__()

    def __dask_keys__(self) -> list[Any]:
        return self._rows.__dask_keys__()

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.Dataset", self._rows))

    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)
    __dask_scheduler__ = staticmethod(Rows.__dask_scheduler__)

    def __dask_postcompute__(self) -> tuple[Callable[..., dict[str, NDArray[Any]]], tuple[Any, ...]]:
        return self._rows.__dask_postcompute__()

    def __dask_postpersist__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        return _rebuild_dataset, self._rows.__dask_postpersist__()

    def __repr__(self) -> str:
        return dataset_text(self._rows)

    def _repr_html_(self) -> str:
        return dataset_html(self._rows)


_Arguments = ParamSpec("_Arguments")


def returns_dataset(name: str, module: str, open_rows: Callable[_Arguments, Rows]) -> Callable[_Arguments, Dataset]:
    """Return a public function with the arguments and the documentation of one that opens rows."""
    signature = inspect.signature(open_rows).replace(return_annotation="Dataset")

    @wraps(open_rows)
    def open_dataset(*args: _Arguments.args, **options: _Arguments.kwargs) -> Dataset:
        return Dataset(open_rows(*args, **options))

    open_dataset.__name__ = open_dataset.__qualname__ = name
    open_dataset.__module__ = module
    # Take the signature of `open_rows`, but return a Dataset.
    open_dataset.__annotations__ = {**open_rows.__annotations__, "return": "Dataset"}
    open_dataset.__signature__ = signature  # type: ignore[attr-defined]
    return explain_arguments(f"dtf.{name}(path)")(open_dataset)


def _rows_advice(key: Any) -> str:
    """Say how to pick rows by a key."""
    if isinstance(key, bool):
        return 'Python has compared the text in the brackets: write ds.where("label == 3") to pick rows'
    if isinstance(key, int | np.integer):
        # A row would contradict `len` and iteration, which count columns: a loader would read few rows.
        return f"write ds.rows[{key}] to pick a row. A DataLoader takes ds.as_sequence()"
    if isinstance(key, slice):
        if isinstance(key.start, str) or isinstance(key.stop, str):
            return f"write ds[{[key.start, key.stop]}], with all names, to pick columns"
        return f"write ds.rows[{_slice_text(key)}] to pick rows"
    if isinstance(key, tuple) and len(key) == 2:
        # NumPy and pandas pick a column and rows by one pair of brackets.
        name, rows = key if isinstance(key[0], str) else key[::-1]
        if isinstance(name, str) and isinstance(rows, int | slice):
            return f"write ds[{name!r}][{_slice_text(rows) if isinstance(rows, slice) else rows}] for rows of a column"
    return "write ds.rows[key] to pick rows by ints, a slice or a mask"


def _slice_text(key: slice) -> str:
    parts = (key.start, key.stop) if key.step is None else (key.start, key.stop, key.step)
    return ":".join("" if part is None else str(part) for part in parts)


def _refuse_objects(name: str, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(f"zarr can't store arrays of objects like those of {name!r}: write ds[[{name!r}]].to_zarr(path)")


def _is_mask(given: Any) -> bool:
    return isinstance(given, Sequence) and bool(given) and all(isinstance(each, bool | np.bool_) for each in given)


class _RowIndexer:
    """Indexer of `Dataset.rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        return "<rows of a Dataset: pick some as in ds.rows[0], ds.rows[2:5], ds.rows[[3, 1]] or ds.rows[mask]>"

    def __call__(self, key: object = 3) -> NoReturn:
        raise TypeError(f"rows are picked by brackets: write ds.rows[{key!r:.100}]")

    def __getitem__(self, key: Any) -> Dataset:
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            key = [int(key)]
        if isinstance(key, tuple):
            raise IndexError(
                f"rows are picked by one int, slice, list or mask; got {key!r:.100}; ds.rows[[1, 2]] picks two"
            )
        if not isinstance(key, slice):
            # A mask may be a dask array, also of arrays on a device. An empty list has dtype float64.
            key = key.compute() if is_dask_collection(key) else key
            key = np.asarray(host_array(key, "the selection of rows"))
            key = key if key.size else key.astype(np.int64)
        return Dataset(self._rows.select(key))


def _rebuild_dataset(
    dsk: Any, rebuild: Callable[..., Rows], options: tuple[Any, ...], *, rename: Mapping[str, str] | None = None
) -> Dataset:
    return Dataset(rebuild(dsk, *options, rename=rename))
