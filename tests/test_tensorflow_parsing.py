"""Parsing compared with TensorFlow: random specs and records, read or refused by both, equal bit for bit.

`parsing_cases` generates the cases, and `tensorflow_parser` parses them in the interpreter at
``DASK_TFRECORD_TENSORFLOW``. Cases with an intended difference (docs/tensorflow.md) are marked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.parsing_cases import CONTEXT, EXAMPLE, SEQUENCE, Case, cases
from support.parsing_compare import Answer, Request, bits, columns, parse_with_tensorflow, read, rows, walk

import dask_tfrecord as dtf
from dask_tfrecord.schema import Schema

pytestmark = pytest.mark.tensorflow

SEED = 20260
COUNTS = {"Example": 2000, "SequenceExample": 1200}

Answers = dict[str, list[tuple[Case, Answer]]]


@pytest.fixture(scope="module")
def answered(tensorflow: str) -> Answers:
    """Return every case with TensorFlow's answer, from one process."""
    made = {kind: cases(SEED, count, kind) for kind, count in COUNTS.items()}
    answers = iter(
        parse_with_tensorflow(tensorflow, [request_for(case) for kind in made for case in made[kind]], alone=True)
    )
    return {kind: [(case, next(answers)) for case in made[kind]] for kind in made}


def request_for(case: Case) -> Request:
    return (case.kind, case.context, case.sequences, case.payloads)


def difference(case: Case, answer: Answer, ours: tuple[str, Any]) -> str:
    """Describe an unexpected difference of the results; "" if they agree."""
    verdict = (answer[0], ours[0])
    if case.filled:
        return "" if verdict == ("refused", "read") else f"a default for an empty list: {verdict}"
    if case.refused:
        return "" if ours[0] == "refused" else "read what lies outside of what the spec says"
    if verdict == ("refused", "refused"):
        return ""
    if verdict != ("read", "read"):
        return f"TensorFlow {answer[0]}, we {ours[0]}: {answer[1] if answer[0] == 'refused' else ours[1]}"
    wanted = columns(answer[1], (case.context or {}) | (case.sequences or {}), case.steps)
    if set(wanted) != set(ours[1]):
        return f"columns {sorted(ours[1])} instead of {sorted(wanted)}"
    for name, (levels, values) in wanted.items():
        found = rows(ours[1][name], levels)
        if walk(found, bits) != walk(values, bits):
            return f"{name}: {found} instead of {values}"
    return ""


@pytest.mark.parametrize("kind", COUNTS)
def test_random_specs_over_random_records(answered: Answers, kind: str, tmp_path: Path) -> None:
    differences = []
    for number, (case, answer) in enumerate(answered[kind]):
        found = difference(case, answer, read(request_for(case), tmp_path / f"{number}.tfrecord"))
        if found:
            differences.append(f"{number}: {found[:1000]}\n{case!s:.3000}")
    assert not differences, f"{len(differences)} cases differ, the first:\n" + "\n\n".join(differences[:3])


@pytest.mark.parametrize("kind", COUNTS)
def test_cases_are_worth_comparing(answered: Answers, kind: str) -> None:
    # Unchanged records are read, and changed ones are both read and refused often enough.
    assert all(answer[0] == "read" for case, answer in answered[kind] if not case.change)
    seen = Counter((case.changed[0], answer[0]) for case, answer in answered[kind] if case.changed)
    classes = EXAMPLE if kind == "Example" else [*CONTEXT, *SEQUENCE]
    assert all(seen[cls, verdict] >= 8 for cls in classes for verdict in ("read", "refused")), seen
    assert sum(case.filled for case, _ in answered[kind]) >= 8
    assert sum(case.refused for case, _ in answered[kind]) >= 8
    # TensorFlow reads some of the records that this library refuses.
    assert sum(case.refused and answer[0] == "read" for made in answered.values() for case, answer in made) >= 8


