"""Pipelines of TensorFlow for `batches.py`: shuffled, padded batches as NumPy arrays.

`parse-each` parses each record, shuffles, and calls `padded_batch`. `parse-batch` shuffles records and parses batches,
which is faster; ragged rows are padded by `to_tensor`. Both read two files at a time and prefetch.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

LABEL = tf.io.FixedLenFeature([], tf.int64)
VECTORS = {
    "embedding": tf.io.FixedLenFeature([256], tf.float32),
    "label": LABEL,
    "id": tf.io.FixedLenFeature([], tf.string),
}
MODES = ("parse-each", "parse-batch")


def pipeline(files: list[str], name: str, mode: str, batch: int, buffer: int) -> Any:
    """Return the data set of batches."""
    tokens = tf.io.RaggedFeature(tf.int64) if mode == "parse-batch" else tf.io.VarLenFeature(tf.int64)
    spec = VECTORS if name == "vectors" else {"tokens": tokens, "label": LABEL}

    def each(record: Any) -> Any:
        columns = tf.io.parse_single_example(record, spec)
        if name == "tokens":
            columns["tokens"] = tf.sparse.to_dense(columns["tokens"])
        return columns

    def several(records: Any) -> Any:
        columns = tf.io.parse_example(records, spec)
        if name == "tokens":
            columns["tokens"] = columns["tokens"].to_tensor()
        return columns

    shards = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    records = shards.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE)
    if mode == "parse-each":
        parsed = records.map(each, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.shuffle(buffer).padded_batch(batch).prefetch(tf.data.AUTOTUNE)
    shuffled = records.shuffle(buffer).batch(batch)
    return shuffled.map(several, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Time the epochs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=["vectors", "tokens"])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--buffer", type=int, default=16_384)
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    files = sorted(map(str, arguments.data.glob(f"{arguments.name}-*.tfrecord")))
    batches = pipeline(files, arguments.name, arguments.mode, arguments.batch, arguments.buffer)

    def records() -> int:
        return sum(len(batch["label"]) for batch in batches.as_numpy_iterator())

    count, seconds = records(), []
    for _ in range(arguments.passes):
        start = time.perf_counter()
        records()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"peer": f"tensorflow {tf.__version__}", "records": count, "seconds": seconds}))


if __name__ == "__main__":
    main()
