"""Packages that are not installed: the error names the extra that installs them, before anything is computed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.images.codecs import require_pillow

# fsspec keeps file systems and their classes for the whole process, so a new process imports without the module.
WITHOUT_MODULE = """
import sys

shard, protocol, module, extra = sys.argv[1:]
sys.modules[module] = None

import dask_tfrecord as dtf

ds = dtf.read_tfrecord(shard)
url = f"{protocol}://bucket/train"
expected = f'this URL needs {module}, which is not installed: pip install "dask-tfrecord[{extra}]"'
for attempt in (
    lambda: dtf.read_tfrecord(f"{url}/*.tfrecord"),
    lambda: dtf.RecordWriter(f"{url}/new.tfrecord"),
    lambda: ds.to_tfrecord(f"{url}/new.tfrecord"),
    lambda: dtf.Schema.read(f"{url}/schema.pbtxt"),
    lambda: ds.to_zarr(f"{url}.zarr"),
    lambda: dtf.from_zarr(f"{url}.zarr"),
):
    try:
        attempt()
    except ImportError as error:
        assert expected in str(error), error
        print("refused")
"""


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    dtf.to_tfrecord({"image": np.zeros((2, 3), np.int64), "label": np.arange(2)}, tmp_path / "two.tfrecord")
    return tmp_path / "two.tfrecord"


@pytest.mark.integration
@pytest.mark.parametrize(("protocol", "module", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_missing_file_system_names_the_extra(shard: Path, protocol: str, module: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT_MODULE, str(shard), protocol, module, extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused"] * 6


def test_a_missing_pillow_is_reported_when_the_feature_is_given(monkeypatch: pytest.MonkeyPatch, shard: Path) -> None:
    for name in ["PIL", *(name for name in sys.modules if name.startswith("PIL."))]:
        monkeypatch.setitem(sys.modules, name, None)
    require_pillow.cache_clear()
    features = {"image": dtf.ImageFeature(shape=(4, 4, 3)), "label": dtf.FixedLenFeature((), "int64")}
    for given in (features, dtf.Schema(features)):
        with pytest.raises(ImportError, match=r"feature 'image' is ImageFeature.*needs Pillow: pip .*\[image\]"):
            dtf.read_tfrecord(shard, given)
    assert dtf.read_tfrecord(shard, features, columns=["label"])["label"].compute().tolist() == [0, 1]
    require_pillow.cache_clear()


@pytest.mark.integration
@pytest.mark.parametrize(
    "call", ["dtf.read_tfrecord(sys.argv[1]).to_arrow_batches()", "dtf.to_parquet({'x': [1]}, 'never-written')"]
)
def test_a_missing_pyarrow_names_the_extra(shard: Path, call: str) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import dask_tfrecord as dtf; from dask_tfrecord import *\n"
        f"try: {call}\n"
        "except ImportError as error: print(error.name, error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shard)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("pyarrow Arrow, DataFrames and Parquet need pyarrow"), done.stderr
    assert "pip install 'dask-tfrecord[arrow]'" in done.stdout


@pytest.mark.integration
def test_a_missing_extension_names_the_command_that_builds_it(tmp_path: Path) -> None:
    package = Path(dtf.errors.__file__).parent
    shutil.copytree(package, tmp_path / "dask_tfrecord", ignore=shutil.ignore_patterns("*.so", "*.pyd", "native"))
    # -S: an editable install would find the package before the current directory.
    command = [sys.executable, "-S", "-c", "import dask_tfrecord; from dask_tfrecord import _native"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert "the compiled extension `_native` is missing" in done.stderr
    assert "run `pip install -e .`" in done.stderr
    assert "circular" not in done.stderr


@pytest.mark.integration
def test_a_missing_awkward_names_the_extra(shard: Path) -> None:
    code = (
        "import sys; sys.modules['awkward'] = None; import dask_tfrecord as dtf\n"
        "try: dtf.read_tfrecord(sys.argv[1]).to_awkward()\n"
        "except ImportError as error: print(error.name, error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shard)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("awkward to_awkward needs awkward"), done.stderr
    assert "pip install 'dask-tfrecord[awkward]'" in done.stdout
