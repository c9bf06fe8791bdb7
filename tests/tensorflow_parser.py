"""Run by an interpreter that has TensorFlow, and nothing of this library: parses cases and tells what came out.

Standard input holds a pickle ``(alone, cases)``, and each case is ``(kind, context, sequences, payloads)``: kind is
"Example" or "SequenceExample", the next two say the features by class name and arguments, None where there are none,
and payloads are a list, or ``(compression, paths)`` of files that TensorFlow reads itself. With `alone` every record is
parsed by itself too.

Standard output is a pickle with one answer per case: ``("refused", text)``, or ``("read", columns)`` where an array is
``(dtype, shape, data)``, a sparse tensor ``("sparse", indices, values, dense_shape)``, a ragged one
``("ragged", values, [row_splits…])``, and what has a tensor per record ``("rows", [tensor…])``, at any depth. Plain
values alone pass: the two interpreters may differ in every version.
"""

import os
import pickle
import sys

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
answers_to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # TensorFlow may greet on standard output

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def feature(said):
    """The object of `tf.io` that a class name and arguments mean; anything else as it is."""
    if not isinstance(said, tuple):
        return said
    name, arguments = said[0], dict(said[1])
    if "partitions" in arguments:
        arguments["partitions"] = [partition(one) for one in arguments["partitions"]]
    return getattr(tf.io, name)(**arguments)


def partition(said):
    return getattr(tf.io.RaggedFeature, said[0])(said[1]) if isinstance(said, tuple) else said


def features(said):
    """Features by name; of those that are decoded afterwards, the bytes."""
    if said is None:
        return None
    return {name: bytes_of(*one) if one[0] in AFTERWARDS else feature(one) for name, one in said.items()}


def bytes_of(cls, arguments):
    """What parses the bytes of a feature that is decoded afterwards: of several images, a row of them."""
    several = cls == "ImageFeature" and len(arguments["shape"] or ()) == 4
    return tf.io.RaggedFeature(tf.string) if several else tf.io.FixedLenFeature((), tf.string)


def decode_raw(tensor, shape, dtype):
    stored = np.dtype(dtype)
    array = tf.io.decode_raw(tensor, tf.as_dtype(stored.name), little_endian=stored.str[0] != ">")
    return tf.reshape(array, (len(tensor), *shape))


def decode_raw_rows(tensor, shape, dtype):
    """Of differing length: one by one, as a batch of them is refused."""
    return [tf.squeeze(decode_raw(tensor[row : row + 1], shape, dtype), 0) for row in range(len(tensor))]


def parse_tensor(tensor, shape, dtype):
    sizes = [None if size in (-1, None) else size for size in shape]
    made = [tf.ensure_shape(tf.io.parse_tensor(one, dtype), sizes) for one in tensor]
    return made if None in sizes else tf.stack(made)


def decode_images(tensor, shape, dtype):
    if isinstance(tensor, tf.RaggedTensor):
        return [decode_images(row, shape[1:], dtype) for row in tensor]
    made = [tf.io.decode_image(one, dtype=tf.as_dtype(dtype), expand_animations=False) for one in tensor]
    if shape is None or -1 in shape:
        return made
    return tf.stack(made) if made else tf.zeros((0, *shape), dtype)


def as_it_is(tensor):
    return tensor


# What pipelines do with bytes once they are parsed.
AFTERWARDS = {
    "ImageFeature": decode_images,
    "RawFeature": decode_raw,
    "RawRows": decode_raw_rows,
    "TensorFeature": parse_tensor,
    "TextFeature": as_it_is,
}


def plain(tensor):
    """A tensor as plain values."""
    if isinstance(tensor, list):
        return ("rows", [plain(one) for one in tensor])
    if isinstance(tensor, tf.SparseTensor):
        return ("sparse", *(plain(part) for part in (tensor.indices, tensor.values, tensor.dense_shape)))
    if isinstance(tensor, tf.RaggedTensor):
        return ("ragged", plain(tensor.flat_values), [plain(splits) for splits in tensor.nested_row_splits])
    array = tensor.numpy()
    if tensor.dtype == tf.string:
        return ("bytes", array.shape, array.ravel().tolist())
    return (array.dtype.name, array.shape, array.tobytes())


def parse(kind, context, sequences, payloads):
    """Parse the payloads as one batch; the columns by name, lengths as ``NAME.lengths``."""
    if kind == "Example":
        parsed = decoded(tf.io.parse_example(payloads, features(context)), context)
        return {name: plain(tensor) for name, tensor in parsed.items()}
    parsed = tf.io.parse_sequence_example(payloads, features(context), features(sequences))
    decoded(parsed[0], context or {})
    columns = {name: plain(tensor) for part in parsed[:2] for name, tensor in part.items()}
    return columns | {f"{name}.lengths": plain(tensor) for name, tensor in parsed[2].items()}


def decoded(parsed, said):
    """Decode what was parsed as bytes."""
    for name, (cls, arguments) in said.items():
        if cls in AFTERWARDS:
            parsed[name] = AFTERWARDS[cls](parsed[name], **arguments)
    return parsed


def answer(alone, kind, context, sequences, payloads):
    """What TensorFlow makes of a case."""
    try:
        if isinstance(payloads, tuple):
            compression, paths = payloads
            payloads = [one.numpy() for one in tf.data.TFRecordDataset(paths, compression_type=compression)]
        if alone:
            # Counts of a batch are added up before they are judged: what one record lacks, another makes good.
            for payload in payloads:
                parse(kind, context, sequences, [payload])
        return ("read", parse(kind, context, sequences, payloads))
    except (ValueError, TypeError, tf.errors.OpError) as error:
        return ("refused", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    alone, cases = pickle.load(sys.stdin.buffer)
    pickle.dump([answer(alone, *case) for case in cases], answers_to)
    answers_to.close()
