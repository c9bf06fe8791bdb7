"""Pipelines of this library for `compare.py`: read the files into NumPy arrays through dask.

`touch` decodes and drops every block and returns a number per block. `gather` calls `Dataset.compute`, for one array
per feature. `ragged` decodes tokens to flat values and row splits. `sums` prints the sum of every feature for
`compare.py --peers`, without times. Both CRCs of every record are checked.

    python benchmarks/dask_pipelines.py DATA NAME [touch|gather|ragged|sums] [--passes 3] [--workers 2]

Prints one line of JSON: the records of a pass, the seconds of opening (a scan of the headers for the record count), and
the seconds of each pass after an untimed first pass.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
from compare import LABELLED, label_of
from peers import totals

import dask_tfrecord as dtf
from dask_tfrecord.features import Feature

SCALARS = {"int": "int64", "float": "float32"}
TABULAR: dict[str, Feature] = {
    **{f"{kind}_{k}": dtf.FixedLenFeature((), dtype) for kind, dtype in SCALARS.items() for k in range(8)},
    **{f"str_{k}": dtf.FixedLenFeature((), "bytes") for k in range(2)},
}
LABEL = dtf.FixedLenFeature((), "int64")
FEATURES: dict[str, dict[str, Feature]] = {
    "tabular": TABULAR,
    "tabular_gz": TABULAR,
    "vectors": {
        "embedding": dtf.FixedLenFeature((256,), "float32"),
        "label": LABEL,
        "id": dtf.FixedLenFeature((), "bytes"),
    },
    "images_raw": {"image": dtf.RawFeature((64, 64, 3), "float32"), "label": LABEL},
    "tokens": {"tokens": dtf.VarLenFeature("int64"), "label": LABEL},
    "sequences": {"label": LABEL},
    "mixed": {
        "label": dtf.FixedLenFeature((), "uint8"),
        "score": dtf.FixedLenFeature((), "float32", -1.0),
        "boxes": dtf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
        "sparse": dtf.SparseFeature("index", "value", "float32", 10_000),
    },
    "tensors": {"tensor": dtf.TensorFeature((32, 32, 4), "float32"), "label": LABEL},
    "jpeg": {"image": dtf.ImageFeature((256, 256, 3)), "label": LABEL},
    "jpeg.fast": {"image": dtf.ImageFeature((256, 256, 3), fast=True), "label": LABEL},
    "jpeg.resized": {"image": dtf.ImageFeature((224, 224, 3), "float32", size=(224, 224)), "label": LABEL},
    "png": {"image": dtf.ImageFeature((256, 256, 3)), "label": LABEL},
}
# One integer of each record.
FEATURES |= {f"{name}.label": {label_of(name): LABEL} for name in LABELLED}
SEQUENCE_FEATURES: dict[str, dict[str, Feature]] = {
    "sequences": {
        "frames": dtf.FixedLenSequenceFeature((16,), "float32"),
        "words": dtf.RaggedFeature("int64"),
    },
    "sequences.label": {},
}


def look(blocks: dict[str, Any]) -> dict[str, Any]:
    """Count the rows of a chunk of blocks: bytes as objects, tokens as values and splits."""
    (rows,) = {len(block) for block in blocks.values()}
    return {"rows": np.ones(rows, np.uint8)}


def touch(ds: dtf.Dataset) -> int:
    """Decode every block, drop it, and count the rows."""
    return int(ds.map_blocks(look)["rows"].sum().compute())


def gather(ds: dtf.Dataset) -> int:
    """Decode all rows into one array per feature."""
    arrays = ds.compute()
    return len(next(iter(arrays.values())))


def ragged(ds: dtf.Dataset) -> int:
    """Decode all rows as `gather` does, but tokens into one array of values and one of splits."""
    values, row_splits = ds.ragged("tokens")
    _, _, labels = dask.compute(values, row_splits, ds["label"])
    return len(labels)


def main() -> None:
    """Time the passes of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=FEATURES)
    parser.add_argument("task", nargs="?", choices=["touch", "gather", "ragged", "sums"], default="touch")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--workers", type=int, default=2, help="threads of dask's scheduler")
    parser.add_argument("--chunks", default="auto", help="as in read_tfrecord: auto, shard, or a size like '16 MiB'")
    arguments = parser.parse_args()
    dask.config.set(scheduler="threads", num_workers=arguments.workers)

    start = time.perf_counter()
    pattern = str(arguments.data / f"{arguments.name.split('.')[0]}-*.tfrecord*")
    ds = dtf.read_tfrecord(
        pattern,
        FEATURES[arguments.name],
        sequence_features=SEQUENCE_FEATURES.get(arguments.name),
        chunks=arguments.chunks,
    )
    opening = time.perf_counter() - start

    if arguments.task == "sums":
        arrays = ds.compute()
        print(json.dumps({"records": len(arrays[label_of(arguments.name)]), "sums": totals([arrays])}))
        return
    work = {"touch": touch, "gather": gather, "ragged": ragged}[arguments.task]
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    count, seconds = work(ds), []
    for _ in range(arguments.passes):
        start = clock()
        work(ds)
        seconds.append(clock() - start)
    print(json.dumps({"records": count, "seconds": seconds, "open_seconds": opening}))


if __name__ == "__main__":
    main()
