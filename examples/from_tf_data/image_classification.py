"""Image classification: PNG files of different sizes, resized to floats in [0, 1], with labels.

    python examples/from_tf_data/image_classification.py [DIRECTORY]

Writes a shard of images, and reads them in batches. `with_tf_data` is the same in TensorFlow. Images need Pillow, the
`image` extra.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write a shard of images of two sizes."""
    rng = np.random.default_rng(4)
    images = [rng.integers(0, 256, (20 + record % 2, 24, 3), np.uint8) for record in range(records)]
    arrays = {"image/encoded": images, "image/class/label": rng.integers(0, 5, records)}
    features = {"image/encoded": dtf.ImageFeature(channels=3), "image/class/label": dtf.FixedLenFeature((), "int64")}
    dtf.to_tfrecord(arrays, directory / "flowers.tfrecord", features=features, mode="w")


def with_tf_data(directory: Path) -> dict[str, Any]:
    """Return images `(n, 16, 16, 3)` in [0, 1] and labels."""
    import numpy as np
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        image = tf.io.decode_image(parsed["image/encoded"], channels=3, expand_animations=False)
        image = tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), (16, 16))
        return {"image/encoded": image, "image/class/label": parsed["image/class/label"]}

    dataset = tf.data.TFRecordDataset(str(directory / "flowers.tfrecord"))
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)
    batches = list(dataset)
    return {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in features}


def with_dask_tfrecord(directory: Path) -> dict[str, Any]:
    """Return images `(n, 16, 16, 3)` in [0, 1] and labels."""
    features = {
        "image/encoded": dtf.ImageFeature(channels=3, size=(16, 16), dtype="float32"),
        "image/class/label": dtf.FixedLenFeature((), "int64"),
    }
    batches = list(dtf.read_tfrecord(directory / "flowers.tfrecord", features).batches(32))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in features}


def main(directory: Path, records: int = 300) -> dict[str, Any]:
    """Write a shard, and read it."""
    write(directory, records)
    columns = with_dask_tfrecord(directory)
    print({name: (column.dtype, column.shape) for name, column in columns.items()})
    return columns


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "image-classification"))
