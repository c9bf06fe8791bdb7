"""A compression of shards in one file outside of the package."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord

FEATURES = {"x": dtf.FixedLenFeature((), "int64"), "b": dtf.FixedLenFeature((), "bytes")}
COLUMNS = {"x": np.arange(1000), "b": [b"%d" % number * 50 for number in range(1000)]}


def test_shards_of_lz4_are_written_and_read(tmp_path: Path) -> None:
    pytest.importorskip("lz4")
    frame = importlib.import_module("lz4.frame")
    importlib.import_module("extension.lz4_frames")

    dtf.to_tfrecord(COLUMNS, tmp_path / "a.tfrecord", compression="lz4", features=FEATURES)
    dtf.to_tfrecord(COLUMNS, tmp_path / "plain.tfrecord", features=FEATURES)
    stored = (tmp_path / "a.tfrecord").read_bytes()
    assert frame.decompress(stored) == (tmp_path / "plain.tfrecord").read_bytes()
    for compression in ("infer", "lz4", "LZ4"):
        ds = dtf.read_tfrecord(tmp_path / "a.tfrecord", FEATURES, compression=compression, chunks=300)
        assert ds["x"].compute().tolist() == list(range(1000))
        assert ds["b"][-1].compute() == b"999" * 50
    assert dtf.verify(tmp_path / "a.tfrecord").ok
    # Frames one after the other, and a copy in another compression.
    (tmp_path / "two.tfrecord").write_bytes(2 * stored)
    assert len(list(dtf.read_records(tmp_path / "two.tfrecord"))) == 2000
    dtf.copy_tfrecord(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord", compression="gzip")
    assert list(dtf.read_records(tmp_path / "b.tfrecord")) == list(dtf.read_records(tmp_path / "plain.tfrecord"))
    for damaged in (stored[:-200], stored[:500] + b"\0" * 50 + stored[550:]):
        (tmp_path / "damaged.tfrecord").write_bytes(damaged)
        with pytest.raises(dtf.CorruptRecordError, match="the lz4 data"):
            list(dtf.read_records(tmp_path / "damaged.tfrecord"))
    with pytest.raises(ValueError, match="an index of lz4 data is useless"):
        dtf.to_tfrecord(COLUMNS, tmp_path / "i.tfrecord", compression="lz4", index=True, features=FEATURES)
    command = ["copy", str(tmp_path / "plain.tfrecord"), str(tmp_path / "c.tfrecord"), "--compression", "lz4"]
    result = CliRunner().invoke(tfrecord, command)
    assert result.exit_code == 0, result.output
    assert frame.decompress((tmp_path / "c.tfrecord").read_bytes())
