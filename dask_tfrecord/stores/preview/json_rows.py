"""Rows of columns as lines of JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.inspection.content_detection import is_probably_text

__all__ = ["json_rows"]


def json_rows(columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield each row as the text of a JSON object.

    Bytes are text if they are UTF-8 without control characters, otherwise an object with the key "base64". NaN and
    infinities are strings, as in the JSON mapping of protobuf. Complex numbers are a list of two.

    Parameters
    ----------
    columns : mapping of str to ndarray of shape (n, ...)
        Columns as `Dataset.compute` returns them.
    """
    for row in zip(*columns.values(), strict=True):
        document = {name: _json_value(value) for name, value in zip(columns, row, strict=True)}
        yield json.dumps(document, ensure_ascii=False, allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() if is_probably_text(value) else {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray):
        return [_json_value(item) for item in value]
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, complex | np.complexfloating):
        return [_json_value(float(value.real)), _json_value(float(value.imag))]
    number = float(value)
    if math.isfinite(number):
        # The shortest digits of a float32 or float16 are those of its own precision.
        return float(str(value)) if isinstance(value, np.floating) else number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