# Loads only the modules of features, since the interpreter with TensorFlow may lack dependencies of the package. The
# script records the imported modules before it imports TensorFlow.
OBJECTS = f"""
import json, sys, types
package = types.ModuleType("dask_tfrecord")
package.__path__ = [{str(Path(dtf.__file__).parent)!r}]
sys.modules["dask_tfrecord"] = package
from dask_tfrecord.schema import Schema
imported = "tensorflow" in sys.modules
import tensorflow as tf
R = tf.io.RaggedFeature
context = {{
    "fixed": tf.io.FixedLenFeature([], tf.int64),
    "shape": tf.io.FixedLenFeature(tf.TensorShape([2, 3]), tf.float32),
    "whole": tf.io.FixedLenFeature(2, tf.string, [b"a", "b"]),
    "tensor": tf.io.FixedLenFeature((2,), tf.int64, tf.constant([4, 5], tf.int64)),
    "varlen": tf.io.VarLenFeature(tf.string),
    "named": tf.io.VarLenFeature("float32"),
    "sparse": tf.io.SparseFeature("ix", "val", tf.float32, 10),
    "sparse2": tf.io.SparseFeature(["i", "j"], "v", tf.int64, [3, 4], already_sorted=True),
    "ragged": R(tf.int64),
    "cut": R(tf.string, "vals", [R.RowLengths("l"), R.UniformRowLength(2), R.RowSplits("s")], tf.int64, True),
    "more": R(tf.float32, partitions=(R.ValueRowIds("v"), R.RowLimits("e"), R.RowStarts("b"))),
    "padded": tf.io.FixedLenSequenceFeature([4], tf.float32, allow_missing=True, default_value=-1.0),
}}
sequences = {{
    "steps": tf.io.FixedLenSequenceFeature([], tf.string),
    "tokens": tf.io.VarLenFeature(tf.int64),
    "words": R(tf.string, "w", [R.RowLengths("n")]),
}}
print(json.dumps([imported, Schema(context).to_json(), Schema(context, sequence_features=sequences).to_json()]))
"""


def test_features_of_tensorflow_are_taken_by_their_fields(tensorflow: str) -> None:
    R = dtf.RaggedFeature
    context = {
        "fixed": dtf.FixedLenFeature((), "int64"),
        "shape": dtf.FixedLenFeature((2, 3), "float32"),
        "whole": dtf.FixedLenFeature((2,), "bytes", (b"a", b"b")),
        "tensor": dtf.FixedLenFeature((2,), "int64", (4, 5)),
        "varlen": dtf.VarLenFeature("bytes"),
        "named": dtf.VarLenFeature("float32"),
        "sparse": dtf.SparseFeature("ix", "val", "float32", 10),
        "sparse2": dtf.SparseFeature(("i", "j"), "v", "int64", (3, 4), already_sorted=True),
        "ragged": R("int64"),
        "cut": R("bytes", "vals", [R.RowLengths("l"), R.UniformRowLength(2), R.RowSplits("s")]),
        "more": R("float32", partitions=[R.ValueRowIds("v"), R.RowLimits("e"), R.RowStarts("b")]),
        "padded": dtf.FixedLenSequenceFeature((4,), "float32", allow_missing=True, default_value=-1.0),
    }
    sequences = {
        "steps": dtf.FixedLenSequenceFeature((), "bytes"),
        "tokens": dtf.VarLenFeature("int64"),
        "words": R("bytes", "w", [R.RowLengths("n")]),
    }
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [tensorflow, "-c", OBJECTS], env=os.environ | quiet, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    imported, examples, with_lists = json.loads(done.stdout.splitlines()[-1])
    assert not imported
    assert Schema.from_json(examples) == Schema(context)
    assert Schema.from_json(with_lists) == Schema(context, sequence_features=sequences)


def test_this_interpreter_never_imported_tensorflow() -> None:
    assert "tensorflow" not in sys.modules
