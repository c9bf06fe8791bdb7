"""Fine performance metrics of distributed: what tasks spend their time on."""

from __future__ import annotations

from collections.abc import Callable
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


def test_every_pass_over_records_is_decoding(client: Any, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    dtf.to_tfrecord({"x": np.arange(20_000)}, tmp_path / "x-{shard}", records_per_shard=5000)
    ds = dtf.read_tfrecord(tmp_path / "x-*", {"x": dtf.FixedLenFeature((), "int64")})
    passes: dict[str, Callable[[], object]] = {
        "array": lambda: ds["x"].mean().compute(),
        "rows": lambda: ds["x"][[7, 3]].compute(),
        "data set": lambda: ds.compute(),
        "persist": lambda: ds.persist()["x"].sum().compute(),
        "where": lambda: ds.where([("x", "<", 3)]).compute(),
        "to_tfrecord": lambda: ds.to_tfrecord(tmp_path / "o-{shard}"),
    }
    for name, make in passes.items():
        with distributed.span(name):
            make()

    def decoding(dask_scheduler: Any) -> set[str]:
        spans = dask_scheduler.extensions["spans"].spans.values()
        return {span.name[0] for span in spans if any("decode" in key for key in span.cumulative_worker_metrics)}

    # Tasks of persist are outside of the caller's span.
    wanted = {"default" if name == "persist" else name for name in passes}
    assert wait_until(
        lambda: wanted <= client.run_on_scheduler(decoding), state=lambda: client.run_on_scheduler(decoding)
    )
