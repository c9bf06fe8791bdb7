"""Option `--scheduler` of every command: local schedulers, clusters, and addresses at which nothing answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from support.commands import run
from support.numbered_shards import damage

import dask_tfrecord as dtf
from dask_tfrecord.settings import Limits

ROWS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster


def prefixes(cluster: LocalCluster) -> set[str]:
    """Names of the tasks that the cluster has run."""
    with Client(cluster, set_as_default=False) as client:
        return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes)))


def commands(shards: Path, out: Path) -> Iterator[list[object]]:
    yield ["info", shards]
    yield ["schema", shards, "--sample", "all"]
    yield ["index", shards]
    yield ["verify", shards]
    yield ["repair", shards / "part-0.tfrecord", out / "repaired.tfrecord"]
    yield ["copy", shards, out / "copy.tfrecord"]
    yield ["to-zarr", shards, out / "a.zarr"]
    yield ["to-tfrecord", out / "a.zarr", out / "back.tfrecord"]


@pytest.mark.integration
def test_every_command_computes_on_the_cluster(cluster: LocalCluster, shards: Path, tmp_path: Path) -> None:
    address, number = cluster.scheduler_address, len(cluster.scheduler.clients)
    for command in commands(shards, tmp_path):
        before = cluster.scheduler.transition_counter
        result = run(*command, "--scheduler", address)
        assert result.exit_code == 0, (command, result.stderr)
        assert result.stderr == ""
        assert cluster.scheduler.transition_counter > before, command
    # The same before the command, and without a scheme.
    assert run("--scheduler", address.removeprefix("tcp://"), "verify", shards).exit_code == 0
    assert len(cluster.scheduler.clients) == number
    back = dtf.read_tfrecord(tmp_path / "back.tfrecord")
    assert back["label"].compute(scheduler="threads").tolist() == list(range(ROWS))
    assert {"tfrecord-write-units", "tfrecord-copy-shard"} <= prefixes(cluster)


@pytest.mark.integration
def test_an_error_of_a_worker_is_one_line(cluster: LocalCluster, shards: Path, tmp_path: Path) -> None:
    damage(shards / "part-2.tfrecord")
    features = tmp_path / "features.json"
    features.write_text(dtf.Schema({"label": dtf.FixedLenFeature((), "int64")}).to_json())
    to_zarr = ["to-zarr", shards, tmp_path / "a.zarr", "--features", features]
    result = run(*to_zarr, "--scheduler", cluster.scheduler_address)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "part-2.tfrecord" in line
    assert run("verify", shards, "--scheduler", cluster.scheduler_address).exit_code == 1


@pytest.mark.integration
def test_the_threads_of_a_cluster_are_set_by_its_workers(cluster: LocalCluster, shards: Path) -> None:
    result = run("verify", shards, "--threads", 2, "--scheduler", cluster.scheduler_address)
    assert result.exit_code == 2
    assert "--threads is for local schedulers: `dask worker --nthreads`" in result.stderr


def test_an_address_without_a_scheduler_is_one_line_in_bounded_time(
    shards: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(scheduler_answer=1.0)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    result = run("verify", shards, "--scheduler", f"tcp://127.0.0.1:{port}")
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"Error: no scheduler answers at tcp://127.0.0.1:{port}: ")
    assert f"`dask worker tcp://127.0.0.1:{port}`" in line


@pytest.mark.parametrize("name", ["threads", pytest.param("processes", marks=pytest.mark.slow), "synchronous"])
def test_local_schedulers_give_the_same_output(shards: Path, name: str) -> None:
    plain = run("info", shards)
    result = run("info", shards, "--scheduler", name, "--threads", 2)
    assert (result.exit_code, result.stdout, result.stderr) == (0, plain.stdout, "")


@pytest.mark.parametrize("value", ["cluster", "", "tcp://", "host", "tcp://host"])
def test_other_values_are_wrong_usage(shards: Path, value: str) -> None:
    result = run("info", shards, "--scheduler", value)
    assert result.exit_code == 2
    assert "with its port, nor threads, processes, synchronous. Write --scheduler" in (" ".join(result.stderr.split()))


@pytest.mark.integration
def test_asynchronous_clients_are_used_from_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    dtf.to_tfrecord({"x": np.arange(10)}, path)

    async def work() -> None:
        cluster = LocalCluster(processes=False, asynchronous=True, dashboard_address=":0", n_workers=1)
        async with cluster, Client(cluster, asynchronous=True) as client:
            with pytest.raises(RuntimeError, match=r"would block the event loop.*await asyncio.to_thread"):
                dtf.read_tfrecord(path)
            ds = await asyncio.wait_for(asyncio.to_thread(dtf.read_tfrecord, path), 120)
            for call in (ds.compute, lambda: ds.to_zarr(tmp_path / "a.zarr"), ds.describe):
                with pytest.raises(RuntimeError, match="would block the event loop"):
                    call()
            await asyncio.wait_for(asyncio.to_thread(ds.to_zarr, tmp_path / "a.zarr"), 120)
            assert (await client.compute(ds["x"])).tolist() == list(range(10))

    asyncio.run(work())
    assert dtf.from_zarr(tmp_path / "a.zarr")["x"].compute().tolist() == list(range(10))
