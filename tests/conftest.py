"""What tests share: files of TensorFlow and of other people's programs, an interpreter with TensorFlow, a cluster."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Where a shell runs the tests in the background, Ctrl-C is ignored, here and in every process that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Files written by TensorFlow, with what TensorFlow read from them, whole and damaged."""
    return Path(__file__).parent / "data" / "golden"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Real files of public repositories, which lie beside the checkout and are no part of it."""
    folder = Path(os.environ.get("DASK_TFRECORD_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
    if not folder.is_dir():
        pytest.skip(f"no corpus at {folder}; DASK_TFRECORD_CORPUS says where it is")
    return folder


@pytest.fixture(scope="session")
def tensorflow() -> str:
    """The interpreter of an environment that has TensorFlow."""
    python = os.environ.get("DASK_TFRECORD_TENSORFLOW")
    if not python:
        pytest.skip("DASK_TFRECORD_TENSORFLOW names no interpreter with TensorFlow")
    return python


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A real cluster of two processes, each of as many threads as the module says by `THREADS`."""
    from distributed import Client, LocalCluster

    threads = getattr(request.module, "THREADS", 1)
    with (
        LocalCluster(n_workers=2, threads_per_worker=threads, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client
