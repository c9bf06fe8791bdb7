"""What a feature could be read as beside what it is stored as: suggestions, each true of all values that were seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_tfrecord.columns.looks import Looks
from dask_tfrecord.columns.survey import BytesSeen, Tally
from dask_tfrecord.features import Feature, FixedLenFeature, VarLenFeature

__all__ = ["Suggestion", "suggestions"]

# What a default could be, by dtype.
_DEFAULTS = {"bytes": 'b""', "float32": "0.0", "int64": "0", "bool": "False"}
# Sizes of the values that raw arrays are of, and channels of square images, which many of them are.
_BITS = {"uint8": 1, "16 bit": 2, "32 bit": 4, "64 bit": 8}
_BANDS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something that all values of a feature agree with.

    Attributes
    ----------
    what : str
        What they look like.
    feature : str or None
        The feature that reads them so, as code; None where more has to be known.
    number : int
        How many agree: all that were seen.
    of : str
        Of what: "value", or "record" for the values of a record together; "step" in feature lists.
    could_be : tuple of str
        Where bytes have one size, arrays that have it.
    """

    what: str
    feature: str | None
    number: int
    of: str
    could_be: tuple[str, ...] = ()

    def __str__(self) -> str:
        agree = f"all {self.number:,} {self.of}s" if self.number != 1 else f"the only {self.of}"
        said = (f"or {self.feature}: " if self.feature else "") + f"{self.what}, {agree}"
        return said + (f" (could be {', '.join(self.could_be)})" if self.could_be else "")


def suggestions(tally: Tally, feature: Feature) -> tuple[Suggestion, ...]:
    """Say what else a feature could be read as.

    Parameters
    ----------
    tally : Tally
        What was seen of it.
    feature : Feature
        What it is inferred as.

    Returns
    -------
    tuple of Suggestion
    """
    (kind,) = tally.kinds
    low, high = tally.counts.extent()
    in_lists = bool(tally.steps.bins())
    optional = isinstance(feature, VarLenFeature) and low == high > 0 and not in_lists
    found = []
    if kind == "bytes":
        found.append(_bytes(tally, feature, optional=optional and low == 1, in_lists=in_lists))
    elif tally.integers_seen.seen == {0, 1}:
        found.append(_booleans(tally, feature, optional=optional))
    if optional:
        number = f"{_values(low)} wherever it is set, and the default is yours to choose"
        found.append(Suggestion(number, _fixed(low, kind, default=True), _number(tally), "record"))
    if isinstance(feature, VarLenFeature) and kind != "bytes" and not in_lists:
        found.append(_rows(tally, kind))
    return tuple(suggestion for suggestion in found if suggestion is not None)


def _values(number: int) -> str:
    return "1 value" if number == 1 else f"{number:,} values"


def _fixed(number: int, dtype: str, *, default: bool) -> str:
    shape = () if number == 1 else (number,)
    return f'dtf.FixedLenFeature({shape}, "{dtype}"' + (f", default_value={_DEFAULTS[dtype]})" if default else ")")


def _number(tally: Tally) -> int:
    """Count the records, or the steps of a feature list, that have values."""
    return sum(times for _, _, times in tally.counts.bins())


def _rows(tally: Tally, kind: str) -> Suggestion | None:
    """Where every number of values is a multiple of one: rows of boxes, of points."""
    each = tally.counts.common_divisor()
    if each < 2:
        return None
    code = f'dtf.VarLenFeature("{kind}", shape=(-1, {each}))'
    return Suggestion(f"multiples of {each} values", code, _number(tally), "record")


def _booleans(tally: Tally, feature: Feature, *, optional: bool) -> Suggestion:
    low, _ = tally.counts.extent()
    fixed = optional or isinstance(feature, FixedLenFeature)
    code = _fixed(low, "bool", default=optional) if fixed else None
    return Suggestion("0 and 1 alone", code, _number(tally), "step" if tally.steps.bins() else "record")


def _bytes(tally: Tally, feature: Feature, *, optional: bool, in_lists: bool) -> Suggestion | None:
    """Say what bytes stand for: the first of these that is true of all."""
    seen = tally.bytes_seen
    if not seen.high:
        return None
    # A class that decodes takes one value of each record.
    alone = isinstance(feature, FixedLenFeature) and feature.shape == ()
    if isinstance(seen.image, Looks):
        return _image(seen, seen.image, alone=alone, many=not alone and not in_lists)
    if isinstance(seen.tensor, Looks):
        dtype, shape = seen.tensor.dtype, seen.tensor.shape
        code = f'dtf.TensorFeature({shape}, "{dtype}")' if alone else None
        return Suggestion(f"tensors of {dtype}, shape {shape}", code, seen.values, "value")
    if seen.text:
        code = 'dtf.TextFeature(default_value="")' if optional else "dtf.TextFeature()" if alone else None
        return Suggestion("text", code, seen.values, "value")
    if seen.low == seen.high and seen.values > 1:
        return Suggestion(f"{seen.low:,} bytes each", None, seen.values, "value", _arrays(seen.low))
    return None


def _image(seen: BytesSeen, looks: Looks, *, alone: bool, many: bool) -> Suggestion:
    known = None not in looks.shape
    arguments = [f"shape={(-1, *looks.shape) if many else looks.shape}"] if known else []
    if looks.dtype != "uint8":
        arguments.append(f'dtype="{looks.dtype}"')
    # Images that share a row have one shape.
    code = f"dtf.ImageFeature({', '.join(arguments)})" if alone or (known and many) else None
    sizes = " x ".join("?" if size is None else str(size) for size in looks.shape)
    return Suggestion(f"{looks.what} images of {sizes}".removeprefix("image "), code, seen.values, "value")


def _arrays(nbytes: int) -> tuple[str, ...]:
    """List arrays that have so many bytes."""
    flat = [f"{bits} ({nbytes // size},)" for bits, size in _BITS.items() if nbytes % size == 0]
    square = []
    for bits, size in list(_BITS.items())[:3]:
        for bands in _BANDS:
            side = math.isqrt(nbytes // (size * bands))
            if side > 7 and side * side * size * bands == nbytes:
                square.append(f"{bits} ({side}, {side}{f', {bands}' if bands > 1 else ''})")
    return (*flat, *square)
