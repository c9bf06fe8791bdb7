"""Schemas that lie in files: this library's JSON, `schema.pbtxt` of TensorFlow Metadata, `features.json` of TFDS."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from dask_tfrecord.columns.tfds_features import schema_of_features
from dask_tfrecord.columns.tfmd import from_tfmd
from dask_tfrecord.errors import Place, SchemaError, ShardNotFoundError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.beside import read_text

__all__ = ["read_schema"]


def read_schema(urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Schema:
    """Read a schema from a file.

    The text says what it is: the JSON of `Schema.to_json`, a `schema.pbtxt` of TensorFlow Metadata, or a
    `features.json` of TensorFlow Datasets (names of classes, which are in files of their own, come with
    ``read_tfrecord(directory)``). ``read_tfrecord(…, features=path)`` does the same.

    Of a `schema.pbtxt`, a feature that every record has (presence with `min_fraction` 1) in a shape that is known, or
    in one number of values, becomes a `FixedLenFeature`, every other one a `VarLenFeature`; the struct
    ``##SEQUENCE##`` becomes the feature lists of a SequenceExample; sparse features and tensor representations become
    a `SparseFeature`, a `RaggedFeature` or a default. Domains change nothing. These are the rules of TFX.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or fsspec URL.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    Schema

    Raises
    ------
    ShardNotFoundError
        If there is no such file. A `FileNotFoundError` too.
    SchemaError
        If the text is none of the three, or holds a feature that no column can be made of.

    Examples
    --------
    >>> schema = dtf.infer_schema("train-*.tfrecord")
    >>> with open("schema.pbtxt", "w") as file:
    ...     _ = file.write(dtf.to_tfmd(schema))
    >>> dtf.read_schema("schema.pbtxt") == schema
    True
    """
    place = Place(str(urlpath))
    text = read_text(urlpath, storage_options)
    if text is None:
        raise ShardNotFoundError("features names a file with a schema, and there is none", place)
    try:
        return _schema(text)
    except SchemaError as error:
        raise SchemaError(error.message, place) from error


def _schema(text: str) -> Schema:
    # No text of protobuf begins with a brace, and no JSON of a schema with anything else.
    if not text.lstrip().startswith("{"):
        return from_tfmd(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected the JSON of a schema: {error}") from error
    return Schema.from_json(text) if "features" in document else schema_of_features(text)
