"""Read TFRecord shards as lazy dask arrays, and convert them to Zarr stores, without TensorFlow.

Names are imported when you first use them, so that a program loads dask, zarr and fsspec only if it needs them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_tfrecord.blocks import BytesBlock as BytesBlock
    from dask_tfrecord.blocks import RaggedBlock as RaggedBlock
    from dask_tfrecord.columns.resizing import resize_images as resize_images
    from dask_tfrecord.dataset.dataset import Dataset as Dataset
    from dask_tfrecord.dataset.reading import read_tfrecord as read_tfrecord
    from dask_tfrecord.dataset.reading_zarr import from_zarr as from_zarr
    from dask_tfrecord.errors import CorruptRecordError as CorruptRecordError
    from dask_tfrecord.errors import FeatureError as FeatureError
    from dask_tfrecord.errors import SchemaError as SchemaError
    from dask_tfrecord.errors import TFRecordError as TFRecordError
    from dask_tfrecord.extras.batches.mixing import Pad as Pad
    from dask_tfrecord.extras.batches.mixtures import sample_from_datasets as sample_from_datasets
    from dask_tfrecord.extras.lerobot import to_lerobot as to_lerobot
    from dask_tfrecord.extras.sample_data import sample_data as sample_data
    from dask_tfrecord.extras.workers import check_workers as check_workers
    from dask_tfrecord.extras.workers import show_versions as show_versions
    from dask_tfrecord.features import FixedLenFeature as FixedLenFeature
    from dask_tfrecord.features import FixedLenSequenceFeature as FixedLenSequenceFeature
    from dask_tfrecord.features import FloatImageFeature as FloatImageFeature
    from dask_tfrecord.features import FunctionFeature as FunctionFeature
    from dask_tfrecord.features import ImageFeature as ImageFeature
    from dask_tfrecord.features import ProtoFeature as ProtoFeature
    from dask_tfrecord.features import RaggedFeature as RaggedFeature
    from dask_tfrecord.features import RawFeature as RawFeature
    from dask_tfrecord.features import SparseFeature as SparseFeature
    from dask_tfrecord.features import TensorFeature as TensorFeature
    from dask_tfrecord.features import TextFeature as TextFeature
    from dask_tfrecord.features import VarLenFeature as VarLenFeature
    from dask_tfrecord.features import register_feature as register_feature
    from dask_tfrecord.features.images.codecs import ImageFormat as ImageFormat
    from dask_tfrecord.features.images.registry import register_image_format as register_image_format
    from dask_tfrecord.features.schema import Schema as Schema
    from dask_tfrecord.records.framing import RecordWriter as RecordWriter
    from dask_tfrecord.records.framing import read_records as read_records
    from dask_tfrecord.rows.counting import build_index as build_index
    from dask_tfrecord.rows.damaged_records import repair as repair
    from dask_tfrecord.rows.damaged_records import verify as verify
    from dask_tfrecord.rows.partitions import infer_schema as infer_schema
    from dask_tfrecord.rows.partitions import inspect_records as inspect_records
    from dask_tfrecord.rows.partitions import read_bag as read_bag
    from dask_tfrecord.shards.compressions import register_compression as register_compression
    from dask_tfrecord.shards.shard_compression import ShardCompression as ShardCompression
    from dask_tfrecord.stores.files.job import ParquetJob as ParquetJob
    from dask_tfrecord.stores.files.job import TFRecordJob as TFRecordJob
    from dask_tfrecord.stores.files.parquet import to_parquet as to_parquet
    from dask_tfrecord.stores.files.tfrecord import copy_tfrecord as copy_tfrecord
    from dask_tfrecord.stores.files.tfrecord import to_tfrecord as to_tfrecord
    from dask_tfrecord.stores.virtual.parser import TFRecordParser as TFRecordParser
    from dask_tfrecord.stores.virtual.references import virtual_zarr as virtual_zarr
    from dask_tfrecord.stores.zarr.job import ZarrJob as ZarrJob
    from dask_tfrecord.stores.zarr.write import to_zarr as to_zarr
    from dask_tfrecord.stores.zarr.zarr_plan import plan_zarr as plan_zarr

# The public names of each module; the imports above are the same for type checkers.
_PUBLIC = {
    "rows.counting": ("build_index",),
    "rows.damaged_records": ("repair", "verify"),
    "rows.partitions": ("infer_schema", "inspect_records", "read_bag"),
    "extras.batches.mixing": ("Pad",),
    "extras.batches.mixtures": ("sample_from_datasets",),
    "blocks": ("BytesBlock", "RaggedBlock"),
    "shards.shard_compression": ("ShardCompression",),
    "shards.compressions": ("register_compression",),
    "columns.resizing": ("resize_images",),
    "dataset.dataset": ("Dataset",),
    "dataset.reading": ("read_tfrecord",),
    "dataset.reading_zarr": ("from_zarr",),
    "errors": ("CorruptRecordError", "FeatureError", "SchemaError", "TFRecordError"),
    "extras.sample_data": ("sample_data",),
    "features": (
        *("FixedLenFeature", "FixedLenSequenceFeature", "FloatImageFeature"),
        *("FunctionFeature", "ImageFeature", "ProtoFeature"),
        *("RaggedFeature", "RawFeature", "SparseFeature", "TensorFeature", "TextFeature", "VarLenFeature"),
        "register_feature",
    ),
    "features.images.codecs": ("ImageFormat",),
    "features.images.registry": ("register_image_format",),
    "records.framing": ("RecordWriter", "read_records"),
    "extras.workers": ("check_workers", "show_versions"),
    "features.schema": ("Schema",),
    "stores.files.job": ("ParquetJob", "TFRecordJob"),
    "extras.lerobot": ("to_lerobot",),
    "stores.files.parquet": ("to_parquet",),
    "stores.files.tfrecord": ("copy_tfrecord", "to_tfrecord"),
    "stores.virtual.parser": ("TFRecordParser",),
    "stores.virtual.references": ("virtual_zarr",),
    "stores.zarr.job": ("ZarrJob",),
    "stores.zarr.write": ("to_zarr",),
    "stores.zarr.zarr_plan": ("plan_zarr",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULES)
# Modules that are attributes of the package before they are imported.
_SUBMODULES = {"errors": "errors", "features": "features", "messages": "messages", "schema": "features.schema"}


def __getattr__(name: str) -> Any:
    """Import a public name or submodule on first use (PEP 562)."""
    if name in _MODULES:
        value = getattr(importlib.import_module(f"dask_tfrecord.{_MODULES[name]}"), name)
        # The next access is an ordinary one.
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"dask_tfrecord.{_SUBMODULES[name]}")
    if name == "_native":
        return _import_native()
    if name == "__version__":
        # Imported here, because it takes ten times as long as this module.
        metadata = importlib.import_module("importlib.metadata")
        # A source tree may not be installed.
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version("dask-tfrecord")
    hint = "" if name.startswith("_") else importlib.import_module("dask_tfrecord.advice").advice("dtf", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name, obj=sys.modules[__name__])


def _import_native() -> Any:
    """Import the compiled extension, which a source tree lacks until it is installed."""
    try:
        return importlib.import_module("dask_tfrecord._native")
    except ModuleNotFoundError as error:
        if error.name != "dask_tfrecord._native":
            raise
        raise ImportError(
            f"the compiled extension `_native` is missing next to {__file__}: "
            "run `pip install -e .` in the root of the source tree, or start Python in another directory",
            name=error.name,
        ) from None


if "dask.config" in sys.modules:
    # Otherwise the first function that reads a setting adds the defaults, and `import dask_tfrecord` needs no dask.
    importlib.import_module("dask_tfrecord.settings")


if os.environ.get("EAGER_IMPORT"):
    # As in packages with lazy_loader: an import that fails is found at the start.
    for _name in __all__:
        __getattr__(_name)


def __dir__() -> list[str]:
    """List public names and submodules, imported or not."""
    return sorted({*__all__, *_SUBMODULES, "__version__", *(name for name in globals() if name.startswith("__"))})
