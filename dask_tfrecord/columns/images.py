"""Images in blocks: decode each file into its slot of a block, and encode the images of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    place,
    splits_of,
    weightless,
)
from dask_tfrecord.columns.memory_limit import MemoryLimit
from dask_tfrecord.features import ImageFeature
from dask_tfrecord.images.decode_image import ImageError, decode_image, image_shape
from dask_tfrecord.images.encode_image import ImageEncoding, encode_image

__all__ = ["encode_images", "image_arrays", "image_rows", "image_zeros"]


def image_rows(
    feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None, out: NDArray[Any] | None
) -> NDArray[Any]:
    """Decode images of one shape.

    Parameters
    ----------
    feature : ImageFeature
        Shape, dtype, channels and size of each image.
    files : BytesBlock
        One file per image.
    row_splits : ndarray of int64, or None
        Splits of the images into rows, to name the row and the image of an error; None for one image per row.
    out : ndarray, optional
        Array to write to.

    Returns
    -------
    ndarray of shape (files, height, width, channels)
        `out`, or a new array.

    Raises
    ------
    RowError
        If a file is not an image, is damaged, or has another shape.
    """
    array = np.empty((len(files), *feature.value_shape), feature.item_dtype) if out is None else out
    for number, file in enumerate(_iter_files(files)):
        with _naming_row(row_splits, number):
            _decode(feature, file, array[number])
    return array


def image_arrays(
    feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None, limit: MemoryLimit | None = None
) -> ArraysBlock:
    """Decode images of any shape. All headers are read first, to allocate one array for the pixels."""
    shapes = _shapes(feature, files, row_splits)
    splits = splits_of(shapes.prod(axis=1))
    if limit is not None:
        limit.check_ends(splits[1:] if row_splits is None else splits[row_splits[1:]], feature.item_dtype.itemsize)
    values = np.empty(int(splits[-1]), feature.item_dtype)
    for number, file in enumerate(_iter_files(files)):
        slot = values[splits[number] : splits[number + 1]].reshape(shapes[number])
        with _naming_row(row_splits, number):
            _decode(feature, file, slot)
    return ArraysBlock(values, splits, shapes)


def image_zeros(feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None) -> ArraysBlock:
    """Return zeros in the shapes that the headers of the images have, without allocating them."""
    shapes = _shapes(feature, files, row_splits)
    splits = splits_of(shapes.prod(axis=1))
    return ArraysBlock(weightless(feature.item_dtype, int(splits[-1])), splits, shapes)


def _shapes(feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Read the shape of each decoded image, and compare it with the shape of the feature."""
    shapes = np.empty((len(files), 3), np.int64)
    expected = np.array(feature.value_shape)
    for number, file in enumerate(_iter_files(files)):
        with _naming_row(row_splits, number):
            shapes[number] = image_shape(file, channels=feature.channels, size=feature.size)
            if ((expected != -1) & (expected != shapes[number])).any():
                raise ImageError(f"an image of shape {tuple(shapes[number].tolist())}; expected {feature.value_shape}")
    return shapes


def _decode(feature: ImageFeature, file: memoryview, out: NDArray[Any]) -> None:
    decode_image(
        file, channels=feature.channels, dtype=feature.item_dtype, size=feature.size, fast=feature.fast, out=out
    )


def _iter_files(files: BytesBlock) -> Iterator[memoryview]:
    data = memoryview(files.values.data)
    ends = files.splits.tolist()
    for number in range(len(ends) - 1):
        yield data[ends[number] : ends[number + 1]]


def encode_images(encoding: ImageEncoding, block: Block) -> Block:
    """Encode the images of a block, one or any number per row.

    Returns
    -------
    BytesBlock or RaggedBlock
        One file per image.

    Raises
    ------
    RowError
        If an image has no pixels, a number of channels that the format cannot store, or floats that are not levels.
    """
    if isinstance(block, RaggedBlock):
        files = _encode(encoding, block.values, block.row_splits)
        return RaggedBlock(files, block.row_splits)
    return _encode(encoding, block, None)


def _encode(encoding: ImageEncoding, images: Any, row_splits: NDArray[np.int64] | None) -> BytesBlock:
    files = []
    for number, image in enumerate(_iter_images(images)):
        with _naming_row(row_splits, number):
            files.append(encode_image(encoding, image))
    splits = splits_of(np.array([len(file) for file in files], np.int64))
    return BytesBlock(np.frombuffer(b"".join(files), np.uint8), splits, (len(files),))


def _iter_images(block: Block) -> Iterator[NDArray[Any]]:
    if isinstance(block, ArraysBlock):
        values, ends = np.asarray(block.values), block.row_splits.tolist()
        for row, shape in enumerate(block.shapes.tolist()):
            yield values[ends[row] : ends[row + 1]].reshape(shape)
    else:
        yield from np.asarray(block)


@contextmanager
def _naming_row(row_splits: NDArray[np.int64] | None, number: int) -> Iterator[None]:
    """Raise an `ImageError` of image `number` as an error of its row, which is `number` without splits."""
    try:
        yield
    except ImageError as error:
        row, item = (number, None) if row_splits is None else place(row_splits, number)
        raise RowError(row, f"holds {error}", item) from None
