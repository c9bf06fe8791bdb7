"""Feature classes: what is read from a record, and how blocks of it look."""

from dask_tfrecord.features.encoded import Encoded, ImageFeature, RawFeature, TensorFeature, TextFeature
from dask_tfrecord.features.foreign import from_tensorflow
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
from dask_tfrecord.features.values import Feature, default_array

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
