"""`check_workers`: versions, missing packages, paths and workers that never answer."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from support import servers
from support.programs import environment
from support.waiting import PATIENCE

import dask_tfrecord as dtf
from dask_tfrecord.errors import ClusterError, ShardNotFoundError

ROWS = 40
pytestmark = pytest.mark.integration
# Program of a worker in another environment: without the library, with other versions.
OTHER = """
import importlib.metadata, sys

sys.modules["dask_tfrecord"] = None
def version(name, versions=importlib.metadata.version):
    if name in ("s3fs", "crc32c"):
        raise importlib.metadata.PackageNotFoundError(name)
    return {"numpy": "1.26.4"}.get(name) or versions(name)

importlib.metadata.version = version
"""


@contextmanager
def started_worker(cluster: LocalCluster, client: Client, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that `dask worker` starts."""
    number = len(client.scheduler_info(n_workers=-1)["workers"])
    command = [sys.executable, "-m", "dask", "worker", cluster.scheduler_address, "--no-nanny", "--nthreads", "3"]
    process = subprocess.Popen(
        [*command, "--memory-limit", "1 GiB", "--no-dashboard", *options],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client.wait_for_workers(number + 1, timeout=PATIENCE)
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def test_a_cluster_without_workers_is_a_problem(client: Client) -> None:
    report = dtf.check_workers(client)
    assert report.problems == ("the cluster has no workers",)
    with pytest.raises(ClusterError, match="1 problem of the workers: the cluster has no workers"):
        report.raise_for_problems()


def test_equal_workers_have_no_problems(
    cluster: LocalCluster, client: Client, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Paths are relative to the directory of the client.
    monkeypatch.chdir(shards)
    paths = ["part-*.tfrecord", shards / "part-1.tfrecord", tmp_path / "shards"]
    (tmp_path / "name-00000-of-00001").write_bytes(b"0123456789")
    with started_worker(cluster, client):
        report = dtf.check_workers(client, [*paths, f"{tmp_path}/name@1"])
        report.raise_for_problems()
        [worker] = report.workers
        nbytes = sum(path.stat().st_size for path in shards.iterdir())
        assert [path.found for path in worker.paths] == [
            f"4 files of {nbytes:,} bytes",
            f"file of {(shards / 'part-1.tfrecord').stat().st_size:,} bytes",
            "directory of 4 entries",
            "1 files of 10 bytes",
        ]
        assert (worker.threads, worker.memory_limit) == (3, 1 << 30)
        assert worker.python == sys.version.split()[0]
        assert worker.versions == report.versions
        assert abs(worker.clock_difference) < 60
        assert repr(report).startswith("1 worker, no problems, checked in ")
        assert worker.address in repr(report)
        assert report._repr_html_().count("<tr>") == 2
        assert pickle.loads(pickle.dumps(report)) == report


@pytest.mark.slow
def test_a_worker_without_the_library_reports_all_that_differs(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    with started_worker(cluster, client), started_worker(cluster, client, "--preload", str(tmp_path / "other.py")):
        report = dtf.check_workers(client, tmp_path / "none.tfrecord")
    problems = dict(text.rsplit(" (", 1) for text in report.problems)
    one = {text for text, workers in problems.items() if workers != "all workers)"}
    [missing] = [text for text in one if text.startswith("dask_tfrecord cannot be imported: ModuleNotFoundError")]
    assert one - {missing} == {
        "numpy 1.26.4 instead of " + str(report.versions["numpy"]),
        "crc32c is missing, but the client has it",
        "s3fs is missing, but the client has it: pip install 'dask-tfrecord[s3]'",
    }
    [path] = set(problems) - one
    assert path.startswith(f"{tmp_path}/none.tfrecord cannot be read: FileNotFoundError")
    with pytest.raises(ClusterError, match=r"5 problems of the workers: .*numpy 1\.26\.4 instead of") as caught:
        report.raise_for_problems()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.slow
def test_paths_that_workers_do_not_share(cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    # Each worker has a machine of its own, as far as it sees.
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "x").write_bytes(b"0" * number)
    opens = (
        "import fsspec\n"
        "def url_to_fs(path, found=fsspec.core.url_to_fs, **options):\n"
        "    return found(path.replace('/shared/', '/{}/'), **options)\n"
        "fsspec.core.url_to_fs = url_to_fs\n"
    )
    for number in range(2):
        (tmp_path / f"w{number}.py").write_text(opens.format(number))
    with (
        started_worker(cluster, client, "--preload", str(tmp_path / "w0.py")),
        started_worker(cluster, client, "--preload", str(tmp_path / "w1.py")),
    ):
        [problem] = dtf.check_workers(client, tmp_path / "shared" / "x").problems
    assert "workers find different content at" in problem
    assert "file of 0 bytes on tcp://" in problem
    assert "file of 1 bytes on tcp://" in problem


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_task_on_a_worker_that_does_not_see_a_file_names_the_worker(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "a.tfrecord"
    dtf.to_tfrecord({"x": np.arange(ROWS)}, path)
    features = {"x": dtf.FixedLenFeature((), "int64")}
    ds = dtf.read_tfrecord(path, features, counts=[ROWS])
    with started_worker(cluster, client, "--name", "away"):
        # Only the client knows the file.
        path.rename(tmp_path / "b.tfrecord")
        with pytest.raises(ShardNotFoundError, match=r"a\.tfrecord: worker away \(tcp://") as caught:
            client.compute(ds["x"].sum()).result(timeout=PATIENCE)
        assert f"check_workers(client, '{path}')" in str(caught.value)
    with pytest.raises(ShardNotFoundError, match=r"a\.tfrecord: the file is gone since it was listed; call read"):
        ds["x"].compute(scheduler="sync")


def test_a_worker_or_a_server_that_never_answers_ends_the_check(cluster: LocalCluster, client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, started_worker(cluster, client) as process:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        [problem] = dtf.check_workers(client, url, timeout=2).problems
        assert problem == f"{url} cannot be read: no answer within 2 s (all workers)"
        process.send_signal(signal.SIGSTOP)
        try:
            [problem] = dtf.check_workers(client, timeout="1s").problems
        finally:
            process.send_signal(signal.SIGCONT)
        assert problem == "the worker could not be checked: TimeoutError: no answer within 6 s (all workers)"


def test_no_credentials_in_the_report(cluster: LocalCluster, client: Client) -> None:
    login = {"headers": {"Authorization": "Basic c2VjcmV0LXBhc3N3b3Jk"}}
    with (
        servers.running(servers.GuardedFiles, files={}, etags={}, password="pa55w0rd", signature="") as (address, _),
        started_worker(cluster, client),
    ):
        host = address.removeprefix("http://")
        url = f"http://user:wrong-secret@{host}/x?X-Amz-Signature=5ignature"
        report = dtf.check_workers(client, [url, f"s3://bucket/x@{1}"], storage_options=login)
    for artefact in (repr(report), report._repr_html_(), str(report.workers), str(report.problems)):
        for secret in ("wrong-secret", "5ignature", "c2VjcmV0"):
            assert secret not in artefact
    assert not report.ok


def test_an_asynchronous_client_is_refused() -> None:
    with pytest.raises(ValueError, match="synchronous client"):
        dtf.check_workers(type("Asynchronous", (), {"asynchronous": True})())
