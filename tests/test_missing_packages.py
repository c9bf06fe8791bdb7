"""Packages that are not installed: the error names the extra that installs them, before anything is computed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.programs import run_program, run_python

import dask_tfrecord as dtf
from dask_tfrecord.features.images.codecs import require_pillow

# Modules are imported once, and fsspec keeps file systems for the whole process: a new process imports without one.
WITHOUT_MODULE = """
import sys
shard, module, *calls = sys.argv[1:]
sys.modules[module] = None
import dask_tfrecord as dtf
ds = dtf.read_tfrecord(shard)
for call in calls:
    try:
        eval(call)
    except ImportError as error:
        print(error.name, error)
"""
REMOTE = [
    'dtf.read_tfrecord("{url}/*.tfrecord")',
    'dtf.RecordWriter("{url}/new.tfrecord")',
    'ds.to_tfrecord("{url}/new.tfrecord")',
    'dtf.Schema.read("{url}/schema.pbtxt")',
    *(f'ds.to_tfrecord("{cache}::{{url}}/new.tfrecord")' for cache in ("simplecache", "filecache")),
    'ds.to_zarr("{url}.zarr")',
    'dtf.from_zarr("{url}.zarr")',
]
MISSING = {
    module: (
        [call.format(url=f"{extra.replace('gcs', 'gs')}://bucket/train") for call in REMOTE],
        f"this URL needs {module}, which is not installed: pip install 'dask-tfrecord[{extra}]'",
    )
    for module, extra in (("s3fs", "s3"), ("gcsfs", "gcs"))
} | {
    "pyarrow": (["ds.to_arrow_batches()", "dtf.to_parquet({'x': [1]}, 'never')"], "pip install 'dask-tfrecord[arrow]'"),
    "av": (["dtf.to_lerobot({'record': [1], 'x': [1]}, 'never', fps=1)"], "pip install 'dask-tfrecord[lerobot]'"),
    "polars": (["ds.to_polars()"], "pip install 'dask-tfrecord[polars]'"),
    "awkward": (["ds.to_awkward()"], "pip install 'dask-tfrecord[awkward]'"),
    "xarray": (["ds.to_xarray()"], "xarray Datasets need xarray, which is not installed: pip install"),
    "PIL": (
        ["(ds.preview()._repr_html_(), ds.preview().to_png('never.png'))"],
        "PIL drawing a PNG needs Pillow, which is not installed: pip install 'dask-tfrecord[image]'",
    ),
}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    dtf.to_tfrecord({"image": np.zeros((2, 3), np.int64), "label": np.arange(2)}, tmp_path / "two.tfrecord")
    return tmp_path / "two.tfrecord"


@pytest.mark.integration
@pytest.mark.parametrize("module", MISSING)
def test_a_missing_module_names_the_extra(shard: Path, module: str) -> None:
    calls, expected = MISSING[module]
    printed = run_python("-c", WITHOUT_MODULE, shard, module, *calls).stdout.splitlines()
    assert len(printed) == len(calls)
    assert all(expected in line for line in printed), printed


def test_a_missing_pillow_is_reported_when_the_feature_is_given(monkeypatch: pytest.MonkeyPatch, shard: Path) -> None:
    for name in ["PIL", *(name for name in sys.modules if name.startswith("PIL."))]:
        monkeypatch.setitem(sys.modules, name, None)
    require_pillow.cache_clear()
    features = {"image": dtf.ImageFeature(shape=(4, 4, 3)), "label": dtf.FixedLenFeature((), "int64")}
    for given in (features, dtf.Schema(features)):
        with pytest.raises(ImportError, match=r"feature 'image' is ImageFeature.*needs Pillow, .*: pip .*\[image\]"):
            dtf.read_tfrecord(shard, given)
    assert dtf.read_tfrecord(shard, features, columns=["label"])["label"].compute().tolist() == [0, 1]
    require_pillow.cache_clear()


@pytest.mark.integration
def test_a_missing_extension_names_the_command_that_builds_it(tmp_path: Path) -> None:
    package = Path(dtf.errors.__file__).parent
    shutil.copytree(package, tmp_path / "dask_tfrecord", ignore=shutil.ignore_patterns("*.so", "*.pyd", "native"))
    # -S: an editable install would find the package before the current directory.
    command = [sys.executable, "-S", "-c", "import dask_tfrecord; from dask_tfrecord import _native"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_program(*command, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert "the compiled extension `_native` is missing" in done.stderr
    assert "run `pip install -e .`" in done.stderr
    assert "circular" not in done.stderr
