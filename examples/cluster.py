"""Convert shards on a cluster: check its workers, convert, and look at the result.

    python examples/cluster.py "s3://bucket/train-*.tfrecord" s3://bucket/train.zarr --scheduler tcp://scheduler:8786

Without `--scheduler`, two workers start on this machine. Without paths, the script writes two shards to a temporary
folder and converts them. Needs the package distributed.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from distributed import Client

import dask_tfrecord as dtf


def write_shards(folder: Path) -> str:
    """Write two shards of numbers."""
    columns = {"label": np.arange(200) % 10, "score": np.linspace(0, 1, 200, dtype="float32")}
    dtf.to_tfrecord(columns, folder / "train-{shard}.tfrecord", records_per_shard=100)
    return str(folder / "train-*.tfrecord")


def convert(client: Client, shards: str, store: str) -> None:
    """Convert shards to a Zarr store on the workers, and print what the store has."""
    # Workers open the paths themselves. This takes a second, and a wrong path would fail each task.
    dtf.check_workers(client, [shards, str(Path(store).parent) if "://" not in store else store]).raise_for_problems()

    ds = dtf.read_tfrecord(shards)
    print(ds)
    # Started again after an interruption, the same call converts what is missing.
    ds.to_zarr(store, resume=True)

    stored = dtf.from_zarr(store)
    print(stored)
    for name, feature in stored.schema.items():
        # The sum is computed on the workers, and one number comes back.
        if feature.is_dense:
            print(f"{name}: mean {float(stored[name].mean().compute()):.3f}")


def main() -> None:
    """Start or find a cluster, and convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="?", help="path, URL or pattern of the shards")
    parser.add_argument("store", nargs="?", help="path or URL of the new store")
    parser.add_argument("--scheduler", help="address of a scheduler")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
        client = stack.enter_context(Client(given.scheduler) if given.scheduler else Client(**local))
        convert(client, given.shards or write_shards(folder), given.store or str(folder / "train.zarr"))


if __name__ == "__main__":
    main()
