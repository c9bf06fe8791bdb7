"""Lists of Examples compared with TF-Ranking: `tfr.data.parse_from_example_list` reads the same items.

Needs an interpreter with the package ``tensorflow_ranking``: ``DASK_TFRECORD_RANKING``, or else that of TensorFlow.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import read_payloads, write_oracle

import dask_tfrecord as dtf
from dask_tfrecord.messages import Example, ExampleListWithContext

pytestmark = pytest.mark.tensorflow

# TF-Ranking pads the lists of a batch with Examples without features, so dense features of items need a default.
CONTEXT = {
    "query": ("FixedLenFeature", {"shape": (), "dtype": "string"}),
    "length": ("FixedLenFeature", {"shape": (2,), "dtype": "int64", "default_value": [7, 8]}),
}
ITEMS = {
    "label": ("FixedLenFeature", {"shape": (), "dtype": "int64", "default_value": -1}),
    "scores": ("FixedLenFeature", {"shape": (2,), "dtype": "float32", "default_value": [0.5, -0.5]}),
    "title": ("FixedLenFeature", {"shape": (), "dtype": "string", "default_value": "none"}),
    "rank": ("FixedLenFeature", {"shape": (), "dtype": "float32", "default_value": 0.0}),
    "tokens": ("VarLenFeature", {"dtype": "int64"}),
    "words": ("VarLenFeature", {"dtype": "string"}),
}
_LISTS = {int: "int64_list", float: "float_list", bytes: "bytes_list"}


def features(descriptions: Any) -> dict[str, Any]:
    return {name: getattr(dtf, cls)(**arguments) for name, (cls, arguments) in descriptions.items()}


def put(example: Example, key: str, values: list[Any], kind: type) -> None:
    getattr(example.features.feature[key], _LISTS[kind]).value.extend(values)


def records(seed: int) -> list[bytes]:
    """Random records with up to five items; features with a default, and lists of any length, are sometimes missing."""
    rng = random.Random(seed)
    made = []
    for number in range(60):
        record = ExampleListWithContext()
        put(record.context, "query", [f"query {number}".encode()], bytes)
        if rng.random() < 0.5:
            put(record.context, "length", [number, -number], int)
        for _ in range(rng.randint(0, 5) if number else 5):
            item = record.examples.add()
            put(item, "rank", [np.float32(rng.random()).item()], float)
            optional = [
                ("label", [rng.randint(-5, 1 << 40)], int),
                ("scores", [1.5, np.float32(rng.random()).item()], float),
                ("title", [rng.randbytes(rng.randint(0, 5))], bytes),
                ("tokens", [rng.randint(0, 1 << 20) for _ in range(rng.randint(1, 4))], int),
                ("words", [rng.randbytes(3) for _ in range(rng.randint(1, 3))], bytes),
            ]
            for key, values, kind in optional:
                if rng.random() < 0.7:
                    put(item, key, values, kind)
        made.append(record.SerializeToString())
    return made


def parse_with_ranking(interpreter: str, payloads: list[bytes], context: Any, items: Any) -> dict[str, Any]:
    script = Path(__file__).parent / "support" / "ranking_parser.py"
    request = pickle.dumps((payloads, context, items))
    done = subprocess.run([interpreter, str(script)], input=request, capture_output=True, timeout=600, check=False)
    if done.returncode == 3:
        pytest.skip(f"TF-Ranking is not installed for {interpreter}: {done.stderr.decode()[-200:]}")
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answers: dict[str, Any] = pickle.loads(done.stdout)
    return answers


@pytest.fixture
def ranking(request: pytest.FixtureRequest) -> str:
    """Interpreter of an environment with TF-Ranking."""
    named = os.environ.get("DASK_TFRECORD_RANKING")
    return named if named else str(request.getfixturevalue("tensorflow"))


def rows_of(answer: Any, sizes: list[int]) -> list[list[Any]]:
    """Return the items of each record, without the padding of the batch."""
    if answer[0] == "dense":
        return [row[:size] for row, size in zip(answer[1], sizes, strict=True)]
    rows: list[list[Any]] = [[[] for _ in range(size)] for size in sizes]
    for (record, item, _), value in zip(answer[1], answer[2], strict=True):
        rows[record][item].append(value)
    return rows


def plain(row: Any) -> Any:
    return [plain(item) for item in row] if isinstance(row, np.ndarray | list) else row


def compare(answers: dict[str, Any], ds: dtf.Dataset, context: Any, items: Any) -> None:
    columns = ds.compute()
    sizes = answers["size"][1]
    for name in context:
        assert columns[name].tolist() == answers[name][1], name
    for key in items:
        found = [plain(row.tolist()) for row in columns[f"examples/{key}"]]
        assert found == rows_of(answers[key], sizes), key


def test_generated_lists(ranking: str, tmp_path: Path) -> None:
    payloads = records(5)
    write_oracle(tmp_path / "x", payloads)
    answers = parse_with_ranking(ranking, payloads, CONTEXT, ITEMS)
    ds = dtf.read_tfrecord(tmp_path / "x", features(CONTEXT), example_features=features(ITEMS))
    compare(answers, ds, CONTEXT, ITEMS)
    # TF-Ranking reads what this library writes.
    ds.to_tfrecord(tmp_path / "y")
    again = parse_with_ranking(ranking, read_payloads(tmp_path / "y"), CONTEXT, ITEMS)
    compare(again, ds, CONTEXT, ITEMS)


def test_the_data_of_ranking(ranking: str, corpus: Path) -> None:
    path = corpus / "tensorflow__ranking/tensorflow_ranking/examples/data/train_numerical_elwc.tfrecord"
    items: dict[str, Any] = {
        f"custom_features_{n}": ("FixedLenFeature", {"shape": (1,), "dtype": "float32", "default_value": [0.0]})
        for n in range(1, 137)
    }
    items["utility"] = ("FixedLenFeature", {"shape": (), "dtype": "int64", "default_value": -1})
    answers = parse_with_ranking(ranking, read_payloads(path), {}, items)
    compare(answers, dtf.read_tfrecord(path, {}, example_features=features(items)), {}, items)
