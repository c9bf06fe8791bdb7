"""Locations of values in the bytes of shards: the features that have one, and columns of their offsets."""

from __future__ import annotations

import math

from dask_tfrecord.columns.column_plan import ColumnPlan, SchemaPlan
from dask_tfrecord.columns.native_spec import located_spec
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature, FixedLenFeature, ImageFeature, RawFeature, TensorFeature, TextFeature
from dask_tfrecord.schema import Schema

__all__ = ["LocationPlan", "location_nbytes", "why_not_located"]


class LocationPlan(SchemaPlan):
    """Plan of columns that hold the byte offset of each value in the stream of a shard.

    Parameters
    ----------
    schema : Schema
        Schema of the records.

    Raises
    ------
    SchemaError
        If the values of a feature are not contiguous in a record, see `why_not_located`.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        # Without sampling: unknown keys are reported when whole records are read.
        super().__init__(schema.replaced(schema))
        offset = FixedLenFeature((), "int64")
        for name, feature in schema.items():
            if not isinstance(feature, FixedLenFeature | RawFeature) or why_not_located(name, schema) is not None:
                raise SchemaError(f"feature {name!r}: {why_not_located(name, schema)}")
            self.plans[name] = ColumnPlan(offset, name, feature, (located_spec(name, feature),), None)
        self.columns = Schema(dict.fromkeys(schema, offset))


def location_nbytes(feature: Feature) -> int:
    """Return the bytes of a record's values, for a feature whose values are contiguous."""
    stored = feature.stored_dtype if isinstance(feature, RawFeature) else feature.item_dtype
    return math.prod(feature.item_shape) * stored.itemsize


def why_not_located(name: str, schema: Schema) -> str | None:
    """Return the reason why the values of a feature are not a fixed number of contiguous bytes in every record.

    Parameters
    ----------
    name : str
        Name of the feature.
    schema : Schema
        Schema of the feature.

    Returns
    -------
    str or None
        None if they are, as far as the schema determines it: floats may be packed or not, record by record.
    """
    feature = schema[name]
    if schema.has_steps(name):
        values = "steps of a feature list" if schema.message == "SequenceExample" else "items of a list of Examples"
        return f"the {values} are not contiguous"
    reason = _why(feature)
    if reason is None and location_nbytes(feature) == 0:
        return "its values take no bytes"
    return reason


def _why(feature: Feature) -> str | None:
    match feature:
        case FixedLenFeature() if feature.is_bytes:
            return "its bytes may have any length: use RawFeature(shape, dtype) if they are an array"
        case FixedLenFeature() if feature.item_dtype.kind in "biu":
            return "integers are stored as varints, of one to ten bytes each"
        case FixedLenFeature():
            stored = feature.dtype == "float32"
            return None if stored else f"the file stores float32, which is cast to {feature.dtype}: use 'float32'"
        case RawFeature() if feature.compression_type is not None:
            return "its values are compressed"
        case RawFeature() if feature.count is not None:
            return "its arrays are in several places"
        case RawFeature() if -1 not in feature.shape:
            return None
        case TensorFeature():
            return "a serialized tensor has several encodings of its values"
        case ImageFeature():
            return "images are encoded"
        case TextFeature():
            return "text varies in length"
    return "its rows vary in length"
