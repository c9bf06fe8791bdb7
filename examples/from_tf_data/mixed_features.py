"""Mixed features: numbers, a vector, bytes, a list and a default.

    python examples/from_tf_data/mixed_features.py [DIRECTORY]

Writes shards, reads them with a parsing spec, and prints the columns. `with_tf_data` is the same in TensorFlow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write two shards."""
    rng = np.random.default_rng(1)
    arrays = {
        "id": np.arange(records),
        "score": rng.random((records, 3), np.float32),
        "name": [f"record {record}".encode() for record in range(records)],
        "tokens": [rng.integers(0, 100, record % 4) for record in range(records)],
    }
    name = directory / "train-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord(arrays, name, records_per_shard=-(-records // 2), mode="w")


def with_tf_data(directory: Path) -> dict[str, Any]:
    """Return the columns."""
    import numpy as np
    import tensorflow as tf

    features = {
        "id": tf.io.FixedLenFeature((), tf.int64),
        "score": tf.io.FixedLenFeature((3,), tf.float32),
        "name": tf.io.FixedLenFeature((), tf.string),
        "weight": tf.io.FixedLenFeature((), tf.float32, default_value=1.0),
        "tokens": tf.io.VarLenFeature(tf.int64),
    }

    def parse(records: Any) -> Any:
        columns = tf.io.parse_example(records, features)
        columns["tokens"] = tf.RaggedTensor.from_sparse(columns["tokens"])
        return columns

    paths = sorted(str(path) for path in directory.glob("train-*.tfrecord"))
    dataset = tf.data.TFRecordDataset(paths).batch(64).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    batches = list(dataset.prefetch(tf.data.AUTOTUNE))
    columns = {
        name: np.concatenate([batch[name].numpy() for batch in batches]) for name in features if name != "tokens"
    }
    rows = [np.asarray(row) for batch in batches for row in batch["tokens"]]
    columns["tokens"] = np.empty(len(rows), object)
    columns["tokens"][:] = rows
    return columns


def with_dask_tfrecord(directory: Path) -> dict[str, Any]:
    """Return the columns."""
    features = {
        "id": dtf.FixedLenFeature((), "int64"),
        "score": dtf.FixedLenFeature((3,), "float32"),
        "name": dtf.FixedLenFeature((), "bytes"),
        "weight": dtf.FixedLenFeature((), "float32", default_value=1.0),
        "tokens": dtf.VarLenFeature("int64"),
    }
    return dtf.read_tfrecord(directory / "train-*.tfrecord", features).compute()


def main(directory: Path, records: int = 1000) -> dict[str, Any]:
    """Write shards, and read them."""
    write(directory, records)
    columns = with_dask_tfrecord(directory)
    print({name: (column.dtype, column.shape) for name, column in columns.items()})
    return columns


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "mixed-features"))
