"""Small shards to try the library with, written on the spot."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from os import PathLike
from pathlib import Path

import numpy as np

from dask_tfrecord.messages import Example
from dask_tfrecord.records.framing import write_record
from dask_tfrecord.shards.streams import write_file

SHARDS, RECORDS, SIZE = 3, 8, 32
_SHAPES = ("circle", "square", "triangle")
_COLORS = {"red": (220, 60, 50), "green": (70, 170, 80), "blue": (60, 90, 210), "yellow": (235, 200, 60)}


def sample_data(name: str = "shapes", directory: str | PathLike[str] = ".") -> str:
    """Write three small shards to try the library with.

    Each record of ``"shapes"`` has an ``image`` (the bytes of a uint8 array of 32 by 32 by 3), its ``label`` (0 is a
    circle, 1 a square, 2 a triangle), a ``text`` that describes it, and ``corners``, the x and y of each corner, which
    a circle lacks. Every call writes the same bytes, and keeps files that have them.

    Parameters
    ----------
    name : str, default: "shapes"
        Name of the data.
    directory : str or Path, default: "."
        Directory for the shards, which is created if it does not exist.

    Returns
    -------
    str
        Glob that matches the shards, for `read_tfrecord`.

    Raises
    ------
    ValueError
        If sample data with this name does not exist.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> shards = dtf.sample_data("shapes", "samples")
    >>> dtf.read_tfrecord(shards, columns=["label"])["label"].compute()[:3]
    array([0, 1, 2])
    """
    if name != "shapes":
        raise ValueError(f"there is one set of sample data, 'shapes'; got {name!r:.100}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(SHARDS):
        path, drawn = folder / f"{name}-{shard:05d}-of-{SHARDS:05d}.tfrecord", BytesIO()
        for payload in _draw_shapes(shard * RECORDS):
            write_record(drawn, payload)
        # An open data set would take a new file for a changed one.
        if not path.is_file() or path.read_bytes() != drawn.getvalue():
            write_file(path, drawn.getvalue())
    return str(folder / f"{name}-*.tfrecord")


def _draw_shapes(first: int) -> Iterator[bytes]:
    """Draw the records of one shard."""
    y, x = np.mgrid[:SIZE, :SIZE]
    for number in range(first, first + RECORDS):
        rng = np.random.default_rng(number)
        shape, (color, rgb) = _SHAPES[number % 3], [*_COLORS.items()][number % 4]
        half = int(rng.integers(6, 11))
        column, row = rng.integers(half, SIZE - half, 2)
        left = column - half
        right = column + half
        top = row - half
        bottom = row + half
        dx, dy = abs(x - column), y - top
        inside = {
            "circle": dx**2 + (y - row) ** 2 <= half**2,
            "square": (dx <= half) & (abs(y - row) <= half),
            "triangle": (dy >= 0) & (dy <= 2 * half) & (2 * dx <= dy),
        }[shape]
        corners = {
            "circle": [],
            "square": [left, top, right, top, right, bottom, left, bottom],
            "triangle": [column, top, right, bottom, left, bottom],
        }[shape]
        image = np.where(inside[..., None], rgb, 245).astype(np.uint8)
        example = Example()
        features = example.features.feature
        features["image"].bytes_list.value.append(image.tobytes())
        features["label"].int64_list.value.append(_SHAPES.index(shape))
        features["text"].bytes_list.value.append(f"a {color} {shape}".encode())
        features["corners"].int64_list.value.extend(int(each) for each in corners)
        yield example.SerializeToString(deterministic=True)
