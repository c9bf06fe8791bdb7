"""Pipelines of TensorFlow for `compare.py`: read the files into NumPy arrays with the two fastest known pipelines.

`sequential` reads one file after the other and parses batches on all cores. `interleave` reads and parses two files at
once, a whole batch at a time. With `gather` the batches are joined into one array per feature; otherwise each is made
and dropped. The obvious `TFRecordDataset(files, num_parallel_reads=…)` is several times slower than both, because it
passes single records from thread to thread. TensorFlow checks both CRCs of every record.

    TENSORFLOW_PYTHON benchmarks/tensorflow_pipelines.py DATA NAME {sequential,interleave} [touch|gather] [--passes 3]

Prints one line of JSON: the records of a pass, and the seconds of each pass after an untimed first pass.
"""

import argparse
import json
import os
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from compare import LABELLED, files_of, label_of

# One or two megabytes per batch: the sizes with which the pipelines were fastest.
BATCHES = {
    "tabular": 4096,
    "tabular_gz": 4096,
    "vectors": 1024,
    "images_raw": 64,
    "tokens": 1024,
    "sequences": 256,
    "mixed": 2048,
    "tensors": 64,
    "jpeg": 32,
    "jpeg.fast": 32,
    "jpeg.resized": 32,
    "png": 32,
}
BATCHES |= {f"{name}.label": BATCHES[name] for name in LABELLED}


def specification(name: str) -> dict[str, Any]:
    """Return the parsing spec of a data set for `tf.io.parse_example`."""

    def scalar(dtype: Any) -> Any:
        return tf.io.FixedLenFeature([], dtype)

    if name.endswith(".label"):
        return {label_of(name): scalar(tf.int64)}
    if name == "vectors":
        return {
            "embedding": tf.io.FixedLenFeature([256], tf.float32),
            "label": scalar(tf.int64),
            "id": scalar(tf.string),
        }
    if name in ("images_raw", "png") or name.startswith("jpeg"):
        return {"image": scalar(tf.string), "label": scalar(tf.int64)}
    if name == "tensors":
        return {"tensor": scalar(tf.string), "label": scalar(tf.int64)}
    if name == "mixed":
        return {
            "label": scalar(tf.int64),
            "score": tf.io.FixedLenFeature([], tf.float32, -1.0),
            "boxes": tf.io.FixedLenSequenceFeature([4], tf.float32, allow_missing=True),
            "sparse": tf.io.SparseFeature("index", "value", tf.float32, 10_000),
        }
    if name == "tokens":
        # 64-bit splits, which the joined batches need.
        return {"tokens": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64), "label": scalar(tf.int64)}
    columns = {f"int_{k}": scalar(tf.int64) for k in range(8)}
    columns |= {f"float_{k}": scalar(tf.float32) for k in range(8)}
    return columns | {f"str_{k}": scalar(tf.string) for k in range(2)}


def pipeline(files: list[str], name: str, mode: str, only: Container[str] | None = None) -> Any:
    """Return the data set of parsed batches: mappings of dense tensors, of some or all features."""
    spec = {feature: how for feature, how in specification(name).items() if only is None or feature in only}

    def parse(records: Any) -> dict[str, Any]:
        if name == "sequences":
            return parse_sequences(records)
        if name == "sequences.label":
            return dict(tf.io.parse_sequence_example(records, specification(name))[0])
        columns = tf.io.parse_example(records, spec)
        if name == "images_raw":
            columns["image"] = tf.reshape(tf.io.decode_raw(columns["image"], tf.float32), [-1, 64, 64, 3])
        elif name == "tokens":
            ragged = columns.pop("tokens")
            columns["tokens.values"], columns["tokens.row_splits"] = ragged.flat_values, ragged.row_splits
        elif name == "mixed":
            sparse = columns.pop("sparse")
            columns["label"] = tf.cast(columns["label"], tf.uint8)
            columns["sparse.indices"], columns["sparse.values"] = sparse.indices, sparse.values
        elif name == "tensors":
            read = tf.map_fn(lambda one: tf.io.parse_tensor(one, tf.float32), columns["tensor"], tf.float32)
            columns["tensor"] = tf.reshape(read, [-1, 32, 32, 4])
        elif name == "png":
            columns["image"] = tf.map_fn(tf.io.decode_png, columns["image"], tf.uint8)
        elif name.startswith("jpeg"):
            columns["image"] = decode_jpeg(columns["image"], name)
        return dict(columns)

    def batches(paths: Any) -> Any:
        kind = "GZIP" if name.startswith("tabular_gz") else ""
        return tf.data.TFRecordDataset(paths, compression_type=kind).batch(BATCHES[name])

    if mode == "sequential":
        return batches(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    shards = tf.data.Dataset.from_tensor_slices(files)
    return shards.interleave(lambda path: batches(path).map(parse), cycle_length=2, num_parallel_calls=2).prefetch(2)


def parse_sequences(records: Any) -> dict[str, Any]:
    """Parse a batch of SequenceExamples."""
    context, steps, lengths = tf.io.parse_sequence_example(
        records,
        {"label": tf.io.FixedLenFeature([], tf.int64)},
        {
            "frames": tf.io.FixedLenSequenceFeature([16], tf.float32),
            "words": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
        },
    )
    words = steps["words"]
    columns = {"label": context["label"], "frames": steps["frames"], "frames.lengths": lengths["frames"]}
    return columns | {"words.values": words.flat_values, "words.row_splits": words.row_splits}


def decode_jpeg(files: Any, name: str) -> Any:
    """Decode a batch with the accurate DCT, with the fast one (TensorFlow's default), or to floats of another size."""
    if name == "jpeg.fast":
        return tf.map_fn(tf.io.decode_jpeg, files, tf.uint8)
    if name == "jpeg":
        return tf.map_fn(lambda file: tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE"), files, tf.uint8)

    def resized(file: Any) -> Any:
        pixels = tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE")
        return tf.image.resize(tf.image.convert_image_dtype(pixels, tf.float32), (224, 224))

    return tf.map_fn(resized, files, tf.float32)


def join(batches: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Join all batches into one array per feature."""
    parts: dict[str, list[Any]] = {}
    ends = 0
    for batch in batches:
        splits = batch.get("tokens.row_splits")
        if splits is not None:
            # The splits of a batch start at 0. In the joined array they continue from the previous batch.
            batch["tokens.row_splits"] = splits[1 if "tokens.row_splits" in parts else 0 :] + ends
            ends += int(splits[-1])
        for feature, values in batch.items():
            parts.setdefault(feature, []).append(values)
    return {feature: np.concatenate(values) for feature, values in parts.items()}


def main() -> None:
    """Time the passes of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=BATCHES)
    parser.add_argument("mode", choices=["sequential", "interleave"])
    parser.add_argument("task", nargs="?", choices=["touch", "gather"], default="touch")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    files = [str(path) for path in files_of(arguments.data, arguments.name)]
    label = label_of(arguments.name)

    def records() -> int:
        batches = pipeline(files, arguments.name, arguments.mode).as_numpy_iterator()
        if arguments.task == "gather":
            return len(join(batches)[label])
        return sum(len(batch[label]) for batch in batches)

    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    count, seconds = records(), []
    for _ in range(arguments.passes):
        start = clock()
        records()
        seconds.append(clock() - start)
    print(json.dumps({"peer": f"tensorflow {tf.__version__}", "records": count, "seconds": seconds}))


if __name__ == "__main__":
    main()
