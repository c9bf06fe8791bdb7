"""From TFRecord shards to Parquet files, and to a query of them.

    python examples/parquet_files.py [DIRECTORY]

Writes shards, converts them to one Parquet file per chunk, and averages a column by label. Missing libraries:
`pip install "dask-tfrecord[arrow]"`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import dask_tfrecord as dtf


def write(directory: Path, records: int) -> None:
    """Write two shards of labels, scores, texts and ragged tokens."""
    rng = np.random.default_rng(10)
    arrays = {
        "label": rng.integers(0, 4, records),
        "score": rng.random(records, np.float32),
        "text": np.array([f"record {record}" for record in range(records)]),
        "tokens": [rng.integers(0, 1000, record % 6) for record in range(records)],
    }
    name = directory / "train-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord(arrays, name, records_per_shard=-(-records // 2), mode="w")


def main(directory: Path, records: int = 2000) -> Any:
    """Write shards, and convert and query them."""
    write(directory, records)
    ds = dtf.read_tfrecord(directory / "train-*.tfrecord")
    ds.to_parquet(directory / "train.parquet", compression="zstd", mode="w")
    # Parquet reads the requested columns alone.
    table = pq.read_table(directory / "train.parquet", columns=["label", "score"])
    means = table.group_by("label").aggregate([("score", "mean"), ("score", "count")]).sort_by("label")
    print(means.to_pandas())
    return means


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "parquet"))
