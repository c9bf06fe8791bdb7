"""The example of a cluster: programs of dask, S3 to S3, and a worker killed during each conversion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.integration
def test_the_example_converts_between_servers_while_workers_are_killed() -> None:
    pytest.importorskip("moto.server")
    script = Path(__file__).parents[1] / "examples" / "cluster.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=550, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("; a worker was killed (") == 2
    assert "compared every value" in done.stdout
