"""Partitions of the values of a record into rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import checked_key


class Partition:
    """Base of the partitions, which have one argument each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, partition_arguments(self).values()))})"


def partition_arguments(partition: Partition) -> dict[str, Any]:
    """Return the argument that constructs an equal partition, by its name."""
    return {field.name: getattr(partition, field.name) for field in fields(partition)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, repr=False)
class KeyedPartition(Partition):
    """A partition stored under a key of the record, as int64 values."""

    key: str

    def __post_init__(self) -> None:
        checked_key(self.key, type(self).__name__)


@dataclass(frozen=True, slots=True, repr=False)
class UniformRowLength(Partition):
    """Rows that all have the same length, like `tf.io.RaggedFeature.UniformRowLength`.

    Parameters
    ----------
    length : int
        Number of values per row, 1 or more.

    Examples
    --------
    >>> UniformRowLength(2)
    UniformRowLength(2)
    """

    length: int

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or int(self.length) != self.length or self.length < 1:
            raise SchemaError(f"UniformRowLength: expected one or more values per row; got {self.length!r}")
        object.__setattr__(self, "length", int(self.length))


@dataclass(frozen=True, slots=True, repr=False)
class RowLengths(KeyedPartition):
    """Number of values in each row, like `tf.io.RaggedFeature.RowLengths`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowLengths("lengths")
    RowLengths('lengths')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowSplits(KeyedPartition):
    """Offsets between rows, from 0 to the number of values, like `tf.io.RaggedFeature.RowSplits`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowSplits("splits")
    RowSplits('splits')
    """


@dataclass(frozen=True, slots=True, repr=False)
class ValueRowIds(KeyedPartition):
    """Row number of each value, ascending, like `tf.io.RaggedFeature.ValueRowIds`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> ValueRowIds("rows")
    ValueRowIds('rows')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowLimits(KeyedPartition):
    """End of each row, like `tf.io.RaggedFeature.RowLimits`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowLimits("ends")
    RowLimits('ends')
    """


@dataclass(frozen=True, slots=True, repr=False)
class RowStarts(KeyedPartition):
    """Start of each row, beginning with 0, like `tf.io.RaggedFeature.RowStarts`.

    Parameters
    ----------
    key : str
        Key in the record.

    Examples
    --------
    >>> RowStarts("starts")
    RowStarts('starts')
    """


PARTITIONS: dict[str, Any] = {
    cls.__name__: cls for cls in (RowLengths, RowLimits, RowSplits, RowStarts, UniformRowLength, ValueRowIds)
}
