"""A format of images that another package adds: PPM, pixels of RGB after a line with their size."""

import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf


class PPM(dtf.ImageFormat):
    """PPM of 8 bits, without comments in the header: http://netpbm.sourceforge.net/doc/ppm.html."""

    name = "PPM"

    def is_start(self, data: bytes) -> bool:
        return data.startswith(b"P6\n")

    def read_shape(self, data: bytes) -> tuple[int, int, int]:
        _, size, most, _ = data.split(b"\n", 3)
        if most != b"255":
            raise ValueError(f"expected 255 levels; got {most!r}")
        width, height = map(int, size.split())
        return height, width, 3

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(data.split(b"\n", 3)[3], np.uint8).reshape(self.read_shape(data))
