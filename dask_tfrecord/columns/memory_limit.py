"""Memory limit of one decoded column of a block, checked before memory is allocated.

Sizes follow from shapes, from the headers of images and tensors, and from the number of rows. A record of a few bytes
can decode to hundreds of MiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import RowError
from dask_tfrecord.errors import Location, MemoryLimitError
from dask_tfrecord.features import Feature

__all__ = ["MemoryLimit", "RowLimitError", "allocating", "decoding"]


class RowLimitError(RowError):
    """Error of the row that makes a column of a block exceed the memory limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Limit of the bytes of one column of a block.

    Attributes
    ----------
    nbytes : int
        Maximum size of one column.
    setting : str
        Name of the setting that changes the limit, for errors.
    """

    nbytes: int
    setting: str

    def check_rows(self, rows: int, feature: Feature) -> None:
        """Check rows of a fixed size; rows of other features pass.

        Raises
        ------
        RowLimitError
            The block would exceed the limit; the error names the first row beyond it.
        """
        if not feature.is_dense or feature.block_dtype.kind in "OT":
            return
        row_nbytes = math.prod(feature.block_shape) * feature.block_dtype.itemsize
        if rows * row_nbytes > self.nbytes:
            raise RowLimitError(self.nbytes // row_nbytes, self.message(rows * row_nbytes))

    def check_ends(self, ends: NDArray[np.int64], item_nbytes: int) -> None:
        """Check rows of different sizes; `ends` holds the end of each row, in items.

        Raises
        ------
        RowLimitError
            The block would exceed the limit; the error names the first row beyond it.
        """
        if len(ends) and int(ends[-1]) * item_nbytes > self.nbytes:
            row = int(np.searchsorted(ends, self.nbytes // item_nbytes, side="right"))
            raise RowLimitError(row, self.message(int(ends[-1]) * item_nbytes))

    def message(self, nbytes: int | None = None) -> str:
        """Describe a block that exceeds the limit; without `nbytes`, its size beyond this row is unknown."""
        takes = "more" if nbytes is None else f"{nbytes:,} bytes"
        return (
            f"decodes to {takes} in one block where {self.nbytes:,} bytes are the most, which this record exceeds: "
            f"read fewer rows at once (chunks=), or set {self.setting} in the dask configuration of the process that "
            f"reads"
        )


@contextmanager
def allocating(name: str, feature: Feature, runs: Sequence[Any] = ()) -> Iterator[None]:
    """Add the feature and its shape to the error if memory for a block cannot be allocated."""
    try:
        yield
    except MemoryError as error:
        text = f"feature {name!r}, shape {feature.block_shape} of {feature.block_dtype} for each row: {error}"
        location = Location(runs[0].shard.path, runs[0].first, None, name) if runs else None
        raise MemoryLimitError(f"{text}; read fewer rows at once (chunks=)", location) from error


@contextmanager
def decoding(names: Sequence[str], path: str, record: int) -> Iterator[None]:
    """Add the features, the file and the first record to the error if the decoder runs out of memory."""
    try:
        yield
    except MemoryLimitError:
        raise
    except MemoryError as error:
        text = f"no memory to decode features {', '.join(map(repr, names))} from here on"
        raise MemoryLimitError(f"{text}; read fewer rows at once (chunks=)", Location(path, record)) from error
