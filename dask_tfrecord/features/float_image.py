"""Images of floats, as TensorFlow Datasets stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.arrays import ArrayFeature
from dask_tfrecord.features.dtypes import Shape
from dask_tfrecord.features.image import ImageFeature
from dask_tfrecord.features.images.pixels import decode_image, encode_png
from dask_tfrecord.features.tfds_entries import Entry, class_entry, sequence_entry, shape_entry


@dataclass(frozen=True, repr=False)
class FloatImageFeature(ArrayFeature):
    """Read an image with one float32 per pixel from a PNG, like a depth map: its channels are the bytes of each float.

    `tensorflow_datasets.features.Image(dtype="float32")` stores images like this. Needs Pillow, like `ImageFeature`.

    Parameters
    ----------
    shape : tuple of int or None
        ``(height, width, 1)``; None or -1 for a size that differs between images.
    count : int, optional
        Number of images per record, each in a bytes value of its own; -1 for any number. By default a record has one.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.FloatImageFeature((480, 640, 1)).block_shape
    (480, 640, 1)
    """

    dtype = "float32"
    shape: tuple[int, ...]
    count: int | None = field(default=None, kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # Arguments accept more types than the fields store.
        def __init__(self, shape: Shape, *, count: int | None = None, value_key: str | None = None) -> None: ...

    def __post_init__(self) -> None:
        ArrayFeature.__post_init__(self)
        if len(self.shape) != 3 or self.shape[2] != 1:
            raise SchemaError(f"FloatImageFeature: expected shape (height, width, 1); got {self.shape}")

    def decode_value(self, value: bytes) -> NDArray[np.float32]:
        """Return the floats whose bytes are the channels."""
        return decode_image(value, ImageFeature(channels=4)).view("<f4")

    def encode_value(self, array: NDArray[Any]) -> bytes:
        """Return a PNG of the bytes."""
        return encode_png(np.ascontiguousarray(array, "<f4").view(np.uint8))

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Describe an image with float pixels, or a sequence of them."""
        image = class_entry("image", {"shape": shape_entry(self.shape), "dtype": "float32", "encodingFormat": "png"})
        return image if self.count is None else sequence_entry(image, self.count)
