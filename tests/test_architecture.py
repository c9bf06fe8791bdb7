"""Layout of the package: import order, absence of cycles, and where third-party packages are used.

The rooms follow the data: shards → records → features → columns → rows → stores. Imports go from right to left only.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dask_tfrecord
from dask_tfrecord.features.registry import FEATURES

PACKAGE = Path(dask_tfrecord.__file__).parent
ORACLE = Path(__file__).parent / "oracle"
# Each package or module imports only itself and what precedes it. Sub-packages come after the modules of their package.
ORDER = [
    "errors",
    "advice",
    "plugins",
    "options",
    "markup",
    "settings",
    "identity",
    "messages",
    "blocks",
    "shards",
    "records",
    "features",
    "columns",
    "rows",
    "stores",
    "stores.zarr",
    "stores.virtual",
    "stores.files",
    "extras",
    "dataset",
    "cli",
]
# `__init__` imports everything, `__main__` the command line.
OUTSIDE = {"__init__", "__main__"}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
# The only packages or modules that import a third-party package.
ALLOWED = {
    "dask": {"settings", "identity", "rows", "stores", "extras", "dataset", "cli"},
    "dask_array": {"rows/engine.py"},
    "distributed": {"rows", "stores", "cli"},
    "zarr": {"stores/zarr"},
    "zarrs": {"stores/zarr"},
    "numcodecs": {"stores/zarr"},
    "virtualizarr": {"stores/virtual"},
    "av": {"extras/lerobot.py"},
    "pyarrow": {
        "rows/arrow.py",
        "rows/inputs.py",
        "stores/files/parquet.py",
        "extras/lerobot.py",
        "extras/interop/arrow.py",
    },
    "awkward": {"extras/interop/awkward.py"},
    "polars": {"extras/interop/polars.py"},
    # The methods of `Dataset` name its type.
    "xarray": {"extras/interop", "dataset/dataset.py"},
    "PIL": {"features/images", "extras/preview.py", "extras/view"},
    "starlette": {"extras/view"},
    "uvicorn": {"extras/view"},
    "simplejpeg": {"features/images/codecs.py"},
    "google": {"messages", "features/message_types.py"},
    "tensorflow": set[str](),
}


def dotted(module: Path) -> str:
    """Name of a module within the package, for example ``stores.zarr.write``."""
    return ".".join(module.with_suffix("").parts).removesuffix(".__init__")


IMPORT = re.compile(r"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|.+))", re.MULTILINE)
NAMES = {dotted(module) for module in MODULES}


def layer(name: str) -> str:
    """Longest entry of ORDER that a module belongs to, or its first part."""
    found = [entry for entry in ORDER if name == entry or name.startswith(f"{entry}.")]
    return max(found, key=len) if found else name.split(".")[0]


def imports(source: str, module: Path) -> set[str]:
    """Return the absolute names that a module imports: at the top, in functions, for type checkers."""
    package = ["dask_tfrecord", *module.parts[:-1]]
    names = set()
    # Trees of whole modules take seconds.
    for statement in IMPORT.findall(source):
        [node] = ast.parse(statement).body
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            if origin.split(".")[0] != "dask_tfrecord":
                names.add(origin)
                continue
            # `from dask_tfrecord.rows import plan` imports a module, not a name of the package.
            for alias in node.names:
                inner = f"{origin}.{alias.name}".removeprefix("dask_tfrecord.")
                submodule = inner in NAMES or inner == "_native"
                names.add(f"dask_tfrecord.{inner}" if submodule else origin)
    return names


@functools.cache
def imported(module: Path) -> set[str]:
    return imports((PACKAGE / module).read_text("utf-8"), module)


def siblings(module: Path) -> set[str]:
    """Return the modules of this package that `module` imports, by their dotted names."""
    return {name.removeprefix("dask_tfrecord.") for name in imported(module) if name.startswith("dask_tfrecord.")}


def test_imports_are_found_in_every_form() -> None:
    source = """
import dask.array as da
from dask_tfrecord import _native
from ..errors import (
    TFRecordError,
)
from . import framing
def late():
    from dask_tfrecord.stores.zarr.write import to_zarr
