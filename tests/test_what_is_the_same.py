"""Files, functions and classes are the same by what they are, whatever their spelling, process or file name is."""

from __future__ import annotations

import collections
import ctypes
import functools
import json
import operator
import os
import struct
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import dask
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import commands
from support.programs import run_python

import dask_tfrecord as dtf
from dask_tfrecord.features import ArrayFeature
from dask_tfrecord.features.registry import FEATURES
from dask_tfrecord.identity import canonical_path, file_key, function_parts


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
    "open arguments": ("def f(v): return len(v)", "(v):", "(*v):"),
    "arguments by name": ("def f(a, b=1): return a + b", "(a, b", "(a, *, b"),
    "handler": (
        "def f(b):\n try:\n  x = b[0]\n  y = b[1]\n except KeyError: return 0\n return y",
        " try:\n  x = b[0]\n  y",
        " x = b[0]\n try:\n  y",
    ),
    "method of an enum": (
        "import enum\nclass Mode(enum.Enum):\n    A = 1\n    def scale(self, v): return v * 2\nMODE = Mode.A\n"
        "def f(b): return MODE.scale(b)",
        "* 2",
        "* 3",
    ),
    "attribute of a member": (
        "import enum\nclass Mode(enum.Enum):\n    A = 1\n    def __init__(self, v): self.k = v * 2\nMODE = Mode.A\n"
        "def f(b): return MODE.k",
        "* 2",
        "* 3",
    ),
    "descriptor": (
        "class Scale:\n    def __init__(self, k): self.k = k\n    def __get__(self, o, kind): return self.k\n"
        "    def __set__(self, o, value): pass\nclass C:\n    by = Scale(2)\nc = C()\ndef f(b): return c.by",
        "Scale(2)",
        "Scale(3)",
    ),
    "setter": (
        "class C:\n    @property\n    def k(self): return self.v\n    @k.setter\n    def k(self, v): self.v = v * 2\n"
        "def f(b):\n    c = C()\n    c.k = b\n    return c.k",
        "* 2",
        "* 3",
    ),
    "cached property": (
        "import functools\nclass C:\n    @functools.cached_property\n    def k(self): return 2\nf = lambda b: C().k",
        "return 2",
        "return 3",
    ),
    "private slot": (
        "class C:\n    __slots__ = ('__k',)\n    def __init__(self): self.__k = 2\n"
        "    def __call__(self, b): return self.__k\nf = C()",
        "= 2",
        "= 3",
    ),
    "one slot": ("class C:\n    __slots__ = 'key'\nc = C()\nc.key = 2\ndef f(b): return c.key", "= 2", "= 3"),
    "slot behind a property": (
        "class A:\n    __slots__ = ('k',)\nclass C(A):\n    @property\n    def k(self): return A.k.__get__(self)\n"
        "c = C()\nA.k.__set__(c, 2)\ndef f(b): return c.k",
        "c, 2",
        "c, 3",
    ),
    "list with a class": ("class L(list): pass\nKEYS = L([2])\ndef f(b): return KEYS", "[2]", "[3]"),
    "number with a class": ("class N(int): pass\nK = N(2)\ndef f(b): return K", "N(2)", "N(3)"),
    "named tuple": (
        "import collections\nP = collections.namedtuple('P', 'a b')\nK = P(1, 2)\ndef f(b): return K.b",
        "2)",
        "3)",
    ),
    "decorator": (
        "import functools\ndef by(k):\n    def wrap(g):\n        @functools.wraps(g)\n"
        "        def inner(b): return g(b) * k\n        return inner\n    return wrap\n@by(2)\ndef f(b): return b",
        "by(2)",
        "by(3)",
    ),
    "decorator with a class": (
        "import functools\nclass By:\n    def __init__(self, g, k):\n        functools.update_wrapper(self, g)\n"
        "        self.g, self.k = g, k\n    def __call__(self, b): return self.g(b) * self.k\nf = By(lambda b: b, 2)",
        ", 2)",
        ", 3)",
    ),
    "partial with a class": (
        "import functools\nclass P(functools.partial):\n    def __call__(self, b): return self.func(b) * 2\n"
        "f = P(lambda b: b)",
        "* 2",
        "* 3",
    ),
    "function of another module": (
        "import types\nmade = types.FunctionType((lambda b: b * 2).__code__, {'__name__': 'other'})\n"
        "def f(b): return made(b)",
        "* 2",
        "* 3",
    ),
    "attribute of a function": ("def f(b): return b * f.k\nf.k = 2", "= 2", "= 3"),
    "metaclass": (
        "class M(type):\n    def __call__(cls): return 2\nclass C(metaclass=M): pass\ndef f(b): return C()",
        "return 2",
        "return 3",
    ),
    "texts in an array": (
        "import numpy as np\nA = np.array(['a-b', 'c'], object)\ndef f(b): return A",
        "'a-b', 'c'",
        "'a', 'b-c'",
    ),
    "item": ("import operator\nf = operator.itemgetter(0, 1)", "0, 1", "1, 0"),
    "method by name": ("import operator\nf = operator.methodcaller('get', 1, k=2)", "=2", "=3"),
    "attribute by name": ("import operator\nf = operator.attrgetter('a.b')", "a.b", "a.c"),
    "method of C": ("f = {'a': 2}.get", "2", "3"),
    "operator of a number": ("f = (2).__mul__", "2", "3"),
    "generator of numbers": ("import numpy as np\nf = np.random.default_rng(2).normal", "2", "3"),
    "pattern": ("import re\nf = re.compile('a+').search", "a+", "a*"),
    "array": ("import numpy as np\nA = np.arange(5)\ndef f(b): return A", "(5)", "(6)"),
}


