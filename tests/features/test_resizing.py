"""`resize_images`: recorded results of TensorFlow, TensorFlow itself, and the forms of blocks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.images import by_pillow, noise
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.blocks import ArraysBlock, RaggedBlock
from dask_tfrecord.errors import SchemaError

METHODS: tuple[Any, ...] = ("bilinear", "nearest", "area", "lanczos3")
# Results of tf.image.resize of TensorFlow 2.21 for `SMALL`, of 2 by 3 pixels.
SMALL = np.array([[0, 10, 255], [7, 100, 33]], np.uint8)[None, ..., None]
RECORDED: dict[tuple[str, tuple[int, int]], list[list[float]]] = {
    ("lanczos3", (1, 2)): [[7.518523216247559, 130.70692443847656]],
    ("bilinear antialias", (1, 2)): [[22.812501907348633, 110.62500762939453]],
    ("lanczos3 antialias", (1, 2)): [[14.90060806274414, 116.91056823730469]],
    ("bilinear", (1, 2)): [[16.375, 121.75]],
    ("bilinear", (3, 4)): [[0.0, 6.25, 101.875, 255.0], [3.5, 35.6875, 88.375, 144.0], [7.0, 65.125, 74.875, 33.0]],
    ("bilinear", (4, 2)): [[2.5, 193.75], [9.4375, 157.75], [23.3125, 85.75], [30.25, 49.75]],
    ("nearest", (1, 2)): [[7, 33]],
    ("nearest", (3, 4)): [[0, 10, 10, 255], [7, 100, 100, 33], [7, 100, 100, 33]],
    ("nearest", (4, 2)): [[0, 255], [0, 255], [7, 33], [7, 33]],
    ("area", (1, 2)): [[20.666667938232422, 114.33333587646484]],
    ("area", (3, 4)): [
        [0.0, 6.6666669845581055, 91.66667175292969, 255.0],
        [3.500000476837158, 37.833335876464844, 84.66667175292969, 144.0],
        [6.999999523162842, 68.99999237060547, 77.66666412353516, 32.999996185302734],
    ],
    ("area", (4, 2)): [
        [3.3333334922790527, 173.33334350585938],
        [3.3333334922790527, 173.33334350585938],
        [38.0, 55.333335876464844],
        [38.0, 55.333335876464844],
    ],
}


@pytest.mark.parametrize(("method", "size"), RECORDED, ids=str)
def test_recorded_results(method: Any, size: tuple[int, int]) -> None:
    expected = RECORDED[method, size]
    method, *antialias = method.split()
    found = dtf.resize_images(SMALL, size, method, antialias == ["antialias"])
    assert found.dtype == (np.uint8 if method == "nearest" else np.float32)
    assert found.shape == (1, *size, 1)
    # The filter of Lanczos calls the sine of the C library.
    np.testing.assert_allclose(found[0, ..., 0], expected, rtol=1e-6 if method == "lanczos3" else 0)


PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
with np.load(sys.argv[1]) as given:
    made = {}
    for name, images in given.items():
        _, height, width, method, antialias = name.split("-")
        made[name] = tf.image.resize(images, (int(height), int(width)), method, antialias=antialias == "True").numpy()
np.savez(sys.argv[2], **made)
"""


@pytest.mark.tensorflow
def test_every_bit_is_that_of_tensorflow(tensorflow: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given: dict[str, np.ndarray[Any, Any]] = {}
    for dtype in ("uint8", "uint16", "int32", "float16", "float32", "float64"):
        for number in range(12):
            shape = (2, *rng.integers(1, 40, 2).tolist(), [1, 2, 3, 4][number % 4])
            size = rng.integers(1, 50, 2).tolist() if number else shape[1:3]
            values = rng.normal(0, 300, shape) if dtype.startswith("f") else rng.integers(0, 256, shape)
            for method, antialias in product(METHODS, (False, True)):
                given[f"{dtype}.{number}-{size[0]}-{size[1]}-{method}-{antialias}"] = values.astype(dtype)
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type]
    run_python("-c", PROGRAM, tmp_path / "given.npz", tmp_path / "made.npz", python=tensorflow, PYTHONPATH="")
    with np.load(tmp_path / "made.npz") as made:
        for name, images in given.items():
            _, height, width, method, antialias = name.split("-")
            size = (int(height), int(width))
            found = dtf.resize_images(images, size, method, antialias == "True")  # type: ignore[arg-type]
            assert found.dtype == made[name].dtype, name
            assert found.tobytes() == made[name].tobytes(), name


