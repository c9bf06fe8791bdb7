"""Labels of an xarray Dataset in a file next to shards, `FILE.xarray.json`.

Labels are the names of dimensions, the coordinates, dtypes and attributes, and the features that read the columns
again.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import Location, SchemaError, TFRecordError, describe_error, printable, warn_caller
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.shards.listing import find_sidecars
from dask_tfrecord.shards.remote import read_text
from dask_tfrecord.shards.shard import Shard

SUFFIX = ".xarray.json"

_VERSION = 1
# Kinds of arrays that are stored as their bytes.
_KINDS = "biufcmMSU"
# Limit of the text, because each shard has a copy; and of the file that is read.
_MOST_NBYTES, _MOST_READ = 1 << 20, 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Names, coordinates and attributes of columns."""

    rows: str | None = None  # name of the dimension of rows; None if nothing names it, and then there is no file
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of the axes of a row, by column
    coords: tuple[str, ...] = ()  # columns that are coordinates
    # Of text, bytes, and of dates and durations, which are stored as int64.
    dtypes: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by column or constant
    collection_attributes: Mapping[str, Any] = field(default_factory=dict)  # of the Dataset
    # Dimensions and values of coordinates without rows.
    constants: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)
    schema: Schema = field(default_factory=lambda: Schema({}))  # features of the records

    def of_records(self, schema: Schema) -> Labels:
        """Return the labels of records of the same rows that are written with other features, or with fewer."""
        return replace(
            self,
            dims={name: axes for name, axes in self.dims.items() if name in schema},
            coords=tuple(name for name in self.coords if name in schema),
            dtypes={name: dtype for name, dtype in self.dtypes.items() if name in schema},
            attributes={
                name: each for name, each in self.attributes.items() if name in schema or name in self.constants
            },
            schema=schema,
        )

    def to_json(self) -> str:
        """Return the text of the file.

        Raises SchemaError if it is longer than 1 MiB, or a coordinate without rows holds objects other than text.
        """
        constants = {}
        for name, (dims, values) in self.constants.items():
            try:
                constants[name] = {"dims": list(dims), "values": _encode(values)}
            except (TypeError, ValueError) as error:
                raise SchemaError(f"coordinate {name!r} has values that no file stores: {error}") from None
        document = {
            "version": _VERSION,
            "rows": self.rows,
            "dims": {name: list(axes) for name, axes in self.dims.items()},
            "coords": list(self.coords),
            "dtypes": dict(self.dtypes),
            "attributes": {name: _encode(dict(each))["dict"] for name, each in self.attributes.items()},
            "collection_attributes": _encode(dict(self.collection_attributes))["dict"],
            "constants": constants,
            "schema": json.loads(self.schema.to_json()),
        }
        text = json.dumps(document, allow_nan=False)
        if len(text) > _MOST_NBYTES:
            names = ", ".join(map(repr, self.constants)) or "none"
            raise SchemaError(
                f"attributes and coordinates without rows ({names}) are {len(text):,} bytes, and each shard has a copy "
                f"of at most {_MOST_NBYTES:,}: drop some of them, as by ds.drop_vars"
            )
        return text

    @classmethod
    def from_json(cls, text: str, location: Location) -> Labels:
        """Read the text of a file; raise SchemaError if it is not the text of labels, or a newer release wrote it."""
        try:
            document = json.loads(text)
            version = document["version"]
            if version != _VERSION:
                raise SchemaError(
                    f"labels of xarray have version {version!r:.20}, expected {_VERSION}: a newer release wrote them; "
                    f"update dask-tfrecord to read them",
                    location,
                )
            return cls(
                str(document["rows"]),
                {name: tuple(map(str, axes)) for name, axes in document["dims"].items()},
                tuple(map(str, document["coords"])),
                {name: str(np.dtype(dtype)) for name, dtype in document["dtypes"].items()},
                {name: _from_json({"dict": each}) for name, each in document["attributes"].items()},
                _from_json({"dict": document["collection_attributes"]}),
                {name: _constant(each["dims"], each["values"]) for name, each in document["constants"].items()},
                Schema.from_json(json.dumps(document["schema"])),
            )
        except SchemaError as error:
            raise SchemaError(error.message, location) from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise SchemaError(f"expected labels of xarray ({error!r:.200})", location) from error


def read_labels(shard: Shard) -> Labels | None:
    """Read the labels next to a shard; None without a file, or with a warning if the file has other content."""
    (sidecar,) = find_sidecars([shard], SUFFIX)
    if sidecar is None:
        return None
    place = Location(sidecar.file.path)
    try:
        if sidecar.file.size > _MOST_READ:
            found = f"expected labels of xarray of at most {_MOST_READ:,} bytes, found {sidecar.file.size:,}"
            raise SchemaError(found, place)
        text = read_text(sidecar.file.path, shard.storage_options)
        return None if text is None else Labels.from_json(text, place)
    except (TFRecordError, OSError) as error:
        reason = str(error) if isinstance(error, TFRecordError) else f"{place}: {describe_error(error)}"
    text = f"{printable(reason)}. The records are read without labels; remove the file or write it again"
    warn_caller(text)
    return None


def _constant(dims: list[str], values: Any) -> tuple[tuple[str, ...], NDArray[Any]]:
    array = np.asarray(_from_json(values))
    if len(set(dims)) != array.ndim:
        raise ValueError(f"dimensions {dims!r:.100} of an array of {array.ndim} axes")
    return tuple(map(str, dims)), array


def encodable(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the attributes that a file of labels can store."""
    kept = {}
    for name, value in attributes.items():
        try:
            _encode(value)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(name, str):
            kept[name] = value
    return kept


def _encode(value: Any) -> Any:
    """Convert a value to JSON; types that JSON lacks become objects with one key."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind in "OT":
            items = array.ravel().tolist()
            if not all(isinstance(item, str) for item in items):
                raise TypeError("objects other than text")
            return {"text": items, "shape": list(array.shape), "dtype": "object" if array.dtype.kind == "O" else "T"}
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"dtype {array.dtype}")
        data = base64.b64encode(array.tobytes()).decode("ascii")
        return {"array": data, "shape": list(array.shape), "dtype": array.dtype.str}
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(item) for name, item in value.items()}}
    raise TypeError(f"{type(value).__name__} is not stored")


def _from_json(value: Any) -> Any:
    """Convert JSON values of `_encode` back."""
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {name: _from_json(item) for name, item in value["dict"].items()}
    if "tuple" in value:
        return tuple(_from_json(item) for item in value["tuple"])
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "float" in value:
        return float(value["float"])
    if "text" in value:
        dtype: Any = object if value["dtype"] == "object" else np.dtypes.StringDType()
        return np.array([str(item) for item in value["text"]], dtype).reshape(value["shape"])
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in _KINDS:
        raise ValueError(f"dtype {dtype}")
    # A copy: arrays over bytes are read-only.
    return np.frombuffer(base64.b64decode(value["array"]), dtype).reshape(value["shape"]).copy()[()]
