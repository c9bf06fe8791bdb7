"""Imports stay light, and the package still behaves like one with eager imports."""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import dask_tfrecord as dtf

# Third-party packages that a start may need; the other dependencies are too slow for it.
HEAVY = {
    "PIL",
    "simplejpeg",
    "crc32c",
    "dask",
    "distributed",
    "fsspec",
    "google",
    "numcodecs",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "xarray",
    "zarr",
}
WRITERS = {"PIL", "simplejpeg", "distributed", "numcodecs", "xarray", "zarr"}


def imported(code: str, **environment: str) -> set[str]:
    """Top-level modules of a process that has run some code."""
    script = f"import sys\ntry:\n    {code}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, **path, **environment}
    )
    return {name.split(".")[0] for name in done.stderr.split()} | set(done.stderr.split())


def command(*arguments: str) -> str:
    return f"sys.argv = {['dask-tfrecord', *arguments]}; from dask_tfrecord.cli.main import main; main()"


def test_importing_the_package_imports_no_dependency() -> None:
    modules = imported("import dask_tfrecord")
    assert "dask_tfrecord" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize(
    "name",
    [
        "read_tfrecord",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("Dataset", "infer_schema", "read_records", "FixedLenFeature")
        ),
    ],
)
def test_reading_imports_no_package_that_only_writing_or_a_cluster_needs(name: str) -> None:
    # dask.array imports some packages where they are installed.
    of_dask = imported("import dask.array")
    assert not (imported(f"from dask_tfrecord import {name}") - of_dask) & {
        *WRITERS,
        "dask.bag",
        "rich",
        "pandas",
        "pyarrow",
        "xarray",
        "argparse",
    }


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in ("info", "to-zarr", "copy", "verify"))]
)
def test_help_imports_neither_dask_nor_numpy(arguments: list[str]) -> None:
    modules = imported(command(*arguments))
    assert "click" in modules
    assert not modules & HEAVY


def test_shell_completion_imports_neither_dask_nor_numpy() -> None:
    completion = {"_DASK_TFRECORD_COMPLETE": "bash_complete", "COMP_WORDS": "dask-tfrecord to", "COMP_CWORD": "1"}
    modules = imported(command(), **completion)
    assert not modules & HEAVY


def test_type_checkers_see_the_names_that_the_package_imports_on_first_use() -> None:
    source = Path(dtf.__file__).read_text("utf-8")
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: str(node.module).removeprefix("dask_tfrecord.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == dtf._MODULES
    assert sorted(seen) == sorted(dtf.__all__)


def test_every_public_name_is_there_and_listed() -> None:
    namespace: dict[str, object] = {}
    exec("from dask_tfrecord import *", namespace)
    for name in dtf.__all__:
        assert getattr(dtf, name) is namespace[name]
        assert name in dir(dtf)
    assert dtf.errors.FeatureError is dtf.FeatureError
    assert {"errors", "features", "messages", "schema"} <= set(dir(dtf))


@pytest.mark.parametrize("name", ["plan_zarr", "to_parquet", "to_tfrecord", "to_zarr"])
def test_methods_have_the_signatures_of_functions(name: str) -> None:
    function, method = (inspect.signature(getattr(owner, name)) for owner in (dtf, dtf.Dataset))
    assert list(function.parameters.values())[1:] == list(method.parameters.values())[1:]
    assert function.return_annotation == method.return_annotation
    kinds = {parameter.kind for parameter in method.parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dask_tfrecord' has no attribute 'read_tfrecords'"):
        dtf.read_tfrecords  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from dask_tfrecord import nothing  # noqa: F401


@pytest.mark.slow
def test_a_process_that_unpickles_can_write_what_it_got(golden: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.write_bytes(pickle.dumps(dtf.read_tfrecord(golden / "scalars.tfrecord")))
    code = "import os, pathlib, pickle; pickle.loads(pathlib.Path(os.environ['PICKLED']).read_bytes())"
    assert "zarr" in imported(
        f"{code}.to_zarr(os.environ['STORE'])", PICKLED=str(pickled), STORE=str(tmp_path / "a.zarr")
    )
    assert dtf.from_zarr(tmp_path / "a.zarr").nrows
