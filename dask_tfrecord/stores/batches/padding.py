"""Padding of ragged columns of a batch, as `tf.data.Dataset.padded_batch` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.explode import check_ragged, padding_value
from dask_tfrecord.columns.blocks import RaggedBlock
from dask_tfrecord.errors import FeatureError, UnknownFeatureError
from dask_tfrecord.schema import Schema, near_misses

__all__ = ["ColumnPadding", "Pad", "column_paddings"]


@dataclass(frozen=True, slots=True)
class Pad:
    """Padding of a ragged column in batches.

    Parameters
    ----------
    length : int, None or tuple of these, optional
        Values of each row, for each level of rows. None is the longest row of the batch.
    value : scalar, optional
        Padding, by default 0 or ``b""``.
    truncate : bool, default False
        Cut rows that are longer than `length`. By default they raise `FeatureError`.

    Examples
    --------
    >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["tokens"])
    >>> batch = next(ds.batches(4, pad={"tokens": dtf.Pad(2, value=-1, truncate=True)}))
    >>> batch["tokens"].shape
    (4, 2)
    """

    length: int | Sequence[int | None] | None = None
    value: Any = None
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class ColumnPadding:
    """Checked padding of one column.

    Attributes
    ----------
    name : str
        Name of the column.
    lengths : tuple of int or None
        Values of each level of rows, the outermost first; None is the longest row of the batch.
    value : scalar
        Padding in the dtype of the column.
    truncate : bool
        Cut longer rows.
    """

    name: str
    lengths: tuple[int | None, ...]
    value: Any
    truncate: bool

    def apply(self, block: RaggedBlock, describe: Callable[[int], str]) -> NDArray[Any]:
        """Pad the rows of a batch.

        Parameters
        ----------
        block : RaggedBlock
            Rows of the batch.
        describe : callable
            Function from a row of the batch to its location, for errors.

        Returns
        -------
        ndarray of shape (rows, *lengths, *inner)
        """
        return self._fill(block, self.lengths, lambda row: row, describe)

    def _fill(
        self,
        block: RaggedBlock,
        lengths: tuple[int | None, ...],
        outer: Callable[[int], int],
        describe: Callable[[int], str],
    ) -> NDArray[Any]:
        counts = np.diff(block.row_splits)
        longest = int(counts.max(initial=0))
        length = longest if lengths[0] is None else lengths[0]
        if longest > length:
            if not self.truncate:
                row = int(np.flatnonzero(counts > length)[0])
                raise FeatureError(
                    f"{describe(outer(row))}: column {self.name!r} has {counts[row]} "
                    f"{'values' if len(lengths) == 1 else 'rows'} where pad= allows {length}: give a larger length, "
                    f"None for the longest row of each batch, or Pad({length}, truncate=True)"
                )
            block = block.truncated(length)
        values = block.values
        if isinstance(values, RaggedBlock):
            splits = block.row_splits
            filled = self._fill(
                values,
                lengths[1:],
                lambda row: outer(int(np.searchsorted(splits, row, side="right")) - 1),
                describe,
            )
            block = RaggedBlock(filled, splits)
        return block.padded(length, self.value)


def column_paddings(pad: Mapping[str, Any] | None, schema: Schema) -> dict[str, ColumnPadding]:
    """Check the option `pad`.

    Raises
    ------
    UnknownFeatureError, SchemaError, ValueError, TypeError
        If a column does not exist or is not ragged, or a length or value does not fit it.
    """
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise TypeError(f"pad is a mapping from columns to a length, None or Pad; got {pad!r:.100}")
    found = {}
    for name, given in pad.items():
        if name not in schema:
            raise UnknownFeatureError(f"pad: no column {name!r}{near_misses(name, list(schema), schema.sampling)}")
        feature = schema[name]
        check_ragged(name, feature)
        option = given if isinstance(given, Pad) else Pad(given)
        lengths = _lengths(option.length, name, feature.ragged_rank)
        if not isinstance(option.truncate, bool):
            raise TypeError(f"pad: truncate of {name!r} is True or False; got {option.truncate!r:.100}")
        value = padding_value(option.value, feature.item_dtype, name)
        found[name] = ColumnPadding(name, lengths, value, option.truncate)
    return found


def _lengths(length: Any, name: str, levels: int) -> tuple[int | None, ...]:
    if length is None:
        return (None,) * levels
    given = tuple(length) if isinstance(length, Sequence) and not isinstance(length, str) else (length,)
    if not all(
        each is None or (isinstance(each, int | np.integer) and not isinstance(each, bool) and each >= 0)
        for each in given
    ):
        raise ValueError(f"pad: a length of {name!r} is a non-negative int or None; got {length!r:.100}")
    if len(given) != levels:
        raise ValueError(
            f"pad: column {name!r} has {levels} levels of rows, and takes a tuple of as many lengths; got {length!r}"
        )
    return tuple(None if each is None else int(each) for each in given)