def test_images_of_own_shapes_are_resized_one_by_one() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in ((3, 5), (8, 2), (4, 4), (1, 1))]
    flat = np.concatenate([image.ravel() for image in images])
    shapes = np.array([image.shape for image in images])
    splits = np.append(0, np.cumsum(shapes.prod(axis=1)))
    block = ArraysBlock(flat, splits, shapes)
    objects = np.empty(4, object)
    objects[:] = images
    for method, antialias in product(METHODS, (False, True)):
        expected = np.stack([dtf.resize_images(image[None], (4, 3), method, antialias)[0] for image in images])
        for given in (block, objects):
            assert np.array_equal(dtf.resize_images(given, (4, 3), method, antialias), expected)
        nested = dtf.resize_images(RaggedBlock(block, np.array([0, 1, 1, 4])), (4, 3), method, antialias)
        assert nested.row_splits.tolist() == [0, 1, 1, 4]
        assert np.array_equal(nested.values, expected)


def test_images_of_files_are_resized_by_map_blocks(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels = [noise(height, 6, 3) for height in (2, 5, 9, 4)]
    files = [by_pillow(each, "png") for each in pixels]
    dtf.to_tfrecord({"image": files}, tmp_path / "images", features={"image": dtf.FixedLenFeature((), "bytes")})
    ds = dtf.read_tfrecord(tmp_path / "images", {"image": dtf.ImageFeature((-1, -1, 3))}, chunks=3)

    def resized(blocks: dict[str, Any]) -> dict[str, Any]:
        return {"image": dtf.resize_images(blocks["image"], (4, 4), channels=3)}

    small = ds.map_blocks(resized)["image"]
    assert (small.shape, small.dtype) == ((4, 4, 4, 3), np.float32)
    expected = [dtf.resize_images(each[None], (4, 4))[0] for each in pixels]
    assert np.array_equal(small.compute(), np.stack(expected))
    # The same as resizing while images are decoded, except that those are rounded.
    decoded = dtf.read_tfrecord(tmp_path / "images", {"image": dtf.ImageFeature((4, 4, 3), size=(4, 4))})
    assert np.array_equal(np.rint(small.compute()), decoded["image"].compute())


def test_infinite_pixels_stay_where_they_are() -> None:
    images = np.ones((1, 4, 4, 1), np.float32)
    images[0, 3, 3] = np.inf
    small = dtf.resize_images(images, (3, 3), "area")[0, ..., 0]
    assert np.isinf(small[2, 2])
    assert np.isfinite(small).sum() == 8


@pytest.mark.parametrize(
    ("block", "options", "error", "message"),
    [
        (SMALL, {"method": "bicubic"}, ValueError, "method"),
        (SMALL, {"size": (0, 4)}, ValueError, "size"),
        (SMALL, {"size": (4, 4, 3)}, ValueError, "size"),
        (SMALL, {"size": (4.0, 4)}, ValueError, "size"),
        (SMALL[0], {}, SchemaError, "height, width, channels"),
        (SMALL > 3, {}, SchemaError, "bool"),
        (np.zeros((2, 0, 3, 1)), {}, SchemaError, "pixels"),
        (np.empty(0, object), {}, ValueError, "channels="),
        (np.array([SMALL[0], None], object)[:1], {"channels": 3}, SchemaError, "channels"),
    ],
    ids=range(9),
)
def test_what_is_refused(block: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dtf.resize_images(block, **{"size": (4, 4), **options})
