"""Formats of images, by the bytes that they begin with.

Packages add formats with `register_image_format`, or by an entry point of the group
``dask_tfrecord.image_formats``, which holds on workers too.
"""

from __future__ import annotations

from dask_tfrecord.features.images.codecs import BMP, GIF, JPEG, ImageFormat, WebP
from dask_tfrecord.features.images.png import PNG
from dask_tfrecord.plugins import Registry

FORMATS: Registry[ImageFormat] = Registry("dask_tfrecord.image_formats", JPEG(), PNG(), GIF(), BMP(), WebP())


def register_image_format(image_format: ImageFormat) -> None:
    r"""Make an image format known in this process, so that `ImageFeature` decodes it and reports and displays name it.

    Workers must know it as well. To make it known in every process, let a package name the `ImageFormat` in an entry
    point of the group ``dask_tfrecord.image_formats``. It is only for reading: files are written as PNG, JPEG or WebP.

    Parameters
    ----------
    image_format : ImageFormat
        The format, which replaces one of the same name. Formats of this library can't be replaced, and it can't claim
        their bytes.

    Raises
    ------
    ValueError
        If a format of this library has the same name, or the name is not a single word.

    Examples
    --------
    Read gray pixels that follow a line with their size:

    >>> class PGM(dtf.ImageFormat):
    ...     name = "PGM"
    ...     def is_start(self, data):
    ...         return data.startswith(b"P5\n")
    ...     def read_shape(self, data):
    ...         width, height = data.split(b"\n", 2)[1].split()
    ...         return int(height), int(width), 1
    ...     def decode(self, data):
    ...         return np.frombuffer(data.split(b"\n", 3)[3], np.uint8).reshape(self.read_shape(data))
    >>> dtf.register_image_format(PGM())
    >>> from dask_tfrecord.features.images.pixels import decode_image
    >>> decode_image(b"P5\n2 1\n255\n\x07\x08", dtf.ImageFeature()).tolist()
    [[[7], [8]]]
    """
    name = image_format.name
    if name in FORMATS.built_in or name in ("tensor", "image") or not name.isalnum():
        raise ValueError(f"expected a word that is no name of another format for a format of images; got {name!r}")
    FORMATS.added[name] = image_format


def detect_format(data: bytes) -> ImageFormat | None:
    """Return the format that the first bytes determine."""
    return next((each for each in FORMATS if each.is_start(data)), None)


def format_names() -> list[str]:
    """Return the names of all formats."""
    return [each.name for each in FORMATS]


def media_type(name: str) -> str | None:
    """Return the media type of a format; None if browsers do not display it."""
    return next((each.media_type for each in FORMATS if each.name == name), None)
