"""LeRobot data sets whose workers or client are killed while they are written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.killing import MARKS, Call, Log, restless_cluster
from support.robot import steps_of
from support.store_round_trip import files_in
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


@pytest.mark.parametrize("killed", [("workers",), ("client",), ("workers", "client")], ids="-".join)
def test_a_killed_conversion_is_resumed_with_the_same_bytes(
    robot: Path, tmp_path: Path, killed: tuple[str, ...]
) -> None:
    log = Log(tmp_path / "log")
    # The path of the log belongs to the function of the conversion, whose identity is in `meta/tasks.parquet`.
    convert(robot, tmp_path / "reference", log.path)
    log.path.unlink()
    wanted = files_in(tmp_path / "reference")
    assert {"meta/info.json", "meta/stats.json", "meta/tasks.parquet"} < {*wanted}
    assert any(name.startswith("meta/episodes/") for name in wanted) and any(name.endswith(".mp4") for name in wanted)
    out = tmp_path / "out"

    def published() -> list[Path]:
        return list(out.rglob("file-*"))

    with restless_cluster() as cluster:
        call = Call(cluster.address, convert, robot, out, log.path)
        assert wait_until(lambda: len(published()) >= 4, call.alive)
        if "workers" in killed:
            os.kill(cluster.workers()[0], 9)
        if "client" in killed:
            if "workers" in killed:
                before = len(published())
                assert wait_until(lambda: len(published()) > before, call.alive)
            call.kill()
            assert not (out / "meta/info.json").exists()
            call = Call(cluster.address, convert, robot, out, log.path)
        found, error = call.outcome()
        assert found is None and error is None
    assert log.steps()
    found = files_in(out)
    assert {*found} == {*wanted} and [name for name in wanted if found[name] != wanted[name]] == []
