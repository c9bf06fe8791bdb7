"""Exports of Earth Engine, in the layout that its guide "TFRecord and Earth Engine" states for `formatOptions`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.wire import example, sequence_example

import dask_tfrecord as dtf

HEIGHT, WIDTH = 2, 3


def write(path: Path, records: list[bytes]) -> Path:
    with dtf.RecordWriter(path, compression="gzip") as writer:
        for record in records:
            writer.write(record)
    return path


def test_bands_of_a_patch_are_lists_of_floats_row_by_row(tmp_path: Path) -> None:
    patches = np.arange(2 * HEIGHT * WIDTH, dtype="float32").reshape(2, HEIGHT, WIDTH)
    records = [example(B4=patch.ravel().tolist(), B8=(-patch).ravel().tolist()) for patch in patches]
    path = write(tmp_path / "patches.tfrecord.gz", records)
    features = dict.fromkeys(["B4", "B8"], dtf.FixedLenFeature((HEIGHT, WIDTH), "float32"))
    read = dtf.read_tfrecord(path, features).compute()
    assert np.array_equal(read["B4"], patches) and np.array_equal(read["B8"], -patches)
    assert dtf.infer_schema(path)["B4"] == dtf.FixedLenFeature((HEIGHT * WIDTH,), "float32")


@pytest.mark.parametrize("kind", ["bytes", "int64", "float32"])
def test_collapsed_bands_are_one_feature_of_the_widest_type(kind: str, tmp_path: Path) -> None:
    # Channels, height, width: all pixels of the first band, then all of the second one.
    bands = np.arange(2 * HEIGHT * WIDTH).reshape(2, HEIGHT, WIDTH)
    values: list[Any] = bands.ravel().tolist()
    feature: Any = dtf.FixedLenFeature((2, HEIGHT, WIDTH), kind)
    if kind == "bytes":
        values, feature = [bytes(values)], dtf.RawFeature((2, HEIGHT, WIDTH), "uint8")
    elif kind == "float32":
        values = list(map(float, values))
    path = write(tmp_path / "collapsed.tfrecord.gz", [example(B4=values)])
    assert np.array_equal(dtf.read_tfrecord(path, {"B4": feature})["B4"].compute(), bands[np.newaxis])


def test_a_pixel_is_a_sequence_example_with_scalar_bands_in_its_context(tmp_path: Path) -> None:
    elevation, ndvi = [410.0, 415.0], np.arange(10, dtype="float32").reshape(2, 5)
    pixels = zip(elevation, ndvi.tolist(), strict=True)
    records = [
        sequence_example({"elevation": [height]}, ndvi=[[value] for value in series]) for height, series in pixels
    ]
    path = write(tmp_path / "pixels.tfrecord.gz", records)
    step = {"ndvi": dtf.FixedLenSequenceFeature((), "float32", length=5)}
    ds = dtf.read_tfrecord(path, {"elevation": dtf.FixedLenFeature((), "float32")}, sequence_features=step)
    assert ds["elevation"].compute().tolist() == elevation
    assert np.array_equal(ds["ndvi"].compute(), ndvi)
    # collapseBands as well: a step holds all bands.
    together = sequence_example(B4=[[value, -value] for value in ndvi[0].tolist()])
    path = write(tmp_path / "series.tfrecord.gz", [together])
    step = {"B4": dtf.FixedLenSequenceFeature((2,), "float32", length=5)}
    collapsed = dtf.read_tfrecord(path, {}, sequence_features=step)["B4"].compute()
    assert np.array_equal(collapsed, np.stack([ndvi[:1], -ndvi[:1]], axis=-1))
