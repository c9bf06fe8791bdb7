"""Script that parses cases with TensorFlow, in an interpreter without this library.

Standard input is a pickle ``(alone, cases)``. Each case is ``(kind, context, sequences, payloads)``: kind is "Example"
or "SequenceExample", context and sequences hold features as class name and arguments, or None, and payloads is a list,
or ``(compression, paths)`` of files that TensorFlow reads. With `alone`, every record is also parsed in a batch of one.

Standard output is a pickle with one answer per case: ``("refused", text)`` or ``("read", columns)``. An array is
``(dtype, shape, data)``, a sparse tensor ``("sparse", indices, values, dense_shape)``, a ragged tensor
``("ragged", values, [row_splits…])``, and one tensor per record ``("rows", [tensor…])``, at any depth. Only plain
values are exchanged, since the interpreters may have different versions of every package.
"""

import os
import pickle
import sys

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
answers_to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # TensorFlow may print messages to standard output

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def feature(description):
    """Construct a `tf.io` object from class name and arguments; return any other object unchanged."""
    if not isinstance(description, tuple):
        return description
    name, arguments = description[0], dict(description[1])
    if "partitions" in arguments:
        arguments["partitions"] = [partition(one) for one in arguments["partitions"]]
    return getattr(tf.io, name)(**arguments)


def partition(description):
    return (
        getattr(tf.io.RaggedFeature, description[0])(description[1]) if isinstance(description, tuple) else description
    )


def features(descriptions, *, steps=False):
    """Return the features to parse; features that are decoded later are parsed as bytes."""
    if descriptions is None:
        return None
    return {
        name: bytes_of(*one, steps=steps) if one[0] in AFTERWARDS else feature(one)
        for name, one in descriptions.items()
    }


def bytes_of(cls, arguments, *, steps):
    """Return the feature that parses the bytes to be decoded later."""
    count = arguments.get("count")
    if steps:
        return tf.io.FixedLenSequenceFeature((), tf.string, allow_missing=True)
    return (
        tf.io.RaggedFeature(tf.string)
        if count == -1
        else tf.io.FixedLenFeature(() if count is None else (count,), tf.string)
    )


def decode(cls, tensor, count=None, **arguments):
    """Decode bytes: one value per record, or several."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(decode(cls, tensor.flat_values, **arguments))
    if count is not None:
        values = decode(cls, tf.reshape(tensor, (-1,)), **arguments)
        return tf.reshape(values, (len(tensor), count, *values.shape[1:]))
    return AFTERWARDS[cls](tensor, **arguments)


def decode_raw(tensor, shape, dtype, compression=None):
    stored = np.dtype(dtype)
    if compression:
        tensor = tf.io.decode_compressed(tensor, compression)
    array = tf.io.decode_raw(tensor, tf.as_dtype(stored.name), little_endian=stored.str[0] != ">")
    return tf.reshape(array, (len(tensor), *shape))


def decode_raw_rows(tensor, **arguments):
    """Decode values of different lengths one by one, since TensorFlow rejects them as a batch."""
    return [tf.squeeze(decode_raw(tensor[row : row + 1], **arguments), 0) for row in range(len(tensor))]


def parse_tensor(tensor, shape, dtype):
    sizes = [None if size in (-1, None) else size for size in shape]
    made = [tf.ensure_shape(tf.io.parse_tensor(one, dtype), sizes) for one in tensor]
    if None in sizes:
        return made
    return tf.stack(made) if made else tf.zeros((0, *sizes), dtype)


def decode_images(tensor, shape, dtype):
    made = [tf.io.decode_image(one, dtype=tf.as_dtype(dtype), expand_animations=False) for one in tensor]
    if shape is None or -1 in shape:
        return made
    return tf.stack(made) if made else tf.zeros((0, *shape), dtype)


def as_it_is(tensor):
    return tensor


# Functions that decode parsed bytes.
AFTERWARDS = {
    "ImageFeature": decode_images,
    "RawFeature": decode_raw,
    "RawRows": decode_raw_rows,
    "TensorFeature": parse_tensor,
    "TextFeature": as_it_is,
}


def plain(tensor):
    """Convert a tensor to plain values."""
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
    """Parse the payloads as one batch; return columns by name, lengths as ``NAME.lengths``."""
    if kind == "Example":
        parsed = decoded(tf.io.parse_example(payloads, features(context)), context)
        return {name: plain(tensor) for name, tensor in parsed.items()}
    parsed = tf.io.parse_sequence_example(payloads, features(context), features(sequences, steps=True))
    decoded(parsed[0], context or {})
    for name, (cls, _) in (sequences or {}).items():
        if cls in AFTERWARDS:
            # Without the padding of shorter feature lists.
            parsed[1][name] = tf.RaggedTensor.from_tensor(parsed[1][name], parsed[2][name])
    decoded(parsed[1], sequences or {})
    columns = {name: plain(tensor) for part in parsed[:2] for name, tensor in part.items()}
    return columns | {f"{name}.lengths": plain(tensor) for name, tensor in parsed[2].items()}


def decoded(parsed, descriptions):
    """Decode the columns that were parsed as bytes."""
    for name, (cls, arguments) in descriptions.items():
        if cls in AFTERWARDS:
            parsed[name] = decode(cls, parsed[name], **arguments)
    return parsed


def answer(alone, kind, context, sequences, payloads):
    """Return TensorFlow's answer to a case."""
    try:
        if isinstance(payloads, tuple):
            compression, paths = payloads
            payloads = [one.numpy() for one in tf.data.TFRecordDataset(paths, compression_type=compression)]
        if alone:
            # TensorFlow checks the total count of a batch, so that one record can make up for another.
            for payload in payloads:
                parse(kind, context, sequences, [payload])
        return ("read", parse(kind, context, sequences, payloads))
    except (ValueError, TypeError, tf.errors.OpError) as error:
        return ("refused", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    alone, cases = pickle.load(sys.stdin.buffer)
    pickle.dump([answer(alone, *case) for case in cases], answers_to)
    answers_to.close()
