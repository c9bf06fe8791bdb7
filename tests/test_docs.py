"""Run the documentation: code blocks of README.md and docs/, their commands, and doctests of the package.

Each page runs in a new directory with the sample files that the texts read: `train-00000-of-00002.tfrecord`,
`train-00001-of-00002.tfrecord`, ten records each.
"""

import copy
import doctest
import importlib
import json
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import oracle
import pytest
from support.pages import blocks
from support.paths import REPOSITORY
from support.programs import run_program, run_python

import dask_tfrecord
from dask_tfrecord.features.images.registry import FORMATS
from dask_tfrecord.shards.compressions import COMPRESSIONS

PAGES = sorted(
    str(path.relative_to(REPOSITORY)) for path in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the shards that pages read: by the script in `examples/`, and the sample data of the first page."""
    directory = tmp_path_factory.mktemp("samples")
    run_python(REPOSITORY / "examples" / "sample_shards.py", directory)
    dask_tfrecord.sample_data("shapes", directory)
    assert [len(oracle.read_payloads(path)) for path in sorted(directory.iterdir())] == [8, 8, 8, 10, 10]
    return directory


@pytest.fixture
def workshop(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xarray_engine: str) -> Iterator[Path]:
    """A fresh directory with the sample files in it, which is the current one; settings of a page end with its test."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    settings = copy.deepcopy(dask.config.get("tfrecord", {}))
    # A compression or a format that a page registers would be found by other tests of this process.
    for registry in (COMPRESSIONS, FORMATS):
        monkeypatch.setattr(registry, "added", dict(registry.added))
    # Processes, which compute bags by default, take seconds to start.
    with dask.config.set(scheduler="threads"):
        yield tmp_path
    dask.config.config["tfrecord"] = settings


@pytest.fixture
def object_store(page: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options of the S3 server of the tests in fsspec's configuration, for pages that read ``s3://``."""
    if not any("s3://" in block.text for block in blocks(page, "python")):
        yield
        return
    options = {**request.getfixturevalue("s3"), "use_listings_cache": False}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    monkeypatch.setenv("FSSPEC_S3", json.dumps(options))
    store = fsspec.filesystem("s3")
    buckets = set(store.ls("", detail=False))
    yield
    for bucket in set(store.ls("", detail=False)) - buckets:
        store.rm(bucket, recursive=True)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.integration) if "clusters" in page or "bucket" in page else page
        for page in PAGES
        if blocks(page, "python")
    ],
)
@pytest.mark.usefixtures("workshop", "object_store")
def test_python_blocks_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python", "text printed"):
        if block.kind == "text printed":
            printed = capsys.readouterr().out
            same = doctest.OutputChecker().check_output(block.text, printed, OPTIONS)
            assert same, f"the page shows:\n{block.text}\nthe block before it printed:\n{printed}"
            continue
        capsys.readouterr()
        # Empty lines in front make a traceback count lines as the page does.
        exec(compile("\n" * (block.line - 1) + block.text, str(REPOSITORY / page), "exec"), namespace)


