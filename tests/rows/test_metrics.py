"""Fine performance metrics of distributed: what tasks spend their time on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from support.waiting import wait_until

import dask_tfrecord as dtf

pytestmark = pytest.mark.integration


def test_tasks_report_what_they_spend_their_time_on(
    client: Any, bucket: tuple[Any, str, Any], s3: dict[str, Any], tmp_path: Path
) -> None:
    url = "s3://bucket/metrics.tfrecord"
    dtf.to_tfrecord({"x": np.arange(200_000), "y": np.ones((200_000, 4), "float32")}, url, storage_options=s3)
    ds = dtf.read_tfrecord(url, storage_options=s3)
    dask.compute(ds["x"].sum())
    ds.to_zarr(tmp_path / "out.zarr")

    def found() -> set[str]:
        metrics = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.cumulative_worker_metrics))
        return {key[-2] for key in metrics if isinstance(key, tuple) and key[0] == "execute"}

    # Workers send them with their heartbeats.
    assert wait_until(lambda: {"read", "decode", "encode", "write"} <= found(), state=found)