def parts_of(script: str) -> dict[str, str]:
    """Identify the function in a script that runs under a file name of its own, as cells of notebooks do."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, f"/tmp/{os.getpid()}-{id(names)}.py", "exec"), names)
    return function_parts(names["f"])


@pytest.mark.parametrize("kind", KINDS)
def test_changed_functions_have_other_names(kind: str) -> None:
    script, old, new = KINDS[kind]
    assert parts_of(script) == parts_of(f"\n\n# moved\n{script}") != parts_of(script.replace(old, new))


def described(depth: int = 3) -> st.SearchStrategy[Any]:
    """Descriptions of values: a kind, and descriptions of what is in it."""
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(0, 3),
        st.sampled_from([0.0, -0.0, 1.0]),
        st.sampled_from("ab"),
        st.just(b"a"),
    ).map(lambda value: ("plain", value))
    if not depth:
        return plain
    inner = st.lists(described(depth - 1), max_size=2)
    return st.one_of(plain, st.tuples(st.sampled_from(sorted(MADE)), inner))


class Held:
    """Object with attributes."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def method(self) -> Any:
        return self.values


MADE: dict[str, Callable[..., Any]] = {
    "tuple": lambda *values: values,
    "list": lambda *values: [*values],
    "dict": lambda *values: dict(enumerate(values)),
    "deque": lambda *values: collections.deque(values),
    "default dict": lambda *values: collections.defaultdict(list, enumerate(values)),
    "slice": lambda *values: slice(values),
    "partial": lambda *values: functools.partial(len, *values),
    "item": lambda *values: operator.itemgetter(None, *values),
    "method": lambda *values: operator.methodcaller("get", *values),
    "iterator": lambda *values: iter(values),
    "bound": lambda *values: [*values].count,
    "object": lambda *values: Held(*values),
    "method of an object": lambda *values: Held(*values).method,
    "namespace": lambda *values: types.SimpleNamespace(values=values),
    "function": lambda *values: lambda: values,
    "default": lambda *values: (lambda given: lambda x=given: x)(values),
    "array": lambda *values: np.fromiter(values, object, len(values)),
}


