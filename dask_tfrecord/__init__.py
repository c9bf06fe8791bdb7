"""TFRecord shards as lazy dask arrays and Zarr stores, without TensorFlow."""

from dask_tfrecord.arrays.bag import to_bag
from dask_tfrecord.arrays.checking import repair, verify
from dask_tfrecord.arrays.counting import build_index
from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.inspect import infer_schema, inspect_records
from dask_tfrecord.arrays.read import read_tfrecord
from dask_tfrecord.columns.blocks import BytesBlock, RaggedBlock
from dask_tfrecord.columns.metadata import read_schema
from dask_tfrecord.columns.report import Report
from dask_tfrecord.columns.tfmd_writing import to_tfmd
from dask_tfrecord.errors import CorruptRecordError, FeatureError, SchemaError, TFRecordError
from dask_tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.records.framing import read_records
from dask_tfrecord.records.writer import RecordWriter
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.copying import copy_tfrecord
from dask_tfrecord.stores.manifests import TFRecordParser
from dask_tfrecord.stores.planning import plan_zarr, to_zarr
from dask_tfrecord.stores.references import VirtualZarr
from dask_tfrecord.stores.tfrecord import to_tfrecord
from dask_tfrecord.stores.virtual import virtual_zarr
from dask_tfrecord.stores.zarr_plan import ZarrPlan
from dask_tfrecord.stores.zarr_source import from_zarr

__all__ = [
    "BytesBlock",
    "CorruptRecordError",
    "Dataset",
    "FeatureError",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "ImageFeature",
    "RaggedBlock",
    "RaggedFeature",
    "RawFeature",
    "RecordWriter",
    "Report",
    "Schema",
    "SchemaError",
    "SparseFeature",
    "TFRecordError",
    "TFRecordParser",
    "TensorFeature",
    "TextFeature",
    "VarLenFeature",
    "VirtualZarr",
    "ZarrPlan",
    "build_index",
    "copy_tfrecord",
    "from_zarr",
    "infer_schema",
    "inspect_records",
    "plan_zarr",
    "read_records",
    "read_schema",
    "read_tfrecord",
    "repair",
    "to_bag",
    "to_tfmd",
    "to_tfrecord",
    "to_zarr",
    "verify",
    "virtual_zarr",
]
