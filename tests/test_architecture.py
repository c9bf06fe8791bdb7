"""The way of the data, kept: who imports whom, how long things get, and that every module says what it is.

storage → records → columns → arrays → stores is the folder list, and imports only go from right to left.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dask_tfrecord"
# Each may import itself and what stands before it.
ORDER = ["errors", "features", "schema", "messages", "storage", "records", "columns", "arrays", "stores"]
# The outermost modules: none of the ORDER may import these.
OUTSIDE = {"__init__", "cli", "commands", "testing"}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
# Who alone may import a package from outside, by the layer or the file.
ALLOWED = {
    "dask": {"arrays", "stores", "cli", "commands"},
    "distributed": {"arrays", "stores", "cli", "commands"},
    "zarr": {"stores/stored.py", "stores/zarr.py", "stores/zarr_settings.py"},
    "zarrs": {"stores/zarr.py"},
    "numcodecs": {"stores/zarr.py"},
    "virtualizarr": {"stores/manifests.py"},
    "google": {"messages"},
    "tensorflow": set[str](),
}


def layer(module: Path) -> str:
    """The folder, or the module itself where it lies at the top."""
    return module.parts[0].removesuffix(".py")


def imports(source: str, module: Path) -> set[str]:
    """Absolute names of all that `source`, the text of `module`, imports: at the top, in functions, for types only."""
    package = ["dask_tfrecord", *module.parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            # `from dask_tfrecord import _native` imports a module, not a name of the package.
            names |= {f"{origin}.{alias.name}" for alias in node.names} if origin == "dask_tfrecord" else {origin}
    return names


def imported(module: Path) -> set[str]:
    return imports((PACKAGE / module).read_text("utf-8"), module)


def siblings(module: Path) -> set[str]:
    """The layers of this package that `module` imports."""
    return {name.split(".")[1] for name in imported(module) if name.startswith("dask_tfrecord.")}


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import dask.array as da
from dask_tfrecord import _native
from ..errors import TFRecordError
from . import framing
def late():
    from dask_tfrecord.stores.zarr import to_zarr
"""
    assert imports(source, Path("records/index.py")) == {
        "dask.array",
        "dask_tfrecord._native",
        "dask_tfrecord.errors",
        "dask_tfrecord.records",
        "dask_tfrecord.stores.zarr",
    }


def test_every_module_has_its_place_on_the_way() -> None:
    layers = {layer(module) for module in MODULES}
    assert layers >= set(ORDER)
    assert layers <= {*ORDER, *OUTSIDE}
    assert not [str(module) for module in MODULES if "util" in module.stem or "helper" in module.stem]


@pytest.mark.parametrize("module", [m for m in MODULES if layer(m) in ORDER], ids=str)
def test_imports_go_from_right_to_left(module: Path) -> None:
    before = ORDER[: ORDER.index(layer(module)) + 1]
    native = ["_native"] if layer(module) in {"records", "columns"} else []
    assert siblings(module) <= {*before, *native}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_packages_are_imported_only_where_they_belong(module: Path) -> None:
    roots = {name.split(".")[0] for name in imported(module)}
    for package, places in ALLOWED.items():
        if package in roots:
            assert places & {layer(module), module.as_posix()}, f"{module} may not import {package}"
    if "_native" in siblings(module):
        assert layer(module) in {"records", "columns"}, f"{module} may not import _native"


@pytest.mark.parametrize("module", [m for m in MODULES if layer(m) == "testing"], ids=str)
def test_the_oracle_shares_no_code_with_what_it_judges(module: Path) -> None:
    assert siblings(module) <= {"errors", "features", "schema", "messages", "testing"}
    # Of features the classes alone: how their arguments are read and spread is for the oracle to find out itself.
    assert not [name for name in imported(module) if name.startswith("dask_tfrecord.features.")]
    source = (PACKAGE / module).read_text("utf-8")
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(ast.parse(source))}
    assert not names & {"default_array", "from_tensorflow", "block_dtype", "block_shape", "item_dtype", "item_shape"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_say_what_they_are_and_stay_short(module: Path) -> None:
    source = (PACKAGE / module).read_text("utf-8")
    tree = ast.parse(source)
    assert ast.get_docstring(tree), f"{module} has no docstring"
    assert source.count("\n") <= 450, f"{module}: which two things is it?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert length(node) <= 60, f"{module}:{node.lineno} {node.name}: which two things does it do?"


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring not counted."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        text = function.body[0]
        assert text.end_lineno is not None
        lines -= text.end_lineno - text.lineno + 1
    return lines
