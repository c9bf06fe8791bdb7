"""Data sets of nested features that tensorflow-datasets writes and reads, compared with this library.

`support/tfds_package.py` runs the package in the interpreter at ``DASK_TFRECORD_TFDS``, an environment with
tensorflow-datasets, TensorFlow, array_record, importlib_resources and OpenCV. It writes one data set of episodes,
objects and other nested sequences, and some of random features.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.paths import TESTS

import dask_tfrecord as dtf

pytestmark = pytest.mark.tensorflow

SCRIPT = TESTS / "support" / "tfds_package.py"
SEEDS = ("steps", *range(30))


@dataclass(frozen=True, slots=True)
class Answer:
    """Features that the package reads from a directory, by key, and rows (or an error's text) by reading function."""

    folder: Path
    leaves: Mapping[str, Mapping[str, Any]]
    ways: Mapping[str, Any]

    def rows(self) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
        """Yield the rows of each function that reads the data set."""
        return ((way, rows) for way, rows in self.ways.items() if not isinstance(rows, str))


def ask(seeds: Sequence[Any], written: Path, read: Sequence[Path]) -> list[Answer]:
    """Let the package write data sets of these seeds, and read them and other directories."""
    interpreter = os.environ.get("DASK_TFRECORD_TFDS")
    if not interpreter:
        pytest.skip("DASK_TFRECORD_TFDS is not set to an interpreter with tensorflow-datasets")
    request = pickle.dumps((list(seeds), str(written), [str(folder) for folder in read]))
    done = subprocess.run([interpreter, SCRIPT], input=request, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [Answer(Path(folder), *answer) for folder, answer in pickle.loads(done.stdout).items()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    return ask(SEEDS, tmp_path_factory.mktemp("package"), [])


def decoded(value: Any, leaf: Mapping[str, Any]) -> Any:
    """Decode what a column holds as bytes: images of any size in sequences, and compressed tensors."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [decoded(item, leaf) for item in value]
    if not isinstance(value, bytes) or (leaf["encoding"] == "none" and leaf["class"] != "Image"):
        return value
    if leaf["class"] == "Image":
        image = np.asarray(Image.open(io.BytesIO(value)))
        return image if image.ndim == 3 else image[..., None]
    data = zlib.decompress(value) if leaf["encoding"] == "zlib" else value
    return np.frombuffer(data, leaf["dtype"])


def check(found: Any, wanted: Any, where: Any) -> None:
    """Assert that a value of a column equals the package's in dtype, shape and bits."""
    kind, *content = wanted
    if kind == "list":
        if isinstance(found, np.ndarray) and found.ndim == 1 and len(found) != len(content[0]) and content[0]:
            # Flat, as below.
            found = found.reshape(len(content[0]), -1)
        assert len(found) == len(content[0]), where
        for item, other in zip(found, content[0], strict=True):
            check(item, other, where)
    elif kind == "scalar":
        found = found.item() if isinstance(found, np.generic | np.ndarray) else found
        found = found.encode() if isinstance(found, str) else found
        assert found == content[0] or repr(found) == repr(content[0]), where
    elif kind == "bytes":
        shape, items = content
        array = np.array(found, object)
        assert array.shape == shape or not array.size, where
        assert [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()] == items, where
    else:
        dtype, shape, data = content
        array = np.frombuffer(data, dtype).reshape(shape)
        if isinstance(found, list):
            assert len(found) == len(array), where
            for item, other in zip(found, array, strict=True):
                check(item, ("array", dtype, other.shape, other.tobytes()), where)
            return
        found = np.asarray(found)
        # Records list values without shapes: rows of several open sizes, or one past the first, are flat.
        found = found.reshape(shape) if found.ndim == 1 and found.size == array.size else found
        assert (found.dtype.name, found.shape) == (dtype, shape), where
        assert found.tobytes() == data, where


def is_misread(way: str, leaf: Mapping[str, Any]) -> bool:
    """Return whether the package reads other values than it wrote: sequences of a fixed length in or around others."""
    return way == "as_data_source" and len(leaf["lengths"]) > 1 and any(leaf["lengths"])


def check_columns(columns: Mapping[str, Any], answer: Answer) -> Counter[str]:
    """Compare computed columns with the rows of the package; count the values of each function."""
    compared: Counter[str] = Counter()
    for way, rows in answer.rows():
        for name, leaf in answer.leaves.items():
            if is_misread(way, leaf):
                continue
            key = f"{name}/value" if f"{name}/value" in columns and name not in columns else name
            assert len(columns[key]) == len(rows)
            for number, row in enumerate(rows):
                compared[way] += 1
                if name in row:
                    check(decoded(columns[key][number], leaf), row[name], (answer.folder, way, name, number))
                else:
                    # A nested data set without steps lacks fields.
                    assert len(columns[key][number]) == 0
    return compared


def read(answer: Answer) -> dtf.Dataset:
    return dtf.read_tfrecord(answer.folder, split="train")


def test_every_value_is_that_of_the_package(answers: list[Answer], tmp_path: Path) -> None:
    """Records, and the same through Zarr."""
    compared: Counter[str] = Counter()
    for number, answer in enumerate(answers):
        ds = read(answer)
        compared += check_columns(ds.compute(), answer)
        ds.to_zarr(tmp_path / f"{number}.zarr", chunks=2)
        stored = dtf.from_zarr(tmp_path / f"{number}.zarr")
        assert stored.schema.groups == ds.schema.groups
        check_columns(stored.compute(), answer)
    # The package raises errors for some of the features that it writes.
    assert len(answers) > 0.8 * len(SEEDS)
    assert min(compared[way] for way in ("as_dataset", "load", "as_data_source")) > compared["written"] // 2


def test_the_package_reads_what_is_written(answers: list[Answer], tmp_path: Path) -> None:
    """Columns that were read are written again: groups are sequences of the package, and values are the same."""
    written: dict[Path, dtf.Dataset] = {}
    for answer in answers:
        name, version = answer.folder.parts[-2:]
        ds = read(answer)
        ds.to_tfrecord(tmp_path / name / version, tfds={"name": name, "version": version, "split": "train"})
        again = dtf.read_tfrecord(tmp_path / name, split="train")
        assert {group: set(names) for group, names in again.schema.groups.items()} == {
            group: set(names) for group, names in ds.schema.groups.items()
        }
        assert again.schema.classes == ds.schema.classes
        assert dict(again.schema) == dict(ds.schema)
        found, expected = again.compute(), ds.compute()
        for column in ds:
            assert repr(found[column].tolist()) == repr(expected[column].tolist())
        written[tmp_path / name / version] = ds
    compared: Counter[str] = Counter()
    for answer in ask([], tmp_path / "none", list(written)):
        ds = written[answer.folder]
        assert set(answer.leaves) == set(ds)
        for names in ds.schema.groups.values():
            assert {answer.leaves[name]["lengths"][0] for name in names} == {None}
        compared += check_columns(ds.compute(), answer)
    assert compared["load"] > 500
