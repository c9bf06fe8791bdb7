"""Text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dask_tfrecord.blocks import Block, to_text
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.encoded import Encoded, checked_count, iter_values
from dask_tfrecord.features.keys import Decoded, KeySpec, Unit


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

    def keys(self, key: str, unit: Unit) -> tuple[KeySpec, ...] | None:
        """Return the spec of UTF-8, with the default value."""
        if unit == "step" and self.default_value is not None:
            return None
        default = () if self.default_value is None else (self.default_value.encode(),)
        found = Encoded.keys(self, key, unit)
        return found and tuple(replace(each, text=True, fallback=default) for each in found)

    def column(self, unit: Unit) -> Feature:
        """Return the feature itself, or that of any number of strings."""
        return self if unit == "value" else TextFeature(count=-1)

    def advice(self, found: int) -> str:
        """Return what reads another number of strings."""
        return "; a default_value fills it" if not found and not self.shape else Encoded.advice(self, found)

    def reason_without_byte_range(self) -> str | None:
        """Return why text has no byte range."""
        return "text varies in length"

    def assemble(self, decoded: Decoded) -> Block:
        """Assemble strings, one per row or several."""
        values = decoded.keys[0].encoded()
        try:
            return decoded.in_rows(self, to_text(values))
        except UnicodeDecodeError as error:
            number = next(number for number, value in enumerate(iter_values(values)) if not _is_utf8(value))
            reason = f"is not valid UTF-8 where {self} takes text; FixedLenFeature((), 'bytes') reads any bytes"
            raise decoded.error(self, number, reason) from error


def _is_utf8(value: memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
