"""Schemas read from files: JSON of `Schema`, `schema.pbtxt` of TensorFlow Metadata, `features.json` of TFDS."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from dask_tfrecord.errors import Location, SchemaError, ShardNotFoundError
from dask_tfrecord.metadata.tfds_features import schema_from_features
from dask_tfrecord.metadata.tfmd import from_tfmd
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.clients import read_text

__all__ = ["read_schema"]


def read_schema(urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Schema:
    """Read a schema from a file.

    The format is detected from the text: the JSON of `Schema.to_json`, a `schema.pbtxt` of TensorFlow Metadata, or a
    `features.json` of TensorFlow Datasets. TFDS stores the names of classes in files of their own;
    ``read_tfrecord(directory)`` reads these too. ``read_tfrecord(…, features=path)`` reads a schema as this function
    does.

    In a `schema.pbtxt`, a feature that every record has (presence with `min_fraction` 1) becomes a `FixedLenFeature`
    if its shape or its number of values is fixed. Every other feature becomes a `VarLenFeature`. The struct
    ``##SEQUENCE##`` becomes the feature lists of a SequenceExample. Sparse features and tensor representations become
    a `SparseFeature`, a `RaggedFeature` or a default value. Domains are ignored. These are the rules of TFX.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or fsspec URL.
    storage_options : mapping, optional
        Options of the fsspec file system.

    Returns
    -------
    Schema
        Features of the file; for a `features.json`, without the names of classes that other files hold.

    Raises
    ------
    ShardNotFoundError
        If the file does not exist. Also a `FileNotFoundError`.
    SchemaError
        If the text is in none of the three formats, or a feature can't be read as a column.

    Examples
    --------
    >>> schema = dtf.infer_schema("train-*.tfrecord")
    >>> with open("schema.pbtxt", "w") as file:
    ...     _ = file.write(dtf.to_tfmd(schema))
    >>> dtf.read_schema("schema.pbtxt") == schema
    True
    """
    location = Location(str(urlpath))
    text = read_text(urlpath, storage_options)
    if text is None:
        raise ShardNotFoundError("features names a schema file that does not exist", location)
    try:
        return _parse_schema(text)
    except SchemaError as error:
        raise SchemaError(error.message, location) from error


def _parse_schema(text: str) -> Schema:
    # JSON of a schema begins with a brace; protobuf text never does.
    if not text.lstrip().startswith("{"):
        return from_tfmd(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected the JSON of a schema: {error}") from error
    return Schema.from_json(text) if "features" in document else schema_from_features(text)
