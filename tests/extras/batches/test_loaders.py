"""Loaders of PyTorch and Grain, and the blocks of docs/how-to/training.md that need them.

The interpreter at ``DASK_TFRECORD_LOADERS`` belongs to an environment with torch, torchdata, grain, jax and keras.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.numbered_shards import write_shards
from support.pages import blocks
from support.paths import REPOSITORY
from support.programs import run_program, run_python

pytestmark = pytest.mark.loaders


START = """
import sys
import numpy as np
import dask_tfrecord as dtf

FEATURES = {
    "label": dtf.FixedLenFeature((), "int64"),
    "tokens": dtf.VarLenFeature("int64"),
    "name": dtf.FixedLenFeature((), "bytes"),
}
ds = dtf.read_tfrecord("*.tfrecord", FEATURES)
rows = ds.as_sequence()
"""

STATEFUL = """
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

class Batches(IterableDataset):
    def __init__(self, **options):
        self.options = options

    def __iter__(self):
        worker = get_worker_info()
        shard = (worker.id, worker.num_workers) if worker else (0, 1)
        return ds.batches(7, shard=shard, pad={"tokens": None}, **self.options)

def labels(batches):
    return [batch["label"].tolist() for batch in batches]

# The threads of this process exist while workers are forked.
running = ds.batches(3, epochs=None)
next(running)
for shuffle in (False, "window", "full"):
    for workers in (0, 2, 3):
        batches = Batches(shuffle=shuffle, seed=5, epochs=2)
        whole = labels(DataLoader(batches, batch_size=None, num_workers=workers))
        counts = np.bincount([label for batch in whole for label in batch])
        assert counts.tolist() == [2] * ds.nrows, (shuffle, workers)
        make = lambda: StatefulDataLoader(batches, batch_size=None, num_workers=workers)
        assert labels(make()) == whole
        for stop in (0, 1, 9, len(whole) - 1):
            loader = make()
            iterator = iter(loader)
            for _ in range(stop):
                next(iterator)
            state = loader.state_dict()
            again = make()
            again.load_state_dict(state)
            assert labels(again) == whole[stop:], (shuffle, workers, stop)
            del iterator
running.close()
"""

LOADED = """
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

labels = ds[["label"]]
def loop(loader):
    return [int(label) for batch in loader for label in batch["label"]]

for options in ({}, {"shuffle": "full", "seed": 1}, {"shuffle": "window"}):
    for workers in (0, 1, 3):
        loader = DataLoader(labels.batches(7, **options), batch_size=None, num_workers=workers)
        assert [sorted(loop(loader)) for _ in range(3)] == [list(range(ds.nrows))] * 3, (options, workers)
        make = lambda: StatefulDataLoader(labels.batches(7, **options), batch_size=None, num_workers=workers)
        loader, again = make(), make()
        iterator = iter(loader)
        first = [int(label) for _ in range(4) for label in next(iterator)["label"]]
        again.load_state_dict(loader.state_dict())
        assert sorted(first + loop(again)) == list(range(ds.nrows)), (options, workers)
        del iterator
shuffled = labels.batches(7, shuffle="full", seed=1)
persistent = DataLoader(shuffled, batch_size=None, num_workers=2, persistent_workers=True)
assert loop(persistent) != loop(persistent)
by_number = DataLoader(labels.as_sequence(), batch_size=8, shuffle=True, num_workers=2)
assert sorted(loop(by_number)) == list(range(ds.nrows))
del persistent
"""

MAPPED = """
import torch
from torch.utils.data import DataLoader
for method in ("fork", "spawn"):
    loader = DataLoader(
        rows, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=method, collate_fn=list
    )
    found = [row for batch in loader for row in batch]
    assert sorted(int(row["label"]) for row in found) == list(range(len(rows)))
    for row in found:
        assert row["name"] == b"row %d" % row["label"]
        assert row["tokens"].tolist() == ds_tokens[row["label"]]
"""

GRAIN = """
import grain
data = grain.MapDataset.source(rows).seed(3).shuffle()
found = [data[i] for i in range(len(data))]
assert sorted(int(row["label"]) for row in found) == list(range(len(rows)))
assert all(row["tokens"].tolist() == ds_tokens[row["label"]] for row in found)
dense = ds[["label"]].as_sequence()
iterator = iter(grain.MapDataset.source(dense).seed(3).shuffle().to_iter_dataset().batch(8))
first = next(iterator)["label"].tolist()
state = iterator.get_state()
rest = [batch["label"].tolist() for batch in iterator]
iterator.set_state(state)
assert [batch["label"].tolist() for batch in iterator] == rest
assert sorted(sum(rest, first)) == list(range(len(rows)))
"""


@pytest.fixture(scope="module")
def python() -> str:
    """Return the interpreter of an environment with the loaders."""
    python = os.environ.get("DASK_TFRECORD_LOADERS")
    if not python:
        pytest.skip("DASK_TFRECORD_LOADERS is not set to an interpreter with torch, torchdata, grain, jax, keras")
    return python


def run(python: str, script: str, folder: Path) -> None:
    """Run a program in the other environment, where the package is installed; workers of `spawn` import it again."""
    (folder / "program.py").write_text(script, "utf-8")
    environment = {**os.environ, "PYTHONPATH": "", "KERAS_BACKEND": "torch"}
    done = run_program(python, "program.py", cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-5000:]


def guarded(script: str) -> str:
    """Return a script whose last part runs in the main process alone."""
    body = "ds_tokens = [row.tolist() for row in ds['tokens'].compute(scheduler='synchronous')]\n" + script
    return f"{START}\nif __name__ == '__main__':\n" + "\n".join(f"    {line}" for line in body.splitlines())


@pytest.mark.parametrize(
    "script", [STATEFUL, LOADED, MAPPED, GRAIN], ids=["torch-iterable", "torch-batches", "torch-map", "grain"]
)
def test_loaders_read_every_row(python: str, script: str, tmp_path: Path) -> None:
    write_shards(tmp_path, 3, 40)
    run(python, guarded(script), tmp_path)


PAGES = [("training", kind) for kind in ("jax", "torch", "grain", "keras")] + [("droid", "jax"), ("droid", "torch")]


@pytest.mark.parametrize(("page", "kind"), PAGES)
def test_blocks_of_the_documentation_run(python: str, page: str, kind: str, tmp_path: Path) -> None:
    # Blocks of a page that begins with its data continue those without a kind.
    shared = () if page == "training" else ("python",)
    found = blocks(f"docs/how-to/{page}.md", f"python {kind}", *shared)
    assert any(block.kind == f"python {kind}" for block in found)
    run_python(REPOSITORY / "examples" / "sample_shards.py", tmp_path)
    run(python, "\n".join(block.text for block in found), tmp_path)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_example_of_robots_makes_tensors(python: str, library: str, tmp_path: Path) -> None:
    script = (REPOSITORY / "examples" / "droid.py").read_text("utf-8")
    run(python, script.replace("sys.argv[2:3]", f'["{library}"]'), tmp_path)
