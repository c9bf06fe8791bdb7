"""Rows from an iterator, one mapping each, as TFRecord shards in bounded memory.

The number of rows, and so the number of shards, is known when the iterator ends. Until then blocks of rows are shards
in a temporary directory of this machine; then their records are copied to the shards, which appear whole.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError, near_misses
from dask_tfrecord.settings import limits

Sample = Mapping[str, Any]
# Rows of a block, and how much larger than the others the first one may be.
_MOST_ROWS = 10_000
_FIRST_BLOCKS = 8


def is_samples(arrays: Any) -> bool:
    """Return whether rows are given one by one: by an iterator, or as a list of mappings."""
    if isinstance(arrays, Mapping):
        return False
    return isinstance(arrays, Iterator) or (
        isinstance(arrays, list) and bool(arrays) and all(isinstance(row, Mapping) for row in arrays)
    )


def with_empty_lists(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns with one more row of empty lists, so that lists are inferred to differ in length.

    The first rows may have one length by chance. Arrays of NumPy have one shape.
    """
    return {name: [*values, [] if isinstance(values[-1], list) else values[-1]] for name, values in columns.items()}


def write_blocks(
    samples: Iterable[Sample],
    write: Callable[[dict[str, list[Any]], Path, int], None],
    finish: Callable[[Path, int], None],
) -> None:
    """Write blocks of rows to numbered shards of a temporary directory by `write`, then call `finish` with it.

    `write` gets the columns of a block, the path of its shard, and the number of its first row; `finish` the number of
    rows of a shard of about `Limits.shard_nbytes`.
    """
    with tempfile.TemporaryDirectory(prefix="dask_tfrecord-") as folder:
        rows = 0
        for number, block in enumerate(_blocks(samples)):
            write(_columns_of_samples(block, rows), Path(folder) / f"{number:08d}.tfrecord", rows)
            rows += len(block)
        if not rows:
            raise SchemaError("the iterator has no rows, so their features are unknown")
        nbytes = sum(path.stat().st_size for path in Path(folder).iterdir())
        finish(Path(folder), max(1, rows * limits().shard_nbytes // max(nbytes, 1)))


def _blocks(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    block: list[Sample] = []
    nbytes, is_first = 0, True
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise SchemaError(
                f"the iterator must yield a mapping of names to values for each row; got {type(sample).__name__}"
            )
        block.append(sample)
        nbytes += sum(map(_sample_nbytes, sample.values()))
        # The first block decides the features of all rows.
        is_known = not is_first or len(block) >= limits().probe_rows or nbytes >= _FIRST_BLOCKS * limits().read_nbytes
        if (nbytes >= limits().read_nbytes and is_known) or len(block) >= _MOST_ROWS:
            yield block
            block, nbytes, is_first = [], 0, False
    if block:
        yield block


def _sample_nbytes(value: Any) -> int:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return sum(map(_sample_nbytes, value))
    return int(value.nbytes) if isinstance(value, np.ndarray) else sys.getsizeof(value)


def _columns_of_samples(block: Sequence[Sample], first: int) -> dict[str, list[Any]]:
    """Return the values of each name; all rows have the names of the first one."""
    names = list(block[0])
    for row, sample in enumerate(block, first):
        if sample.keys() != block[0].keys():
            missing = [name for name in names if name not in sample]
            (other, *_) = missing or [name for name in sample if name not in names]
            what = "lacks" if missing else "adds"
            raise SchemaError(
                f"row {row:,} {what} {other!r}{'' if missing else near_misses(other, names)}: all rows have the same "
                f"names, with an empty list where a row has no values"
            )
    return {name: [sample[name] for sample in block] for name in names}
