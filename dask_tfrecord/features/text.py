"""Text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.encoded import Encoded, checked_count


@dataclass(frozen=True, slots=True, repr=False)
class TextFeature(Encoded):
    """UTF-8 strings, decoded to NumPy's `StringDType`.

    Invalid UTF-8 raises an error that names the record, and the step of a sequence feature.

    Parameters
    ----------
    default_value : str, optional
        Value of a record that lacks the feature, or whose list is empty or unset.
    count : int, optional
        Number of strings per record; -1 for any number, zero included. By default a record holds one, and rows are
        strings.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    default_value: str | None = field(default=None)
    count: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        count = checked_count(self.count, "TextFeature")
        default = self.default_value.decode() if isinstance(self.default_value, bytes) else self.default_value
        if default is not None and not isinstance(default, str):
            raise SchemaError(f"TextFeature: expected text as default value; got {default!r}")
        if default is not None and count is not None:
            raise SchemaError("TextFeature: default_value is for one string per record; remove it, or count")
        self._set(default_value=default, count=count)

    @property
    def dtype(self) -> str:
        """The kind of the stored value: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: a scalar, or a number of strings."""
        return () if self.count is None else (self.count,)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one string: a scalar."""
        return ()
