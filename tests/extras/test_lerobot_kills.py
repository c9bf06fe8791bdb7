"""LeRobot data sets whose workers and client are killed while they are written."""

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


def convert(robot: Path, out: Path, log: Path, adds: bool) -> None:
    """Convert slowly, a file per episode; or add the episodes."""
    steps = steps_of(robot)
    slow = steps.map_blocks(partial(slowly, log=log), dict(steps.schema))
    slow.to_lerobot(out, fps=15, episodes_per_file=1, resume=True, mode="a" if adds else "w-")


def slowly(blocks: dict[str, Any], log: Path) -> dict[str, Any]:
    if len(blocks) > 2:
        Log(log).take("step", 0.1, False)
    return blocks


@pytest.mark.parametrize("adds", [False, True], ids=["new", "added"])
def test_a_killed_conversion_is_resumed_with_the_same_bytes(robot: Path, tmp_path: Path, adds: bool) -> None:
    log, out = Log(tmp_path / "log"), tmp_path / "out"
    if adds:
        for folder in (out, tmp_path / "reference"):
            steps_of(robot).rows[:11].to_lerobot(folder, fps=15)
    before = files_in(out) if adds else {}
    # The path of the log belongs to the function of the conversion, whose identity is in `meta/tasks.parquet`.
    convert(robot, tmp_path / "reference", log.path, adds)
    log.path.unlink()
    wanted = files_in(tmp_path / "reference")
    assert {"meta/info.json", "meta/stats.json", "meta/tasks.parquet"} < {*wanted}
    assert any(name.startswith("meta/episodes/") for name in wanted) and any(name.endswith(".mp4") for name in wanted)

    def published() -> list[Path]:
        return [path for path in out.rglob("file-*") if path.relative_to(out).as_posix() not in before]

    with restless_cluster() as cluster:
        call = Call(cluster.address, convert, robot, out, log.path, adds)
        assert wait_until(lambda: len(published()) >= 4, call.alive)
        os.kill(cluster.workers()[0], 9)
        number = len(published())
        assert wait_until(lambda: len(published()) > number, call.alive)
        call.kill()
        # Workers still write: other files may vanish while they are listed.
        info = out / "meta/info.json"
        assert (info.read_bytes() if info.exists() else None) == before.get("meta/info.json")
        call = Call(cluster.address, convert, robot, out, log.path, adds)
        found, error = call.outcome()
        assert found is None and error is None
    assert log.steps()
    found = files_in(out)
    assert {*found} == {*wanted} and [name for name in wanted if found[name] != wanted[name]] == []
