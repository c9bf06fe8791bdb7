"""What arrays hold, as plain values that are equal where the arrays are, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np


def bits(value: Any) -> Any:
    """Give dtype, shape and content, of objects what each of them is: NaN payloads and signs of zeros count."""
    if not isinstance(value, np.ndarray):
        return type(value), value
    if value.dtype == object:
        return "object", value.shape, [bits(item) for item in value.ravel()]
    return value.dtype, value.shape, value.tolist() if value.dtype.kind == "T" else value.tobytes()
