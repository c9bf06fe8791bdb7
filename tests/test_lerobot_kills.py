"""LeRobot data sets whose workers or client are killed while they are written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.killing import MARKS, Call, Log, restless_cluster
from support.robot import contents, steps_of
from support.waiting import wait_until

pytestmark = MARKS
pytest.importorskip("av")


def convert(robot: Path, out: Path, log: Path) -> None:
    """Convert slowly, a file per episode."""
    steps = steps_of(robot)
    slow = steps.map_blocks(partial(slowly, log=log), dict(steps.schema))
    slow.to_lerobot(out, fps=15, episodes_per_file=1, resume=True)


def slowly(blocks: dict[str, Any], log: Path) -> dict[str, Any]:
    if len(blocks) > 2:
        Log(log).take("step", 0.1, False)
    return blocks


@pytest.mark.parametrize("killed", ["workers", "client"])
def test_a_killed_conversion_is_resumed_with_the_same_bytes(robot: Path, tmp_path: Path, killed: str) -> None:
    convert(robot, tmp_path / "reference", tmp_path / "no-log")
    wanted = contents(tmp_path / "reference")
    out, log = tmp_path / "out", Log(tmp_path / "log")

    def published() -> list[Path]:
        return list(out.rglob("file-*"))

    with restless_cluster() as cluster:
        call = Call(cluster.address, convert, robot, out, tmp_path / "log")
        assert wait_until(lambda: len(published()) >= 4, call.alive)
        if killed == "workers":
            os.kill(cluster.workers()[0], 9)
            call.outcome()
        else:
            call.kill()
            assert not (out / "meta/info.json").exists()
            found, error = Call(cluster.address, convert, robot, out, tmp_path / "log").outcome()
            assert found is None and error is None
    assert log.steps()

    def same(name: str, data: bytes) -> bool:
        return name == "meta/tasks.parquet" or wanted[name] == data

    found = contents(out)
    assert {*found} == {*wanted} and all(same(name, data) for name, data in found.items())
