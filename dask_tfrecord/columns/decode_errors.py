"""Error messages for records that the native decoder refuses: expected and found content, and what to do."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dask_tfrecord._native import Fault, Kind, ValueLayout
from dask_tfrecord.columns.column_plan import ColumnPlan
from dask_tfrecord.columns.native_spec import KeySpec
from dask_tfrecord.columns.tensors import found_tensor
from dask_tfrecord.errors import FeatureError, Location, plural
from dask_tfrecord.features import Feature, FixedLenFeature, ImageFeature, RawFeature, TensorFeature, TextFeature
from dask_tfrecord.features.base import stored_kind
from dask_tfrecord.messages import DecodeError, ExampleListWithContext, SequenceExample
from dask_tfrecord.schema import ITEMS, Sampling, Schema, near_misses

__all__ = ["Refused", "feature_error", "unknown_error"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Content of a record that the decoder refused.

    Attributes
    ----------
    fault : Fault
        Kind of the error.
    step : int
        Step of a feature list, item of a list of Examples, or -1.
    found : int
        A kind, count, size or value, depending on the fault.
    text : str
        Key of an unknown feature, or description of a tensor.
    """

    fault: Fault
    step: int
    found: int
    text: str

    @property
    def is_other_message(self) -> bool:
        """Return whether the record as a whole is not the expected message."""
        return self.fault in (Fault.MALFORMED, Fault.NOT_EXAMPLE)


def unknown_error(key: str, refused: Refused, schema: Schema, location: Location) -> FeatureError:
    """Return the error of a feature that an inferred schema lacks."""
    if refused.fault == Fault.UNKNOWN_KEY:
        name = key if refused.step < 0 else f"{ITEMS}/{key}"
        message = "is not in the schema"
    else:
        name = key
        message = f"holds {_kind_name(Kind(refused.found))}, but no sampled record sets it"
    unit = "item" if schema.message == "ExampleListWithContext" else "step"
    text = f"feature {name!r}{_place(refused, unit)} {message}{_hint(schema.sampling)}"
    return FeatureError(text, Location(location.file, location.record, location.offset, name))


def feature_error(
    plan: ColumnPlan, spec: KeySpec, refused: Refused, schema: Schema, location: Location, payload: bytes
) -> FeatureError:
    """Return the error of a feature of a record, `payload`, that does not match the schema."""
    message = f"feature {plan.source!r}"
    if spec.key != schema.key_of(plan.source):
        message += f", key {spec.key!r},"
    message += f"{_place(refused, plan.unit)} {_difference(plan.parsed, spec, refused)}"
    if refused.fault == Fault.MISSING:
        is_list = schema.message == "ExampleListWithContext"
        message += _keys_of_items(spec, refused, payload) if is_list else _found_keys(spec, payload)
    message += _hint(schema.sampling)
    return FeatureError(message, Location(location.file, location.record, location.offset, plan.source))


def _place(refused: Refused, unit: str) -> str:
    return f" in {unit} {refused.step}" if refused.step >= 0 else ""


def _found_keys(spec: KeySpec, payload: bytes) -> str:
    """Describe the keys of a record that lacks one."""
    try:
        record = SequenceExample.FromString(payload)  # parses Examples too: they are its context
    except (DecodeError, UnicodeDecodeError):
        # The decoder does not validate features that are not requested.
        return "; another part of the record is damaged"
    features, lists = record.context.feature, record.feature_lists.feature_list
    if spec.key in features and not spec.steps:
        return "; the key exists, but its value is empty"
    if spec.steps and not lists:
        return "; the record lacks feature lists: read Examples without sequence_features"
    if spec.steps and spec.key in features:
        return "; it is a feature of the context: specify it in features"
    if spec.key in lists:
        return "; it is a feature list: specify it in sequence_features"
    return near_misses(spec.key, sorted(lists if spec.steps else features))


