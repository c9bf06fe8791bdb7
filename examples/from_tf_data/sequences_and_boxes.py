"""Sequences and boxes: padded batches of the boxes of images, and of the frames of SequenceExamples.

    python examples/from_tf_data/sequences_and_boxes.py [DIRECTORY]

Writes shards of both, and reads the first padded batch of each. `with_tf_data` is the same in TensorFlow.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write a shard of Examples with boxes, and one of SequenceExamples with frames."""
    rng = np.random.default_rng(2)
    counts = [1 + record % 5 for record in range(records)]
    boxes = {f"bbox/{side}": [rng.random(count, np.float32) for count in counts] for side in SIDES}
    labels = [rng.integers(0, 9, count) for count in counts]
    dtf.to_tfrecord({**boxes, "label": labels}, directory / "boxes.tfrecord", mode="w")
    dtf.to_tfrecord(
        {"video": np.arange(records), "frames": [rng.random((count, 4), np.float32) for count in counts]},
        directory / "videos.tfrecord",
        features={"video": dtf.FixedLenFeature((), "int64")},
        sequence_features={"frames": dtf.FixedLenSequenceFeature((4,), "float32")},
        mode="w",
    )


SIDES = ("ymin", "xmin", "ymax", "xmax")


def with_tf_data(directory: Path) -> dict[str, Any]:
    """Return boxes `(n, boxes, 4)`, labels `(n, boxes)` and frames `(n, frames, 4)` of a batch."""
    import tensorflow as tf

    sides = ["bbox/ymin", "bbox/xmin", "bbox/ymax", "bbox/xmax"]
    features = {side: tf.io.VarLenFeature(tf.float32) for side in sides}
    features["label"] = tf.io.VarLenFeature(tf.int64)

    def parse_boxes(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        boxes = tf.stack([tf.sparse.to_dense(parsed[side]) for side in sides], axis=-1)
        return {"boxes": boxes, "label": tf.sparse.to_dense(parsed["label"])}

    def parse_frames(record: Any) -> Any:
        context, sequences = tf.io.parse_single_sequence_example(
            record,
            context_features={"video": tf.io.FixedLenFeature((), tf.int64)},
            sequence_features={"frames": tf.io.FixedLenSequenceFeature((4,), tf.float32)},
        )
        return {**context, **sequences}

    images = tf.data.TFRecordDataset(str(directory / "boxes.tfrecord")).map(parse_boxes)
    images = images.padded_batch(32, padded_shapes={"boxes": (None, 4), "label": (None,)})
    videos = tf.data.TFRecordDataset(str(directory / "videos.tfrecord")).map(parse_frames)
    videos = videos.padded_batch(32, padded_shapes={"video": (), "frames": (None, 4)})
    batch = {**next(iter(images)), **next(iter(videos))}
    return {name: tensor.numpy() for name, tensor in batch.items()}


def with_dask_tfrecord(directory: Path) -> dict[str, Any]:
    """Return boxes `(n, boxes, 4)`, labels `(n, boxes)` and frames `(n, frames, 4)` of a batch."""
    sides = ["bbox/ymin", "bbox/xmin", "bbox/ymax", "bbox/xmax"]
    images = dtf.read_tfrecord(directory / "boxes.tfrecord")
    image = next(images.batches(32, pad=dict.fromkeys([*sides, "label"])))
    boxes = np.stack([image[side] for side in sides], axis=-1)

    videos = dtf.read_tfrecord(
        directory / "videos.tfrecord",
        {"video": dtf.FixedLenFeature((), "int64")},
        sequence_features={"frames": dtf.VarLenFeature("float32")},
    )
    video = next(videos.batches(32, pad={"frames": (None, 4)}))
    return {"boxes": boxes, "label": image["label"], **video}


def main(directory: Path, records: int = 1000) -> dict[str, Any]:
    """Write shards, and read a batch of each."""
    write(directory, records)
    batch = with_dask_tfrecord(directory)
    print({name: (array.dtype, array.shape) for name, array in batch.items()})
    return batch


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sequences-and-boxes"))
