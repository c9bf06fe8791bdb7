"""Comparison of columns bit by bit, and the round trip of a data set through a Zarr store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf


def assert_same(found: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> None:
    """Assert equal names, shapes, dtypes and bits of columns."""
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert_same_array(found[name], array)


def assert_same_array(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Assert equal shape, dtype and bits of two arrays, nested arrays included."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "T":
        assert found.tolist() == wanted.tolist()
    elif wanted.dtype.kind != "O":
        assert found.tobytes() == wanted.tobytes()
    else:
        for one, other in zip(found.ravel().tolist(), wanted.ravel().tolist(), strict=True):
            assert type(one) is type(other)
            if isinstance(other, np.ndarray):
                assert_same_array(one, other)
            else:
                assert one == other


def assert_identity(dataset: dtf.Dataset, store: Any, **options: Any) -> dtf.Dataset:
    """Write a data set to Zarr, read it back and compare; return the data set of the store."""
    dataset.to_zarr(store, **options)
    back = dtf.from_zarr(store, component=options.get("component"))
    assert back.schema == dataset.schema
    assert back.schema.sampling == dataset.schema.sampling
    assert (back.nrows, list(back)) == (dataset.nrows, list(dataset))
    assert_same(back.compute(), dataset.compute())
    return back


def files_of(store: Path) -> dict[str, bytes]:
    """Return every file of a store but the metadata of its group, which hold the identity of the conversion."""
    found = {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    del found["zarr.json"]
    return found