def made(description: tuple[str, Any]) -> Any:
    kind, inside = description
    return inside if kind == "plain" else MADE[kind](*map(made, inside))


@given(described(), described())
def test_values_of_functions_are_the_same_if_their_descriptions_are(one: Any, other: Any) -> None:
    first, again, second = (function_parts(functools.partial(len, made(each))) for each in (one, one, other))
    assert first == again
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    assert (first == second) == (repr(one) == repr(other))


class Elsewhere:
    """Descriptor that holds the attributes of objects itself."""

    def __init__(self) -> None:
        self.values = weakref.WeakKeyDictionary[Any, Any]()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.values[owner]

    def __set__(self, owner: Any, value: Any) -> None:
        self.values[owner] = value


class Configured:
    """Object whose own attributes are none."""

    by = Elsewhere()

    def __init__(self, by: int) -> None:
        self.by = by


def test_hidden_state_is_never_shared() -> None:
    made = [np.frompyfunc(lambda x: x, 1, 1), np.frompyfunc(lambda x: x, 1, 1), (x for x in "ab"), (x for x in "ab")]
    made += [memoryview(b"a").tobytes, threading.Lock(), threading.Lock(), ctypes.CFUNCTYPE(None)(lambda: None)]
    made += [struct.Struct("<i").unpack, struct.Struct(">i").unpack, zlib.decompressobj(15), zlib.decompressobj(-15)]
    made += [Configured(1), Configured(2)]
    held = [[value] for value in made]
    names = [function_parts(lambda _, each=each: each)["its defaults"] for each in held]
    assert len({*names}) == len(names)
    assert names == [function_parts(lambda _, each=each: each)["its defaults"] for each in held]


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A shard with two values of two bytes."""
    path = str(tmp_path / "a.tfrecord")
    values = np.array([b"\1\2", b"\3\4"], object)
    dtf.to_tfrecord({"x": values}, path, features={"x": dtf.FixedLenFeature((), "bytes")})
    return path


def _numbers(call: Callable[[int], int]) -> Any:
    return lambda value: np.array([*map(call, value)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (operator.itemgetter(0, 1), operator.itemgetter(1, 0)),
        (_numbers(functools.partial(max, 1)), _numbers(functools.partial(min, 1))),
    ],
)
def test_columns_of_other_functions_are_computed_each(pairs: str, one: Any, other: Any, tmp_path: Path) -> None:
    def read(function: Any) -> dtf.Dataset:
        return dtf.read_tfrecord(pairs, {"x": dtf.FunctionFeature(function, (2,), "int64")})

    together = dask.compute(read(one)["x"], read(other)["x"])
    assert [each.tolist() for each in together] == [read(each)["x"].compute().tolist() for each in (one, other)]
    read(one).to_zarr(tmp_path / "x.zarr", resume=True)
    read(one).to_zarr(tmp_path / "x.zarr", resume=True)
    with pytest.raises(dtf.errors.ResumeError, match="FunctionFeature"):
        read(other).to_zarr(tmp_path / "x.zarr", resume=True)


def test_columns_of_other_functions_of_blocks_are_computed_each(pairs: str) -> None:
    columns = []
    for get in (operator.itemgetter("x", "y"), operator.itemgetter("y", "x")):
        rows = dtf.Dataset.from_arrays({"x": np.arange(2), "y": np.arange(2, 4)})
        columns.append(rows.map_blocks(lambda blocks, get=get: {"z": get(blocks)[0]})["z"])
    assert [each.tolist() for each in dask.compute(*columns)] == [[0, 1], [2, 3]]


CLASS = """
FACTOR = 1
def helper(v): return v * 1
@dtf.register_feature
@dataclass(frozen=True, repr=False)
class ScaledFeature(ArrayFeature):
    count: int | None = None
    shape: ClassVar = (2,)
    dtype: ClassVar = "int64"
    def decode_value(self, value): return helper(np.frombuffer(value, "u1").astype("int64") * FACTOR + 0)