"""
    assert imports(source, Path("records/index.py")) == {
        "dask.array",
        "dask_tfrecord._native",
        "dask_tfrecord.errors",
        "dask_tfrecord.records.framing",
        "dask_tfrecord.stores.zarr.write",
    }


def test_every_module_belongs_to_a_known_package() -> None:
    layers = {layer(name) for name in NAMES}
    assert layers >= set(ORDER)
    assert layers <= {*ORDER, *OUTSIDE}
    assert not [str(module) for module in MODULES if "util" in module.stem or "helper" in module.stem]


def test_imports_go_from_right_to_left() -> None:
    wrong: dict[str, set[str]] = {}
    for module in MODULES:
        own = layer(dotted(module))
        if own in ORDER:
            native = ["_native"] if own in {"blocks", "shards", "records", "features", "columns"} else []
            allowed = {*ORDER[: ORDER.index(own) + 1], *native}
            if found := {name for name in siblings(module) if layer(name) not in allowed}:
                wrong[str(module)] = found
    assert wrong == {}


def test_features_do_not_import_metadata() -> None:
    # Metadata describes features. `Schema` comes after both: it is read from files of metadata, and written to them.
    features = [module for module in MODULES if module.parts[0] == "features" and module.parts[1] != "metadata"]
    wrong = {
        str(module): found
        for module in features
        if module.name != "schema.py"
        and (found := {name for name in siblings(module) if name.startswith("features.metadata")})
    }
    assert wrong == {}


def test_extras_are_imported_late() -> None:
    # `dataset/` and `cli/` import them in the body of a method or command, or for type checkers.
    wrong: dict[str, list[str]] = {}
    for module in MODULES:
        if module.parts[0] in ("dataset", "cli"):
            tree = ast.parse((PACKAGE / module).read_text("utf-8"))
            names = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
            if found := [name for name in names if name.startswith("dask_tfrecord.extras")]:
                wrong[str(module)] = found
    assert wrong == {}


def test_imports_form_no_cycle() -> None:
    graph = {dotted(module): siblings(module) & NAMES for module in MODULES if dotted(module) != "__init__"}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' → '.join([*path[path.index(name) :], name])}"
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if other != name:
                    visit(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_third_party_packages_are_imported_only_where_allowed() -> None:
    wrong: set[tuple[str, str]] = set()
    for module in MODULES:
        roots = {name.split(".")[0] for name in imported(module)}
        parents = {module.as_posix(), *(parent.as_posix() for parent in module.parents), layer(dotted(module))}
        wrong |= {(str(module), package) for package in roots & ALLOWED.keys() if not ALLOWED[package] & parents}
    assert wrong == set()


@pytest.mark.parametrize("path", sorted(ORACLE.glob("*.py")), ids=lambda path: str(path.name))
def test_the_oracle_shares_no_code_with_the_library(path: Path) -> None:
    used = {name for name in imports(path.read_text("utf-8"), Path("oracle.py")) if name.startswith("dask_tfrecord")}
    # `description` reads the JSON of a schema; `strategies` draws features to test.
    allowed = {"description.py": {"dask_tfrecord"}, "strategies.py": {"dask_tfrecord", "dask_tfrecord.features"}}
    assert used <= allowed.get(path.name, set())


# A place that switches on a concrete feature class: few modules outside of their folder may.
SWITCH = re.compile(rf"isinstance\([^\n]*\b(?:{'|'.join(FEATURES)})\b|case (?:{'|'.join(FEATURES)})\b")


def test_feature_classes_answer_for_themselves() -> None:
    found = [
        f"{module}: {line.strip()}"
        for module in MODULES
        if module.parts[0] != "features"
        for line in (PACKAGE / module).read_text("utf-8").splitlines()
        if SWITCH.search(line)
    ]
    assert len(found) <= 3, "\n".join(found)


DATASET = "dataset/dataset.py"


def private_names(source: str, name: str) -> set[str]:
    """Return the private attributes of a class: its methods, its slots and what it assigns to `self`."""
    (cls,) = (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name)
    nodes = list(ast.walk(cls))
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_self(node.value)}
    return {each for each in found if each.startswith("_") and not each.endswith("_")}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_private_attributes_of_data_sets_are_used_nowhere_else() -> None:
    private = private_names((PACKAGE / DATASET).read_text("utf-8"), "Dataset")
    assert private >= {"_rows", "_check_names"}
    found = []
    for module in MODULES:
        source = (PACKAGE / module).read_text("utf-8")
        # Trees of whole modules take seconds.
        if module.as_posix() == DATASET or not any(f".{name}" in source for name in private):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and node.attr in private and not is_self(node.value):
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


# Functions with more parameters than a reader keeps apart, besides those that users call.
MOST_PARAMETERS = 6


def long_signatures(node: ast.AST, owner: str | None = None) -> Iterator[str]:
    """Yield the functions below a node with many parameters."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            given = child.args
            names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self", "cls"}
            is_public = (owner or child.name) in dask_tfrecord.__all__ and (
                child.name[0] != "_" or child.name == "__init__"
            )
            if len(names) > MOST_PARAMETERS and not is_public:
                yield f"{child.name}({', '.join(names)})"
        yield from long_signatures(child, child.name if isinstance(child, ast.ClassDef) else owner)


