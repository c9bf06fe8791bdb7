"""What this library and TensorFlow make of one case, in one form: used by both tests that compare them.

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
from parsing_cases import Said

import dask_tfrecord as dtf
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.testing import write_oracle

# Payloads, or a compression and the paths of files.
Asked = tuple[str, Mapping[str, Said] | None, Mapping[str, Said] | None, Sequence[bytes] | tuple[str, Sequence[str]]]
Answer = tuple[str, Any]
Column = tuple[int, Any]


def ask_tensorflow(python: str, asked: Sequence[Asked], *, alone: bool) -> list[Answer]:
    """TensorFlow's answers to cases, all from one process of its own.

    With `alone` a case is refused if one of its records is, parsed by itself: TensorFlow adds up counts over a batch
    before it judges them.
    """
    script = Path(__file__).parent / "tensorflow_parser.py"
    cases = pickle.dumps((alone, list(asked)))
    done = subprocess.run([python, script], input=cases, stdout=subprocess.PIPE, timeout=1800, check=True)
    answers: list[Answer] = pickle.loads(done.stdout)
    return answers


def feature(said: Any) -> Any:
    """The feature of this library that a class name and arguments mean; anything else as it is."""
    if not isinstance(said, tuple):
        return said
    name, arguments = said[0], dict(said[1])
    if "partitions" in arguments:
        arguments["partitions"] = [partition(one) for one in arguments["partitions"]]
    return getattr(dtf, name)(**arguments)


def partition(said: Any) -> Any:
    return getattr(dtf.RaggedFeature, said[0])(said[1]) if isinstance(said, tuple) else said


def read(asked: Asked, path: Path, chunks: int = 2) -> tuple[str, Any]:
    """What this library makes of a case: the columns as it gives them, or its error."""
    _, context, sequences, payloads = asked
    write_oracle(path, payloads)
    try:
        features = {name: feature(said) for name, said in (context or {}).items()}
        if sequences is None:
            return ("read", dtf.read_tfrecord(path, features, chunks=chunks).compute())
        lists = {name: feature(said) for name, said in sequences.items()}
        return ("read", dtf.read_tfrecord(path, features, sequence_features=lists, chunks=chunks).compute())
    except TFRecordError as error:
        return ("refused", error)


def rows(array: NDArray[Any], levels: int) -> Any:
    """A column of this library as nested lists of arrays."""
    return [rows(row, levels - 1) for row in array] if levels else array


def walk(nested: Any, of: Callable[[NDArray[Any]], Any]) -> Any:
    """The same lists with something else of each array."""
    return [walk(one, of) for one in nested] if isinstance(nested, list) else of(nested)


def bits(array: NDArray[Any]) -> Any:
    """An array as values that are equal where it is, bit for bit."""
    if array.dtype == object:
        return ("bytes", array.shape, array.ravel().tolist())
    return (array.dtype.name, array.shape, array.tobytes())


def columns(answer: Mapping[str, Any], specs: Mapping[str, Said], steps: Mapping[str, Sequence[int]]) -> Any:
    """The columns that this library has to give where TensorFlow answers so.

    `steps` tells the steps of each feature list by record: a sparse tensor does not, and TensorFlow gives lengths of
    dense lists alone.
    """
    found: dict[str, Column] = {}
    for name, said in answer.items():
        if said[0] == "ragged":
            splits = [_array(one) for one in said[2]]
            found[name] = (len(splits), _cut(_array(said[1]), splits))
        elif said[0] == "rows":
            found[name] = (1, [_array(row) for row in said[1]])
        elif said[0] == "sparse" and specs[name][0] == "SparseFeature":
            found |= _sparse(name, specs[name][1], *map(_array, said[1:]))
        elif said[0] == "sparse":
            found[name] = _varlen(steps.get(name), *map(_array, said[1:]))
        else:
            found[name] = (0, _array(said))
    for name, counts in steps.items():
        column = found.setdefault(f"{name}.lengths", (0, np.array(counts, np.int64)))
        assert column[1].tolist() == list(counts)
    return found


def _array(said: tuple[str, tuple[int, ...], Any]) -> NDArray[Any]:
    """An array that TensorFlow's side wrote down."""
    dtype, shape, data = said
    if dtype != "bytes":
        return np.frombuffer(data, dtype).reshape(shape)
    made = np.empty(len(data), object)
    made[:] = data
    return made.reshape(shape)


def _cut(values: Any, splits: Sequence[NDArray[Any]]) -> Any:
    """Values and row splits, the outermost first, as nested lists of arrays."""
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
    """Rows of a sparse tensor, which has none of the steps without values at the end of a record."""
    if steps is None:
        return 1, _cut(values, _row_splits(indices, shape))
    assert shape[:2].tolist() == [len(steps), max(steps)]
    made = [
        [values[(indices[:, 0] == record) & (indices[:, 1] == step)] for step in range(count)]
        for record, count in enumerate(steps)
    ]
    assert shape[2] == max((len(step) for record in made for step in record), default=0)
    return 2, made
