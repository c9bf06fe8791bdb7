"""Rows of a `RaggedFeature`: the values of one record or step, divided by its partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.description import Partition
from oracle.values import Mismatch

# Limits the rows that row ids imply: a single id of eight bytes could imply more rows than memory holds.
MAX_ROWS = 1 << 24


def objects(items: Sequence[Any]) -> NDArray[np.object_]:
    """Return an object array with one element per item, even if the items are arrays of one shape."""
    array = np.empty(len(items), object)
    for number, item in enumerate(items):
        array[number] = item
    return array


def uniform_sizes(partitions: Sequence[Partition]) -> tuple[int, ...]:
    """Return the sizes of the trailing uniform partitions, which become axes of the values."""
    sizes: list[int] = []
    for partition in reversed(partitions):
        if partition.kind != "UniformRowLength":
            break
        sizes.append(partition.length)
    return tuple(reversed(sizes))


def cut(values: NDArray[Any], partitions: Sequence[Partition], read: Callable[[str], list[int]]) -> NDArray[Any]:
    """Divide flat values into nested rows, from the innermost partition to the outermost."""
    inner = uniform_sizes(partitions)
    if len(values) % math.prod(inner):
        raise Mismatch(f"holds {len(values)} values, which do not divide into rows of {inner}")
    rows = values.reshape(len(values) // math.prod(inner), *inner, *values.shape[1:])
    for partition in reversed(partitions[: len(partitions) - len(inner)]):
        lengths = _lengths(partition, read, len(rows))
        if any(length < 0 for length in lengths) or sum(lengths) != len(rows):
            raise Mismatch(f"has rows {lengths} by {partition} for {len(rows)} values")
        rows = objects([rows[start:end].copy() for start, end in pairwise(accumulate(lengths, initial=0))])
    return rows


def _lengths(partition: Partition, read: Callable[[str], list[int]], count: int) -> list[int]:
    """Return the row lengths of a partition, which may not match the number of values."""
    if partition.kind == "UniformRowLength":
        return [partition.length] * (count // partition.length)
    held = read(partition.key)
    if partition.kind == "RowLengths":
        return held
    if partition.kind == "ValueRowIds":
        if len(held) != count or sorted(held) != held or (held and not 0 <= held[0] <= held[-1] <= MAX_ROWS):
            raise Mismatch(f"has row ids {held} for {count} values")
        return [held.count(row) for row in range(held[-1] + 1)] if held else []
    if partition.kind == "RowLimits":
        return _differences([0, *held])
    if held[:1] not in ([], [0]):
        raise Mismatch(f"has rows that begin at {held[0]}")
    return _differences([*held, count] if partition.kind == "RowStarts" else held)


def _differences(splits: Sequence[int]) -> list[int]:
    return [end - start for start, end in pairwise(splits)]
