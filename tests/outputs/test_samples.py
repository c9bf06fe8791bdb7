"""`to_tfrecord` of rows from an iterator: the loop that writes one sample after another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.settings import replaced_limits


def samples(count: int) -> Iterator[dict[str, Any]]:
    for row in range(count):
        yield {
            "label": row,
            "name": f"n{row}".encode(),
            "tokens": list(range(row % 4)),
            "x": np.full((2, 3), row, "f4"),
        }


@pytest.mark.parametrize("read_nbytes", [400, 3000, 8 << 20])
@pytest.mark.parametrize("records", [None, 7])
def test_rows_of_a_generator_are_shards(tmp_path: Path, read_nbytes: int, records: int | None) -> None:
    target = tmp_path / "out" / "train-{shard:05d}-of-{shards:05d}.tfrecord"
    with replaced_limits(read_nbytes=read_nbytes):
        dtf.to_tfrecord(samples(30), target, records_per_shard=records, compression="gzip")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    count = 1 if records is None else 5
    assert names == [f"train-{shard:05d}-of-{count:05d}.tfrecord" for shard in range(count)]
    assert dtf.verify(tmp_path / "out").ok
    found = dtf.read_tfrecord(tmp_path / "out").compute()
    assert found["label"].tolist() == list(range(30)) and found["name"].tolist() == [
        f"n{row}".encode() for row in range(30)
    ]
    assert [each.tolist() for each in found["tokens"]] == [list(range(row % 4)) for row in range(30)]
    np.testing.assert_array_equal(found["x"].reshape(30, 6), np.repeat(np.arange(30), 6).reshape(30, 6))


def test_the_records_are_those_of_arrays(tmp_path: Path) -> None:
    rows = list(samples(20))
    features = {"x": dtf.TensorFeature((2, 3), "float32"), "name": dtf.TextFeature()}
    rows = [{**row, "name": row["name"].decode()} for row in rows]
    with replaced_limits(read_nbytes=500):
        dtf.to_tfrecord(rows, tmp_path / "rows.tfrecord", features=features)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    dtf.to_tfrecord(columns, tmp_path / "columns.tfrecord", features=features)
    one, other = (oracle.read_payloads(tmp_path / f"{name}.tfrecord") for name in ("rows", "columns"))
    assert one == other


def test_a_loop_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from samples(20)
        raise RuntimeError("the camera is gone")

    with replaced_limits(read_nbytes=500), pytest.raises(RuntimeError, match="camera"):
        dtf.to_tfrecord(failing(), tmp_path / "some.tfrecord")
    assert not [*tmp_path.iterdir()]
    mixed = [*samples(3), {"label": 3}]
    with pytest.raises(dtf.SchemaError, match="row 3 lacks 'name': all rows have the same names"):
        dtf.to_tfrecord(mixed, tmp_path / "some.tfrecord")
    with pytest.raises(dtf.SchemaError, match="must yield a mapping of names to values for each row; got int"):
        dtf.to_tfrecord(iter([1]), tmp_path / "some.tfrecord")
    with pytest.raises(dtf.SchemaError, match="has no rows"):
        dtf.to_tfrecord(iter([]), tmp_path / "some.tfrecord")
    wrong = [*samples(9), {**next(samples(1)), "label": "nine"}]
    with replaced_limits(read_nbytes=500), pytest.raises((dtf.SchemaError, dtf.FeatureError)) as caught:
        dtf.to_tfrecord(iter(wrong), tmp_path / "some.tfrecord")
    assert "counted from 0" in caught.value.__notes__[-1]
    assert not [*tmp_path.iterdir()]


def test_existing_shards_are_refused_before_the_rows_are_made(tmp_path: Path) -> None:
    (tmp_path / "some.tfrecord").touch()
    rows = samples(5)
    with pytest.raises(FileExistsError, match="mode='w'"):
        dtf.to_tfrecord(rows, tmp_path / "some.tfrecord")
    assert next(rows)["label"] == 0
    dtf.to_tfrecord(rows, tmp_path / "some.tfrecord", mode="w")
    assert dtf.read_tfrecord(tmp_path / "some.tfrecord")["label"].compute().tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="compute=False needs arrays"):
        dtf.to_tfrecord(rows, tmp_path / "other.tfrecord", compute=False)


def test_lists_of_one_length_in_the_first_rows_may_differ_later(tmp_path: Path) -> None:
    rows = [{"words": ["a", "b"], "ids": [1, 2], "boxes": [[1, 2], [3, 4]]}] * 70
    rows += [{"words": ["c"], "ids": [3], "boxes": [[5, 6]]}]
    with replaced_limits(read_nbytes=400):
        dtf.to_tfrecord(iter(rows), tmp_path / "a.tfrecord")
    found = dtf.read_tfrecord(tmp_path / "a.tfrecord")
    assert found["ids"].compute()[-1].tolist() == [3] and found["words"].compute()[-1].tolist() == [b"c"]
    assert found["boxes"].compute()[-1].tolist() == [5, 6]
