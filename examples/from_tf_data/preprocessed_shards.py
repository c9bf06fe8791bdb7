"""Writing with preprocessing: read shards, normalise a column, and write new shards.

    python examples/from_tf_data/preprocessed_shards.py [DIRECTORY]

Writes shards, and reads, normalises and writes them again. `with_tf_data` is the same in TensorFlow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write two shards of measurements."""
    rng = np.random.default_rng(5)
    arrays = {"id": np.arange(records), "values": rng.normal(5, 2, (records, 6)).astype("float32")}
    name = directory / "raw-{shard}-of-{shards}.tfrecord"
    dtf.to_tfrecord(arrays, name, records_per_shard=-(-records // 2), mode="w")


def with_tf_data(directory: Path) -> dict[str, Any]:
    """Write two shards of normalised values; return the columns."""
    import numpy as np
    import tensorflow as tf

    features = {"id": tf.io.FixedLenFeature((), tf.int64), "values": tf.io.FixedLenFeature((6,), tf.float32)}

    def normalise(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        return {"id": parsed["id"], "values": (parsed["values"] - 5) / 2}

    paths = sorted(str(path) for path in directory.glob("raw-*.tfrecord"))
    dataset = tf.data.TFRecordDataset(paths).map(normalise, num_parallel_calls=tf.data.AUTOTUNE)
    rows = list(dataset.as_numpy_iterator())
    for shard, part in enumerate(np.array_split(np.arange(len(rows)), 2)):
        with tf.io.TFRecordWriter(str(directory / f"normal-{shard}-of-2.tfrecord")) as writer:
            for row in part:
                feature = {
                    "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[rows[row]["id"]])),
                    "values": tf.train.Feature(float_list=tf.train.FloatList(value=rows[row]["values"])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return {name: np.stack([row[name] for row in rows]) for name in features}


def with_dask_tfrecord(directory: Path) -> dict[str, Any]:
    """Write two shards of normalised values; return the columns."""
    ds = dtf.read_tfrecord(directory / "raw-*.tfrecord")
    normal = ds.map_blocks(lambda blocks: {**blocks, "values": (blocks["values"] - 5) / 2})
    name = directory / "normal-{shard}-of-{shards}.tfrecord"
    normal.to_tfrecord(name, mode="w")
    return dtf.read_tfrecord(directory / "normal-*.tfrecord").compute()


def main(directory: Path, records: int = 1000) -> dict[str, Any]:
    """Write shards, and normalise them."""
    write(directory, records)
    columns = with_dask_tfrecord(directory)
    print({name: (column.dtype, column.shape) for name, column in columns.items()})
    return columns


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "preprocessed"))
