"""Functions are the same if they do the same, wherever they stand; a conversion is gone on with by that."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_tfrecord.stores.functions import function_name

PROGRAM = """
import sys
from functools import partial
import numpy as np
{padding}
FACTOR = {factor}

def helper(x):
    return x {operator} FACTOR

def scaled(blocks, offset={offset}):
    keep = {{"a", "b", "c"}}
    return {{name: (lambda x: helper(x) + offset)(np.asarray(block)) for name, block in blocks.items() if name in keep}}

from dask_tfrecord.stores.functions import function_name
print(function_name(partial(scaled)), end="")
"""
SAID = {"padding": "", "factor": "2", "operator": "*", "offset": "1"}


def name_in_program(folder: Path, **said: str) -> str:
    code = PROGRAM.format(**(SAID | said))
    # As a notebook does it: each cell has a file of its own, whose name tells the process.
    runner = f"import os; exec(compile({code!r}, f'/tmp/{{os.getpid()}}.py', 'exec'))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Elsewhere than where sources may lie that have no extension.
    command = [sys.executable, "-c", runner]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.stderr == ""
    return done.stdout


def test_another_process_finds_the_same_name(tmp_path: Path) -> None:
    assert name_in_program(tmp_path) == name_in_program(tmp_path, padding="\n\n# moved\n")


@pytest.mark.parametrize("change", [{"factor": "3"}, {"operator": "+"}, {"offset": "5"}], ids=str)
def test_what_it_does_makes_the_name(tmp_path: Path, change: dict[str, str]) -> None:
    assert name_in_program(tmp_path, **change) != name_in_program(tmp_path)


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, blocks: dict[str, Any]) -> dict[str, Any]:
        return {name: block * self.factor for name, block in blocks.items()}

    def scale(self, blocks: dict[str, Any]) -> dict[str, Any]:
        return self(blocks)


def scale(blocks: dict[str, Any], table: Any) -> dict[str, Any]:
    return {name: block * table for name, block in blocks.items()}


def closure(value: Any) -> Callable[..., Any]:
    return lambda blocks: scale(blocks, value)


def recursive(depth: int) -> int:
    return recursive(depth - 1) if depth else 0


@pytest.mark.parametrize(
    "make",
    [
        closure,
        Scaler,
        lambda value: Scaler(value).scale,
        lambda value: functools.partial(scale, table=value),
        lambda value: functools.partial(scale, table=np.full(3, value)),
        lambda value: closure({"a": np.full(3, value)}),
    ],
    ids=["closure", "object", "method", "partial", "array", "dict"],
)
def test_values_beside_the_arguments_count(make: Callable[[float], Callable[..., Any]]) -> None:
    assert function_name(make(2.0)) == function_name(make(2.0))
    assert function_name(make(2.0)) != function_name(make(3.0))


def test_functions_of_all_kinds_have_names() -> None:
    names = [function_name(function) for function in (np.log, np.sqrt, len, dict, recursive, Scaler.scale, np.asarray)]
    assert len(set(names)) == len(names)
