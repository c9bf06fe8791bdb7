"""`sample_from_datasets`: several data sets mixed by weights, as training input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.blocks import Block
from dask_tfrecord.columns.conversions import same_form
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.extras.batches.iterator import BatchIterator
from dask_tfrecord.extras.batches.mixture_order import ChainedReader, Choices
from dask_tfrecord.extras.batches.row_reader import RowSequence
from dask_tfrecord.features import Feature, dtype_name
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import BatchOptions, with_options
from dask_tfrecord.rows.permutation import chosen_seed
from dask_tfrecord.rows.rows import HasRows, Rows


class Mixture:
    """Rows of several data sets in a random order, as `sample_from_datasets` returns them.

    Parameters
    ----------
    mixed : sequence of Rows
        Rows of each data set, which are counted, with the same columns.
    choices : Choices
        Data set of each row.

    Attributes
    ----------
    mixed : tuple of Rows
        Rows of the data sets of positive weight, each with the columns of the mixture.
    """

    def __init__(self, mixed: Sequence[Rows], choices: Choices) -> None:
        self.mixed, self._choices = tuple(mixed), choices

    @property
    def schema(self) -> Schema:
        """Features of the columns."""
        return self.mixed[0].schema

    @property
    def nrows(self) -> int:
        """Number of rows of an epoch."""
        return self._choices.nrows

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each data set in an epoch."""
        return tuple(self._choices.counts.tolist())

    @with_options("mixture.batches(2)", BatchOptions)
    def batches(self, batch_size: int, **options: Unpack[BatchOptions]) -> BatchIterator:
        """Iterate over batches of the mixture, as `Dataset.batches` does for a data set.

        Every epoch chooses from the data sets in the same sequence. `shuffle` reads each data set in another order in
        each epoch, before rows are chosen; ``"window"`` also mixes neighbouring rows of the mixture.

        Parameters
        ----------
        batch_size : int
            Rows of a batch. A batch never has rows of two epochs.
        shuffle : {False, "window", "full"}, default False
            ``False`` keeps the rows of a data set in order. ``"window"`` reads its ranges in random order, and mixes
            the rows of the mixture within a window. ``"full"`` is a uniformly random permutation of each data set.
        seed : int, optional
            Seed of these orders; the seed of `sample_from_datasets` chooses from the data sets.
        window : int, optional
            As in `Dataset.batches`, in rows of the mixture.
        shard : tuple of int, default (0, 1)
            Index ``i`` and number ``n`` of the iterators that share each epoch. Each gets a contiguous part of the
            mixture. They need the same seeds.

        Returns
        -------
        BatchIterator
            Iterator of dicts of arrays. `state_dict` and `load_state_dict` save and restore its position.

        Raises
        ------
        ValueError, TypeError, ImportError, SchemaError, TFRecordError
            As in `Dataset.batches`.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["label"])
        >>> mixture = dtf.sample_from_datasets([ds.rows[:5], ds.rows[5:]], [0.3, 0.7], seed=0)
        >>> [len(batch["label"]) for batch in mixture.batches(8, shuffle="full", seed=1)]
        [8, 8, 4]
        """
        return BatchIterator(self.mixed, batch_size, self._choices, **options)

    def as_sequence(self) -> RowSequence:
        """Return the rows of ``batches(shuffle=False)`` as a sequence, as `Dataset.as_sequence` does."""
        return RowSequence(_MixedReader(self.mixed, self._choices), self.nrows)

    def __repr__(self) -> str:
        title = f"<dask_tfrecord mixture: {plural(self.nrows, 'row')} of {plural(len(self.mixed), 'data set')}>"
        shares = (self._choices.weights / self._choices.weights.sum()).tolist()
        parts = zip(shares, self.counts, self.mixed, strict=True)
        lines = [f"weight {share:.4g}: {count:,} of {plural(ds.nrows or 0, 'row')}" for share, count, ds in parts]
        return "\n  ".join([title, *lines, f"columns: {', '.join(self.schema)}"])


class _MixedReader(ChainedReader):
    """Reader of the rows of a mixture by their numbers in it."""

    def __init__(self, mixed: Sequence[Rows], choices: Choices) -> None:
        super().__init__(mixed)
        self._choices = choices

    def read_scattered(self, rows: NDArray[np.int64], scheduler: Any = None) -> dict[str, Block]:
        """Read rows in any order."""
        sources, numbers = self._choices.locate(rows)
        return super().read_scattered(self._choices.starts[sources] + numbers, scheduler)