"""


@pytest.mark.parametrize("change", [("+ 0", "+ 5"), ("FACTOR = 1", "FACTOR = 3"), ("v * 1", "v * 7")])
@pytest.mark.parametrize("module", ["__main__", "module_of_a_user"])
def test_a_class_that_is_registered_again_is_another_one(
    pairs: str, tmp_path: Path, change: tuple[str, str], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(source: str) -> dtf.Dataset:
        names: dict[str, Any] = {
            **{"dtf": dtf, "np": np, "dataclass": dataclass, "ClassVar": ClassVar, "ArrayFeature": ArrayFeature},
            "__name__": module,
        }
        exec(source, names)
        return dtf.read_tfrecord(pairs, {"x": names["ScaledFeature"]()})

    monkeypatch.setitem(sys.modules, "module_of_a_user", types.ModuleType("module_of_a_user"))
    try:
        old = cell(CLASS)
        old.to_zarr(tmp_path / "x.zarr", resume=True)
        cell(CLASS).to_zarr(tmp_path / "x.zarr", resume=True)
        new = cell(CLASS.replace(*change))
        alone = [each["x"].compute().tolist() for each in (old, new)]
        assert alone[0] != alone[1]
        assert [each.tolist() for each in dask.compute(old["x"], new["x"])] == alone
        with pytest.raises(dtf.errors.ResumeError, match="the code of feature class ScaledFeature has changed"):
            new.to_zarr(tmp_path / "x.zarr", resume=True)
    finally:
        FEATURES.pop("ScaledFeature")


# Ways to spell `a/s-0.tfrecord` in `work`, and its folder; hard links lack a folder.
SPELLINGS = {
    "plain": "{root}/a",
    "relative": "../a",
    "dots": "{root}/work/.././a",
    "link": "{root}/link",
    "link to a link": "../again",
    "dots behind a link": "{root}/deep/../a",
    "hard links": "{root}/hard",
    "links to files": "{root}/soft",
    "URL": "file://{root}/link",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with two shards, and links to it and to its files."""
    root = str(tmp_path)
    for name in ("a", "work", "hard", "soft", "inside/of"):
        Path(root, name).mkdir(parents=True)
    dtf.to_tfrecord({"x": np.arange(6)}, f"{root}/a/s-{{shard}}.tfrecord", records_per_shard=3)
    Path(root, "link").symlink_to(f"{root}/a")
    Path(root, "again").symlink_to("link")
    Path(root, "inside/a").symlink_to(f"{root}/a")
    Path(root, "deep").symlink_to(f"{root}/inside/of")
    for number in range(2):
        Path(root, "hard", f"h-{number}.tfrecord").hardlink_to(f"{root}/a/s-{number}.tfrecord")
        Path(root, "soft", f"l-{number}.tfrecord").symlink_to(f"{root}/a/s-{number}.tfrecord")
    monkeypatch.chdir(Path(root, "work"))
    return root


