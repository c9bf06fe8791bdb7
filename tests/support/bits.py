"""Compare arrays and blocks bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import Block, to_array


def bits(value: Any) -> Any:
    """Return dtype, shape and content as plain values. NaN payloads and signs of zeros count."""
    if not isinstance(value, np.ndarray):
        return type(value), value
    if value.dtype == object:
        return "object", value.shape, [bits(item) for item in value.ravel()]
    return value.dtype, value.shape, value.tolist() if value.dtype.kind == "T" else value.tobytes()


def assert_blocks_equal(blocks: Mapping[str, Block], expected: Mapping[str, NDArray[Any]]) -> None:
    """Compare columns in order, bit for bit."""
    assert list(blocks) == list(expected)
    for name, block in blocks.items():
        assert bits(to_array(block)) == bits(expected[name]), name