@explain_arguments("dtf.sample_from_datasets([ds, other])")
def sample_from_datasets(
    datasets: Sequence[HasRows],
    weights: Sequence[float] | None = None,
    seed: int | None = None,
    stop_on_empty_dataset: bool = False,
    *,
    columns: Literal["common"] | Sequence[str] | None = None,
) -> Mixture:
    """Mix data sets: each row is the next row of a data set that is chosen at random.

    Parameters
    ----------
    datasets : sequence of Dataset
        Data sets to mix; their rows must be counted.
    weights : sequence of float, optional
        Probability of choosing each data set; only the ratios matter. Data sets with weight 0 are left out. By default,
        all weights are equal.
    seed : int, optional
        Seed of the choices. By default, a random seed is drawn, which `state_dict` of the batches stores.
    stop_on_empty_dataset : bool, default False
        End as soon as the data set that is chosen has run out of rows, so that the weights hold throughout. By default,
        every row occurs once, and the weights hold until the first data set ends; then the others go on without it.
    columns : "common" or sequence of str, optional
        Columns of the mixture: ``"common"`` means those that all data sets have. By default, all data sets must have
        the same columns.

    Returns
    -------
    Mixture
        It has ``batches(…)`` and ``as_sequence()``, like a `Dataset`. ``nrows`` is the number of rows in an epoch, and
        ``counts`` lists how many come from each data set.

    Raises
    ------
    ValueError
        If `datasets` is empty, or the rows of a data set are not counted. If the number of weights differs from the
        number of data sets, if a weight is negative or not finite, or if all are 0.
    TypeError
        If an argument has the wrong type.
    SchemaError
        If the data sets differ in their columns, or a column differs in dtype or shape.
    UnknownFeatureError
        If a data set lacks a column that `columns` names.

    Notes
    -----
    To give the images of all data sets the same size, use `resize_images` in `map_blocks`.

    Examples
    --------
    >>> small = dtf.Dataset.from_arrays({"label": [0, 1, 2, 3]})
    >>> large = dtf.Dataset.from_arrays({"label": np.arange(100, 200)})
    >>> mixture = dtf.sample_from_datasets([small, large], [0.2, 0.8], seed=0, stop_on_empty_dataset=True)
    >>> mixture
    <dask_tfrecord mixture: 36 rows of 2 data sets>
      weight 0.2: 4 of 4 rows
      weight 0.8: 32 of 100 rows
      columns: label
    """
    if not isinstance(datasets, Sequence) or not all(isinstance(each, HasRows) for each in datasets):
        one = isinstance(datasets, HasRows)
        found = ": write [ds, other]" if one else f"; got {datasets!r:.100}"
        raise TypeError(f"datasets must be a list of Dataset{found}")
    if not datasets:
        raise ValueError("datasets must have at least one data set; got none")
    if not isinstance(stop_on_empty_dataset, bool):
        raise TypeError(f"stop_on_empty_dataset must be True or False; got {stop_on_empty_dataset!r:.100}")
    given = [each.as_rows() for each in datasets]
    chosen = chosen_seed(seed)
    shares = _checked_weights(weights, len(datasets))
    numbers = np.flatnonzero(shares).tolist()
    for number in numbers:
        if given[number].nrows is None:
            raise ValueError(
                f"data set {number}: a mixture needs the number of rows: open with counts='auto', not None"
            )
    names = _common_columns({number: given[number].schema for number in numbers}, columns)
    kept = [given[number].select_columns(names) for number in numbers]
    sizes = [rows.nrows or 0 for rows in kept]
    choices = Choices(sizes, shares[numbers].tolist(), chosen, stop_on_empty_dataset, seed_given=seed is not None)
    return Mixture(kept, choices)


def _checked_weights(weights: Sequence[float] | None, number: int) -> NDArray[np.float64]:
    """Return weights relative to the largest one."""
    if weights is None:
        return np.ones(number)
    given = np.asarray(weights)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"weights must be a list of numbers; got {weights!r:.100}")
    if given.shape != (number,):
        raise ValueError(f"weights: expected one for each of {plural(number, 'data set')}; got {weights!r:.100}")
    if not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise ValueError(f"weights must be finite and at least 0, and one of them positive; got {weights!r:.100}")
    shares = given.astype(np.float64)
    # A weight that is positive stays so.
    return np.where(shares > 0, np.maximum(shares / shares.max(), np.finfo(np.float64).tiny), 0.0)


def _common_columns(schemas: Mapping[int, Schema], columns: Literal["common"] | Sequence[str] | None) -> list[str]:
    """Return the columns of the mixture, which have the same form in all data sets."""
    if isinstance(columns, str) and columns != "common":
        raise ValueError(f'columns must be "common" or a list of names; got {columns!r:.100}')
    (first, own), *others = schemas.items()
    if columns is None:
        for number, schema in others:
            if set(schema) != set(own):
                differing = [_only_in_one(first, own, schema), _only_in_one(number, schema, own)]
                raise SchemaError(
                    f"the data sets have different columns: {'; '.join(filter(None, differing))}. Give "
                    f'columns="common" for the columns that all data sets have, give a list of names, or add columns '
                    "with map_blocks"
                )
    names = list(own) if columns is None else [name for name in own if all(name in each for _, each in others)]
    if columns is not None and columns != "common":
        names = list(columns)
        for number, schema in schemas.items():
            for name in names:
                if name not in schema:
                    raise UnknownFeatureError(f"data set {number}: no column {name!r}{near_misses(name, schema)}")
    if not names:
        raise SchemaError("the data sets have no common column: rename columns by map_blocks")
    differing = [
        f"{name!r} is {_form_of(own[name])} in data set {first} and {_form_of(schema[name])} in data set {number}"
        for number, schema in others
        for name in names
        if not same_form(own[name], schema[name])
    ]
    if differing:
        raise SchemaError(
            f"columns differ in dtype or shape: {'; '.join(differing)}. Convert them by map_blocks (images by "
            f"resize_images), or select the other columns: columns=[…]"
        )
    return names


def _only_in_one(number: int, schema: Schema, other: Schema) -> str:
    """Describe the columns that only one of two data sets has."""
    names = ", ".join(repr(name) for name in schema if name not in other)
    return f"only data set {number} has {names}" if names else ""


def _form_of(feature: Feature) -> str:
    shape = (*(None,) * (feature.ragged_rank + feature.own_shapes), *feature.item_shape)
    return f"{dtype_name(feature.item_dtype)} of shape ({', '.join(map(str, ('n', *shape)))})".replace("None", "?")
