"""`resize_images`: blocks of images resized as `tf.image.resize` does, for `map_blocks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.blocks import ArraysBlock, RaggedBlock, to_array
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.images.pixels import LONGEST_SIDE

# Types that the native core reads; others are converted to float32, as TensorFlow's kernels do.
_NATIVE_DTYPES = ("uint8", "uint16", "float32")
Images = NDArray[Any]


@explain_arguments("dtf.resize_images(images, (224, 224))")
def resize_images(
    block: Any,
    size: tuple[int, int],
    method: Literal["bilinear", "nearest", "area", "lanczos3"] = "bilinear",
    antialias: bool = False,
    *,
    channels: int | None = None,
) -> Any:
    """Resize the images in a block like `tf.image.resize`, for use in `Dataset.map_blocks`.

    Parameters
    ----------
    block : ndarray of shape (n, height, width, channels), ndarray of n arrays, ArraysBlock or RaggedBlock
        Images with the same shape, or images whose shapes differ, which an `ImageFeature` without a known shape gives
        as an array of objects. A `RaggedBlock` has several images per row.
    size : tuple of int
        New height and width, in pixels.
    method : {"bilinear", "nearest", "area", "lanczos3"}, default "bilinear"
        Interpolation. ``"lanczos3"`` calls the sine of the C library; if TensorFlow was built with a different C
        library, values may differ in their last digits.
    antialias : bool, default False
        With ``"bilinear"`` and ``"lanczos3"``, average the pixels that a smaller image would otherwise leave out. The
        other methods ignore this, as in TensorFlow.
    channels : int, optional
        Number of channels, for images whose shapes differ. A block without images needs it, and `map_blocks` without
        `template` calls its function with such a block.

    Returns
    -------
    ndarray of shape (n, *size, channels), or RaggedBlock of it
        float32, or with ``"nearest"`` the dtype of the images. Values are neither scaled nor rounded.

    Raises
    ------
    ValueError
        If `size` or `method` is invalid, or a block without images lacks `channels`.
    SchemaError
        If the block does not contain images of numbers, if an image is empty or too long for its filter, or if images
        differ in dtype or channels.

    Examples
    --------
    >>> pixels = np.array([[[[0], [10]], [[20], [30]]]], np.uint8)
    >>> dtf.resize_images(pixels, (1, 4))[0, ..., 0].tolist()
    [[10.0, 12.5, 17.5, 20.0]]
    >>> ds = dtf.Dataset.from_arrays({"image": np.zeros((3, 8, 8, 3), np.uint8)})
    >>> ds.map_blocks(lambda blocks: {"image": dtf.resize_images(blocks["image"], (4, 4), "area")})["image"].shape
    (3, 4, 4, 3)
    """
    resizers: dict[str, Callable[[Images, tuple[int, int]], Images]] = {
        "bilinear": partial(_resize_filtered, antialias=antialias),
        "nearest": _resize_nearest,
        "area": _resize_area,
        "lanczos3": partial(_resize_filtered, lanczos=True, antialias=antialias),
    }
    if method not in resizers:
        raise ValueError(f"method must be one of {', '.join(map(repr, resizers))}; got {method!r:.100}")
    integers = len(size) == 2 and all(isinstance(each, int | np.integer) for each in size)
    if not integers or min(size) < 1:
        raise ValueError(f"size must be a height and a width of at least 1 pixel; got {size!r:.100}")
    height, width = map(int, size)
    if isinstance(block, RaggedBlock):
        return RaggedBlock(resize_images(block.values, size, method, antialias, channels=channels), block.row_splits)
    images = to_array(block) if isinstance(block, ArraysBlock) else np.asarray(block)
    if images.dtype.kind != "O":
        return resizers[method](_checked_size(images, 4), (height, width))
    if not len(images):
        if channels is None:
            raise ValueError(
                "images of shapes of their own: a block without images has no number of channels; give channels="
            )
        dtype = np.asarray(block.values).dtype if isinstance(block, ArraysBlock) else np.dtype(np.uint8)
        return np.empty((0, height, width, channels), dtype if method == "nearest" else np.float32)
    if isinstance(images[0], bytes):
        raise SchemaError(
            f"resize_images: the images are bytes: read the column with ImageFeature(size={tuple(size)}), which "
            "resizes, or with RawFeature if the bytes are pixels"
        )
    kinds = {(image.dtype, image.shape[2:]) for image in images}
    if len(kinds) > 1 or (channels is not None and {(channels,)} != {shape for _, shape in kinds}):
        found = ", ".join(sorted(f"{dtype} with {shape} channels" for dtype, shape in kinds))
        raise SchemaError(f"resize_images: expected images of one dtype and number of channels; got {found}")
    return np.concatenate([resizers[method](_checked_size(image, 3)[None], (height, width)) for image in images])


def _checked_size(images: Images, axes: int) -> Images:
    """Return images that are numbers with the expected axes; refuse others."""
    if images.dtype.kind not in "iuf" or images.ndim != axes or (images.size == 0 and len(images)):
        raise SchemaError(
            f"resize_images: expected numbers of shape {'(n, height, width, channels)'[0 if axes == 4 else 4 :]}, with "
            f"pixels; got {images.dtype} of shape {images.shape}"
        )
    return images


def _resize_filtered(images: Images, size: tuple[int, int], *, lanczos: bool = False, antialias: bool) -> Images:
    """Resize by a filter that averages pixels, in the native core."""
    if (lanczos or antialias) and max(images.shape[1:3]) > LONGEST_SIDE:
        raise SchemaError(
            f"resize_images: method='lanczos3' and antialias=True resize at most {LONGEST_SIDE} pixels a side; got "
            f"images of shape {images.shape[1:]}"
        )
    pixels = np.ascontiguousarray(images, None if images.dtype.name in _NATIVE_DTYPES else np.float32)
    out = np.empty((len(images), *size, images.shape[3]), np.float32)
    for image, resized in zip(pixels, out, strict=True):
        _native.resize_pixels(image, 1.0, resized, lanczos=lanczos, antialias=antialias)
    return out


def _resize_nearest(images: Images, size: tuple[int, int]) -> Images:
    """Resize by taking the nearest pixel, as TensorFlow rounds to it."""
    rows, columns = (
        np.minimum(np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * _scale(old, new)), old - 1)
        for old, new in zip(images.shape[1:3], size, strict=True)
    )
    return images[:, rows.astype(np.int64)[:, None], columns.astype(np.int64)]


def _scale(old: int, new: int) -> np.float32:
    return np.float32(old) / np.float32(new)


def _resize_area(images: Images, size: tuple[int, int]) -> Images:
    """Average the pixels under each new pixel, in the order and precision of TensorFlow's kernel."""
    height, width = images.shape[1:3]
    if (height, width) == size:
        return images.astype(np.float32)
    whole = np.float32(1) / (_scale(height, size[0]) * _scale(width, size[1]))
    wide = _sum_under(images.astype(np.float32), size[1], 2)
    return _sum_under(wide, size[0], 1) * whole


def _sum_under(images: Images, new: int, axis: int) -> Images:
    """Add the pixels under each new pixel along an axis, times their covered lengths."""
    old = images.shape[axis]
    scale = _scale(old, new)
    begin = np.arange(new, dtype=np.float32) * scale
    end = np.arange(1, new + 1, dtype=np.float32) * scale
    first, past = np.floor(begin).astype(np.int64), np.ceil(end).astype(np.int64)
    shape = [1] * images.ndim
    shape[axis] = new
    total = np.zeros((*images.shape[:axis], new, *images.shape[axis + 1 :]), np.float32)
    for step in range(int((past - first).max())):
        pixel = first + step
        place = pixel.astype(np.float32)
        ends_after = place + 1 > end
        covered = np.where(ends_after, end - place, np.float32(1))
        covered = np.where(place < begin, np.where(ends_after, scale, place + 1 - begin), covered)
        terms = np.take(images, np.minimum(pixel, old - 1), axis) * covered.astype(np.float32).reshape(shape)
        # A term of a pixel that is not under the new one may be NaN times 0.
        total += np.where((pixel < past).reshape(shape), terms, np.float32(0))
    return total
