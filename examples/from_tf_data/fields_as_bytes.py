"""Scientific fields as bytes: grids that the writer stored with `tobytes`, and a serialized tensor.

    python examples/from_tf_data/fields_as_bytes.py [DIRECTORY]

Writes compressed shards of fields, and computes the mean field. `with_tf_data` is the same in TensorFlow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write two shards: a big-endian grid, a grid of float64, and a tensor."""
    rng = np.random.default_rng(3)
    arrays = {
        "temperature": rng.normal(280, 9, (records, 8, 12, 2)).astype(">f4"),
        "mask": rng.integers(0, 2, (records, 8, 12), np.uint8),
        "position": rng.random((records, 2)),
    }
    features = {
        "temperature": dtf.RawFeature((8, 12, 2), ">f4"),
        "mask": dtf.RawFeature((8, 12), "uint8"),
        "position": dtf.TensorFeature((2,), "float64"),
    }
    name = directory / "fields-{shard}-of-{shards}.tfrecord.gz"
    size = -(-records // 2)
    dtf.to_tfrecord(arrays, name, features=features, records_per_shard=size, compression="gzip", mode="w")


def with_tf_data(directory: Path) -> dict[str, Any]:
    """Return the fields."""
    import numpy as np
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature((), tf.string) for name in ("temperature", "mask", "position")}

    def parse(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        temperature = tf.io.decode_raw(parsed["temperature"], tf.float32, little_endian=False)
        mask = tf.io.decode_raw(parsed["mask"], tf.uint8)
        return {
            "temperature": tf.reshape(temperature, (8, 12, 2)),
            "mask": tf.reshape(mask, (8, 12)),
            "position": tf.ensure_shape(tf.io.parse_tensor(parsed["position"], tf.float64), (2,)),
        }

    paths = sorted(str(path) for path in directory.glob("fields-*.tfrecord.gz"))
    dataset = tf.data.TFRecordDataset(paths, compression_type="GZIP")
    batches = list(dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(64))
    return {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in features}


def with_dask_tfrecord(directory: Path) -> dict[str, Any]:
    """Return the fields."""
    features = {
        "temperature": dtf.RawFeature((8, 12, 2), ">f4"),
        "mask": dtf.RawFeature((8, 12), "uint8"),
        "position": dtf.TensorFeature((2,), "float64"),
    }
    return dtf.read_tfrecord(directory / "fields-*.tfrecord.gz", features).compute()


def main(directory: Path, records: int = 1000) -> dict[str, Any]:
    """Write shards, read them, and print the mean field."""
    write(directory, records)
    fields = with_dask_tfrecord(directory)
    print(f"mean of {records:,} fields: {fields['temperature'].mean():.2f}")
    return fields


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "fields-as-bytes"))
