"""Read a file that TensorFlow wrote with the installed package, and compare it with what TensorFlow parsed.

    python .ci/read_golden.py

The test of a built wheel. It needs only the dependencies of the package, and also fails under -O.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

import dask_tfrecord as dtf

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "golden"
FEATURES = {
    "m": dtf.FixedLenFeature((2, 3), "float32"),
    "v": dtf.FixedLenFeature((4,), "int64"),
    "words": dtf.FixedLenFeature((2,), "bytes"),
}


def main() -> None:
    """Raise AssertionError if a value differs."""
    columns = dtf.read_tfrecord(GOLDEN / "fixed_shapes.tfrecord", FEATURES).compute()
    with np.load(GOLDEN / "fixed_shapes.npz") as expected:
        for name in ("m", "v"):
            np.testing.assert_array_equal(columns[name], expected[name], strict=True)
        text, splits = expected["words.bytes"].tobytes(), expected["words.byte_splits"].tolist()
    words = [text[start:stop] for start, stop in pairwise(splits)]
    np.testing.assert_array_equal(columns["words"].ravel(), np.array(words, object))
    print(f"{dtf.__file__}: {len(columns['v'])} records equal TensorFlow's")


if __name__ == "__main__":
    main()
