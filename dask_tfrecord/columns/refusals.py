"""What the native decoder refuses, in words: what a record was expected to hold, what it holds, and what to do."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from dask_tfrecord.columns.parts import DATA_TYPES, KINDS, Layout, Part
from dask_tfrecord.columns.recipes import Recipe
from dask_tfrecord.errors import FeatureError, Place
from dask_tfrecord.features import Feature
from dask_tfrecord.features.values import stored_kind
from dask_tfrecord.messages import DecodeError, SequenceExample
from dask_tfrecord.schema import Sampling, near_misses

__all__ = ["Fault", "Refused", "feature_error", "unknown_error"]


class Fault(IntEnum):
    """The numbers of native/columns.hpp."""

    MALFORMED = 1
    NOT_EXAMPLE = 2
    MISSING = 3
    KIND = 4
    COUNT = 5
    SIZE = 6
    UTF8 = 7
    UNKNOWN_KEY = 8
    BOOLEAN = 9
    FULL = 10
    CAST = 11
    TENSOR = 12
    SCATTERED = 13


@dataclass(frozen=True, slots=True)
class Refused:
    """What the decoder says of a record that it does not take.

    Attributes
    ----------
    fault : int
        A `Fault`.
    step : int
        Of a feature list, or -1.
    found : int
        A kind, a count, a size or a value, as the fault has it.
    text : str
        Of an unknown feature its key; of a tensor what was found.
    """

    fault: int
    step: int
    found: int
    text: str

    @property
    def is_foreign(self) -> bool:
        """Whether the record as a whole is something else."""
        return self.fault in (Fault.MALFORMED, Fault.NOT_EXAMPLE)


def unknown_error(key: str, refused: Refused, sampling: Sampling | None, place: Place) -> FeatureError:
    """Say which feature turned up that an inferred schema has not."""
    if refused.fault == Fault.UNKNOWN_KEY:
        said = f"feature {key!r} is not among those of the schema"
    else:
        said = f"feature {key!r} holds {_kind_name(refused.found)}, and was never set in the records sampled"
    return FeatureError(said + _way_out(sampling), Place(place.file, place.record, place.offset, key))


def feature_error(
    recipe: Recipe, part: Part, refused: Refused, sampling: Sampling | None, place: Place, payload: bytes
) -> FeatureError:
    """Say what a feature of a record, `payload`, holds where the schema wants something else."""
    said = f"feature {recipe.source!r}"
    if part.key != recipe.source:
        said += f", key {part.key!r},"
    if refused.step >= 0:
        said += f" in step {refused.step}"
    said += f" {_difference(recipe.parsed, part, refused)}"
    if refused.fault == Fault.MISSING:
        said += _what_is_there(part, payload)
    said += _way_out(sampling)
    return FeatureError(said, Place(place.file, place.record, place.offset, recipe.source))


def _what_is_there(part: Part, payload: bytes) -> str:
    """Say which keys a record has, where one was not found."""
    try:
        record = SequenceExample.FromString(payload)  # an Example is one that has a context alone
    except (DecodeError, UnicodeDecodeError):
        # The decoder does not look into what nobody asked for.
        return "; something else in the record is damaged"
    features, lists = record.context.feature, record.feature_lists.feature_list
    if part.key in features and not part.steps:
        return "; the key is there, but nothing is set in it"
    if part.steps and not lists:
        return "; the record has no feature lists, as Examples have none: those are read without sequence_features"
    if part.steps and part.key in features:
        return "; it is a feature of the context: give it in features"
    if part.key in lists:
        return "; it is a feature list: give it in sequence_features"
    return near_misses(part.key, sorted(lists if part.steps else features))


def _way_out(sampling: Sampling | None) -> str:
    if sampling is None:
        return ""
    return (
        f" (inferred from {sampling.records} records; infer_schema(urlpath, sample=None) reads all of them, or give "
        f"features=)"
    )


def _kind_name(kind: int) -> str:
    return {1: "a bytes list", 2: "a float list", 3: "an int64 list"}.get(kind, "no list")


def _difference(feature: Feature, part: Part, refused: Refused) -> str:
    """Say what was found where the feature takes something else."""
    found = refused.found
    match refused.fault:
        case Fault.MISSING if part.layout == Layout.LOCATED and getattr(feature, "default_value", None) is not None:
            return f"is missing: no byte of the file holds the default value of {feature}"
        case Fault.SCATTERED:
            return (
                f"holds its values in several runs where one run of bytes is referred to for {feature}: they are not "
                f"packed, or packed in parts"
            )
        case Fault.MISSING:
            return f"is missing where {feature} needs it"
        case Fault.KIND:
            return f"holds {_kind_name(found)} where {feature} takes {_kind_name(KINDS[stored_kind(part.dtype)])}"
        case Fault.SIZE:
            return f"holds {found} bytes where {feature} takes {part.count}"
        case Fault.UTF8:
            return f"is no UTF-8 where {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
        case Fault.BOOLEAN:
            return f"holds a byte {found} where {feature} takes 0 and 1; RawFeature(shape, 'uint8') reads any byte"
        case Fault.CAST:
            return f"holds {_value(part, found)}, which {part.dtype} can't hold, where {feature} casts to that"
        case Fault.TENSOR:
            return f"holds {refused.text or _dtype_name(found)} where {feature} takes a tensor of its dtype and shape"
        case Fault.FULL:
            return f"holds more values than there is a place for, where {feature} takes a known number"
    values = f"{found} value{'' if found == 1 else 's'}"
    if part.layout == Layout.RAGGED:
        return f"holds {values} where {feature} takes a multiple of {part.count}"
    listed = part.layout == Layout.FIXED or (part.layout == Layout.LOCATED and part.dtype != "bytes")
    return f"holds {values} where {feature} takes {part.count if listed else 1}"


def _value(part: Part, found: int) -> str:
    """Spell out a number that the decoder gives as its bits."""
    if stored_kind(part.dtype) == "int64":
        return str(found - (1 << 64) if found >= 1 << 63 else found)
    (value,) = struct.unpack("<f", struct.pack("<I", found))
    return repr(value)


def _dtype_name(number: int) -> str:
    if not number:
        return "bytes that are no serialized tensor"
    names = {value: name for name, value in DATA_TYPES.items()}
    return f"a tensor of dtype {names[number]}" if number in names else f"a tensor of dtype number {number}"
