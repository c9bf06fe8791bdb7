"""Names of functions depend on their code alone, so that a conversion resumes after a restart."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_tfrecord.stores.zarr.fingerprint import function_parts


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
    assert function_parts(make(2.0)) == function_parts(make(2.0))
    assert function_parts(make(2.0)) != function_parts(make(3.0))


def test_functions_of_all_kinds_have_names() -> None:
    functions = (np.log, np.sqrt, len, dict, recursive, Scaler.scale, np.asarray, np.vectorize(recursive))
    names = [str(function_parts(function)) for function in functions]
    assert len(set(names)) == len(names)
    assert names == [str(function_parts(function)) for function in functions]


def test_parts_have_the_names_that_people_know() -> None:
    def scaled(blocks: dict[str, Any], offset: int = 1) -> dict[str, Any]:
        return {name: recursive(3) * block + offset + factor for name, block in blocks.items()}

    factor = 2
    assert set(function_parts(scaled)) == {
        "its code",
        "its defaults",
        "its variable 'factor'",
        "the global 'recursive'",
    }


# Changes of a script: the function keeps its name under the first change, and gets a new name under the others.
KINDS = {
    "code": ("def g(x): return x * 1\ndef f(b): return g(b)", "* 1", "+ 1"),
    "global": ("FACTOR = 2\ndef f(b): return b * FACTOR", "= 2", "= 3"),
    "default": ("def f(b, offset=1): return {n: (lambda x: x + offset)(v) for n, v in b.items()}", "=1", "=5"),
    "set of constants": ("def f(b): return [n for n in b if n in {'a', 'b', 'c'}]", "'c'", "'d'"),
    "enum": ("import enum\nclass Mode(enum.Enum):\n    HALF = 1\ndef f(b): return Mode.HALF.value", "= 1", "= 2"),
    "flag": (
        "import enum\nclass Mode(enum.Flag):\n    A = 1\n    B = 2\nM = Mode.A | Mode.B\ndef f(b): return M",
        "= 2",
        "= 4",
    ),
    "static": ("class S:\n    @staticmethod\n    def g(x): return x * 1\ndef f(b): return S.g(b)", "* 1", "* 3"),
    "classmethod": (
        "class S:\n    @classmethod\n    def g(cls, x): return x * 1\ndef f(b): return S.g(b)",
        "* 1",
        "* 3",
    ),
    "cached": ("import functools\n@functools.lru_cache\ndef g(x): return x * 1\ndef f(b): return g(2)", "* 1", "* 3"),
    "property": (
        "class S:\n    @property\n    def k(self): return 1\n    def __call__(self, b): return self.k\nf = S()",
        "return 1",
        "return 2",
    ),
    "base": ("class A:\n    def g(self): return 1\nclass S(A): pass\ndef f(b): return S().g()", "return 1", "return 2"),
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass C:\n    k: int = 2\n"
        "CONFIG = C()\ndef f(b): return CONFIG.k",
        "int = 2",
        "int = 3",
    ),
    "instance": (
        "class C:\n    def __init__(self): self.k = 2\nCONFIG = C()\ndef f(b): return CONFIG.k",
        "k = 2",
        "k = 3",
    ),
    "abstract": ("import abc\nclass C(abc.ABC):\n    k = 2\ndef f(b): return C.k", "k = 2", "k = 3"),
    "bound": ("class C:\n    k = 2\n    def run(self, b): return self.k\nf = C().run", "k = 2", "k = 3"),
    "frozenset": ("KEYS = frozenset(['a', 'b', 'c', 'd'])\ndef f(b): return KEYS", "'d'", "'e'"),
    "cycle": ("class C: pass\nC.me = [C, {'k': 2}]\nC.me.append(C.me)\ndef f(b): return C.me", "2", "3"),
    "array": ("import numpy as np\nA = np.arange(5)\ndef f(b): return A", "(5)", "(6)"),
}


NAMES = """
import json, os, sys
from dask_tfrecord.stores.zarr.fingerprint import function_parts

def names(script):
    script_globals = {"__name__": "__main__"}
    # As in a notebook: each cell is compiled under a file name that contains the process id.
    exec(compile(script, f"/tmp/{os.getpid()}.py", "exec"), script_globals)
    return function_parts(script_globals["f"])

print(json.dumps([names(script) for script in json.load(sys.stdin)]))
"""


def names_in_process(folder: Path, scripts: list[str]) -> list[dict[str, str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", NAMES]
    done = subprocess.run(
        command, input=json.dumps(scripts), capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.stderr == ""
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.integration
@pytest.mark.slow
def test_functions_of_scripts(tmp_path: Path) -> None:
    scripts = [script for script, _, _ in KINDS.values()]
    moved = [f"\n\n# moved\n{script}" for script in scripts]
    others = [script.replace(old, new) for script, old, new in KINDS.values()]
    first, again, changed = (names_in_process(tmp_path, each) for each in (scripts, moved, others))
    assert dict(zip(KINDS, first, strict=True)) == dict(zip(KINDS, again, strict=True))
    assert not [kind for kind, one, other in zip(KINDS, first, changed, strict=True) if one == other]


def test_objects_without_a_name() -> None:
    class Odd:
        def __reduce_ex__(self, _: object) -> Any:
            raise RuntimeError("not me")

        def __dask_tokenize__(self) -> Any:
            raise RuntimeError("nor so")

    odd = Odd()
    assert function_parts(lambda blocks: odd) != function_parts(lambda blocks: None)
