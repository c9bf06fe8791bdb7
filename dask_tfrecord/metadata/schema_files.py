"""Schemas read from files: JSON of `Schema`, `schema.pbtxt` of TensorFlow Metadata, `features.json` of TFDS."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from dask_tfrecord.errors import Location, SchemaError, ShardNotFoundError
from dask_tfrecord.metadata.tfds_features import schema_from_features
from dask_tfrecord.metadata.tfmd import from_tfmd, pbtxt
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.remote import read_text
from dask_tfrecord.storage.streams import write_file


def read_schema(urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Schema:
    """Read a schema from a file: see `Schema.read`."""
    location = Location(str(urlpath))
    text = read_text(urlpath, storage_options)
    if text is None:
        raise ShardNotFoundError("features names a schema file that does not exist", location)
    try:
        return _parse_schema(text)
    except SchemaError as error:
        raise SchemaError(error.message, location) from error


def write_pbtxt(schema: Schema, urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> None:
    """Write a schema as a `schema.pbtxt`: see `Schema.to_pbtxt`."""
    write_file(urlpath, pbtxt(schema).encode(), storage_options)


def _parse_schema(text: str) -> Schema:
    # JSON of a schema begins with a brace; protobuf text never does.
    if not text.lstrip().startswith("{"):
        return from_tfmd(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected the JSON of a schema: {error}") from error
    return Schema.from_json(text) if "features" in document else schema_from_features(text)
