"""Execute every remedy in the table of advice, as `test_mistakes.py` does for errors."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.remedies import Namespace, executed

import dask_tfrecord as dtf
from dask_tfrecord.advice import ADVICE, advice


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    folder = tmp_path_factory.mktemp("remedies")
    columns = {"label": np.arange(6), "text": [b"one", b"two"] * 3, "tokens": [[1], [2, 3], [], [4], [5, 6, 7], []]}
    columns |= {"sum": np.arange(6), "price": np.float32([1, 2, np.nan, 4, 5, 6])}
    dtf.to_tfrecord(columns, folder / "train-{shard}.tfrecord", records_per_shard=3)
    with contextlib.chdir(folder):
        dtf.to_zarr({"label": np.arange(6)}, "train.zarr")
        ds = dtf.read_tfrecord("train-*.tfrecord")
        yield Namespace(folder, ds[["label", "tokens", "sum", "price"]])


@pytest.mark.parametrize("name", sorted(ADVICE["ds"]))
def test_a_name_of_other_libraries_says_what_to_write(name: str, namespace: Namespace) -> None:
    ds = namespace["ds"]
    error: Any = AttributeError
    if name.startswith("__"):
        error, said = TypeError, advice("ds", name, dict.fromkeys(("COLUMN", "NUMBER"), "label"))
        ask = {"__array__": np.asarray, "__add__": lambda ds: ds + ds, "__mul__": lambda ds: ds * 2}[name]
    elif name in ds:
        said, ask = "write ds['sum'] for this column", lambda ds: ds.sum
    else:
        words = {"COLUMN": "label", "NUMBER": "label", "RAGGED": "tokens", "CONDITION": "label > 2"}
        said, ask = f"no attribute '{name}'{advice('ds', name, words)}", lambda ds: getattr(ds, name)
    with pytest.raises(error, match=re.escape(said)) as raised:
        ask(ds)
    executed(str(raised.value), namespace)


@pytest.mark.parametrize(
    ("of", "name"),
    [(of, name) for of in sorted(ADVICE.keys() - {"ds"}) for name in sorted(ADVICE[of])],
)
def test_other_texts_of_the_table_work(of: str, name: str, namespace: Namespace) -> None:
    value = {
        "nrows": 3,
        "n_rows": 3,
        "limit": 3,
        "take": 3,
        "skip": 3,
        "skiprows": 3,
        "drop_last": True,
        "rename.columns": {"label": "a"},
        "shuffle.buffer_size": 9,
        "shuffle.seed=": 9,
        "where.*": 1,
        "frac": 0.5,
        "num_shards": 3,
        "read_tfrecord.seed": 3,
        "read_tfrecord.sample": 3,
    }
    words = {"COLUMN": "label", "NUMBER": "label", "RAGGED": "tokens", "NAME": "label"}
    said = advice(of, name, {"SIZE": 2, "VALUE": value.get(name, ["label"]), **words})
    if "to_awkward" in said:
        pytest.importorskip("awkward")
    executed(said, namespace)
    for argument in re.findall(r"write (\w+)=", said):
        # The name of an argument, if a function of the package has it.
        assert any(argument in known for known in ARGUMENTS), argument


ARGUMENTS = [
    set(inspect.signature(function).parameters)
    for function in (
        dtf.read_tfrecord,
        dtf.to_zarr,
        dtf.to_tfrecord,
        dtf.Dataset.batches,
        dtf.Dataset.to_xarray,
        dtf.Dataset.padded,
    )
]
