"""Results of this library and of TensorFlow for one case, converted to one form for comparison.

A column is its levels of rows and nested lists of arrays, as deep as there are levels.
"""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import write_oracle

import dask_tfrecord as dtf
from dask_tfrecord.errors import TFRecordError

Description = tuple[str, dict[str, Any]]  # class name and arguments of a feature
# The last item holds payloads, or a compression and the paths of files.
Request = tuple[
    str, Mapping[str, Description] | None, Mapping[str, Description] | None, Sequence[bytes] | tuple[str, Sequence[str]]
]
Answer = tuple[str, Any]
Column = tuple[int, Any]


def parse_with_tensorflow(python: str, requests: Sequence[Request], *, alone: bool) -> list[Answer]:
    """Parse cases with TensorFlow, in one process.

    With `alone`, each record is also parsed as a batch of one, and the case is refused if one record is. In a larger
    batch, TensorFlow checks the total of value counts, so that one record can make up for another.
    """
    script = Path(__file__).parent / "tensorflow_parser.py"
    cases = pickle.dumps((alone, list(requests)))
    done = subprocess.run([python, script], input=cases, stdout=subprocess.PIPE, timeout=1800, check=True)
    answers: list[Answer] = pickle.loads(done.stdout)
    return answers


def feature(description: Any) -> Any:
    """Construct a feature of this library from class name and arguments; return any other object unchanged."""
    if not isinstance(description, tuple):
        return description
    name, arguments = description[0], dict(description[1])
    if "partitions" in arguments:
        arguments["partitions"] = [partition(one) for one in arguments["partitions"]]
    return getattr(dtf, name)(**arguments)


def partition(description: Any) -> Any:
    return getattr(dtf.RaggedFeature, description[0])(description[1]) if isinstance(description, tuple) else description


def read(request: Request, path: Path, chunks: int = 2) -> tuple[str, Any]:
    """Parse a case with this library; return "read" and the columns, or "refused" and the error."""
    _, context, sequences, payloads = request
    write_oracle(path, payloads)
    try:
        features = {name: feature(description) for name, description in (context or {}).items()}
        if sequences is None:
            return ("read", dtf.read_tfrecord(path, features, chunks=chunks).compute())
        lists = {name: feature(description) for name, description in sequences.items()}
        return ("read", dtf.read_tfrecord(path, features, sequence_features=lists, chunks=chunks).compute())
    except TFRecordError as error:
        return ("refused", error)


def rows(array: NDArray[Any], levels: int) -> Any:
    """Convert a column of this library to nested lists of arrays."""
    return [rows(row, levels - 1) for row in array] if levels else array


def walk(nested: Any, of: Callable[[NDArray[Any]], Any]) -> Any:
    """Apply a function to each array of nested lists."""
    return [walk(one, of) for one in nested] if isinstance(nested, list) else of(nested)


def bits(array: NDArray[Any]) -> Any:
    """Return a value that is equal for arrays that are equal bit for bit."""
    if array.dtype == object:
        return ("bytes", array.shape, array.ravel().tolist())
    return (array.dtype.name, array.shape, array.tobytes())


def columns(answer: Mapping[str, Any], specs: Mapping[str, Description], steps: Mapping[str, Sequence[int]]) -> Any:
    """Convert TensorFlow's result to the columns that this library must return.

    `steps` has the number of steps of each feature list by record. Sparse tensors lack it, and TensorFlow returns the
    lengths of dense lists only.
    """
    found: dict[str, Column] = {}
    for name, tensor in answer.items():
        if tensor[0] == "ragged":
            splits = [_array(one) for one in tensor[2]]
            found[name] = (len(splits), _cut(_array(tensor[1]), splits))
        elif tensor[0] == "rows":
            found[name] = (1, [_array(row) for row in tensor[1]])
        elif tensor[0] == "sparse" and specs[name][0] == "SparseFeature":
            found |= _sparse(name, specs[name][1], *map(_array, tensor[1:]))
        elif tensor[0] == "sparse":
            found[name] = _varlen(steps.get(name), *map(_array, tensor[1:]))
        else:
            found[name] = (0, _array(tensor))
    for name, counts in steps.items():
        column = found.setdefault(f"{name}.lengths", (0, np.array(counts, np.int64)))
        assert column[1].tolist() == list(counts)
    return found


def _array(encoded: tuple[str, tuple[int, ...], Any]) -> NDArray[Any]:
    """Return the array that `tensorflow_parser` serialized."""
    dtype, shape, data = encoded
    if dtype != "bytes":
        return np.frombuffer(data, dtype).reshape(shape)
    made = np.empty(len(data), object)
    made[:] = data
    return made.reshape(shape)


def _cut(values: Any, splits: Sequence[NDArray[Any]]) -> Any:
    """Convert values and row splits, the outermost first, to nested lists of arrays."""
    for one in reversed(splits):
        values = [values[start:stop] for start, stop in pairwise(one.tolist())]
    return values


def _row_splits(indices: NDArray[Any], shape: NDArray[Any]) -> list[NDArray[Any]]:
    return [np.searchsorted(indices[:, 0], np.arange(shape[0] + 1))]


def _sparse(
    name: str, arguments: Mapping[str, Any], indices: NDArray[Any], values: NDArray[Any], shape: NDArray[Any]
) -> dict[str, Column]:
    size = arguments["size"]
    assert shape[1:].tolist() == (list(size) if isinstance(size, list | tuple) else [size])
    splits = _row_splits(indices, shape)
    return {
        f"{name}.indices": (1, _cut(indices[:, 1:], splits)),
        f"{name}.values": (1, _cut(values, splits)),
        f"{name}.shape": (0, np.repeat(shape[None, 1:], shape[0], 0)),
    }


def _varlen(steps: Sequence[int] | None, indices: NDArray[Any], values: NDArray[Any], shape: NDArray[Any]) -> Column:
    """Convert a sparse tensor to rows; the tensor lacks empty steps at the end of a record."""
    if steps is None:
        return 1, _cut(values, _row_splits(indices, shape))
    assert shape[:2].tolist() == [len(steps), max(steps)]
    made = [
        [values[(indices[:, 0] == record) & (indices[:, 1] == step)] for step in range(count)]
        for record, count in enumerate(steps)
    ]
    assert shape[2] == max((len(step) for record in made for step in record), default=0)
    return 2, made