def _keys_of_items(spec: KeySpec, refused: Refused, payload: bytes) -> str:
    """Describe the keys of an item, or of the context of a list of Examples, that lacks one."""
    try:
        record = ExampleListWithContext.FromString(payload)
    except (DecodeError, UnicodeDecodeError):
        return "; another part of the record is damaged"
    items, context = record.examples, record.context.features.feature
    found = items[refused.step].features.feature if spec.steps else context
    if spec.key in found:
        return "; the key exists, but its value is empty"
    if spec.steps and spec.key in context:
        return "; it is a feature of the context: specify it in features"
    if not spec.steps and any(spec.key in item.features.feature for item in items):
        return "; it is a feature of the items: specify it in example_features"
    if spec.steps and any(spec.key in item.features.feature for item in items):
        return "; other items of the record have it: a default_value fills it"
    return near_misses(spec.key, sorted(found))


def _hint(sampling: Sampling | None) -> str:
    if sampling is None:
        return ""
    return (
        f" (inferred from {plural(sampling.records, 'record')}; infer_schema(urlpath, sample=None) reads all of them, "
        f"or give features=)"
    )


def _kind_name(kind: Kind) -> str:
    return {Kind.BYTES: "a bytes list", Kind.FLOATS: "a float list", Kind.INT64: "an int64 list"}.get(kind, "no list")


def _difference(feature: Feature, spec: KeySpec, refused: Refused) -> str:
    """Describe the found content, and the content that the feature expects."""
    found = refused.found
    match refused.fault:
        case Fault.MISSING if (
            spec.layout == ValueLayout.LOCATED and getattr(feature, "default_value", None) is not None
        ):
            return f"is missing: the file does not hold the default value of {feature}"
        case Fault.SCATTERED:
            return (
                f"holds its values in several runs of bytes, but a reference to {feature} needs one run: they are not "
                f"packed, or packed in parts"
            )
        case Fault.MISSING:
            return f"is missing where {feature} needs it"
        case Fault.KIND:
            return f"holds {_kind_name(Kind(found))} where {feature} takes {_kind_name(spec.kind)}"
        case Fault.SIZE:
            return f"holds {plural(found, 'byte')} where {feature} takes {spec.count}"
        case Fault.UTF8:
            return f"is not valid UTF-8 where {feature} takes text; FixedLenFeature((), 'bytes') reads any bytes"
        case Fault.BOOLEAN:
            return f"holds a byte {found} where {feature} takes 0 and 1; RawFeature(shape, 'uint8') reads any byte"
        case Fault.CAST:
            return f"holds {_value(spec, found)}, which {spec.dtype} can't hold, where {feature} casts to it"
        case Fault.TENSOR:
            return f"holds {found_tensor(refused.text, found)} where {feature} takes a tensor of its dtype and shape"
        case Fault.FULL:
            return f"holds more values than the output buffer, but {feature} has a known number"
    values = plural(found, "value")
    if spec.layout == ValueLayout.RAGGED:
        return f"holds {values} where {feature} takes a multiple of {spec.count}"
    listed = spec.layout == ValueLayout.FIXED or (spec.layout == ValueLayout.LOCATED and spec.dtype != "bytes")
    advice = "" if spec.steps or spec.layout == ValueLayout.LOCATED else _advice(feature, found)
    return f"holds {values} where {feature} takes {spec.count if listed else 1}{advice}"


def _advice(feature: Feature, found: int) -> str:
    """Return the feature class that reads this number of values."""
    if not found and isinstance(feature, FixedLenFeature | TextFeature) and not feature.shape:
        return "; a default_value fills it"
    if isinstance(feature, ImageFeature):
        return "; ImageFeature with a shape that begins with -1 reads any number of them"
    if isinstance(feature, RawFeature | TensorFeature | TextFeature):
        return f"; {type(feature).__name__} with count=-1 reads any number of them"
    if isinstance(feature, FixedLenFeature):
        return f"; VarLenFeature({feature.dtype!r}) reads any number of them"
    return ""


def _value(spec: KeySpec, found: int) -> str:
    """Format a number that the decoder reports by its bits."""
    if stored_kind(spec.dtype) == "int64":
        return str(found - (1 << 64) if found >= 1 << 63 else found)
    (value,) = struct.unpack("<f", struct.pack("<I", found))
    return repr(value)
