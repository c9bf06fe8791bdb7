"""The base of features whose stored values are bytes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature


class Encoded(Feature):
    """A feature whose stored values are bytes.

    Attributes
    ----------
    count : int or None
        Bytes values per record: None for one without an axis of its own, -1 for any number.
    """

    __slots__ = ()
    count: Any

    @property
    @abstractmethod
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the array in one bytes value; -1 for an open size."""

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of one array of a ragged row; ``()`` if arrays differ in shape."""
        if self.own_shapes:
            return ()
        several = self.count is not None and self.count >= 0
        return (self.count, *self.value_shape) if several else self.value_shape

    @property
    def ragged_rank(self) -> int:
        """1 if a record holds any number of arrays, otherwise 0."""
        return int(self.count == -1)


def checked_count(count: Any, owner: str) -> int | None:
    """Check the number of values per record: None for one, -1 for any number."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or (count < 1 and count != -1):
        raise SchemaError(
            f"{owner}: expected count=-1 for any number of values per record, a positive number, or None for one; "
            f"got {count!r}"
        )
    return int(count)
