"""Script that parses lists of Examples with TF-Ranking, in an interpreter without this library.

Standard input is a pickle ``(payloads, context, items)``: features by name, as the class of `tf.io` and its arguments.
Standard output is a pickle of columns: ``("dense", lists)``, or ``("sparse", indices, values, shape)``. The column
``size`` is the number of items. The exit status is 3 without TF-Ranking.
"""

import os
import pickle
import sys

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")
answers_to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # TensorFlow may print messages to standard output

try:
    import tensorflow as tf
    import tensorflow_ranking as tfr
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)


def plain(tensor):
    if isinstance(tensor, tf.SparseTensor):
        return ("sparse", tensor.indices.numpy().tolist(), tensor.values.numpy().tolist(), tensor.shape.as_list())
    return ("dense", tensor.numpy().tolist())


payloads, context, items = pickle.load(sys.stdin.buffer)
parsed = tfr.data.parse_from_example_list(
    tf.constant(payloads),
    context_feature_spec={name: getattr(tf.io, cls)(**arguments) for name, (cls, arguments) in context.items()},
    example_feature_spec={name: getattr(tf.io, cls)(**arguments) for name, (cls, arguments) in items.items()},
    size_feature_name="size",
)
pickle.dump({name: plain(tensor) for name, tensor in parsed.items()}, answers_to)
answers_to.close()
