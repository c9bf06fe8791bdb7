"""Names of functions depend on their code alone, so that a conversion resumes after a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from support.programs import run_python

from dask_tfrecord.function_parts import function_parts


def recursive(depth: int) -> int:
    return recursive(depth - 1) if depth else 0


def test_functions_of_all_kinds_have_names() -> None:
    functions = (np.log, np.sqrt, len, dict, recursive, Path.exists, np.asarray, np.vectorize(recursive))
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


# Scripts whose function `f` gets another name by a change of their text.
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
    "closure": ("def made(value): return lambda b: b * value\nf = made(2.0)", "2.0", "3.0"),
    "partial": ("import functools\ndef g(b, k): return b * k\nf = functools.partial(g, k=2.0)", "2.0", "3.0"),
    "array in a dict": ("import numpy as np\nT = {'a': np.full(3, 2.0)}\ndef f(b): return b * T", "2.0", "3.0"),
    "array": ("import numpy as np\nA = np.arange(5)\ndef f(b): return A", "(5)", "(6)"),
}


def parts_of(script: str) -> dict[str, str]:
    """Return the parts of the function of a script that runs under a file name of its own, as cells of notebooks do."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, f"/tmp/{os.getpid()}-{id(names)}.py", "exec"), names)
    return function_parts(names["f"])


@pytest.mark.parametrize("kind", KINDS)
def test_changed_functions_have_other_names(kind: str) -> None:
    script, old, new = KINDS[kind]
    assert parts_of(script) == parts_of(f"\n\n# moved\n{script}") != parts_of(script.replace(old, new))


def parts_of_all() -> dict[str, dict[str, str]]:
    return {kind: parts_of(script) for kind, (script, _, _) in KINDS.items()}


@pytest.mark.integration
@pytest.mark.slow
def test_another_process_gives_the_same_names() -> None:
    done = run_python("-c", "import json, test_function_names as named; print(json.dumps(named.parts_of_all()))")
    assert done.stderr == ""
    assert json.loads(done.stdout) == parts_of_all()


def test_objects_without_a_name() -> None:
    class Odd:
        def __reduce_ex__(self, _: object) -> Any:
            raise RuntimeError("not me")

        def __dask_tokenize__(self) -> Any:
            raise RuntimeError("nor so")

    odd = Odd()
    assert function_parts(lambda blocks: odd) != function_parts(lambda blocks: None)


def test_pickling_an_object_keeps_its_name() -> None:
    names: dict[str, Any] = {"__name__": "module_of_a_user"}
    exec("class Scale:\n    by = 2\nscale = Scale()\ndef f(b): return scale.by * b", names)
    before = function_parts(names["f"])
    # The first pickle adds an attribute to the class.
    cloudpickle.dumps(names["scale"])
    assert function_parts(names["f"]) == before
