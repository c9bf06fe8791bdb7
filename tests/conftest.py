"""Files that tests read: those TensorFlow wrote for this project, and those of other people's programs."""

import os
import signal
from pathlib import Path

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
