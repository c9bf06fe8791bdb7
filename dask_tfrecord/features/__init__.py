"""Feature classes: the values to read from a record, and dtype and shape of their column."""

from dask_tfrecord.features.arrays import ArrayFeature
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.dtypes import default_array, dtype_name, stored_kind
from dask_tfrecord.features.encoded import Encoded
from dask_tfrecord.features.functions import FunctionFeature
from dask_tfrecord.features.image import IMAGE_DTYPES, ImageFeature
from dask_tfrecord.features.listed import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from dask_tfrecord.features.proto import ProtoFeature
from dask_tfrecord.features.ragged import RaggedFeature
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.registry import (
    feature_of_json,
    from_json,
    from_tensorflow,
    json_of_feature,
    register_feature,
    to_json,
)
from dask_tfrecord.features.row_partitions import (
    KeyedPartition,
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from dask_tfrecord.features.sparse import SparseFeature
from dask_tfrecord.features.tensor import TENSOR_DTYPES, TensorFeature, tensor_dtype_number
from dask_tfrecord.features.text import TextFeature

__all__ = [
    "IMAGE_DTYPES",
    "TENSOR_DTYPES",
    "ArrayFeature",
    "Encoded",
    "Feature",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "FunctionFeature",
    "ImageFeature",
    "KeyedPartition",
    "Partition",
    "ProtoFeature",
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
    "dtype_name",
    "feature_of_json",
    "from_json",
    "from_tensorflow",
    "json_of_feature",
    "register_feature",
    "stored_kind",
    "tensor_dtype_number",
    "to_json",
]
