"""Feature classes: the values to read from a record, and dtype and shape of their column."""

from dask_tfrecord.features.base import Feature, default_array
from dask_tfrecord.features.encoded import Encoded, ImageFeature, RawFeature, TensorFeature, TextFeature
from dask_tfrecord.features.parsed import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from dask_tfrecord.features.partitions import (
    KeyedPartition,
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from dask_tfrecord.features.tensorflow import from_tensorflow

__all__ = [
    "Encoded",
    "Feature",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "ImageFeature",
    "KeyedPartition",
    "Partition",
    "RaggedFeature",
    "RawFeature",
    "RowLengths",
    "RowLimits",
    "RowSplits",
    "RowStarts",
    "SparseFeature",
    "TensorFeature",
    "TextFeature",
    "UniformRowLength",
    "ValueRowIds",
    "VarLenFeature",
    "default_array",
    "from_tensorflow",
]
