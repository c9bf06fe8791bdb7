"""Where values lie in the bytes of shards: which features have a place there, and the columns of bytes that say it."""

from __future__ import annotations

import math

from dask_tfrecord.columns.parts import located_part
from dask_tfrecord.columns.recipes import Parser, Recipe
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    TensorFeature,
    TextFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["PlaceParser", "place_nbytes", "why_unplaced"]


class PlaceParser(Parser):
    """Finds where values begin in the stream of a shard: a column of bytes for each feature, and nothing else.

    Parameters
    ----------
    schema : Schema
        What records hold.

    Raises
    ------
    SchemaError
        If a feature has no one place in a record, see `why_unplaced`.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        # What is sampled is judged when all of a record is read.
        super().__init__(schema.replaced(schema))
        place = FixedLenFeature((), "int64")
        for name, feature in schema.items():
            if not isinstance(feature, FixedLenFeature | RawFeature) or why_unplaced(name, schema) is not None:
                raise SchemaError(f"feature {name!r}: {why_unplaced(name, schema)}")
            self.recipes[name] = Recipe(place, name, feature, (located_part(name, feature),), None)
        self.columns = Schema(dict.fromkeys(schema, place))


def place_nbytes(feature: Feature) -> int:
    """Bytes of a record's values, of a feature that has one place."""
    stored = feature.stored_dtype if isinstance(feature, RawFeature) else feature.item_dtype
    return math.prod(feature.item_shape) * stored.itemsize


def why_unplaced(name: str, schema: Schema) -> str | None:
    """Say why the values of a feature are not as many bytes in one place of every record.

    Parameters
    ----------
    name : str
        The feature.
    schema : Schema
        That it is of.

    Returns
    -------
    str or None
        None where they are, as far as the schema tells: of floats it is a record that says whether they are packed.
    """
    feature = schema[name]
    if name in (schema.sequence_features or {}):
        return "the steps of a feature list lie apart from each other"
    reason = _why(feature)
    if reason is None and place_nbytes(feature) == 0:
        return "it has no values"
    return reason


def _why(feature: Feature) -> str | None:
    match feature:
        case FixedLenFeature() if feature.is_bytes:
            return "its bytes may be of any length: RawFeature(shape, dtype) says which array they are"
        case FixedLenFeature() if feature.item_dtype.kind in "biu":
            return "integers are stored as varints, of one to ten bytes each"
        case FixedLenFeature():
            stored = feature.dtype == "float32"
            return None if stored else f"the file holds float32, which is cast to {feature.dtype}: ask for 'float32'"
        case RawFeature() if not feature.ragged_rank:
            return None
        case TensorFeature():
            return "a serialized tensor has its values in one of several encodings"
        case ImageFeature():
            return "images are encoded"
        case TextFeature():
            return "text differs in length"
    return "its rows differ in length"
