"""TensorFlow's side of the comparison: the same files into NumPy arrays, by the two fastest pipelines known to us.

`sequential` reads file after file and parses batches on all cores; `interleave` reads and parses two files at once, a
whole batch at a time. With `gather` the batches are joined into one array per feature, else each is made and dropped.
The obvious `TFRecordDataset(files, num_parallel_reads=…)` is several times slower than both, because it hands single
records from thread to thread. TensorFlow checks both CRCs of every record.

    TENSORFLOW_PYTHON benchmarks/tensorflow_pipelines.py DATA NAME {sequential,interleave} [touch|gather] [--passes 3]

Prints one line of JSON: the records of a pass, and the seconds of each pass after a first one that is not timed.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

# About a megabyte or two each: with these the pipelines were fastest.
BATCHES = {"tabular": 4096, "tabular_gz": 4096, "vectors": 1024, "images_raw": 64, "tokens": 1024}


def specification(name: str) -> dict[str, Any]:
    """Say what `tf.io.parse_example` needs to know of a data set."""

    def scalar(dtype: Any) -> Any:
        return tf.io.FixedLenFeature([], dtype)

    if name == "vectors":
        return {
            "embedding": tf.io.FixedLenFeature([256], tf.float32),
            "label": scalar(tf.int64),
            "id": scalar(tf.string),
        }
    if name == "images_raw":
        return {"image": scalar(tf.string), "label": scalar(tf.int64)}
    if name == "tokens":
        # Splits of 64 bits, as they have to be once the batches are joined.
        return {"tokens": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64), "label": scalar(tf.int64)}
    columns = {f"int_{k}": scalar(tf.int64) for k in range(8)}
    columns |= {f"float_{k}": scalar(tf.float32) for k in range(8)}
    return columns | {f"str_{k}": scalar(tf.string) for k in range(2)}


def pipeline(files: list[str], name: str, mode: str) -> Any:
    """Make the data set of parsed batches, each a mapping of dense tensors."""
    spec = specification(name)

    def parse(records: Any) -> dict[str, Any]:
        columns = tf.io.parse_example(records, spec)
        if name == "images_raw":
            columns["image"] = tf.reshape(tf.io.decode_raw(columns["image"], tf.float32), [-1, 64, 64, 3])
        elif name == "tokens":
            ragged = columns.pop("tokens")
            columns["tokens.values"], columns["tokens.row_splits"] = ragged.flat_values, ragged.row_splits
        return dict(columns)

    def batches(paths: Any) -> Any:
        kind = "GZIP" if name.endswith("_gz") else ""
        return tf.data.TFRecordDataset(paths, compression_type=kind).batch(BATCHES[name])

    if mode == "sequential":
        return batches(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    shards = tf.data.Dataset.from_tensor_slices(files)
    return shards.interleave(lambda path: batches(path).map(parse), cycle_length=2, num_parallel_calls=2).prefetch(2)


def join(batches: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Join all batches into one array per feature."""
    parts: dict[str, list[Any]] = {}
    ends = 0
    for batch in batches:
        splits = batch.get("tokens.row_splits")
        if splits is not None:
            # The splits of a batch start at 0; joined they go on where the batch before ended.
            batch["tokens.row_splits"] = splits[1 if "tokens.row_splits" in parts else 0 :] + ends
            ends += int(splits[-1])
        for feature, values in batch.items():
            parts.setdefault(feature, []).append(values)
    return {feature: np.concatenate(values) for feature, values in parts.items()}


def main() -> None:
    """Time the passes that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=BATCHES)
    parser.add_argument("mode", choices=["sequential", "interleave"])
    parser.add_argument("task", nargs="?", choices=["touch", "gather"], default="touch")
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    files = sorted(map(str, arguments.data.glob(f"{arguments.name}-*.tfrecord*")))
    label = "int_0" if arguments.name.startswith("tabular") else "label"

    def records() -> int:
        batches = pipeline(files, arguments.name, arguments.mode).as_numpy_iterator()
        if arguments.task == "gather":
            return len(join(batches)[label])
        return sum(len(batch[label]) for batch in batches)

    count, seconds = records(), []
    for _ in range(arguments.passes):
        start = time.perf_counter()
        records()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"peer": f"tensorflow {tf.__version__}", "records": count, "seconds": seconds}))


if __name__ == "__main__":
    main()
