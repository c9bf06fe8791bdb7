"""Shared fixtures: golden files, the corpus of public files, an interpreter with TensorFlow, a cluster, S3."""

import gc
import os
import signal
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

# Where PYTHONDONTWRITEBYTECODE is set, every worker and every program of a test would compile all modules again, the
# tests with rewritten assertions: half of the time that collecting them takes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import dask
import fsspec
import pytest
from hypothesis import HealthCheck, settings
from support.numbered_shards import write_shards
from support.object_stores import bucket, gcs, moto, s3
from support.robot import write_robot

from dask_tfrecord import Dataset, read_tfrecord
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.shards import deflate

__all__ = ["bucket", "gcs", "moto", "s3"]

# Every run draws the same examples, so a change fails only on its own defects; `--hypothesis-profile=thorough` draws
# more of them, as CI does once; "nightly" draws others, and many. A failure prints how to repeat it. Time limits of
# hypothesis would fail on a loaded machine.
settings.register_profile(
    "any machine",
    max_examples=6,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=25)
settings.register_profile("nightly", settings.get_profile("any machine"), max_examples=500, derandomize=False)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores Ctrl-C, here and in child processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests never cut the power, so they need not wait for the disk; tests of failing disks replace the function themselves.
os.fsync = lambda descriptor: None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that uses an extra, where CI has removed the folder of them."""
    try:
        return (yield)
    except Exception as error:
        if "DASK_TFRECORD_WITHOUT_EXTRAS" in os.environ and "No module named 'dask_tfrecord.extras" in str(error):
            pytest.skip("uses an extra")
        raise


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting all imported modules and all tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def set_limits() -> Iterator[Callable[..., Limits]]:
    """Return a function that replaces limits of the library until the test ends."""
    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(replaced_limits(**values))


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each of the inflating libraries, as if the other were not installed."""
    library: ModuleType = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(deflate, "INFLATERS", (library,))


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder of golden files: written by TensorFlow, intact and damaged, with the arrays that it parsed."""
    return Path(__file__).parent / "data" / "golden"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the folder of files from public repositories, stored outside of the clone."""
    folder = Path(os.environ.get("DASK_TFRECORD_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
    if not folder.is_dir():
        pytest.skip(f"missing corpus {folder}: set DASK_TFRECORD_CORPUS to its path")
    return folder


def interpreter(package: str) -> str:
    """Return the interpreter of an environment with a package, or skip the test."""
    variable = f"DASK_TFRECORD_{package.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set to an interpreter with {package}")
    return os.environ[variable]


@pytest.fixture(scope="session")
def tensorflow() -> str:
    """Return the interpreter of an environment with TensorFlow."""
    return interpreter("tensorflow")


@pytest.fixture(scope="session")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a data set of episodes."""
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture(scope="session")
def lerobot() -> str:
    """Return the interpreter of an environment with lerobot."""
    return interpreter("lerobot")


@pytest.fixture
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a folder of four shards with numbered records; `ROWS` of the test module sets their number."""
    folder = tmp_path / "shards"
    folder.mkdir()
    write_shards(folder, 4, request.module.ROWS // 4)
    return folder


@pytest.fixture
def ds(shards: Path) -> Dataset:
    """Open the shards of the test."""
    return read_tfrecord(shards)


@pytest.fixture
def in_this_thread() -> Iterator[None]:
    """Compute in the thread of the test."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def memory() -> Iterator[Callable[..., str]]:
    """Return a function that stores files in a directory of the memory file system, and returns its URL."""
    fs = fsspec.filesystem("memory")

    def put(**files: bytes) -> str:
        for name, data in files.items():
            fs.pipe_file(f"/storage/{name}", data)
        return "memory://storage"

    yield put
    # `rm` would search thousands of files, one by one.
    for name in [name for name in fs.store if name.startswith("/storage/")]:
        del fs.store[name]
    fs.pseudo_dirs[:] = [name for name in fs.pseudo_dirs if not name.startswith("/storage")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the path of a Zarr store that does not exist."""
    return tmp_path / "store.zarr"


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a client of two worker processes; `THREADS` of a test module sets the threads of each."""
    from distributed import Client
    from support.killing import two_workers

    with two_workers(getattr(request.module, "THREADS", 1)) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def xarray_engine() -> str:
    """Return the name of the engine of xarray; register it if the package is imported without its metadata."""
    from xarray import backends

    from dask_tfrecord.extras.interop.xarray_engine import TFRecordBackendEntrypoint

    if "tfrecord" not in backends.list_engines():
        backends.common.BACKEND_ENTRYPOINTS["tfrecord"] = (None, TFRecordBackendEntrypoint)
        backends.refresh_engines()
    return "tfrecord"