@pytest.mark.slow
def test_few_functions_have_many_parameters() -> None:
    found = [
        f"{module}: {signature}"
        for module in MODULES
        for signature in long_signatures(ast.parse((PACKAGE / module).read_text("utf-8")))
    ]
    assert len(found) <= 6, "\n".join(found)


DOCS = PACKAGE.parent / "docs"
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w/]+/|[\w/]+\.(py|hpp|cpp)")


@pytest.mark.skipif(not DOCS.is_dir(), reason="the package is installed without its documentation")
@pytest.mark.parametrize("page", ["explanation/architecture.md", "explanation/formats.md", "glossary.md"])
def test_pages_name_modules_that_exist(page: str) -> None:
    found = [code for code in CODE.findall((DOCS / page).read_text("utf-8")) if PATH.fullmatch(code)]
    assert [code for code in found if not any((root / code).exists() for root in (PACKAGE, PACKAGE.parent))] == []


@pytest.mark.skipif(not DOCS.is_dir(), reason="the package is installed without its documentation")
@pytest.mark.parametrize("page", ["explanation/architecture.md", "glossary.md"])
def test_pages_name_code_that_exists(page: str) -> None:
    words = {word for module in MODULES for word in re.findall(r"\w+", (PACKAGE / module).read_text("utf-8"))}
    codes = [code for code in CODE.findall((DOCS / page).read_text("utf-8")) if "/" not in code]
    # Names of several words belong to this package, except for environment variables.
    names = {word for code in codes for word in re.findall(r"\w+", code) if re.search("._.|[a-z][A-Z]", word)}
    assert sorted(name for name in names if name not in words and not name.isupper()) == []


@pytest.mark.skipif(not DOCS.is_dir(), reason="the package is installed without its documentation")
def test_the_architecture_names_code_in_the_module_that_has_it() -> None:
    page = (DOCS / "explanation/architecture.md").read_text("utf-8")
    wrong = []
    for names, path in re.findall(r"((?:`[\w.]+`(?:, | and ))*`[\w.]+`) (?:in|of) `([\w/]+\.py)`", page):
        source = (PACKAGE / path).read_text("utf-8")
        for name in CODE.findall(names):
            if not all(re.search(rf"\b{part}\b", source) for part in name.split(".")):
                wrong.append(f"{name} in {path}")
    assert wrong == []


def test_the_tests_that_ci_names_exist() -> None:
    repository = Path(__file__).parents[1]
    named = re.findall(r"(?<![/\w])(tests/\S*?)(\{[\w/,]+\})?([\w/.]*\.py)", (repository / ".ci/run").read_text())
    assert named
    for before, choices, after in named:
        for choice in choices.strip("{}").split(","):
            assert (repository / f"{before}{choice}{after}").is_file(), f"{before}{choice}{after}"