@pytest.mark.parametrize("data", ["page", "corpus"])
def test_five_lines_plot_an_episode(data: str, workshop: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("PIL")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    page = "docs/how-to/rlds.md"
    (plot,) = blocks(page, "python matplotlib")
    text, frames, actions = plot.text, (16, 4 * 16), (4, 2)
    assert len([line for line in text.splitlines() if line and not line.startswith("import")]) == 5
    namespace: dict[str, Any] = {}
    exec(blocks(page, "python")[0].text, namespace)
    if data == "corpus":
        octo = request.getfixturevalue("corpus") / "octo-models__octo/tests/debug_dataset/bridge_dataset/1.0.0"
        text = text.replace("robot/1.0.0", str(octo)).replace("/image", "/image_0")
        frames, actions = (64, 10 * 64), (10, 7)
    exec(text, namespace)
    assert namespace["above"].images[0].get_array().shape[:2] == frames
    assert np.stack([line.get_ydata() for line in namespace["below"].lines], axis=1).shape == actions
    pyplot.close("all")
    assert (workshop / "episode.png").read_bytes().startswith(b"\x89PNG")


def test_the_map_is_drawn(workshop: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    namespace: dict[str, Any] = {}
    for block in blocks("docs/how-to/weather.md", "python", "python matplotlib"):
        exec(block.text, namespace)
    pyplot.close("all")
    assert (workshop / "map.png").read_bytes().startswith(b"\x89PNG")


def starts_processes(page: str) -> bool:
    return any(re.search(r"Client\(|Cluster|processes|num_workers", block.text) for block in blocks(page, "python"))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.integration if starts_processes(page) else pytest.mark.nightly)
        for page in PAGES
        if blocks(page, "python")
    ],
)
@pytest.mark.usefixtures("object_store")
def test_python_blocks_run_as_a_plain_script(page: str, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Worker processes import a script again: without a guard where one is needed, they fail.
    (workshop / "page.py").write_text("\n".join(block.text for block in blocks(page, "python")), "utf-8")
    monkeypatch.chdir(workshop)
    run_python("page.py")


@pytest.mark.integration
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")])
def test_commands_print_the_output_on_the_page(page: str, workshop: Path) -> None:
    shell = shutil.which("bash")
    assert shell
    # The command of the environment that runs the tests, whether that is activated or not.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command, shown in commands(page):
        done = run_program(shell, "-c", command, cwd=workshop, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if shown:
            same = doctest.OutputChecker().check_output(shown, done.stdout, OPTIONS)
            assert same, f"{command}\nthe page shows:\n{shown}\nit printed:\n{done.stdout}"


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Each `$ dask-tfrecord …` of the page with the output below it ("..." matches any text)."""
    for block in blocks(page, "console"):
        for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = entry.partition("\n")
            if command.startswith(("dask-tfrecord", "dask tfrecord")):
                yield command, shown.strip("\n") and shown


@pytest.mark.parametrize("page", PAGES)
def test_paths_of_modules_exist(page: str) -> None:
    package = Path(dask_tfrecord.__file__).parent
    folders = "|".join(sorted(path.name for path in package.iterdir() if path.is_dir()))
    paths = re.findall(
        rf"`(?:dask_tfrecord/)?((?:{folders})/[\w/]*(?:\.\w+)?)`", (REPOSITORY / page).read_text("utf-8")
    )
    # A wheel lacks the sources of the native core, and does not list `native` among its folders.
    assert not [path for path in paths if not (package / path).exists()]


def test_links_of_the_readme(tmp_path: Path) -> None:
    link = re.compile(r'(?:\]\(|src=")(?!#)([^)"]+)')
    targets = link.findall((REPOSITORY / "README.md").read_text("utf-8"))
    assert len(targets) > 10
    pages = [target.partition("#")[0] for target in targets if not target.startswith("https://")]
    assert not [page for page in pages if not (REPOSITORY / page).exists()]
    # A release has absolute links.
    for path in ["README.md", "pyproject.toml", ".ci/pypi_readme.py"]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / path, tmp_path / path)
    run_python(tmp_path / ".ci" / "pypi_readme.py")
    released = link.findall((tmp_path / "README.md").read_text("utf-8"))
    assert len(released) == len(targets)
    assert all(target.startswith("https://") for target in released)


def doctests() -> Iterator[doctest.DocTest]:
    """The doctests of every module, with `np` and `dtf` at hand as NumPy's documentation has it."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = [info.name for info in pkgutil.walk_packages(dask_tfrecord.__path__, "dask_tfrecord.")]
    for name in ["dask_tfrecord", *names]:
        module = importlib.import_module(name)
        yield from finder.find(module, name, extraglobs={"np": np, "dtf": dask_tfrecord})


@pytest.mark.parametrize("example", [pytest.param(test, id=test.name) for test in doctests() if test.examples])
@pytest.mark.usefixtures("workshop")
def test_docstrings_are_true(example: doctest.DocTest) -> None:
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=report.append)
    assert result.failed == 0, "".join(report)
