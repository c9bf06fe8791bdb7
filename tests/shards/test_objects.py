"""Rows as objects: bytes and arrays that the native core makes, small and large, in new arrays and in given ones.

The functions are called directly, because the paths differ by the mean size of a row alone.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dask_tfrecord import _native


def rows_of_mean(mean: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return values and splits of rows of some mean size, with an empty row and one of one item."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 2 * mean, 50)
    lengths[3:5] = 0, 1
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return rng.integers(0, 256, splits[-1], dtype=np.uint8), splits


@pytest.mark.parametrize("mean", [3, 2000])
def test_bytes(mean: int) -> None:
    """Bytes equal slices of the values; an array that does not fit, and splits beyond the values, are refused."""
    values, splits = rows_of_mean(mean)
    expected = [values[start:stop].tobytes() for start, stop in itertools.pairwise(splits)]
    out = np.empty(50, object)
    assert _native.bytes_rows(values, splits, out) is out
    assert out.tolist() == _native.bytes_rows(values, splits).tolist() == expected
    for unfit in (np.empty(49, object), np.empty(100, object)[::2], np.empty((50, 1), object), np.empty(50, np.int64)):
        with pytest.raises(ValueError, match="out must be"):
            _native.bytes_rows(values, splits, unfit)
    with pytest.raises(ValueError, match="splits must ascend"):
        _native.bytes_rows(values[:-1], splits, out)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "float64", "complex128", ">f4", "bool", "object", "T"])
@pytest.mark.parametrize("mean", [3, 2000])
def test_arrays(mean: int, dtype: str, copies: bool) -> None:
    """Arrays equal slices of the values, and share their memory only if they are views."""
    flat, splits = rows_of_mean(mean)
    typed: NDArray[Any] = flat.astype(np.dtypes.StringDType() if dtype == "T" else dtype)
    fixed = typed.copy()
    fixed.flags.writeable = False
    forms = [typed, typed[::-1], np.stack([typed, typed], axis=1), fixed]
    if dtype not in ("object", "T"):
        forms.append(np.frombuffer(b"?" + typed.tobytes(), typed.dtype, offset=1))  # not aligned
    for values in forms:
        out = np.empty(50, object)
        assert _native.array_rows(values, splits, copies, out) is out
        for row, start, stop in zip(out, splits, splits[1:], strict=False):
            assert row.dtype == values.dtype
            np.testing.assert_array_equal(row, values[start:stop])
            if row.size:
                assert np.shares_memory(row, values) is not copies
                view = values[start:stop]
                assert copies or (row.strides, repr(row.flags)) == (view.strides, repr(view.flags))


@pytest.mark.parametrize("kind", ["bytes", "arrays"])
def test_threads_may_fill_the_same_array(kind: str) -> None:
    """Large objects enter the array when they are complete, so one that another thread replaces is not written to."""
    rows, size, nthreads = 20, 300_000, 4
    splits = np.arange(rows + 1, dtype=np.int64) * size
    out = np.empty(rows, object)
    start = threading.Barrier(nthreads, timeout=60)

    def fill(byte: int) -> None:
        values = np.full(rows * size, byte, np.uint8)
        start.wait()
        for _ in range(5):
            if kind == "bytes":
                _native.bytes_rows(values, splits, out)
            else:
                _native.array_rows(values, splits, True, out)

    with ThreadPoolExecutor(nthreads) as pool:
        for done in [pool.submit(fill, byte) for byte in range(nthreads)]:
            done.result(timeout=300)
    for row in out:
        assert bytes(row) in {bytes([byte]) * size for byte in range(nthreads)}
