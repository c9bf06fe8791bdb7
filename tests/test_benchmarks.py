"""The benchmarks run on small data, and the comparison with other readers stops at differences and at silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.paths import REPOSITORY
from support.programs import run_program

BENCHMARKS = REPOSITORY / "benchmarks"
SUMS = "from pathlib import Path; print(Path({sums!r}).read_text())"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    return __import__("peers")


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    # Peers are other interpreters, which must not find the modules of this one.
    done = run_program(sys.executable, BENCHMARKS / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def make_peer(environments: Path, name: str, program: str) -> None:
    """Write an environment whose Python runs a program instead of its arguments."""
    python = environments / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}"\n')
    python.chmod(0o755)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    run("make_data.py", out, "tabular", "--scale", "0.0001")
    return out


def test_equal_values_have_equal_sums(peers: ModuleType) -> None:
    rows = [np.array([1.5, 2.5], np.float32), np.array([-1.0], np.float32)]
    assert peers.total(rows) == peers.total(np.concatenate(rows)[::-1]) != peers.total(rows[:1])
    ragged = np.empty(2, object)
    ragged[:] = rows
    assert peers.total(ragged) == peers.total(rows)
    assert peers.total(np.array([-1, 2])) == peers.total([np.array([2]), np.array([-1])])
    words = [b"ab", b"", b"c"]
    assert peers.total(words) == peers.total(np.array(words, object)) == peers.total([b"c", b"ba"])
    assert peers.total(words) != peers.total([b"ab\0", b"c"])
    batches = [{"a": np.array([2**62])}] * 4
    assert peers.totals(batches) == {"a": 0}


def test_results_list_every_reader_and_limit(
    tmp_path: Path, peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"data": "tabular", "clock": "cpu"}
    readers = [("ray 2", [10.0, 12.0], ""), ("dali 2", [], "TimeoutError"), ("dask_tfrecord", [100.0], "")]
    figures: list[dict[str, Any]] = [
        {**common, "task": "peers", "reader": reader, "records": 5, "rates": rates, "error": error, "ratios": rates}
        for reader, rates, error in readers
    ]
    for pipeline, seconds in {"tensorflow sequential": 4.0, "tensorflow interleave": 3.0, "dask_tfrecord": 1.0}.items():
        rates = {"records_per_second": 12 / seconds, "bytes_per_second": 1e6, "ratio": 3.0, "peak_rss": 100}
        figures.append({**common, "task": "touch", "pipeline": pipeline, "records": 12, "seconds": [seconds], **rates})
    rates = {"copy": 2e9, "varints": 5e8}
    spreads = {limit: [rate, rate] for limit, rate in rates.items()}
    figures.append({"task": "limits", "data": "", "clock": "cpu", "rates": rates, "spreads": spreads})
    shares = {"copy": 0.25, "crc": 0.125, "output": 0.125, "varints": 0.25}
    figures.append(
        {**common, "task": "limits of touch", "seconds": [0.5], "nbytes": 1e9, "shares": shares, "binding": "copy"}
    )
    scaled = {"growth": [{"records": 1_000_000, "open": 0.25}]}
    __import__("results").write(figures, tmp_path / "RESULTS.md", scaled)
    text = (tmp_path / "RESULTS.md").read_text()
    for line in (
        "| `tabular` | ray 2 | 5 | 11 (10 to 12) | 11.0 (10.0 to 12.0) |",
        "| `tabular` | dali 2 | 5 | TimeoutError |  |",
        "| `tabular` | 4 (4 to 4) | 12 (12 to 12) | 1 | 3.00 | 1.00 |",
        "| varints | 500 M integers/s | 500 to 500 |",
        "| `tabular` | touch | 2,000 | 25% | 12% | 12% | 25% | 75% | copy |",
        "| 1,000,000 | 0.25 |",
    ):
        assert line in text.splitlines(), text


@pytest.mark.nightly
def test_peers_are_compared_and_bounded(data: Path, tmp_path: Path) -> None:
    done = run("pipelines.py", "passes", data, "tabular", "sums")
    report = json.loads(done.stdout)
    answers = {
        "tfx-bsl": {"peer": "tfx-bsl 1", "seconds": [0.5, 0.25], **report},
        "dali": {"peer": "dali 1", "seconds": [0.5], "records": 1, "sums": {**report["sums"], "int_3": 0}},
    }
    for name, answer in answers.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(answer))
        make_peer(tmp_path, name, SUMS.format(sums=str(tmp_path / f"{name}.json")))
    make_peer(tmp_path, "tfrecord", "import time; time.sleep(1000)")
    make_peer(tmp_path, "ray", "raise SystemExit('no memory')")
    figures = tmp_path / "figures.json"
    command: list[object] = [data, "tabular", "--environments", tmp_path, "--rounds", 1, "--passes", 1]
    done = run("read.py", *command, "--peers", "tfx-bsl,tfrecord,ray", "--timeout", 60, "--json", figures)
    assert "did not finish in 60 s" in done.stderr and "no memory" in done.stderr
    found = {figure["reader"]: figure for figure in json.loads(figures.read_text())}
    assert found["tfx-bsl 1"]["records"] == report["records"] == 120
    assert found["tfx-bsl 1"]["rates"] == [240, 480] and found["tfx-bsl 1"]["ratios"][0] > 0
    assert [found[name]["error"] for name in ("tfrecord", "ray")] == ["TimeoutError", "ChildProcessError"]
    done = run_program(sys.executable, BENCHMARKS / "read.py", *command, "--peers", "dali")
    assert done.returncode != 0 and "other sums" in done.stderr


@pytest.mark.nightly
def test_limits_and_scaling_run(data: Path, tmp_path: Path) -> None:
    run("pipelines.py", "limits", data, "--rounds", 1, "--json", tmp_path / "limits.json")
    rates, touch, gather = json.loads((tmp_path / "limits.json").read_text())
    assert min(rates["rates"].values()) > 0
    assert touch["nbytes"] == sum(path.stat().st_size for path in data.iterdir()) == gather["nbytes"]
    small = ["--records", 100, 1000, "--chunks", 2, 10, "--copies", 1, "--rounds", 1, "--workers", "1 thread"]
    run("scale.py", "records", *small, "--json", tmp_path / "scaling.json")
    scaled = json.loads((tmp_path / "scaling.json").read_text())
    assert [row["records"] for row in scaled["growth"]] == [100, 1000]
    assert [(row["chunks"], row["columns"]) for row in scaled["chunks"]] == [(2, 1), (2, 10), (10, 1), (10, 10)]
    assert [row["workers"] for row in scaled["workers"]] == ["1 thread"]
    done = run("scale.py", "startup", 1)
    assert "| import dask.array |" in done.stdout


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("simplejpeg")
    out = tmp_path_factory.mktemp("episodes")
    run("robot.py", "write", out, "--episodes", 8, "--pictures", 16)
    return out


@pytest.mark.slow
def test_the_memory_of_a_training_is_sampled_and_drawn(episodes: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "chart.svg"
    options = ["--batches", 40, "--batch", 4, "--rest", 0, "--every", 0, "--chart", chart]
    done = run("robot.py", "memory", episodes, *options)
    assert 100 < float(done.stdout.split()[1]) < 1024 and "<svg" in chart.read_text()


@pytest.mark.tensorflow
def test_frames_are_those_of_openpi(episodes: Path) -> None:
    paths = os.environ.get("DASK_TFRECORD_OPENPI", "").split(os.pathsep)
    if len(paths) != 3:
        pytest.skip("DASK_TFRECORD_OPENPI is not an interpreter and the repositories of openpi and dlimp")
    python, openpi, dlimp = paths
    options = ["--peer", python, "--openpi", openpi, "--dlimp", dlimp, "--batches", 150]
    done = run("robot.py", "compare", episodes, *options)
    stored, bilinear, lanczos = done.stdout.splitlines()
    for line in (stored, bilinear, lanczos):
        assert line.endswith("0.0000 levels apart in the mean, 0 at most")


@pytest.mark.slow
def test_moved_columns_equal_those_of_numpy(tmp_path: Path) -> None:
    done = run("device.py", tmp_path, "--rows", 160, "--backend", "numpy", "--device", "", "--batch", 7)
    assert done.stdout.count("  yes") == 10


@pytest.mark.nightly
def test_conversions_in_parts_are_measured(data: Path) -> None:
    assert "per core of parts" in run("parts.py", "throughput", f"{data}/tabular-*", "--rounds", 1).stdout
    assert "first task after" in run("parts.py", "start", "--units", 1000).stdout


@pytest.mark.slow
def test_costs_per_element() -> None:
    printed = run("growth.py", "--sizes", 2, 4).stdout
    assert [printed.count(f"ms per element of {kind}") for kind in ("shards", "columns", "chunks", "appends")] == [
        1
    ] * 4
    assert "last tenth" in printed


@pytest.mark.nightly
def test_a_cluster_converts_between_servers_while_workers_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("moto.server")
    pytest.importorskip("matplotlib")
    printed = run("killed_workers.py", "--plot", tmp_path / "plot.png").stdout
    assert printed.count("; a worker was killed") == 2 and "and one joined (" in printed
    assert "compared every value" in printed
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
