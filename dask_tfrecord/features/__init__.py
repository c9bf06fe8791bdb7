"""Feature classes: the values to read from a record, and dtype and shape of their column."""

from dask_tfrecord.features.arrays import ArrayFeature as ArrayFeature
from dask_tfrecord.features.base import Feature as Feature
from dask_tfrecord.features.dtypes import dtype_name as dtype_name
from dask_tfrecord.features.encoded import Encoded as Encoded
from dask_tfrecord.features.float_image import FloatImageFeature as FloatImageFeature
from dask_tfrecord.features.functions import FunctionFeature as FunctionFeature
from dask_tfrecord.features.image import ImageFeature as ImageFeature
from dask_tfrecord.features.listed import FixedLenFeature as FixedLenFeature
from dask_tfrecord.features.listed import FixedLenSequenceFeature as FixedLenSequenceFeature
from dask_tfrecord.features.listed import VarLenFeature as VarLenFeature
from dask_tfrecord.features.proto import ProtoFeature as ProtoFeature
from dask_tfrecord.features.ragged import RaggedFeature as RaggedFeature
from dask_tfrecord.features.raw import RawFeature as RawFeature
from dask_tfrecord.features.registry import register_feature as register_feature
from dask_tfrecord.features.row_partitions import Partition as Partition
from dask_tfrecord.features.row_partitions import RowLengths as RowLengths
from dask_tfrecord.features.row_partitions import RowLimits as RowLimits
from dask_tfrecord.features.row_partitions import RowSplits as RowSplits
from dask_tfrecord.features.row_partitions import RowStarts as RowStarts
from dask_tfrecord.features.row_partitions import UniformRowLength as UniformRowLength
from dask_tfrecord.features.row_partitions import ValueRowIds as ValueRowIds
from dask_tfrecord.features.sparse import SparseFeature as SparseFeature
from dask_tfrecord.features.tensor import TensorFeature as TensorFeature
from dask_tfrecord.features.text import TextFeature as TextFeature