@given(
    st.lists(
        st.sampled_from(["a", "work", "link", "again", "deep", "inside", "of", "..", ".", "s-0.tfrecord"]), max_size=6
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_of_files_agree_with_the_system(tree: str, parts: list[str]) -> None:
    path = "/".join([tree, *parts])
    known = [f"{tree}/{name}" for name in ("", "a", "work", "inside", "inside/of", "a/s-0.tfrecord")]
    same = [Path(path).exists() and Path(path).samefile(each) for each in known]
    assert [file_key(path) == file_key(each) for each in known] == same
    assert not Path(path).exists() or file_key(canonical_path(path)) == file_key(path)
    # What does not exist yet is found through its folder.
    if Path(path).is_dir():
        assert file_key(f"{path}/new") == file_key(f"{os.path.realpath(path)}/new")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_is_the_same_whatever_its_spelling(tree: str, spelling: str) -> None:
    folder = SPELLINGS[spelling].format(root=tree)
    shards = f"{folder}/*.tfrecord"
    dtf.read_tfrecord(f"{tree}/a/*").to_zarr("x.zarr", resume=True)
    dtf.read_tfrecord(shards).to_zarr("x.zarr", resume=True)
    dtf.read_tfrecord(f"{tree}/a/*").to_zarr("x.zarr", append_dim="record", resume=True)
    dtf.read_tfrecord(shards).to_zarr("x.zarr", append_dim="record", resume=True)
    assert dtf.from_zarr("x.zarr").nrows == 12
    assert commands.run("to-zarr", shards, "x.zarr", "--append").output.endswith("nothing is left to append\n")
    rows = dtf.read_tfrecord(shards)
    with pytest.raises(ValueError, match="can't be replaced by what is read from it"):
        rows.rows[:2].to_tfrecord(f"{tree}/a/s-{{shard}}.tfrecord", mode="w", records_per_shard=1)
    damaged, copy = Path(tree, "a/s-0.tfrecord"), min(Path(folder.removeprefix("file://")).glob("*0.tfrecord"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = damaged.read_bytes()
    with pytest.raises(dtf.TFRecordError, match="would replace the damaged shard"):
        dtf.repair(copy, damaged)
    assert damaged.read_bytes() == before
    if spelling not in ("hard links", "links to files"):
        with pytest.raises(ValueError, match="hold every record twice"):
            dtf.read_tfrecord(f"{tree}/a/s-1*").to_tfrecord(f"{folder}/")
        with pytest.raises(ValueError, match="hold every record twice"):
            dtf.copy_tfrecord(f"{tree}/a/s-1*", folder)


def test_a_store_that_is_read_is_not_replaced(tree: str) -> None:
    dtf.read_tfrecord("../a/*").to_zarr("../a/x.zarr")
    for spelled in ("../link/x.zarr", "../work/../a/x.zarr", f"file://{tree}/again/x.zarr"):
        with pytest.raises(ValueError, match="the rows are read from it"):
            dtf.from_zarr(spelled).to_zarr(f"{tree}/a/x.zarr", mode="w")
    # Resumed from the store, whatever its spelling is.
    dtf.from_zarr("../a/x.zarr").to_zarr("y.zarr", resume=True)
    dtf.from_zarr("../link/x.zarr").to_zarr("y.zarr", resume=True)


SAME_URLS = [
    ("s3://bucket/a/x", "s3a://bucket/a/x", "S3://user@bucket/a/x", "simplecache::s3://bucket/a/x"),
    ("s3://bucket/a//x",),
    ("s3://bucket/a/../x",),
    ("gs://bucket/x", "gcs://bucket/x"),
    ("memory://a/x", "memory:///a/x", "memory:/" + "/a/x/"),
    (
        *("https://Host.org/a/x", "https://host.org:443/b/../a/x", "https://u:p@host.org/a/x?X-Amz-Signature=1"),
        *("https://host.org/%61/x", "https://host.org/a/x?sig=2"),
    ),
    ("https://host.org/a/x?file=1", "https://host.org/a/x?file=1&Expires=3"),
    ("https://host.org/a/x?file=2",),
    ("https://host.org:8443/a/x",),
    ("http://host.org/a/x",),
    ("zip://a/x::s3://bucket/z.zip", "zip://a/x::simplecache::s3://bucket/z.zip"),
    ("zip://a/y::s3://bucket/z.zip",),
]


def test_urls_of_one_object_have_one_key() -> None:
    keys = [{file_key(url) for url in urls} for urls in SAME_URLS]
    assert [len(each) for each in keys] == [1] * len(keys)
    assert len(set.union(*keys)) == len(keys)


def parts_of_all() -> dict[str, dict[str, str]]:
    return {kind: parts_of(script) for kind, (script, _, _) in KINDS.items()}


@pytest.mark.integration
@pytest.mark.slow
def test_another_process_gives_the_same_names() -> None:
    done = run_python("-c", "import json, test_what_is_the_same as named; print(json.dumps(named.parts_of_all()))")
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
