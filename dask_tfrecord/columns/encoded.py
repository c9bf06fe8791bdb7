"""Images in blocks: every file is decoded straight into its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.columns.blocks import ArraysBlock, BytesBlock, splits_of, weightless
from dask_tfrecord.columns.images import ImageError, decode_image, image_shape
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.features import ImageFeature

__all__ = ["image_arrays", "image_rows", "image_zeros"]


def image_rows(
    feature: ImageFeature, files: BytesBlock, row_splits: NDArray[np.int64], out: NDArray[Any] | None
) -> NDArray[Any]:
    """Images of one shape.

    Parameters
    ----------
    feature : ImageFeature
        What they have to be.
    files : BytesBlock
        One file each.
    row_splits : ndarray of int64
        Where the images of each row end, for errors.
    out : ndarray, optional
        Where they go.

    Returns
    -------
    ndarray of shape (files, height, width, channels)

    Raises
    ------
    RowError
        If one is no image, damaged, or of another shape.
    """
    array = np.empty((len(files), *feature.item_shape), feature.item_dtype) if out is None else out
    for number, file in enumerate(_each(files)):
        with _named(row_splits, number):
            decode_image(
                file, channels=feature.channels, dtype=feature.item_dtype, size=feature.size, out=array[number]
            )
    return array


def image_arrays(feature: ImageFeature, files: BytesBlock) -> ArraysBlock:
    """Images of any shape, one in each row."""
    rows, shapes = np.arange(len(files) + 1), _shapes(feature, files)
    splits = splits_of(shapes.prod(axis=1))
    values = np.empty(int(splits[-1]), feature.item_dtype)
    for number, file in enumerate(_each(files)):
        place = values[splits[number] : splits[number + 1]].reshape(shapes[number])
        with _named(rows, number):
            decode_image(file, channels=feature.channels, dtype=feature.item_dtype, size=feature.size, out=place)
    return ArraysBlock(values, splits, shapes)


def image_zeros(feature: ImageFeature, files: BytesBlock) -> ArraysBlock:
    """Zeros in the shapes of images, which their headers tell; they take no memory."""
    shapes = _shapes(feature, files)
    splits = splits_of(shapes.prod(axis=1))
    return ArraysBlock(weightless(feature.item_dtype, int(splits[-1])), splits, shapes)


def _shapes(feature: ImageFeature, files: BytesBlock) -> NDArray[np.int64]:
    """Find the shape that each file becomes, which has to be as promised."""
    rows = np.arange(len(files) + 1)
    shapes = np.empty((len(files), 3), np.int64)
    wanted = np.array(feature.shape or (-1, -1, -1))
    for number, file in enumerate(_each(files)):
        with _named(rows, number):
            shapes[number] = image_shape(file, channels=feature.channels, size=feature.size)
            if ((wanted != -1) & (wanted != shapes[number])).any():
                raise ImageError(
                    f"an image of shape {tuple(shapes[number].tolist())} where {feature.shape} is promised"
                )
    return shapes


def _each(files: BytesBlock) -> Iterator[memoryview]:
    data = memoryview(files.values.data)
    ends = files.splits.tolist()
    for number in range(len(ends) - 1):
        yield data[ends[number] : ends[number + 1]]


@contextmanager
def _named(row_splits: NDArray[np.int64], number: int) -> Iterator[None]:
    """Name the row that a file belongs to."""
    try:
        yield
    except ImageError as error:
        raise RowError(int(np.searchsorted(row_splits, number, side="right")) - 1, f"holds {error}") from None
