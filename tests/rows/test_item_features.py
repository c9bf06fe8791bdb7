"""Items of every class that lists arrays, of one and more open sizes and any inner size, through every output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import OUTPUTS
from support.any_columns import dump_npy, load_npy
from support.few import mostly_slow
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature

Shape = tuple[int, ...]
OPEN: list[Shape] = [(-1,), (-1, -1), (-1, -1, -1), (-1, 2, -1)]
SHAPES = [(*sizes, inner) for sizes in OPEN for inner in (0, 1, 3)]
ITEMS = (2, 0, 3)


def keyed(shape: Shape) -> Feature:
    return dtf.RawFeature([f"{shape} {axis}" if size < 0 else size for axis, size in enumerate(shape)], "int16")


MAKERS: dict[str, Callable[[Shape], Feature]] = {
    "Tensor": lambda shape: dtf.TensorFeature(shape, "int16"),
    "TensorBytes": lambda shape: dtf.TensorFeature(shape, "bytes"),
    "Function": lambda shape: dtf.FunctionFeature(load_npy, shape, "int16", dump_npy),
    "Raw": keyed,
    "Tensors": lambda shape: dtf.TensorFeature(shape[1:], "int16", count=-1),
    "Functions": lambda shape: dtf.FunctionFeature(load_npy, shape[1:], "int16", dump_npy, count=-1),
    "Raws": lambda shape: dtf.RawFeature(shape[1:], "int16", count=-1),
    "VarLen": lambda shape: dtf.VarLenFeature("int16", shape=shape),
}


def item(feature: Feature, shape: Shape, rng: np.random.Generator) -> Any:
    """Return an array of a shape, whose open sizes may be 0."""
    sizes = [int(rng.integers(0, 3)) if size < 0 else size for size in shape]
    numbers = rng.integers(0, 99, sizes).astype("int16")
    texts = np.array([b"x" * each for each in numbers.ravel().tolist()], object).reshape(sizes)
    return texts if feature.is_bytes else numbers


def refused(make: Callable[[Shape], Feature], shape: Shape) -> bool:
    """Return whether a class refuses this feature with its error."""
    try:
        make(shape)
    except SchemaError as error:
        assert "got shape" in str(error) or "VarLenFeature: expected known, positive sizes" in str(error)
        return True
    return False


def columns(folder: Path) -> tuple[dtf.Dataset, dict[str, Any]]:
    """Write arrays of all classes and shapes, read them, and return them with their items."""
    rng = np.random.default_rng(0)
    features, rows, items = {}, {}, {}
    for shape in SHAPES:
        for kind, make in MAKERS.items():
            if (kind == "VarLen" and shape.count(-1) > 1) or refused(make, shape):
                continue
            name = f"{kind} {shape}"
            features[name] = feature = make(shape)
            # Arrays of one record have one shape, unless each is a value of its own.
            several = getattr(feature, "count", None) == -1
            inner = [shape[1:] if several else np.shape(item(feature, shape[1:], rng)) for _ in ITEMS]
            rows[name] = [
                [item(feature, of, rng) for _ in range(count)] for count, of in zip(ITEMS, inner, strict=True)
            ]
            listed = [each for row in rows[name] for each in row]
            dense = -1 not in shape[1:]
            items[name] = np.stack(listed) if dense else np.empty(len(listed), object)
            if not dense:
                items[name][:] = listed
            if not several:
                rows[name] = [
                    np.stack(row) if row else np.zeros((0, *of), listed[0].dtype)
                    for row, of in zip(rows[name], inner, strict=True)
                ]
    dtf.to_tfrecord(rows, folder / "a", features=features)
    return dtf.read_tfrecord(folder / "a", features), items


@pytest.mark.parametrize("output", mostly_slow([name for name in OUTPUTS if name != "virtual Zarr"], 4))
def test_items_through_outputs(output: str, tmp_path: Path) -> None:
    ds, wanted = columns(tmp_path)
    assert len(wanted) > 50
    exploded = ds.explode(list(wanted))
    assert_same(exploded.drop("record").compute(), wanted)
    uncounted = dtf.read_tfrecord(tmp_path / "a", ds.schema, counts=None).explode(list(wanted))
    assert_same(uncounted.compute(), wanted)
    assert_same(ds.persist(scheduler="sync").explode(list(wanted)).drop("record").compute(), wanted)
    OUTPUTS[output](exploded.drop("record"), wanted, tmp_path)
