"""Imports stay light, and the package still behaves like one with eager imports."""

import ast
import inspect
import pickle
from importlib import metadata
from pathlib import Path

import pytest
from support.engine import PLANNED
from support.programs import run_python

import dask_tfrecord as dtf

# Third-party packages that a start may need; the other dependencies are too slow for it.
WRITERS = {"PIL", "simplejpeg", "distributed", "numcodecs", "xarray", "zarr"}
HEAVY = WRITERS | {"crc32c", "dask", "fsspec", "google", "numpy", "pandas", "pyarrow", "rich"}


def imported(code: str, **environment: str) -> set[str]:
    """Return the modules of a process that has run some code, and their packages."""
    script = f"import sys\ntry:\n    {code}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    names = run_python("-c", script, **environment).stderr.split()
    return {name.split(".")[0] for name in names} | set(names)


@pytest.mark.integration
def test_reading_imports_no_package_that_only_writing_or_a_cluster_needs() -> None:
    names = "read_tfrecord, Dataset, infer_schema, read_records, FixedLenFeature"
    # dask.array imports some packages where they are installed.
    code = f"import sys, dask.array; before = {{*sys.modules}}; from dask_tfrecord import {names}"
    found = set(run_python("-c", f"{code}; print(*{{*sys.modules}} - before)").stdout.split())
    assert "dask_tfrecord.rows" in found
    assert not {name.split(".")[0] for name in found} & {*WRITERS, "rich", "pandas", "pyarrow", "argparse"}
    assert "dask.bag" not in found


VIEW = """
import sys, urllib.request
from dask_tfrecord.extras.view.opened import BlockCache, open_path
from dask_tfrecord.extras.view.server import Server

with Server([open_path(sys.argv[1], BlockCache())]) as server:
    for name in ("overview", "rows?stop=50", "shard"):
        print(len(urllib.request.urlopen(f"{server.url}api/{name}").read()))
print(*sys.modules)
"""


@pytest.mark.integration
def test_the_first_rows_of_a_view_import_no_arrays(golden: Path) -> None:
    first, second, third, modules = run_python("-c", VIEW, golden / "scalars.tfrecord").stdout.strip().split("\n")
    assert min(map(int, (first, second, third))) > 100
    names = set(modules.split())
    assert "dask_tfrecord.extras.view.cells" in names
    assert not {name.split(".")[0] for name in names} & {*WRITERS, "pandas", "pyarrow"}
    assert "dask.array" not in names


PART = """
import sys
import dask_tfrecord as dtf

getattr(dtf, sys.argv[1]).open(sys.argv[2]).write(0)
print(*sys.modules)
"""


@pytest.mark.integration
@pytest.mark.skipif(PLANNED, reason="the planner is imported at once")
@pytest.mark.parametrize("name", ["ZarrJob", "TFRecordJob"])
def test_a_part_imports_neither_arrays_nor_clusters(name: str, golden: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(golden / "scalars.tfrecord")
    job = getattr(dtf, name).begin(ds, f"{tmp_path}/written", parts=1)
    modules = set(run_python("-c", PART, name, f"{tmp_path}/written").stdout.split())
    assert not {each.partition(".")[0] for each in modules} & {"distributed", "pandas", "pyarrow", "xarray"}
    assert "dask.array" not in modules
    assert job.status().missing == ()


@pytest.mark.integration
def test_facts_about_a_file_import_neither_rows_nor_arrays(golden: Path) -> None:
    command = f"sys.argv = ['dask-tfrecord', 'info', {str(golden / 'scalars.tfrecord')!r}]"
    modules = imported(f"{command}; from dask_tfrecord.cli.main import main; main()")
    assert "dask_tfrecord.cli.info_table" in modules
    assert not modules & {*WRITERS, "pandas", "pyarrow", "dask.array", "dask.bag", "dask.dataframe"}
    assert not modules & {f"dask_tfrecord.{name}" for name in ("rows.rows", "rows.read", "columns.decoder", "stores")}


COMPLETION = {"_DASK_TFRECORD_COMPLETE": "bash_complete", "COMP_WORDS": "dask-tfrecord to", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (None, {}),
        *((arguments, {}) for arguments in (["--help"], ["--version"], ["info", "--help"], ["to-zarr", "--help"])),
        ([], COMPLETION),
    ],
)
def test_a_start_imports_no_dependency(arguments: list[str] | None, environment: dict[str, str]) -> None:
    code = f"sys.argv = {['dask-tfrecord', *(arguments or [])]}; from dask_tfrecord.cli.main import main; main()"
    modules = imported("import dask_tfrecord" if arguments is None else code, **environment)
    assert ("dask_tfrecord" if arguments is None else "click") in modules
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
    assert {"__version__", "errors", "features", "messages", "schema"} <= set(dir(dtf))
    assert dtf.__version__ == metadata.version("dask-tfrecord")


@pytest.mark.parametrize("name", ["plan_zarr", "to_lerobot", "to_parquet", "to_tfrecord", "to_zarr"])
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
@pytest.mark.integration
def test_a_process_that_unpickles_can_write_what_it_got(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "pickled").write_bytes(pickle.dumps(dtf.read_tfrecord(golden / "scalars.tfrecord")))
    code = "import pathlib, pickle, sys; pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()).to_zarr(sys.argv[2])"
    run_python("-c", code, tmp_path / "pickled", tmp_path / "a.zarr")
    assert dtf.from_zarr(tmp_path / "a.zarr").nrows


@pytest.mark.integration
def test_all_names_are_imported_at_once_where_asked() -> None:
    code = "import dask_tfrecord as dtf; print({*dtf.__all__} - {*vars(dtf)})"
    assert run_python("-c", code, EAGER_IMPORT="1").stdout.strip() == "set()"


def test_a_report_of_a_bug_has_all_versions(capsys: pytest.CaptureFixture[str]) -> None:
    dtf.show_versions()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["dask-tfrecord"] == metadata.version("dask-tfrecord")
    assert {"system", "python", "numpy", "zarr", "pyarrow"} <= set(lines)
