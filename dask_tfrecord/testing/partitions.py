"""The rows that the partitions of a `RaggedFeature` cut the values of one record, or of one step, into."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import features as classes
from dask_tfrecord.testing.values import Misfit

__all__ = ["cut", "objects", "uniform_sizes"]

# Row ids may leave rows out, but no more than this: eight bytes can name a row that no memory has a place for.
MOST_ROWS = 1 << 24


def objects(items: Sequence[Any]) -> NDArray[np.object_]:
    """One object for each item, whatever it is."""
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array


def uniform_sizes(partitions: Sequence[classes.Partition]) -> tuple[int, ...]:
    """Sizes of the partitions at the end that are uniform: these become axes of the values."""
    sizes: list[int] = []
    for partition in reversed(partitions):
        if not isinstance(partition, classes.UniformRowLength):
            break
        sizes.append(partition.length)
    return tuple(reversed(sizes))


def cut(
    values: NDArray[Any], partitions: Sequence[classes.Partition], read: Callable[[str], list[int]]
) -> NDArray[Any]:
    """Cut flat values into rows of rows, from the innermost partition to the outermost.

    Parameters
    ----------
    values : ndarray
        Flat.
    partitions : sequence of Partition
        The outermost first.
    read : callable
        Gives the integers that a key holds.

    Returns
    -------
    ndarray
        An object array for each level of rows that differ in length, of object arrays, of arrays of the values.

    Raises
    ------
    Misfit
        If a partition does not fit what it cuts.
    """
    inner = uniform_sizes(partitions)
    if len(values) % math.prod(inner):
        raise Misfit(f"holds {len(values)} values, which are no rows of {inner}")
    rows = values.reshape(-1, *inner)
    for partition in reversed(partitions[: len(partitions) - len(inner)]):
        lengths = _lengths(partition, read, len(rows))
        if any(length < 0 for length in lengths) or sum(lengths) != len(rows):
            raise Misfit(f"has rows {lengths} by {partition} for {len(rows)} values")
        rows = objects([rows[start:end].copy() for start, end in pairwise(accumulate(lengths, initial=0))])
    return rows


def _lengths(partition: classes.Partition, read: Callable[[str], list[int]], count: int) -> list[int]:
    """Row lengths, which need not fit."""
    if isinstance(partition, classes.UniformRowLength):
        return [partition.length] * (count // partition.length)
    assert isinstance(partition, classes.KeyedPartition)
    said = read(partition.key)
    if isinstance(partition, classes.RowLengths):
        return said
    if isinstance(partition, classes.ValueRowIds):
        if len(said) != count or sorted(said) != said or (said and not 0 <= said[0] <= said[-1] <= MOST_ROWS):
            raise Misfit(f"has row ids {said} for {count} values")
        return [said.count(row) for row in range(said[-1] + 1)] if said else []
    if isinstance(partition, classes.RowLimits):
        return _differences([0, *said])
    if said[:1] not in ([], [0]):
        raise Misfit(f"has rows that begin at {said[0]}")
    return _differences([*said, count] if isinstance(partition, classes.RowStarts) else said)


def _differences(places: Sequence[int]) -> list[int]:
    return [end - start for start, end in pairwise(places)]
