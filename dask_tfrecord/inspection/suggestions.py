"""Suggestions of other feature classes that fit every value of a feature seen in a survey."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_tfrecord.errors import plural
from dask_tfrecord.features import Feature, FixedLenFeature, VarLenFeature
from dask_tfrecord.inspection.content_detection import BytesContent
from dask_tfrecord.inspection.survey import BytesSummary, FeatureCounts

__all__ = ["Suggestion", "suggestions"]

# Default value in a suggestion, by dtype.
_DEFAULTS = {"bytes": 'b""', "float32": "0.0", "int64": "0", "bool": "False"}
# Item sizes in bytes of raw arrays, and numbers of channels of square images.
_ITEM_SIZES = {"uint8": 1, "16 bit": 2, "32 bit": 4, "64 bit": 8}
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Interpretation that fits all values of a feature.

    Attributes
    ----------
    what : str
        Detected content: for example "text" or "JPEG images of 8 x 8 x 3".
    feature : str or None
        Python code of the feature that reads the values as this content; None if its arguments can't be inferred.
    number : int
        Number of values, records or steps that were seen; all of them fit.
    of : str
        Counted unit: "value", "record" for the values of a record together, or "step" in feature lists.
    could_be : tuple of str
        Arrays of the common size, if all bytes values have one size.
    """

    what: str
    feature: str | None
    number: int
    of: str
    could_be: tuple[str, ...] = ()

    def __str__(self) -> str:
        agree = f"all {self.number:,} {self.of}s" if self.number != 1 else f"the only {self.of}"
        text = (f"or {self.feature}: " if self.feature else "") + f"{self.what}, {agree}"
        return text + (f" (could be {', '.join(self.could_be)})" if self.could_be else "")


def suggestions(counts: FeatureCounts, feature: Feature) -> tuple[Suggestion, ...]:
    """Suggest other features that fit all counted values.

    Parameters
    ----------
    counts : FeatureCounts
        Counts of the feature, of one kind.
    feature : Feature
        Inferred feature.

    Returns
    -------
    tuple of Suggestion
        Empty if no other feature fits.
    """
    (kind,) = counts.kinds
    low, high = counts.value_counts.extent()
    in_lists = bool(counts.steps.bins())
    optional = isinstance(feature, VarLenFeature) and low == high > 0 and not in_lists
    found = []
    if kind == "bytes":
        found.append(_bytes(counts, feature, optional=optional and low == 1, in_lists=in_lists))
    elif counts.integers.distinct == {0, 1}:
        found.append(_booleans(counts, feature, optional=optional))
    if optional:
        number = f"{plural(low, 'value')} in every record that sets it; choose a default"
        found.append(Suggestion(number, _fixed(low, kind, default=True), _units(counts), "record"))
    if isinstance(feature, VarLenFeature) and kind != "bytes" and not in_lists:
        found.append(_rows(counts, kind))
    return tuple(suggestion for suggestion in found if suggestion is not None)


def _fixed(number: int, dtype: str, *, default: bool) -> str:
    shape = () if number == 1 else (number,)
    return f'dtf.FixedLenFeature({shape}, "{dtype}"' + (f", default_value={_DEFAULTS[dtype]})" if default else ")")


def _units(counts: FeatureCounts) -> int:
    """Return the number of records, or of steps of a feature list, that set a kind."""
    return sum(times for _, _, times in counts.value_counts.bins())


def _rows(counts: FeatureCounts, kind: str) -> Suggestion | None:
    """Suggest rows of a fixed length, for example of boxes or points, if every value count is a multiple of it."""
    length = counts.value_counts.common_divisor()
    if length < 2:
        return None
    code = f'dtf.VarLenFeature("{kind}", shape=(-1, {length}))'
    return Suggestion(f"multiples of {length} values", code, _units(counts), "record")


def _booleans(counts: FeatureCounts, feature: Feature, *, optional: bool) -> Suggestion:
    low, _ = counts.value_counts.extent()
    fixed = optional or isinstance(feature, FixedLenFeature)
    code = _fixed(low, "bool", default=optional) if fixed else None
    return Suggestion("only 0 and 1", code, _units(counts), "step" if counts.steps.bins() else "record")


def _bytes(counts: FeatureCounts, feature: Feature, *, optional: bool, in_lists: bool) -> Suggestion | None:
    """Suggest the content of bytes: image, tensor, text or arrays of one size, whichever fits first."""
    seen = counts.bytes_summary
    if not seen.high:
        return None
    scalar = isinstance(feature, FixedLenFeature) and feature.shape == ()
    if isinstance(seen.image, BytesContent):
        return _image(seen, seen.image, scalar=scalar, several=not scalar and not in_lists)
    if isinstance(seen.tensor, BytesContent):
        dtype, shape = seen.tensor.dtype, seen.tensor.shape
        # A NumPy array has at most 64 dimensions, one of them for the rows.
        code = f'dtf.TensorFeature({shape}, "{dtype}")' if scalar and len(shape) < 64 else None
        return Suggestion(f"tensors of {dtype}, shape {shape}", code, seen.values, "value")
    if seen.text:
        several = not scalar and not optional
        argument = f"count={_count(feature)}" if several else 'default_value=""' if optional else ""
        code = None if several and in_lists else f"dtf.TextFeature({argument})"
        return Suggestion("text", code, seen.values, "value")
    if seen.low == seen.high and seen.values > 1:
        return Suggestion(f"{seen.low:,} bytes each", None, seen.values, "value", _arrays(seen.low))
    return None


def _count(feature: Feature) -> int:
    """Return the number of bytes values per record; -1 if it differs."""
    return math.prod(feature.shape) if isinstance(feature, FixedLenFeature) else -1


def _image(seen: BytesSummary, content: BytesContent, *, scalar: bool, several: bool) -> Suggestion:
    known = None not in content.shape
    arguments = [f"shape={(-1, *content.shape) if several else content.shape}"] if known else []
    if content.dtype != "uint8":
        arguments.append(f'dtype="{content.dtype}"')
    # ImageFeature reads several images per record only if all of them have one shape.
    code = f"dtf.ImageFeature({', '.join(arguments)})" if scalar or (known and several) else None
    sizes = " x ".join("?" if size is None else str(size) for size in content.shape)
    return Suggestion(f"{content.format} images of {sizes}".removeprefix("image "), code, seen.values, "value")


def _arrays(nbytes: int) -> tuple[str, ...]:
    """List flat arrays and square images of this size."""
    flat = [f"{item} ({nbytes // size},)" for item, size in _ITEM_SIZES.items() if nbytes % size == 0]
    square = []
    for item, size in list(_ITEM_SIZES.items())[:3]:
        for channels in _CHANNELS:
            side = math.isqrt(nbytes // (size * channels))
            if side > 7 and side * side * size * channels == nbytes:
                square.append(f"{item} ({side}, {side}{f', {channels}' if channels > 1 else ''})")
    return (*flat, *square)
