"""Print the records of a shard that tf.data keeps with `ignore_errors`, by the feature that is decoded: a program.

Its interpreter has TensorFlow, and none of the modules of these tests.
"""

import json
import sys
from typing import Any

import tensorflow as tf

DECODE: dict[str, Any] = {
    "jpeg": lambda value: tf.ensure_shape(tf.io.decode_image(value), (8, 8, 3)),
    "png": lambda value: tf.ensure_shape(tf.io.decode_image(value), (8, 8, 3)),
    "raw": lambda value: tf.ensure_shape(tf.io.decode_raw(value, tf.float32), (3,)),
    "tensor": lambda value: tf.ensure_shape(tf.io.parse_tensor(value, tf.int32), (2, 2)),
    "text": lambda value: tf.strings.unicode_transcode(value, "UTF-8", "UTF-8", errors="strict"),
    "packed": lambda value: tf.ensure_shape(tf.io.decode_raw(tf.io.decode_compressed(value, "ZLIB"), tf.uint8), (4,)),
}


def kept(path: str, names: list[str]) -> list[int]:
    """Return the ids of the records whose values of these features are decoded."""
    keys = {name: tf.io.FixedLenFeature((), tf.string) for name in names}

    def parse(record: Any) -> Any:
        found = tf.io.parse_single_example(record, {**keys, "id": tf.io.FixedLenFeature((), tf.int64)})
        return found["id"], {name: DECODE[name](found[name]) for name in names}

    return [int(number) for number, _ in tf.data.TFRecordDataset(path).map(parse).ignore_errors()]


print(json.dumps({**{name: kept(sys.argv[1], [name]) for name in DECODE}, "all": kept(sys.argv[1], [*DECODE])}))
